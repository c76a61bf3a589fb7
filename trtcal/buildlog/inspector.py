"""Reader of the engine inspector's JSON (`trtexec --exportLayerInfo`, `EngineInspector`).

TensorRT 8 to 10 write each tensor's `Format/Datatype` as one phrase; 11 writes `Format` and
`Datatype` apart. With little profiling verbosity a layer is only a string: its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtcal.buildlog.arithmetic import count_described, count_operands
from trtcal.buildlog.layers import UNKNOWN, Layer, TensorInfo, dtype_named
from trtcal.buildlog.listing import dtype_in_format, nodes_of
from trtcal.errors import InputError

MAX_RANK = 16
HINT = "export it again with the engine's detailed profiling verbosity"


def read_inspector(source: str | bytes | Mapping[str, Any]) -> tuple[Layer, ...]:
    """Read the layers of an inspector document; `InputError` if it is none."""
    document = source if isinstance(source, Mapping) else _parse(source)
    layers = document.get("Layers") if isinstance(document, Mapping) else None
    if not isinstance(layers, list):
        raise InputError("this JSON holds no list of layers under 'Layers'", HINT)
    return tuple(_read_layer(entry, index) for index, entry in enumerate(layers))


def _parse(source: str | bytes) -> Any:
    try:
        return json.loads(source, strict=False)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the layer information is not JSON: {error}", HINT) from error


def _read_layer(entry: Any, index: int) -> Layer:
    if isinstance(entry, str):
        return Layer(name=entry, kind=UNKNOWN, nodes=nodes_of(entry, ""))
    if not isinstance(entry, Mapping):
        raise InputError(f"layer {index} is neither an object nor a name", HINT)
    name, kind = _text(entry.get("Name")), _text(entry.get("LayerType")) or UNKNOWN
    told = _convolution(entry)
    groups = [_tensors(entry.get(group)) for group in ("Inputs", "Constants", "Outputs")]
    inputs, constants, outputs = groups
    return Layer(
        name=name,
        kind=kind,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        tactic=_text(entry.get("TacticName")) or None,
        nodes=nodes_of(name, _text(entry.get("Metadata"))),
        origin=_text(entry.get("Origin")) or None,
        weights=_stored(told.get("Weights"))[0],
        weight_bytes=_stored(told.get("Weights"))[1] + _stored(told.get("Bias"))[1],
        macs=_macs(told, kind, inputs, constants, outputs),
    )


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


def _macs(
    entry: Mapping[str, Any],
    kind: str,
    inputs: tuple[TensorInfo, ...],
    constants: tuple[TensorInfo, ...],
    outputs: tuple[TensorInfo, ...],
) -> int | None:
    is_pooling = _text(entry.get("ParameterType")).lower().startswith("pool")
    if inputs and outputs and "Kernel" in entry and not is_pooling:
        return count_described(entry, inputs[0].shape, outputs[0].shape)
    return count_operands(kind, inputs, constants, outputs)


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
    told = sizes[:MAX_RANK] if isinstance(sizes, list) else []
    shape = tuple(size for size in told if type(size) is int)
    return TensorInfo(_text(entry.get("Name")), dtype, shape, layout)
