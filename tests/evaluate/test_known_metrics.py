"""A figure that nothing measures is an error in every command, which names the nearest one."""

import pytest

from tests.fixtures.commands import shows
from tests.runs.runs import report
from trtcal.cli.main import run_command
from trtcal.errors import InputError
from trtcal.metrics import METRICS, OF_OUTPUTS, check_known, finding_kinds, labelled, metric_of
from trtcal.runs.history import History

WRONG = "acuracy >= -1.0"
OWN = "def metric(outputs, labels):\n    return {'accuracy': 1.0}\n"


@pytest.fixture
def files(digits, tmp_path, monkeypatch):
    """The options of each command that takes limits, beside a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    History(tmp_path / "h.sqlite").record(report(1))
    model, data = str(digits / "digits.onnx"), ("--data", str(digits / "test.npz"))
    (tmp_path / "same.onnx").write_bytes((digits / "digits.onnx").read_bytes())
    return {
        "compare": ("compare", model, "same.onnx", *data),
        "ab": ("ab", model, "same.onnx", *data),
        "build": ("build", model, "--target", "cpu", "-o", "built"),
        "search": ("search", model, "--calibration", "none.json", *data, "-o", "searched"),
        "check": ("history", "check", "--db", "h.sqlite"),
    }


@pytest.mark.parametrize("command", ["compare", "ab", "build", "check"])
@pytest.mark.parametrize("name", ["acuracy", "agrement", "silent_falback"])
def test_a_limit_on_an_unknown_figure_is_an_error(command, name, files, capsys):
    for relation in (">= -1.0", "== 0"):
        assert run_command([*files[command], "--limit", f"{name} {relation}"]) == 2
        error = capsys.readouterr().err
        assert repr(name) in error
        assert "--metric-file" in error or "adds your own" in error


@pytest.mark.parametrize("command", ["compare", "ab", "build"])
def test_trtcal_toml_is_held_to_the_same(command, files, tmp_path, capsys):
    (tmp_path / "trtcal.toml").write_text(f'limits = ["{WRONG}"]\n')
    assert run_command([*files[command]]) == 2
    assert "'acuracy'" in capsys.readouterr().err


def test_a_run_is_held_to_the_same(digits, tmp_path, capsys):
    text = (digits / "trtcal.toml").read_text().replace("top1 >= -1.0", WRONG)
    for name in ("digits.onnx", "calibration.npz", "test.npz"):
        text = text.replace(f'"{name}"', f'"{digits / name}"')
    (tmp_path / "trtcal.toml").write_text(text.replace("../../reports", str(tmp_path)))
    assert run_command(["run", str(tmp_path / "trtcal.toml")]) == 2
    assert "'acuracy'" in capsys.readouterr().err


def test_the_figures_of_an_own_metric_are_known(files, capsys):
    for command in ("compare", "ab"):
        own = (*files[command], "--metric-file", "own.py")
        assert run_command([*own, "--limit", "accuracy >= 0.5"]) == 0, capsys.readouterr().err
        assert run_command([*own, "--limit", WRONG]) == 2
        shows(capsys.readouterr().err, "accuracy")


def test_a_name_that_is_near_is_proposed():
    with pytest.raises(InputError) as error:
        check_known(["silent_fallback", "latency_p5"])
    assert error.value.hint.startswith("did you mean latency_p50")
    with pytest.raises(InputError) as error:
        check_known(["acuracy"])
    assert error.value.hint.startswith("did you mean top1?")


def test_kinds_of_findings_are_known():
    check_known(finding_kinds())
    assert metric_of("tactic_failed").counts == "tactic_failed"


def test_rows_fit_together():
    assert all(metric.counts in finding_kinds() for metric in METRICS.values() if metric.counts)
    assert all(metric.kinds for metric in OF_OUTPUTS)
    kinds = {kind for metric in OF_OUTPUTS for kind in metric.defaults}
    assert kinds <= {kind for metric in OF_OUTPUTS for kind in metric.kinds}
    assert labelled() == {
        "classes": "top1", "labels": "jaccard", "boxes": "map", "pixels": "miou", "values": "mae",
        "tokens": "perplexity", "language": "perplexity",
    }  # fmt: skip
