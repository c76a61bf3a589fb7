"""What one output of a network decides, and how far another's is from it, sample by sample.

What needs labels is counted in `trtcal.evaluate.per_sample`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trtcal.errors import InputError
from trtcal.evaluate.boxes import Boxes, Decoder, cells_of, found_again, names_of
from trtcal.evaluate.per_sample import (
    Array,
    Values,
    absolute_error,
    check_finite,
    cross_entropy,
    distances,
    jaccard,
    mean_iou,
    peak_signal,
)
from trtcal.metrics import DECIDING, FLOATING, METRICS, PSNR
from trtcal.stats import Mask

Figures = dict[str, Values]
"""Figure -> its values, each of shape (samples,), float64."""


class UnsampledError(InputError):
    """An output has no axis of samples."""


@dataclass(frozen=True)
class Output:
    """What one output is: a kind, and how its decisions are read.

    `threshold` is that of `labels`, and of `classes` that are two with one value for the second, which
    is read as the shares of both; `axis` is where the classes of `pixels` are, None for one class with
    a threshold; `peak` is the range of an `image`. `boxes` are read from several outputs, the others
    from the one of this name.
    """

    name: str
    kind: str
    threshold: float = 0.5
    axis: int | None = None
    decoder: Decoder | None = None
    peak: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The network's outputs that it is read from."""
        return (self.name,) if self.decoder is None else tuple(names_of(self.decoder))

    @property
    def has_cells(self) -> bool:
        """Whether it has a row for each cell of a detector, in the same place in every model."""
        return self.decoder is not None and self.decoder.has_cells

    def rows(self, outputs: Mapping[str, Array], size: int) -> Array | list[Boxes]:
        """Return its values with samples along the first axis, or its boxes."""
        if self.decoder is not None:
            return self.decoder.decode(outputs, size)
        values = samples_first(self.name, outputs[self.name], size)
        if self.kind in FLOATING and values.dtype.kind != "f":
            return values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
        if self.kind != "classes" or values.dtype.kind != "f" or values[0].size != 1:
            return values
        second = np.asarray(values.reshape(-1, 1), np.float64)
        second = second if self.threshold else 1 / (1 + np.exp(-second))
        return np.concatenate([1 - second, second], axis=1)

    def compare(self, expected: Array | list[Boxes], actual: Array | list[Boxes]) -> Figures:
        """Return the figures of each sample: `agreement` (0 to 1), and distances of float values."""
        if isinstance(expected, list) and isinstance(actual, list):
            pairs = [found_again(a, b) for a, b in zip(expected, actual, strict=True)]
            agreement, error = np.array(pairs, np.float64).reshape(-1, 2).T
            figures = {"agreement": agreement, "score_error": error}
            a, b = cells_of(expected), cells_of(actual)
            return figures if a is None or b is None else figures | self._distances(a, b)
        return self._of_arrays(np.asarray(expected), np.asarray(actual))

    def labelled(self, actual: Array | list[Boxes], labels: Array) -> Figures:
        """Return the figure of labels that have the shape of its decisions or values, if it has one.

        That is `top1` of classes that are whole numbers, `jaccard` of labels, `miou` of pixels, `mae`
        of values and `perplexity` of tokens. Scores of classes have
        `trtcal.evaluate.per_sample.by_class`.
        """
        if isinstance(actual, list) or labels.dtype.names is not None:
            return {}
        is_whole, is_float = labels.dtype.kind != "f", actual.dtype.kind == "f"
        if is_float and is_whole and self.kind in METRICS["perplexity"].kinds:
            has_all = labels[0].size >= actual.shape[1]
            return {"perplexity": cross_entropy(actual, labels)} if has_all else {}
        values = self._decisions(actual) if self.kind == "pixels" else actual
        if labels[0].size != values[0].size:
            return {}
        return self._of_labels(values, labels) if is_whole or self.kind == "values" else {}

    def _of_labels(self, values: Array, labels: Array) -> Figures:
        """Return the figure of labels that there are as many of as of decisions or values."""
        if self.kind == "values":
            return {"mae": absolute_error(values, labels)}
        if self.kind == "classes" and values.dtype.kind != "f":
            return {"top1": _share(values.reshape(labels.shape) == labels)}
        if self.kind == "labels":
            return {"jaccard": jaccard(values.reshape(labels.shape) > self.threshold, labels)}
        if self.kind == "pixels":
            return {"miou": mean_iou(values.reshape(labels.shape), labels)}
        return {}

    def _of_arrays(self, expected: Array, actual: Array) -> Figures:
        self._check_shapes(expected, actual)
        if expected.dtype.kind != "f":
            return {"agreement": _share(expected == actual)}
        figures = self._distances(expected, actual)
        if self.kind == "image":
            figures[PSNR] = peak_signal(figures["error"] / max(expected[0].size, 1), self.peak)
        elif self.kind == "labels":  # most are off in most samples: that they stay off says nothing
            figures["agreement"] = jaccard(actual > self.threshold, expected > self.threshold)
        elif self.kind in DECIDING:
            figures["agreement"] = _share(self._decisions(expected) == self._decisions(actual))
        return figures

    def _decisions(self, values: Array) -> Array:
        """Return the class of each sample, position or pixel."""
        if values.dtype.kind != "f":
            return values
        if self.kind == "classes":
            return np.asarray(values.reshape(len(values), -1).argmax(1))
        if self.kind == "pixels" and self.axis is None:
            return np.asarray(values > self.threshold, np.int64)
        return np.asarray(values.argmax(self.axis if self.kind == "pixels" else -1))

    def _distances(self, expected: Array, actual: Array) -> Figures:
        self._check_shapes(expected, actual)
        check_finite(expected, actual, name=self.name)
        figures = distances([expected], [actual], len(expected))
        signal, error = figures["signal"], figures["error"]
        shares = np.divide(error, signal, out=np.where(error > 0, 1.0, 0.0), where=signal > 0)
        return figures | {"relative_error": np.sqrt(shares)}

    def _check_shapes(self, expected: Array, actual: Array) -> None:
        if expected.shape != actual.shape:
            raise InputError(
                f"output {self.name!r} has shape {actual.shape} instead of {expected.shape}",
                "compare models made from the same original, or leave the output out with --outputs",
            )


