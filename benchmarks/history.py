"""What the history promises: shifts found, false alarms, the dashboard of many runs, many writers.

    python -m benchmarks.history [--runs 10000]

Prints, for noise of 1 % without and with odd runs, how many of 200 shifts of 5 % are found within three
runs and with the right first run, and how many of 200 series of 100 runs without a shift show one; the
time and size of a dashboard (5 variants, 10 builds a run); and what 8 processes that record 50 runs
each leave behind.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.int8_speed import describe_machine
from trtcal.documents import Document
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard
from trtcal.wings.fleet.series import find_shifts

SERIES, NOISE, SHIFT_AT = 200, 0.01, 40
WRITERS, RUNS_EACH = 8, 50
CANDIDATES = ("minmax", "percentile", "entropy", "mixed")
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
KINDS = ("silent_fallback", "missing_range", "broken_fusion")


def series(seed: int, runs: int, odd: bool) -> npt.NDArray[np.float64]:
    """Return times around 1; with `odd`, three in a hundred runs met a busy machine."""
    rng = np.random.default_rng(seed)
    values = 1 + rng.normal(0, NOISE, runs)
    if odd:
        values *= np.where(rng.random(runs) < 0.03, 1 + rng.exponential(0.08, runs), 1)
    return values


def detection(odd: bool) -> str:
    """Return a line on shifts found and on false alarms."""
    found = exact = false = 0
    for seed in range(SERIES):
        values = series(seed, SHIFT_AT + 20, odd)
        values[SHIFT_AT:] *= 1.05 if seed % 2 else 0.95
        soon = [one for one in find_shifts(values[: SHIFT_AT + 3]) if one.found >= SHIFT_AT]
        found += bool(soon)
        exact += any(one.first == SHIFT_AT for one in soon)
        false += bool(find_shifts(series(10_000 + seed, 100, odd)))
    kind = "with odd runs" if odd else "noise alone  "
    share = 100 / SERIES
    return (
        f"  {kind}  found in 3 runs {found * share:5.1f} %, first run right {exact * share:5.1f} %, "
        f"false alarms in 100 runs {false / SERIES:.3f}"
    )


def report(number: int, late: bool, rng: np.random.Generator) -> Document:
    """Return a report document with all that the history reads."""
    names = ("fp32", *CANDIDATES)
    latency = {"p50_ms": 1.05 if late else 1.0, "p90_ms": 1.2, "p99_ms": 1.5, "speedup": 2.0}
    rows = [_row(name, rng) for name in names]
    measured = {
        name: {"latency": _noisy(latency, rng), "size_bytes": 1_000_000 + number} for name in names
    }
    builds = [_build(name, target) for name in names for target in ("cpu", "sm89")]
    kinds = {kind: int(late) for kind in KINDS}
    return {
        "digest": f"sha256:{number}",
        "trtcal": "1",
        "comparison": {"dataset": "sha256:data", "rows": rows},
        "calibrations": [{"method": "minmax", "dataset": "sha256:cal", "digest": "sha256:c"}],
        "data_check": None,
        "optimizations": [],
        "builds": builds,
        "measured": {
            "variants": measured,
            "builds": {
                build["digest"]: {"engine_bytes": 10**6, "diagnosis": {"kinds": kinds}}
                for build in builds
            },
            "verdict": {"word": "SHIP", "variant": "minmax", "sentence": "minmax is as good."},
            "run": {"command": "trtcal run"},
            "packages": {"onnxruntime": "2" if late else "1"},
            "machine": {"cpus": 2},
            "made_at": (BEGAN + timedelta(minutes=number)).isoformat(),
        },
    }


def _row(name: str, rng: np.random.Generator) -> Document:
    accuracy = {"top1": rng.normal(75, 0.1), "top1_drop": 0.1, "agreement": 99.0, "sqnr_db": 30.0}
    quantization = {} if name == "fp32" else {"plan": "sha256:p"}
    return {
        "name": name,
        "model": f"sha256:{name}",
        "accuracy": accuracy,
        "quantization": quantization,
    }


def _noisy(latency: dict[str, float], rng: np.random.Generator) -> dict[str, float]:
    return {key: value * rng.normal(1, NOISE) for key, value in latency.items()}


def _build(name: str, target: str) -> Document:
    layer = {"name": "conv", "precision": "int8", "heavy": True}
    return {
        "digest": f"sha256:{name} {target}",
        "model_name": name,
        "target": target,
        "backend": "onnxruntime",
        "backend_version": "1",
        "outcomes": [{"asked": "int8", "got": "int8"}],
        "layers": [layer],
    }


def filled(folder: Path, runs: int) -> Path:
    """Write a history of so many runs of one model; return its file."""
    path = folder / "many.sqlite"
    history, rng = History(path), np.random.default_rng(0)
    for number in range(runs):
        history.record(report(number, number > runs // 2, rng))
    return path


def dashboard(runs: int, folder: Path) -> str:
    """Return a line on the dashboard over so many runs of one model."""
    started = time.perf_counter()
    history = History(filled(folder, runs))
    recorded, worked = time.perf_counter(), time.process_time()
    files = write_dashboard(history, folder / "site")
    seconds, worked = time.perf_counter() - recorded, time.process_time() - worked
    size = sum(file.stat().st_size for file in files) / 1e6
    each = 1e3 * (recorded - started) / runs
    return (
        f"  {runs} runs: {seconds:.1f} s ({worked:.1f} s of a processor), {size:.2f} MB; "
        f"to record a run took {each:.1f} ms"
    )


def write(path: Path, writer: int) -> None:
    """Record runs as one of several writers."""
    history, rng = History(path), np.random.default_rng(writer)
    for number in range(RUNS_EACH):
        history.record(report(1000 * writer + number, False, rng), name=f"writer {writer}")


def writers(folder: Path) -> str:
    """Return a line on what several processes that record at once leave."""
    path = folder / "shared.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(path, one)) for one in range(WRITERS)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    kept = len({entry.report for entry in History(path).entries()})
    failed = sum(worker.exitcode != 0 for worker in workers)
    return f"  {kept} of {WRITERS * RUNS_EACH} runs kept, {failed} writers failed, {seconds:.1f} s"


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    given = parser.parse_args()
    print(describe_machine())
    print(f"shifts of 5 % in {SERIES} series, noise {100 * NOISE:.0f} %")
    for odd in (False, True):
        print(detection(odd))
    with tempfile.TemporaryDirectory() as name:
        print(f"{WRITERS} writers of {RUNS_EACH} runs")
        print(writers(Path(name)))
        print("dashboard, 5 variants and 10 builds a run")
        print(dashboard(given.runs, Path(name)))


if __name__ == "__main__":
    main()
