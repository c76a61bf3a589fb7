"""The search for mixed plans beside brute force, and beside NNCF's accuracy control.

    python -m benchmarks.search --nets 20 --layers 12 [--first SEED]
    python -m benchmarks.search MODEL --calibration DATA --test DATA [--evaluate N] [--nncf PYTHON]
    python -m benchmarks.search MODEL --calibration DATA --test DATA [--evaluate N] --every-plan maximal

The first makes random networks, measures every plan of each, and prints for two limits (5 dB more than
all INT8; 90 % of the INT8 speed-up) how many plans the search measured, how many layers its
recommended plan has more or less in INT8 than the best of all, how its figure compares, and whether any
plan recommended or put into the front is dominated by one that was measured.

The second searches once, recommends for the first limit below, and prints top-1 on the test samples,
evaluations and seconds: INT8, the plan that keeps 90 % of the INT8 speed-up, the cheapest plan that
loses at most a third of what INT8 loses, and what `nncf.quantize_with_accuracy_control` makes with the
same drop allowed, in the Python given (else this one), which needs nncf, openvino and onnx. Speed-ups
are estimates for a T4 by its datasheet; NNCF's layers are priced in the same way, by the layers that it
leaves in float. With `--improve` the search starts from the optimized model; losses and speed-ups stay
beside those of plain INT8.

The third lists every plan that keeps 90 % of the INT8 speed-up, measures those of them that leave as
much in float as can be (`all`: every one), and prints whether any of them loses at most a third of what
INT8 loses, the best by each figure, and how many are better than the one that the search recommends.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy_control import control
from benchmarks.improve import silent
from benchmarks.int8_speed import describe_machine
from benchmarks.plans import Subject, every_plan, maximal, point_of, quick_plans, subject
from tests.evaluate.search.nets import random_net
from tests.fixtures.networks import samples
from trtcal.data import open_dataset
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.exchange import KEPT_SPEEDUP, Search
from trtcal.evaluate.search.limits import Limits, Point, pareto
from trtcal.evaluate.search.pipeline import SearchOptions, find_plans
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.plan_time import Costs, work_of
from trtcal.evaluate.search.sensitivity import measure_sensitivities
from trtcal.evidence.gpus import find_target
from trtcal.model import load_model
from trtcal.ptq.improver import improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import quantize

GPU = find_target("t4")
HEADER = f"{'what':34} float layers speed-up share  SQNR dB      KL  drop evaluations seconds"
FIGURES: dict[str, Callable[[Loss], float]] = {
    "KL": lambda loss: loss.of("kl"),
    "noise": lambda loss: loss.noise,
    "top-1 lost": lambda loss: loss.top1_drop or 0.0,
    "disagreement": lambda loss: loss.disagreement or 0.0,
}


def against_brute_force(nets: int, layers: int, first: int) -> None:
    """Print one line a network and limit."""
    print(f"# {describe_machine()}")
    print("net limit       plans measured int8 best-int8 differ figure best dominated seconds")
    near = cases = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for seed in range(first, first + nets):
            model = load_model(random_net(folder / "net.onnx", seed, layers))
            data = open_dataset(samples(folder / "data.npz", count=32), model)
            for close in lines(seed, subject(model, data, data)):
                cases += 1
                near += close
    print(f"# within one layer of the best plan: {near} of {cases}")


def lines(seed: int, one: Subject) -> Iterator[bool]:
    """Print what a search finds for two limits; yield whether it is within a layer of the best."""
    every = dict(every_plan(one))
    seen = measure_sensitivities(one.prepared, one.calibration, one.dataset)
    shares = {layer.layer: layer.share("noise") for layer in seen.layers}
    work = work_of(one.prepared, one.units, next(one.dataset.batches(1)))
    costs = Costs(work, GPU)
    whole = frozenset(one.units)
    speed = 0.9 * costs.baseline.plan_ms(()) / costs.plan_ms(whole)
    all_points = [point_of(plan, loss, costs) for plan, loss in every.items()]
    for name, limits in {
        "5 dB more": Limits.of(f"sqnr_db >= {every[whole].sqnr_db + 5}"),
        "90 % speed": Limits.of(f"speedup >= {speed}"),
    }.items():
        search = Search(shares, costs, every.__getitem__, "noise", limits)
        started = time.perf_counter()
        found = search.run()
        seconds = time.perf_counter() - started
        holding = [point for point in all_points if not limits.broken(point)]
        order = (
            (lambda p: (p.cost_ms, p.loss.noise))
            if limits.on_loss
            else (lambda p: (p.loss.noise, p.cost_ms))
        )
        best, got = min(holding, key=order), found.recommended
        assert got is not None  # noqa: S101  # the best plan holds the limits, so one does
        dominated = [
            p
            for p in found.front
            if any(q.loss.noise < p.loss.noise and q.cost_ms <= p.cost_ms for q in found.measured)
        ]
        front = set(pareto(found.measured, "noise"))
        difference = abs(len(got.plan) - len(best.plan))
        print(
            f"{seed:3} {name:11} {len(every):5} {len(found.measured):8} {len(got.plan):4} "
            f"{len(best.plan):9} {difference:5} {order(got)[0] / order(best)[0] - 1:+7.2%} "
            f"{'same' if got.plan == best.plan else 'other':5} "
            f"{len(dominated) + (got not in front):9} {seconds:7.1f}",
            flush=True,
        )
        yield difference <= 1


def on_a_model(options: argparse.Namespace) -> None:
    """Print the plans of a real model, and NNCF's."""
    model = load_model(options.model)
    calibration, test = (open_dataset(path, model) for path in (options.calibration, options.test))
    one = plain = subject(model, calibration, test)
    print(f"# {describe_machine()}")
    print(HEADER)
    cache = EvaluationCache(None, {})
    settings = SearchOptions(Limits(), "t4", options.float, evaluated=options.evaluate)
    if options.improve:
        wanted = ImproveOptions(options.improve)
        found = improve(plain.prepared, calibration, wanted, silent)
        one = Subject(found.optimized, found.calibration, test)
    result = find_plans(one.prepared, one.calibration, one.dataset, settings, cache)
    points = {point.plan: point for point in result.found.measured}
    whole = points[frozenset(one.units)]
    if options.improve:
        optimized, whole = whole, replace(whole, loss=all_int8(plain, options.evaluate))
    row("INT8", whole, whole, len(one.units), "", "")
    if options.improve:
        row(f"INT8, {options.improve}", optimized, whole, len(one.units), "", "")
    kept = result.found.recommended
    assert kept is not None  # noqa: S101  # all INT8 keeps its own speed-up
    row("90 % of the speed-up", kept, whole, len(one.units), len(points), result.seconds)
    measure = result.measure
    most = whole.loss.of(measure) / 3
    third = next(p for p in result.found.front if p.loss.of(measure) <= most)
    row("a third of the loss", third, whole, len(one.units), "", "")
    allowed = options.max_drop
    if allowed is None:
        allowed = max((points_lost(whole.loss) or 0) / 3, 0.1)
    limited = SearchOptions(
        Limits.of(f"top1 >= -{allowed}"), "t4", options.float, evaluated=options.evaluate
    )
    before = cache.measured
    result = find_plans(one.prepared, one.calibration, one.dataset, limited, cache)
    best = result.found.recommended
    more = cache.measured - before
    if best is not None:
        row(f"top1 >= -{allowed:.2f}", best, whole, len(one.units), f"+{more}", result.seconds)
    beside_nncf(options, one, result.costs, allowed, whole)


