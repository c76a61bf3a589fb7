"""Findings about an engine: copies that cost, Q/DQ that did not fuse, chains that only move data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trtcal.evidence.findings import KINDS, Cost, Evidence, Finding, of_kind, rank, sentence
from trtcal.evidence.layers.flow import Chain, Flow, find_chains, follow, nearest_heavy
from trtcal.evidence.layers.layer import FLOATS, PREDICTED, Layer, TensorInfo, is_quantize_step
from trtcal.evidence.layers.listing import FORMAT_TYPE
from trtcal.evidence.layers.roofline import bytes_of, counted_precision, listed, short, time_of

NARROW = frozenset({"int8", "uint8", "fp8"})
WIDTHS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
WIDE = re.compile(r"^([\w-]+) wide channel vectorized row major", re.IGNORECASE)
MULTIPLE = re.compile(r"channel % (\d+) == 0")


@dataclass(frozen=True)
class Reformat:
    """A copy: `why` says what it changes, `between` the layers that it stands between.

    `origin` is TensorRT's own word (`QDQ`, `REFORMAT`), None where it gives none. `is_free` is one
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


def find_reformats(flow: Flow) -> tuple[Reformat, ...]:
    """Return every copy of an engine, in its order."""
    return tuple(_reformat_of(flow, i) for i, x in enumerate(flow.layers) if x.is_reformat)


def _reformat_of(flow: Flow, index: int) -> Reformat:
    layer = flow.layers[index]
    cost = layer.time_ms, layer.bytes_moved
    near = flow.names(flow.before(index)), flow.names(flow.after(index))
    return Reformat(layer.name, layer.origin, _change(layer), *cost, *near, layer.is_idle)


def _change(layer: Layer) -> str:
    if not layer.inputs or not layer.outputs:
        return "unknown"
    ends = layer.inputs[0], layer.outputs[0]
    changes = {"precision": [end.dtype for end in ends], "layout": list(map(layout_of, ends))}
    parts = [f"{what} {old} to {new}" for what, (old, new) in changes.items() if old != new]
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
    return " ".join(words.replace("format", "").split()) or "unknown"


def find_unfused(flow: Flow) -> tuple[Unfused, ...]:
    """Return every quantize or dequantize step that no other layer took in."""
    return tuple(_unfused(flow, i) for i, x in enumerate(flow.layers) if is_quantize_step(x))


def _unfused(flow: Flow, index: int) -> Unfused:
    layer = flow.layers[index]
    form = f"reformat of origin {layer.origin}" if layer.is_reformat else f"{layer.kind} layer"
    cause, reason = _border(flow, index) or _cause(flow, index)
    return Unfused(layer.name, form, cause, reason, layer.time_ms, layer.bytes_moved)


def _border(flow: Flow, index: int) -> tuple[str, str] | None:
    layer = flow.layers[index]
    if not layer.inputs:
        return "constant", "it quantizes constants in every inference"
    if not any(tensor.name in flow.writers for tensor in layer.inputs):
        return "border", "it is at an input of the network"
    if not flow.after(index):
        return "border", "it is at an output of the network"
    return None


def _cause(flow: Flow, index: int) -> tuple[str, str]:
    source, result = flow.layers[index].inputs[0], flow.layers[index].outputs[0]
    after = flow.layers[flow.after(index)[0]]
    if source.dtype in NARROW and result.dtype in FLOATS:
        return "float_reader", f"{short(after.name)} reads {result.dtype}"
    before = [flow.layers[other] for other in flow.before(index)]
    if not before or source.dtype not in FLOATS:
        return "unknown", "the layers around it do not show why"
    writes = f"{short(before[0].name)} writes {source.dtype}"
    others = [other for other in flow.readers.get(source.name, ()) if other != index]
    if others:
        other = short(flow.layers[others[0]].name)
        return "other_reader", f"{writes}, because {other} reads the same tensor unquantized"
    if adds_residual(before[0]) and (dtype := before[0].inputs[1].dtype) in FLOATS:
        return "residual", f"{writes}, because it adds a residual that it reads in {dtype}"
    return "float_writer", writes


def adds_residual(layer: Layer) -> bool:
    """Whether a convolution or product reads, beside its operands, a tensor like its output."""
    operands = bool(layer.is_heavy and layer.inputs[1:] and layer.outputs)
    return operands and layer.inputs[1].shape == layer.outputs[0].shape


# What takes less than this part of the time (or, without times, of the bytes) is not worth a line.
LEAST_SHARE = 0.005
LONG_CHAIN, MOST_EVIDENCE = 3, 100


@dataclass(frozen=True)
class LayerReport:
    """What a layer list shows; `findings` are worth acting on, what costs most first."""

    reformats: tuple[Reformat, ...]
    unfused: tuple[Unfused, ...]
    chains: tuple[Chain, ...]
    findings: tuple[Finding, ...]


