"""What a builder says that it made: one record for each layer of an engine.

Builders' listings (`listing`), the inspector's JSON and times (`inspector`) and the program inside a
TensorRT-RTX engine (`rtx_engine`) are read into one form.

What a record cannot say: which kernel a just-in-time runtime will pick later, and what happens
inside a subgraph that the builder lists as one opaque `Myelin` layer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trtcal.documents import to_fields
from trtcal.documents.overview import Shown
from trtcal.formats import BY_LISTED

UNKNOWN = "unknown"
PREDICTED = "predicted"
"""The tactic of all layers that no builder made, as a kernel's name is not known."""

OTHERS = {"int64": 64, "int32": 32, "uint8": 8, "e8m0": 8, "bool": 8}
"""Bits of the data types that no layer computes in."""
BITS = {name: row.width for name, row in BY_LISTED.items()} | OTHERS
DTYPES = {word: name for name, row in BY_LISTED.items() for word in row.spellings}
DTYPES |= dict(zip(OTHERS, OTHERS, strict=True))
FLOATS = frozenset(name for name, row in BY_LISTED.items() if not row.is_narrow)

NAMED_BY_WEIGHTS = tuple(name for name, row in BY_LISTED.items() if row.named_by_weights)

# Parts of kind names (lower case) of layers whose arithmetic is worth its own precision.
HEAVY = re.compile(
    "conv|correlation|corrltn|gemm|matrixmultiply|matmul|fully|runtime_fusion|attention|mha|rnn|lstm"
)
# What begins the name of a generated kernel: both products and the Softmax.
FUSED_ATTENTION = "_gemm_mha"
NOT_HEAVY = re.compile("convert|conversion|reformat")

# Kinds of layers that move no data.
IDLE = frozenset({"noop", "constant", "shape_call", "signal", "wait"})
MAX_BYTES = 1 << 60

# Kinds of which the listing gives all operands: weights stand among inputs or constants.
MYELIN_KINDS = frozenset(
    {"correlation", "corrltn", "gemm", "deconv", "fully_connected", "runtime_fusion"}
)

TACTIC_PRECISIONS = tuple((n, re.compile(r.tactics)) for n, r in BY_LISTED.items() if r.tactics)
# In a fused kernel's name, a cast before the product means that the cast values are multiplied.
CAST_BEFORE_PRODUCT = re.compile(r"Cast[A-Za-z]*?(?:Fc|Gemm|Corr|Conv|Matm)")

NODE_SEPARATORS = (" + ", " || ", ", ", "][ONNX Layer: ", "\x1e", "\x1f")


def dtype_named(text: str | None) -> str:
    """Return trtcal's name of a data type as TensorRT spells it (`Half`, `FP16`, `INT8`, ...)."""
    return DTYPES.get((text or "").strip().lower(), UNKNOWN)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor at a layer's border: `shape` has -1 for a dimension known only at run time."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    format: str = ""

    @property
    def size_bytes(self) -> int | None:
        """Bytes that it takes; a size known at run time counts as 1.

        None if the type is unknown, or the size more than any machine holds.
        """
        if self.dtype not in BITS:
            return None
        elements = math.prod(1 if size < 0 else size for size in self.shape)
        size_bytes = (elements * BITS[self.dtype] + 7) // 8
        return size_bytes if size_bytes <= MAX_BYTES else None


