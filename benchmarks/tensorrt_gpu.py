"""TensorRT on a GPU: every route to INT8, its latency, and its outputs beside our simulation's.

    python -m benchmarks.tensorrt_gpu prepare FOLDER [network ...]
    python -m benchmarks.tensorrt_gpu measure FOLDER [network ...] [--variants=fp32,int8,...]
    python -m benchmarks.tensorrt_gpu report FOLDER [network ...] [--variants=...]

`prepare` and `report` run on any machine, `measure` on the machine of the GPU, with TensorRT 8.6 to 10
and PyCUDA. `prepare` writes a folder for each sample; a folder with your own `model.onnx`,
`calibration.npz` and `test.npz` (float32, at least 32 samples) is taken too. `measure` builds every
variant with `trtcal build`, then runs the engines one after the other. LANES networks are built at a
time, 1 if not given: builders that share a GPU wait for each other.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.networks import light_network, random_images
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.evidence.layers.inspector import read_inspector, with_types
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.log.reader import events_of_file, parse_file
from trtcal.evidence.manifest import LOG
from trtcal.model import load_model
from trtcal.quantization import (
    Plan,
    find_layers,
    prepare,
    quantize,
    tensors_to_observe,
    write_quantized,
)
from trtcal.ranges import Calibration

SAMPLES = ("digits", "classifier", "detector", "vit")
RANDOM = "resnet50"
BATCH, TESTED, CALIBRATED = 32, 256, 512
RUNS, WARM, PROFILED = 200, 20, 50
RANGED = ("--calibration", "entropy.json", "--route")
FED = ("--route", "calibrator", "--data", "calibration.npz", "--builder-calibrator")
QUICK = ("--optimization-level", "1")  # their ranges count, not their speed
VARIANTS: dict[str, tuple[str, ...]] = {
    "fp32": ("model.onnx",),
    "fp16": ("fp16.onnx",),
    "int8": ("int8.onnx",),
    "int8-fp16": ("int8-fp16.onnx",),
    "ranges": ("model.onnx", *RANGED, "dynamic-ranges"),
    "cache": ("model.onnx", *QUICK, *RANGED, "cache"),
    "obey": ("model.onnx", *QUICK, *RANGED, "dynamic-ranges", "--constraints", "obey"),
    "entropy2": ("model.onnx", *QUICK, *FED, "entropy2"),
    "entropy": ("model.onnx", *QUICK, *FED, "entropy"),
    "minmax": ("model.onnx", *QUICK, *FED, "minmax"),
}
CLI = "from trtcal.cli.main import main; main()"


def sample(name: str, folder: Path) -> None:
    """Copy the model and data of a sample, or make those of the random network."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == RANDOM:
        onnx.save(any_batch(light_network(RANDOM, folder).proto), folder / "model.onnx")
        (folder / f"{RANDOM}.onnx").unlink()
        model = load_model(folder / "model.onnx")
        for file, seed in (("calibration", 1), ("test", 2)):
            images = random_images(model, BATCH, seed)
            np.savez(folder / f"{file}.npz", **{model.inputs[0].name: images})
        return
    source = Path("samples") / name
    data = Path("samples/classifier") if name == "vit" else source
    (folder / "model.onnx").write_bytes((source / f"{name}.onnx").read_bytes())
    for file, count in (("calibration", CALIBRATED), ("test", TESTED)):
        arrays = dict(np.load(data / f"{file}.npz"))
        many = min(count, min(map(len, arrays.values())) // BATCH * BATCH)
        np.savez(folder / f"{file}.npz", **{key: array[:many] for key, array in arrays.items()})


def any_batch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let a network for one image take any number; its only Reshape is before the last layer."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    shapes = {node.input[1] for node in proto.graph.node if node.op_type == "Reshape"}
    for tensor in proto.graph.initializer:
        if tensor.name in shapes:
            sizes = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, *sizes[1:]]), tensor.name))
    del proto.graph.value_info[:]
    return proto


def calibrated(folder: Path) -> None:
    """Write the ranges of a network by two methods."""
    model = prepare(load_model(folder / "model.onnx"))
    data = open_dataset(folder / "calibration.npz", model)
    observation = observe(
        model, data, tensors_to_observe(find_layers(model)), ObserveOptions(batch=BATCH)
    )
    for method in ("entropy", "minmax"):
        calibrate(observation, method).write(folder / f"{method}.json")


