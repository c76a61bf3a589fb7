"""What a network is for, and how far another's outputs are from its own, sample by sample.

A task is read from the shapes and values of the reference's outputs, or given. Every output that counts
is judged: a sample agrees as little as its worst output does, so that no other output makes up for one
that is broken or swapped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.config import TASKS
from trtcal.data.coco import are_boxes
from trtcal.errors import InputError, some
from trtcal.evaluate.boxes import CELLS, Boxes, cells_of, find_decoder, names_of
from trtcal.evaluate.outputs import Figures, Output, samples_first
from trtcal.evaluate.per_sample import SUM_TOLERANCE, Labels, by_class, distances
from trtcal.metrics import FLOATING, METRICS, OF_OUTPUTS, OUTPUTS, RAW, SQNR, WORST, Metric

Array = npt.NDArray[Any]
Rows = list["Array | list[Boxes]"]
"""Each output that counts, samples along the first axis."""

Shapes = frozenset[tuple[int, ...]]

KINDS = dict(
    zip(
        TASKS,
        ("classes", "labels", "boxes", "pixels", "values", "vectors", "tokens", "signal"),
        strict=True,
    )
)
"""Task -> the kind of its outputs."""
Kinds = Mapping[str, str]
"""Output -> its kind."""


@dataclass(frozen=True)
class Task:
    """What a network is for, and the outputs that count; `is_given` if the user named it.

    `labelled` are the figures that the labels of the data give.
    """

    name: str
    outputs: tuple[Output, ...]
    is_given: bool = False
    labelled: frozenset[str] = frozenset()

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each output that counts."""
        return {output.name: output.kind for output in self.outputs}

    def rows(self, outputs: Mapping[str, Array], size: int) -> Rows:
        """Return the outputs that count, of `size` samples."""
        return [output.rows(outputs, size) for output in self.outputs]

    def by_output(self, expected: Rows, actual: Rows) -> dict[str, Figures]:
        """Return the figures of each output."""
        together = zip(self.outputs, expected, actual, strict=True)
        return {output.name: output.compare(a, b) for output, a, b in together}

    def compare(
        self,
        expected: Rows,
        actual: Rows,
        labels: Labels | None = None,
        by_output: Mapping[str, Figures] | None = None,
    ) -> Figures:
        """Return the figures of each sample; a sample is as good as its worst output.

        `agreement` and `cosine` are the least of all outputs that have them, `relative_error` and
        `score_error` the largest. The other distances are of all float outputs as one long row; `kl`,
        `top1` and `top5` are of the first output that has class scores, `jaccard`, `miou` and `mae` of
        the first that labels fit. `by_output` is what the method of this name gave, if it is known.
        """
        by_output = by_output or self.by_output(expected, actual)
        figures = worst_of(by_output.values()) | self._distances(expected, actual, by_output)
        by_labels: Figures = {}
        for output, a, b in zip(self.outputs, expected, actual, strict=True):
            by_labels = by_labels if labels is None else output.labelled(b, labels) | by_labels
            if output.kind == "classes" and "kl" not in by_labels and _floats(a) is not None:
                by_labels |= by_class(np.asarray(a), np.asarray(b), labels)
        return by_labels | figures

    def _distances(self, expected: Rows, actual: Rows, by_output: Mapping[str, Figures]) -> Figures:
        """Return the distances of all float outputs as one long row, but for the worst ones."""
        known = [figures for figures in by_output.values() if "error" in figures]
        if len(known) > 1:
            pairs = [(_floats(a), _floats(b)) for a, b in zip(expected, actual, strict=True)]
            floats = [(a, b) for a, b in pairs if a is not None and b is not None]
            a, b = map(list, zip(*floats, strict=True))
            known = [distances(a, b, len(a[0]))]
        return {name: known[0][name] for name in {*known[0]} - {*WORST}} if known else {}

    def fitting(self, rows: Rows, labels: Labels | None) -> Task:
        """Return the task with the figures that labels give.

        `made` are the reference's rows of the first samples, and the labels are theirs.
        """
        if labels is None:
            return self
        if are_boxes(labels):
            labelled = {*PRECISIONS} if "boxes" in self.kinds.values() else set()
        else:
            labelled = {*self.compare(rows, rows, labels)} - {*self.compare(rows, rows)}
        return replace(self, labelled=frozenset(labelled))

    def check_labels(self, labels: Labels | None) -> None:
        """`InputError` if there are labels that no figure is made of."""
        if labels is None or self.labelled:
            return
        shape = "annotated boxes" if are_boxes(labels) else list(labels.shape[1:]) or "one value"
        kinds = ", ".join(f"{name} ({kind})" for name, kind in self.kinds.items())
        raise InputError(
            f"the labels, {shape} per sample, fit no output of the task {self.name}: {kinds}",
            "give the labels that docs/statistics.md lists for the task, another --task or --outputs, "
            "data without labels, or your own metric for them: --metric-file",
        )


