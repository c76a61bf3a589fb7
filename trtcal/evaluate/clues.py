"""What an output of a network is, by clues: one row of `CLUES` for each, and the strongest decides.

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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.evaluate.boxes import CELLS
from trtcal.evaluate.per_sample import SUM_TOLERANCE, Labels
from trtcal.metrics import RAW, UNJUDGED
from trtcal.model import TensorSpec
from trtcal.model.graph import last_operators
from trtcal.model.model import Shape

Array = npt.NDArray[Any]

STATED, SEEN, NAMED, SHAPED, CAUTIOUS, POSSIBLE = 5, 4, 3, 2, 1, 0
"""Strengths: stated by the user or the exporter, seen in values or types, named, shaped so; what an
output is without evidence; what it could be too."""

UNIT = 1e-3  # how far a norm of 1 may be from it
LONG = 4000  # values of a row from which on it may be a waveform
SHORTEST = 32  # values of the shortest waveform
LABEL_COUNTS = frozenset(
    {10, 12, 35, 51, 100, 101, 102, 120, 200, 257, 365, 397, 400, 600, 700, 1000, 1001, 8142, 10000,
     11221, 21841, 21843}
)  # fmt: skip
"""Numbers of classes of public classification data sets."""
VECTOR_SIZES = frozenset({128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 4096})
BINS = frozenset({65, 129, 161, 201, 241, 257, 321, 481, 513, 601, 769, 1025, 2049})
"""Frequencies of the usual Fourier transforms."""
HEAD_CHANNELS = frozenset({85, 255})
"""Channels of a detector of COCO's 80 classes, of one and of three anchors."""


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


def pictures_in(inputs: Sequence[Input]) -> list[tuple[int, ...]]:
    """Return the shapes of inputs that are pictures, as (channels, height, width)."""
    shapes = [given.shape for given in inputs if len(given.shape) == 3]
    return [(s[2], s[0], s[1]) if s[2] in (1, 3, 4) and s[0] > 4 else s for s in shapes]


