"""Make the files that the examples of a page start from: `python -m tests.docs.make NAME`.

A page asks for them with `<!-- run: python -m tests.docs.make NAME -->`. Each maker is a function here
that writes into the current folder; its name is the NAME, with `-` for `_`.
"""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

MAKERS: dict[str, Callable[[], None]] = {}
ROOT = Path(__file__).parents[2]
TARGET = "sm89" if importlib.util.find_spec("tensorrt_rtx") else "cpu"  # the extra may be missing


def _trtcal(line: str) -> None:
    from trtcal.cli.main import run_command

    if run_command([*line.split(), "-q"]) != 0:
        sys.exit(f"trtcal {line} failed")


def maker(make: Callable[[], None]) -> Callable[[], None]:
    """Register a maker under its name."""
    MAKERS[make.__name__.replace("_", "-")] = make
    return make


@maker
def model() -> None:
    """Write model.onnx, calibration.npz and test.npz: the sample of digits under short names."""
    for source, name in (("digits", "model"), ("calibration", "calibration"), ("test", "test")):
        suffix = ".onnx" if name == "model" else ".npz"
        shutil.copy(Path("samples/digits") / f"{source}{suffix}", name + suffix)


@maker
def built() -> None:
    """Write the files of `model`, images.npz, calibration.json, int8.onnx and builds/sm89."""
    model()
    shutil.copy("calibration.npz", "images.npz")
    _trtcal("calibrate model.onnx --data calibration.npz")
    _trtcal("quantize model.onnx --calibration calibration.json -o int8.onnx")
    _trtcal(f"build int8.onnx --target {TARGET} -o builds/sm89")


@maker
def slices() -> None:
    """Write slices.csv: for each test image whether it is one of the first half."""
    rows = ["half", *("first" if number < 250 else "second" for number in range(500))]
    Path("slices.csv").write_text("".join(f"{row}\n" for row in rows))


@maker
def two_runs() -> None:
    """Write two reports of the gallery: reports/before, which is in the history, and reports/digits."""
    for source, name in (("digits-glitch", "before"), ("digits", "digits")):
        folder = Path("reports") / name
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "reports" / f"{source}.json", folder / "report.json")
    _trtcal("history add reports/before --project digits")


@maker
def costly_layer() -> None:
    """Write model.onnx, calibration.npz and test.npz: digits with a tensor too wide for INT8."""
    from tests.docs import costly_layer

    costly_layer.make(Path())


@maker
def slow_engine() -> None:
    """Write int8/ and fp16/ with layers and profile, and the logs int8_only.log and skipped.log."""
    from tests.docs import slow_engine

    slow_engine.make(Path())


@maker
def upsampling() -> None:
    """Write segment.onnx, a convolution and a transposed one, and images.npz."""
    from tests.fixtures.networks import samples, transposed_net

    transposed_net(Path("segment.onnx"))
    samples(Path("images.npz"), count=64)


MISSING = (
    "[W] [TRT] Missing scale and zero-point for tensor {}, expect fall back to non-int8 "
    "implementation for any layer consuming or producing given tensor"
)
TRTEXEC = f"""\
&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8 --calib=net.cache
[I] FP32 and INT8 precisions have been specified - more performance might be enabled by additionally \
specifying --fp16 or --best
{MISSING.format("c")}
{MISSING.format("y")}
[W] [TRT] Tactic Device request: 3105MB Available: 1500MB. Device memory is insufficient to use tactic.
[W] [TRT] UNSUPPORTED_STATE: Skipping tactic 3 due to insufficient memory on requested size of \
3255828480 detected for tactic 0x0000000000000004.
[V] [TRT] Engine Layer Information:
Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to first + relu1, \
Tactic: 0x00000000000003e8, x[Float(1,3,8,8)] -> \
Reformatted Input Tensor 0 to first + relu1[Int8(1,3,8,8)]
Layer(CaskConvolution): first + relu1, Tactic: 0x02d9f5211e4d2d82, \
Reformatted Input Tensor 0 to first + relu1[Int8(1,3,8,8)] -> b[Float(1,8,8,8)]
Layer(CaskConvolution): second + add + relu2, Tactic: 0x12dbf7d94ee3696d, b[Float(1,8,8,8)] -> \
e[Float(1,8,8,8)]
Layer(CudnnPooling): pool, Tactic: 0xffffffffffffffff, e[Float(1,8,8,8)] -> f[Float(1,8,1,1)]
Layer(CublasConvolution): gemm, Tactic: 0x0000000000000000, f[Float(1,8,1,1)] -> y[Float(1,5)]
[I] Engine built in 4.2 sec.
&&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8 --calib=net.cache
"""


