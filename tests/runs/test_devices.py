"""What devices measured over runs: recorded, followed, held to limits, and shown side by side."""

import pytest

from tests.fixtures.commands import answer, refused, succeed
from tests.runs.runs import report
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard
from trtcal.wings.fleet.series import changes_of, read_series


def timed(number, device, p50):
    """Return a report whose variants were timed on a device alone."""
    document = report(number, p50=p50, data=f"sha256:{p50}")
    for measured in document["measured"]["variants"].values():
        about = {"on": device, "hardware": "NVIDIA Orin (sm87), TensorRT 10.3.0", "energy_mj": 9.0}
        measured["latency"] = {**measured["latency"], **about}
        measured["times"] = [{"target": device, "latency": measured["latency"]}]
    return document


@pytest.fixture
def history(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number in range(24):
        history.record(timed(number, "@orin", 1.5 if number >= 20 else 1.0))
    history.record(timed(24, "@nano", 4.0))
    return history


def test_a_fall_on_a_device_is_found_and_drawn(history, tmp_path):
    entries = history.entries(with_figures=False)
    series = read_series(history, entries)
    assert {each.figure for each in series} >= {"latency_p50@orin", "energy@nano", "top1"}
    assert not any(each.figure == "latency_p50" for each in series)
    shifts = [each for each in changes_of(entries, series) if each.figure == "latency_p50@orin"]
    assert {(shift.run, shift.is_better) for shift in shifts} == {(21, False)}
    write_dashboard(history, tmp_path / "site")
    page = next(path for path in (tmp_path / "site").iterdir() if path.stem.startswith("1-"))
    assert "Median latency on @orin, ms" in page.read_text()


def test_a_history_is_held_to_a_limit_on_a_device(history, capsys):
    limit = ("--limit", "latency_p50@orin <= +5%", "--against", 1, "--db", history.path)
    assert "no figure for latency_p50@orin" in refused(capsys, "history", "check", *limit)
    history.record(timed(25, "@orin", 1.4))
    error = refused(capsys, "history", "check", *limit, status=1)
    assert "latency_p50@orin is +40 %" in error


def test_the_last_measurement_of_each_model_on_each_device_is_shown(history, capsys):
    shown = succeed(capsys, "history", "devices", "--db", history.path)
    row = next(line for line in shown.splitlines() if "digits: int8" in line)
    assert row.index("1.5 (run 24)") < row.index("4 (run 25)")
    energies = answer(capsys, "history", "devices", "--figure", "energy", "--db", history.path)
    assert {(each["device"], each["value"]) for each in energies} == {
        ("@orin", 9.0),
        ("@nano", 9.0),
    }


def test_what_no_device_measured_is_not_shown(tmp_path, capsys):
    history = History(tmp_path / "h.sqlite")
    history.record(report(1))
    assert answer(capsys, "history", "devices", "--db", history.path) == []
