"""What a build reads and sets of TensorRT, here and on a device, whose worker gets this module.

So it is Python 3.8 with the standard library, and with NumPy only where TensorRT gives arrays. Every
function gets the module `tensorrt` and asks it what it has. Of TensorRT's objects `network`, `layer`,
`tensor` bear these names here, because `tests/tensorrt` finds by them what is touched.
"""

from __future__ import annotations

import ctypes
import statistics
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from trtcal.errors import BackendError, InputError, some

NAMES_SHOWN = 5
TYPES = {"int8": "INT8", "fp16": "HALF", "fp32": "FLOAT"}
# Written out, so that the check of what TensorRT's versions have can read it.
VERBOSITIES = {"detailed": "DETAILED", "layer_names_only": "LAYER_NAMES_ONLY", "none": "NONE"}
PLUGIN_LAYERS = {"PLUGIN_V2": "IPluginV2Layer", "PLUGIN_V3": "IPluginV3Layer"}
FLOOR, LARGEST_AMAX = 2.0**-20, 127 * 2.0**120  # of `calibrators.range`

Say = Callable[[str, str], None]
"""Takes a severity's letter and a message."""


def logger_of(trt: Any, say: Say) -> Any:
    """Return a logger that hands on every message. It must outlive all other objects."""

    class Logger(trt.ILogger):  # type: ignore[misc]  # trt is imported at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Any, message: str) -> None:
            name = str(level).rpartition(".")[2]  # VERBOSE, INFO, ..., INTERNAL_ERROR
            say("E" if "ERROR" in name else name[:1], message)

    return Logger()


def layer_information(engine: Any, trt: Any) -> str:
    """Return the inspector's JSON; `AttributeError` if this TensorRT has no inspector."""
    inspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def usual_shapes(request: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the optimum of each dynamic input in the first profile."""
    first = (request.get("profiles") or [])[:1]
    return {name: shapes[1] for profile in first for name, shapes in profile.items()}


def profiler_of(trt: Any, runs: Sequence[list[tuple[str, float]]]) -> Any:
    """Return a profiler that adds each layer's name and milliseconds to the last of `runs`."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]  # trt is imported at run time
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, name: str, ms: float) -> None:
            runs[-1].append((name, ms))

    return Profiler()


def times_document(runs: Sequence[Sequence[tuple[str, float]]]) -> list[dict[str, Any]]:
    """Return the times of layers in the form of `trtexec --exportProfile`, in milliseconds.

    Each run lists the layers in the engine's order, in which a name may come twice.
    """
    total = sum(ms for run in runs for _, ms in run) or 1.0
    entries = [_entry([ms for _, ms in column], column[0][0], total) for column in zip(*runs)]
    return [{"count": len(runs)}, *entries]


def _entry(times: list[float], name: str, total: float) -> dict[str, Any]:
    return {
        "name": name,
        "timeMs": sum(times),
        "averageMs": statistics.mean(times),
        "medianMs": statistics.median(times),
        "percentage": 100 * sum(times) / total,
    }


def plugins_of(layers: Iterable[Any], trt: Any) -> list[str]:
    """Return name and version of every plug-in in the layers. Not run yet with a plug-in."""
    plugins = set()
    for layer in layers:
        kind = str(layer.type).rpartition(".")[2]
        if kind in PLUGIN_LAYERS:
            plugin_layer = layer
            plugin_layer.__class__ = getattr(trt, PLUGIN_LAYERS[kind])  # the bindings' own way
            plugins.add(_plugin(plugin_layer.plugin, trt))
    return sorted(plugins)


def _plugin(plugin: Any, trt: Any) -> str:
    if hasattr(plugin, "get_capability_interface"):
        core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        return f"{core.plugin_name} {core.plugin_version}"
    return f"{plugin.plugin_type} {plugin.plugin_version}"


def layers_of(network: Any) -> Iterator[Any]:
    """Yield a network's layers."""
    for number in range(network.num_layers):
        yield network.get_layer(number)


def float_tensors(trt: Any, network: Any) -> dict[str, Any]:
    """Return the tensors that INT8 can need a range for: inputs and layers' outputs, by name."""
    tensors = [network.get_input(number) for number in range(network.num_inputs)]
    for layer in layers_of(network):
        tensors += [layer.get_output(number) for number in range(layer.num_outputs)]
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    return {
        tensor.name: tensor
        for tensor in tensors
        if tensor is not None and tensor.dtype in floats and not tensor.is_shape_tensor
    }


MOVING = {"CAST", "IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"}
"""Layers whose output has the values of their input, by TensorRT's names."""
PARTS = {"GATHER", "SLICE", "TOPK"}
"""Layers whose first output has a part of these values."""


def with_parser_tensors(trt: Any, network: Any, ranges: Mapping[str, float]) -> dict[str, float]:
    """Return ranges with those of the tensors that TensorRT's parser made, where they follow.

    A constant has its largest magnitude. What is moved has the range that it has before or after,
    a part that of the whole. A product has that of its sum with a bias: both are one kernel.
    """
    after: list[tuple[str, str]] = []
    before: list[tuple[str, str]] = []
    known, products, floats = dict(ranges), set(), float_tensors(trt, network)
    for layer in layers_of(network):
        kind, tensor = str(layer.type).rpartition(".")[2], layer.get_output(0)
        source = _first_input(layer)
        if kind == "CONSTANT" and tensor.name in floats:
            constant = layer
            constant.__class__ = trt.IConstantLayer  # the bindings' own way
            known.setdefault(tensor.name, _peak(constant.weights))
        elif kind == "MATRIX_MULTIPLY":
            products.add(tensor.name)
        elif source:
            after += [(source, tensor.name)] if kind in MOVING | PARTS else []
            is_sum = kind == "ELEMENTWISE" and source in products
            before += [(tensor.name, source)] if kind in MOVING or is_sum else []
    for source, target in (*after, *reversed(before)):
        if source in known and target in floats:
            known.setdefault(target, known[source])
    return known


