"""docs/accuracy.md from the rows of `accuracy_table`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.accuracy_networks import ROOT, SAMPLES
from benchmarks.accuracy_rows import DEFAULT, IMPROVED, OURS, PEERS, SINGLES, Row

PAGE = ROOT / "docs" / "accuracy.md"
NEAR_DB = 0.3
"""How far below the best single method the default may be, in dB."""
NOTHING = "-"

TEMPLATE = ROOT / "benchmarks" / "accuracy.md"


@dataclass(frozen=True)
class Results:
    """The rows of one network by method."""

    name: str
    rows: dict[str, Row]

    @cached_property
    def source(self) -> str:
        """Where the network comes from."""
        return next(iter(self.rows.values())).source

    def worst(self, method: str) -> float | None:
        """Return the dB of the worst output by a method, None if it was not measured or failed."""
        row = self.rows.get(method)
        return worst(row) if row and not row.failed else None

    def best_of(self, methods: Iterable[str]) -> str:
        """Return the method with the best worst output, "" if none was measured."""
        known = [method for method in methods if self.worst(method) is not None]
        return max(known, key=lambda method: self.worst(method) or -math.inf, default="")

    @cached_property
    def single(self) -> str:
        """The best single method."""
        return self.best_of(SINGLES)

    @cached_property
    def peer(self) -> str:
        """The best peer whose file is legal."""
        return self.best_of(name for name in PEERS if name in self.rows and self.is_legal(name))

    @cached_property
    def has_all_peers(self) -> bool:
        """Whether all peers were measured: of the settings of NNCF, a network takes all but one."""
        return sum(name in self.rows for name in PEERS) >= len(PEERS) - 1

    def is_legal(self, method: str) -> bool:
        """Tell whether TensorRT takes what a method made."""
        return not self.rows[method].refusal

    def lead(self, method: str, other: str) -> float | None:
        """Return by how many dB a method is better than another, None if one is missing."""
        ends = self.worst(method), self.worst(other)
        return None if None in ends else ends[0] - ends[1]  # type: ignore[operator]


def write_page(rows: Sequence[Row]) -> None:
    """Write docs/accuracy.md."""
    PAGE.write_text(page(rows))


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    grouped: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in sorted(rows, key=_place):
        grouped[row.network][row.method] = row
    results = [Results(name, each) for name, each in grouped.items()]
    return TEMPLATE.read_text().format(
        networks=len(results),
        rows=len(rows),
        samples=SAMPLES,
        tools=", ".join(sorted({row.tool for row in rows})),
        counts=_counts(results),
        summary=_summary(results),
        worst=_behind(results),
        metrics=_metrics(results),
        costs=_costs(rows),
        rows_table=_all(results),
    )


def _place(row: Row) -> tuple[bool, bool, str, int]:
    """Return where a row is on the page: networks of packages come first, made ones last."""
    is_made = row.source == "random weights"
    return is_made, row.source == "not shipped", row.network, [*OURS, *PEERS].index(row.method)


def worst(row: Row) -> float:
    """Return the dB of the worst output, minus infinity if one is not finite."""
    return min((-math.inf if value is None else value for value in row.db), default=-math.inf)


def _counts(results: Sequence[Results]) -> str:
    pairs: list[tuple[str, str, Callable[[Results], str], float]] = [
        (f"within {NEAR_DB} dB of the best single method or above", DEFAULT, _single, -NEAR_DB),
        ("ahead of every legal peer", DEFAULT, _peer, 0.0),
        *(("ahead of every legal peer", method, _peer, 0.0) for method in IMPROVED),
    ]
    lines = [f"- {_count(results, *pair)}" for pair in pairs]
    complete = sum(each.has_all_peers for each in results)
    lines.append(f"- All peers were measured on {complete} of {len(results)} networks.")
    return "\n".join(line for line in lines if line != f"- {NOTHING}")


def _single(results: Results) -> str:
    return results.single


def _peer(results: Results) -> str:
    return results.peer if results.has_all_peers else ""


def _count(
    results: Sequence[Results],
    words: str,
    method: str,
    other: Callable[[Results], str],
    least: float,
) -> str:
    leads = [each.lead(method, other(each)) for each in results if other(each)]
    known = [lead for lead in leads if lead is not None]
    if not known:
        return NOTHING
    count = sum(lead >= least for lead in known)
    middle = statistics.median(known)
    return (
        f"{_label(method)}: {words} on {count} of {len(known)} networks (median {middle:+.1f} dB)."
    )


def _label(method: str) -> str:
    if method == DEFAULT:
        return f"`{DEFAULT}`"
    return f"`--improve {method}`" if method in IMPROVED else method


def _summary(results: Sequence[Results]) -> str:
    head = ("network", "from", "best single method", DEFAULT, *IMPROVED, "best legal peer")
    return _table(head, [_summary_line(each) for each in results])


def _summary_line(results: Results) -> list[str]:
    methods = [results.single, DEFAULT, *IMPROVED, results.peer]
    values = [results.worst(method) for method in methods]
    top = max((value for value in values if value is not None), default=None)
    cells = [_bold(_db(value), value is not None and value == top) for value in values]
    names = [f" ({method})" if method else "" for method in (results.single, results.peer)]
    cells[0], cells[-1] = cells[0] + names[0], cells[-1] + names[1]
    return [results.name, results.source, *cells]


def _behind(results: Sequence[Results]) -> str:
    """Return the networks on which a legal peer, or a single method, leads the default."""
    lines = []
    for each in results:
        for words, other, least in (("peer", each.peer, 0.0), ("single", each.single, NEAR_DB)):
            lead = each.lead(DEFAULT, other)
            if lead is not None and lead < -least:
                text = f"{each.name}: {other} ({words}) leads `{DEFAULT}` by {-lead:.1f} dB"
                lines.append((lead, text + _closed(each, other)))
    if not lines:
        return ""
    items = "\n".join(f"- {text}." for _, text in sorted(lines))
    return f"The lines on which `{DEFAULT}` is behind, the worst first:\n\n{items}\n\n"


def _closed(results: Results, other: str) -> str:
    """Return which effort of --improve is ahead of it."""
    ahead = [method for method in IMPROVED if (results.lead(method, other) or -1.0) >= 0.0]
    return f"; {_label(ahead[0])} is ahead of it" if ahead else ""


def _metrics(results: Sequence[Results]) -> str:
    known = [each for each in results if any(r.metric is not None for r in each.rows.values())]
    methods = [m for m in (*OURS, *PEERS) if any(m in each.rows for each in known)]
    lines = []
    for each in known:
        measured = next(r for r in each.rows.values() if r.float_metric is not None)
        cells = [_percent(each.rows[m].metric) if m in each.rows else NOTHING for m in methods]
        lines.append([each.name, _percent(measured.float_metric), *cells])
    return _table(("network", "float", *methods), lines)


def _costs(rows: Sequence[Row]) -> str:
    lines = []
    for method in (*OURS, *PEERS):
        known = [row for row in rows if row.method == method and row.cpu_s is not None]
        failed = sum(bool(row.failed) for row in rows if row.method == method)
        if known:
            cpu = statistics.median(row.cpu_s or 0.0 for row in known)
            peak = statistics.median(row.peak_mb or 0.0 for row in known)
            lines.append([method, f"{len(known)}", f"{cpu:.1f}", f"{peak:.0f}", f"{failed}"])
    return _table(("method", "networks", "CPU s", "MB", "failed"), lines)


def _all(results: Sequence[Results]) -> str:
    parts = []
    head = ("method", "worst", "mean", "metric %", "CPU s", "MB", "note")
    for each in results:
        lines = [_line(row) for row in each.rows.values()]
        parts.append(f"### {each.name}\n\n{_table(head, lines)}\n")
    return "\n".join(parts)


def _line(row: Row) -> list[str]:
    note = f"failed: {_plain(row.failed)}" if row.failed else ""
    note = note or (f"not legal: {row.refusal}" if row.refusal else "")
    known = [value for value in row.db if value is not None]
    mean = sum(known) / len(known) if known and len(known) == len(row.db) else None
    lowest = worst(row) if row.db else None
    cost = [NOTHING if v is None else f"{v:.1f}" for v in (row.cpu_s, row.peak_mb)]
    return [row.method, _db(lowest), _db(mean), _percent(row.metric), *cost, note]


def _plain(text: str) -> str:
    """Return a message of a tool for a cell: without signs of Markdown, of one length."""
    kept = "".join(sign if sign.isalnum() or sign in " .,:;()[]=/'-" else " " for sign in text)
    return " ".join(kept.split())[:100]


def _db(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.1f}" if math.isfinite(value) else "not finite"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
