import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from tests.conftest import SAMPLES
from tests.docs.reference.commands import leaves
from tests.fixtures.commands import answer, environment, refused, run, succeed
from tests.fixtures.engines import needs_rtx
from tests.fixtures.house import PACKAGE
from tests.fixtures.networks import conv_net, samples, save
from tests.fixtures.tables import each
from trtcal.cli.main import DEFECT, FIRST, cli, commands
from trtcal.cli.output import printable
from trtcal.documents.schema import COMMANDS as MOVED

IMAGES = np.zeros((4, 3, 8, 8), np.float32)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    return tmp_path


DATA = ("--data", "data.npz")


def test_the_commands_work_on_each_others_files(place, capsys):
    out = succeed(capsys, "calibrate", "net.onnx", *DATA, "--method", "entropy")
    assert "calibration.json" in out
    succeed(capsys, "quantize", "net.onnx", "-o", "int8.onnx")
    succeed(capsys, "build", "int8.onnx", "--target", "cpu", "-o", "build")
    assert "finding" in succeed(capsys, "log", "build/build.log")
    assert "int8" in succeed(capsys, "compare", "net.onnx", "int8.onnx", *DATA, "--rounds", 3)
    assert "report.html" in succeed(capsys, "report", ".", "-o", "report.html")
    assert (place / "report.html").read_text().startswith("<!DOCTYPE html>")


@needs_rtx
def test_a_build_takes_the_targets_of_the_configuration(place, capsys):
    (place / "trtcal.toml").write_text('[build]\ntargets = ["cpu"]\n')
    succeed(capsys, "build", "net.onnx", "-o", "one")
    assert (place / "one" / "build.json").exists()
    (place / "trtcal.toml").write_text('[build]\ntargets = ["cpu", "l4"]\n')
    two = ("--target", "cpu", "--target", "sm80")
    for words, folder, target in (((), "all", "sm89"), (two, "two", "sm80")):
        made = answer(capsys, "build", "net.onnx", *words, "-o", folder)
        assert [one["target"] for one in made["builds"]] == ["cpu", target]
        assert (place / folder / target / "build.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "net.onnx", *DATA),
        ("doctor",),
        ("compare", "net.onnx", "copy.onnx", *DATA, "--rounds", 3),
        ("build", "net.onnx", "--target", "cpu", "-o", "build"),
    ],
)
def test_json_is_all_that_json_prints(place, capsys, arguments):
    (place / "copy.onnx").write_bytes((place / "net.onnx").read_bytes())
    assert isinstance(answer(capsys, *arguments), dict)


def test_bare_calibrate_takes_model_and_data_from_the_configuration(place, capsys):
    (place / "trtcal.toml").write_text('model = "net.onnx"\n[calibration]\ndata = "data.npz"\n')
    succeed(capsys, "calibrate", "--method", "percentile")
    document = json.loads((place / "calibration.json").read_text())
    assert (document["method"], document["samples"]) == ("percentile", 24)


def test_parameters_reach_the_method(place, capsys):
    arguments = ("calibrate", "net.onnx", *DATA, "--method", "percentile")
    succeed(capsys, *arguments, "-p", "percentile=90")
    assert json.loads((place / "calibration.json").read_text())["parameters"] == {"percentile": 90}


def test_a_second_method_runs_no_network(place, capsys, monkeypatch):
    first = ("calibrate", "net.onnx", *DATA, "--histograms", "h.npz")
    succeed(capsys, *first, "--method", "minmax")
    monkeypatch.setattr("trtcal.calibration.lanes.Taps", lambda *_: pytest.fail("it ran"))
    succeed(capsys, *first, "--method", "entropy")


def plan(path, **fields):
    path.write_text(json.dumps(fields))
    return path.name


def test_plans_are_shown_and_diffed_with_and_without_a_model(place, capsys):
    rule = {"op": "Gemm", "precision": "fp16", "reason": "the head"}
    mixed = plan(place / "mixed.json", layers={"first": "fp32"}, rules=[rule])
    whole = plan(place / "int8.json", default="int8")
    model = ("--model", "net.onnx")
    assert "rule 1: op 'Gemm'" in succeed(capsys, "plan", "show", mixed)
    out = succeed(capsys, "plan", "show", mixed, *model)
    assert "rule 1 (op 'Gemm'): the head" in out
    assert "fp32: 1 of 4 nodes, 26 % of weights and 27.3 %" in out
    shown = answer(capsys, "plan", "show", mixed, *model)
    assert len(shown["nodes"]) == 8
    assert shown["plan"]["rules"] == [rule]
    assert len(answer(capsys, "plan", "diff", whole, mixed)["changes"]) == 2
    assert answer(capsys, "plan", "diff", whole, mixed, *model)["changes"] == [
        {"what": "first", "before": "int8", "after": "fp32"},
        {"what": "gemm", "before": "int8", "after": "fp16"},
    ]
    assert "0 differ" in succeed(capsys, "plan", "diff", mixed, mixed)


