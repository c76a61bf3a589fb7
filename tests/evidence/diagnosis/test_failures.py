"""A build that gave no engine: every command says so, and why, in the same words."""

import json

import numpy as np
import onnx
import pytest

from tests.fixtures.commands import run, shows, succeed
from tests.fixtures.engines import needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.structures import (
    computed_scale,
    image,
    integer_products,
    residual,
    stored_table,
    whole,
    with_bias,
    zero_point,
)
from tests.fixtures.tables import each
from tests.fixtures.zoo_net import Net
from trtcal import build
from trtcal.backends.bisection import bisect
from trtcal.config import Config
from trtcal.errors import BackendError
from trtcal.evidence.diagnosis.build_diagnosis import check_engine
from trtcal.evidence.diagnosis.failure import failure_of
from trtcal.evidence.findings import KINDS, of_kind
from trtcal.evidence.layers.reading import Engine
from trtcal.model import load_model

REFUSED = {
    "zero_point": (zero_point, "symmetrically"),
    "quantized_bias": (lambda: with_bias(np.int32), "QuantizeBias=False"),
    "computed_scale": (computed_scale, "constant"),
}
FORMS = {  # form -> kind of the first finding, what it names
    "residual": (lambda: residual(3), "zero_point", "'residual' (3, int8)"),
    "unsigned": (lambda: residual(128, np.uint8), "zero_point", "'residual' (128, uint8)"),
    "sixteen bits": (lambda: residual(0, np.int16), "qdq_type", "'residual' (INT16)"),
    "dynamic": (integer_products, "integer_operators", "'product' (MatMulInteger)"),
    "table": (stored_table, "stored_integers", "'lookup'"),
    "unsigned codes": (lambda: residual(0, np.uint8), "unsigned_codes", "'residual'"),
    "foreign": (residual, "float32_rest", "1 of 1 heavy nodes"),
}
MISLEADING = ("pdate the driver", "profiling verbosity", "can run in INT8")
TYPE_ERROR = (
    "[E] [nodes.cpp::check::4] Error Code 4: API Usage Error (dq_bias: input has type Int32 but must "
    "have type FP8, FP4, Int4, Int8, or UInt8. In check at /a/nodes.cpp:4)\n"
)
NO_DRIVER = (
    "[E] [checks.cpp::catchCudaError::9] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/a/checks.cpp:9 (cudaError 35: CUDA driver version is insufficient for CUDA runtime version))\n"
)
PLACE = '[E] ModelImporter.cpp:1: While parsing node number 2 [DequantizeLinear -> "t3"]:\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.zeros((2, 8, 8, 8), np.float32))
    return tmp_path


@needs_rtx
@each("kind", REFUSED)
def test_every_command_names_what_the_graph_shows(kind, here, capsys):
    make, fix = REFUSED[kind]
    onnx.save(make(), "model.onnx")
    onnx.save(whole().proto(), "other.onnx")
    folder, log = f"built-{kind}", f"built-{kind}/build.log"
    status, out, err = run(capsys, "build", "model.onnx", "--target", "sm89", "-o", folder)
    assert status == 3
    shows(out + err, fix, "trtcal diagnose")
    cause = failure_of(here / log)
    assert cause.kind == kind
    for words, expected in {
        ("log", log): 1,
        ("layers", "show", folder): 2,
        ("layers", "fusions", "model.onnx", folder): 2,
        ("compare", "other.onnx", folder, "--data", "data.npz"): 2,
        ("report", folder): 0,
        ("diagnose", folder): 0,
        ("diagnose", folder, "--model", "model.onnx"): 0,
        ("diagnose", "--log", log): 0,
    }.items():
        status, out, err = run(capsys, *words)
        assert status == expected, err
        assert cause.what.split(", which")[0] in out + err, words
        assert fix in out + err, words
        assert not [text for text in MISLEADING if text in out + err], words
        if words[0] == "diagnose":
            assert out.startswith(f"1. {kind}: "), out


def saved(make):
    model = make()
    model.opset_import[0].version = 21
    onnx.save(model, "model.onnx")


def first_kind(capsys, *words):
    document = json.loads(succeed(capsys, "diagnose", *words, "--json"))
    return document["findings"][0]["kind"], document["coverage"]


@each("name", FORMS)
def test_a_graph_is_answered_by_what_refuses_or_slows_it(name, here, capsys):
    make, kind, place = FORMS[name]
    saved(make)
    found, coverage = first_kind(capsys, "--model", "model.onnx")
    assert found == kind
    assert (coverage is None) == KINDS[kind].is_refused
    shows(succeed(capsys, "diagnose", "--model", "model.onnx"), place)


