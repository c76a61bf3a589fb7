"""Files of trtexec, Polygraphy and Nsight Systems in a report.

Their forms are made by hand after NVIDIA's published sources: they prove reading, not TensorRT.
"""

import base64
import io
import json
import sqlite3
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.fixtures.commands import refused, succeed
from tests.fixtures.fails import fails
from tests.fixtures.measured import FAULT, FAULTY, NAMES, run_once
from tests.fixtures.nsight import LAYERS, write_nsight
from tests.fixtures.schema import schema_errors
from tests.fixtures.slow import slow_but
from tests.fixtures.tables import each
from tests.fixtures.trtexec import (
    GPU,
    debug_name,
    layer_info,
    log_text,
    output_json,
    profile_json,
    tensors_of,
    times_json,
)
from trtcal.errors import InputError
from trtcal.evaluate.comparison import Comparison
from trtcal.evaluate.target_times import TargetTime
from trtcal.model import load_model
from trtcal.reporting.document import assemble
from trtcal.reporting.measured import Measured, with_measured
from trtcal.reporting.render import render
from trtcal.runs.figures import figures_of_run
from trtcal.wings.devices.differing import first_difference

VERSIONS = ("8.6.1", "10.8.0", "11.1.0")
NODES = [("stem/conv", "int8"), ("widen/conv", "int8"), ("head/gemm", "fp32")]
FAST, SLOW = 0.4, 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_once(tmp_path_factory)


@pytest.fixture(scope="module")
def feeds(run):
    return np.ascontiguousarray(np.load(run / "test.npz")["image"][:4], np.float32)


@pytest.fixture
def place(tmp_path, feeds):
    (tmp_path / "image.bin").write_bytes(feeds.tobytes())
    return tmp_path


def model_of(run, name="int8"):
    return (run / "models" / f"{name}.onnx").read_bytes()


def write_times(place, version="10.8.0", names=NAMES):
    for name in names:
        ms = FAST if name == "int8" else SLOW
        times = [ms + 0.0005 * (number % 9) for number in range(200)]
        (place / f"{name}.times.json").write_text(times_json(version, times))
        (place / f"{name}.log").write_text(log_text(version, ms))


def write_inside(place, version):
    """Write what trtexec says of the layers of int8."""
    (place / "int8.layers.json").write_text(layer_info(version, NODES))
    names = [layer["Name"] for layer in json.loads(layer_info(version, NODES))["Layers"]]
    (place / "int8.profile.json").write_text(
        profile_json(list(zip(names, (0.1, 0.2, 0.05), strict=True)))
    )


def report(run, *files):
    document = assemble(run, [str(file) for file in files])
    assert not schema_errors(document)
    return document


def imported(document, name="int8"):
    return next(each for each in document["measured"]["imports"] if each["variant"] == name)


@pytest.mark.parametrize("version", slow_but(VERSIONS, "10.8.0"))
def test_a_measurement_is_in_chart_layers_and_names_the_first_differing_tensor(
    run, place, feeds, version, monkeypatch
):
    write_times(place, version)
    write_inside(place, version)
    monkeypatch.setenv("FAULT", FAULT)
    outputs = tensors_of(model_of(run), feeds.tobytes())
    inner = ["stem/relu6_out", "widen/bn_out", "widen/relu_out", "narrow/relu_out"]
    known = [name for name in inner if name.encode() in model_of(run)]
    assert "widen/bn_out" in known
    if version == "8.6.1":
        known = []  # it has no debug tensors
    (place / "int8-debug").mkdir()
    for number, (name, array) in enumerate(
        tensors_of(model_of(run), feeds.tobytes(), known).items()
    ):
        if known:
            np.save(place / "int8-debug" / debug_name(number, name), array)
    (place / "int8.output.json").write_text(output_json(outputs))
    files = [f"image={place / 'image.bin'}", *sorted(place.glob("*.json")), *place.glob("*.log")]
    document = report(run, *files, place / "int8-debug")

    entry, estimates = imported(document), document["measured"]["verdict"]["estimates"]
    assert (entry["on"], entry["hardware"]) == ("sm86", f"{GPU}, TensorRT {version}")
    low, high = entry["interval_ms"]
    assert low <= entry["ms"] <= high < low + 0.002
    assert estimates[0]["is_measured"]
    least, most = imported(document, "digits")["interval_ms"]
    assert (estimates[0]["low"], estimates[0]["high"]) == (least / high, most / low)
    assert 2.4 < estimates[0]["low"] <= estimates[0]["ratio"] <= estimates[0]["high"] < 2.6
    assert ("int8", "latency_p50@sm86") in figures_of_run(document)
    page = render(document)
    assert "p50 on sm86 (ms)" in page
    assert "estimated latency" not in page
    build = next(build for build in document["builds"] if build["model_name"] == "int8")
    times = document["measured"]["builds"][build["digest"]]["times_ms"]
    assert sorted(times.values()) == [0.05, 0.1, 0.2]
    got = {outcome["node"]: outcome["got"] for outcome in build["outcomes"]}
    assert (got["stem/conv"], got["head/gemm"]) == ("int8", "fp32")
    difference = entry["difference"]
    assert difference["tensor"] == ("logits" if version == "8.6.1" else "widen/bn_out")
    assert difference["difference"] > difference["allowed"] > 0
    if version != "8.6.1":
        assert (difference["place"], difference["node"]) == (2, FAULTY)
    assert any(
        difference["tensor"] in reason for reason in document["measured"]["verdict"]["reasons"]
    )
    assert ("transfers" in " ".join(entry["warnings"])) == version.startswith("11")