def test_quantize_takes_globs_and_says_what_became_of_them(place, capsys):
    succeed(capsys, "calibrate", "net.onnx", *DATA)
    base = ("quantize", "net.onnx", "-o", "q.onnx")
    out = succeed(capsys, *base, "--keep-float", "fir*")
    assert "72.7 % of 50.7 kMAC can run in INT8; first: " in out  # 36,904 of 50,728
    assert "first: rule 1 (glob 'fir*'): --keep-float" in out
    asked = answer(capsys, *base, "--only", "sec*")["asked"]
    assert asked == {"first": "fp32", "second": "int8", "gemm": "fp32"}
    half = plan(place / "half.json", default="fp16")
    assert "8 nodes are in fp16, with 2 casts" in succeed(capsys, *base, "--plan", half)
    for wrong in (("--keep-float", "no*"), ("--only", "no*"), ("--only", "*", "--plan", half)):
        refused(capsys, *base, *wrong)


def nan(path):
    images = IMAGES.copy()
    images[1, 0, 0, 0] = np.nan
    np.savez(path, x=images)


def relu_only(path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    save(path, nodes, {}, {"x": ["n", 3, 8, 8]}, {"y": ["n", 3, 8, 8]})


BAD = {
    "calibrate none.onnx --data data.npz": "none.onnx",
    "calibrate corrupt.onnx --data data.npz": "corrupt.onnx",
    "calibrate net.onnx --data none.npz": "none.npz",
    "calibrate net.onnx --data names.npz": "'x'",
    "calibrate net.onnx --data shape.npz": "[4, 1, 8, 8]",
    "calibrate net.onnx --data types.npz": "float64",
    "calibrate net.onnx --data empty.npz": "empty",
    "calibrate net.onnx --data nan.npz": "NaN",
    "calibrate net.onnx --data data.npz --method magic": "'magic'",
    "calibrate net.onnx --data data.npz -p percentile=200": "percentile",
    "calibrate net.onnx --data data.npz -p percentile": "NAME=VALUE",
    "calibrate relu.onnx --data data.npz": "nothing to quantize",
    "calibrate net.onnx": "the data is not given",
    "calibrate --data data.npz": "the model is not given",
    "quantize net.onnx -o int8.onnx": "calibration.json",
    "quantize net.onnx --calibration corrupt.onnx -o int8.onnx": "corrupt.onnx",
    "build net.onnx --target sm999x -o build": "sm999x",
    "build net.onnx --target rtx4091 -o build": "'rtx4091'",
    "build net.onnx -o build": "no target is given",
    "build net.onnx --backend magic -o build": "magic",
    "build net.onnx --target cpu --shapes x=1:2 -o b": "MIN:OPT:MAX",
    "log none.log": "none.log",
    "compare net.onnx none.onnx --data data.npz": "none.onnx",
    "compare net.onnx relu.onnx --data data.npz": "relu",
    "report none": "none",
    "report .": "comparison",
    "run none.toml": "none.toml",
    "run bad.toml": "modle",
    "fly": "no such command",
    "calibrate --batch zero": "--batch",
}


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["runn"], "run"), (["run", "--targt", "x"], "--target"), (["history", "lst"], "list")],
)
def test_a_mistyped_word_gets_the_nearest_ones(capsys, arguments, near):
    err = refused(capsys, *arguments)
    assert err.splitlines()[1].startswith(f"hint: did you mean {near}")