def as_map(rows: Array, inputs: Sequence[Input]) -> Array:
    """Return floats of the size of a picture among the inputs as a map of one channel."""
    sizes = {picture[1:] for picture in pictures_in(inputs)}
    return rows[:, None] if rows.dtype.kind == "f" and rows.shape[1:] in sizes else rows


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
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return self.rows.shape[1:]

    @cached_property
    def inner(self) -> list[int]:
        """The axes of more than one value."""
        return [axis for axis in range(1, self.rows.ndim) if self.rows.shape[axis] > 1]

    @cached_property
    def flat(self) -> Array:
        """The values, a row for each sample, float64."""
        return self.rows.reshape(len(self.rows), -1).astype(np.float64)

    @property
    def operator(self) -> str:
        """The operator that makes the values, "" if it is not known."""
        return self.graph.operators.get(self.name, "")

    @property
    def is_float(self) -> bool:
        """Whether the values are floats."""
        return self.rows.dtype.kind == "f"

    @property
    def is_value(self) -> bool:
        """Whether a sample has one float."""
        return self.is_float and not self.inner

    @property
    def is_row(self) -> bool:
        """Whether a sample has one axis of floats."""
        return self.is_float and len(self.inner) == 1

    @property
    def is_map(self) -> bool:
        """Whether a sample has channels of a picture's shape, [C, H, W] or [H, W, C]."""
        many = len(self.inner) + (1 in (self.rows.shape[1:2] + self.rows.shape[3:]))
        return self.is_float and self.rows.ndim == 4 and many >= 3 and len(self.inner) >= 2

    @property
    def is_sequence(self) -> bool:
        """Whether a sample has positions that have several floats each."""
        return self.is_float and len(self.inner) >= 2 and not self.is_map

    @cached_property
    def channel_axis(self) -> int:
        """The axis of a map's channels: the last if it is smaller than both before it, else 1."""
        is_last = self.rows.ndim == 4 and self.rows.shape[3] < min(self.rows.shape[1:3])
        return 3 if is_last else 1

    @property
    def channels(self) -> int:
        """The number of a map's channels."""
        return int(self.rows.shape[self.channel_axis])

    @cached_property
    def is_share(self) -> bool:
        """Whether all values lie in 0..1."""
        return bool(self.flat.size and (self.flat >= 0).all() and (self.flat <= 1).all())

    @property
    def is_open(self) -> bool:
        """Whether the last axis of many values has no declared length."""
        declared = self.graph.shapes.get(self.name, ())
        known = len(declared) == self.rows.ndim and bool(self.inner)
        return known and isinstance(declared[self.inner[-1]], str)

    def sums_to_one(self, axis: int) -> bool:
        """Tell whether values are shares, or their logarithms, that sum to 1 along an axis."""
        values = self.rows.astype(np.float64)
        if self.operator == "LogSoftmax":
            values = np.exp(values)
        elif not self.is_share:
            return False
        return bool((np.abs(values.sum(axis) - 1) <= SUM_TOLERANCE).all())

    @property
    def are_units(self) -> bool:
        """Whether vectors along the last axis have the norm 1."""
        if not self.inner or self.is_share:
            return False
        rows = self.rows.reshape(-1, self.rows.shape[self.inner[-1]]).astype(np.float64)
        return bool((np.abs(np.linalg.norm(rows, axis=1) - 1) <= UNIT).all())

    @property
    def is_wave(self) -> bool:
        """Whether values swing around zero within 1."""
        low, high = float(self.flat.min(initial=0.0)), float(self.flat.max(initial=0.0))
        return -1.0 <= low < 0 < high <= 1.0

    @property
    def is_fed(self) -> bool:
        """Whether an input has its shape."""
        return any(given.shape == self.shape for given in self.inputs)

    @property
    def pictures(self) -> list[tuple[int, ...]]:
        """The shapes of inputs that are pictures, as (channels, height, width)."""
        return pictures_in(self.inputs)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a map."""
        axes = (1, 2) if self.channel_axis == 3 else (2, 3)
        return self.rows.shape[axes[0]], self.rows.shape[axes[1]]

    @property
    def strides(self) -> list[float]:
        """By how much each picture among the inputs is larger than the map."""
        return [picture[1] / self.size[0] for picture in self.pictures]

    def is_called(self, pattern: re.Pattern[str]) -> bool:
        """Tell whether its name has a word of a pattern."""
        return pattern.search(WORDS.sub(" ", self.name)) is not None


WORDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)")


def _words(text: str) -> re.Pattern[str]:
    """Return a pattern of words, each of which may have an ending where it ends in *."""
    words = "|".join(word.replace("*", r"\w*") for word in text.split())
    return re.compile(rf"\b(?:{words})\b", re.IGNORECASE)


AFFIXES = re.compile(
    r"^(?:in|out|input|output|prev|next|new|old|past|present)[_.]|(?:[_.]?(?:in|out|input|output|prev|next"
    r"|new|[ionN0]))$"
)
"""What tells an input from the output that is fed back into it: h0 and hn, r1i and r1o."""
CACHE_NAMES = _words("present past cache* kv")
STATE_NAMES = _words("state* stateN h c hn cn hidden memory buf* next* new*")
VECTOR_NAMES = _words("embed* emb desc* feat* hidden pool* latent* reid state* hn cn h")
VALUE_NAMES = _words(
    "landmark* lmk* keypoint* kpt* kps joint* coord* offset* delta* bbox* box* boxes loc reg regress* "
    "age pose angle* yaw gaze heatmap* depth disp* flow normal* mel* spec* erb* mask* gain* alpha* "
    "matte* pha anomaly* density height* quality simcc* variable"
)
IMAGE_NAMES = _words(
    "image* img* picture* rgb rgba denois* restor* sr upscal* stylized fake fgr enhanced clean recon*"
)
SIGNAL_NAMES = _words("audio* wav* speech voice enh* pcm vocoder sound denois* clean")
CLASS_NAMES = _words("logit* prob* softmax class* cls label* categor* gender emotion* score*")
MASK_NAMES = _words("mask* seg* semantic* pixel* logit* sem parsing saliency")


def _fits_picture(facts: OutputFacts) -> bool:
    """Tell whether a map has the channels of a picture among the inputs, and its size or a multiple."""
    height = facts.size[0]
    channels = {picture[0] for picture in facts.pictures if height % picture[1] == 0}
    if facts.channels == 1:  # a mask of a grey picture has its size
        return 1 in channels and all(picture[1] < height for picture in facts.pictures)
    return facts.channels in (3, 4) and bool(channels & {3, 4})


def _is_picture(facts: OutputFacts) -> bool:
    """Tell whether integers are a picture: bytes of 3 or 4 channels, or of many levels."""
    if facts.rows.dtype.kind not in "iu" or len(facts.inner) < 2:
        return False
    is_coloured = facts.rows.ndim == 4 and bool({3, 4} & {facts.shape[0], facts.shape[-1]})
    levels = len(np.unique(facts.rows)) if facts.rows.dtype == np.uint8 else 0
    return is_coloured or levels > 150


def _has_peaks(facts: OutputFacts) -> bool:
    """Tell whether nearly all values of several maps are far below each map's peak."""
    if not facts.is_map or facts.channels < 4:
        return False
    top = float(facts.flat.max())
    is_low = (np.abs(facts.flat) < 0.1 * top).mean() > 0.85
    return top > 0 and bool(is_low) and not facts.sums_to_one(facts.channel_axis)