def test_an_engine_that_only_rounds_elsewhere_does_not_differ(run, place, feeds):
    names = ["stem/relu6_out", "widen/relu_out", "logits"]
    tensors = tensors_of(model_of(run), feeds.tobytes(), names)
    rounded = {name: array.astype(np.float16).astype(np.float32) for name, array in tensors.items()}
    (place / "int8.output.json").write_text(output_json(rounded))
    entry = imported(report(run, place / "int8.output.json", f"image={place / 'image.bin'}"))
    assert (entry["difference"]["tensor"], entry["difference"]["compared"]) == (None, 3)
    assert not any("differs" in warning for warning in entry["warnings"])


def test_scales_in_constant_nodes_count_as_those_in_initializers(run, feeds):
    model = load_model(run / "models" / "int8.onnx")
    proto = onnx.ModelProto.FromString(model_of(run))
    names = {node.input[1] for node in proto.graph.node if node.op_type == "QuantizeLinear"}
    scales = [tensor for tensor in proto.graph.initializer if tensor.name in names]
    nodes = [onnx.helper.make_node("Constant", [], [each.name], value=each) for each in scales]
    for position, (scale, node) in enumerate(zip(scales, nodes, strict=True)):
        proto.graph.initializer.remove(scale)
        proto.graph.node.insert(position, node)
    zeros = {"logits": np.zeros((4, 10), np.float32)}
    both = (model, replace(model, proto=proto))
    assert nodes
    first, other = (first_difference(each, {"image": feeds}, zeros) for each in both)
    assert first == other


def test_a_value_that_is_no_number_differs(run, place, feeds):
    tensors = tensors_of(model_of(run), feeds.tobytes())
    tensors["logits"][1, 2] = np.nan
    (place / "int8.output.json").write_text(output_json(tensors))
    entry = imported(report(run, place / "int8.output.json", f"image={place / 'image.bin'}"))
    assert (entry["difference"]["tensor"], entry["difference"]["difference"]) == ("logits", None)


def test_raw_debug_tensors_and_polygraphys_files_are_compared(run, place, feeds, monkeypatch):
    monkeypatch.setenv("FAULT", FAULT)
    tensors = tensors_of(model_of(run), feeds.tobytes(), ["widen/bn_out", "logits"])
    (place / "widen_bn_out.raw").write_bytes(tensors["widen/bn_out"].tobytes())
    inputs, saved = place / "inputs.json", place / "results.json"
    inputs.write_text(json.dumps([{"image": encoded(feeds)}]))
    lazy = {"values": encoded(tensors["logits"]), "polygraphy_class": "LazyArray"}
    iteration = {"outputs": {"logits": lazy}, "polygraphy_class": "IterationResult"}
    runs = [["onnxrt-runner-N0", [{"outputs": {}}]], ["trt-runner-N0", [iteration]]]
    saved.write_text(json.dumps({"lst": runs, "polygraphy_class": "RunResults"}))
    raw = f"int8={place / 'widen_bn_out.raw'}"
    entry = imported(report(run, raw, f"int8={saved}", inputs))
    assert (entry["difference"]["tensor"], entry["difference"]["compared"]) == ("widen/bn_out", 2)
    entry = imported(report(run, f"int8={saved}", inputs))
    assert entry["difference"]["tensor"] == "logits"


