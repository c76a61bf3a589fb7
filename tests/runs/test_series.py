"""Series over runs, the events in them, and which are worse to this day."""

import re

from tests.runs.runs import report
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard
from trtcal.wings.fleet.series import changes_of, events_of, read_series


def events(history):
    entries = history.entries(with_figures=False)
    return events_of(changes_of(entries, read_series(history, entries)))


def recorded(tmp_path, changes):
    """Record a run for each of the changes; builds have one layer for each of `layers`."""
    history = History(tmp_path / "h.sqlite")
    for number, given in enumerate(changes):
        layers, plain = given.get("layers"), {k: v for k, v in given.items() if k != "layers"}
        made = report(number, **plain)
        if layers is not None:
            layer = {"precision": "int8", "heavy": True}
            made["builds"] = [
                {
                    "digest": "sha256:b",
                    "model_name": "int8",
                    "target": "cpu",
                    "backend": "onnxruntime",
                    "backend_version": "1",
                    "outcomes": [],
                    "layers": [layer] * layers,
                }
            ]
            made["measured"]["builds"] = {"sha256:b": {"engine_bytes": 9}}
        history.record(made)
    return history


def test_what_shifted_with_one_run_is_one_event(tmp_path):
    late = {"p50": 1.2, "top1": 98.0, "data": "sha256:new"}
    (event,) = events(recorded(tmp_path, [{}] * 20 + [late] * 5))
    assert event.run == 21
    assert event.inputs == {"evaluation data": ("sha256:data", "sha256:new")}
    assert {(one.variant, one.figure) for one in event.changes} == {
        *{(name, figure) for name in ("digits", "int8") for figure in ("latency_p50", "speedup")},
        ("int8", "top1"),
    }
    assert event.lasting == 5


def test_what_came_back_is_no_longer_bad(tmp_path):
    for back in (3, 20):  # too few to be a shift itself, and enough
        folder = tmp_path / str(back)
        found = events(recorded(folder, [{}] * 20 + [{"top1": 97.0}] * back + [{}] * 20))
        assert found
        assert sum(event.lasting for event in found) == 0


def test_more_layers_are_neither_better_nor_worse(tmp_path):
    history = recorded(tmp_path, [{"layers": 4}] * 20 + [{"layers": 6}] * 4)
    (event,) = events(history)
    assert [(one.figure, one.is_better) for one in event.changes] == [("layers", None)]
    assert event.lasting == 0
    html = write_dashboard(history, tmp_path / "site")[1].read_text()
    assert "No figure got worse and stayed worse" in html
    steady = html.split("Unchanged in all runs</h2>")[1].split("<h2>Runs")[0]
    assert "Top-1, %" in steady
    assert "Engine layers" not in steady


def test_the_verdicts_streak_is_reported(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number in range(6):
        made = report(number)
        made["measured"]["verdict"]["word"] = "DO NOT SHIP" if number >= 4 else "SHIP"
        history.record(made)
    index, page = (one.read_text() for one in write_dashboard(history, tmp_path))
    assert "The network has not been shippable since run 5" in page
    assert re.search(r'class="word stop">.*DO NOT SHIP</span>', index, re.DOTALL)
    assert "not shippable since run 5<small>" in index


def test_a_page_has_only_the_runs_of_its_name(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number in range(8):
        history.record(report(number), name="b" if number % 2 else "a")
    for name in ("a", "b"):
        entries = history.entries(name, 3, with_figures=False)
        assert {one.places for one in read_series(history, entries)} == {(0, 1, 2)}
