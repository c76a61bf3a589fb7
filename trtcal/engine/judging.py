"""Findings about an engine: copies that cost, Q/DQ that did not fuse, chains that only move data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trtcal.buildlog.layers import Layer
from trtcal.engine.chains import Chain, find_chains
from trtcal.engine.flow import follow
from trtcal.engine.naming import listed
from trtcal.engine.reformats import Reformat, Unfused, find_reformats, find_unfused
from trtcal.engine.shares import bytes_of, time_of
from trtcal.findings import Cost, Evidence, Finding, rank, sentence

# What takes less than this part of the time (or, without times, of the bytes) is not worth a line.
WORTH = 0.005
LONG = 3
MOST_EVIDENCE = 100

FIXES = {
    "border": "no layer is there to take it: feed or take INT8 at the network's border, or leave it",
    "constant": "quantize the input of what reads it too, or leave its weights in float",
    "other_reader": "put Q/DQ before every reader of the tensor, a residual Add's input too",
    "residual": "put Q/DQ on the residual input of the Add in front too",
    "float_reader": "put Q/DQ before every input of what reads it, and behind it if it has no weights",
    "float_writer": "put Q/DQ before what is in front too: without weights it needs both to be INT8",
    "unknown": "look at the layers around it: `trtcal layers show --json` lists them",
}


def examine(layers: Sequence[Layer]) -> tuple[Finding, ...]:
    """Return what is worth acting on in a list of layers."""
    flow = follow(layers)
    return judge(layers, find_reformats(flow), find_unfused(flow), find_chains(flow))


def judge(
    layers: Sequence[Layer],
    reformats: Iterable[Reformat],
    unfused: Iterable[Unfused],
    chains: Iterable[Chain],
) -> tuple[Finding, ...]:
    """Return what is worth acting on, what costs most first."""
    total_ms, total_bytes = time_of(layers), bytes_of(layers)
    left_over = {one.layer for one in unfused}
    found = [
        *(_reformat(one) for one in reformats if not one.is_free and one.layer not in left_over),
        *(_unfused(one) for one in unfused),
        *(_chain(one) for one in chains if len(one.layers) >= LONG or one.cuts),
    ]
    worth = (one for one in found if _is_worth(one.cost, total_ms, total_bytes))
    return rank(replace(one, why=sentence(one.why), fix=sentence(one.fix)) for one in worth)


def _is_worth(cost: Cost, total_ms: float | None, total_bytes: int) -> bool:
    if total_ms is not None and cost.time_ms is not None:
        return cost.time_ms >= WORTH * total_ms
    return (cost.moved_bytes or 0) >= WORTH * total_bytes > 0


def _reformat(one: Reformat) -> Finding:
    where = _between(one.before, one.after)
    return Finding(
        "silent_reformat",
        one.layer,
        f"a copy {where} changes {one.why}",
        "the builder put it in without a word, because its neighbours want different forms",
        "give its neighbours the same precision, or the tensor a channel count that is a multiple "
        "of 32 for INT8 and of 8 for FP16; at the network's border let the engine take or give "
        "the form that is there",
        (Evidence("layer", one.layer, f"origin {one.origin or 'not told'}"),),
        Cost(one.time_ms, one.moved_bytes),
    )


def _unfused(one: Unfused) -> Finding:
    return Finding(
        "unfused_qdq",
        one.layer,
        f"a quantize or dequantize step runs as a {one.form}",
        f"{one.reason}, so the whole tensor is read and written once more",
        FIXES[one.cause],
        (Evidence("layer", one.layer, one.form),),
        Cost(one.time_ms, one.moved_bytes),
    )


def _chain(one: Chain) -> Finding:
    cut = f"; {listed(one.cuts)} cut it in its middle" if one.cuts else ""
    return Finding(
        "memory_bound_chain",
        one.layers[0],
        f"{len(one.layers)} layers {_between(one.before, one.after)} only move data: {one.moved_bytes} "
        f"bytes where one kernel would move {one.stitched_bytes} (estimate){cut}",
        "each of them writes its result to memory for the next to read",
        "take Q/DQ out of its middle, so that the builder may fuse it"
        if one.cuts
        else "look for what keeps the builder from fusing it: other shapes, several readers, plug-ins",
        tuple(Evidence("layer", name) for name in one.layers[:MOST_EVIDENCE]),
        Cost(_saved_ms(one), one.saved_bytes),
    )


def _saved_ms(one: Chain) -> float | None:
    """Return the time of the bytes that one kernel would not move, if all bytes cost the same."""
    if one.time_ms is None or not one.moved_bytes or one.saved_bytes is None:
        return None
    return one.time_ms * one.saved_bytes / one.moved_bytes


def _between(before: Sequence[str], after: Sequence[str]) -> str:
    if before and after:
        return f"between {listed(before)} and {listed(after)}"
    if before:
        return f"behind {listed(before)}"
    return f"in front of {listed(after)}" if after else "at the network's border"
