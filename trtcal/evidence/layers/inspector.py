"""Reader of the engine inspector's JSON (`trtexec --exportLayerInfo`, `EngineInspector`).

TensorRT 8 to 10 write each tensor's `Format/Datatype` as one phrase; 11 writes `Format` and
`Datatype` separately. With little profiling verbosity a layer is only a string: its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError
from trtcal.evidence.layers.layer import UNKNOWN, Layer, TensorInfo, dtype_named
from trtcal.evidence.layers.listing import dtype_in_format, nodes_of
from trtcal.evidence.layers.roofline import count_described, count_operands
from trtcal.evidence.log.recognition import Event

MAX_RANK = 16
VERBOSITY_HINT = "build the engine with detailed profiling verbosity and export the layers again"


def read_inspector(source: str | bytes | Mapping[str, Any]) -> tuple[Layer, ...]:
    """Read the layers of an inspector document; `InputError` if it is none."""
    document = source if isinstance(source, Mapping) else _parse(source)
    layers = document.get("Layers") if isinstance(document, Mapping) else None
    if not isinstance(layers, list):
        raise InputError("this JSON has no list of layers under 'Layers'", VERBOSITY_HINT)
    return tuple(_read_layer(entry, index) for index, entry in enumerate(layers))


def _parse(source: str | bytes) -> Any:
    try:
        return parse_json(source, strict=False)
    except ValueError as error:
        raise InputError(f"the layer information is not JSON: {error}", VERBOSITY_HINT) from error


def _read_layer(entry: Any, index: int) -> Layer:
    if isinstance(entry, str):
        return Layer(name=entry, kind=UNKNOWN, nodes=nodes_of(entry, ""))
    if not isinstance(entry, Mapping):
        raise InputError(f"layer {index} is neither an object nor a name", VERBOSITY_HINT)
    name, kind = _text(entry.get("Name")), _text(entry.get("LayerType")) or UNKNOWN
    parameters, groups = _convolution(entry), ("Inputs", "Constants", "Outputs")
    inputs, constants, outputs = (_tensors(entry.get(group)) for group in groups)
    tactic, origin = (_text(entry.get(word)) or None for word in ("TacticName", "Origin"))
    nodes = nodes_of(name, _text(entry.get("Metadata")))
    weights, weight_bytes = _stored(parameters.get("Weights"))
    stored = weights, weight_bytes + _stored(parameters.get("Bias"))[1]
    is_pooling = _text(parameters.get("ParameterType")).lower().startswith("pool")
    if inputs and outputs and "Kernel" in parameters and not is_pooling:
        macs = count_described(parameters, inputs[0].shape, outputs[0].shape)
    else:
        macs = count_operands(kind, inputs, constants, outputs)
    return Layer(name, kind, inputs, outputs, constants, tactic, nodes, origin, *stored, macs)


def _convolution(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a convolution also where it is fused with what follows."""
    if "ConvKernel" not in entry:
        return entry
    return {key.removeprefix("Conv"): value for key, value in entry.items()}


def _stored(parameters: Any) -> tuple[str | None, int]:
    """Return the data type and the bytes of `{"Type": "Int8", "Count": 9408}`."""
    if not isinstance(parameters, Mapping):
        return None, 0
    dtype, count = dtype_named(_text(parameters.get("Type"))), parameters.get("Count")
    stored = TensorInfo("", dtype, (count,) if type(count) is int else (0,))
    return dtype, stored.size_bytes or 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tensors(entries: Any) -> tuple[TensorInfo, ...]:
    if not isinstance(entries, list):
        return ()
    return tuple(_tensor(entry) for entry in entries if isinstance(entry, Mapping))


def _tensor(entry: Mapping[str, Any]) -> TensorInfo:
    layout = _text(entry.get("Format/Datatype")) or _text(entry.get("Format"))
    datatype = _text(entry.get("Datatype"))
    dtype = dtype_named(datatype) if datatype else dtype_in_format(layout)
    sizes = entry.get("Dimensions")
    dims = sizes[:MAX_RANK] if isinstance(sizes, list) else []
    shape = tuple(size for size in dims if type(size) is int)
    return TensorInfo(_text(entry.get("Name")), dtype, shape, layout)


