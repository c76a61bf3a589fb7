"""docs/questions.md: its commands run on planted problems and print the answers that it quotes."""

import json
import re
import shlex
import struct

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.check.test_check import paint, template_classifier
from tests.conftest import SAMPLES
from tests.evidence.layers import engines
from tests.networks import conv_net, samples
from trtcal.check.preprocessing import NORMAL
from trtcal.cli.main import run_command

DOCS = SAMPLES.parent / "docs"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (?:(.*?) )?\| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((DOCS / "questions.md").read_text())
ASKED = [row for row in ROWS if row[2]]
LINKED = [row for row in ROWS if not row[2]]
PLANTED = 30  # problems, at least
REFUSED = ("47", "48")  # what the commands of these are given is wrong

# Messages as TensorRT, trtexec and Python print them, with their level in front.
LEVELS = {name[0]: f"[11/20/2026-10:00:00] [{name[0]}] [TRT] " for name in ("W", "E", "I", "V")}
MISSING = (
    "Missing scale and zero-point for tensor {}, expect fall back to non-int8 implementation for any "
    "layer consuming or producing given tensor"
)
CONSTRAINT = (
    "No implementation of layer (Unnamed Layer* {}) [Shuffle] obeys the requested constraints. I.e. no "
    "conforming implementation was found for requested layer computation precision and output "
    "precision. Using fastest implementation instead."
)
FATAL = ("noscales", "illegal", "noimpl", "removed")
LOGS = {
    "int8_only": "I FP32 and INT8 precisions have been specified - more performance might be "
    "enabled by "
    "additionally specifying --fp16 or --best",
    "leaky": "W " + MISSING.format("leaky_1_output"),
    "missing": "\n".join("W " + MISSING.format(name) for name in ("c", "y")),
    "short": "I Calibration completed in 0.8 seconds.\n" + "W " + MISSING.format("c"),
    "skipped": "W Tactic Device request: 3105MB Available: 1500MB. Device memory is insufficient to "
    "use "
    "tactic.\nW UNSUPPORTED_STATE: Skipping tactic 3 due to insufficient memory on requested size of "
    "3255828480 detected for tactic 0x0000000000000004.",
    "error_skip": "E Skipping tactic 0x0000000000000002 due to exception [myelin] out of range",
    "copynode": "V Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to conv1, Tactic: "
    "0x00000000000003e8, x (Float[1,3,8,8]) -> Reformatted Input Tensor 0 to conv1 (Int8[1,3:4,8,8])",
    "explicit": "W Calibrator won't be used in explicit precision mode. Use quantization aware "
    "training "
    "to generate network with Quantize/Dequantize nodes.",
    "layernorm": "W Running layernorm after self-attention in FP16 may cause overflow. Forcing "
    "layernorm "
    "layers to run in FP32 precision can help with preserving accuracy.",
    "timing": "W Timing cache header mismatch: invalid timing cache",
    "noscales": "E 4: [standardEngineBuilder.cpp::initCalibrationParams::1460] Error Code 4: Internal "
    "Error (Calibration failure occurred with no scaling factors detected. This could be due to no "
    "int8 "
    "calibrator or insufficient custom scales for network layers.)",
    "zero": "W Tensor dead_relu is uniformly zero.",
    "cachehit": "I Generated calibration scales using calibration cache. Make sure that calibration "
    "cache has latest scales.",
    "illegal": "E 1: [calibrator.cu::add::779] Error Code 1: Cuda Runtime (an illegal memory access "
    "was "
    "encountered)",
    "oom": "E 2: [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested "
    "size was 8589934592 bytes.)",
    "constraints": "\n".join("W " + CONSTRAINT.format(number) for number in range(40)),
    "noimpl": "E 10: [optimizer.cpp::computeCosts::3728] Error Code 10: Internal Error (Could not find "
    "any implementation for node Conv_12 + PWN(Sigmoid_13, Mul_14).)",
    "dla": "W Layer 'resize' (RESIZE): Unsupported on DLA. Switching this layer's device type to GPU.\n"
    "W DLA Layer conv1 does not support dynamic shapes in any dimension.",
    "dlafallback": "W Default DLA is enabled but layer softmax is not supported on DLA, falling "
    "back to "
    "GPU.",
    "deprecated": "W IInt8EntropyCalibrator2 is deprecated. Deprecated in TensorRT 10.1. Superseded by "
    "explicit quantization.",
    "removed": "E AttributeError: module 'tensorrt' has no attribute 'CalibrationAlgoType'",
}