def _share(same: Mask) -> Values:
    """Return the share of each sample's decisions that are the same, 1 where there are none."""
    rows = same.reshape(len(same), -1)
    return rows.astype(np.float64).mean(1) if rows.shape[1] else np.ones(len(rows))


def peak_of(rows: Array) -> float:
    """Return the range of a picture's values: of its type, a usual one, or their own."""
    if rows.dtype.kind in "iu":
        return float(np.iinfo(rows.dtype).max) if rows.dtype.itemsize == 1 else 255.0
    low, high = float(rows.min(initial=0.0)), float(rows.max(initial=0.0))
    usual = ((-0.25, 0.0, 1.25, 1.0), (-1.25, 0.0, 1.25, 2.0), (-64.0, 16.0, 320.0, 255.0))
    fits = (peak for least, over, most, peak in usual if least <= low and over <= high <= most)
    return next(fits, high - low)


def samples_first(name: str, values: Array, size: int) -> Array:
    """Return an output with samples along its first axis; `InputError` if it has no axis of samples.

    Sequences may have them along the second axis; what a network of batch 1 gives is of its sample.
    """
    if values.shape[:1] == (size,):
        return values
    if size == 1:
        return values[None]
    if values.ndim > 1 and values.shape[1] == size:
        return np.moveaxis(values, 1, 0)
    raise UnsampledError(
        f"output {name!r} has shape {values.shape} for {size} samples",
        "give --batch 1, or choose the outputs to judge with --outputs; these need one row per sample",
    )