def _floats(values: Array | list[Boxes]) -> Array | None:
    """Return the values of which there are distances, None of integers and of sorted boxes."""
    if isinstance(values, list):
        return cells_of(values)
    return values if values.dtype.kind == "f" else None


def worst_of(by_output: Iterable[Figures]) -> Figures:
    """Return each figure of the worst output of each sample."""
    outputs, reduced = list(by_output), Figures()
    for name, worst in WORST.items():
        if values := [figures[name] for figures in outputs if name in figures]:
            reduced[name] = (np.minimum if worst == "least" else np.maximum).reduce(values)
    return reduced


@dataclass(frozen=True)
class TaskRecord:
    """The task that was judged: `outputs` has the kind of each output that counts.

    `contrast` has by metric the figure halfway between FP32's outputs and those that it gives for other
    samples: what holds a limit there shows nothing.
    """

    name: str
    is_given: bool
    outputs: dict[str, str]
    contrast: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} ({kind})" for name, kind in self.outputs.items())
        return f"{self.name}, {'given' if self.is_given else 'guessed'}: {kinds}"


SUGGESTED = f"{SQNR} >= 30"
"""A limit that would decide where none is usual."""
PRECISIONS = ("map", "map50")
"""Figures of all boxes beside annotations: COCO's mAP over overlaps of 0.5 to 0.95, and at 0.5."""


def default_limits(kinds: Kinds, known: Collection[str] = ()) -> tuple[str, ...]:
    """Return the limits of outputs where none is given; `known` are the metrics that labels give.

    A limit on a figure of labels takes the place of the other one of the first output of its kind;
    docs/statistics.md has the reasons.
    """
    judged, limits = list(kinds.values()), list[str]()
    for metric in OF_OUTPUTS:
        if metric.needs_labels and metric.name in known:
            for kind in {*metric.defaults} & {*judged}:
                judged.remove(kind)
                limits.append(f"{metric.name} {metric.defaults[kind]}")
    plain = [metric for metric in OF_OUTPUTS if not metric.needs_labels]
    for kind in judged:
        limits += [
            f"{metric.name} {metric.defaults[kind]}" for metric in plain if kind in metric.defaults
        ]
    return tuple(dict.fromkeys(limits))


def unlimited(kinds: Kinds, metrics: Iterable[str]) -> list[str]:
    """Return the outputs that no limit on one of these metrics is about.

    Metrics of the user's own are taken to be about all of them.
    """
    names = {*metrics}
    if any(name not in METRICS or METRICS[name].of != OUTPUTS for name in names):
        return []
    first = {kind: name for name, kind in reversed([*kinds.items()])}
    rows = [METRICS[name] for name in names]
    return sorted(
        name
        for name, kind in kinds.items()
        if not any(_is_about(row, kind, first[kind] == name) for row in rows)
    )