def test_all_59_questions_stand_there_once_each():
    assert [int(row[0]) for row in ROWS] == list(range(1, 60))
    assert len({row[2] for row in ASKED}) >= PLANTED


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with every file that the commands name, each with its problem."""
    folder = tmp_path_factory.mktemp("questions")
    for name, text in LOGS.items():
        head = "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8"
        lines = [LEVELS[line[0]] + line[2:] for line in text.splitlines()]
        if name == "removed":  # Python's own words come without a prefix
            lines = [line.partition("[TRT] ")[2] for line in lines]
        end = [] if name in FATAL else ["&&&& PASSED TensorRT.trtexec [TensorRT v8601]"]
        (folder / f"{name}.log").write_text("\n".join([head, *lines, *end, ""]))
    _write_engines(folder)
    _write_caches(folder)
    _write_pictures(folder)
    samples(folder / "data.npz", count=96)
    samples(folder / "test.npz", count=40)
    _change(conv_net(folder / "net.onnx"), folder / "other.onnx", {"w1": 1.5})
    _change(folder / "net.onnx", folder / "large.onnx", {"w2": 3e5})
    (folder / "half.json").write_text(json.dumps({"default": "fp16"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("net", "other", "large"):
            _run(f"trtcal calibrate {name}.onnx --data data.npz -o {name}.json -q")
        _run("trtcal quantize net.onnx --calibration net.json -o int8.onnx -q")
        model = onnx.load("int8.onnx")
        scales = {one.name: 40 for one in model.graph.initializer if one.name.endswith("/scale")}
        _change(folder / "int8.onnx", folder / "ruined.onnx", scales)
    return folder


def _run(command):
    return run_command(shlex.split(command)[1:])


def _change(source, target, factors):
    """Save a model with some of its constants multiplied."""
    model = onnx.load(source)
    for one in model.graph.initializer:
        if one.name in factors:
            array = numpy_helper.to_array(one)
            changed = (array * factors[one.name]).astype(array.dtype)
            one.CopyFrom(numpy_helper.from_array(changed, one.name))
    onnx.save(model, target)


def _write_engines(folder):
    quantized, floats = engines.float_residual(), "sm80_xmma_fprop_f16f16"
    (folder / "int8.json").write_text(engines.inspected(quantized))
    (folder / "int8-profile.json").write_text(engines.profiled(quantized))

    def conv(name, source, result, dtype, tactic):
        tensors = [engines.tensor(source, dtype)], [engines.tensor(result, dtype)]
        return engines.conv(name, *tensors, "Half", TacticName=tactic), 0.1

    plain = [conv(name, name, f"{name}/out", "fp16", floats) for name in ("a", "b")]
    (folder / "fp16.json").write_text(engines.inspected(plain))
    chain = [("first + relu1", "x", "b"), ("second + add + relu2", "b", "e"), ("gemm", "e", "y")]
    fallen = [conv(*names, "fp32", "sm80_sgemm_tf32f32") for names in chain]
    (folder / "fallback.json").write_text(engines.inspected(fallen))


def _write_caches(folder):
    def cache(version, scales):
        lines = [f"{name}: {struct.pack('!f', scale).hex()}\n" for name, scale in scales.items()]
        return f"TRT-{version}-EntropyCalibration2\n{''.join(lines)}"

    bad = {"x": 0.02, "b": float("inf"), "g": 0.0}
    (folder / "bad.cache").write_text(cache(8601, bad))
    (folder / "old.cache").write_text(cache(7103, {"x": 0.02, "conv_9": 0.1}))


def _write_pictures(folder):
    template_classifier(folder / "picture.onnx", NORMAL)
    pixels = paint(np.random.default_rng(1).integers(0, 6, 64), 2)[0].astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(pixels.shape).astype(np.float32)
    np.savez(folder / "pixels.npz", x=pixels)
    np.savez(folder / "noise.npz", x=noise)


@pytest.mark.parametrize("row", ASKED, ids=lambda row: row[0])
def test_the_command_prints_the_answer(place, monkeypatch, capsys, row):
    monkeypatch.chdir(place)
    _, _, command, answer = row
    status = _run(command.strip("`"))
    captured = capsys.readouterr()
    printed = " ".join((captured.out + captured.err).split())
    assert answer.strip("`") in printed, printed
    assert status == 2 if row[0] in REFUSED else status in (0, 1)


@pytest.mark.parametrize("row", LINKED, ids=lambda row: row[0])
def test_the_section_is_there(row):
    page, _, anchor = re.search(r"\((.+)\)", row[3])[1].partition("#")
    heads = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
