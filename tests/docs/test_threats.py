"""The page of threats has a row for every format that is fuzzed, its tests, and the code's bounds."""

import re
from importlib import import_module

from tests.conftest import SAMPLES
from tests.fixtures.tables import each
from tests.fuzz.formats import FORMATS

ROOT = SAMPLES.parent
PAGE = (ROOT / "docs" / "threats.md").read_text()
UNITS = {"MB": 10**6, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def table(title):
    """Return the rows of the table under a heading, as cells."""
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


INPUTS, BOUNDS = table("Input formats"), table("Bounds")


def test_every_format_that_is_fuzzed_has_a_row_and_every_row_is_fuzzed():
    named = [re.match(r"`(.*?)`", row[-1])[1] for row in INPUTS]
    assert sorted(named) == sorted(FORMATS)


@each("row", INPUTS)
def test_a_row_says_all_and_names_tests_and_bounds_that_there_are(row):
    assert len(row) == 6
    assert all(row)
    assert [path for path in row[-1].split(", ")[1:] if (ROOT / path).is_file()]
    assert all((ROOT / path).is_file() for path in row[-1].split(", ")[1:])
    assert set(row[3].split(", ")) <= {bound for bound, *_ in BOUNDS}


@each("row", BOUNDS)
def test_bounds_are_those_of_the_code(row):
    _, value, _, constant = row
    number, unit = value.split()
    module, _, name = constant.strip("`").rpartition(".")
    assert int(number) * UNITS.get(unit, 1) == getattr(import_module(module), name)