@needs_rtx
@each("name", FORMS)
def test_a_build_says_the_same_as_its_graph(name, here, capsys):
    make, kind, place = FORMS[name]
    saved(make)
    status, out, err = run(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")
    assert status == (3 if KINDS[kind].is_refused else 0), err
    shows(out + err, place)
    assert first_kind(capsys, "built", "--model", "model.onnx")[0] == kind


@each("name", ["residual", "dynamic"])
def test_a_run_stops_at_what_is_refused_with_the_same_words(name, here, capsys):
    make, _, place = FORMS[name]
    saved(make)
    status, _, err = run(capsys, "run", "model.onnx", "--data", "data.npz", "--target", "sm89")
    assert status == 2
    shows(err, "TensorRT refuses model", place)


def test_the_rest_of_a_foreign_model_becomes_fp16(here, capsys):
    saved(residual)
    succeed(capsys, "quantize", "model.onnx", "--precision", "fp16", "-o", "half.onnx")
    document = json.loads(succeed(capsys, "diagnose", "--model", "half.onnx", "--json"))
    assert "float32_rest" not in {finding["kind"] for finding in document["findings"]}
    assert document["coverage"]["share"] == 100


def test_integer_operators_are_named_without_tensorrt_too(here, capsys):
    saved(integer_products)
    _, _, err = run(capsys, "quantize", "model.onnx", "--precision", "fp16", "-o", "half.onnx")
    shows(err, "nothing to quantize", "`trtcal run FP32.onnx")
    succeed(capsys, "build", "model.onnx", "--target", "cpu", "-o", "built")
    assert first_kind(capsys, "built", "--model", "model.onnx")[0] == "integer_operators"


def test_a_cpu_takes_zero_points(here, capsys):
    saved(lambda: residual(128, np.uint8))
    out = succeed(capsys, "build", "model.onnx", "--target", "cpu", "-o", "built")
    assert "no findings" in out


def deconvolution():
    """Return a float network whose last convolution ends TensorRT-RTX's compiler with an exception."""
    net = image()
    x = net.relu(net.add("Conv", "x", net.weight(8, 8, 3, 3), name="first", pads=[1] * 4))
    wide = {"strides": [2, 2], "dilations": [2, 2], "pads": [2] * 4, "output_padding": [1, 1]}
    return net.done(net.add("ConvTranspose", x, net.weight(8, 8, 3, 3), name="up", **wide)).proto()


@needs_rtx
def test_a_failure_without_a_node_is_bisected_to_it(here, capsys):
    onnx.save(deconvolution(), "model.onnx")
    _, _, err = run(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")
    shows(err, "'up'", "ConvTranspose", "`trtcal prepare model.onnx --outputs")
    for words in (("diagnose", "built"), ("layers", "show", "built"), ("log", "built/build.log")):
        _, out, err = run(capsys, *words)
        shows(out + err, "'up'", "ConvTranspose")
    with fails(BackendError, hint="`trtcal build --bisect`"):
        build("model.onnx", "other", target="sm89")


@each("fails_at", range(8))
def test_halves_lead_to_the_first_node_that_fails(fails_at, here):
    net, x = Net(x=(1, 4)), "x"
    for place in range(7):
        x = net.add("Relu", x, name=f"n{place}")
    model, tried = load_model(net.done(x).proto()), []

    def attempt(part, folder):
        tried.append(len(part.proto.graph.node))
        if len(part.proto.graph.node) > fails_at:
            raise BackendError("no")

    (here / "measured.json").write_text('{"seconds": 1}')
    cause = bisect(model, attempt, of_kind("build_error", None, "it failed"), here, 3.0)
    assert cause.subject == (f"n{fails_at}" if fails_at < 7 else None)
    assert len(tried) <= 3
    unknown = bisect(model, attempt, of_kind("build_error", None, "it failed"), here, 2.9)
    assert unknown.subject is None
    shows(unknown.fix, "--bisect", "3 builds")


def test_a_graph_that_is_refused_says_nothing_of_int8(here, capsys):
    onnx.save(zero_point(), "model.onnx")
    document = json.loads(succeed(capsys, "diagnose", "--model", "model.onnx", "--json"))
    assert document["coverage"] is None
    onnx.save(whole().proto(), "whole.onnx")
    assert "can run in INT8" in succeed(capsys, "diagnose", "--model", "whole.onnx")


def test_the_first_line_that_says_why_is_the_cause(here, capsys):
    (here / "build.log").write_text(PLACE + NO_DRIVER + TYPE_ERROR + NO_DRIVER)
    diagnosis = check_engine(Engine("", ()), Config(here / "trtcal.toml"), [here / "build.log"])
    assert [finding.evidence[0].place for finding in diagnosis.findings] == ["build.log:3"]
    shows(diagnosis.findings[0].fix, "QuantizeBias=False")
    _, out, err = run(capsys, "log", "build.log")
    assert out.index("int32_dequantized") < out.index("parser_node") < out.index("cuda_not_needed")
    shows(err, "dq_bias", "QuantizeBias=False")


def test_a_driver_that_is_too_old_is_still_the_cause_where_nothing_else_is(here):
    warnings = "[W] GPU memory unknown\n[W] CUDA initialization failure with error: 35. Check it\n"
    (here / "build.log").write_text(warnings + "factory function returned nullptr\n")
    shows(failure_of(here / "build.log").fix, "Update the driver")
    (here / "build.log").write_text(NO_DRIVER)
    assert failure_of(here / "build.log").kind == "build_error"


@needs_rtx
def test_a_failed_build_beside_an_older_engine_is_reported(here, capsys):
    onnx.save(whole().proto(), "model.onnx")
    succeed(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")
    onnx.save(zero_point(), "model.onnx")
    assert run(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")[0] == 3
    _, _, err = run(capsys, "diagnose", "built")
    shows(err, "zero point", "older engine")
    onnx.save(whole().proto(), "model.onnx")
    succeed(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")
    assert not list((here / "built").glob("failed-*"))


@needs_rtx
def test_a_log_without_a_word_of_it_has_the_recorded_failure_in_its_json_too(here, capsys):
    onnx.save(zero_point(), "model.onnx")
    assert run(capsys, "build", "model.onnx", "--target", "sm89", "-o", "built")[0] == 3
    (here / "built" / "build.log").write_text("[I] parsing\n")  # as a crash leaves it
    status, out, _ = run(capsys, "log", "--json", "built/build.log")
    summary = json.loads(out)["summary"]
    assert (status, summary["result"], summary["is_failed"]) == (1, "failed", True)