def _is_about(metric: Metric, kind: str, is_first: bool) -> bool:
    """Tell whether a metric is about an output of a kind."""
    return kind in metric.kinds and (is_first or not metric.is_of_first)


def check_limits(task: Task, metrics: Iterable[str]) -> None:
    """`InputError` for a limit on values where all that counts are boxes in another order each time."""
    if any(output.kind != "boxes" or output.has_cells for output in task.outputs):
        return
    for metric in filter(_compares_values, metrics):
        names = ", ".join(name for output in task.outputs for name in output.names)
        raise InputError(
            f"the limit on {metric} compares values one by one, but {names} have boxes after a "
            "NonMaxSuppression, whose number and order differ between models",
            'limit the boxes: --limit "agreement >= -1.0", "score_error <= 0.05" or, with --labels, '
            '"map >= -1.0"; or compare the model cut before its NonMaxSuppression',
        )


def _compares_values(metric: str) -> bool:
    """Tell whether a metric is of values one by one, which several kinds of outputs have."""
    kinds = METRICS[metric].kinds if metric in METRICS else ()
    return len(kinds) > 1 and "boxes" not in kinds


def no_usual_limit(outputs: Sequence[str]) -> str:
    """Return why outputs without a default limit leave a verdict open, and what would decide."""
    have = "has" if len(outputs) == 1 else "have"
    return (
        f"{some(outputs)} {have} no default limit: give one, such as "
        f'--limit "{SUGGESTED}", choose the outputs to judge with --outputs, or give --task'
    )


def no_limit_on(outputs: Sequence[str]) -> str:
    """Return the warning of outputs that no limit is about."""
    return (
        f"no limit is on {some(outputs)}: give one, or choose the outputs to judge with --outputs"
    )


def find_task(
    outputs: Mapping[str, Array],
    size: int,
    inputs: Sequence[tuple[int, ...]] = (),
    name: str | None = None,
    output_names: Sequence[str] = (),
    sigmoids: Collection[str] = (),
) -> Task:
    """Return the task of a reference whose outputs of `size` samples are given.

    `inputs` are the shapes of its inputs for them, `name` a task and `output_names` the outputs that
    count, if the user gave any, `sigmoids` the outputs that a Sigmoid makes. `InputError` for an
    unknown one, or if no output can be read as the task's.
    """
    _check(outputs, name, output_names)
    chosen = {output: outputs[output] for output in output_names or outputs}
    shapes = frozenset(tuple(shape[1:]) for shape in inputs)
    guessed = [
        Output(output.name, "classes")
        if _is_share_of_two(output, chosen, size, sigmoids)
        else output
        for output in _guess_all(chosen, size, shapes, name)
    ]
    kind = KINDS[name] if name else None
    forced = tuple(_forced(output, chosen, size, kind) for output in guessed)
    if kind is not None and not any(output.kind == kind for output in forced):
        shown = ", ".join(
            f"{output} {chosen[output].dtype}{list(chosen[output].shape)}" for output in chosen
        )
        raise InputError(f"no output can be read as one of {name}: {shown}", "try another --task")
    return Task(name or _named(forced), forced, name is not None or bool(output_names))


def _is_share_of_two(
    output: Output, outputs: Mapping[str, Array], size: int, sigmoids: Collection[str]
) -> bool:
    """Tell whether an output of one value a sample is the share of the second of two classes."""
    return output.kind == "values" and output.name in sigmoids and outputs[output.name].size == size


@dataclass
class TaskReader:
    """The task and the outputs that count, where the user named them, and what they are found to be.

    The task is read from the first outputs seen. `batch` is the batch size in which rows are samples.
    """

    name: str | None = None
    outputs: tuple[str, ...] = ()
    known: Task | None = None
    batch: int | None = None
    sigmoids: Collection[str] = ()

    def read(self, outputs: Mapping[str, Array], size: int, labels: Labels | None = None) -> Task:
        """Return the task, read from a reference's outputs of `size` samples if it is not known yet."""
        if self.known is None:
            task = find_task(outputs, size, (), self.name, self.outputs, self.sigmoids)
            self.known = task.fitting(task.rows(outputs, size), labels)
            self.known.check_labels(labels)
        return self.known

    @property
    def key(self) -> dict[str, object]:
        """What a measurement depends on: empty where nothing was named."""
        named = {"task": self.name, "outputs": list(self.outputs)}
        return {key: value for key, value in named.items() if value}


