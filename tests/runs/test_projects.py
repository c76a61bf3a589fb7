"""Runs of one project are one series: a network's graph, or a name, and never a file's name."""

import json

import numpy as np
import pytest

from tests.kinds import KINDS
from tests.networks import rng
from trtcal.cli.main import run_command
from trtcal.runs.history import History

NETWORKS = ("classifier", "LSTM", "segmentation")
ROWS = 'methods = ["minmax"]\n[evaluation]\nrounds = 2\nlayer_samples = 4\n[build]\ntargets = ["cpu"]\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(place, name, project=""):
    """Run a network from a folder of its own, in which its file is called model.onnx."""
    folder = place / name
    folder.mkdir(exist_ok=True)
    KINDS[name].save(folder / "model.onnx")
    np.savez(folder / "data.npz", **KINDS[name].make(rng(), 24))
    head = f'model = "model.onnx"\nhistory = "{place / "history.sqlite"}"\n{project}\n'
    (folder / "trtcal.toml").write_text(head + '[calibration]\ndata = "data.npz"\n' + ROWS)
    assert run_command(["run", str(folder / "trtcal.toml")]) in (0, 1)
    return json.loads((folder / "reports" / "report.json").read_text())["measured"]["against"]


def test_three_networks_in_files_of_one_name_are_three_series(place):
    assert [run(place, name) for name in NETWORKS] == [None] * 3
    names = History(place / "history.sqlite").names()
    assert len(names) == 3
    assert all(name.startswith("model ") for name in names)


def test_an_identical_run_is_no_better_and_no_worse(place, capsys):
    assert run(place, "classifier") is None
    against = run(place, "classifier")
    assert against["run"]["number"] == 1
    assert not [one for one in against["figures"] if one["better"] is not None]
    capsys.readouterr()
    assert run_command(["history", "diff", "1", "2", "--db", str(place / "history.sqlite")]) == 0
    out = capsys.readouterr().out
    assert "better" not in out
    assert "worse" not in out


def test_a_project_has_the_name_that_it_is_given(place):
    run(place, "LSTM", 'project = "speech"')
    assert History(place / "history.sqlite").names() == ["speech"]