@dataclass(frozen=True)
class Layer(Shown):
    """One layer of an engine, as its builder or inspector described it.

    `kind` is the builder's own word (`correlation`, `CaskConvolution`, `kgen`, ...). `nodes` are
    the ONNX nodes that it says it came from: from its metadata, else from the pieces of a fused
    name (which then name weights and constants too). `weights` is their stored data type, where
    given, `weight_bytes` the size of those that stand in no tensor of the list. `origin` is why a
    copy is there (`QDQ`, `REFORMAT`, ...). `macs` counts multiply-accumulates, batch 1 where the
    batch is known only at run time; `time_ms` is the mean of one run. Both are None if not known.
    """

    name: str
    kind: str
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    constants: tuple[TensorInfo, ...] = ()
    tactic: str | None = None
    nodes: tuple[str, ...] = ()
    origin: str | None = None
    weights: str | None = None
    weight_bytes: int = 0
    macs: int | None = None
    time_ms: float | None = None

    @property
    def is_heavy(self) -> bool:
        """Whether it multiplies matrices or convolves: where precision costs and gains."""
        kind = self.kind.lower()
        if kind == "kgen":
            return self.name.startswith(FUSED_ATTENTION)
        return bool(HEAVY.search(kind)) and not NOT_HEAVY.search(kind)

    @property
    def is_pooling(self) -> bool:
        """Whether it pools; a pooling kernel computes in the type of its input."""
        return "pool" in self.kind.lower() and not self.is_heavy

    @property
    def is_reformat(self) -> bool:
        """Whether it only copies a tensor into another layout or data type."""
        return "reformat" in self.kind.lower() or self.name.startswith("Reformatting CopyNode")

    @property
    def is_idle(self) -> bool:
        """Whether it moves no data: an empty copy, a constant, a call that only waits."""
        return self.kind.lower() in IDLE

    @property
    def is_opaque(self) -> bool:
        """Whether it stands for a whole compiled subgraph of which nothing more is listed."""
        kind = self.kind.lower()
        return kind == "myelin" or (kind == UNKNOWN and self.name.startswith("{ForeignNode["))

    @property
    def precision(self) -> str:
        """The data type that it computes in, or `unknown`.

        An INT8 convolution may well write FP32, and INT8 weights may be expanded before the
        product: so outputs decide nothing, and weights alone do not either. INT4 is for weights: a
        kernel that reads them in four bits counts as `int4`, though its products are in float.
        """
        if self.is_opaque or not (self.inputs or self.weights or self.tactic):
            return UNKNOWN
        named = next(filter(self.reads_weights_in, NAMED_BY_WEIGHTS), None)
        shown = named or self._from_weights() or self._from_tactic() or self._from_operands()
        return shown or UNKNOWN

    def reads_weights_in(self, dtype: str) -> bool:
        """Whether it multiplies, and its own kernel reads a matrix of this type."""
        tensors = (*self.inputs, *self.constants)
        stored = any(tensor.dtype == dtype and len(tensor.shape) > 1 for tensor in tensors)
        return self.is_heavy and (stored or self.weights == dtype)

    @property
    def bytes_read(self) -> int | None:
        """Bytes of its inputs, constants and weights; None if a tensor's type is unknown."""
        read = sum_bytes((*self.inputs, *self.constants))
        if self.is_idle or read is None:
            return 0 if self.is_idle else None
        return read + self.weight_bytes

    @property
    def bytes_written(self) -> int | None:
        """Bytes of its outputs; None if a tensor's type is unknown."""
        return 0 if self.is_idle else sum_bytes(self.outputs)

    @property
    def bytes_moved(self) -> int | None:
        """Bytes of all that it reads and writes, as listed; None if a tensor's type is unknown."""
        read, written = self.bytes_read, self.bytes_written
        return None if read is None or written is None else read + written

    @property
    def _first_input(self) -> str:
        first = self.inputs[0].dtype if self.inputs else UNKNOWN
        if first not in FLOATS or self.kind.lower() != "runtime_fusion":
            return first
        # Here it may be what is added after the product: what most operands are counts.
        operands = [part.dtype for part in (*self.inputs, *self.constants) if len(part.shape) > 1]
        return Counter(operands or [first]).most_common(1)[0][0]

    def _from_weights(self) -> str | None:
        if self.weights not in BY_LISTED:
            return None
        is_alone = self.weights not in FLOATS and self._first_input in FLOATS
        return self._first_input if is_alone else self.weights

    def _from_tactic(self) -> str | None:
        tactic = (self.tactic or "").lower()
        if not self.is_heavy or tactic.startswith("__my"):
            return None
        return next((name for name, mark in TACTIC_PRECISIONS if mark.search(tactic)), None)

    def _from_operands(self) -> str | None:
        first = self._first_input
        if first in FLOATS or first not in BY_LISTED:
            return first if first in FLOATS else None
        tensors = (*self.inputs, *self.constants, *self.outputs)
        floats = (tensor.dtype for tensor in tensors if tensor.dtype in FLOATS)
        return next(floats, UNKNOWN) if self._expands_operands(first) else first

    def _expands_operands(self, dtype: str) -> bool:
        """Whether narrow operands are cast to a float type before they are multiplied."""
        kind = self.kind.lower()
        if kind == "runtime_fusion" and CAST_BEFORE_PRODUCT.search(self.name[:1000]):
            return True
        others = (*self.inputs[1:], *self.constants)
        listed = kind in MYELIN_KINDS and bool(others)
        return listed and all(tensor.dtype != dtype for tensor in others)

    def lists(self, node: str) -> bool:
        """Whether it says that it came from the ONNX node of this name.

        A name that contains a separator of the listing was cut into pieces by the reader, so its
        pieces in a row count too.
        """
        runs = (self._has_run(node.split(mark)) for mark in NODE_SEPARATORS if mark in node)
        return node in self.nodes or any(runs)

    def _has_run(self, pieces: list[str]) -> bool:
        size = len(pieces)
        starts = range(len(self.nodes) - size + 1)
        return any(list(self.nodes[start : start + size]) == pieces for start in starts)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, with the derived `precision` and `heavy` beside what was read."""
        return {**to_fields(self), "precision": self.precision, "heavy": self.is_heavy}


class LayersByNode:
    """The layers that list each ONNX node, by number."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.numbers: dict[str, list[int]] = {}
        for number, layer in enumerate(layers):
            for node in dict.fromkeys(layer.nodes):
                self.numbers.setdefault(node, []).append(number)

    def listing(self, node: str) -> list[int]:
        """Return the layers that list a node; a name with a separator in it was cut into pieces."""
        if node in self.numbers:
            return self.numbers[node]
        first = (node.split(mark)[0] for mark in NODE_SEPARATORS if mark in node)
        near = {number for piece in first for number in self.numbers.get(piece, ())}
        return [number for number in sorted(near) if self.layers[number].lists(node)]


