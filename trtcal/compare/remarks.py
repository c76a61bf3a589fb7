"""What somebody should know who reads a comparison: drops that the mean hides, doubts, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtcal.compare.comparison import Comparison, Row
from trtcal.compare.groups import SUSPECT, WORSE, Breakdown, Group
from trtcal.compare.simulation import Simulation

NAMED = 3


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """Return one sentence for each thing that the table of means does not show."""
    accuracy = [f"{row.name}: {what}" for row in comparison.rows for what in _of_row(row)]
    return (*accuracy, *_of_latency(comparison.rows))


def _of_row(row: Row) -> Iterator[str]:
    if row.simulation is not None and row.simulation.differs:
        yield _simulated(row.simulation, row.accuracy.samples)
    for breakdown in row.breakdowns:
        yield from _dropped(breakdown)


def _of_latency(rows: Sequence[Row]) -> Iterator[str]:
    """Say each thing once for all that it is true of."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for remark in row.latency.remarks:
            found.setdefault(remark, []).append(row.name)
    for remark, names in found.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"latency of {', '.join(names[:NAMED])}{more}: {remark}"


def _simulated(found: Simulation, samples: int) -> str:
    unit = "dB" if found.measure == "SQNR" else "points"
    chance = ", which may be chance" if found.may_be_chance else ""
    interval = ""
    if found.gap_interval is not None:
        low, high = found.gap_interval
        interval = f" (95 % interval {low:+.2f} to {high:+.2f}, {samples:,} samples)"
    return (
        f"{found.measure} by integer kernels here is {found.gap:+.2f} {unit} off that of the same "
        f"Q/DQ executed in float{interval}{chance}"
    )


def _dropped(found: Breakdown) -> Iterator[str]:
    """Say where it got worse, and where it may have; the second only if nothing else is said."""
    worse, suspect = found.ranked(WORSE), found.ranked(SUSPECT)
    if worse:
        yield f"{found.figure} fell more than elsewhere in {_some(worse, found.unit)}"
    elif suspect:
        told = _some(suspect, found.unit)
        yield f"{found.figure} may have fallen more in {told}, or by chance: look at more samples"


def _some(groups: Sequence[Group], unit: str) -> str:
    told = [
        f"{one.name} by {one.drop:.3g} {unit}".rstrip()
        + f" of {one.samples:,} samples (p {_p(one)})"
        for one in groups[:NAMED]
    ]
    more = len(groups) - NAMED
    return "; ".join([*told, f"{more} more"] if more > 0 else told)


def _p(group: Group) -> str:
    p = group.adjusted_p if group.rank == WORSE else group.p
    return f"{p:.2g}"
