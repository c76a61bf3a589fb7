"""Every sentence that a user can meet follows docs/style.md, and no retired word is left."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from tests.docs.pages import MADE, ROOT
from tests.fixtures.prose import APART, PACKAGE, STYLE, Sentence, in_code, sentences, without_marks

LINT = {
    **DEFAULT["checks"],
    "dates_times": False,  # figures are ranges too
    "annotations": False,  # "note:" begins a note
    "lexical_illusions": False,  # shapes: 8 x 8 x 8
    "misc": False,
    "typography": False,  # what a terminal prints is typed
    "weasel_words": False,
}


@cache
def all_sentences() -> list[Sentence]:
    return list(sentences())


def first_cells(heading: str) -> list[str]:
    """Return the words and phrases in the first column of a table of the style page."""
    section = re.split(r"^## ", STYLE.read_text(), flags=re.MULTILINE)
    text = next(one for one in section if one.startswith(heading))
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)[1:]
    return [phrase.strip() for row in rows for phrase in row.split(",")]


def any_of(phrases: list[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, phrases))})(?![a-z])", re.IGNORECASE)


def sources() -> Iterator[Path]:
    rooms = ("trtcal", "calibrators", "tests", "docs", "samples", "benchmarks")
    kinds = (".py", ".md", ".toml", ".j2", ".js", ".css", ".json", ".txt")
    paths = [*ROOT.glob("*.md"), *(path for room in rooms for path in (ROOT / room).rglob("*"))]
    paths = [path for path in paths if path.suffix in kinds and path not in APART]
    return (path for path in paths if not MADE & set(path.parents))


def test_no_retired_word_is_left():
    retired = any_of(first_cells("Retired words"))
    found = {str(path.relative_to(ROOT)): retired.search(path.read_text()) for path in sources()}
    assert {path: hit[0] for path, hit in found.items() if hit} == {}


def test_no_sentence_has_a_phrase_that_the_style_page_replaces():
    phrases = any_of(first_cells("Phrases"))
    assert [f"{one.place}: {one.text}" for one in all_sentences() if phrases.search(one.text)] == []


def test_proselint_finds_nothing():
    CheckRegistry().register_many(__register__)
    text = "\n".join(" ".join(one.text.split()) for one in all_sentences())
    found = LintFile("sentences", text).lint({"max_errors": 100, "checks": LINT})
    lines = [f"\n{text}\n".count("\n", 0, one.check_result.span[1]) for one in found]
    places = [
        (all_sentences()[line - 1], one.check_result.message)
        for line, one in zip(lines, found, strict=True)
    ]
    assert [f"{sentence.place}: {message}" for sentence, message in places] == []


@pytest.mark.parametrize("table", ["Retired words", "Phrases"])
def test_the_tables_are_read_and_their_entries_found_in_any_case(table):
    phrases = first_cells(table)
    assert len(phrases) > 10
    for phrase in phrases:
        assert any_of(phrases).search(f"X_{phrase.title()}.")
        assert not any_of(phrases).search(f"x{phrase}x")


def test_sentences_are_those_that_a_user_meets(tmp_path):
    module = PACKAGE / "cli" / "verify.py"
    texts = [one.text for one in in_code(module)]
    assert any(text.startswith("Recompute the digests") for text in texts)  # help
    assert "N: N of N digests match" in texts  # a line that is printed
    assert not any("`trtcal verify`" in text for text in texts)  # the module's docstring
    assert without_marks("<p>{{ name }} runs</p>{# a comment #}").split() == ["runs"]
