"""What a network is for, and how far another's outputs are from its own, sample by sample.

What each output is follows from the clues of `trtcal.evaluate.clues`, or is given. Every output that
counts is judged: a sample agrees as little as its worst output does, so that no other output makes up
for one that is broken or swapped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trtcal.config import Tasks
from trtcal.data.coco import are_boxes
from trtcal.errors import InputError, some
from trtcal.evaluate.boxes import CELLS, Boxes, cells_of, find_decoder, names_of
from trtcal.evaluate.clues import (
    UNKNOWN,
    Clue,
    GraphFacts,
    Input,
    OutputFacts,
    as_map,
    kind_of_labels,
    weigh,
)
from trtcal.evaluate.outputs import Figures, Output, peak_of, samples_first
from trtcal.evaluate.per_sample import Array, Labels, by_class, distances
from trtcal.limits import Judgement
from trtcal.metrics import METRICS, OF_OUTPUTS, OUTPUTS, RAW, SQNR, UNJUDGED, WORST

if TYPE_CHECKING:
    from trtcal.evaluate.replay import Batch

Rows = list["Array | list[Boxes]"]
"""Each output that counts, samples along the first axis."""

KINDS = {
    "classification": "classes",
    "multilabel": "labels",
    "detection": "boxes",
    "segmentation": "pixels",
    "regression": "values",
    "embedding": "vectors",
    "tokens": "tokens",
    "language": "language",
    "audio": "signal",
    "image": "image",
    "none": UNJUDGED,
}
"""Task -> the kind of its outputs."""
TASK_OF = {kind: task for task, kind in KINDS.items()} | {RAW: "detection"}
"""Kind -> the task that chooses it."""
Kinds = Mapping[str, str]
"""Output -> its kind."""


@dataclass(frozen=True)
class Task:
    """What a network is for, and the outputs that count; `is_given` if the user named it.

    `labelled` are the figures that the labels of the data give, `guesses` has a sentence for each
    output that was guessed.
    """

    name: str
    outputs: tuple[Output, ...]
    is_given: bool = False
    labelled: frozenset[str] = frozenset()
    guesses: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each output that counts."""
        return {output.name: output.kind for output in self.outputs}

    @property
    def by_name(self) -> dict[str, str]:
        """The task of each of the network's outputs that count, which `--task` takes."""
        return {name: TASK_OF[output.kind] for output in self.outputs for name in output.names}

    def record(self, contrast: Mapping[str, float]) -> TaskRecord:
        """Return what a document keeps of it."""
        return TaskRecord(self.name, self.is_given, self.kinds, {**contrast}, self.guesses)

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
        return self.of_labels(expected, actual, labels) | figures

    def of_labels(self, expected: Rows, actual: Rows, labels: Labels | None) -> Figures:
        """Return the figures of each sample that labels or class scores give."""
        by_labels: Figures = {}
        for output, a, b in zip(self.outputs, expected, actual, strict=True):
            by_labels = by_labels if labels is None else output.labelled(b, labels) | by_labels
            if output.kind == "classes" and "kl" not in by_labels and _floats(a) is not None:
                by_labels |= by_class(np.asarray(a), np.asarray(b), labels)
        return by_labels

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
        """Return the task with the figures that the labels of the reference's first rows give."""
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
    samples: what holds a limit there shows nothing. `guesses` are those of `Task`.
    """

    name: str
    is_given: bool
    outputs: dict[str, str]
    contrast: dict[str, float] = field(default_factory=dict)
    guesses: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """What is printed of it: the kinds of its outputs, and why each was guessed."""
        kinds = ", ".join(f"{name} ({kind})" for name, kind in self.outputs.items())
        return [f"task {self.name}: {kinds}", *(f"guessed: {guess}" for guess in self.guesses)]


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
        limits += [f"{each.name} {each.defaults[kind]}" for each in plain if kind in each.defaults]
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
        if not any(
            kind in row.kinds and (first[kind] == name or not row.is_of_first) for row in rows
        )
    )


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


def as_suggestions(judgements: Iterable[Judgement], outputs: Sequence[str]) -> list[Judgement]:
    """Return judgements of outputs without a default limit as suggestions, which decide nothing."""
    have = "has" if len(outputs) == 1 else "have"
    reason = (
        f"{some(outputs)} {have} no default limit: give one, such as "
        f'--limit "{SUGGESTED}", choose the outputs to judge with --outputs, or give --task'
    )
    return [replace(judgement, reason=reason, is_suggested=True) for judgement in judgements]


def no_limit_on(outputs: Sequence[str]) -> str:
    """Return the warning of outputs that no limit is about."""
    return (
        f"no limit is on {some(outputs)}: give one, or choose the outputs to judge with --outputs"
    )


def find_task(
    outputs: Mapping[str, Array],
    size: int,
    inputs: Sequence[Input] = (),
    tasks: Tasks = None,
    output_names: Sequence[str] = (),
    graph: GraphFacts = UNKNOWN,
    labels: Labels | None = None,
) -> Task:
    """Return the task of a reference whose outputs of `size` samples are given.

    `inputs` are the forms of its inputs and `labels` the labels for them. `tasks` is a task for all
    outputs or one for each, `output_names` are the outputs that count, if the user gave any.
    `InputError` for an unknown one, or if no output can be read as the task's.
    """
    by_output = {"": tasks} if isinstance(tasks, str) else tasks or {}
    _check(outputs, by_output, output_names)
    chosen = {output: outputs[output] for output in output_names or outputs}
    given = {name: by_output.get(name, by_output.get("", "")) for name in chosen}
    given = {name: task for name, task in given.items() if task}
    labelled = _labelled(chosen, size, labels)
    settled = {name for name, task in given.items() if task != "detection"}
    settled |= {*graph.states, *labelled}
    decoder = find_decoder({n: rows for n, rows in chosen.items() if n not in settled}, size)
    rest = {name: rows for name, rows in chosen.items() if name not in names_of(decoder)}
    heads = _raw_heads(rest, inputs) if decoder is None else frozenset()
    found = [] if decoder is None else [Output("boxes", "boxes", decoder=decoder)]
    guesses = [
        f"{name} is detection: it is read as boxes (else --task {name}=regression)"
        for name in names_of(decoder)
        if name not in given
    ]
    for name, values in rest.items():
        rows = as_map(samples_first(name, values, size), inputs)
        kind, is_head = labelled.get(name, ""), name in heads
        facts = OutputFacts(name, rows, graph, tuple(inputs), kind, is_head)
        output, guess = _read(facts, given.get(name), bool(output_names))
        found.append(output)
        guesses += [guess] if guess else []
    _check_given(by_output, given, found, chosen)
    judged = tuple(output for output in found if output.kind != UNJUDGED)
    if not judged:
        raise InputError("no output is judged", "give another --task or --outputs")
    name = tasks if isinstance(tasks, str) else _named(judged)
    task = Task(name, judged, bool(tasks or output_names), guesses=tuple(guesses))
    return task.fitting(task.rows(outputs, size), labels)


def _check_given(
    by_output: Mapping[str, str],
    given: Mapping[str, str],
    found: Iterable[Output],
    outputs: Mapping[str, Array],
) -> None:
    """`InputError` if an output cannot be read as its own task has it, or none as that of all."""
    kinds = {name: output.kind for output in found for name in output.names}
    wrong = [name for name, task in given.items() if TASK_OF[kinds[name]] != task]
    if not wrong or (len(wrong) < len(given) and not {*wrong} & {*by_output}):
        return
    shown = ", ".join(f"{name} {outputs[name].dtype}{list(outputs[name].shape)}" for name in wrong)
    raise InputError(
        f"no output can be read as one of {given[wrong[0]]}: {shown}", "try another --task"
    )


def _labelled(outputs: Mapping[str, Array], size: int, labels: Labels | None) -> dict[str, str]:
    """Return the output of fewest values that labels fit, and the kind that they give it."""
    kinds = {
        name: kind
        for name, values in outputs.items()
        if labels is not None
        and not are_boxes(labels)
        and len(labels) == size == len(values)
        and (kind := kind_of_labels(values, labels))
    }
    return dict(sorted(kinds.items(), key=lambda item: outputs[item[0]].size)[:1])


def _read(facts: OutputFacts, task: str | None, is_named: bool) -> tuple[Output, str]:
    """Return an output as the task given for it has it, else as its clues say, with the sentence."""
    kind = RAW if task == "detection" else KINDS[task] if task else ""
    if kind and _can_be(facts, kind):
        return _output(facts, kind), ""
    clues = weigh(facts)
    if is_named:  # who names a state wants it judged
        clues = [clue for clue in clues if clue.kind != UNJUDGED] or clues
    return _output(facts, clues[0].kind), "" if task else _sentence(facts.name, clues)


def _sentence(name: str, clues: Sequence[Clue]) -> str:
    """Return what an output is taken for, why, and how to choose another reading."""
    first, *others = clues
    least = {5: 5, 4: 3}.get(first.strength, 0)  # what is seen leaves named readings alone
    tasks = [TASK_OF[clue.kind] for clue in others if clue.strength >= least]
    is_what = "not judged" if first.kind == UNJUDGED else TASK_OF[first.kind]
    choices = " or ".join(f"--task {name}={task}" for task in tasks[:2])
    return f"{name} is {is_what}: {first.says}" + (f" (else {choices})" if choices else "")


def _can_be(facts: OutputFacts, kind: str) -> bool:
    is_float, axes = facts.rows.dtype.kind == "f", facts.rows.ndim
    return {
        "classes": is_float or not facts.inner,
        "labels": is_float,
        "tokens": axes >= 3 if is_float else len(facts.inner) == 1,
        "language": is_float and axes >= 3,
        "pixels": axes >= 3,
        RAW: axes >= 3,
    }.get(kind, True)


def _output(facts: OutputFacts, kind: str) -> Output:
    """Return an output as one of a kind, with threshold, axis of classes and peak of its values."""
    threshold = 0.5 if facts.is_share or (kind == "classes" and facts.rows[0].size > 1) else 0.0
    axis = None
    if kind == "pixels":
        is_first = facts.form == "sequence" and facts.sums_to_one(1)
        has_layers = facts.form == "map" and facts.width > 1
        axis = 1 if is_first else facts.channel_axis if has_layers else None
    peak = peak_of(facts.rows) if kind == "image" else 0.0
    return Output(facts.name, kind, threshold, axis, peak=peak)


@dataclass
class TaskReader:
    """The task and the outputs that count, where the user named them, and what they are found to be.

    The task is read from the first outputs seen. `batch` is the batch size in which rows are samples.
    """

    name: Tasks = None
    outputs: tuple[str, ...] = ()
    known: Task | None = None
    batch: int | None = None
    graph: GraphFacts = UNKNOWN

    def read(self, batch: Batch) -> Task:
        """Return the task, read from a reference's outputs if it is not known yet."""
        if self.known is None:
            self.known = self.find(batch)
            self.known.check_labels(batch.labels)
        return self.known

    def find(self, batch: Batch) -> Task:
        """Return the task of a reference's outputs, as `find_task`."""
        outputs, inputs, labels = batch.expected, batch.inputs, batch.labels
        size, names = batch.size, self.outputs
        return find_task(outputs, size, inputs, self.name, names, self.graph, labels)

    @property
    def key(self) -> dict[str, object]:
        """What a measurement depends on: empty where nothing was named."""
        named = {"task": self.name, "outputs": list(self.outputs)}
        return {key: value for key, value in named.items() if value}


