"""The time model beside published engines: its constants, what they miss, and its intervals.

    python -m benchmarks.times [--write]

benchmarks/engine_times has the facts: engines with a published GPU latency, and either their published
layers (layers.csv) or a well-known network (`benchmarks.engine_networks`). Sources that do not say
whether copies from and to the host are in their times are left out. The constants are fitted to all
engines, and judged on the engines of each GPU that is left out. With --write the constants in
trtcal/evidence/times.toml and the section in docs/benchmarks.md are replaced.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.engine_networks import KernelFacts, kernels_of
from trtcal.config import read_toml
from trtcal.evidence.gpus import Target
from trtcal.evidence.times import CONSTANTS, kernel_ms
from trtcal.stats import proportion

HERE = Path(__file__).parent
FACTS = HERE / "engine_times"
TOML = HERE.parent / "trtcal/evidence/times.toml"
PAGE = HERE.parent / "docs/benchmarks.md"
FITTED = (
    ("kernel", "floor_kilocycles"),
    ("rate_share", "tf32"),
    ("rate_share", "fp16"),
    ("rate_share", "int8"),
    ("sustained", "T4"),
)
JUDGED_ONLY = ("V100",)  # without tensor cores for INT8, its FP16 would count against INT8's share
TAILS = (2.5, 97.5)  # percent
FEW = 10  # engines of a GPU from which on its own figures are fitted
ERROR = 0.15  # relative error beyond which an engine counts less in the fit


@dataclass(frozen=True)
class MeasuredEngine:
    """A published engine: what it is, its latency in ms, its kernels and how often each is there."""

    name: str
    target: Target
    network: str
    precision: str
    batch: int
    latency_ms: float
    kernels: tuple[tuple[KernelFacts, int], ...]
    source: str

    @property
    def family(self) -> str:
        """The network without its depth and length."""
        return self.network.split("-")[0].split(" ")[0]

    def estimate(self, constants: Mapping[str, Any]) -> float:
        """Return what the model says, in ms."""
        return sum(count * self._kernel(kernel, constants) for kernel, count in self.kernels)

    def _kernel(self, kernel: KernelFacts, constants: Mapping[str, Any]) -> float:
        work = kernel.size_bytes, kernel.macs, kernel.precision, kernel.kind
        return kernel_ms(*work, self.target, constants) or 0.0


Engines = Sequence[MeasuredEngine]


@cache
def engines() -> tuple[MeasuredEngine, ...]:
    """Read all engines."""
    gpus = read_toml(FACTS / "gpus.toml")
    targets = {gpu: Target(**{"name": gpu, **table}) for gpu, table in gpus.items()}
    listed: dict[str, list[KernelFacts]] = defaultdict(list)
    for row in _rows("layers"):
        facts = KernelFacts(row["kind"], row["precision"], int(row["bytes"]), int(row["macs"]))
        listed[row["engine"]].append(facts)
    return tuple(_engine(row, targets[row["gpu"]], listed) for row in _rows("engines"))


def _rows(name: str) -> list[dict[str, str]]:
    with (FACTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _engine(
    row: Mapping[str, str], target: Target, listed: Mapping[str, Sequence[KernelFacts]]
) -> MeasuredEngine:
    network, precision, batch = row["network"], row["precision"], int(row["batch"])
    kernels = listed.get(row["engine"]) or kernels_of(network, precision, batch)
    counts = tuple(Counter(kernels).items())
    return MeasuredEngine(
        row["engine"], target, network, precision, batch, float(row["latency_ms"]), counts,
        row["source"],
    )  # fmt: skip


def with_values(
    values: Iterable[float], constants: Mapping[str, Any] = CONSTANTS
) -> dict[str, Any]:
    """Return the constants with other values of those that are fitted."""
    changed = {section: dict(table) for section, table in constants.items()}
    for (section, name), value in zip(FITTED, values, strict=True):
        changed[section][name] = float(value)
    return changed


def fit(chosen: Engines, given: Mapping[str, Any] = CONSTANTS) -> dict[str, Any]:
    """Fit the constants to engines, in log ratios; each GPU counts once, each of its networks alike.

    What is not fitted is as given; T4's own factor is 1 where there is no T4.
    """
    chosen = [engine for engine in chosen if engine.target.name not in JUDGED_ONLY]
    weights = _weights(chosen)
    measured = np.log([engine.latency_ms for engine in chosen])
    has_t4 = any(engine.target.name == "T4" for engine in chosen)

    def misses(logs: np.ndarray) -> np.ndarray:
        constants = with_values(np.exp([*logs[:-1], logs[-1] if has_t4 else 0.0]), given)
        estimates = np.log([engine.estimate(constants) for engine in chosen])
        return np.concatenate([weights * (estimates - measured), [0.0 if has_t4 else logs[-1]]])

    start = np.log([7.0, 0.6, 0.6, 0.6, 1.0])
    logs = least_squares(misses, start, loss="soft_l1", f_scale=ERROR, diff_step=1e-3).x
    return with_values(np.exp([*logs[:-1], logs[-1] if has_t4 else 0.0]), given)


MEMORY = ("bandwidth_share", "l2_share", "l2_speedup")
GRID = tuple(itertools.product((0.75, 0.85, 0.95), (0.125, 0.25, 0.5), (2.0, 4.0)))


def layer_error(constants: Mapping[str, Any]) -> float:
    """Return the root mean square log ratio of estimated and profiled layer times, per engine.

    A profile adds a constant to each layer: what its sum exceeds the latency by, over the layers.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    by_name = {engine.name: engine for engine in engines()}
    profiles: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in _rows("layers"):
        profiles[row["engine"]].append(row)
    for name, rows in profiles.items():
        timed = [(row, float(row["profiled_us"])) for row in rows if row["profiled_us"]]
        surplus = (sum(us for _, us in timed) - 1e3 * by_name[name].latency_ms) / len(timed)
        for row, us in timed:
            work = int(row["bytes"]), int(row["macs"]), row["precision"], row["kind"]
            ms = kernel_ms(*work, by_name[name].target, constants) or 0.0
            errors[name].append(math.log((1e3 * ms + surplus) / us) ** 2)
    return math.sqrt(np.mean([np.mean(own) for own in errors.values()]))