def encoded(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return {"array": base64.b64encode(buffer.getvalue()).decode(), "polygraphy_class": "ndarray"}


def test_without_the_inputs_nothing_is_compared_and_that_is_a_warning(run, place, feeds):
    outputs = tensors_of(model_of(run), feeds.tobytes())
    (place / "int8.output.json").write_text(output_json(outputs))
    entry = imported(report(run, place / "int8.output.json"))
    assert entry["difference"] is None
    assert any("not compared" in warning for warning in entry["warnings"])


def test_a_log_alone_gives_the_median_and_says_that_it_has_no_interval(run, place):
    write_times(place)
    document = report(run, *place.glob("*.log"))
    entry = imported(document)
    assert (entry["ms"], entry["interval_ms"]) == (FAST, [FAST, FAST])
    assert any("exportTimes" in warning for warning in entry["warnings"])
    assert any("coefficient of variance" in warning for warning in entry["warnings"])


def test_a_variant_measured_without_fp32_has_a_time_and_no_speedup(run, place):
    write_times(place, names=("int8",))
    document = report(run, place / "int8.times.json")
    entry = imported(document)
    assert (entry["on"], entry["hardware"]) == ("a device", "a GPU that no file names, TensorRT")
    assert not document["measured"]["verdict"]["estimates"]
    row = document["measured"]["variants"]["int8"]["times"][-1]
    assert (row["is_measured"], row["latency"]) == (True, None)


def test_a_profile_without_a_list_has_the_layers_by_name(run, place):
    (place / "int8.json").write_text(profile_json([('odd "name"', 0.2), ("other", 0.1)]))
    document = report(run, place / "int8.json")
    build = document["builds"][-1]
    assert [layer["name"] for layer in build["layers"]] == ['odd "name"', "other"]
    time = document["measured"]["variants"]["int8"]["times"][-1]
    assert (time["is_measured"], round(time["ms"], 9)) == (True, 0.3)


# --- which variant


def test_a_file_of_no_variant_or_of_two_is_refused_with_their_names(run, place):
    write_times(place)
    times = (place / "int8.times.json").read_text()
    for name, shown in (("times.json", "times.json"), ("digits-int8.json", "int8")):
        (place / name).write_text(times)
        with fails(InputError, shown, hint="digits, int8"):
            report(run, place / name)
    with fails(InputError, "fp16", hint="digits, int8"):
        report(run, f"fp16={place / 'int8.times.json'}")


def test_two_profiles_of_one_engine_are_refused(run, place):
    for name in ("int8.a.json", "int8.b.json"):
        (place / name).write_text(profile_json([("a", 0.2)]))
    with fails(InputError, "int8.b.json", "profile"):
        report(run, place / "int8.a.json", place / "int8.b.json")


def test_a_profile_of_another_engine_is_refused(run, place):
    (place / "int8.layers.json").write_text(layer_info("8.6.1", NODES))
    (place / "int8.profile.json").write_text(profile_json([("a", 0.2)]))
    with fails(InputError, "profile", hint="same engine"):
        report(run, place / "int8.layers.json", place / "int8.profile.json")


# --- Nsight Systems


def test_kernels_of_nsight_are_the_times_of_the_layers(run, place):
    document = report(run, write_nsight(place / "int8.sqlite"))
    entry, build = imported(document), document["builds"][-1]
    assert entry["hardware"].startswith(GPU)
    times = document["measured"]["builds"][build["digest"]]["times_ms"]
    assert times == pytest.approx({name: sum(times_ns) / 1e6 for name, times_ns in LAYERS.items()})


def test_kernels_of_a_cuda_graph_are_of_no_layer(run, place):
    with fails(InputError, "int8.sqlite", hint="--noCudaGraph"):
        report(run, write_nsight(place / "int8.sqlite", graph=True))


def test_views_in_place_of_tables_are_refused(run, place):
    path = write_nsight(place / "int8.sqlite")
    base = sqlite3.connect(path)
    base.execute("DROP TABLE StringIds")
    base.execute("CREATE VIEW StringIds AS SELECT 1 AS id, randomblob(1000000) AS value")
    base.commit()
    base.close()
    with fails(InputError, "int8.sqlite", "StringIds"):
        report(run, path)


# --- what is not as it should be


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], object), allow_pickle=True)
    return buffer.getvalue()


