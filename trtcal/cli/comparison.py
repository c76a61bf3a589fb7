"""What `trtcal compare` prints beside the table of means: groups, samples, tensors, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtcal.cli.output import print_table, say

if TYPE_CHECKING:
    from trtcal.compare import Comparison
    from trtcal.compare.comparison import Row
    from trtcal.compare.groups import Breakdown
    from trtcal.compare.layerwise import LayerFigure, Layerwise
    from trtcal.compare.worst import Sample

GROUPS_SHOWN = 8
SAMPLES_SHOWN = 5
TENSORS_SHOWN = 30


def figure(value: float | None, form: str) -> str:
    """Return a figure for a table, a dash where there is none."""
    return "-" if value is None else format(value, form)


def show_details(comparison: Comparison) -> None:
    """Print what was asked beside the means, candidate by candidate; classes only if one got worse."""
    from trtcal.compare.evaluating import SLICES
    from trtcal.compare.groups import SUSPECT, WORSE

    for row in comparison.rows:
        _show_own(row)
    for row in comparison.rows[1:]:
        _show_simulation(row)
        for breakdown in row.breakdowns:
            if breakdown.by == SLICES or breakdown.ranked(WORSE) or breakdown.ranked(SUSPECT):
                _show_groups(row.name, breakdown)
        if row.layers is not None:
            _show_worst(row.name, row.worst)
            _show_layers(row.name, row.layers)
    _show_throughput(comparison)


def _show_own(row: Row) -> None:
    for one in row.own:
        low, high = one.interval
        drop = f", {one.drop:+.3g} lower (95 % interval {low:.3g} to {high:.3g})"
        say(f"{row.name}: {one.name} {one.candidate:.5g}{drop if one.drop else ''}")


def _show_simulation(row: Row) -> None:
    found = row.simulation
    if found is None:
        if row.quantization:
            say(f"{row.name}: not held against a simulation in float")
        return
    top1, same = figure(found.accuracy.top1, ".2f"), figure(found.same, ".2f")
    say(
        f"{row.name}: Q/DQ executed in float: top-1 {top1} %, agreement "
        f"{figure(found.accuracy.agreement, '.2f')} %, SQNR {figure(found.accuracy.sqnr_db, '.1f')} "
        f"dB; integer kernels give the same class to {same} % of samples"
    )


def _show_groups(name: str, found: Breakdown) -> None:
    shown = found.groups[:GROUPS_SHOWN]
    rows = [
        (
            one.name,
            one.samples,
            f"{one.reference:.4g}",
            f"{one.candidate:.4g}",
            f"{one.drop:+.3g}",
            f"{one.interval[0]:+.3g} to {one.interval[1]:+.3g}",
            figure(one.p, ".2g"),
            figure(one.adjusted_p, ".2g"),
        )
        for one in shown
    ]
    columns = (
        found.by,
        "samples",
        "reference",
        "candidate",
        "drop",
        "interval",
        "p",
        "adjusted p",
    )
    rest = found.rest + len(found.groups) - len(shown)
    more = f", {rest} more not shown" if rest else ""
    print_table(columns, rows, f"{name}: {found.figure} by {found.by}, the worst first{more}")


def _show_worst(name: str, samples: Sequence[Sample]) -> None:
    rows = [
        (one.name or f"sample {one.index}", one.index, f"{one.l2:.4g}", f"{one.cosine:.5f}",
         *("-" if n is None else n for n in (one.label, one.reference, one.candidate)))
        for one in samples[:SAMPLES_SHOWN]
    ]  # fmt: skip
    columns = ("sample", "index", "l2", "cosine", "label", "reference", "candidate")
    if rows:
        print_table(columns, rows, f"{name}: the samples of the largest error")


def _show_layers(name: str, found: Layerwise) -> None:
    """Show the worst tensors in the graph's order, and where the error enters and grows."""
    if found.unknown:
        say(f"{name}: {found.unknown} quantized tensors could not be found in both models")
    if not found.figures:
        return
    known = [one for one in found.figures if one.leaves_db is not None or one.own_db is not None]
    worst = sorted(known, key=_least)[:TENSORS_SHOWN]
    shown = [one for one in found.figures if one in worst]
    rows = [
        (one.tensor, one.nodes[0] if one.nodes else "", *(figure(value, ".1f") for value in (
            one.arrives_db, one.own_db, one.leaves_db, one.growth_db)), f"{one.clipped:.3g}")
        for one in shown
    ]  # fmt: skip
    columns = ("tensor", "read by", "arrives dB", "own dB", "leaves dB", "growth dB", "clipped %")
    rest = len(found.figures) - len(shown)
    more = f"; {rest} better ones not shown" if rest else ""
    print_table(columns, rows, f"{name}: SQNR of quantized tensors, in the graph's order{more}")
    entries = "; ".join(f"{_place(one)} ({one.own_db:.1f} dB)" for one in found.enters())
    growth = "; ".join(f"{one.tensor} (+{one.growth_db:.1f} dB)" for one in found.grows())
    say(f"{name}: error enters most at {entries}; it grows most before {growth or 'none'}")


def _place(figure: LayerFigure) -> str:
    named = figure.is_weight and figure.nodes
    return f"the weights of {figure.nodes[0]}" if named else figure.tensor


def _least(figure: LayerFigure) -> float:
    return min(one for one in (figure.leaves_db, figure.own_db) if one is not None)


def _show_throughput(comparison: Comparison) -> None:
    rows = [
        (row.name, one.batch, f"{one.p50_ms:.3f}", f"{one.samples_per_s:.0f}", f"{one.speedup:.2f}")
        for row in comparison.rows
        for one in row.latency.throughput
    ]
    if rows:
        columns = ("candidate", "batch", "p50 ms", "samples/s", "speed-up")
        print_table(columns, rows, "throughput")