@pytest.mark.parametrize(("line", "says"), BAD.items(), ids=BAD)
def test_bad_input_is_one_error_a_hint_status_2_and_no_output(place, capsys, line, says):
    (place / "corrupt.onnx").write_bytes(b"\x08\x07 this is not ONNX")
    np.savez(place / "names.npz", image=IMAGES)
    np.savez(place / "shape.npz", x=IMAGES[:, :1])
    np.savez(place / "types.npz", x=IMAGES.astype(np.float64))
    np.savez(place / "empty.npz", x=IMAGES[:0])
    nan(place / "nan.npz")
    relu_only(place / "relu.onnx")
    (place / "bad.toml").write_text("modle = 'x'")
    before = sorted(place.rglob("*"))
    status, out, err = run(capsys, *line.split())
    lines = err.strip().splitlines()
    assert (status, out) == (2, "")
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert lines[1].startswith("hint: ")
    assert [line for line in lines[2:] if not line.startswith("docs: docs/")] == []
    assert len(lines) <= 3
    assert sorted(place.rglob("*")) == before


def test_a_gate_that_fails_is_status_1_and_the_results_stay(place, capsys):
    proto = onnx.load(place / "net.onnx")
    for tensor in proto.graph.initializer:
        if tensor.name == "w3":
            tensor.raw_data = np.zeros((5, 8), np.float32).tobytes()
    onnx.save(proto, place / "broken.onnx")
    command = ("compare", "net.onnx", "broken.onnx", *DATA, "--rounds", 3)
    status, out, err = run(capsys, *command, "--limit", "speedup >= 1000")
    assert (status, "broken" in out, "1000.0" in err) == (1, True, True)
    assert (place / "comparison.json").exists()


def test_help_has_an_example_everywhere(capsys):
    assert "Example:" in succeed(capsys, "--help")
    for name in commands():
        assert "Example: trtcal" in " ".join(succeed(capsys, name, "--help").split())


def test_help_lists_every_command_on_one_short_line_in_a_group(capsys):
    out = succeed(capsys, "--help")
    files = {path.stem.strip("_").replace("_", "-") for path in PACKAGE.rglob("cli/*.py")}
    assert set(commands()) <= files
    for name, line in commands().items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_five_are_shown_with_examples_that_parse(capsys):
    out = succeed(capsys)
    assert len(out.splitlines()) <= 24
    assert list(FIRST) == re.findall(r"^  ([a-z]+) ", out, re.MULTILINE)
    for name, example in FIRST.items():
        assert example in out
        cli.get_command(None, name).make_context(name, shlex.split(example)[2:]).close()


def test_every_command_can_be_quiet_and_verbose():
    for context in leaves():
        known = {word for parameter in context.command.params for word in parameter.opts}
        assert {"-q", "-v", "--quiet", "--verbose"} <= known, context.command_path


def test_calibrate_prints_a_summary_and_the_table_with_v(place, capsys):
    data = np.random.default_rng(0).normal(size=(64, 3, 8, 8)).astype(np.float32)
    data[0, 0, 0, 0] = 1000.0
    np.savez(place / "wild.npz", x=data)
    command = ("calibrate", "net.onnx", "--data", "wild.npz", "--method", "percentile")
    status, out, err = run(capsys, *command, "-p", "percentile=99")
    assert (status, "doubtful: x: " in out, "amax" in out) == (0, True, False)
    assert "64 samples" in err
    status, out, err = run(capsys, *command, "-v", "-q")
    assert "amax" in out
    assert err.replace("hint: ", "warning: ").count("warning: ") == len(err.splitlines())


def test_a_broken_configuration_breaks_only_what_needs_it(place, capsys):
    succeed(capsys, "calibrate", "net.onnx", *DATA)
    succeed(capsys, "build", "net.onnx", "--target", "cpu", "-o", "build")
    (place / "trtcal.toml").write_text("modle =")
    for command in (
        *("log build/build.log", "verify build", "ranges show calibration.json", "doctor"),
        *("ranges diff calibration.json calibration.json", "layers show build"),
        *("layers fusions net.onnx build", "history list --db history.sqlite"),
        *("completion bash", "compare --help"),
    ):
        succeed(capsys, *command.split())
    assert "modle =" in refused(capsys, "compare", "net.onnx", "net.onnx", *DATA)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_asks_this_program(capsys, shell):
    script = succeed(capsys, "completion", shell)
    assert f"_TRTCAL_COMPLETE={shell}_complete" in script
    words = "COMP_WORDS" if shell != "zsh" else "words"
    assert words in script


