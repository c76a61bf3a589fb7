"""Digests are recomputed, and what was changed is named."""

import numpy as np
import pytest

from tests.fixtures.commands import succeed
from tests.reporting.samples import accuracy, build, comparison, row, write_report, write_run
from trtcal.cli.main import run_command
from trtcal.errors import InputError
from trtcal.runs.verify import verify


@pytest.fixture
def run(tmp_path):
    folder = write_run(
        tmp_path / "run",
        comparison(row("int8", accuracy(3, 1))),
        build("int8", {"conv1": "int8"}),
    )
    write_report(folder, folder / "report.html")
    return folder


def test_what_was_not_changed_holds(run, capsys):
    assert all(check.holds for check in verify(run))
    assert "digests match" in succeed(capsys, "verify", run, run / "report.html")


def test_any_byte_of_a_page_that_is_changed_is_found(run):
    page = run / "report.html"
    whole = page.read_bytes()
    places = np.random.default_rng(0).choice(len(whole), 200, replace=False)
    for place in places.tolist():
        other = bytes([whole[place] ^ 1])
        page.write_bytes(whole[:place] + other + whole[place + 1 :])
        assert not is_whole(page), place
    page.write_bytes(whole)
    assert verify(page)[0].holds


def is_whole(page):
    """Tell whether a page verifies; one that lost its seal does not."""
    try:
        return verify(page)[0].holds
    except InputError:
        return False


@pytest.mark.parametrize("section", ["verdict", "variants", "provenance"])
def test_the_section_is_named(run, section):
    page = run / "report.html"
    text = page.read_text()
    start = text.index(f'<section id="{section}"')
    place = text.index("</h2>", start)
    page.write_text(f"{text[:place]}!{text[place:]}")
    assert verify(page)[0].problem == f"changed: {section}"


def test_a_section_that_was_cut_out_is_named(run):
    page = run / "report.html"
    text = page.read_text()
    start = text.index('<section id="log"')
    end = text.index("</section>", start) + len("</section>")
    page.write_text(text[:start] + text[end:])
    assert "log" in verify(page)[0].problem


def test_documents_logs_and_engines_are_checked(run, capsys):
    log = run / "builds" / "0" / "build.log"
    log.write_text(log.read_text() + "x")
    document = run / "comparison.json"
    document.write_text(document.read_text().replace('"samples": 2000', '"samples": 501'))
    problems = {check.what: check.problem for check in verify(run) if not check.holds}
    assert set(problems) == {"builds/0/build.json: build.log", "comparison.json"}
    assert run_command(["verify", str(run)]) == 1
    assert "comparison.json: changed" in capsys.readouterr().out


def test_what_has_no_digest_is_refused(tmp_path):
    (tmp_path / "page.html").write_text("<html></html>")
    (tmp_path / "plain.json").write_text("{}")
    for name in ("page.html", "plain.json", "nowhere.json"):
        with pytest.raises(InputError):
            verify(tmp_path / name)
