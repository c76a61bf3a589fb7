"""How often an A/B test is wrong: alike taken for different, differences missed, intervals off.

    python -m benchmarks.ab_errors [--trials 200] [--simulations 500] [--grid 2000]

Accuracy is simulated (what is right and wrong on the same samples), latency is measured here: the same
product of matrices against itself, and against one that does 5 % more of them. Intervals are simulated
with figures and times of several shapes, of which the truth is known. With --grid the verdicts of a
grid of cases are simulated instead (`benchmarks.ab_grid`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks import ab_grid
from benchmarks.int8_speed import describe_machine
from trtcal.evaluate.ab_rule import ask, rule_for
from trtcal.evaluate.latency import time_rounds
from trtcal.stats import compare_means, paired_difference, ratio_of_blocks

SAMPLES = 10_000
WORK = 40  # products in one run: 5 % more are two


def answers(
    rng: np.random.Generator, samples: int, lost: float, won: float
) -> tuple[np.ndarray, ...]:
    """Return what A and B have right: A 80 %, and B others of them with the given probabilities."""
    before = (rng.random(samples) < 0.8).astype(float)
    chance = rng.random(samples)
    after = before.copy()
    after[(before == 1) & (chance < lost / 0.8)] = 0
    after[(before == 0) & (chance < won / 0.2)] = 1
    return before, after


def is_distinguished(rng: np.random.Generator, lost: float, won: float) -> bool:
    """Tell whether a difference is found, with another metric asked about at the same time."""
    before, after = answers(rng, SAMPLES, lost, won)
    other = rng.normal(size=SAMPLES)
    noise = rng.normal(0, 0.1, SAMPLES)
    figures = {"top1": (before, after), "score": (other, other + noise)}
    return ask(rule_for((), "top1", has_labels=True), figures).comparisons[0].is_change


def products(times: int) -> Callable[[], object]:
    """Return a run of some work."""
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

    def run() -> object:
        result = a
        for _ in range(times):
            result = a @ a
        return result

    return run


def slower(more: int) -> tuple[bool, float]:
    """Tell whether B's latency is found different, and the speed-up that was seen."""
    found = time_rounds([products(WORK), products(WORK + more)])[1]
    ratio, p = ratio_of_blocks(found.baseline, found.candidate)
    return p < 0.05, ratio.value


def coverage(simulations: int) -> dict[str, float]:
    """Return how many of the 95 % intervals hold the truth, in percent."""
    rng = np.random.default_rng(1)
    inside: dict[str, int] = {}

    def count(name: str, low: float, truth: float, high: float) -> None:
        inside[name] = inside.get(name, 0) + (low <= truth <= high)

    for _ in range(simulations):
        before, after = answers(rng, 500, 0.05, 0.03)
        found = paired_difference(int((after > before).sum()), int((after < before).sum()), 500)
        count("top-1, 500 samples", found.low, -0.02, found.high)
        skewed = rng.gamma(2.0, 1.0, 300)
        moved = skewed + rng.gamma(0.5, 0.2, 300)
        means = compare_means(skewed, moved).difference
        count("a skewed figure, 300 samples", means.low, 0.1, means.high)
        drift = np.exp(np.cumsum(rng.normal(0, 0.01, 61)))
        a, b = (drift * factor * spiky(rng, 61) for factor in (1.0, 0.8))
        ratio, _ = ratio_of_blocks(a, b)
        count("speed-up, 61 blocks with spikes and drift", ratio.low, 1.25, ratio.high)
    return {name: 100 * number / simulations for name, number in inside.items()}


def spiky(rng: np.random.Generator, blocks: int) -> np.ndarray:
    """Return times that mostly vary little, and sometimes much."""
    return rng.lognormal(0, 0.02, blocks) * np.where(rng.random(blocks) < 0.05, 1.5, 1.0)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--grid", type=int, metavar="REPETITIONS")
    options = parser.parse_args()
    if options.grid:
        ab_grid.run(options.grid)
        return
    trials = options.trials
    print(f"# {describe_machine()}, {trials} trials, {SAMPLES} samples")
    for name, lost, won in (
        ("the same (1.5 % lost, 1.5 % won)", 0.015, 0.015),
        ("1 point lower (2 % lost, 1 % won)", 0.02, 0.01),
        ("1 point lower (3 % lost, 2 % won)", 0.03, 0.02),
    ):
        rng = np.random.default_rng(0)
        found = sum(is_distinguished(rng, lost, won) for _ in range(trials))
        print(f"accuracy, {name}: distinguished in {100 * found / trials:.1f} %", flush=True)
    for name, more in (("the same work", 0), ("5 % more work", WORK // 20)):
        seen = [slower(more) for _ in range(trials)]
        share = 100 * sum(found for found, _ in seen) / trials
        middle = float(np.median([ratio for _, ratio in seen]))
        print(
            f"latency, {name}: distinguished in {share:.1f} %, median speed-up {middle:.3f}",
            flush=True,
        )
    for name, percent in coverage(options.simulations).items():
        print(f"95 % intervals of {name}: hold the truth in {percent:.1f} %", flush=True)


if __name__ == "__main__":
    main()
