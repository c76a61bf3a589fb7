"""Readers of the layer listings that a builder prints into its verbose log.

Three generations, newest first:

- `Name: N, LayerType: K, Inputs: [ { Name: T, Dimensions: [..], ... }], ... Metadata: M`
  (TensorRT 10, 11, TensorRT-RTX; some 8.5 and 8.6 builds, with other fields between);
- `Layer(K): N, Tactic: 0x.., T (Float[1,3]) -> T (Int8[1,64:32])` (8.5 to 11);
- `Layer(K): N, Tactic: .., T[Float(1,3)] -> T[Int8(1,64)]` (5 to 8.5).

Names are printed without any escape: they may contain commas, brackets, field names and line breaks.
So the reader searches the fixed sequence of fields around them, at the next place where it does not
hold. A name that imitates a whole layer can misdescribe that layer, no other. The work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from trtcal.evidence.layers.layer import (
    UNKNOWN,
    Layer,
    TensorInfo,
    dtype_named,
    nodes_in_metadata,
    nodes_in_name,
)
from trtcal.evidence.layers.roofline import count_operands

MAX_LAYER_CHARS, MAX_TRIES = 1 << 18, 16

LAYER_TYPE = re.compile(r", LayerType: ([\w.+-]{1,64}), Inputs: \[")
TENSOR_TAIL = re.compile(
    r"(?:, Location: \w{1,32})?, Dimensions: \[([-\d,]{0,512})\]"
    r"(?:, Strides: \[[-\d,]{0,512}\])?(?:, StrideOrder: \[[-\d,]{0,512}\])?"
    r"(?:, Datatype: (\w{1,32}))?(?:, Format(?:/Datatype)?: ([^{}]{0,300}?))? \}(?=, \{ Name: |\])"
)
ATTRIBUTE = re.compile(r", (TacticName|Origin): ([^,]{0,4096})")
WEIGHTS = re.compile(r', Weights: \{"?Type"?: "?(\w{1,32})')
METADATA = ", Metadata:"

OLD_LAYER = re.compile(r"Layer\(([^()]{1,64})\): ")
OLD_TACTIC = re.compile(r", Tactic: (-?\d{1,20}|0x[0-9a-fA-F]{1,16}), ")
WORD = r"(Float|Half|BFloat16|BF16|FP8|FP4|Int4|Int8|UInt8|Int32|Int64|Bool)"
OLD_TENSOR = re.compile(
    rf"(?: \({WORD}\[([-\d,:]{{0,512}})\]\)|\[{WORD}\(([-\d,:]{{0,512}})\)\])(, | -> |$)"
)


class _Group(NamedTuple):
    tensors: tuple[TensorInfo, ...]
    end: int


def is_complete(text: bytes) -> bool:
    """Whether the text of a `Name: ...` layer has come to its end: else a name broke the line."""
    if not text.startswith(b"Name: "):
        return True
    _, mark, metadata = text.rpartition(METADATA.encode())
    return bool(mark) and (not metadata.strip() or metadata.rstrip().endswith(b"]"))


def read_layer(text: str) -> Layer | None:
    """Read one layer of any generation, or return None if this is none.

    A layer whose fields do not follow the known sequence keeps its name and metadata, and has kind
    `unknown`: it is better to show it without a precision than to lose it.
    """
    text = text[:MAX_LAYER_CHARS].rstrip("\r\n")
    if text.startswith("Name: "):
        return _read_described(text)
    if match := OLD_LAYER.match(text):
        return _read_old(text, match.end(), match[1])
    return None


def _read_described(text: str) -> Layer | None:
    for match in islice(LAYER_TYPE.finditer(text), MAX_TRIES):
        if layer := _read_after_kind(text, match):
            return layer
    return _salvage(text) if ", LayerType: " in text else None


def _read_after_kind(text: str, match: re.Match[str]) -> Layer | None:
    inputs = _read_group(text, match.end())
    if inputs is None:
        return None
    constants = _read_named_group(text, inputs.end, "Constants") or _Group((), inputs.end)
    outputs = _read_named_group(text, constants.end, "Outputs")
    if outputs is None:
        return None
    attributes, _, metadata = text[outputs.end :].partition(METADATA)
    metadata = metadata.removeprefix(" ")
    if metadata.strip() and not metadata.startswith("["):
        return None
    name, kind = text[len("Name: ") : match.start()], match[1]
    values = {key: value.strip() for key, value in ATTRIBUTE.findall(attributes)}
    weights = WEIGHTS.search(attributes)
    tactic, origin = (values.get(key) or None for key in ("TacticName", "Origin"))
    stored = dtype_named(weights[1]) if weights else None
    macs = count_operands(kind, inputs.tensors, constants.tensors, outputs.tensors)
    tensors, nodes = (inputs.tensors, outputs.tensors, constants.tensors), nodes_of(name, metadata)
    return Layer(name, kind, *tensors, tactic, nodes, origin, stored, macs=macs)


def nodes_of(name: str, metadata: str) -> tuple[str, ...]:
    """Return the ONNX nodes a layer came from: by its metadata, or else by its fused name."""
    if metadata.strip():
        return nodes_in_metadata(metadata)
    return () if "_myl" in name else nodes_in_name(name)


def _read_named_group(text: str, start: int, word: str) -> _Group | None:
    opening = f", {word}: ["
    return _read_group(text, start + len(opening)) if text.startswith(opening, start) else None


def _read_group(text: str, start: int) -> _Group | None:
    """Read tensors from just behind `[` to behind the `]` that closes the group."""
    if text.startswith("]", start):
        return _Group((), start + 1)
    tensors, opening = list[TensorInfo](), " { Name: "
    while text.startswith(opening, start):
        start += len(opening)
        tail = TENSOR_TAIL.search(text, start)
        if tail is None:
            return None
        tensors.append(_tensor(text[start : tail.start()], tail))
        start = tail.end()
        if text.startswith("]", start):
            return _Group(tuple(tensors), start + 1)
        start += 1  # the comma
    return None


def _tensor(name: str, tail: re.Match[str]) -> TensorInfo:
    layout = tail[3] or ""
    dtype = dtype_named(tail[2]) if tail[2] else dtype_in_format(layout)
    return TensorInfo(name, dtype, _shape(tail[1]), layout)


def _shape(text: str) -> tuple[int, ...]:
    sizes = (size.split(":")[0] for size in text.split(","))
    return tuple(int(size) for size in sizes if re.fullmatch(r"-?\d{1,18}", size))


FORMAT_TYPE = re.compile(r"\b(?:U?INT(?:4|8|32|64)|FP(?:4|8|16|32)|BF16|HALF|FLOAT|BOOL)\b")


def dtype_in_format(layout: str) -> str:
    """Return the data type that a `Format/Datatype` description names in passing."""
    match = FORMAT_TYPE.search(layout[:300].upper())
    return dtype_named(match[0]) if match else UNKNOWN


def _salvage(text: str) -> Layer:
    """Keep what is certain of a layer that does not follow the sequence: name and metadata."""
    name = text[len("Name: ") :].partition(", LayerType: ")[0]
    metadata = text.rpartition(METADATA)[2].removeprefix(" ") if METADATA in text else ""
    return Layer(name=name, kind=UNKNOWN, nodes=nodes_in_metadata(metadata))


def _read_old(text: str, start: int, kind: str) -> Layer:
    tactic = OLD_TACTIC.search(text, start)
    if tactic is None:
        name = text[start:].rstrip()
        return Layer(name=name, kind=kind, nodes=nodes_in_name(name))
    name = text[start : tactic.start()]
    inputs, outputs = _old_sides(text[tactic.end() :])
    return Layer(name, kind, inputs, outputs, tactic=tactic[1], nodes=nodes_in_name(name))


def _old_sides(text: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    text = text.rstrip()
    if text in ("->", ""):
        return (), ()
    sides: list[list[TensorInfo]] = [[], []]
    side = start = 0
    if text.startswith(("-> ", " -> ")):
        side, start = 1, text.index("-> ") + 3
    for tail in OLD_TENSOR.finditer(text, start):
        sides[side].append(_old_tensor(text[start : tail.start()], tail))
        start = tail.end()
        side = 1 if tail[5] == " -> " else side
    return tuple(sides[0]), tuple(sides[1])


def _old_tensor(name: str, tail: re.Match[str]) -> TensorInfo:
    sizes = tail[2] if tail[1] else tail[4]
    widths = [size.partition(":")[2] for size in sizes.split(",")]
    wide = next(((axis, width) for axis, width in enumerate(widths) if width), None)
    layout = f"vectors of {wide[1]} along axis {wide[0]}" if wide else "row major"
    return TensorInfo(name, dtype_named(tail[1] or tail[3]), _shape(sizes), layout)


MAX_LAYERS, MAX_LISTING_BYTES, MAX_JOINED_LINES = 20_000, 1 << 24, 64
HEADINGS = ("Layers:", "Engine Layer Information:")


def begins_layer(raw: bytes, is_open: bool) -> bool:
    """Whether a line (its logger prefix stripped) begins a layer."""
    if raw.startswith(b"Name: "):
        return b", LayerType: " in raw or (is_open and b", IOMode: " not in raw)
    return raw.startswith(b"Layer(")


def ends_listing(message: str, prefixed: bool) -> bool:
    """Whether a listing is over with a message: a logger speaks again."""
    return prefixed or message.startswith(("I/O Tensors:", "Engine Metadata:"))


@dataclass
class Listing:
    """Collects the layers of the last listing in a log; they are read only when asked for.

    `is_kept` is False for a reader that wants events alone. `left_out` counts layers beyond what is
    kept.
    """

    is_kept: bool = True
    texts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    left_out: int = 0
    joined: int = 0

    def take(self, raw: bytes) -> None:
        """Take the first line of a layer; nothing at all is the heading of a new listing."""
        self.joined = 0
        if not (raw and self.is_kept):
            self.texts = [raw] if raw else []
            self.size_bytes = self.left_out = 0
        elif len(self.texts) < MAX_LAYERS and self.size_bytes < MAX_LISTING_BYTES:
            self.texts.append(raw)
            self.size_bytes += len(raw)
        else:
            self.left_out += 1

    def extend(self, raw: bytes) -> bool:
        """Take a line as the rest of the last layer; False if that one is complete."""
        if self.left_out or not self.texts or is_complete(self.texts[-1]):
            return False
        if self.joined >= MAX_JOINED_LINES or len(self.texts[-1]) > MAX_LAYER_CHARS:
            return False
        self.joined += 1
        self.size_bytes += len(raw)
        self.texts[-1] += b"\n" + raw
        return True

    def layers(self) -> Iterator[Layer]:
        """Read what was collected, one layer after another."""
        for raw in self.texts:
            if layer := read_layer(raw.decode("utf-8", "backslashreplace")):
                yield layer