def quantized(folder: Path) -> None:
    """Write the network's variants that are not there."""
    model = prepare(load_model(folder / "model.onnx"))
    ranges = Calibration.read(folder / "entropy.json")
    plans = {"fp16": Plan("fp16"), "int8": Plan(), "int8-fp16": Plan(rest="fp16")}
    for name, plan in plans.items():
        if not (folder / f"{name}.onnx").exists():
            write_quantized(folder / f"{name}.onnx", quantize(model, ranges, plan))


def simulated(folder: Path) -> None:
    """Write the outputs of ONNX Runtime: in float, with Q/DQ in float, and with integer kernels."""
    model, int8 = (load_model(folder / f"{name}.onnx") for name in ("model", "int8"))
    sessions = {
        "fp32": open_session(model.proto),
        "simulated": open_session(int8.proto, as_it_is=True),
        "integer": open_session(lower(int8.proto)),
    }
    made: dict[str, list[Any]] = {}
    for feeds in batches(folder):
        for name, session in sessions.items():
            for output, array in zip(model.outputs, run_session(session, None, feeds), strict=True):
                made.setdefault(f"{name}:{output.name}", []).append(array)
    np.savez(folder / "expected.npz", **{key: np.concatenate(one) for key, one in made.items()})


def is_prepared(folder: Path) -> bool:
    """Tell whether all of a network's files were made, after its model."""
    last, model = folder / "expected.npz", folder / "model.onnx"
    return last.exists() and last.stat().st_mtime >= model.stat().st_mtime


def batches(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the test's inputs."""
    inputs = [spec.name for spec in load_model(folder / "model.onnx").inputs]
    arrays = np.load(folder / "test.npz")
    given = {name: arrays[name].astype(np.float32) for name in inputs}
    for start in range(0, len(given[inputs[0]]), BATCH):
        yield {name: array[start : start + BATCH] for name, array in given.items()}


def built(folder: Path, name: str, limit_s: float) -> None:
    """Build a variant, and keep what `trtcal` prints of it."""
    model, *words = VARIANTS[name]
    (spec,) = load_model(folder / "model.onnx").inputs
    sizes = "x".join(map(str, spec.shape[1:]))
    shapes = f"{spec.name}=" + ":".join(f"{batch}x{sizes}" for batch in (1, BATCH, BATCH))
    target = ("--backend", "tensorrt", "--target", "gpu", "--layer-times")
    more = ("--timing-cache", f"{name}.cache", "--time-limit", str(limit_s), "-o", name)
    trtcal(folder, f"{name}.txt", "build", model, *words, "--shapes", shapes, *target, *more)


def trtcal(folder: Path, file: str, *words: str) -> None:
    """Run a command of trtcal in a folder; what it prints, and its status, go to a file."""
    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "160"}
    command = [sys.executable, "-c", CLI, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)  # noqa: S603
    (folder / file).write_text(f"{done.stdout}{done.stderr}status {done.returncode}\n")


def run_engine(folder: Path, name: str) -> None:
    """Run an engine built here on the test's data, time it, and time its layers."""
    from polygraphy.backend.trt import TrtRunner, engine_from_bytes

    engine = engine_from_bytes((folder / name / "engine.plan").read_bytes())
    made: dict[str, list[Any]] = {}
    with TrtRunner(engine) as runner:
        for feeds in batches(folder):
            for output, array in runner.infer(feeds).items():
                made.setdefault(output, []).append(np.array(array))
    np.savez(folder / f"{name}.npz", **{key: np.concatenate(one) for key, one in made.items()})
    feeds = next(batches(folder))
    found: dict[str, Any] = {"ms": {}, "layers": {}}
    for batch in (1, BATCH):
        few = {key: np.ascontiguousarray(array[:batch]) for key, array in feeds.items()}
        found["ms"][batch], found["layers"][batch] = timed(engine, few)
    (folder / f"{name}.json").write_text(json.dumps(found))