def points_lost(loss: Loss) -> float | None:
    """Return the points lost of top-1, without labels of agreement with the float model."""
    return loss.disagreement if loss.top1_drop is None else loss.top1_drop


def all_int8(one: Subject, samples: int) -> Loss:
    """Return what all INT8 loses without optimizations."""
    with Reference(one.prepared, one.dataset, samples) as reference:
        return reference.measure(quantize(one.prepared, one.calibration).proto)


def row(
    what: str, point: Point, whole: Point, layers: int, evaluations: object, seconds: object
) -> None:
    """Print one plan."""
    loss, kl = point.loss, f"{point.loss.kl:.5f}" if point.loss.kl is not None else ""
    spent = f"{seconds:.0f}" if isinstance(seconds, float) else seconds
    print(
        f"{what:34} {layers - len(point.plan):12} {point.speedup:8.2f} "
        f"{point.speedup / whole.speedup:5.0%} {loss.sqnr_db:8.2f} {kl:>7} {points_lost(loss):5.2f} "
        f"{evaluations:>11} {spent:>7}",
        flush=True,
    )


def beside_nncf(
    options: argparse.Namespace, one: Subject, costs: Costs, allowed: float, whole: Point
) -> None:
    """Let NNCF do the same with the same samples, in a Python of its own."""
    files = options.model, options.calibration, options.test
    found = control(options.nncf, *files, options.evaluate, allowed)
    if isinstance(found, str):
        print(found)
        return
    int8 = frozenset(one.units) - set(found.float_layers)
    speed = costs.baseline.plan_ms(()) / costs.plan_ms(int8)
    print(
        f"{f'NNCF, max_drop {allowed:.2f}':34} {len(one.units) - len(int8):12} {speed:8.2f} "
        f"{speed / whole.speedup:5.0%} {'':8} {'':7} {found.drop:5.2f} "
        f"{found.evaluations:11} {found.seconds:7.0f}"
    )


