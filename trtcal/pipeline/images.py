"""The keys of [images] for a folder of image files: chosen by FP32's accuracy where labels are known.

Without labels the usual preprocessing of the task is a guess, changed where the data check asks for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trtcal.check.data_check import LABELLED, ROOM, check_data
from trtcal.check.preprocessing import MEAN_SUBTRACTED, NORMAL, RAW, SIGNED, UNIT, settings_of
from trtcal.check.probe import ModelProbe
from trtcal.check.ranking import Trial, answered, rank
from trtcal.check.samples import ImageInput, take_samples
from trtcal.config import ImagesConfig, read_section
from trtcal.data import Dataset, open_dataset
from trtcal.data.images import find_images
from trtcal.errors import InputError
from trtcal.evaluate.per_sample import Labels
from trtcal.model import Model
from trtcal.model.loaders import Declared

SEEN = 64  # images whose sizes are looked at
EDGE = 0.875  # of the shorter side that a classifier sees: 224 of 256
BATCH = 16
CHECKS = 3  # of the data, each with what the one before changed
SHOWN = 4  # other values of a key, with their accuracy
SIZE = "the images do not have the size of the model input"

Option = tuple[str, dict[str, Any]]
"""A choice in words, and its keys of [images]."""
Way = dict[str, Option]
"""A choice for "channels", "layout", "resize" and "scale"."""


@dataclass(frozen=True)
class Images:
    """Keys of [images], and why they are `guessed` or `read`; none where the data are not images."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    how: str = "guessed"

    @property
    def config(self) -> ImagesConfig | None:
        """The preprocessing."""
        return read_section(ImagesConfig, dict(self.keys)) if self.keys else None


def guess_images(
    model: Model,
    data: Path,
    labels: str | None,
    labelled: tuple[Path, str] | None,
    declared: Declared,
) -> Images:
    """Return how the images of a folder are prepared for a model: as its files declare, or a guess.

    `labelled` is a folder of images with "csv" or "folders", where their labels are, if there is one.
    `InputError` if the model takes no images, or one of them cannot be read.
    """
    files = find_images(data)[0] if data.is_dir() else []
    if not files:
        return Images()
    if declared.images:
        return Images(declared.images, declared.why, "read")
    image = ImageInput.of(model)
    if image is None:
        raise InputError(
            f"{data} contains images, but no input of the model has the shape of an image",
            "give arrays named after its inputs: an .npz, or a folder of .npy files",
        )
    choices = _choices(model, image, _seen(data, files))
    usual = {axis: options[0] for axis, options in choices.items()}
    return _by_labels(model, labelled, choices, usual) or _by_check(model, data, labels, usual)


def _choices(
    model: Model, image: ImageInput, seen: tuple[tuple[int, int], bool]
) -> dict[str, list[Option]]:
    """Return the plausible choices of each axis, the usual one first."""
    spec = next(spec for spec in model.inputs if spec.name == image.name)
    _, *sizes = spec.shape
    channels = int(sizes.pop(-1 if image.channels_last else 0))
    is_classifier, is_float = _is_classifier(model), np.dtype(spec.dtype).kind == "f"
    usual = (NORMAL, UNIT) if is_classifier else (UNIT, NORMAL)
    forms = (*usual, SIGNED, MEAN_SUBTRACTED, RAW) if is_float else (RAW,)
    layout = "NHWC" if image.channels_last else "NCHW"
    cuts = _cuts(seen, sizes, is_classifier)
    return {
        "channels": [
            (c, {"channels": c}) for c in (("gray",) if channels == 1 else ("RGB", "BGR"))
        ],
        "layout": [(layout, {"layout": layout})],
        "resize": [(", ".join(f"{k} = {json.dumps(v)}" for k, v in c.items()), c) for c in cuts],
        "scale": [(form.text, settings_of(form.name, channels)) for form in forms],
    }