def memory_grid() -> list[str]:
    """Return lines: the error of layer times with other memory constants, the least first."""
    tried = []
    for values in GRID:
        kernel = {**CONSTANTS["kernel"], **dict(zip(MEMORY, values, strict=True))}
        given = {**CONSTANTS, "kernel": kernel}
        tried.append((layer_error(fit(engines(), given)), values))
    return [
        f"{error:.3f} {dict(zip(MEMORY, values, strict=True))}" for error, values in sorted(tried)
    ]


def _weights(chosen: Engines) -> np.ndarray:
    groups = Counter((engine.target.name, engine.family) for engine in chosen)
    families = Counter(gpu for gpu, _ in groups)
    sizes = [groups[e.target.name, e.family] * families[e.target.name] for e in chosen]
    return 1 / np.sqrt(sizes)


Group = Callable[[MeasuredEngine], str]


def gpu_of(engine: MeasuredEngine) -> str:
    """Return the GPU of an engine."""
    return engine.target.name


def ratios_without(group_of: Group, chosen: Engines) -> dict[str, float]:
    """Return measured over estimated of each engine, by constants that its group had no part in."""
    ratios = {}
    for group in dict.fromkeys(map(group_of, chosen)):
        constants = fit([engine for engine in chosen if group_of(engine) != group])
        for engine in chosen:
            if group_of(engine) == group:
                ratios[engine.name] = engine.latency_ms / engine.estimate(constants)
    return ratios


def pairs(chosen: Engines) -> list[tuple[MeasuredEngine, MeasuredEngine]]:
    """Return the variants of one network on one GPU of one source, the one of more bits first."""
    alike: dict[tuple[str, ...], list[MeasuredEngine]] = defaultdict(list)
    for engine in chosen:
        key = (engine.target.name, engine.network, str(engine.batch), engine.source)
        alike[key].append(engine)
    both = (pair for same in alike.values() for pair in itertools.combinations(same, 2))
    ordered = (sorted(pair, key=lambda e: -BITS[e.precision]) for pair in both)
    return [(a, b) for a, b in ordered if a.precision != b.precision]


BITS = {"fp32": 32, "fp16": 16, "int8": 8}


def speedup_ratios(chosen: Engines, ratios: Mapping[str, float]) -> dict[str, float]:
    """Return measured over estimated speed-ups, by the names of both variants."""
    return {
        f"{slow.precision} > {fast.name}": ratios[slow.name] / ratios[fast.name]
        for slow, fast in pairs(chosen)
    }


def interval(chosen: Engines, ratios: Mapping[str, float]) -> tuple[float, float]:
    """Return the factors between which 95 % of the engines (or pairs) of every GPU are.

    Of G GPUs as alike as drawn from one hat, 95 % of another one's are in it with probability
    (G - 1) / (G + 1).
    """
    values: dict[str, list[float]] = defaultdict(list)
    gpus = {engine.name: gpu_of(engine) for engine in chosen}
    for name, ratio in ratios.items():
        values[gpus[name.split(" > ")[-1]]].append(ratio)
    ends = [np.percentile(own, TAILS) for own in values.values()]
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


