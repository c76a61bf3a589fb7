"""The whole job, by `trtcal run` and by hand, and what its report says."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.killing import tree
from tests.fixtures.networks import conv_net, samples, transposed_net
from tests.fixtures.slow import SLOW, slow_but
from tests.ptq.nets import wide_net
from trtcal.backends.registry import BACKENDS
from trtcal.check import evaluation_data
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.errors import InputError
from trtcal.evaluate import layerwise
from trtcal.evaluate.comparison import Comparison
from trtcal.evaluate.replay import silent
from trtcal.pipeline import stages as stages_of_run
from trtcal.pipeline.job import run

RTX = BACKENDS["tensorrt-rtx"].availability()
TARGETS = ["cpu", "sm89"] if RTX.works else ["cpu"]

CONFIG = """
model = "net.onnx"
output = "out"
[calibration]
data = "data.npz"
{methods}
[evaluation]
data = "test.npz"
rounds = 3
[plans.mixed]
method = "entropy"
layers = {{ "{layer}" = "fp32" }}
[build]
targets = {targets}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples(tmp_path / "data.npz")
    samples(tmp_path / "test.npz", count=40)
    return tmp_path


def configured(place, network, layer, methods=""):
    network(place / "net.onnx")
    text = CONFIG.format(layer=layer, targets=json.dumps(TARGETS), methods=methods)
    (place / "trtcal.toml").write_text(text)
    return read_config(place / "trtcal.toml")


def stages(folder):
    document = json.loads((folder / "run.json").read_text())
    return {stage["output"]: stage["digest"] for stage in document["stages"]}


def command(*arguments):
    assert run_command([str(argument) for argument in arguments]) == 0


def digest(path):
    return json.loads(path.read_text())["digest"]


def by_hand(place):
    """Every stage as a command of its own, each on the files that the others wrote."""
    hand = place / "hand"
    plan = hand / "plans" / "mixed.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps({"layers": {"second": "fp32"}, "rest": "fp16"}))
    models = []
    kept = ("--data", "data.npz", "--histograms", hand / "histograms.npz")
    for method in ("minmax", "percentile", "entropy"):
        ranges, model = hand / f"calibrations/{method}.json", hand / f"models/int8-{method}.onnx"
        command("calibrate", "net.onnx", *kept, "--method", method, "-o", ranges)
        command("quantize", "net.onnx", "--calibration", ranges, "-o", model)
        models.append(model)
    models.append(hand / "models/mixed.onnx")
    ranges = hand / "calibrations/entropy.json"
    command("quantize", "net.onnx", "--calibration", ranges, "--plan", plan, "-o", models[-1])
    half, floats = hand / "plans" / "fp16.json", hand / "models/fp16.onnx"
    half.write_text(json.dumps({"kind": "plan", "default": "fp16"}))
    ranges = hand / "calibrations/percentile.json"
    command("quantize", "net.onnx", "--calibration", ranges, "--plan", half, "-o", floats)
    for model in (place / "net.onnx", *models, floats):
        for target in TARGETS:
            build = hand / f"builds/{model.stem}-{target}"
            command("build", model, "--target", target, "-o", build)
            command("log", build / "build.log", "-o", build / "events.json")
    comparison = hand / "comparison.json"
    data = ("--data", "test.npz", "--rounds", 3)
    ranges = sorted((hand / "calibrations").glob("*.json"))
    ranges = [path for path in ranges if "data-check" not in path.name]
    shutil.copy(hand / "calibrations/minmax.data-check.json", hand / "data_check.json")
    tails = ("--data", "data.npz", "-o", hand / "tails.json")
    command("ranges", "tails", "net.onnx", *ranges, *tails)
    further = ("--per-layer", "--layer-samples", 64, "--beside", floats)
    command("compare", "net.onnx", *models, *data, *further, "-o", comparison)
    command("report", hand, "-o", hand / "report.html")
    return hand


