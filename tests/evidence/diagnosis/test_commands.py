"""What `trtcal build` and `trtcal diagnose` do with limits, failures and wrong input."""

import json

import numpy as np
import onnx
import pytest

from tests.evidence.layers import engines
from tests.fixtures.commands import answer, shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.structures import image, pair, weight, wrong_axis
from trtcal import diagnose
from trtcal.backends.registry import BACKENDS
from trtcal.cli.diagnose import show_findings
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.errors import InputError
from trtcal.evidence.findings import Finding

RTX = BACKENDS["tensorrt-rtx"].availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@needs_rtx
def test_a_build_that_breaks_a_limit_is_kept_and_ends_with_1(here, capsys):
    onnx.save(wrong_axis().proto(), here / "model.onnx")
    assert run_command(["build", "model.onnx", "--target", "sm89", "-o", "loose"]) == 0
    shows(capsys.readouterr().out, "1. no_int8", "2. silent_fallback", "node", "int8", "0 %")
    said = {finding["what"] for finding in answer(capsys, "layers", "show", "loose")["findings"]}
    diagnosed = answer(capsys, "diagnose", "loose", "--model", "model.onnx")["findings"]
    assert said
    assert said <= {finding["what"] for finding in diagnosed}
    assert run_command(["diagnose", "loose", "--model", "model.onnx"]) == 0
    shows(
        capsys.readouterr().out,
        "details: trtcal log loose/build.log",
        "details: trtcal layers show loose",
        "details: trtcal layers fusions model.onnx loose",
    )
    (here / "trtcal.toml").write_text('limits = ["silent_fallbacks == 0"]\n')
    assert run_command(["build", "model.onnx", "--target", "sm89", "-o", "strict"]) == 1
    for file in ("engine.plan", "build.json", "diagnosis.json"):
        assert (here / "strict" / file).exists()
    (here / "trtcal.toml").write_text(
        'limits = ["silent_fallback == 0"]\n'
        '[[suppress]]\nkind = "silent_fallback"\nsubject = "no*"\nreason = "it is small"\n'
    )
    assert run_command(["diagnose", "strict"]) == 0
    shows(capsys.readouterr().out, "accepted: silent_fallback node", "it is small")


@needs_rtx
def test_a_fusion_that_is_split_and_can_be_fixed_is_a_finding(here, capsys):
    net = image()
    scales = np.full(8, 0.01)
    y = net.add("Conv", pair(net, "x"), weight(net, (8, 8, 3, 3), scales, axis=0), name="conv")
    net.done(net.relu(pair(net, y)))
    onnx.save(net.proto(), here / "model.onnx")
    assert run_command(["build", "model.onnx", "--target", "sm89", "-o", "made"]) == 0
    shows(capsys.readouterr().out, "broken_fusion", "--add inner-pairs")


def test_a_graph_alone_says_what_will_run_in_float(here, capsys):
    onnx.save(wrong_axis().proto(), here / "model.onnx")
    assert run_command(["diagnose", "--model", "model.onnx"]) == 0
    shows(capsys.readouterr().out, "1. wrong_axis", "node", "graph")


def test_a_log_that_is_none_is_not_called_clean(here, capsys):
    (here / "notes.txt").write_text("Nothing that a builder prints.\n" * 20)
    assert run_command(["diagnose", "--log", "notes.txt"]) == 0
    captured = capsys.readouterr()
    shows(captured.err, "logs")
    assert "0 log_events" in captured.out


def test_a_model_given_as_a_log_is_refused(here, capsys):
    onnx.save(wrong_axis().proto(), here / "model.onnx")
    assert run_command(["diagnose", "--log", "model.onnx"]) == 2
    shows(capsys.readouterr().err, "model.onnx", "an ONNX model")