def with_types(layers: Sequence[Layer], listed: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers with the tensor types that the builder's list has and the inspector lacks.

    TensorRT 8.6 writes "N/A due to dynamic shapes" for every tensor of a network that has any.
    """
    by_name = {layer.name: layer for layer in listed}
    return tuple(_with_types(layer, by_name.get(layer.name)) for layer in layers)


def _with_types(layer: Layer, listed: Layer | None) -> Layer:
    if listed is None:
        return layer
    types = {tensor.name: tensor for tensor in (*listed.inputs, *listed.outputs)}

    def typed(tensor: TensorInfo) -> TensorInfo:
        known = types.get(tensor.name, tensor) if tensor.dtype == UNKNOWN else tensor
        return replace(tensor, dtype=known.dtype, format=known.format)

    inputs, outputs = (tuple(map(typed, side)) for side in (layer.inputs, layer.outputs))
    return replace(layer, inputs=inputs, outputs=outputs)


MAX_ENTRIES, MAX_MS = 1_000_000, 1e12
TIMES_HINT = "give the file that `trtexec --exportProfile` or `trtcal build --layer-times` wrote"

SPACE = r"\s{0,64}"
FIELD = rf'{SPACE},{SPACE}"(\w{{1,32}})"{SPACE}:{SPACE}([-+.\w]{{1,40}})'
OPENING = re.compile(rf'\{{{SPACE}"name"{SPACE}:{SPACE}"')
CLOSING = re.compile(
    rf'"((?:{FIELD}){{1,8}}){SPACE}\}}(?={SPACE}(?:,{SPACE}\{{{SPACE}"name"{SPACE}:|\]|$))'
)
FIELDS = re.compile(FIELD)
COUNT = re.compile(rf'\{{{SPACE}"count"{SPACE}:{SPACE}(\d{{1,12}}){SPACE}\}}')


@dataclass(frozen=True)
class LayerTime:
    """One entry of a profile, in milliseconds; `name` is as it stands between the quotes.

    `average_ms` is the mean over the runs: means can be added up, medians can't.
    """

    name: str
    average_ms: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """What the name may mean: as written, or, where that is JSON, as JSON reads it."""
        try:
            return self.name, str(json.loads(f'"{self.name}"', strict=False))
        except ValueError:
            return (self.name,)


@dataclass(frozen=True)
class Profile:
    """The times of an engine's layers, in its order."""

    times: tuple[LayerTime, ...]

    @property
    def total_ms(self) -> float:
        """The sum of what was measured of one run."""
        return math.fsum(time.average_ms or 0.0 for time in self.times)


@dataclass(frozen=True)
class Timed:
    """Layers with their times, and what could not be joined on either side."""

    layers: tuple[Layer, ...]
    without_time: tuple[str, ...] = ()
    without_layer: tuple[LayerTime, ...] = ()


def read_profile(source: str | bytes) -> Profile:
    """Read a profile; `InputError` if it holds no layer's time."""
    text = source if isinstance(source, str) else source.decode("utf-8", "backslashreplace")
    count = COUNT.search(text[:1000])
    times = tuple(_entries(text, int(count[1]) if count else None))
    if not times:
        raise InputError("this profile has no layer with a time", TIMES_HINT)
    return Profile(times)


def _entries(text: str, runs: int | None) -> list[LayerTime]:
    """Cut the text behind every closing sequence; what stands before it begins with an opening."""
    entries: list[LayerTime] = []
    start = 0
    for closing in CLOSING.finditer(text):
        opening = OPENING.search(text, start, closing.start() + 1)
        if opening and opening.end() <= closing.start() and len(entries) < MAX_ENTRIES:
            name = text[opening.end() : closing.start()]
            entries.append(_entry(name, dict(FIELDS.findall(closing[1])), runs))
        start = closing.end()
    return entries


def _entry(name: str, fields: dict[str, str], runs: int | None) -> LayerTime:
    numbers = {key: _number(value) for key, value in fields.items()}
    average, total = numbers.get("averageMs"), numbers.get("timeMs")
    if average is None and total is not None and runs:
        average = total / runs
    return LayerTime(name, average)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_MS else None


def profile_in_log(events: Iterable[Event]) -> Profile | None:
    """Return the table of layer times that a log of `trtexec --dumpProfile` ends with, or None."""
    rows = [event for event in events if event.fields.get("rule") == "time_layer"]
    named = ((row.subject, row.fields.get("average_ms")) for row in rows)
    times = tuple(LayerTime(name, _number(str(ms))) for name, ms in named if name is not None)
    return Profile(times) if times else None


def join_times(layers: Sequence[Layer], profile: Profile) -> Timed:
    """Give each layer its time: by name, and among equal names by order."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for index, time in enumerate(profile.times):
        for name in dict.fromkeys(time.names):
            waiting[name].append(index)
    taken: set[int] = set()
    timed = tuple(_timed(layer, waiting[layer.name], profile, taken) for layer in layers)
    without_time = tuple(layer.name for layer in timed if layer.time_ms is None)
    left = tuple(time for index, time in enumerate(profile.times) if index not in taken)
    return Timed(timed, without_time, left)


def _timed(layer: Layer, waiting: deque[int], profile: Profile, taken: set[int]) -> Layer:
    while waiting:
        index = waiting.popleft()
        if index not in taken:
            taken.add(index)
            return replace(layer, time_ms=profile.times[index].average_ms)
    return layer
