"""Every command on small networks of many kinds: each answers, or its hint is a command that helps."""

import re
import shlex

import pytest

from tests.fixtures.engines import needs_rtx
from tests.fixtures.kinds import COMMANDS, KINDS, write_data
from tests.fixtures.slow import slow_but
from trtcal.cli.main import run_command

ANSWERS = (0, 1)  # 1: a limit is broken, or nothing is decided
ANSWERED = 2, 3  # what a backend cannot do, said with the command that helps

CUT = {"unknown operator": "model-body.onnx"}
"""What ONNX Runtime cannot run either is cut off once, and all commands take what is left."""


@needs_rtx
@pytest.mark.parametrize("name", slow_but(KINDS, "classifier"))
def test_every_command_answers(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    kind = KINDS[name]
    kind.save(tmp_path / "model.onnx")
    write_data(tmp_path, CUT.get(name, "model.onnx"), kind.make, kind.config)
    model = "model.onnx"
    if name in CUT:
        assert run_command(["check-data", model, "--data", "calibration.npz"]) == 3
        assert run_command(hinted(capfd)) == 0
        model = CUT[name]
    for command in COMMANDS:
        status = run_command(command.format(model=model).split())
        if status not in ANSWERS:
            assert status in ANSWERED, (command, status)
            hint = hinted(capfd)
            assert run_command(hint) in ANSWERS, command
            if hint[0] == "prepare":
                assert command.startswith("build ")
                assert run_command(["build", hint[-1], *command.split()[2:]]) in ANSWERS
        capfd.readouterr()


def hinted(capfd):
    """Return the arguments of the command that the last hint gives."""
    error = capfd.readouterr().err
    hints = re.findall(r"^hint: .*`trtcal ([^`]+)`", error, re.MULTILINE)
    assert hints, error
    return shlex.split(hints[-1])