def examine(layers: Sequence[Layer]) -> LayerReport:
    """Return the copies, left-over Q/DQ and chains of an engine, and what is worth acting on."""
    flow = follow(layers)
    reformats, unfused, chains = find_reformats(flow), find_unfused(flow), find_chains(flow)
    total_ms, total_bytes = time_of(layers), bytes_of(layers)
    left_over = {qdq.layer for qdq in unfused}
    left_over |= {layer.name for layer in layers if (layer.tactic or "").startswith(PREDICTED)}
    copies = (each for each in reformats if not each.is_free and each.layer not in left_over)
    sized = (chain for chain in chains if chain.saved_bytes is not None)
    long = (chain for chain in sized if len(chain.layers) >= LONG_CHAIN or chain.cuts)
    findings = [*_float_between_int8(flow), *map(_reformat, copies)]
    findings += [*map(_unfused_finding, unfused), *map(_chain, long)]
    worth = (finding for finding in findings if _is_worth(finding.cost, total_ms, total_bytes))
    ranked = rank(replace(f, why=sentence(f.why), fix=sentence(f.fix)) for f in worth)
    return LayerReport(reformats, unfused, chains, ranked)


def _is_worth(cost: Cost, total_ms: float | None, total_bytes: int) -> bool:
    if total_ms is not None and cost.time_ms is not None:
        return cost.time_ms >= LEAST_SHARE * total_ms
    return (cost.moved_bytes or 0) >= LEAST_SHARE * total_bytes > 0


def _float_between_int8(flow: Flow) -> Iterator[Finding]:
    """Yield one finding about all float kernels between INT8 convolutions and products, if any."""
    sides = [nearest_heavy(flow, backwards) for backwards in (True, False)]
    layers = [
        layer
        for layer, *near in zip(flow.layers, *sides, strict=True)
        if not layer.is_heavy and counted_precision(layer) in FLOATS
        if all(any(flow.layers[i].precision == "int8" for i in side) for side in near)
    ]
    if not layers:
        return
    moved, total = bytes_of(layers), bytes_of(flow.layers)
    kernels = f"{len(layers)} float kernel{'s' * (len(layers) > 1)}"
    share = f", {100 * moved / total:.0f} % of the engine" if total else ""
    layers.sort(key=lambda layer: (-(layer.time_ms or 0.0), -(layer.bytes_moved or 0)))
    what = f"{kernels} between INT8 layers: {moved / 1e6:.3g} MB moved{share}"
    evidence = (Evidence("layer", layer.name, layer.kind) for layer in layers[:MOST_EVIDENCE])
    cost = Cost(time_of(layers), moved)
    yield of_kind("float_between_int8", layers[0].name, what, evidence, cost=cost)


def _reformat(reformat: Reformat) -> Finding:
    what = f"a copy {_between(reformat.before, reformat.after)} changes {reformat.why}"
    needs = "because the layers around it need different formats"
    why = f"the builder inserted it without a message, {needs}"
    fix = KINDS["silent_reformat"].fixes["copy"]
    evidence = Evidence("layer", reformat.layer, f"origin {reformat.origin or 'unknown'}")
    cost = Cost(reformat.time_ms, reformat.moved_bytes)
    return Finding("silent_reformat", reformat.layer, what, why, fix, (evidence,), cost)


def _unfused_finding(qdq: Unfused) -> Finding:
    what = f"a quantize or dequantize step runs as a separate kernel ({qdq.form})"
    why = f"{qdq.reason}, so the kernel reads and writes the whole tensor once more"
    fix = KINDS["unfused_qdq"].fixes[qdq.cause]
    evidence, cost = Evidence("layer", qdq.layer, qdq.form), Cost(qdq.time_ms, qdq.moved_bytes)
    return Finding("unfused_qdq", qdq.layer, what, why, fix, (evidence,), cost)


def _chain(chain: Chain) -> Finding:
    cut = f"; {listed(chain.cuts)} in the middle divide it" if chain.cuts else ""
    what = (
        f"{len(chain.layers)} layers {_between(chain.before[:1], chain.after[:1])} only move data: "
        f"{chain.moved_bytes:,} bytes where one kernel would move {chain.stitched_bytes:,} "
        f"(estimate){cut}"
    )
    fix = KINDS["memory_bound_chain"].fixes["cut" if chain.cuts else "whole"]
    evidence = (Evidence("layer", name) for name in chain.layers[:MOST_EVIDENCE])
    cost = Cost(_saved_ms(chain), chain.saved_bytes)
    return of_kind("memory_bound_chain", chain.layers[0], what, evidence, fix, cost)


def _saved_ms(chain: Chain) -> float | None:
    """Return the time of the bytes that one kernel would not move, if all bytes cost the same."""
    if chain.time_ms is None or not chain.moved_bytes or chain.saved_bytes is None:
        return None
    return chain.time_ms * chain.saved_bytes / chain.moved_bytes


def _between(before: Sequence[str], after: Sequence[str]) -> str:
    if before and after:
        return f"between {listed(before)} and {listed(after)}"
    if before:
        return f"after {listed(before)}"
    return f"before {listed(after)}" if after else "at an input or output of the network"