def _is_mask(facts: OutputFacts) -> bool:
    """Tell whether nearly all values of one map are 0 or 1."""
    sure = (facts.flat < 0.1) | (facts.flat > 0.9)
    return facts.is_map and facts.channels == 1 and facts.is_share and bool(sure.mean() > 0.5)


def _is_state(facts: OutputFacts) -> bool:
    """Tell whether an output is a cache, or named as a state is that an input of its size takes."""
    if facts.is_called(CACHE_NAMES):
        return True
    if len(facts.inputs) < 2 or len(facts.graph.shapes) < 2:
        return False
    count = facts.flat.shape[1]
    taken = [i for i in facts.inputs if count in (math.prod(i.whole), math.prod(i.shape))]
    stem = AFFIXES.sub("", facts.name)
    is_pair = any(stem and stem == AFFIXES.sub("", given.name) for given in taken)
    return is_pair or bool(taken and facts.is_called(STATE_NAMES))


def _is_head(facts: OutputFacts) -> bool:
    """Tell whether a map or rows of cells are a head of a detector that is not decoded."""
    if facts.is_sequence and facts.rows.ndim == 3:
        return any(
            rows.shape[1] >= CELLS > rows.shape[2] >= 5
            and bool(((rows[..., 4:] >= 0) & (rows[..., 4:] <= 1)).all())
            for rows in (facts.rows, facts.rows.swapaxes(1, 2))
        )
    if not facts.is_map:
        return False
    is_coarse = any(stride >= 16 for stride in facts.strides)
    per_anchor = [facts.channels // anchors for anchors in (3, 5) if facts.channels % anchors == 0]
    return facts.channels in HEAD_CHANNELS or (is_coarse and max(per_anchor, default=0) > 5)


def _is_spectral(facts: OutputFacts) -> bool:
    return facts.is_float and len(facts.inner) >= 2 and bool(BINS & {*facts.shape})


def _has_names(facts: OutputFacts) -> bool:
    """Tell whether the metadata of the model name as many classes as a row has values."""
    try:
        names = ast.literal_eval(facts.graph.metadata.get("names", ""))
        return facts.is_row and len(names) == facts.flat.shape[1]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _is_task(facts: OutputFacts, *tasks: str) -> bool:
    return facts.graph.metadata.get("task") in tasks


def _reads_tokens(facts: OutputFacts) -> bool:
    return any(given.letter in "iu" and len(given.shape) == 1 for given in facts.inputs)


class Clue(NamedTuple):
    """What a clue sees, of which kind it says that the output is, how strongly, and its sentence."""

    kind: str
    strength: int
    sentence: str
    sees: Callable[[OutputFacts], bool]


CLUES = (
    Clue(UNJUDGED, STATED, "[data.states] feeds it back", lambda f: f.name in f.graph.states),
    *(
        Clue(kind, STATED, f"the labels fit {kind}", lambda f, kind=kind: f.labelled == kind)  # type: ignore[misc]
        for kind in ("classes", "labels", "tokens", "pixels", "values")
    ),
    Clue("classes", STATED, "the metadata name a class for each value", _has_names),
    Clue("classes", STATED, "the metadata have the task classify",
         lambda f: f.is_row and _is_task(f, "classify")),
    Clue(RAW, STATED, "the metadata have the task of a detector", lambda f: f.is_float
         and f.rows.ndim >= 3 and _is_task(f, "detect", "segment", "pose", "obb")),
    Clue(UNJUDGED, SEEN, "it is a state that an input takes", _is_state),
    Clue(UNJUDGED, SEEN, "it is a mask of positions", lambda f: len(f.inner) < 2
         and f.rows.dtype.kind == "b"),
    Clue(RAW, SEEN, "several outputs are heads over the same cells or of several scales",
         lambda f: f.is_head),
    Clue("image", SEEN, "it has the bytes of a picture", _is_picture),
    Clue("classes", SEEN, "it has one integer per sample",
         lambda f: not f.is_float and not f.inner),
    Clue("tokens", SEEN, "it has a row of integers", lambda f: not f.is_float and len(f.inner) == 1),
    Clue("pixels", SEEN, "it has a map of integers", lambda f: not f.is_float and len(f.inner) > 1),
    Clue("vectors", SEEN, "its vectors have norm 1",
         lambda f: (f.is_row or f.is_sequence) and f.are_units),
    Clue("classes", SEEN, "its rows are shares that sum to 1",
         lambda f: f.is_row and f.sums_to_one(f.inner[0])),
    Clue("classes", SEEN, "a Sigmoid makes its one value",
         lambda f: f.is_value and f.operator == "Sigmoid"),
    Clue("tokens", SEEN, "the shares of each position sum to 1",
         lambda f: f.is_sequence and f.sums_to_one(-1)),
    Clue("pixels", SEEN, "the shares of each pixel sum to 1",
         lambda f: (f.is_sequence and f.sums_to_one(1))
         or (f.is_map and f.channels > 1 and f.sums_to_one(f.channel_axis))),
    Clue("values", SEEN, "its maps are near zero but for peaks", _has_peaks),
    Clue("vectors", NAMED, "its name is that of an embedding", lambda f: f.is_float
         and bool(f.inner) and not f.is_map and f.is_called(VECTOR_NAMES)),
    Clue("values", NAMED, "its name is that of features",
         lambda f: f.is_map and f.is_called(VECTOR_NAMES)),
    Clue("values", NAMED, "its name is that of measured values", lambda f: f.is_float
         and f.is_called(VALUE_NAMES) and not (f.is_map and f.is_called(MASK_NAMES))),
    Clue("pixels", NAMED, "its name is that of a segmentation",
         lambda f: f.is_map and f.is_called(MASK_NAMES)),
    Clue("signal", NAMED, "its name is that of audio", lambda f: f.is_row
         and f.flat.shape[1] >= SHORTEST and f.is_called(SIGNAL_NAMES)),
    Clue("image", NAMED, "its name is that of a picture", lambda f: f.is_map
         and f.channels in (1, 3, 4) and f.is_called(IMAGE_NAMES)),
    Clue("labels", NAMED, "its name is that of classes, and a Sigmoid makes it",
         lambda f: f.is_row and f.operator == "Sigmoid" and f.is_called(CLASS_NAMES)),
    Clue("classes", NAMED, "its name is that of class scores",
         lambda f: f.is_row and f.is_called(CLASS_NAMES)),
    Clue("tokens", NAMED, "its name is that of scores of positions",
         lambda f: f.is_sequence and f.is_called(CLASS_NAMES)),
    Clue("image", SHAPED, "it has the shape of an input picture, or a multiple",
         lambda f: f.is_map and _fits_picture(f)),
    Clue("image", SHAPED, "it has 3 channels within the range of a Tanh or Sigmoid",
         lambda f: f.is_map and f.channels == 3 and f.operator in ("Tanh", "Sigmoid", "Clip")),
    Clue("signal", SHAPED, "its last axis is open, and its values swing around zero within 1",
         lambda f: f.is_row and f.is_open and f.is_wave and f.flat.shape[1] >= SHORTEST),
    Clue("signal", SHAPED, "it has one channel and the shape of an input", lambda f: f.is_row
         and f.rows.ndim == 3 and f.is_fed and f.flat.shape[1] >= SHORTEST),
    Clue("signal", SHAPED, f"it has {LONG:,} or more values that swing around zero within 1",
         lambda f: f.is_row and f.flat.shape[1] >= LONG and f.is_wave),
    Clue("values", SHAPED, "its last axis is open, which holds no classes",
         lambda f: (f.is_row or f.is_sequence) and f.is_open),
    Clue("values", SHAPED, "it has the shape of an input",
         lambda f: (f.is_row or f.is_sequence) and f.is_fed),
    Clue("values", SHAPED, "an axis has the bins of a spectrum", _is_spectral),
    Clue("values", SHAPED, "it has as many channels as features have",
         lambda f: f.is_map and f.channels in VECTOR_SIZES),
    Clue(RAW, SHAPED, "its channels and size are those of a detector's head", _is_head),
    Clue("values", SHAPED, "it has 2 channels for two pictures",
         lambda f: f.is_map and f.channels == 2 and len(f.pictures) > 1),
    Clue("pixels", SHAPED, "it is one map of shares near 0 and 1", _is_mask),
    Clue("pixels", SHAPED, "a Sigmoid makes its one map",
         lambda f: f.is_map and f.channels == 1 and f.operator == "Sigmoid"),
    Clue("pixels", SHAPED, "it is a map of several channels",
         lambda f: f.is_map and f.channels > 1),
    Clue("labels", SHAPED, "a Sigmoid makes its values",
         lambda f: (f.is_row or f.is_sequence) and f.operator in ("Sigmoid", "HardSigmoid")),
    Clue("vectors", SHAPED, "it has the length of an embedding",
         lambda f: f.is_row and f.flat.shape[1] in VECTOR_SIZES),
    Clue("vectors", SHAPED, "its inputs are tokens, and positions have the length of an embedding",
         lambda f: f.is_sequence and f.shape[-1] in VECTOR_SIZES and _reads_tokens(f)),
    Clue("classes", SHAPED, "it has as many values as public data sets have classes",
         lambda f: f.is_row and f.flat.shape[1] in LABEL_COUNTS),
    Clue("tokens", SHAPED, "its inputs are tokens",
         lambda f: f.is_sequence and _reads_tokens(f)),
    Clue("values", CAUTIOUS, "uncertain, nothing settles what it is", lambda f: f.is_float),
    Clue("classes", POSSIBLE, "a row may be class scores", lambda f: f.is_row or f.is_value),
    Clue("labels", POSSIBLE, "values within 0..1 may be labels", lambda f: f.is_row and f.is_share),
    Clue("tokens", POSSIBLE, "each position may have scores", lambda f: f.is_sequence),
    Clue("pixels", POSSIBLE, "a map may be a mask", lambda f: f.is_map),
    Clue("image", POSSIBLE, "a map may be a picture",
         lambda f: f.is_map and f.channels in (1, 3, 4)),
    Clue("values", POSSIBLE, "integers may be measured values",
         lambda f: not f.is_float and bool(f.inner)),
)  # fmt: skip
"""The clues; of equal strength the first decides."""


def weigh(facts: OutputFacts) -> list[Clue]:
    """Return the strongest clue for each kind that any sees, the strongest kind first."""
    by_kind: dict[str, Clue] = {}
    for clue in CLUES:
        known = by_kind.get(clue.kind)
        if (known is None or clue.strength > known.strength) and clue.sees(facts):
            by_kind[clue.kind] = clue
    places = {clue: place for place, clue in enumerate(CLUES)}
    return sorted(by_kind.values(), key=lambda clue: (-clue.strength, places[clue]))


def kind_of_labels(rows: Array, labels: Labels | None) -> str:
    """Return the kind that labels give an output whose shape they fit, "" where they fit none."""
    if labels is None or labels.dtype.names is not None or rows.dtype.kind != "f":
        return ""
    values, positions = rows[0].size, labels[0].size
    axes = sum(size > 1 for size in rows.shape[1:])
    if labels.dtype.kind == "f":
        return "values" if values == positions and axes < 2 else ""
    if values == positions:
        is_binary = bool(np.isin(labels, (0, 1)).all())
        return ("classes", "labels", "pixels")[min(axes, 2)] if is_binary else "values"
    if positions == 1:
        fits = max(rows.shape[1:], default=1) == values and 0 <= labels.min() <= labels.max()
        return "classes" if fits and labels.max() < values else ""
    if rows.ndim == 4 and values % positions == 0 and labels[0].squeeze().ndim == 2:
        return "pixels"
    return "tokens" if labels.ndim == 2 and rows.shape[1:2] == labels.shape[1:] else ""