def _check(outputs: Mapping[str, Array], name: str | None, chosen: Sequence[str]) -> None:
    if name is not None and name not in KINDS:
        raise InputError(f"{name!r} is not a task", f"known: {', '.join(KINDS)}")
    for output in chosen:
        if output not in outputs:
            raise InputError(
                f"the model has no output {output!r}", f"its outputs are: {', '.join(outputs)}"
            )


def _named(outputs: Sequence[Output]) -> str:
    """Return the task of outputs: detection if any are boxes or raw heads, else the first's."""
    kinds = [output.kind for output in outputs]
    tasks = {kind: task for task, kind in KINDS.items()} | {RAW: "detection"}
    first = "boxes" if "boxes" in kinds else kinds[0]
    return tasks[first]


def _guess_all(
    outputs: Mapping[str, Array], size: int, inputs: Shapes, name: str | None
) -> list[Output]:
    """Guess each output; boxes are read from several together, the outputs of raw heads are raw."""
    decoder = find_decoder(outputs, size) if name in (None, "detection") else None
    used = () if decoder is None else names_of(decoder)
    rest = {output: values for output, values in outputs.items() if output not in used}
    raw = _raw_heads(rest) if decoder is None else set()
    guessed = [
        Output(output, RAW) if output in raw else guess(output, values, size, inputs)
        for output, values in rest.items()
    ]
    return [*([] if decoder is None else [Output("boxes", "boxes", decoder=decoder)]), *guessed]


def _raw_heads(outputs: Mapping[str, Array]) -> set[str]:
    """Return the outputs that are several scales of one thing, or boxes that can't be decoded.

    Scales differ in the number of cells alone: [B, C, 80, 80] and [B, C, 40, 40], [B, 8400, C] and
    [B, 2100, C]. What stands beside them is of their cells too.
    """
    floats = {
        name: values
        for name, values in outputs.items()
        if values.dtype.kind == "f" and values.ndim >= 3
    }
    shapes = [values.shape for values in floats.values()]
    is_scaled = any(_are_scales(a, b) for a in shapes for b in shapes)
    has_boxes = any(
        len(values) == 3 and values[-1] == 4 and values[1] >= CELLS for values in shapes
    )
    return set(floats) if is_scaled or (has_boxes and len(floats) > 1) else set()


