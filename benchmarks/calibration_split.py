"""The same work split in many ways: is the result the same, and what do two workers bring.

    python -m benchmarks.calibration_split exactness [network ...]
    python -m benchmarks.calibration_split scale [--samples N] [network ...]

`exactness` observes each network with {1, 2, 4} workers x {1, 7, 32} samples a batch, with the samples
shuffled, killed (SIGKILL) and resumed, and on a Ray cluster of two nodes if Ray is installed. Where a
batch size changes the runtime's own floats, it prints by how many bins the ranges differ.

`scale` divides the time of one single-thread worker by that of two, and by that of two of which one is
killed in mid-run; start and end of the workers are in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network, random_images
from calibrators import Histogram
from trtcal.calibration import Observation, ObserveOptions, calibrate, observe
from trtcal.data import Dataset, open_dataset
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, tensors_to_observe

NETWORKS = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
METHODS = ("minmax", "percentile", "entropy", "mse")
T = TypeVar("T")
Scene = tuple[Model, Dataset, list[str]]


def any_batch(model: Model) -> Model:
    """Return the model with a batch that is free, where its shapes had fixed it at 1."""
    proto = model.proto
    for value in [*proto.graph.input, *proto.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Reshape":
            shape = constants[node.input[1]]
            sizes = onnx.numpy_helper.to_array(shape).copy()
            sizes[0] = 0  # as in the input
            shape.CopyFrom(onnx.numpy_helper.from_array(sizes, shape.name))
    path = model.path.with_name(f"any-{model.path.name}")
    onnx.save(proto, path)
    return load_model(path)


@contextlib.contextmanager
def scene(name: str, samples: int, free: bool) -> Iterator[Scene]:
    """Yield a prepared network, its data on disk, and the tensors to observe."""
    with tempfile.TemporaryDirectory() as folder:
        model = light_network(name, Path(folder))
        model = any_batch(model) if free else model
        path = Path(folder) / "samples.npz"
        np.savez(path, **{model.inputs[0].name: random_images(model, samples)})
        prepared = prepare(model)
        yield prepared, open_dataset(path, model), tensors_to_observe(find_layers(prepared))


def digest_of(seen: Observation) -> str:
    """Return the digest of the histograms alone: shuffled data are other data."""
    return "".join(sorted(histogram.digest() for histogram in seen.histograms.values()))


def range_difference(one: Observation, other: Observation) -> float:
    """Return the largest distance of two ranges, for any method, in bins of 1/2048 of the range."""
    furthest = 0.0
    for method in METHODS:
        ours, theirs = calibrate(one, method).ranges, calibrate(other, method).ranges
        for name, item in ours.items():
            distance = abs(item.amax - theirs[name].amax) / item.observed_amax * 2048
            furthest = max(furthest, distance)
    return furthest


def killed_and_resumed(here: Scene, batch: int) -> Observation:
    """Observe in a child process that is killed in mid-run, then go on here."""
    model, dataset, tensors = here
    kept = model.path.with_name("kept")
    child = os.fork()
    if not child:
        from trtcal.calibration import accumulator as accumulator

        accumulator.SPACING_S = 0.0
        observe(model, dataset, tensors, ObserveOptions(batch=batch, threads=1, checkpoint=kept))
        os._exit(1)
    while not kept.exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said: list[str] = []
    seen = observe(
        model,
        dataset,
        tensors,
        ObserveOptions(batch=batch, checkpoint=kept, threads=1),
        say=said.append,
    )
    assert said, "nothing was resumed"  # noqa: S101
    return seen


def shuffled(here: Scene) -> Observation:
    """Observe the same samples in another order."""
    model, dataset, tensors = here
    path = model.path.with_name("shuffled.npz")
    (feeds,) = dataset.batches(len(dataset))
    order = np.random.default_rng(0).permutation(len(dataset))
    np.savez(path, **{name: array[order] for name, array in feeds.items()})
    return observe(model, open_dataset(path, model), tensors, ObserveOptions(batch=1, threads=1))


@contextlib.contextmanager
def ray_cluster() -> Iterator[bool]:
    """Yield whether there is a Ray cluster, of two nodes on this machine."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        yield False
        return
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = cluster.address
    yield True
    import ray

    ray.shutdown()
    cluster.shutdown()


def exactness(names: list[str], samples: int) -> None:
    """Print for each network how many ways of splitting the work gave the digest of one batch size."""
    print(f"# {describe_machine()}, {samples} samples")
    for name in names:
        with scene(name, samples, free=True) as here:
            straight = {
                batch: observe(*here, ObserveOptions(batch=batch, threads=1))
                for batch in (1, 7, 32)
            }
            equal = {batch: digest_of(seen) for batch, seen in straight.items()}
            ways: list[tuple[str, int, Observation]] = [
                (
                    f"{workers} workers",
                    batch,
                    observe(*here, ObserveOptions(batch=batch, threads=1, workers=workers)),
                )
                for workers in (2, 4)
                for batch in (1, 7, 32)
            ]
            ways += [
                ("killed, resumed", batch, killed_and_resumed(here, batch)) for batch in (1, 7)
            ]
            ways += [("shuffled", 1, shuffled(here))]
            with ray_cluster() as there:
                ways += [
                    (
                        "ray",
                        batch,
                        observe(*here, ObserveOptions(batch=batch, cluster="ray")),
                    )
                    for batch in (1, 7, 32)
                    if there
                ]
            differing = [
                f"{way}, batch {b}" for way, b, seen in ways if digest_of(seen) != equal[b]
            ]
            text = f"{name:14} {len(ways)} ways, digest of the same batch size differs in: "
            text += "; ".join(differing) or "none"
            for batch in (7, 32):
                same = equal[batch] == equal[1]
                bins = range_difference(straight[1], straight[batch])
                difference = f"ranges differ by {bins:.3f} bins at most"
                text += f"\n{'':14} batch {batch} against 1: {'equal' if same else difference}"
            print(text, flush=True)


def kill_one_soon(after_s: float) -> threading.Timer:
    """Kill one worker process after some time."""
    import multiprocessing

    def kill() -> None:
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    timer = threading.Timer(after_s, kill)
    timer.start()
    return timer


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return how long a call takes, and its result."""
    started = time.perf_counter()
    seen = work()
    return time.perf_counter() - started, seen


def scale(names: list[str], samples: int) -> None:
    """Print the ratios for each network."""
    print(f"# {describe_machine()}, {samples} samples; a worker has one thread")
    Histogram().update(np.ones(1, np.float32))  # so that compiled code is loaded
    for name in names:
        with scene(name, samples, free=False) as here:
            one, expected = timed(lambda: observe(*here, ObserveOptions(threads=1)))
            two, other = timed(lambda: observe(*here, ObserveOptions(threads=1, workers=2)))
            kill_one_soon(two / 2)
            hurt, third = timed(lambda: observe(*here, ObserveOptions(threads=1, workers=2)))
            again, _ = timed(lambda: observe(*here, ObserveOptions(threads=1)))
            same = other.digest == expected.digest == third.digest
            print(
                f"{name:14} one {one:.1f} s, {again:.1f} s; two workers {one / two:.2f} and "
                f"{again / two:.2f} times as fast; with one killed {again / hurt:.2f}; "
                f"digests {'equal' if same else 'DIFFER'}",
                flush=True,
            )


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("exactness", "scale"))
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--samples", type=int)
    options = parser.parse_args()
    if options.what == "scale":
        scale(options.networks, options.samples or 1024)
    else:
        exactness(options.networks, options.samples or 70)


if __name__ == "__main__":
    main()
