"""What an output of a network is, by the clues of `clues.toml`: the strongest decides.

A clue sees types, values, declared shapes, last operators, names, inputs, labels and metadata. Where
none settles it, an output is `values`, which SQNR judges, and the other readings are named.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from trtcal.config import read_toml
from trtcal.data.dataset import PADDING
from trtcal.documents import from_fields
from trtcal.evaluate.boxes import CELLS
from trtcal.evaluate.per_sample import SUM_TOLERANCE, Array, Labels
from trtcal.model import TensorSpec
from trtcal.model.graph import last_operators
from trtcal.model.model import Shape
from trtcal.model.states import CACHE, stem_of


@dataclass(frozen=True)
class GraphFacts:
    """What a graph says of its outputs: declared shapes, last operators, states and metadata."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    operators: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Sequence[TensorSpec], proto: onnx.ModelProto | None) -> GraphFacts:
        """Return the facts of a model, or those of the outputs of an engine."""
        shapes = {spec.name: spec.shape for spec in outputs}
        if proto is None:
            return cls(shapes)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        return cls(shapes, last_operators(proto), metadata=metadata)


UNKNOWN = GraphFacts()
"""The facts of a graph that is not known."""


class Input(NamedTuple):
    """An input as it was fed: its name, its shape, and numpy's letter for its type."""

    name: str
    whole: tuple[int, ...]
    letter: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return self.whole[1:]