def _seen(folder: Path, files: Sequence[str]) -> tuple[tuple[int, int], bool]:
    """Return the height and width that most images have, and whether all that were seen have it."""
    sizes = Counter[tuple[int, int]]()
    for file in files[:: -(-len(files) // SEEN)]:
        try:
            with Image.open(folder / file) as image:
                sizes[image.height, image.width] += 1
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(
                f"image {folder / file} cannot be read: {error}", "remove it from the folder"
            ) from error
    return sizes.most_common(1)[0][0], len(sizes) == 1


def _cuts(
    seen: tuple[tuple[int, int], bool], size: Sequence[int | str], is_classifier: bool
) -> list[dict[str, Any]]:
    """Return how images may get the size that a model takes: a classifier sees the middle of them."""
    usual, is_only = seen
    height, width = (
        needed if isinstance(needed, int) else max(32, had // 32 * 32)
        for needed, had in zip(size, usual, strict=True)
    )
    if is_only and usual == (height, width):
        return [{}]
    whole = {"resize": [height, width]}
    if height != width:
        return [whole]
    middle = {"resize": round(height / EDGE), "crop": [height, width]}
    shorter = {"resize": height, "crop": [height, width]}
    others = [middle] if is_only and usual[0] == usual[1] else [middle, shorter]
    is_cut = is_classifier and min(usual) > height
    return [*others, whole] if is_cut else [whole, *others]


def _keys(way: Way) -> dict[str, Any]:
    return {name: value for _, keys in way.values() for name, value in keys.items()}


def _open(model: Model, data: Path, labels: str | None, keys: Mapping[str, Any]) -> Dataset:
    return open_dataset(data, model, read_section(ImagesConfig, dict(keys)), labels)


def _by_labels(
    model: Model,
    labelled: tuple[Path, str] | None,
    choices: Mapping[str, Sequence[Option]],
    usual: Way,
) -> Images | None:
    """Return the keys with which FP32 gets most labels right; None if labels do not decide."""
    if labelled is None:
        return None
    probe = ModelProbe(model, BATCH)
    sample = take_samples(model, _open(model, *labelled, _keys(usual)), 1)
    if probe.run(sample).classes is None:
        return None
    most = sample.fitting(LABELLED, ROOM)

    def answer(way: Way, count: int) -> tuple[Labels, Labels]:
        dataset = _open(model, *labelled, _keys(way))
        return answered(probe, take_samples(model, dataset, min(count, most)))

    best, why = usual, dict[str, str]()
    for axes in (("scale", "channels"), ("resize",)):
        ways = [best]
        for axis in axes:
            ways = [{**way, axis: option} for way in ways for option in choices[axis]]
        trials = rank(ways, answer, least=2)
        if not trials[0].decides:
            return None
        best = trials[0].way
        why |= {axis: reason for axis in axes if (reason := _figures(axis, trials))}
    return Images(_keys(best), dict.fromkeys(best["resize"][1], SIZE) | why)


def _figures(axis: str, trials: Sequence[Trial[Way]]) -> str:
    """Return FP32's accuracy with the best way and with those that differ only in an axis."""
    best, *others = trials
    alone = [t for t in others if {**t.way, axis: best.way[axis]} == best.way][:SHOWN]
    texts = [f"{_share(best)} labels right with {best.way[axis][0]}"]
    for trial in alone:
        is_paired = len(trial.labels) == len(best.labels)
        points = f" ({trial.over(best).points})" if is_paired else ""
        texts.append(f"{_share(trial)} with {trial.way[axis][0]}{points}")
    return f"FP32 gets {', '.join(texts)}" if alone else ""


def _share(trial: Trial[Way]) -> str:
    return f"{100 * trial.right / len(trial.labels):.1f} % of {len(trial.labels)}"


def _by_check(model: Model, data: Path, labels: str | None, usual: Way) -> Images:
    """Return the usual keys, and those that the check of data would change, also after others."""
    settles = "check it against the training"
    settles = "labels would decide it (--labels)" if _is_classifier(model) else settles
    first, changes, why = _keys(usual), dict[str, Any](), dict.fromkeys(usual["resize"][1], SIZE)
    for axis, about in (("channels", ""), ("scale", f" ({usual['scale'][0]})")):
        if usual[axis][0] not in ("gray", RAW.text):
            why[axis] = f"usual, and the data do not contradict it{about}; {settles}"
    for _ in range(CHECKS):
        dataset = _open(model, data, labels, first | changes)
        check = check_data(model, dataset, fingerprint=False)
        changed = dict[str, Any]()
        for issue in (*check.issues, *check.questions):
            changed |= issue.settings
            evidence = issue.sentence.rpartition("so prepared, ")[2]
            why |= dict.fromkeys(issue.settings, f"{evidence}; {settles}")
        if not changed or (first | changes | changed) == (first | changes):
            break
        changes |= changed
    return Images(first | changes, {key: why[key] for key in why if key not in ("mean", "std")})


def _is_classifier(model: Model) -> bool:
    return len(model.outputs) == 1 and len(model.outputs[0].shape) == 2