def test_completion_in_bash_knows_commands_and_choices(place):
    script = (
        "source <(cat script); COMP_WORDS=(trtcal cali); COMP_CWORD=1; _trtcal_completion trtcal;"
    )
    code = "import sys; from trtcal.cli.main import main; sys.argv[0] = 'trtcal'; main()"
    (place / "trtcal").write_text(f"#!{sys.executable}\n{code}\n")
    (place / "trtcal").chmod(0o755)
    (place / "script").write_text(CliRunner().invoke(cli, ["completion", "bash"]).stdout)
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", f'{script} echo "${{COMPREPLY[@]}}"'],
        env=environment(PATH=f"{place}:{os.environ['PATH']}"),
        cwd=place,
        capture_output=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == ([b"calibrate"], b"")


PAGES = {"matplotlib", "jinja2", "scipy.optimize", "numba"}


LIBRARIES = {
    *PAGES,
    "numpy",
    "onnx",
    "onnxruntime",
    "rich",
    "scipy",
    "tensorrt_rtx",
    "PIL",
}


@pytest.mark.parametrize(
    ("command", "needed", "own"),
    [
        (["--help"], set(), 20),
        (["quantize", "digits.onnx", "--precision", "int4", "-o", "q.onnx"], {"numpy", "onnx"}, 92),
        (
            ["calibrate", "digits.onnx", "--data", "data.npz"],
            {"numpy", "onnx", "onnxruntime", "PIL", "rich"},  # for the table of candidates
            128,
        ),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(tmp_path, command, needed, own):
    """`own` is the most modules of trtcal and its calibrators that the command may import."""
    shutil.copy(SAMPLES / "digits/digits.onnx", tmp_path)
    shutil.copy(SAMPLES / "digits/calibration.npz", tmp_path / "data.npz")
    code = (
        f"import sys\nfrom trtcal.cli.main import run_command\nstatus = run_command({command})\n"
        f"own = [m for m in sys.modules if m.split('.')[0] in ('trtcal', 'calibrators')]\n"
        f"heavy = {LIBRARIES - needed} & set(sys.modules)\n"
        f"sys.exit(status or ' '.join(heavy) or (len(own) if len(own) > {own} else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (ZeroDivisionError("oops"), DEFECT, "error: defect in trtcal: ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_defect_is_one_line_too_and_an_interrupt_is_130(capsys, monkeypatch, error, status, says):
    def fail():
        raise error

    monkeypatch.setattr("trtcal.backends.targets.machine", fail)
    assert refused(capsys, "doctor", "--json", status=status).startswith(says)


@each(
    "text, shown",
    [
        ("plain/name:0", "plain/name:0"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb", "a b"),
        ("\u202egnirts", "\\u202egnirts"),
        ("[/red]", "[/red]"),
    ],
)
def test_names_cannot_disturb_the_terminal(text, shown):
    assert printable(text) == shown


def test_another_kind_of_file_for_a_model_is_one_error(place, capsys):
    (place / "calibration.json").write_text('{"kind": "calibration"}')
    err = refused(capsys, "calibrate", "calibration.json", *DATA)
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint", "docs"]


@pytest.mark.parametrize("limit", ["nan", "inf", "-1"])
def test_limits_are_finite_numbers(place, capsys, limit):
    line = ("compare", "net.onnx", "net.onnx", *DATA, f"--limit=top1 >= {limit}")
    refused(capsys, *line)


def test_a_terminated_build_leaves_no_child_and_no_folder(place):
    """Its builder would sleep for ever."""
    (place / "sleeper.py").write_text("import time\nwhile True: time.sleep(1)\n")
    code = (
        "from trtcal.backends import child; from trtcal.cli.main import main; "
        "run = child.run_worker; "
        "child.run_worker = lambda module, *others: run('sleeper', *others); main()"
    )
    paths = os.pathsep.join([str(SAMPLES.parent), str(place)])
    child = subprocess.Popen(
        [sys.executable, "-c", code, "build", "net.onnx", "--target", "cpu", "-o", "build"],
        env=environment(PYTHONPATH=paths, TMPDIR=str(place)),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    while not list(place.glob("trtcal-*/*/new/build.log")) and child.poll() is None:
        time.sleep(0.02)
    child.terminate()
    _, err = child.communicate(timeout=600)
    assert child.returncode == 130, err
    assert not list(place.glob("trtcal-*"))


@pytest.mark.parametrize(("path", "name"), MOVED.items())
def test_a_former_name_gives_the_new_line_with_its_arguments(capsys, path, name):
    status, out, err = run(capsys, *path.split(), "a file", "--json")
    assert (status, out) == (2, "")
    assert f"`trtcal {name} 'a file' --json`" in err
