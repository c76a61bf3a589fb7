"""The story of samples/regression: a pass changes a graph in a narrow case, and it is found."""

import dataclasses
import importlib.util
import json
import math
import shlex
import shutil
import sys

import onnx
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.cli.main import run_command
from trtcal.evidence.fusion.fusions import check_fusions
from trtcal.evidence.layers.reading import read_engine
from trtcal.model import load_model
from trtcal.model.passes import PASSES, prepare_with_record
from trtcal.pipeline.own_passes import read_passes
from trtcal.wings.forensics.checkpoints import Checkpoints, GraphTables, write_checkpoints
from trtcal.wings.forensics.delta import difference

SAMPLE = SAMPLES / "regression"
RTX = BACKENDS["tensorrt-rtx"].availability()
PASS, NODE = "tidy-batchnormalization", "block4/bn/held"
NAMES = [each.name for each in (*PASSES, *read_passes(SAMPLE / "passes_v1.py"))]
NUMBER = 1 + NAMES.index(PASS)
LIMIT = "broken_fusions <= 0"


def trtcal(text):
    return run_command(shlex.split(text))


def printed(capsys, text, status=0):
    """Run a command that ends with this status; return what it prints to both streams."""
    ended = trtcal(text)
    out, err = capsys.readouterr()
    assert ended == status, err
    return out, err


