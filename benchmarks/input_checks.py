"""What `trtcal check-data` names of faults planted in right data, and how often it is wrong there.

    python -m benchmarks.input_checks MODEL DATA [--form normal] [--subsets 10] [--samples 64]

DATA is an .npz that is right for MODEL, with one image input and perhaps labels; `--form` is the form
of its pixels (raw, unit, signed, normal, mean-subtracted), where the values do not show it. Each subset
takes samples at random and plants every fault in them, with labels and without. Printed: in how many
subsets the fault was named, and what else was named; on right data anything named is a false alarm.
The cost is the time of one check over that of one FP32 pass over as many samples.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.check.data_check import BATCH, check_data
from trtcal.check.preprocessing import (
    MEAN,
    MEAN_SUBTRACTED,
    NORMAL,
    RAW,
    SIGNED,
    STD,
    UNIT,
    VALID,
    Change,
    Form,
    forms_of,
)
from trtcal.check.probe import ModelProbe
from trtcal.check.samples import ImageInput, take_samples
from trtcal.data.dataset import ArrayDataset
from trtcal.model import Model, load_model

Array = npt.NDArray[Any]
Fault = tuple[str, Callable[[Array], Array], set[str]]

COLOUR = ("BGR for RGB", "NHWC reshaped")  # which change nothing of one channel
SPOILED = 4  # one sample in so many is made constant, or a copy of another
SCALE = {"pixels_not_scaled", "pixels_scaled", "scaled_twice"}
NORMALIZATION = {"not_normalized", "other_normalization", "normalized_twice"}
HALF = ((0.5,) * 3, (0.5,) * 3)


def pixel_faults(form: Form) -> Iterator[Fault]:
    """Yield name, what to do to planes in their right form, and the kinds of issue it is."""
    if form in (RAW, MEAN_SUBTRACTED):
        yield "divided by 255", lambda x: x / 255, {"pixels_scaled"}
        yield "0 to 1", Change(form, UNIT), {"pixels_scaled"}
    else:
        yield "not divided by 255", Change(form, RAW), {"pixels_not_scaled"}
        fine = Change(UNIT, form)
        yield "divided twice", lambda x: fine(Change(form, UNIT)(x) / 255), SCALE
        yield "prepared, then / 255", lambda x: x / 255, SCALE
    if form in (SIGNED, NORMAL):
        mean, std = HALF if form == SIGNED else (MEAN, STD)
        yield "no mean and std", Change(form, UNIT), NORMALIZATION
        yield "mean and std twice", Change(form, form.then(mean, std, "", "")), NORMALIZATION
        spoiled = RAW.then(mean, std, "", "")
        yield "mean and std, not / 255", Change(form, spoiled), {"pixels_not_scaled"}
    if form == MEAN_SUBTRACTED:
        yield "no mean", Change(form, RAW), NORMALIZATION
    yield "BGR for RGB", lambda x: x[:, ::-1], {"channel_order"}
    yield "NHWC reshaped", lambda x: np.moveaxis(x, 1, -1).reshape(x.shape), {"layout"}


def sample_faults() -> Iterator[Fault]:
    """Yield the faults of samples, as `pixel_faults` does."""
    yield "constant", _some(lambda x: x.mean((2, 3), keepdims=True)), {"constant_samples"}
    yield "all zero", _some(np.zeros_like), {"zero_samples"}
    yield "repeated", _some(lambda x: np.repeat(x[:1], len(x), 0)), {"repeated_samples"}


def _some(spoil: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def work(planes: Array) -> Array:
        spoiled = planes.copy()
        spoiled[::SPOILED] = spoil(planes[::SPOILED])
        return spoiled

    return work


def dataset(images: ImageInput, planes: Array, labels: Array | None) -> ArrayDataset:
    """Return samples as the dataset that a user would have opened."""
    array = np.ascontiguousarray(images.packed(planes), np.float32)
    return ArrayDataset("planted", {images.name: array}, labels, "")


def trials(
    images: ImageInput, form: Form, planes: Array, labels: Array | None, rng: np.random.Generator
) -> Iterator[tuple[str, ArrayDataset, set[str]]]:
    """Yield name, data and the kinds of issue it is, for one subset of samples."""
    kinds = (
        {"without labels": None} if labels is None else {"labels": labels, "without labels": None}
    )
    for kind, given in kinds.items():
        yield f"right data, {kind}", dataset(images, planes, given), set()
        for name, spoil, codes in (*pixel_faults(form), *sample_faults()):
            if name not in COLOUR or planes.shape[1] == 3:
                yield f"{name}, {kind}", dataset(images, spoil(planes), given), codes
    if labels is not None:
        shuffled = dataset(images, planes, rng.permutation(labels))
        yield "shuffled, labels", shuffled, {"labels_disagree"}
        yield "off by one, labels", dataset(images, planes, labels + 1), {"labels_off_by_one"}


def measure(model: Model, path: Path, form: Form | None, subsets: int, samples: int) -> None:
    """Print how many subsets had each fault named, and what else was."""
    images = ImageInput.of(model)
    if images is None:
        raise SystemExit("the model has no image input")
    stored = np.load(path)
    every = images.planes(stored[images.name])
    form = form or forms_of(every[:64])[0]
    rng = np.random.default_rng(0)
    named, others = Counter[str](), dict[str, Counter[str]]()
    for _ in range(subsets):
        rows = np.sort(rng.choice(len(every), min(samples, len(every)), replace=False))
        labels = stored["labels"][rows].astype(np.int64) if "labels" in stored else None
        for name, data, codes in trials(images, form, every[rows], labels, rng):
            found = {issue.kind for issue in check_data(model, data).issues}
            named[name] += bool(found & codes) if codes else not found
            others.setdefault(name, Counter()).update(found - codes)
    passes = cost(model, dataset(images, every[:samples], None))
    print(
        f"{model.name}, pixels as {form.text}: {subsets} subsets of {samples}, cost {passes:.1f} passes"
    )
    for name, wrong in others.items():
        said = ", ".join(f"{code} {times}" for code, times in wrong.items())
        print(f"  {name:40} {named[name]:3} of {subsets}   {said}")
    right = [name for name in others if name.startswith("right")]
    share = sum(named[name] for name in others if name not in right) / (len(others) - len(right))
    alarms = subsets - sum(named[name] for name in right) / len(right)
    print(f"  faults named: {share / subsets:.1%}; false alarms: {alarms / subsets:.1%}")


def cost(model: Model, data: ArrayDataset) -> float:
    """Return the time of one check over that of one pass, the session opened."""
    samples, probe = take_samples(model, data, len(data)), ModelProbe(model, BATCH)
    probe.run(samples.first(1))
    started = time.perf_counter()
    probe.run(samples)
    passed = time.perf_counter()
    check_data(model, data)
    return (time.perf_counter() - passed) / (passed - started)


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--form", choices=[form.name for form in VALID])
    parser.add_argument("--subsets", type=int, default=10)
    parser.add_argument("--samples", type=int, default=64)
    given = parser.parse_args()
    form = next((form for form in VALID if form.name == given.form), None)
    measure(load_model(given.model), given.data, form, given.subsets, given.samples)


if __name__ == "__main__":
    main()
