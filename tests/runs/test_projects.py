"""Runs of one project are one series: a network's graph, or a name, and never a file's name."""

import json

import numpy as np
import pytest

from tests.fixtures.commands import answer, refused, succeed
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import rng
from tests.fixtures.schema import schema_errors
from tests.fixtures.slow import SLOW
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


@SLOW
def test_three_networks_in_files_of_one_name_are_three_series(place):
    assert [run(place, name) for name in NETWORKS] == [None] * 3
    names = History(place / "history.sqlite").names()
    assert len(names) == 3
    assert all(name.startswith("model ") for name in names)


@SLOW
def test_an_identical_run_is_no_better_and_no_worse(place, capsys):
    assert run(place, "classifier") is None
    against = run(place, "classifier")
    assert against["run"]["number"] == 1
    assert not [one for one in against["figures"] if one["better"] is not None]
    capsys.readouterr()
    out = succeed(capsys, "history", "diff", "1", "2", "--db", place / "history.sqlite")
    assert "better" not in out
    assert "worse" not in out


def test_a_project_has_the_name_that_it_is_given(place):
    run(place, "LSTM", 'project = "speech"')
    assert History(place / "history.sqlite").names() == ["speech"]


def test_tags_of_a_file_and_of_the_command_reach_run_report_and_history(place, capsys):
    name, db = "classifier", str(place / "history.sqlite")
    run(place, name)
    assert "cost" not in json.loads((place / name / "reports" / "run.json").read_text())
    path = place / name / "trtcal.toml"
    (place / name / "prices.toml").write_text(
        '[[price]]\nname = "c7"\ninstance = "c7"\nper_hour = 0.2\ncurrency = "EUR"\n'
        "seen = 2020-01-01\n"
    )
    tags = '[cost.tags]\nteam = "vision"\nproduct = "camera"\n'
    cost = '[cost]\ninstance = "c7"\nprices = "prices.toml"\ninferences_per_month = 2e6\n'
    path.write_text(f"{path.read_text()}{cost}{tags}")
    words = ["--tag", "team=audio", "--tag", "environment=prod"]
    assert run_command(["run", str(path), *words]) in (0, 1)
    wanted = {"team": "audio", "product": "camera", "environment": "prod"}
    folder = place / name / "reports"
    documents = [json.loads((folder / one).read_text()) for one in ("run.json", "report.json")]
    assert [one["cost"]["tags"] for one in documents] == [wanted, wanted]
    assert documents[1]["measured"]["costs"]["price"]["currency"] == "EUR"
    assert schema_errors(documents[1]) == []
    capsys.readouterr()
    assert [
        one["tags"] for one in answer(capsys, "history", "list", "--db", db, "--tag", "team=audio")
    ] == [wanted]
    lines = answer(capsys, "history", "cost", "--by", "team", "--db", db)["lines"]
    assert [one["group"] for one in lines] == ["audio", None]
    assert lines[0]["per_month"]["value"] == pytest.approx(2 * lines[0]["cost"]["value"])
    assert run_command(["history", "check", "--db", db, "--limit", "cost_per_million <= 1000"]) == 0


@pytest.mark.parametrize("tag", ["team", "=x", "team=", "a\u202eb=c"])
def test_a_wrong_tag_stops_a_run_before_it_begins(place, capsys, tag):
    (place / "trtcal.toml").write_text('model = "model.onnx"\n')
    assert "--tag" in refused(capsys, "run", "--tag", tag)
    assert [one.name for one in place.iterdir()] == ["trtcal.toml"]
