"""The history in an MLflow store: every run once, with its figures, digests and report."""

import importlib.util
import json
import re
import shutil
import sys

import pytest

from tests.runs.runs import report
from trtcal.cli.main import run_command
from trtcal.runs.history import History

# Warnings of MLflow's own code are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None or importlib.util.find_spec("sqlalchemy") is None,
    reason="MLflow with SQLAlchemy is not installed",
)
HOSTILE = ["../../x", "a|b/c", "", ".", "\ud800\x00\n", "x" * 400, "' OR 1=1 --"]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A store without runs: to make one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    if importlib.util.find_spec("mlflow"):
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path, empty):
    shutil.copy(empty, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def record(tmp_path, number, folder=None, **changes):
    made = report(number, **changes)
    History(tmp_path / "h.sqlite").record(made, folder=folder and str(folder))
    return made


def send(tmp_path, uri):
    return run_command(["history", "export", "--mlflow", uri, "--db", str(tmp_path / "h.sqlite")])


def runs_of(uri, experiment="trtcal/digits"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id])


def test_without_mlflow_the_error_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    record(tmp_path, 1)
    assert send(tmp_path, "sqlite:///x.db") == 3
    assert "pip install 'trtcal[mlflow]'" in capsys.readouterr().err


@needs_mlflow
def test_every_run_is_sent_once_with_its_figures_and_digests(tmp_path, uri, capsys):
    record(tmp_path, 1)
    record(tmp_path, 2, p50=1.5)
    assert send(tmp_path, uri) == 0
    record(tmp_path, 3)
    for sent, kept in ((2, 0), (1, 2), (0, 3)):
        figures = re.findall(r"\b\d+\b", capsys.readouterr().out.split(uri)[0])
        assert figures[:2] == [str(sent), str(kept)]
        assert send(tmp_path, uri) == 0
    _, runs = runs_of(uri)
    assert len(runs) == 3
    second = next(run for run in runs if run.data.tags["trtcal.report"] == "sha256:2")
    assert second.data.metrics["int8/latency_p50"] == 1.5
    assert second.data.params["evaluation data"] == "sha256:data"
    assert second.data.tags["trtcal.verdict"] == "SHIP"
    assert second.info.start_time == second.info.end_time > 0


@needs_mlflow
def test_a_run_that_was_broken_off_is_sent_anew(tmp_path, uri):
    record(tmp_path, 1)
    assert send(tmp_path, uri) == 0
    client, (run,) = runs_of(uri)
    client.set_terminated(run.info.run_id, "FAILED")
    assert send(tmp_path, uri) == 0
    _, (again,) = runs_of(uri)
    assert again.info.run_id != run.info.run_id
    assert again.info.status == "FINISHED"


@needs_mlflow
def test_the_report_goes_along_if_it_is_still_that_runs(tmp_path, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    first = record(tmp_path, 1, folder)
    second = record(tmp_path, 2, folder)
    (folder / "report.json").write_text(json.dumps(second))
    (folder / "report.html").write_text("<p>page</p>")
    assert send(tmp_path, uri) == 0
    client, runs = runs_of(uri)
    by_report = {run.data.tags["trtcal.report"]: run.info.run_id for run in runs}
    kept = [file.path for file in client.list_artifacts(by_report[second["digest"]])]
    assert sorted(kept) == ["report.html", "report.json"]
    assert not client.list_artifacts(by_report[first["digest"]])


@needs_mlflow
def test_hostile_names_become_keys_that_mlflow_takes(tmp_path, uri):
    for number, name in enumerate(HOSTILE):
        record(tmp_path, number, name=name, variant=name + "2")
    assert send(tmp_path, uri) == 0
    assert send(tmp_path, uri) == 0
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert len(runs) == len(HOSTILE)
    for run in runs:
        assert sum(key.endswith("/top1") for key in run.data.metrics) == 2


@needs_mlflow
@pytest.mark.parametrize("uri", ["nonsense://x", "sqlite:///pyproject.toml"])
def test_what_is_no_store_is_one_error(tmp_path, uri, capsys):
    record(tmp_path, 1)
    assert send(tmp_path, uri) in (2, 3)
    assert "error: " in capsys.readouterr().err