def both(story):
    return [story / f"regression-{name}" for name in ("good", "bad")]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Run the sample with both versions of its passes, for the CPU and without a history."""
    place = tmp_path_factory.mktemp("regression")
    for path in SAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, place)
    for name in ("good", "bad"):
        text = (place / f"{name}.toml").read_text()
        text = text.replace('"sm89"', '"cpu"').replace("../../reports/", "")
        (place / f"{name}.toml").write_text(text)
        assert trtcal(f"run {place / name}.toml --trust --no-history -q") == 0
    return place


def prepared(version):
    passes = (*PASSES, *read_passes(SAMPLE / f"passes_{version}.py"))
    model = load_model(SAMPLE / "regression.onnx")
    graphs = GraphTables()
    return prepare_with_record(model, passes=passes, see=graphs.see), graphs.tables


def test_the_model_is_what_its_script_makes():
    spec = importlib.util.spec_from_file_location("regression_make", SAMPLE / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    net = make.network()
    shipped = onnx.load(SAMPLE / "regression.onnx")
    head = next(one for one in shipped.graph.initializer if one.name == "head.weight")
    assert list(head.dims) == [make.CLASSES, make.CHANNELS]
    assert [node.name for node in net.nodes] == [node.name for node in shipped.graph.node]
    assert sum(path.stat().st_size for path in SAMPLE.iterdir() if path.is_file()) < 500_000


def test_of_many_passes_one_differs_at_one_node():
    (good, before), (bad, after) = prepared("v1"), prepared("v2")
    assert len(good.records) == len(bad.records) == 46
    delta = difference(before[-1], after[-1])
    assert (delta.change, delta.node, delta.operator) == ("structure", NODE, "Identity")
    assert not delta.is_gone


@SLOW
def test_verify_names_pass_and_node_runs_it_again_and_alerts(story, capsys):
    good, bad = both(story)
    alert = f"{sys.executable} -c 'import sys; open(sys.argv[1], \"w\").write(sys.stdin.read())'"
    alert += f" {story / 'alert.json'}"
    command = f"trace verify {bad} --baseline {good} --trust --alert {shlex.quote(alert)}"
    out, err = printed(capsys, command, 1)
    assert f"pass '{PASS}' (number {NUMBER})" in err
    assert f"'{NODE}' (Identity)" in err
    assert "its version" in err
    assert "same again" in out
    assert len(out.splitlines()) < 20  # of 46 passes only what caused the delta
    document = json.loads((story / "alert.json").read_text())
    assert document["first"]["name"] == PASS
    assert document["first"]["graph"]["node"] == NODE
    assert document["rerun"] == "same again"


@SLOW
def test_verify_finds_nothing_where_nothing_changed(story, capsys):
    good, _ = both(story)
    printed(capsys, f"trace verify {good} --baseline {good}")
    assert "same outputs" in printed(capsys, f"trace verify {story / 'good.toml'} --trust")[0]


@SLOW
def test_verify_of_a_configuration_runs_its_passes_against_the_last_run(story, capsys):
    text = (story / "good.toml").read_text().replace("passes_v1.py", "passes_v2.py")
    (story / "changed.toml").write_text(text)
    command = f"trace verify {story / 'changed.toml'}"
    assert "--trust" in printed(capsys, command, 2)[1]
    found = json.loads(printed(capsys, f"{command} --trust --json", 1)[0])
    assert (found["first"]["name"], found["first"]["graph"]["node"]) == (PASS, NODE)


def bisecting(good, bad):
    return f"trace bisect --good {good} --bad {bad} --limit '{LIMIT}' --predicted"


@SLOW
def test_bisect_finds_the_pass_in_at_most_six_executions(story, capsys):
    out, err = printed(capsys, f"{bisecting(*both(story))} --trust --json")
    found = json.loads(out)
    assert (found["stage"], found["subsystem"], found["name"]) == ("prepare", "pass", PASS)
    assert found["number"] == NUMBER
    assert NODE in found["debug_info"]
    assert found["executions"] <= 6
    assert found["steps"] <= math.ceil(math.log2(found["candidates"])) + 1
    assert "from the good run" in err


@SLOW
def test_scripts_of_a_run_are_not_run_without_trust(story, capsys):
    good, bad = both(story)
    assert "--trust" in printed(capsys, bisecting(good, bad), 2)[1]
    assert "not run again" in printed(capsys, f"trace verify {bad} --baseline {good}", 1)[1]


@SLOW
def test_show_and_diff_print_the_chain(story, capsys):
    good, bad = both(story)
    lines = json.loads(printed(capsys, f"trace show {good} --json")[0])
    assert [line["number"] for line in lines] == [*range(1, len(lines) + 1)]
    assert lines[NUMBER - 1]["name"] == PASS
    stages = {line["stage"] for line in lines}
    assert {"prepare", "observe", "calibrate", "quantize", "build", "compare"} <= stages
    printed(capsys, f"trace show {good}")
    assert f"first: pass '{PASS}'" in printed(capsys, f"trace diff {good} {bad}")[0]


@SLOW
def test_a_run_keeps_the_checkpoints_of_the_one_that_it_replaced(story, tmp_path, capsys):
    for path in story.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    shutil.copytree(story / "regression-good", tmp_path / "regression-good")
    text = (tmp_path / "good.toml").read_text().replace("passes_v1.py", "passes_v2.py")
    (tmp_path / "good.toml").write_text(text)
    assert trtcal(f"run {tmp_path / 'good.toml'} --trust --no-history -q") == 0
    folder = tmp_path / "regression-good"
    assert Checkpoints.read(folder / "previous").chain[NUMBER - 1].name == PASS
    history = f"--db {tmp_path / 'none.sqlite'}"
    assert trtcal(f"trace verify {folder} {history} --trust") == 1
    assert NODE in capsys.readouterr().err
    assert trtcal(f"verify {folder} -q") == 0
    chain = folder / "checkpoints.jsonl"
    chain.write_text("".join(chain.read_text().splitlines(keepends=True)[:-1]))
    assert trtcal(f"verify {folder} -q") == 1
    assert "checkpoints.jsonl" in capsys.readouterr().out


@SLOW
@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
def test_the_fusion_check_shows_the_break_and_that_this_compiler_fuses_across_it(tmp_path):
    model = prepared("v2")[0].model
    backend = BACKENDS["tensorrt-rtx"]
    built = build(model, backend, BuildOptions("sm89"), tmp_path / "build")
    found = check_fusions(model, layers=read_engine(built.folder))
    match = next(one for one in found.matches if one.root == "block4/act")
    assert match.state == "broken"
    assert NODE in str(match.breakers)
    whole = check_fusions(prepared("v1")[0].model)
    assert {one.state for one in whole.matches if one.root == "block4/act"} == {"whole"}
    verdict = found.verdicts[found.matches.index(match)]
    assert verdict == "differs"  # TensorRT-RTX 1.7 takes the Identity out, other compilers do not


@SLOW
def test_a_stage_with_another_output_runs_the_whole_run_once_more(story, tmp_path, capsys):
    good, _ = both(story)
    found = Checkpoints.read(good)
    number = next(i for i, one in enumerate(found.chain) if one.stage == "calibrate")
    chain = list(found.chain)
    chain[number] = dataclasses.replace(chain[number], after="sha256:other")
    write_checkpoints(tmp_path / "baseline", chain, found.graphs.values())
    command = f"trace verify {good} --baseline {tmp_path / 'baseline'} --trust --json"
    document = json.loads(printed(capsys, command, 1)[0])
    assert document["first"]["name"] == "calibrations/percentile.json"
    assert document["first"]["is_unexplained"]
    assert document["rerun"] == "same again"


@SLOW
def test_bisect_notes_packages_of_another_version(story, tmp_path, capsys):
    for path in both(story):
        shutil.copytree(path, tmp_path / path.name)
    good, bad = both(tmp_path)
    run = json.loads((good / "run.json").read_text())
    run["measured"]["packages"]["onnxruntime"] = "1.0"
    (good / "run.json").write_text(json.dumps(run))
    trtcal(f"{bisecting(good, bad)} --trust")
    assert "onnxruntime 1.0" in capsys.readouterr().err
