"""docs/questions.md: its commands run on planted problems and print the answers that it quotes."""

import json
import re
import shlex
import struct

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.conftest import SAMPLES
from tests.evidence.layers import engines
from tests.fixtures.answered import LEVELS, LOGS
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.pictures import paint, template_classifier
from tests.fixtures.tables import each
from trtcal.check.preprocessing import NORMAL
from trtcal.cli.main import run_command

DOCS = SAMPLES.parent / "docs"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (?:(.*?) )?\| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((DOCS / "questions.md").read_text())
ASKED = [row for row in ROWS if row[2]]
LINKED = [row for row in ROWS if not row[2]]
PLANTED = 30  # problems, at least
REFUSED = ("47", "48")  # what the commands of these are given is wrong

FATAL = ("noscales", "illegal", "noimpl", "removed")


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
        _run("trtcal calibrate net.onnx --data data.npz --all-tensors -o every.json -q")
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


@each("row", LINKED)
def test_the_section_is_there(row):
    page, _, anchor = re.search(r"\((.+)\)", row[3])[1].partition("#")
    heads = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
