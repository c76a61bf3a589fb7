"""Every command on small networks of many kinds: each answers, or its hint is a command that helps."""

import os
import re
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from tests.fixtures.engines import needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.kinds import COMMANDS, KINDS, write_data
from tests.fixtures.slow import slow_but
from tests.fixtures.tables import each
from trtcal.cli.main import run_command
from trtcal.config import DataConfig
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model

ANSWERS = (0, 1)  # 1: a limit is broken, or nothing is decided
ANSWERED = 2, 3  # what a backend cannot do, said with the command that helps

CUT = {"unknown operator": "model-body.onnx"}
"""What ONNX Runtime cannot run either is cut off once, and all commands take what is left."""


WHOLE = os.environ.get("WHOLE_ZOO")  # as `make soak` sets it
LIKE_OTHERS = {
    *("batch of one", "GRU", "two inputs", "dynamic size", "multi-label", "Loop", "mask"),
    *("weights as inputs", "segmentation", "embedding", "audio", "bytes"),
}
"""Kinds that take most of the way of another one: `make soak` has them."""
CASES = [(name, None) for name in KINDS if WHOLE or name not in LIKE_OTHERS]
FIXED = [(name, batch) for name in KINDS for batch in (1, 4)]


@needs_rtx
@pytest.mark.parametrize(
    ("name", "batch"),
    slow_but([*CASES, *(FIXED if WHOLE else [("classifier", 4)])], ("classifier", None)),
)
def test_every_command_answers(name, batch, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    kind = KINDS[name]
    kind.save(tmp_path / "model.onnx", batch)
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


@each("name", list(KINDS))
def test_a_fixed_batch_is_what_the_data_come_in(name):
    kind = KINDS[name]
    feeds = kind.make(np.random.default_rng(0), 8)
    states = {"states": {"next": "state"}} if kind.config else {}
    with TemporaryDirectory() as folder:
        model = load_model(kind.save(Path(folder) / "net.onnx", 4))
    dataset = open_dataset(feeds, model, settings=DataConfig(**states))
    sizes = {len(next(iter(batch.values()))) for batch in dataset.batches(32)}
    assert sizes == ({1} if states or name == "batch of one" else {4})


def test_samples_that_fill_no_batch_are_refused(tmp_path):
    kind = KINDS["classifier"]
    model = load_model(kind.save(tmp_path / "net.onnx", 4))
    for count in (3, 6):
        with fails(InputError, f"{count} samples", "fixed at 4", hint="a multiple of 4"):
            open_dataset(kind.make(np.random.default_rng(0), count), model)


def hinted(capfd):
    """Return the arguments of the command that the last hint gives."""
    error = capfd.readouterr().err
    hints = re.findall(r"^hint: .*`trtcal ([^`]+)`", error, re.MULTILINE)
    assert hints, error
    return shlex.split(hints[-1])