def sum_bytes(tensors: Iterable[TensorInfo]) -> int | None:
    """Add up the bytes of tensors; None if one of their types is unknown."""
    sizes = [tensor.size_bytes for tensor in tensors]
    return None if None in sizes else sum(size for size in sizes if size is not None)


ENTRY = "[ONNX Layer: "
PWN = re.compile(r"^(?:PWN\()+")
TOUCHING = re.compile(r"(?<=\])(?=\[ONNX Layer: )")
SEPARATOR = re.compile(r"[\x1e\x1f](?=\[)")


def nodes_in_metadata(metadata: str) -> tuple[str, ...]:
    """Return the ONNX node names in a layer's metadata, in order.

    Entries `[ONNX Layer: name]` are separated by U+001F in listings and U+001E in JSON. Terminals
    and editors lose these, so entries that merely touch are separated too, as far as names allow.
    """
    metadata = metadata.strip("\r\n")
    separator = SEPARATOR if SEPARATOR.search(metadata) else TOUCHING
    entries = (entry for entry in separator.split(metadata) if entry.startswith(ENTRY))
    return tuple(entry.removeprefix(ENTRY).removesuffix("]") for entry in entries)


def nodes_in_name(name: str) -> tuple[str, ...]:
    """Return the pieces of a fused layer's name: `a + PWN(b)` came from `a` and `b`.

    A copy (`Reformatting CopyNode for ...`) comes from no node. Of `{ForeignNode[a...b]}` only the
    first and last node are known.
    """
    if name.startswith("Reformatting CopyNode"):
        return ()
    if name.startswith("{ForeignNode[") and name.endswith("]}"):
        first, _, last = name[len("{ForeignNode[") : -2].partition("...")
        return (first, last) if last else (first,)
    split = r" \+ | \|\| |, " if "PWN(" in name else r" \+ | \|\| "
    return tuple(_bare(piece) for piece in re.split(split, name) if piece)


def _bare(piece: str) -> str:
    piece = PWN.sub("", piece)
    surplus = piece.count(")") - piece.count("(")
    while surplus > 0 and piece.endswith(")"):
        piece, surplus = piece[:-1], surplus - 1
    return piece.strip()


def is_quantize_step(layer: Layer) -> bool:
    """Whether a layer does nothing but quantize or dequantize.

    By its origin or kind; by its nodes, all of which must be Q/DQ by name; or, a generated kernel,
    by the operations in its name.
    """
    if layer.is_heavy or layer.is_pooling or layer.is_idle:
        return False
    if layer.origin == "QDQ" or QDQ_NODE.search(layer.kind):
        return True
    if kernel := KERNEL.match(layer.name):
        words = re.findall("[A-Z][a-z]*", kernel[1])
        if "".join(word for word in words if word not in MOVES) in STEPS:
            return True
    nodes = layer.nodes or (() if layer.is_reformat else (layer.name,))
    return bool(nodes) and all(QDQ_NODE.search(node) for node in nodes)


# How exporters, TensorRT and trtcal name the nodes: QuantizeLinear_4, x/dequantize, a_quantize_scale.
QDQ_NODE = re.compile(r"(?:^|[^a-z])(?:de)?quantize(?:linear)?(?:$|[^a-z])", re.IGNORECASE)


# A generated kernel's name lists its operations; these move, and those make up a Q or a DQ.
KERNEL = re.compile(r"^__myl_([A-Za-z]+)_myl")
MOVES = frozenset({"Move", "Tran", "Resh", "Repl", "Conc", "Slic"})
STEPS = (
    *("MulMinMaxRounCast", "DivMinMaxRounCast"),
    *("CastMul", "CastMulCast", "MulCastCastMul", "CastMulCastMulCast"),
)