@SLOW
def test_every_stage_by_hand_gives_the_digests_of_the_run(place):
    methods = 'methods = ["minmax", "percentile", "entropy"]'
    run(configured(place, conv_net, "second", methods))
    hand = by_hand(place)
    from trtcal.documents import digest_file
    from trtcal.model.passes import PASSES
    from trtcal.quantization import read_plan
    from trtcal.wings.forensics.chain import read_chain

    found = stages(place / "out")
    assert len(found) >= 12
    for output, expected in found.items():
        path = hand / output
        if output == "histograms.npz":
            assert digest(hand / "calibrations/minmax.json")  # its digest stands in there
            ranges = json.loads((hand / "calibrations/minmax.json").read_text())
            assert ranges["histograms"] == expected
        elif output == "checkpoints.jsonl":
            assert len(read_chain(place / "out" / output, expected)) > len(PASSES)
        elif path.suffix == ".onnx":
            assert digest_file(path) == expected
        elif output.startswith("plans/"):
            assert read_plan(path).to_document()["digest"] == expected
        else:
            assert digest(path) == expected, output


@SLOW
def test_a_run_again_has_the_same_digests_and_replaces_the_old_one(place):
    config = configured(place, conv_net, "second")
    run(config)
    first = stages(place / "out")
    (place / "out" / "notes.txt").write_text("my own")
    (place / "out" / "builds" / "stray.json").write_text("{}")
    run(config)
    assert stages(place / "out") == first
    assert (place / "out" / "notes.txt").read_text() == "my own"
    assert not (place / "out" / "builds" / "stray.json").exists()
    assert sorted(item.name for item in place.iterdir() if item.name.startswith(".")) == []