def cut(data):
    return data[: len(data) // 2]


TIMES = b'[ { "latencyMs" : %s, "computeMs" : 1, "h2dMs" : 0, "d2hMs" : 0 } ]'
OUTPUT = b'[ { "name" : "logits"\n , "dimensions" : "%s"\n , "values" : [ %s ] } ]'
HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9, 9), }"
NO_ARRAY = b'{"outputs": {"y": {"array": 5, "polygraphy_class": "x"}}}'
HOSTILE = {
    "no kind": b"what is this?\n",
    "nothing": b"",
    "binary": bytes(range(256)) * 10,
    "times without numbers": TIMES % b'"fast"',
    "negative times": TIMES % b"-1",
    "endless times": TIMES % b"1e400",
    "no times": b'{ "latencyMs" : [] }',
    "half of the times": cut(times_json("8.6.1", [1.0] * 9).encode()),
    "values that do not fit": OUTPUT % (b"9x9", b"1, 2"),
    "huge dimensions": OUTPUT % (b"99999999999999999999x9", b"1"),
    "values that are words": OUTPUT % (b"1", b"one"),
    "a median of nothing": log_text("8.6.1", 1.0)
    .replace("median = 1 ms", "median = 0 ms")
    .encode(),
    "an endless median": log_text("8.6.1", 1.0)
    .replace("median = 1 ms", "median = 1e999 ms")
    .encode(),
    "times of almost nothing": TIMES % b"1e-320",
    "objects": pickled(),
    "half of an array": HEADER.ljust(118) + b"\n",
    "half of a database": b"SQLite format 3\0" + bytes(200),
    "layers that are numbers": b'{"Layers": [1, 2]}',
    "no layers": b'{"Layers": []}',
    "deep": b'{"Layers": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "results of nothing": b'{"lst": [["trt", []]]}',
    "results of objects": b'{"lst": [["trt", [%s]]]}' % NO_ARRAY,
}


@each("name", HOSTILE)
def test_what_is_no_such_file_is_one_error(name, run, tmp_path):
    path = tmp_path / f"int8-{name.replace(' ', '-')}.json"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputError) as caught:
        report(run, path)
    assert caught.value.hint


def test_inputs_of_another_size_are_refused(run, place, feeds):
    (place / "int8.output.json").write_text(output_json(tensors_of(model_of(run), feeds.tobytes())))
    (place / "image.bin").write_bytes(b"12345")
    with fails(InputError, "image.bin", hint="--loadInputs"):
        report(run, place / "int8.output.json", f"image={place / 'image.bin'}")


def test_names_with_control_characters_do_not_reach_the_page(run, place):
    (place / "int8.json").write_text(profile_json([("a\x1b[31m<script>alert(1)</script>", 0.2)]))
    page = render(report(run, place / "int8.json"))
    assert "\x1b" not in page
    assert "<script>alert" not in page


# --- the commands


def test_compare_judges_limits_by_what_was_measured(run, place, tmp_path, capsys):
    write_times(place)
    files = [f"--measured={name}@orin={place / f'{name}.times.json'}" for name in NAMES]
    models = [run / "models" / f"{name}.onnx" for name in NAMES]
    output = tmp_path / "comparison.json"
    words = ["compare", *models, "--data", run / "test.npz", "-o", output, *files]
    words += ["--limit", "top1 >= -20"]
    limits = ["--limit", "speedup@orin >= 2.4", "--limit", "latency_p50@orin <= 0.5 ms"]
    succeed(capsys, *words, *limits)
    rows = json.loads(output.read_text())["measured"]["variants"]
    assert [rows[name]["times"][0]["target"] for name in NAMES] == ["@orin", "@orin"]
    refused(capsys, *words, "--limit", "speedup@orin >= 2.6", status=1)


def test_report_shows_a_device_that_was_named_and_needs_the_folder_of_a_run(run, place, capsys):
    write_times(place)
    files = [f"--measured={name}@orin={place / f'{name}.log'}" for name in NAMES]
    succeed(capsys, "report", run, *files, "-o", place / "report.html")
    entry = imported(json.loads((place / "report.json").read_text()))
    assert (entry["on"], entry["ms"]) == ("@orin", FAST)
    assert "p50 on @orin (ms)" in (place / "report.html").read_text()
    assert "folder" in refused(capsys, "report", place / "report.json", *files)


@pytest.mark.parametrize("names", [NAMES, NAMES[1:]])
def test_measured_times_go_before_estimates_where_all_variants_have_them(run, names):
    common = {"kernels": 3, "unknown": 0, "compiler": "TensorRT", "too_small": False, "batch": 1}
    ends = {"ms": 1.0, "low_ms": 0.9, "high_ms": 1.1}
    estimate = TargetTime(**common, **ends, gpu="RTX 4090", target="sm89")
    time = TargetTime(**common, **ends, gpu=GPU, target="@orin", is_measured=True)
    comparison = Comparison.read(run / "comparison.json")
    rows = tuple(replace(row, times=(estimate,)) for row in comparison.rows)
    measured = [Measured(name, None, time, {}) for name in names]
    result = with_measured(replace(comparison, rows=rows), measured)
    expected = [time, estimate] if names == NAMES else [estimate, time]
    assert [*result.rows[1].times] == expected
