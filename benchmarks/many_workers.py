"""Observing 100,000 samples over many workers, simulated from measured parts.

    python -m benchmarks.many_workers MODEL DATA [--samples 100000] [--workers 1 4 16 64 256]

Measured with one thread: tasks of 8 samples, the pickled counts of all samples, and their merge. The
project's own scheduler then gives out tasks to simulated workers, whose times are drawn from those
measured. The caller merges one result after the other. One worker in `--slow` takes twice as long. A
lost worker dies within its first task, which is given again. One line each: seconds, the ideal's share
of them, results and their megabytes. Starting workers and the network's delays are left out.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.calibration_split import timed
from benchmarks.int8_speed import describe_machine
from trtcal.backends.taps import lay_out
from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.job import Job, count, shards
from trtcal.calibration.lanes import TaskRunner
from trtcal.calibration.scheduler import Scheduler, Worker
from trtcal.data import Dataset, open_dataset
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, tensors_to_observe

PIECE = 8


def measure(model_path: Path, data: Path, folder: Path) -> tuple[Job, list[float], int, float]:
    """Return the job, seconds of each piece, bytes of the counts, seconds to read and merge them."""
    model = load_model(model_path)
    prepared, dataset = prepare(model), open_dataset(data, model)
    names = sorted(tensors_to_observe(find_layers(prepared)))
    lay_out(prepared.proto, folder)
    job = Job(folder, dataset, [names], dict(zip(names, names, strict=True)), 1, 1, 1, 0)
    runner, total = TaskRunner(job), HistogramAccumulator()
    pieces = [(0, [(i, i + PIECE)]) for i in range(0, len(dataset) - PIECE + 1, PIECE)]
    runner.run(pieces[0])
    seconds = [timed(lambda task=task: runner.run(task))[0] for task in pieces]  # type: ignore[misc]
    sent = pickle.dumps(runner.run((0, [(0, len(dataset))])))
    merge, _ = min(timed(lambda: total.add(pickle.loads(sent))) for _ in range(5))  # noqa: S301
    return job, seconds, len(sent), merge


def simulate(
    job: Job, seconds: list[float], merge: float, workers: int, slow: int, lost: bool
) -> tuple[float, int]:
    """Return the seconds until all is merged, and the number of results."""
    rng, now, merged, results = np.random.default_rng(0), 0.0, 0.0, 0
    scheduler = Scheduler(job, HistogramAccumulator(), cast("list[Worker]", [None] * workers))
    idle = list(range(workers))
    running: list[tuple[float, int, int]] = []
    while scheduler.queue or running:
        while idle and scheduler.queue:
            worker, (_, spans) = idle.pop(0), scheduler._next_task()
            spent = rng.choice(seconds, -(-count(spans) // PIECE)).sum()
            spent *= 2 if slow and worker % slow == slow - 1 else 1
            if lost:
                scheduler.queue.extendleft((0, span) for span in reversed(spans))
                lost, spent, spans = False, spent / 2, []
            heapq.heappush(running, (now + spent, worker, len(spans)))
        now, worker, done = heapq.heappop(running)
        idle.append(worker)
        if done:
            merged, results = max(now, merged) + merge, results + 1
            scheduler.pace_s = (
                float(np.mean(seconds)) / PIECE * count(shards(len(job.dataset), job.unit)[:1])
            )
    return max(now, merged), results


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--slow", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, seconds, sent, merge = measure(options.model, options.data, Path(folder))
    size = sum(array.nbytes for array in next(job.dataset.batches(1)).values())
    job = replace(job, dataset=cast("Dataset", range(options.samples)))
    each, spread = (
        1e3 * np.mean(seconds) / PIECE,
        np.percentile(seconds, [5, 95]) / np.mean(seconds),
    )
    print(f"# {describe_machine()}, {options.model.stem}, {options.samples} samples")
    print(
        f"# measured: {each:.2f} ms a sample ({spread[0]:.2f} to {spread[1]:.2f} of it for 90 % of "
        f"tasks), {sent / 1e6:.2f} MB a result, {1e3 * merge:.1f} ms to merge it"
    )
    pieces = len(shards(len(job.dataset), job.unit))
    print(f"# {options.samples * size / 1e6:.0f} MB of samples to read; {pieces} shards")
    for workers in options.workers:
        for slow, lost in ((0, False), (options.slow, False), (options.slow, True)):
            if workers >= slow:
                wall, results = simulate(job, seconds, merge, workers, slow, lost)
                share = each * options.samples / 1e3 / workers / wall
                text = f"{workers // slow if slow else 0} slow, {int(lost)} lost"
                moved = f"{results} results, {results * sent / 1e6:.0f} MB"
                print(f"{workers:4} workers, {text:16} {wall:8.1f} s {share:7.1%}  {moved}")


if __name__ == "__main__":
    main()