@SLOW
def test_an_improved_plan_of_weights_needs_no_ranges_and_is_the_same_by_hand(place):
    text = """
model = "net.onnx"
output = "out"
task = "regression"
calibration = { data = "test.npz", methods = ["minmax"] }
build = { targets = ["cpu"] }
[plans.four]
default = "int4"
block_size = 64
improve = "best"
"""
    wide_net(place / "net.onnx")
    np.savez(place / "test.npz", x=np.load(place / "test.npz")["x"])
    (place / "trtcal.toml").write_text(text)
    result = run(read_config(place / "trtcal.toml"))
    (optimizations,) = result.report["optimizations"]
    assert optimizations["variants"] == ["four-improved"]
    assert "of the quantized model raised" in (place / "out" / "report.html").read_text()
    assert not (place / "out" / "calibrations" / "four-improved.json").exists()
    command("verify", "out")
    found = ["--optimizations", "out/optimizations/four-improved.npz"]
    plan = ["--plan", "out/plans/four-improved.json"]
    command("quantize", "net.onnx", *found, *plan, "-o", "hand.onnx")
    made = place / "out" / "models" / "four-improved.onnx"
    assert (place / "hand.onnx").read_bytes() == made.read_bytes()
    words = " ".join(found + plan).replace("out/", "")
    assert f"MODEL.onnx {words} -o" in (place / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", ["int8-auto", "int8"])
def test_a_plan_with_the_name_of_another_variant_is_refused_before_any_work(place, name):
    conv_net(place / "net.onnx")
    text = CONFIG.format(layer="second", targets=json.dumps(["cpu"]), methods="")
    text = text.replace("mixed]", f'{name}]\nimprove = "fast"').replace(
        "[evaluation]", 'improve = "fast"\n[evaluation]'
    )
    (place / "trtcal.toml").write_text(text)
    with fails(InputError, "int8"):
        run(read_config(place / "trtcal.toml"))
    assert not (place / "out").exists()


@SLOW
def test_an_improved_variant_is_compared_built_reported_and_the_same_again(place):
    configured(place, conv_net, "second")
    samples(place / "data.npz", count=40)
    text = (place / "trtcal.toml").read_text().partition("[plans")[0]
    asked = 'data.npz"\nmethods = ["minmax"]\nimprove = "fast"'
    text = text.replace('data.npz"', asked) + '[build]\ntargets = ["cpu"]'
    (place / "trtcal.toml").write_text(text)
    lines, titles = [], []

    def reporter(title, total):
        titles.append(title)
        return silent(title, total)

    config = read_config(place / "trtcal.toml")
    result = run(config, reporter=reporter, say=lines.append)
    first = stages(place / "out")
    assert any(
        "the optimizations use only 24 samples to fit and 16 to judge" in line for line in lines
    )
    assert "correcting biases" in titles
    (optimizations,) = result.report["optimizations"]
    assert optimizations["variants"] == ["int8-improved"]
    assert optimizations["tries"][-1]["name"] == "bias correction"
    assert "int8-improved" in {build["model_name"] for build in result.report["builds"]}
    assert "of the quantized model" in (place / "out" / "report.html").read_text()
    command("verify", "out")
    found = ["--calibration", "out/calibrations/int8-improved.json"]
    found += ["--optimizations", "out/optimizations/int8-improved.npz"]
    command("quantize", "net.onnx", *found, "-o", "hand.onnx")
    assert (place / "hand.onnx").read_bytes() == (
        place / "out/models/int8-improved.onnx"
    ).read_bytes()
    run(config)
    assert stages(place / "out") == first


def test_a_folder_that_is_not_a_run_is_never_replaced(place):
    config = configured(place, conv_net, "second")
    (place / "out").mkdir()
    (place / "out" / "thesis.txt").write_text("years of work")
    (place / "out" / "run.json").write_text('{"kind": "marathon"}')
    with fails(InputError, "run.json"):
        run(config)
    assert (place / "out" / "thesis.txt").exists()


@SLOW
@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
def test_a_transposed_convolution_gets_no_qdq_where_the_targets_compute_it_in_float(place):
    config = configured(place, transposed_net, "conv")
    np.savez(place / "test.npz", x=np.load(place / "test.npz")["x"])  # it has no classes
    result = run(config)
    page = (result.folder / "report.html").read_text()
    build = next(
        item
        for item in result.report["builds"]
        if item["target"] == "sm89" and item["model_name"] == "int8-auto"
    )
    lost = [outcome for outcome in build["outcomes"] if outcome["got"] != outcome["asked"]]
    assert not lost
    assert build["skipped"] == {"up": "no target has an INT8 kernel for ConvTranspose"}
    assert "no target has an INT8 kernel for ConvTranspose" in page


def test_a_failing_build_does_not_stop_the_run(place, monkeypatch):
    from trtcal.errors import BackendError

    def broken(*arguments):
        raise BackendError("the builder failed: out of tactics")

    monkeypatch.setattr("trtcal.backends.child.run_worker", broken)
    config = configured(place, conv_net, "second")
    result = run(config)
    assert result.missing_builds["int8-auto for cpu"] == "the builder failed: out of tactics"
    gpus = [("TensorRT", target, 8) for target in TARGETS if target != "cpu"]
    for variant in result.report["measured"]["variants"].values():  # FP32 and FP16 among them
        times = [(time["compiler"], time["target"], time["batch"]) for time in variant["times"]]
        assert times == gpus
    assert (result.folder / "report.html").exists()
    shutil.rmtree(result.folder)


@SLOW
def test_a_plan_with_float16_runs_and_one_about_nothing_stops_before_the_data(place, monkeypatch):
    configured(place, conv_net, "second")
    text = (place / "trtcal.toml").read_text() + "[calibration.parameters]\n[plans.half]\n"
    rules = 'default = "fp16"\nrules = [{ pattern = "%s", precision = "int8" }]\n'
    (place / "trtcal.toml").write_text(text + rules % "sec*")
    report = run(read_config(place / "trtcal.toml")).report
    asked = {
        one["node"]: one["asked"]
        for build in report["builds"]
        for one in build["outcomes"]
        if build["model_name"] == "half"
    }
    assert asked == {"first": "fp16", "second": "int8", "gemm": "fp16"}
    assert any("rules" in plan for plan in report["plans"])
    (place / "trtcal.toml").write_text(text + rules % "third")
    monkeypatch.setattr("trtcal.pipeline.stages.observe", lambda *_, **__: pytest.fail("it looked"))
    with fails(InputError, "third", hint="optional"):
        run(read_config(place / "trtcal.toml"))


@SLOW
def test_a_fixed_batch_that_is_more_than_the_samples_followed_layer_by_layer(place, capsys):
    import onnx

    configured(place, conv_net, "second")
    proto = onnx.load(place / "net.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(proto, place / "net.onnx")
    text = (
        (place / "trtcal.toml").read_text().replace("rounds = 3", "rounds = 3\nlayer_samples = 3")
    )
    (place / "trtcal.toml").write_text(text.replace('"sm89"', '"cpu"'))
    result = run(read_config(place / "trtcal.toml"))
    layers = result.report["comparison"]["rows"][1]["layers"]
    assert layers["samples"] == 8


@pytest.mark.skipif(not RTX.works, reason="TensorRT-RTX is not installed")
def test_a_target_that_the_installed_compiler_does_not_know_is_said_before_the_work(place):
    config = configured(place, conv_net, "head")
    for target in ("sm99", "sm89,sm99"):
        unknown = replace(config, build=replace(config.build, targets=(target,)))
        with fails(InputError, "sm99"):
            run(unknown, "trtcal run", silent)
        assert not (place / "out").exists()


@SLOW
def test_a_report_made_again_keeps_what_the_run_knew_unless_it_was_measured_anew(
    place, monkeypatch
):
    from trtcal.runs.history import History

    config = configured(place, conv_net, "second")
    (place / "trtcal.toml").write_text(
        (place / "trtcal.toml").read_text() + "\n[report]\nprice_per_hour = 2\n"
    )
    history = History(place / "h.sqlite")
    first = run(config, history=history)
    history.record(first.report)
    second = run(config, history=history)
    assert second.report["measured"]["against"]["run"]["number"] == 1
    command("report", place / "out", "-o", place / "page.html")
    again = json.loads((place / "page.json").read_text())["measured"]
    assert again["against"] == second.report["measured"]["against"]
    assert again["costs"]["price"]["per_hour"] == 2
    comparison = json.loads((place / "out" / "comparison.json").read_text())
    comparison["measured"]["variants"]["net"]["latency"]["p50_ms"] *= 2
    (place / "out" / "comparison.json").write_text(json.dumps(comparison))
    command("report", place / "out", "-o", place / "page.html")
    anew = json.loads((place / "page.json").read_text())["measured"]
    kept = {figure["figure"] for figure in anew["against"]["figures"]}
    assert not kept & {"latency_p50", "speedup", "cost_per_million"}
    assert anew["costs"] != again["costs"]


KILLED = """
import os, signal, sys
from trtcal.cli.main import run_command
def kill(event, arguments, left=[int(sys.argv[1])]):
    if event == "os.rename" and str(arguments[1]).endswith("/comparison.json"):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
run_command(["run", "trtcal.toml", "--no-history"])
"""


@pytest.mark.parametrize(
    ("renames", "following"),
    slow_but([(1, "verify out"), (3, "run trtcal.toml --allow-undecided")], (1, "verify out")),
)
def test_a_killed_run_leaves_the_old_run_or_the_new_and_the_next_command_clears_up(
    place, renames, following
):
    conv_net(place / "net.onnx")
    text = '[calibration]\ndata = "data.npz"\nmethods = ["minmax"]\n[evaluation]\ndata = "test.npz"'
    (place / "trtcal.toml").write_text(
        f'model = "net.onnx"\noutput = "out"\n{text}\nrounds = 2\n[build]\ntargets = ["gpu"]\n'
    )
    run(read_config(place / "trtcal.toml"))
    samples(place / "test.npz", count=16)
    before = tree(place / "out")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(renames)], check=False)
    assert killed.returncode == -signal.SIGKILL
    command(*following.split())
    command("verify", "out")
    assert (tree(place / "out") == before) == (renames == 1)
    assert not [name for name in tree(place) if name.startswith(".") or "/." in name]


@SLOW
def test_a_run_that_optimizes_int8_checks_and_follows_the_test_data_once(place, monkeypatch):
    config = configured(place, conv_net, "second")
    build = replace(config.build, targets=("cpu",))
    calls = []

    def counted(module, name):
        work = getattr(module, name)

        def call(*arguments, **options):
            calls.append(name)
            return work(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    counted(evaluation_data, "take_samples")
    counted(layerwise, "_run")
    counted(stages_of_run, "compare")
    monkeypatch.setattr(stages_of_run, "falls_short", lambda comparison: True)
    result = run(replace(config, build=build, plans={}))
    rows = Comparison.read(result.folder / "comparison.json").rows
    assert rows[-1].name == "int8-improved"
    assert all(row.layers for row in rows[1:])
    kinds = {name: calls.count(name) for name in dict.fromkeys(calls)}
    assert kinds == {"compare": 2, "take_samples": 2, "_run": 2}  # of two sets; of two float models
