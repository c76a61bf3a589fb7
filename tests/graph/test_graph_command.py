"""`trtcal graph`, and the page that `run` and `report` write beside a report."""

import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, run, succeed
from tests.fixtures.tables import each
from trtcal.extensions import ExtensionWarning

DIGITS = SAMPLES / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    """Return the folder of a run of the digits on the CPU."""
    from trtcal.cli.main import run_command

    folder = tmp_path_factory.mktemp("graph")
    data = DIGITS.with_name("calibration.npz")
    text = f'model = "{DIGITS}"\noutput = "run"\n[calibration]\ndata = "{data}"\n'
    (folder / "trtcal.toml").write_text(f'{text}methods = ["minmax"]\nimprove = "off"\n')
    words = ["run", str(folder / "trtcal.toml"), "--no-history", "--allow-undecided", "-q"]
    assert run_command(words) in (0, 1)
    return folder / "run"


def test_a_model_and_two_models_are_shown(tmp_path, capsys):
    page = tmp_path / "graph.html"
    assert str(page) in succeed(capsys, "graph", DIGITS, "-o", page)
    assert page.read_text().startswith("<!doctype html>")
    document = answer(capsys, "graph", DIGITS, DIGITS, "-o", page)
    assert (len(document["engines"]), document["changes"]) == (2, {})


@each(
    "words",
    [("missing",), (".",), (DIGITS, "--variant", "a", "--variant", "b", "--variant", "c")],
)
def test_what_cannot_be_shown_is_one_error(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, "graph", *words)
    assert error.startswith("error: ")
    assert not (tmp_path / "graph.html").exists()


def test_a_run_has_a_graph_that_its_report_leads_to(a_run, capsys):
    assert 'data-graph="graph.html"' in (a_run / "report.html").read_text()
    graph = (a_run / "graph.html").read_text()
    assert 'href="report.html"' in graph
    assert run(capsys, "verify", a_run)[0] == 0
    (a_run / "graph.html").write_text(graph.replace("stem", "stern", 1))
    assert run(capsys, "verify", a_run)[0] == 1
    (a_run / "graph.html").write_text(graph)


def test_a_report_has_links_only_to_what_is_beside_it(a_run, tmp_path, capsys):
    page = tmp_path / "page.html"
    succeed(capsys, "report", a_run, "-o", page)
    assert 'data-graph="page-graph.html"' in page.read_text()
    assert 'href="page.html"' in (tmp_path / "page-graph.html").read_text()
    succeed(capsys, "report", page.with_suffix(".json"), "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page.read_text()
    (tmp_path / "elsewhere").mkdir()
    succeed(capsys, "report", page.with_suffix(".json"), "-o", tmp_path / "elsewhere" / "page.html")
    assert "graph.html" not in (tmp_path / "elsewhere" / "page.html").read_text()
    assert "graph.html" not in succeed(capsys, "report", a_run, "--md")


def test_a_page_that_fails_is_a_warning(a_run, tmp_path, capsys, monkeypatch):
    def fail(folder, document, report):
        raise ValueError("no room for it")

    monkeypatch.setattr("trtcal.wings.graph.page.page_of_run", fail)
    with pytest.warns(ExtensionWarning, match="no room for it"):
        succeed(capsys, "report", a_run, "-o", tmp_path / "page.html")
    assert "graph.html" not in (tmp_path / "page.html").read_text()