def _are_scales(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if len(a) != len(b) or a[0] != b[0]:
        return False
    if len(a) == 3:
        return a[2] == b[2] and a[1] > b[1] and 3 <= a[1] / b[1] <= 5
    return all(a[axis] == 2 * b[axis] for axis in (-2, -1)) or all(
        a[axis] == 2 * b[axis] for axis in (-3, -2)
    )


UNIT = 1e-3  # how far a norm of 1 may be from it
LONG = 4000  # values of a row from which on it may be a waveform
VECTOR = re.compile(
    r"embed|feature|hidden|pooler|latent|descriptor|(?<![a-z])states?(?![a-z])|^[hc]_?n$",
    re.IGNORECASE,
)


def guess(name: str, values: Array, size: int, inputs: Shapes = frozenset()) -> Output:
    """Return what one output is, by shape, type, values, and where these leave a choice its name."""
    rows = samples_first(name, values, size)
    inner = [axis for axis in range(1, rows.ndim) if rows.shape[axis] > 1]
    if rows.dtype.kind != "f":
        return Output(name, ("classes", "tokens", "pixels")[min(len(inner), 2)])
    flat = rows.astype(np.float64)
    if not inner:
        return Output(name, "values")
    if len(inner) == 1:
        return _of_row(name, flat.reshape(len(flat), -1))
    if rows.ndim == 4 and len(inner) + (rows.shape[1] == 1) >= 3:
        return _of_map(name, flat, inputs)
    return _of_sequence(name, flat)


def _of_row(name: str, rows: Array) -> Output:
    if _are_units(rows) or VECTOR.search(name):
        return Output(name, "vectors")
    if _is_share(rows):
        return Output(name, "classes" if _sums_to_one(rows, 1) else "labels")
    is_wave = rows.shape[1] >= LONG and np.abs(rows).max() <= 1 and rows.min() < 0 < rows.max()
    return Output(name, "signal" if is_wave else "classes")


def _of_map(name: str, rows: Array, inputs: Shapes) -> Output:
    """Guess [B, C, H, W] or [B, H, W, C]: an image as the input's is no segmentation."""
    if rows.shape[1] == 1:
        sure = (rows < 0.1) | (rows > 0.9)
        is_mask = _is_share(rows) and bool(sure.mean() > 0.5)
        return Output(name, "pixels" if is_mask else "values")
    if rows.shape[1:] in inputs and 3 in (rows.shape[1], rows.shape[3]):
        return Output(name, "values")
    return Output(name, "pixels", axis=_class_axis(rows))


def _class_axis(rows: Array) -> int:
    """Return the axis of classes: the last if it is smaller than both before it, else the second."""
    if rows.ndim == 4 and rows.shape[3] < min(rows.shape[1], rows.shape[2]):
        return 3
    return 1


def _of_sequence(name: str, rows: Array) -> Output:
    """Guess [B, T, V]: scores of classes for each position, or something else."""
    if _sums_to_one(rows, -1):
        return Output(name, "tokens")
    if _sums_to_one(rows, 1):
        return Output(name, "pixels", axis=1)
    if _are_units(rows.reshape(-1, rows.shape[-1])) or VECTOR.search(name):
        return Output(name, "vectors")
    if _is_share(rows):
        return Output(name, "labels")
    return Output(name, RAW if _is_head(rows) or _is_head(rows.swapaxes(1, 2)) else "tokens")


def _is_head(rows: Array) -> bool:
    """Tell whether cells have four values of a box that is not decoded, then scores."""
    return rows.shape[1] >= CELLS > rows.shape[2] >= 5 and _is_share(rows[..., 4:])


def _is_share(rows: Array) -> bool:
    return bool((rows >= 0).all() and (rows <= 1).all())


def _sums_to_one(rows: Array, axis: int) -> bool:
    return _is_share(rows) and bool((np.abs(rows.sum(axis) - 1) <= SUM_TOLERANCE).all())


def _are_units(rows: Array) -> bool:
    return bool((np.abs(np.linalg.norm(rows, axis=1) - 1) <= UNIT).all()) and not _is_share(rows)


def _forced(output: Output, outputs: Mapping[str, Array], size: int, kind: str | None) -> Output:
    """Return an output as one of the kind that the user's task has, as it is where it can't be."""
    if kind is None or output.kind in (kind, "boxes") or outputs[output.name].dtype.kind != "f":
        return output
    rows = samples_first(output.name, outputs[output.name], size)
    if kind in FLOATING:
        return Output(output.name, kind)
    if kind == "labels":
        return Output(output.name, kind, 0.5 if _is_share(rows) else 0.0)
    if kind == "classes":
        return Output(output.name, kind, 0.5 if rows[0].size > 1 or _is_share(rows) else 0.0)
    if kind == "tokens" and rows.ndim >= 3:
        return Output(output.name, kind)
    if kind == "pixels" and rows.ndim >= 3:
        alone = rows.ndim == 3 or rows.shape[1] == 1
        threshold = 0.5 if _is_share(rows) else 0.0
        return Output(output.name, kind, threshold, None if alone else _class_axis(rows))
    return output
