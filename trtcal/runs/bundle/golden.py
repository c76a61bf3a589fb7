"""Golden inputs of a bundle, and the outputs of the variant that a device has to give for them.

The outputs are those of ONNX Runtime: integer kernels for INT8, Q/DQ in float for FP8 and four bits.
The tolerance of an output is the larger of two: its step in INT8, which is the largest magnitude among
its golden values over 127; and twice the largest difference between the integer kernels and the same
Q/DQ executed in float. The second is what other kernels, which round elsewhere, can be expected to
differ by; the first keeps it from being nothing where both agree. Integer outputs have no step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.backends.kernel_forms import adapted
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Session, open_session, run_once
from trtcal.data import Dataset
from trtcal.data.dataset import Feeds, batch_for
from trtcal.documents import Document
from trtcal.errors import BackendError, InputError
from trtcal.model import Model, uniquely_named

FEWEST_SAMPLES, MOST_SAMPLES = 8, 16
LEVELS = 127  # of a sign in INT8
MARGIN = 2.0
RULE = "max(max|output| / 127, 2 x max|integer kernels - Q/DQ in float|); no step for integers"

Array = npt.NDArray[Any]


@dataclass
class Golden:
    """Arrays of the golden file by their names there, `input.0.3` being of sample 3.

    `numbers` are the places of the samples in the data, `tolerances` the absolute ones by output.
    """

    inputs: tuple[str, ...]
    numbers: tuple[int, ...]
    arrays: dict[str, Array] = field(default_factory=dict)
    tolerances: dict[str, float] = field(default_factory=dict)
    labels: list[int] | None = None
    about: str = ""

    def to_document(self, file: str) -> Document:
        """Return what the manifest says of them."""
        return {
            "file": file,
            "samples": len(self.numbers),
            "numbers": list(self.numbers),
            "inputs": list(self.inputs),
            "tolerances": self.tolerances,
            "rule": RULE,
            "labels": self.labels,
            **({"about": self.about} if self.about else {}),
        }


def make_golden(model: Model, dataset: Dataset, samples: int = MOST_SAMPLES) -> Golden:
    """Run samples from all over the data through a variant; `InputError` if there are too few.

    `model` is the variant with its Q/DQ. A model of a fixed batch size has one batch for each sample.
    """
    batch = batch_for(model, 1)
    numbers = _spaced(len(dataset) // batch, samples, dataset.name)
    model = uniquely_named(model)
    integer, literal = _sessions(model)
    names = [output.name for output in integer.get_outputs()]
    inputs = tuple(tensor.name for tensor in integer.get_inputs())
    golden = Golden(inputs, numbers, about=dataset.about)
    differences = dict.fromkeys(names, 0.0)
    for sample, feeds in enumerate(_feeds(integer, dataset, numbers, batch)):
        outputs, other = run_once(integer, names, feeds), run_once(literal, names, feeds)
        for name, value, two in zip(names, outputs, other, strict=True):
            differences[name] = max(differences[name], _largest(value.astype("f8") - two))
        _keep(golden, sample, feeds, outputs)
    steps = {name: _step(golden, place) for place, name in enumerate(names)}
    golden.tolerances = {n: float(max(MARGIN * differences[n], step)) for n, step in steps.items()}
    if dataset.labels is not None and batch == 1 and dataset.labels.dtype.kind in "iu":
        golden.labels = [int(dataset.labels[number]) for number in numbers]
    return golden


def _spaced(available: int, most: int, name: str) -> tuple[int, ...]:
    """Return evenly spaced numbers, the first and the last among them."""
    if available < FEWEST_SAMPLES:
        needed = f"a bundle has {FEWEST_SAMPLES} to {MOST_SAMPLES} golden inputs"
        hint = "give more evaluation data with --data"
        raise InputError(f"data {name} have {available} samples: {needed}", hint)
    count = min(most, available)
    return tuple(round(place * (available - 1) / (count - 1)) for place in range(count))


def _sessions(model: Model) -> tuple[Session, Session]:
    """Return a session of the integer kernels, where they take the model, and one in float."""
    literal = open_session(adapted(model.proto), threads=1, as_it_is=True)
    try:
        return open_session(lower(model.proto), threads=1), literal
    except BackendError:
        return literal, literal


def _feeds(
    session: Session, dataset: Dataset, numbers: tuple[int, ...], batch: int
) -> Iterator[Mapping[str, Array]]:
    """Yield what a session is fed for each sample: with the axes of the model's own inputs."""
    for number in numbers:
        feeds: Feeds = next(iter(dataset.batches(batch, number * batch, (number + 1) * batch)))
        yield session.runs_of(feeds)[0]


def _keep(golden: Golden, sample: int, feeds: Mapping[str, Array], outputs: list[Array]) -> None:
    for place, name in enumerate(golden.inputs):
        golden.arrays[f"input.{place}.{sample}"] = np.ascontiguousarray(feeds[name])
    for place, array in enumerate(outputs):
        golden.arrays[f"output.{place}.{sample}"] = array


def _step(golden: Golden, place: int) -> float:
    """Return what one step of an output in INT8 is, 0 for integers."""
    outputs = [golden.arrays[f"output.{place}.{number}"] for number in range(len(golden.numbers))]
    if outputs[0].dtype.kind != "f":
        return 0.0
    return max(map(_largest, outputs)) / LEVELS


def _largest(array: Array) -> float:
    """Return the largest finite magnitude, 0 where there is none."""
    values = np.abs(array[np.isfinite(array)]) if array.dtype.kind == "f" else np.abs(array)
    return float(values.max(initial=0))