def inputs_of(feeds: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the forms of inputs as they are fed."""
    arrays = {name: np.asarray(array) for name, array in feeds.items()}
    return tuple(Input(name, array.shape, array.dtype.kind) for name, array in arrays.items())


def pictures_in(inputs: Sequence[Input]) -> list[tuple[int, ...]]:
    """Return the shapes of inputs that are pictures, as (channels, height, width)."""
    shapes = [given.shape for given in inputs if len(given.shape) == 3]
    shapes = [shape for shape in shapes if all(shape)]
    return [(s[2], s[0], s[1]) if s[2] in (1, 3, 4) and s[0] > 4 else s for s in shapes]


@dataclass(frozen=True)
class OutputFacts:
    """All that clues see of one output; `rows` have samples along their first axis.

    `labelled` is the kind that the labels give it; a head is one of several of a detector.
    """

    name: str
    rows: Array
    graph: GraphFacts = UNKNOWN
    inputs: tuple[Input, ...] = ()
    labelled: str = ""
    is_head: bool = False

    @cached_property
    def inner(self) -> list[int]:
        """The axes of more than one value."""
        return [axis for axis in range(1, self.rows.ndim) if self.rows.shape[axis] > 1]

    @cached_property
    def flat(self) -> Array:
        """The values, a row for each sample, float64."""
        return self.rows.reshape(len(self.rows), -1).astype(np.float64)

    @cached_property
    def form(self) -> str:
        """The form of a sample: single, row, map ([C, H, W] or [H, W, C]), sequence, or integers."""
        if self.rows.dtype.kind != "f":
            return "integers"
        if len(self.inner) < 2:
            return "row" if self.inner else "single"
        is_one = 1 in (self.rows.shape[1], self.rows.shape[-1])
        return "map" if self.rows.ndim == 4 and len(self.inner) + is_one > 2 else "sequence"

    @cached_property
    def channel_axis(self) -> int:
        """The axis of a map's channels: the last if it is smaller than both before it, else 1."""
        return 3 if self.rows.shape[3] < min(self.rows.shape[1:3]) else 1

    @cached_property
    def width(self) -> int:
        """The values of a row or of a position, or the channels of a map."""
        axis = self.channel_axis if self.form == "map" else self.inner[-1] if self.inner else 0
        return int(self.rows.shape[axis]) if axis else 1

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width of a map."""
        return self.rows.shape[1:3] if self.channel_axis == 3 else self.rows.shape[2:]

    def sums_to_one(self, axis: int) -> bool:
        """Tell whether values are shares, or their logarithms, that sum to 1 along an axis."""
        is_log = self.graph.operators.get(self.name) == "LogSoftmax"
        if not (is_log or self.is_share):
            return False
        values = self.flat.reshape(self.rows.shape)
        sums = (np.exp(values) if is_log else values).sum(axis)
        return bool((np.abs(sums - 1) <= SUM_TOLERANCE).all())

    @cached_property
    def is_share(self) -> bool:
        """Whether all values are within 0..1."""
        return bool(((self.flat >= 0) & (self.flat <= 1)).all())

    def shows(self, word: str) -> bool:
        """Tell whether a word of `SEEN` is true of it, or with `!` is not."""
        return SEEN[word.removeprefix("!")](self) != word.startswith("!")

    def is_called(self, words: str) -> bool:
        """Tell whether its name has a word of `[names]`."""
        return NAMES[words].search(PARTS.sub(" ", self.name)) is not None


@dataclass(frozen=True)
class Clue:
    """A row of `clues.toml`, which says what its fields are."""

    kind: str
    strength: int
    says: str
    when: str = ""
    labels: bool = False
    named: str = ""
    operator: tuple[str, ...] = ()
    width: str = ""
    task: tuple[str, ...] = ()

    def sees(self, facts: OutputFacts) -> bool:
        """Tell whether an output is as the row has it."""
        return (
            (not self.labels or facts.labelled == self.kind)
            and (not self.named or facts.is_called(self.named))
            and (not self.operator or facts.graph.operators.get(facts.name) in self.operator)
            and (not self.width or facts.width in WIDTHS[self.width])
            and (not self.task or facts.graph.metadata.get("task") in self.task)
            and all(any(map(facts.shows, part.split("|"))) for part in self.when.split())
        )


TABLE = read_toml(Path(__file__).with_suffix(".toml"))
CLUES = sorted((from_fields(Clue, row) for row in TABLE["clue"]), key=lambda c: -c.strength)
"""The strongest first; of equal strength as the table has them."""
WIDTHS: Mapping[str, Sequence[int]] = TABLE["widths"]
PARTS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)")
"""What stands between the words of a name."""
_WORDS = {n: w.replace(" ", "|").replace("*", r"\w*") for n, w in TABLE["names"].items()}
NAMES = {name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for name, words in _WORDS.items()}


def _fits_picture(facts: OutputFacts) -> bool:
    """Tell whether a map has the channels and range of an input picture, and its size or a multiple."""
    height, low, high = facts.size[0], facts.flat.min(initial=0.0), facts.flat.max(initial=0.0)
    fitting = [p for p in pictures_in(facts.inputs) if height % p[1] == 0 and p[0] == facts.width]
    if facts.width == 1:  # a mask of a grey picture has its size
        return bool(fitting) and all(picture[1] < height for picture in fitting)
    is_usual = (low >= -1.25 and high <= 1.25) or (low >= -64 and 16 < high <= 320)
    return is_usual and facts.width in (3, 4) and bool(fitting)


def _is_state(facts: OutputFacts) -> bool:
    """Tell whether an output is a cache, or named as a state is that an input of its size takes."""
    if facts.is_called("caches"):
        return True
    if len(facts.inputs) < 2 or len(facts.graph.shapes) < 2:
        return False
    count, stem = math.prod(facts.rows.shape[1:]), stem_of(facts.name)
    taken = [i for i in facts.inputs if count in (math.prod(i.whole), math.prod(i.shape))]
    is_pair = any(stem and stem == stem_of(given.name) for given in taken)
    return is_pair or bool(taken and facts.is_called("states"))


def _is_bytes(facts: OutputFacts) -> bool:
    """Tell whether integers are a picture: of 3 or 4 channels, or bytes of many levels."""
    rows = facts.rows
    if rows.dtype.kind not in "iu" or len(facts.inner) < 2:
        return False
    is_coloured = rows.ndim == 4 and bool({3, 4} & {rows.shape[1], rows.shape[-1]})
    return is_coloured or (rows.dtype == np.uint8 and len(np.unique(rows)) > 150)


def _are_cells(facts: OutputFacts) -> bool:
    """Tell whether rows have four values of a box that is not decoded, then scores."""
    return facts.rows.ndim == 3 and any(
        rows.shape[1] >= CELLS > rows.shape[2] >= 5
        and bool(((rows[..., 4:] >= 0) & (rows[..., 4:] <= 1)).all())
        for rows in (facts.rows, facts.rows.swapaxes(1, 2))
    )


def _are_listed(facts: OutputFacts) -> bool:
    try:
        return len(ast.literal_eval(facts.graph.metadata.get("names", ""))) == facts.width
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _are_units(facts: OutputFacts) -> bool:
    rows = facts.rows.reshape(-1, facts.width).astype(np.float64)
    near = np.abs(np.linalg.norm(rows, axis=1) - 1) <= 1e-3
    return bool(facts.inner and near.all()) and not facts.is_share


def _is_open(facts: OutputFacts) -> bool:
    declared = facts.graph.shapes.get(facts.name, ())
    return len(declared) == facts.rows.ndim and isinstance(declared[facts.inner[-1]], str)


SEEN: Mapping[str, Callable[[OutputFacts], bool]] = {
    "float": lambda f: f.rows.dtype.kind == "f",
    "bool": lambda f: f.rows.dtype.kind == "b",
    "bytes": _is_bytes,
    "single": lambda f: not f.inner,
    "wide": lambda f: len(f.inner) > 1,
    "row": lambda f: f.form == "row",
    "map": lambda f: f.form == "map",
    "sequence": lambda f: f.form == "sequence",
    "carried": lambda f: f.name in f.graph.states,
    "listed": _are_listed,
    "state": _is_state,
    "head": lambda f: f.is_head,
    "units": _are_units,
    "vector_name": lambda f: f.is_called("vectors"),
    "share": lambda f: f.is_share,
    "sure": lambda f: bool(((f.flat < 0.1) | (f.flat > 0.9)).mean() > 0.5),
    "swings": lambda f: bool(-1 <= f.flat.min(initial=0.0) < 0 < f.flat.max(initial=0.0) <= 1),
    "peaks": lambda f: bool((np.abs(f.flat) < 0.1 * f.flat.max()).mean() > 0.85),
    "sums": lambda f: f.sums_to_one(f.channel_axis if f.form == "map" else f.inner[-1]),
    "sums_first": lambda f: f.sums_to_one(1),
    "layers": lambda f: f.form == "map" and f.width > 1,
    "channel": lambda f: f.rows.ndim == 3,
    "lasting": lambda f: f.width >= 32,
    "long": lambda f: f.width >= 4000,
    "open": _is_open,
    "fed": lambda f: any(given.shape == f.rows.shape[1:] for given in f.inputs),
    "bins": lambda f: bool({*WIDTHS["bins"]} & {*f.rows.shape[1:]}),
    "picture": _fits_picture,
    "paired": lambda f: len(pictures_in(f.inputs)) > 1,
    "coarse": lambda f: any(p[1] >= 16 * f.size[0] for p in pictures_in(f.inputs)),
    "anchored": lambda f: any(f.width % n == 0 and f.width > 5 * n for n in (3, 5)),
    "cells": _are_cells,
    "generates": lambda f: any(map(CACHE.match, f.graph.shapes)),
    "reads_tokens": lambda f: any(i.letter in "iu" and len(i.shape) == 1 for i in f.inputs),
}
"""Word of a clue -> what it sees."""


def weigh(facts: OutputFacts) -> list[Clue]:
    """Return the strongest clue for each kind that any sees, the strongest kind first."""
    first: dict[str, Clue] = {}
    for clue in CLUES:
        if clue.kind not in first and clue.sees(facts):
            first[clue.kind] = clue
    return [*first.values()]


def as_map(rows: Array, inputs: Sequence[Input]) -> Array:
    """Return floats of the size of a picture among the inputs as a map of one channel."""
    sizes = {picture[1:] for picture in pictures_in(inputs)}
    return rows[:, None] if rows.dtype.kind == "f" and rows.shape[1:] in sizes else rows


def kind_of_labels(rows: Array, labels: Labels) -> str:
    """Return the kind that labels give an output whose shape they fit, "" where they fit none."""
    if labels.dtype.names is not None or rows.dtype.kind != "f":
        return ""
    values, positions = rows[0].size, labels[0].size
    axes = sum(size > 1 for size in rows.shape[1:])
    if labels.dtype.kind == "f":
        return "values" if values == positions and axes < 2 else ""
    if values == positions:
        if np.isin(labels, (0, 1)).all():
            return ("classes", "labels", "pixels")[min(axes, 2)]
        return "" if axes and ((rows >= 0) & (rows <= 1)).all() else "values"
    if positions == 1:
        return "classes" if axes == 1 and labels.min() >= 0 and labels.max() < values else ""
    if rows.ndim == 4 and values % positions == 0 and labels[0].squeeze().ndim == 2:
        return "pixels"
    is_sequence = labels.ndim == 2 and rows.ndim == 3 and rows.shape[1] <= labels.shape[1]
    return "tokens" if is_sequence and (labels[:, rows.shape[1] :] == PADDING).all() else ""
