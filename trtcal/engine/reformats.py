"""Copies that change layout or data type: why they are there, what they cost, and Q/DQ left over."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from trtcal.buildlog.layers import FLOATS, Layer, TensorInfo
from trtcal.buildlog.listing import FORMAT_TYPE
from trtcal.engine.flow import Flow
from trtcal.engine.naming import short

# How exporters, TensorRT and trtcal name the nodes: QuantizeLinear_4, x/dequantize, a_quantize_scale.
QDQ_NODE = re.compile(r"(?:^|[^a-z])(?:de)?quantize(?:linear)?(?:$|[^a-z])", re.IGNORECASE)
# A generated kernel's name lists its operations; these move, and those make up a Q or a DQ.
KERNEL = re.compile(r"^__myl_([A-Za-z]+)_myl")
MOVES = frozenset({"Move", "Tran", "Resh", "Repl", "Conc", "Slic"})
STEPS = ("MulMinMaxRounCast", "DivMinMaxRounCast", "CastMul", "CastMulCast")
NARROW = frozenset({"int8", "uint8", "fp8"})
WIDTHS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
WIDE = re.compile(r"^([\w-]+) wide channel vectorized row major", re.IGNORECASE)
MULTIPLE = re.compile(r"channel % (\d+) == 0")


@dataclass(frozen=True)
class Reformat:
    """A copy: `why` says what it changes, `between` the layers that it stands between.

    `origin` is TensorRT's own word (`QDQ`, `REFORMAT`), None where it tells none. `is_free` is one
    that turned out to need no work.
    """

    layer: str
    origin: str | None
    why: str
    time_ms: float | None
    moved_bytes: int | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    is_free: bool

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Unfused:
    """A quantize or dequantize step that runs as a layer of its own.

    `cause` is a word for what keeps it so, as far as the layers around it show: `border` (of the
    network), `constant` (weights are dequantized at every inference), `other_reader` (something
    else reads the tensor unquantized), `residual` (the kernel in front adds a float tensor),
    `float_reader` (what follows wants a float), `float_writer` (what is in front can't write the
    narrow type, or was not asked to) or `unknown`. `reason` says it with names.
    """

    layer: str
    form: str
    cause: str
    reason: str
    time_ms: float | None
    moved_bytes: int | None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def find_reformats(flow: Flow) -> tuple[Reformat, ...]:
    """Return every copy of an engine, in its order."""
    return tuple(
        _reformat(flow, index) for index, layer in enumerate(flow.layers) if layer.is_reformat
    )


def _reformat(flow: Flow, index: int) -> Reformat:
    layer = flow.layers[index]
    before, after = flow.names(flow.before(index)), flow.names(flow.after(index))
    return Reformat(
        layer.name,
        layer.origin,
        _change(layer),
        layer.time_ms,
        layer.bytes_moved,
        before,
        after,
        layer.is_idle,
    )


def _change(layer: Layer) -> str:
    if not layer.inputs or not layer.outputs:
        return "not told"
    source, result = layer.inputs[0], layer.outputs[0]
    parts = []
    if source.dtype != result.dtype:
        parts.append(f"precision {source.dtype} to {result.dtype}")
    if layout_of(source) != layout_of(result):
        parts.append(f"layout {layout_of(source)} to {layout_of(result)}")
    return ", ".join(parts) or "copy"


def layout_of(tensor: TensorInfo) -> str:
    """Return a short name of a tensor's layout: `linear`, `NHWC8`, `NC/32HW32`, or its own words."""
    words = FORMAT_TYPE.sub("", tensor.format.upper()).lower()
    if wide := WIDE.match(tensor.format):
        width = WIDTHS.get(wide[1].lower(), wide[1])
        return f"NC/{width}HW{width}"
    if "channel major" in words:
        multiple = MULTIPLE.search(tensor.format)
        return f"NHWC{multiple[1] if multiple else ''}"
    if "row major" in words:
        return "linear"
    return " ".join(words.replace("format", "").split()) or "not told"


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


def find_unfused(flow: Flow) -> tuple[Unfused, ...]:
    """Return every quantize or dequantize step that no other layer took in."""
    return tuple(
        _unfused(flow, index) for index, layer in enumerate(flow.layers) if is_quantize_step(layer)
    )


def _unfused(flow: Flow, index: int) -> Unfused:
    layer = flow.layers[index]
    form = f"reformat of origin {layer.origin}" if layer.is_reformat else f"{layer.kind} layer"
    cause, reason = _border(flow, index) or _cause(flow, index)
    return Unfused(layer.name, form, cause, reason, layer.time_ms, layer.bytes_moved)


def _border(flow: Flow, index: int) -> tuple[str, str] | None:
    layer = flow.layers[index]
    if not layer.inputs:
        return "constant", "it works on constants, at every inference"
    if not any(tensor.name in flow.writers for tensor in layer.inputs):
        return "border", "it stands at an input of the network"
    if not flow.after(index):
        return "border", "it stands at an output of the network"
    return None


def _cause(flow: Flow, index: int) -> tuple[str, str]:
    source, result = flow.layers[index].inputs[0], flow.layers[index].outputs[0]
    after = flow.layers[flow.after(index)[0]]
    if source.dtype in NARROW and result.dtype in FLOATS:
        return "float_reader", f"{short(after.name)} reads {result.dtype}"
    before = [flow.layers[other] for other in flow.before(index)]
    if not before or source.dtype not in FLOATS:
        return "unknown", "its neighbours do not show why"
    writes = f"{short(before[0].name)} writes {source.dtype}"
    others = [other for other in flow.readers.get(source.name, ()) if other != index]
    if others:
        other = short(flow.layers[others[0]].name)
        return "other_reader", f"{writes}, as {other} reads the same tensor unquantized"
    added = before[0].inputs[1].dtype if before[0].is_heavy and before[0].inputs[1:] else ""
    if added in FLOATS:
        return "residual", f"{writes}, as it adds a residual that it reads in {added}"
    return "float_writer", writes