def _check(
    outputs: Mapping[str, Array], by_output: Mapping[str, str], chosen: Sequence[str]
) -> None:
    for task in {*by_output.values()} - {*KINDS}:
        raise InputError(f"{task!r} is not a task", f"known: {', '.join(KINDS)}")
    for output in (*chosen, *filter(None, by_output)):
        if output not in outputs:
            raise InputError(
                f"the model has no output {output!r}", f"its outputs are: {', '.join(outputs)}"
            )


def _named(outputs: Sequence[Output]) -> str:
    kinds = [output.kind for output in outputs]
    return TASK_OF["boxes" if "boxes" in kinds else kinds[0]]


def _raw_heads(outputs: Mapping[str, Array], inputs: Sequence[Input]) -> frozenset[str]:
    """Return the outputs that are several scales of one thing, or boxes that can't be decoded.

    Scales differ in the number of cells alone: [B, C, 80, 80] and [B, C, 40, 40], [B, 8400, C] and
    [B, 2100, C]. What stands beside them is of their cells too. Of pictures, two outputs with the same
    hundred cells or more are heads.
    """
    sizes = {given.whole[-2:] for given in inputs if len(given.whole) == 4}
    floats = {
        name: values
        for name, values in outputs.items()
        if values.dtype.kind == "f" and values.ndim >= 3 and values.shape[-2:] not in sizes
    }
    shapes = [values.shape for values in floats.values()]
    is_scaled = any(_are_scales(a, b) for a in shapes for b in shapes)
    has_boxes = any(len(shape) == 3 and shape[-1] == 4 and shape[1] >= CELLS for shape in shapes)
    cells = [shape[1] for shape in shapes if len(shape) == 3 and shape[1] >= 100]
    is_shared = len({*cells}) < len(cells) and bool(sizes)
    are_heads = is_scaled or ((has_boxes or is_shared) and len(floats) > 1)
    return frozenset(floats if are_heads else ())


def _are_scales(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if len(a) != len(b) or a[0] != b[0]:
        return False
    if len(a) == 3:
        return a[2] == b[2] and a[1] > b[1] and 3 <= a[1] / b[1] <= 5
    return any(all(a[axis] == 2 * b[axis] for axis in axes) for axes in ((-2, -1), (-3, -2)))
