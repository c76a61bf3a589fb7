"""Whatever a run's names, paths and messages are, pages keep their elements, terminals their state."""

import io
import tempfile
import unicodedata
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given
from selectolax.lexbor import LexborHTMLParser

from tests.fixtures.examples import examples
from tests.fixtures.slow import SLOW
from tests.reporting.hostile import NASTY, TEXTS, write_hostile_run
from tests.reporting.samples import write_report
from trtcal.cli.main import run_command

# A label that is all spaces is not drawn, and a wide one may get a line to its point.
DRAWING = ("g", "path", "text")
HARMLESS = ["name"]
CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")

Shape = tuple[Counter[tuple[str, ...]], set[tuple[str, str]]]


def shape(path: Path) -> Shape:
    """Return how many elements of each tag a page has, and all pairs of tag and attribute."""
    elements: Counter[str] = Counter()
    attributes: set[tuple[str, str]] = set()
    counted: Counter[tuple[str, ...]] = Counter()
    root = LexborHTMLParser(path.read_bytes()).root
    for node in root.traverse(include_text=False):
        elements[node.tag] += 1
        names = tuple(sorted(node.attributes))
        attributes |= {(node.tag, name) for name in names}
        if node.tag not in DRAWING:
            counted[(node.tag, *names)] += 1
    return counted, attributes | {(tag, "") for tag in elements}


def unseen(text: str) -> set[str]:
    """Return the characters of a text that control a terminal or turn a text around."""
    return {one for one in text if unicodedata.category(one) in CONTROL} - {"\n"}


def report_shape(texts: list[str]) -> tuple[Shape, set[str]]:
    with tempfile.TemporaryDirectory() as folder:
        run = write_hostile_run(Path(folder), texts)
        page = Path(folder) / "page.html"
        write_report(run, page)
        return shape(page), unseen(page.read_text())


def said(*arguments: object) -> tuple[int, str]:
    """Run a command; return its status and all that it wrote, to both outputs."""
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(written), redirect_stderr(written):
        status = run_command([str(one) for one in arguments])
    return status, written.buffer.getvalue().decode()


@pytest.fixture(scope="module")
def harmless() -> Shape:
    return report_shape(HARMLESS)[0]


@examples(10)
@example(list(NASTY))
@given(TEXTS)
def test_no_text_adds_an_element_or_an_attribute_to_the_report(harmless, texts):
    found, hidden = report_shape(texts)
    assert found == harmless
    assert not hidden


def recordable(texts: list[str]) -> list[str]:
    """Return texts that a history takes: SQLite has no lone surrogates."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def dashboard_shapes(texts: list[str]) -> list[Shape]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        database = here / "history.sqlite"
        run = write_hostile_run(here, texts)
        write_report(run, here / "page.html")
        added = ("history", "add", here / "page.json", f"--project={texts[0]}", "--db", database)
        assert said(*added)[0] == 0
        status, output = said("history", "dashboard", "--db", database, "-o", here / "site")
        assert status == 0, output
        pages = sorted((here / "site").glob("*.html"), key=lambda path: path.name != "index.html")
        assert len(pages) == 2
        assert not any(unseen(page.read_text()) for page in pages)
        return [shape(page) for page in pages]


@pytest.fixture(scope="module")
def harmless_dashboard() -> list[Shape]:
    return dashboard_shapes(HARMLESS)


@SLOW
@examples(4)
@example(list(NASTY))
@example(["-rf"])
@given(TEXTS)
def test_no_text_adds_one_to_the_dashboard(harmless_dashboard, texts):
    assert dashboard_shapes(recordable(texts)) == harmless_dashboard


def test_a_lone_surrogate_can_be_recorded(harmless_dashboard):
    assert dashboard_shapes(["\ud800"]) == harmless_dashboard


def commands(folder: Path, run: Path) -> list[tuple[object, ...]]:
    """Return command lines that tell of a run."""
    built = next(path.parent for path in sorted(run.rglob("build.json")))
    database = ("--db", folder / "history.sqlite")
    return [
        ("report", run, "-o", folder / "page.html"),
        ("verify", run),
        ("history", "add", folder / "page.json", *database),
        ("history", "list", *database),
        ("history", "show", "1", *database),
        ("diagnose", built, "-v"),
        ("log", built / "build.log"),
        ("layers", "show", built),
        ("plan", "show", run / "plan.json"),
        ("ranges", "show", run / "calibration.json"),
    ]


@SLOW
@examples(4)
@example(list(NASTY))
@given(TEXTS)
def test_no_text_reaches_the_terminal_as_a_control_code(texts):
    with tempfile.TemporaryDirectory() as folder:
        run = write_hostile_run(Path(folder), recordable(texts))
        for command in commands(Path(folder), run):
            status, output = said(*command)
            assert status in (0, 1), output
            assert not unseen(output), command
