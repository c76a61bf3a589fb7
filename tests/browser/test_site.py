"""The site in a real browser: accessible, on a phone too, and with no request to another host."""

import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Viewer
from tests.docs.pages import ROOT
from tests.fixtures.shared import made_once
from tests.fixtures.slow import SLOW

pytestmark = SLOW

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
PAGES = [
    *("index", "tutorial", "guides/build-log", "backends", "reference/commands/compare"),
    *("reference/messages/uncalibrated", "reference/configuration", "reference/python/functions"),
]
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once for all workers of a run."""
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "docs"]
    return made_once(
        tmp_path_factory,
        "site",
        lambda folder: subprocess.run([*command, str(folder)], cwd=ROOT, check=True),
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_accessible_and_asks_no_other_host(viewer: Viewer, site, page, size, scheme):
    with viewer.open(site / f"{page}.html", viewport=size, color_scheme=scheme) as opened:
        assert opened.complaints == []
        wide = opened.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size["width"], "the page scrolls sideways"
        assert {one.partition(":")[0] for one in opened.requests} <= {"file", "data"}
        found = Axe().run(opened.page, options=WCAG)
        assert found.violations_count == 0, found.generate_report()