def _first_input(layer: Any) -> str | None:
    tensor = layer.get_input(0)
    return None if tensor is None else str(tensor.name)


def _peak(weights: Any) -> float:
    """Return the largest finite magnitude of weights, which TensorRT gives as a NumPy array."""
    np = import_module("numpy")
    peaks = np.abs(np.asarray(weights, np.float64))
    peak = np.max(peaks, initial=FLOOR, where=np.isfinite(peaks))
    return min(float(peak), LARGEST_AMAX)


def float32(value: float) -> float:
    """Return the nearest number that float32 has."""
    return ctypes.c_float(value).value


def single(amax: float) -> float:
    """Return the float32 amax with the scale of this one: `calibrators.range.single`."""
    scale, near = float32(amax / 127.0), float32(amax)
    return near if float32(near / 127.0) == scale else float32(scale * 127.0)


@dataclass(frozen=True)
class Ranged:
    """How ranges and a network's tensors agree; names in the network's order, then the ranges'.

    `given` have a range, `missing` are float tensors without one, `foreign` are ranges of no tensor,
    `rounded` those whose scale TensorRT gets one step of float32 off: it takes them as float32.
    """

    given: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    rounded: tuple[str, ...]


def matched(trt: Any, network: Any, ranges: Mapping[str, float]) -> Ranged:
    """Compare ranges (amaxes) with a network's tensors; `InputError` if none is of the network."""
    tensors = float_tensors(trt, network)
    ranged = tuple(name for name in tensors if name in ranges)
    if not ranged:
        what = f"none of the {len(ranges)} ranges belongs to a tensor of the network"
        raise InputError(what, "give the calibration of this model")
    missing = tuple(name for name in tensors if name not in ranges)
    foreign = tuple(name for name in ranges if name not in tensors)
    scales = {name: (single(ranges[name]) / 127.0, ranges[name] / 127.0) for name in ranged}
    rounded = tuple(n for n, (near, exact) in scales.items() if float32(near) != float32(exact))
    return Ranged(ranged, missing, foreign, rounded)


def set_ranges(trt: Any, network: Any, ranges: Mapping[str, float]) -> None:
    """Give every tensor its range, from -amax to amax; `BackendError` if TensorRT refuses one."""
    for name, tensor in float_tensors(trt, network).items():
        amax = single(ranges.get(name, 0.0))
        if amax and not tensor.set_dynamic_range(-amax, amax):
            raise BackendError(f"TensorRT refuses the range of tensor {name!r}, {amax:g}")


def set_layer_precisions(
    trt: Any, network: Any, precisions: Mapping[str, str], constraints: str
) -> tuple[str, ...]:
    """Set the precision of each layer named (int8, fp16, fp32); return names that are of no layer.

    `InputError` for an unnamed layer or an unknown precision, and under "obey" for a name of no
    layer: nothing is set then.
    """
    for name, precision in precisions.items():
        if not name or precision not in TYPES:
            what = f"layer {name!r} cannot be requested in {precision!r}"
            raise InputError(what, "check the plan")
    layers = [layer for layer in layers_of(network) if layer.name in precisions]
    there = {layer.name for layer in layers}
    absent = tuple(name for name in precisions if name not in there)
    if absent and constraints == "obey":
        what = f"{len(absent)} layers of the plan are not in TensorRT's network: {shown(absent)}"
        raise InputError(what, "remove them from the plan, or use --constraints prefer")
    for layer in layers:
        layer.precision = getattr(trt.DataType, TYPES[precisions[layer.name]])
    return absent


def shown(names: Iterable[str]) -> str:
    """Return the first few names, on one line, and how many more there are."""
    return some((name if name.isprintable() else ascii(name) for name in names), NAMES_SHOWN)


def report(ranged: Ranged, network: Any, request: Mapping[str, Any], say: Say) -> None:
    """Write to the log what has no range; `InputError` if obeying the plan needs one of them."""
    say("I", f"{len(ranged.given)} tensors have the given range")
    warn(say, ranged.missing, "float tensors have no range")
    warn(say, ranged.foreign, "ranges belong to no tensor of TensorRT's network")
    if request["route"] == "dynamic-ranges":
        warn(say, ranged.rounded, "ranges are not float32 values: their scales are rounded")
    precisions, missing = request["precisions"], set(ranged.missing)
    narrow = (layer for layer in layers_of(network) if precisions.get(layer.name) == "int8")
    lost = [layer.name for layer in narrow if _first_input(layer) in missing]
    warn(say, lost, "layers requested in INT8 have an input without range")
    if lost and request["constraints"] == "obey":
        what = f"{len(lost)} layers that must run in INT8 have an input without range"
        hint = "calibrate those inputs, or use --constraints prefer"
        raise InputError(f"{what}: {shown(lost)}", hint)


def warn(say: Say, names: Sequence[str], what: str) -> None:
    """Say of how many names something is true, and of which, if there are any."""
    if names:
        say("W", f"{len(names)} {what}: {shown(names)}")