@maker
def trtexec_log() -> None:
    """Write trtexec.log, of an INT8 build by a calibration cache, and its net.onnx."""
    from tests.fixtures.networks import conv_net

    conv_net(Path("net.onnx"))
    Path("trtexec.log").write_text(_stamped(TRTEXEC))


def _stamped(log: str) -> str:
    """Return a log with the time before each message, as trtexec writes it."""
    lines = log.splitlines(keepends=True)
    return "".join(f"[11/20/2026-10:00:00] {one}" if one[0] == "[" else one for one in lines)


@maker
def old_cache() -> None:
    """Write model.onnx and its data, its cache of TensorRT 8.6, and the stale cache of another."""
    import struct

    import numpy as np
    import onnx
    import onnxruntime

    model()
    proto = onnx.load("model.onnx")
    names = [name for node in proto.graph.node for name in node.output]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name != "logits")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    feed = {"image": np.load("calibration.npz")["image"]}
    largest = {"image": feed["image"].max()} | {
        name: np.abs(array).max()
        for name, array in zip(names, session.run(names, feed), strict=True)
    }
    scales = {name: struct.pack("!f", value / 127).hex() for name, value in largest.items()}
    scales["(Unnamed Layer* 27) [Shuffle]_output"] = "3c010204"
    lines = ["TRT-8601-MinMaxCalibration", *(f"{name}: {scale}" for name, scale in scales.items())]
    text = "\n".join(lines) + "\n"
    Path("model.cache").write_text(text)
    Path("stale.cache").write_text(text.replace("widen/", "grow/").replace("8601", "7203"))


DLA = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v8502] # trtexec --onnx=net.onnx --int8 --fp16 --useDLACore=0
[W] [TRT] Layer 'resize' (RESIZE): Unsupported on DLA. Switching this layer's device type to GPU.
[W] [TRT] Layer 'softmax' (SOFTMAX): Unsupported on DLA. Switching this layer's device type to GPU.
[W] [TRT] DLA Layer conv1 does not support dynamic shapes in any dimension.
[W] [TRT] DLA only supports FP16 and Int8 precision type. Switching embed device type to GPU.
[W] [TRT] DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv77
[I] [TRT] ---------- Layers Running on DLA ----------
[I] [TRT] [DlaLayer] {ForeignNode[conv2...relu5]}
[I] [TRT] ---------- Layers Running on GPU ----------
[I] [TRT] [GpuLayer] RESIZE: resize
[I] [TRT] [GpuLayer] SOFTMAX: softmax
[I] [TRT] [GpuLayer] CONVOLUTION: conv1
[W] [TRT] UNSUPPORTED_STATE: Skipping tactic 3 due to insufficient memory on requested size of \
3255828480 detected for tactic 0x0000000000000004.
[I] Engine built in 41.2 sec.
&&&& PASSED TensorRT.trtexec [TensorRT v8502] # trtexec --onnx=net.onnx --int8 --fp16 --useDLACore=0
"""


@maker
def dla_log() -> None:
    """Write dla.log, of a build for the accelerator in which layers go to the GPU."""
    Path("dla.log").write_text(_stamped(DLA))


@maker
def detector() -> None:
    """Write detector.onnx, the same with NMS, and pictures of squares with COCO's annotations."""
    from tests.docs.detector import write_detector, write_pictures

    write_detector(Path("detector.onnx"))
    write_detector(Path("detector-nms.onnx"), with_nms=True)
    write_pictures(Path("images/calibration"), 64, seed=0)
    write_pictures(Path("images/test"), 150, seed=1)


@maker
def transformer() -> None:
    """Write encoder.onnx, and folders of texts, each a feed of its own length."""
    from tests.docs.transformer import write_encoder, write_texts

    write_encoder(Path("encoder.onnx"))
    write_texts(Path("texts"), 64, seed=0)
    write_texts(Path("test"), 96, seed=1)


def main() -> None:
    """Write the files of each NAME."""
    for name in sys.argv[1:]:
        MAKERS[name]()


if __name__ == "__main__":
    main()