@dataclass(frozen=True)
class Judged:
    """Measured over estimated of engines and pairs that were left out, and the intervals for more.

    `inside` says of each engine or pair whether the interval that the other groups gave holds it.
    """

    totals: Mapping[str, float]
    speedups: Mapping[str, float]
    total: tuple[float, float]
    speedup: tuple[float, float]
    inside: Mapping[str, bool]


def judge(group_of: Group, chosen: Engines, judged: Engines) -> Judged:
    """Leave out each group in turn; of intervals only the engines of `judged` count."""
    inside: dict[str, bool] = {}
    ratios = ratios_without(group_of, chosen)
    totals = {engine.name: ratios[engine.name] for engine in judged}
    speedups = speedup_ratios(judged, ratios)
    for group in dict.fromkeys(map(group_of, judged)):
        rest = [engine for engine in chosen if group_of(engine) != group]
        ratios, own = ratios_without(group_of, rest), [e for e in judged if group_of(e) == group]
        others = [engine for engine in judged if group_of(engine) != group]
        known = {engine.name: ratios[engine.name] for engine in others}
        ends = interval(judged, known), interval(judged, speedup_ratios(others, ratios))
        mine = {e.name: totals[e.name] for e in own}, speedup_ratios(own, totals)
        for (low, high), figures in zip(ends, mine, strict=True):
            inside |= {name: low <= figure <= high for name, figure in figures.items()}
    return Judged(totals, speedups, interval(judged, totals), interval(judged, speedups), inside)


def network_of(engine: MeasuredEngine) -> str:
    """Return the network of an engine, for BERT without the sequence length."""
    return engine.network.rsplit(" ", 1)[0] if engine.family == "BERT" else engine.network


def well_known(chosen: Engines) -> list[MeasuredEngine]:
    """Return the engines of GPUs that have many."""
    counts = Counter(map(gpu_of, chosen))
    known = {gpu for gpu in counts if counts[gpu] >= FEW and gpu not in JUDGED_ONLY}
    return [engine for engine in chosen if gpu_of(engine) in known]


HEADER = """\
# The time model of times.py, written by `python -m benchmarks.times --write`. What it is fitted to, and
# its sources: benchmarks/engine_times. How well it does: docs/benchmarks.md.

# floor_kilocycles is fitted. The others are not: the benchmark prints how little layer times change
# with them (bandwidth_share 0.75 to 0.95, an eighth to a half of the L2 cache, 2 to 4 times the speed).
"""
COMMENTS = {
    "rate_share": "# fp32 is not fitted: no published engine computes float32 without TF32.\n",
    "sustained": "# What tensor cores sustain, relative to those of other GPUs (T4: 70 W).\n",
    "fitted": "# GPUs with many engines among those fitted: their own intervals.\n",
    "interval": "# Measured over estimated: 95 % of the left-out engines of each GPU.\n",
}


def as_toml(constants: Mapping[str, Any]) -> str:
    """Return the constants as their file."""
    parts = [HEADER]
    for section, table in constants.items():
        parts.append(COMMENTS.get(section, ""))
        for name, values in table.items() if section == "interval" else [("", table)]:
            parts.append(f"[{section}{'.' * bool(name)}{name}]\n")
            parts += [f"{key} = {_toml(value)}\n" for key, value in values.items()]
            parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:.3g}"


def rounded(constants: Mapping[str, Any], by_gpu: Judged, by_network: Judged) -> dict[str, Any]:
    """Return the constants with the intervals, rounded outwards."""
    known = sorted(set(map(gpu_of, well_known(engines()))))
    intervals = {
        kind: {"total": _outwards(judged.total), "speedup": _outwards(judged.speedup)}
        for kind, judged in (("fitted", by_network), ("other", by_gpu))
    }
    return {**constants, "fitted": {"gpus": known}, "interval": intervals}


def _outwards(ends: tuple[float, float]) -> list[float]:
    return [math.floor(ends[0] * 100) / 100, math.ceil(ends[1] * 100) / 100]


def table_by_gpu(judged: Judged) -> list[str]:
    """Return the Markdown table of left-out GPUs: estimated over measured."""
    lines = [
        "| GPU left out | engines | estimated / measured: least, median, most | within 0.75 to 1.35 "
        "| INT8 over FP16, estimated / measured (pairs) | interval holds |",
        "|---|---|---|---|---|---|",
    ]
    for gpu in dict.fromkeys(map(gpu_of, engines())):
        own = [engine for engine in engines() if gpu_of(engine) == gpu]
        shares = 1 / np.array([judged.totals[engine.name] for engine in own])
        names = [engine.name for engine in own]
        speed = [1 / v for n, v in int8_over_fp16(judged).items() if n.split(" > ")[1] in names]
        ranges = f"{min(speed):.2f} to {max(speed):.2f} ({len(speed)})" if speed else "-"
        inside = [judged.inside[name] for name in names]
        lines.append(
            f"| {gpu} | {len(own)} | {min(shares):.2f}, {np.median(shares):.2f}, "
            f"{max(shares):.2f} | {_within(shares)} | {ranges} | {sum(inside)} of {len(inside)} |"
        )
    return lines


