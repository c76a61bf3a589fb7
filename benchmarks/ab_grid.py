"""How often a verdict ships what it must not: a simulation over a grid of cases.

    python -m benchmarks.ab_errors --grid 2000

In every cell the truth lies on the limit, so that SHIP is wrong: false SHIP must be at most 5 % (its
95 % upper bound at most 6 %). Power is how often SHIP comes where nothing is lost, beside that of the
adjusted Wald interval (Agresti and Min, 2005). Coverage is of the 95 % interval of the difference.
The decisions are the product's: `InterimAnalyses` for A/B tests, `judge_variants` for the best of k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from trtcal.evaluate.ab import ANALYSES, InterimAnalyses
from trtcal.evaluate.ab_rule import rule_for
from trtcal.evaluate.accuracy import Accuracy
from trtcal.evaluate.comparison import Comparison, Row
from trtcal.evaluate.latency import Latency
from trtcal.evaluate.tasks import TaskRecord
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.limits import HOLDS, INCONCLUSIVE, overall, parse_limits
from trtcal.stats import Values, paired_difference, proportion

POINTS = {20: 20.0, 50: 10.0, 200: 3.0, 1000: 1.0}
"""Samples -> the limit on points lost, so that each number of samples can decide."""
COSINE = {20: 0.3, 50: 0.12, 200: 0.03, 1000: 0.008}
ACCURACIES = (0.5, 0.9, 0.99)
VARIANTS = (1, 3, 10)
Drawn = tuple[Values, Values]


@dataclass(frozen=True)
class Case:
    """One way to draw data: `draw` takes a generator and a true loss; `limit` is what may be lost."""

    name: str
    metric: str
    samples: int
    limit: float
    draw: Callable[[np.random.Generator, float], Drawn]


@dataclass(frozen=True)
class Options:
    """How often each cell is simulated, and from which seed."""

    repetitions: int
    seed: int


def answers(samples: int, accuracy: float, limit: float) -> Callable[..., Drawn]:
    """Return a sampler of right and wrong answers of both, of which B loses a share more."""
    won = min(0.3 * limit, (1 - accuracy) / 2)

    def draw(rng: np.random.Generator, loss: float) -> Drawn:
        lost = min(loss + won, accuracy)
        chance = rng.random(samples)
        before = (chance < accuracy).astype(float)
        after = before.copy()
        after[chance < lost] = 0.0
        after[chance > 1 - won] = 1.0
        return before, after

    return draw


def cosines(samples: int, is_rare: bool) -> Callable[..., Drawn]:
    """Return a sampler of cosines: noise of all samples, or large losses of a few."""

    def draw(rng: np.random.Generator, loss: float) -> Drawn:
        if is_rare:
            losses = 0.8 * (rng.random(samples) < loss / 0.8)
        else:
            losses = rng.gamma(0.5, 1.0, samples) * 2 * loss
        return np.ones(samples), 1.0 - losses

    return draw


def cases() -> list[Case]:
    """Return every way to draw data."""
    found = [
        Case(f"top1 {accuracy:g}", "top1", n, limit, answers(n, accuracy, limit / 100))
        for n, limit in POINTS.items()
        for accuracy in ACCURACIES
    ]
    for n, limit in COSINE.items():
        for name, is_rare in (("noise", False), ("rare", True)):
            found.append(Case(f"cosine {name}", "cosine", n, limit, cosines(n, is_rare)))
    return found


def ships(case: Case, drawn: Drawn, sequential: bool, has_slices: bool) -> tuple[bool, bool]:
    """Return whether an A/B test ships B, and whether its interval holds the limit."""
    limits = [f"{case.metric} >= -{case.limit:g}"]
    if has_slices:
        limits.append(f"{case.metric}@slices >= -{case.limit:g}")
    rule = rule_for(parse_limits(limits), None, True)
    slices = {name: np.arange(case.samples) % 2 == i for i, name in enumerate("ab")}
    count = ANALYSES if sequential else 1
    analyses = InterimAnalyses(rule, case.samples, count, slices if has_slices else None)
    for seen in (case.samples * (i + 1) // count for i in range(count)):
        part = {case.metric: (drawn[0][:seen], drawn[1][:seen])}
        if analyses.judge(seen, part) != INCONCLUSIVE:
            break
    verdict = analyses.verdict
    if verdict is None:
        raise AssertionError("there are analyses")
    difference = verdict.answers[0].difference
    return verdict.is_good, difference.low <= -case.limit <= difference.high


def _counts(drawn: Drawn, count: int, has_slices: bool) -> tuple[int, ...]:
    """Return what a verdict on right and wrong answers rests on: discordant pairs at each analysis."""
    differences, size = drawn[0] - drawn[1], len(drawn[0])
    parts = [differences[: size * (i + 1) // count] for i in range(count)]
    if has_slices:
        parts = [part[i::2] for part in parts for i in (0, 1)]
    return tuple(int((sign * part > 0).sum()) for part in parts for sign in (1, -1))


def wald_ships(case: Case, drawn: Drawn) -> bool:
    """Return whether the interval that was used before ships B."""
    differences = drawn[0] - drawn[1]
    if case.metric != "top1":
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return bool(
            differences.mean() + stats.t.isf(0.025, len(differences) - 1) * error <= case.limit
        )
    lost, won, count = (differences > 0).sum(), (differences < 0).sum(), len(differences) + 2.0
    variance = max(lost + won + 1.0 - (lost - won) ** 2 / count, 0.0)
    high = (lost - won) / count + stats.norm.isf(0.025) * math.sqrt(variance) / count
    return bool(100 * high <= case.limit)


TIMING = Latency(32, 60, 1.0, 1.2, 1.5, (0.9, 1.1), 2.0, (1.9, 2.1))


TASK = TaskRecord("classification", False, {"y": "classes"})


def best_ships(case: Case, drawn: list[Drawn]) -> bool:
    """Return whether a report ships the best of several variants."""
    rows = [_row("fp32", drawn[0][0], drawn[0][0])]
    rows += [_row(f"v{i}", *both) for i, both in enumerate(drawn)]
    limits = parse_limits([f"top1 >= -{case.limit:g}"])
    compared = Comparison("", "", case.samples, 32, TASK, limits, tuple(rows))
    return any(overall(judged) == HOLDS for judged in judge_variants(compared).values())


def _row(name: str, before: Values, after: Values) -> Row:
    lost, won = int((before > after).sum()), int((after > before).sum())
    found = paired_difference(lost, won, len(before)).scaled(100.0)
    accuracy = Accuracy(
        len(before),
        100 * float(after.mean()),
        found.value,
        (found.low, found.high),
        100.0,
        None,
        1.0,
        top1_lost=lost,
        top1_won=won,
    )
    return Row(name, name, {}, accuracy, TIMING, 1)


def percent(hits: int, count: int) -> str:
    """Return a share with its exact 95 % upper bound."""
    return f"{100 * hits / count:6.2f} (to {100 * proportion(hits, count, 0.9).high:5.2f})"


def test_cell(case: Case, sequential: bool, has_slices: bool, options: Options) -> None:
    """Simulate A/B tests in one cell and print what came out."""
    rng = np.random.default_rng(options.seed)
    scale = case.limit / 100 if case.metric == "top1" else case.limit
    known: dict[tuple[int, ...], tuple[bool, bool]] = {}

    def judged(drawn: Drawn) -> tuple[bool, bool]:
        if case.metric != "top1":
            return ships(case, drawn, sequential, has_slices)
        key = _counts(drawn, ANALYSES if sequential else 1, has_slices)
        if key not in known:
            known[key] = ships(case, drawn, sequential, has_slices)
        return known[key]

    count = options.repetitions if case.metric == "top1" else options.repetitions // 5
    made = [judged(case.draw(rng, scale)) for _ in range(count)]
    none = [case.draw(rng, 0.0) for _ in range(count // 4)]
    power = sum(judged(one)[0] for one in none) / len(none)
    before = sum(wald_ships(case, one) for one in none) / len(none)
    wrong, held = (sum(one[i] for one in made) for i in (0, 1))
    ways = f"{'sequential' if sequential else 'once':10} {'slices' if has_slices else '':6}"
    coverage = "" if sequential or has_slices else f"{100 * held / len(made):6.1f}"
    print(
        f"{case.name:14} {case.samples:5} {case.limit:6g} {ways} {percent(wrong, len(made))}"
        f" {100 * power:6.1f} {100 * before:6.1f} {coverage}",
        flush=True,
    )


def best_cell(case: Case, count: int, options: Options) -> None:
    """Simulate reports on the best of several variants and print what came out."""
    rng = np.random.default_rng(options.seed)

    def drawn(loss: float) -> list[Drawn]:
        return [case.draw(rng, loss) for _ in range(count)]

    scale = case.limit / 100
    wrong = sum(best_ships(case, drawn(scale)) for _ in range(options.repetitions))
    few = options.repetitions // 4
    power = sum(best_ships(case, drawn(0.0)) for _ in range(few)) / few
    print(
        f"{case.name:14} {case.samples:5} {case.limit:6g} best of {count:<2}       "
        f" {percent(wrong, options.repetitions)} {100 * power:6.1f}",
        flush=True,
    )


def run(repetitions: int, seed: int = 0) -> None:
    """Simulate and print every cell."""
    print(
        f"# {repetitions} repetitions a cell (a fifth of cosine); a quarter of them for power; percent"
    )
    print(
        "# case, samples, limit, test: false SHIP (95 % upper bound), power, power of Wald, coverage"
    )
    options = Options(repetitions, seed)
    for case in cases():
        for sequential in (False, True):
            for has_slices in (False, True):
                test_cell(case, sequential, has_slices, options)
        if case.metric == "top1":
            for count in VARIANTS:
                best_cell(case, count, options)
