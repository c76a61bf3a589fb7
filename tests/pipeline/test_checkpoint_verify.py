"""A pass that gives different outputs to one input is found, whether it does so again or not."""

import shlex

import onnx
import pytest

from tests.fixtures.commands import refused
from tests.fixtures.fails import fails
from tests.fixtures.zoo import ZOO
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.errors import InputError
from trtcal.runs.history import History
from trtcal.wings.forensics.checkpoint_verify import AGAIN, GONE, THIRD, baseline_of, verify_passes

PASSES = """
from pathlib import Path

COUNT = Path(__file__).with_name("count")

def unstable(graph):
    count = int(COUNT.read_text()) + 1
    COUNT.write_text(str(count))
    names = NAMES
    graph.nodes[-1].name = names[min(count, len(names)) - 1]
    return 1

PASSES = [unstable]
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that makes a project whose pass names a node anew in each execution."""

    def make(*names):
        onnx.save(ZOO["residual"].make().proto(), tmp_path / "net.onnx")
        (tmp_path / "passes.py").write_text(PASSES.replace("NAMES", repr(names), 1))
        (tmp_path / "count").write_text("0")
        path = tmp_path / "trtcal.toml"
        path.write_text('model = "net.onnx"\n[prepare]\npasses = ["passes.py"]\n')
        words = f"prepare {tmp_path / 'net.onnx'} --pass {tmp_path / 'passes.py'} -q"
        words += f" -o {tmp_path / 'out.onnx'} --checkpoints {tmp_path / 'baseline'}"
        assert run_command(shlex.split(words)) == 0
        return path

    return make


@pytest.mark.parametrize(
    ("names", "rerun", "status"),
    [("abb", AGAIN, 1), ("aba", GONE, 0), ("abc", THIRD, 1), ("aaa", None, 0)],
)
def test_a_delta_without_a_changed_key_is_run_once_more(project, names, rerun, status):
    path = project(*names)
    config = read_config(path).trusting(True)
    found = verify_passes(config, path.parent / "baseline")
    if rerun is None:
        assert found.finding is None
    else:
        assert found.finding.is_unexplained
        assert found.finding.checkpoint.name == "unstable"
        assert found.rerun == rerun
    (path.parent / "count").write_text("1")
    words = f"trace verify {path} --baseline {path.parent / 'baseline'} --trust -q"
    assert run_command(shlex.split(words)) == status


def test_without_rerun_nothing_is_run_again(project):
    path = project(*"abb")
    text = path.read_text() + '[checkpoint]\non_delta = ["alert"]\n'
    path.write_text(text)
    config = read_config(path).trusting(True)
    found = verify_passes(config, path.parent / "baseline", "rerun" in config.checkpoint.on_delta)
    assert found.rerun == "not run again"
    assert (path.parent / "count").read_text() == "2"


def test_a_run_without_a_baseline_says_how_to_give_one(tmp_path):
    with fails(InputError, tmp_path.name, hint="--baseline"):
        baseline_of(tmp_path, None)
    with fails(InputError, "run 7"):
        baseline_of(tmp_path, History(tmp_path / "history.sqlite"), 7)


def test_a_pass_that_breaks_its_word_is_named_with_its_script(tmp_path, capsys):
    onnx.save(ZOO["residual"].make().proto(), tmp_path / "net.onnx")
    wrong = {
        "def hidden(graph):\n    graph.nodes[0].name = 'x'\n    return 0": "counted no change",
        "def nothing(graph):\n    pass": "returned NoneType, not a number",
        "def failing(graph):\n    1 / 0": "ZeroDivisionError",
        "def output(graph):\n    graph.outputs[0].name = 'y'\n    return 1": "of the graph changed",
        "def casts(graph):\n    return 0": "a pass with the name 'casts' already exists",
        "def invalid(graph):\n    graph.nodes[0].op = 'Nothing'\n    return 1": (
            "own.py: after these passes model"
        ),
    }
    for text, problem in wrong.items():
        name = text.split("(")[0].removeprefix("def ")
        (tmp_path / "own.py").write_text(text + "\n")
        words = f"prepare {tmp_path / 'net.onnx'} --pass {tmp_path / 'own.py'}:{name}"
        assert problem in refused(capsys, *shlex.split(f"{words} -o {tmp_path / 'out.onnx'}"))
        assert not (tmp_path / "out.onnx").exists()
    for script in ("none.py", "own.py", "own.py:missing"):
        words = (
            f"prepare {tmp_path / 'net.onnx'} --pass {tmp_path / script} -o {tmp_path / 'o.onnx'}"
        )
        assert "script" in refused(capsys, *shlex.split(words))