def _within(shares: Sequence[float] | np.ndarray) -> int:
    return sum(0.75 <= share <= 1.35 for share in shares)


def int8_over_fp16(judged: Judged) -> dict[str, float]:
    """Return measured over estimated of the speed-ups of INT8 over FP16."""
    return {n: v for n, v in judged.speedups.items() if n.startswith("fp16 > ") and " int8 " in n}


def sentences(by_gpu: Judged, by_network: Judged) -> list[str]:
    """Return what the table comes to."""
    speed = {name: 1 / ratio for name, ratio in int8_over_fp16(by_gpu).items()}
    far = {name: ratio for name, ratio in speed.items() if not 0.8 <= ratio <= 1.25}
    return [
        f"With the GPU left out, the speed-up of INT8 over FP16 is within 25 % in "
        f"{len(speed) - len(far)} of {len(speed)} pairs"
        + (": the others are " + _list(far) + "." if far else "."),
        _coverage("GPU", by_gpu),
        _coverage("network", by_network),
    ]


def _list(far: Mapping[str, float]) -> str:
    return ", ".join(f"{name.split(' > ')[1]} ({ratio:.2f})" for name, ratio in far.items())


def _coverage(group: str, judged: Judged) -> str:
    parts, ranges = [], []
    for figures, ends, word in (
        (judged.totals, judged.total, "engines"),
        (judged.speedups, judged.speedup, "speed-ups"),
    ):
        inside = sum(judged.inside[name] for name in figures)
        share = proportion(inside, len(figures))
        low, high = _outwards(ends)
        parts.append(
            f"{inside} of {len(figures)} {word} ({100 * share.value:.0f} %, 95 % interval "
            f"{100 * share.low:.0f} to {100 * share.high:.0f} %)"
        )
        ranges.append(f"{low:g} to {high:g} times the estimate for {word}")
    good = _within([1 / ratio for ratio in judged.totals.values()])
    return (
        f"Each {group} left out: {good} of {len(judged.totals)} engines are estimated at 0.75 "
        f"to 1.35 of the measured latency; the interval of the others holds {' and '.join(parts)}. "
        f"The interval of all: {' and '.join(ranges)}."
    )


def list_engines(by_gpu: Judged, by_network: Judged) -> list[str]:
    """Return a line for each engine."""
    head = f"{'engine':58} {'measured':>9} {'GPU left out':>13} {'network left out':>17}  source"
    rows = [head]
    for engine in engines():
        without = [judged.totals.get(engine.name) for judged in (by_gpu, by_network)]
        cells = ["-" if ratio is None else f"{engine.latency_ms / ratio:.3f}" for ratio in without]
        rows.append(
            f"{engine.name:58} {engine.latency_ms:9.3f} {cells[0]:>13} {cells[1]:>17}  {engine.source}"
        )
    return rows


def list_speedups(by_gpu: Judged) -> list[str]:
    """Return a line for each pair of variants: measured, estimated without the GPU."""
    latencies = {engine.name: engine.latency_ms for engine in engines()}
    rows = [f"{'pair':66} {'measured':>9} {'estimated':>10}"]
    for slow, fast in pairs(engines()):
        name = f"{slow.precision} > {fast.name}"
        measured = latencies[slow.name] / latencies[fast.name]
        rows.append(f"{name:66} {measured:9.2f} {measured / by_gpu.speedups[name]:10.2f}")
    return rows


START, END = "<!-- times: written by python -m benchmarks.times --write -->", "<!-- times end -->"


def main() -> None:
    """Fit, judge, print, and with --write replace the constants and the section of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    by_gpu = judge(gpu_of, engines(), engines())
    by_network = judge(network_of, engines(), well_known(engines()))
    section = "\n".join([*table_by_gpu(by_gpu), "", *sentences(by_gpu, by_network)])
    text = as_toml(rounded(fit(engines()), by_gpu, by_network))
    lists = ["", "milliseconds:", *list_engines(by_gpu, by_network), "", "speed-ups:"]
    lists += [*list_speedups(by_gpu), "", "error of layer times (log ratio):", *memory_grid()]
    print("\n".join([text, section, *lists]))
    if write:
        TOML.write_text(text)
        before, rest = PAGE.read_text().split(START)
        PAGE.write_text(f"{before}{START}\n{section}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