def all_quick_plans(options: argparse.Namespace) -> None:
    """Print the best of all plans that keep 90 % of the speed-up, and the search's rank among them."""
    model = load_model(options.model)
    calibration, test = (open_dataset(path, model) for path in (options.calibration, options.test))
    one, cache = subject(model, calibration, test), EvaluationCache(None, {})
    settings = SearchOptions(Limits(), "t4", options.float, evaluated=options.evaluate)
    result = find_plans(one.prepared, one.calibration, one.dataset, settings, cache)
    costs, kept = result.costs, result.found.recommended
    assert kept is not None  # noqa: S101  # all INT8 keeps its own speed-up
    most_ms = costs.plan_ms(one.units) / KEPT_SPEEDUP * (1 + 1e-9)
    plans = list(quick_plans(one.units, costs, most_ms))
    fullest = maximal(plans)
    chosen = fullest if options.every_plan == "maximal" else plans
    made = Plans(one.prepared, one.calibration, one.units, options.float)
    with Reference(one.prepared, one.dataset, options.evaluate) as reference:
        evaluator = Evaluator(made, reference, cache)
        points = [point_of(plan, evaluator.loss(plan), costs) for plan in chosen]
    whole = next(one for one in result.found.measured if len(one.plan) == len(one.units))
    print(f"# {describe_machine()}")
    print(
        f"{len(one.units)} layers; {len(plans)} plans keep {KEPT_SPEEDUP:.0%} of the INT8 speed-up, "
        f"{len(fullest)} of them leave as much in float as can be; {len(points)} measured on "
        f"{whole.loss.samples} samples"
    )
    print(HEADER)
    row("INT8", whole, whole, len(one.units), "", "")
    row("the search's plan", kept, whole, len(one.units), "", "")
    for name, figure in FIGURES.items():
        ranked_by(name, figure, points, kept, whole)


def ranked_by(
    name: str, figure: Callable[[Loss], float], points: list[Point], kept: Point, whole: Point
) -> None:
    """Print the best plan by a figure, how many lose at most a third, and the search's rank."""
    best = min(points, key=lambda point: figure(point.loss))
    row(f"least {name}", best, whole, len(whole.plan), "", "")
    most, mine = figure(whole.loss) / 3, figure(kept.loss)
    fit = sum(figure(point.loss) <= most for point in points)
    better = sum(figure(point.loss) < mine for point in points)
    share = figure(best.loss) / figure(whole.loss) if figure(whole.loss) else 0.0
    print(
        f"  {share:.0%} of what INT8 loses; at most a third: {fit} plans; "
        f"better than the search's: {better}",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--evaluate", type=int, default=1000)
    parser.add_argument("--float", choices=("fp16", "fp32"), default="fp16")
    parser.add_argument("--max-drop", type=float)
    parser.add_argument("--improve", choices=("fast", "best"))
    parser.add_argument("--nncf", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--every-plan", choices=("maximal", "all"))
    parser.add_argument("--nets", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the first network's seed")
    options = parser.parse_args()
    if options.model is None:
        against_brute_force(options.nets, options.layers, options.first)
    else:
        (all_quick_plans if options.every_plan else on_a_model)(options)


if __name__ == "__main__":
    main()
