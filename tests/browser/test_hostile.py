"""The nastiest names that we know, in a real browser: nothing runs, nothing is added or asked for."""

from collections import Counter
from pathlib import Path

import pytest

from tests.browser.conftest import Opened, Viewer
from tests.fixtures.slow import SLOW
from tests.reporting.hostile import NASTY, write_hostile_run
from tests.reporting.samples import write_report
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard

pytestmark = SLOW

HARMLESS = ["name"]
RECORDABLE = [text for text in NASTY if "\ud800" not in text]


def report_page(folder: Path, texts: list[str]) -> Path:
    write_report(write_hostile_run(folder, texts), folder / "page.html")
    return folder / "page.html"


def dashboard_page(folder: Path, texts: list[str]) -> Path:
    document = write_report(write_hostile_run(folder, texts), folder / "page.html")
    history = History(folder / "history.sqlite")
    history.record(document, texts[0], str(folder))
    for row in document["comparison"]["rows"]:  # a second run, so that there are charts
        row["accuracy"]["sqnr_db"] = 20.0
    document["measured"]["made_at"] = "2026-11-23T12:00:00+00:00"
    history.record(document, texts[0], str(folder))
    return write_dashboard(history, folder / "site")[-1]


def elements(opened: Opened) -> Counter[str]:
    """Return how often each element stands in the page outside the chart's drawing."""
    return Counter(
        opened.page.evaluate(
            "() => Array.from(document.querySelectorAll(':not(svg *)'), (one) => one.tagName)"
        )
    )


@pytest.mark.parametrize("made", [report_page, dashboard_page])
def test_the_nastiest_names_do_nothing(viewer: Viewer, tmp_path, made):
    with viewer.open(made(tmp_path / "plain", HARMLESS)) as opened:
        expected = elements(opened)
    path = made(tmp_path / "nasty", RECORDABLE)
    with viewer.open(path) as opened:
        opened.page.wait_for_load_state("networkidle")
        assert elements(opened) == expected
        assert opened.complaints == []
        assert opened.requests == [path.as_uri()]