def timed(engine: Any, feeds: dict[str, Any]) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Return the time of a run between two CUDA events, and the median of every layer, in ms."""
    import tensorrt as trt
    from polygraphy import cuda

    runs: list[list[tuple[str, float]]] = []

    class Profiler(trt.IProfiler):  # type: ignore[misc]  # trt is imported at run time
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, name: str, ms: float) -> None:
            runs[-1].append((name, ms))

    library, kept = cuda.wrapper().handle, []
    with cuda.Stream() as stream:
        context = engine.create_execution_context()
        for name, array in feeds.items():
            context.set_input_shape(name, array.shape)
        for number in range(engine.num_io_tensors):
            name = engine.get_tensor_name(number)
            kind = trt.nptype(engine.get_tensor_dtype(name))
            room = cuda.DeviceArray(tuple(context.get_tensor_shape(name)), kind)
            kept.append(room.copy_from(feeds[name]) if name in feeds else room)
            context.set_tensor_address(name, room.ptr)

        def run() -> None:
            check(not context.execute_async_v3(stream.ptr))

        times = event_times(library, stream, run)
        context.profiler = Profiler()
        for _ in range(PROFILED):
            runs.append([])
            run()
            stream.synchronize()
    names = [name for name, _ in runs[-1]]
    columns = zip(*([ms for _, ms in one] for one in runs), strict=True)
    layers = [(name, statistics.median(one)) for name, one in zip(names, columns, strict=True)]
    deciles = statistics.quantiles(times, n=10)
    return {"p10": deciles[0], "median": statistics.median(times), "p90": deciles[-1]}, layers


def check(code: int) -> None:
    """`RuntimeError` unless a call of CUDA or TensorRT succeeded."""
    if code:
        raise RuntimeError(f"error {code} of CUDA")


def event_times(library: Any, stream: Any, run: Callable[[], None]) -> list[float]:
    """Return the milliseconds of each of many runs, one at a time, after a few for warming up."""
    events = [ctypes.c_void_p(), ctypes.c_void_p()]
    for event in events:
        check(library.cudaEventCreate(ctypes.byref(event)))
    times, one = [], ctypes.c_float()
    for _ in range(WARM + RUNS):
        check(library.cudaEventRecord(events[0], ctypes.c_void_p(stream.ptr)))
        run()
        check(library.cudaEventRecord(events[1], ctypes.c_void_p(stream.ptr)))
        check(library.cudaEventSynchronize(events[1]))
        check(library.cudaEventElapsedTime(ctypes.byref(one), *events))
        times.append(one.value)
    return times[WARM:]


def build_all(folder: Path, variants: Sequence[str], limit_s: float) -> None:
    """Build the variants of a network that were not tried yet."""
    if not (folder / "model.onnx").exists():
        sample(folder.name, folder)
    quantized(folder)
    for name in variants:
        if not (folder / f"{name}.txt").exists():
            built(folder, name, limit_s)


def measure(home: Path, names: list[str], variants: Sequence[str], limit_s: float = 600.0) -> None:
    """Build variants of all networks, then run those not run yet, each in a process of its own."""
    with ThreadPoolExecutor(int(os.environ.get("LANES", "1"))) as pool:
        list(pool.map(lambda name: build_all(home / name, variants, limit_s), names))
    for folder, variant in ((home / name, variant) for name in names for variant in variants):
        plan, result = folder / variant / "engine.plan", folder / f"{variant}.json"
        if plan.exists() and not result.exists():
            command = [sys.executable, "-m", "benchmarks.tensorrt_gpu", "run", str(folder), variant]
            done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
            if done.returncode:
                (folder / f"{variant}-run.txt").write_text(done.stdout + done.stderr)


def report(home: Path, names: Sequence[str], variants: Sequence[str]) -> bool:
    """Print what was measured, and write the times of all layers to `tensorrt_gpu.json` there.

    Returns whether an engine was run at all.
    """
    folders = [(home / name, variant) for name in names for variant in variants]
    print(
        "network     variant    layers  convolutions and products  ms at 1  ms at 32  SQNR dB to FP32,"
    )
    print(f"{'':50}  simulation, integer kernels; same class as FP32, as simulation")
    kept, times = home / "tensorrt_gpu.json", {}
    if kept.exists():  # of other networks and variants
        times = json.loads(kept.read_text())
    ran = False
    for folder, name in folders:
        path = folder / name / "layers.json"
        if not path.exists():
            print(f"{folder.name:11} {name:10} no engine: {_last_line(folder, name)}")
            continue
        layers = with_types(read_inspector(path.read_bytes()), parse_file(path.parent / LOG).layers)
        heavy = Counter(layer.precision for layer in layers if layer.is_heavy)
        line = f"{folder.name:11} {name:10} {len(layers):6}  {_shown(heavy):25}"
        if (folder / f"{name}.json").exists():
            found = json.loads((folder / f"{name}.json").read_text())
            line += "".join(f" {found['ms'][batch]['median']:8.4f}" for batch in ("1", str(BATCH)))
            times.setdefault(folder.name, {})[name] = _times(layers, found)
            line += "  " + _agreement(folder, name)
            ran = True
        print(line.rstrip())
    kept.write_text(json.dumps(times, separators=(",", ":")))
    print("\nscales in the log over ours: tensors, equal to 0.01 %, then min, median, max")
    for log in (folder / name / LOG for folder, name in folders):
        ours = OURS.get(log.parent.name)
        events = events_of_file(log) if ours and log.exists() else ()
        theirs = {
            event.subject: event.fields["scale"]
            for event in events
            if event.fields.get("rule") == "scale_dump"
        }
        if theirs:
            print(f"{log.parent.parent.name:11} {log.parent.name:10} {_ratios(log, ours, theirs)}")
    return ran


def _last_line(folder: Path, name: str) -> str:
    """Return the error that a build ended with."""
    path = folder / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith("error: ")), "not tried")


OURS = {"entropy2": "entropy", "entropy": "entropy", "minmax": "minmax", "cache": "entropy"}


def _shown(found: Counter[str]) -> str:
    return ", ".join(f"{count} {precision}" for precision, count in sorted(found.items()))


def _times(layers: Sequence[Layer], found: dict[str, Any]) -> dict[str, Any]:
    """Return the whole times, and of each layer its kind, precision and times, all in microseconds."""
    kinds = {layer.name: (layer.kind, layer.precision) for layer in layers}
    columns = [found["layers"][batch] for batch in ("1", str(BATCH))]
    rows = [
        [name, *kinds.get(name, ("", "")), *(round(1e3 * ms, 2) for ms in (one, many))]
        for (name, one), (_, many) in zip(*columns, strict=True)
    ]
    return {
        "us": [round(1e3 * found["ms"][one]["median"], 1) for one in ("1", str(BATCH))],
        "layers": rows,
    }


def _agreement(folder: Path, name: str) -> str:
    if not (folder / "expected.npz").exists():
        return ""
    made, expected = np.load(folder / f"{name}.npz"), np.load(folder / "expected.npz")
    (output, *_) = made.files
    values, found = made[output].astype(np.float64), []
    for kind in ("fp32", "simulated", "integer"):
        wanted = expected[f"{kind}:{output}"].astype(np.float64)
        noise = np.square(wanted - values).sum()
        found.append(f"{10 * np.log10(np.square(wanted).sum() / noise):5.1f}")
    if values.ndim == 2:
        for kind in ("fp32", "simulated"):
            same = expected[f"{kind}:{output}"].argmax(1) == values.argmax(1)
            found.append(f"{100 * same.mean():6.2f} %")
    return " ".join(found)


def _ratios(log: Path, method: str, theirs: dict[str, float]) -> str:
    ours = Calibration.read(log.parent.parent / f"{method}.json").ranges
    ratios = [127 * theirs[name] / ours[name].amax for name in ours if name in theirs]
    equal = sum(abs(ratio - 1) < 1e-4 for ratio in ratios)
    middle = statistics.median(ratios)
    return f"{len(ratios):3} {equal:3}  {min(ratios):.4f} {middle:.4f} {max(ratios):.4f}"


def main() -> None:
    """Do a step for the networks named, or for all."""
    step, home = sys.argv[1], Path(sys.argv[2]).absolute()
    if step == "run":
        run_engine(home, sys.argv[3])
        return
    words = [word for word in sys.argv[3:] if not word.startswith("--variants=")]
    picked = next((word for word in sys.argv[3:] if word not in words), "=" + ",".join(VARIANTS))
    variants = picked.partition("=")[2].split(",")
    there = sorted(path.parent.name for path in home.glob("*/calibration.npz"))
    names = words or sorted({*SAMPLES, RANDOM, *there})
    if step == "prepare":
        for name in names:
            folder = home / name
            if not (folder / "model.onnx").exists():
                sample(name, folder)
            for one in (calibrated, quantized, simulated) if not is_prepared(folder) else ():
                one(folder)
    elif step == "measure":
        measure(home, names, variants)
    elif not report(home, names, variants):
        sys.exit("no engine was run")


if __name__ == "__main__":
    main()