def test_layers_of_another_builder_are_held_against_the_model(here, capsys):
    onnx.save(wrong_axis().proto(), here / "model.onnx")

    def tensor(name, layout):
        return {"Name": name, "Dimensions": [1, 8, 8, 8], "Format/Datatype": layout}

    layer = {
        "Name": "node",
        "LayerType": "CaskConvolution",
        "Inputs": [tensor("x", "Row major linear FP32")],
        "Outputs": [tensor("y", "Row major linear FP32")],
        "Weights": {"Type": "Float", "Count": 576},
        "TacticName": "sm80_xmma_fprop_f32f32",
    }
    (here / "graph.json").write_text(json.dumps({"Layers": [layer]}))
    arguments = ["diagnose", "--layers", "graph.json", "--model", "model.onnx"]
    assert run_command(arguments) == 0
    shows(capsys.readouterr().out, "silent_fallback", "node", "int8", "fp32", "axis 1", "axis 0")


@needs_rtx
def test_layers_that_a_calibrator_gave_int8_are_counted_without_qdq_in_the_model(here, capsys):
    """TensorRT up to 10 takes ranges from a calibrator: the model that it builds has no Q/DQ."""
    conv_net(here / "net.onnx")
    chain = [("first + relu1", "x", "b", "int8"), ("second + add + relu2", "b", "e", "fp32")]
    rows = [
        (engines.conv(name, [engines.tensor(read, kind)], [engines.tensor(made, "fp32")]), 0.1)
        for name, read, made, kind in chain
    ]
    rows[1][0].update(Weights={"Type": "Float", "Count": 1}, TacticName="sgemm")
    (here / "layers.json").write_text(engines.inspected(rows))
    command = ["diagnose", "--layers", "layers.json", "--model", "net.onnx"]
    assert run_command([*command, "--json"]) == 0
    coverage = json.loads(capsys.readouterr().out)["coverage"]
    assert (coverage["is_built"], coverage["int8_nodes"]) == (True, 1)
    assert coverage["rest"][0]["node"] == "second"
    assert "runs in fp32" in coverage["rest"][0]["reason"]


def test_equal_findings_are_printed_once_with_their_number_and_where_all_are(capsys):
    findings = [Finding("fusion_differs", f"n{i}", f"{i} differs", "why", "fix") for i in range(26)]
    findings.append(Finding("fusion_differs", "other", "o differs", "why", "another fix"))
    show_findings(findings, 10, "trtcal diagnose built -v")
    out = capsys.readouterr().out
    shows(out, "1. fusion_differs: 26 missing fusions: n0, n1, n2 and 23 more")
    shows(out, "2. fusion_differs: o differs", "`trtcal diagnose built -v`")
    assert out.count("fusion_differs") == 2
    show_findings(findings, 10)
    assert capsys.readouterr().out.count("fusion_differs") == 10


def test_a_failed_build_says_what_its_log_means(here, capsys):
    proto = wrong_axis().proto()
    for tensor in proto.graph.initializer:
        if tuple(tensor.dims) == (8,) and tensor.data_type == onnx.TensorProto.INT8:
            tensor.raw_data = b"\1" * 8  # zero points, which the parser wants to be 0
    onnx.save(proto, here / "model.onnx")
    assert run_command(["build", "model.onnx", "--target", "sm89", "-o", "made"]) == 3
    shows(capsys.readouterr().err, "node", "zero point")
    assert not (here / "made" / "engine.plan").exists()
    assert run_command(["diagnose", "made"]) == 0
    shows(capsys.readouterr().out, "1. zero_point", "2. build_error")
    assert diagnose("made").counts["log_events"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing"),
        (["nowhere"], "nowhere"),
        (["--log", "nowhere.log"], "nowhere.log"),
        (["--layers", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_input_is_one_error(here, capsys, arguments, words):
    assert run_command(["diagnose", *arguments]) == 2
    shows(capsys.readouterr().err, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[suppress]]\nkind = "fallback"\n', "suppress.reason"),
        ('[[suppress]]\nkind = "x"\nreason = "y"\nsubjct = "z"\n', "suppress.subjct"),
        ('limits = ["uncalibrated < 1"]\n', "limits"),
        ("limits = 3\n", "limits"),
        ("suppress = [1]\n", "suppress"),
    ],
)
def test_wrong_limits_are_named(tmp_path, text, words):
    (tmp_path / "trtcal.toml").write_text(text)
    with fails(InputError, words):
        read_config(tmp_path / "trtcal.toml")
