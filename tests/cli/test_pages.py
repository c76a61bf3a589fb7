"""Errors name the page of the documentation that helps, and that page exists."""

import re

import pytest

from tests.docs.reference.commands import module_of
from tests.fixtures.commands import run
from tests.fixtures.house import MODULES, PACKAGE
from tests.fixtures.tables import each
from trtcal.cli.main import commands
from trtcal.cli.pages import PAGES, page_of, page_of_module
from trtcal.errors import InputError
from trtcal.limits import parse_limit

ROOT = PACKAGE.parent
NAMES = [
    str(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in MODULES
]


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each("page", sorted({page for page in PAGES.values() if page}))
def test_every_page_and_anchor_exists(page):
    path, _, anchor = f"docs/{page}".partition("#")
    assert (ROOT / path).is_file()
    assert not anchor or anchor in anchors(path)


def test_every_entry_is_a_module():
    assert [name for name in PAGES if name not in NAMES and name != "calibrators"] == []


@each("name", [name for name in NAMES if name != "trtcal"])
def test_every_module_has_a_page_or_leaves_it_to_its_caller(name):
    above = [name.rsplit(".", cut)[0] if cut else name for cut in range(name.count("."))]
    assert any(one in PAGES for one in above)


@each("name", commands())
def test_every_command_has_a_page(name):
    assert page_of_module(module_of(name))


def test_an_error_has_the_page_of_the_module_that_raised_it():
    with pytest.raises(InputError) as raised:
        parse_limit("top1 ?? 3")
    assert page_of(raised.value) == "docs/statistics.md#limits"


def test_an_error_can_name_its_page_itself():
    assert page_of(InputError("x", page="docs/data.md#models")) == "docs/data.md#models"


def test_a_general_module_leaves_the_page_to_its_caller(tmp_path, capsys):
    status, out, err = run(capsys, "ranges", "show", tmp_path / "none.json", "--json")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("docs: docs/calibration.md")
    *_, err = run(capsys, "layers", "show", tmp_path / "none.json")
    assert err.splitlines()[-1] == "docs: docs/logs.md#layers"


def test_an_error_of_a_bound_has_the_page_of_bounds(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.000001")
    (tmp_path / "table.json").write_text(" " * 10_000)
    *_, err = run(capsys, "ranges", "show", tmp_path / "table.json", "--format", "json")
    assert err.splitlines()[-1] == "docs: docs/threats.md#bounds"


def test_quiet_leaves_the_page_out(tmp_path, capsys):
    *_, err = run(capsys, "ranges", "show", tmp_path / "none.json", "-q")
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint"]


def test_an_error_of_usage_points_to_the_help_of_its_command(capsys):
    *_, err = run(capsys, "compare", "--no-such-option")
    assert err.splitlines()[1:] == ["hint: see `trtcal compare --help`"]
