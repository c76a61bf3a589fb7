"""Reports in a real browser: on screen, in the dark, by keyboard, on paper, without scripts."""

import io
from pathlib import Path

import pypdf
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page

from tests.browser.conftest import Viewer
from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW
from tests.reporting.large import VARIANTS
from tests.reporting.samples import write_report
from trtcal.reporting.advice import next_step

pytestmark = SLOW

SHOWN = (
    "classifier",
    "detector",
    "digits-trouble",
    "vit",
)  # digits and its glitch add nothing here
GALLERY = [SAMPLES.parent / "reports" / f"{name}.html" for name in SHOWN]
A4_POINTS = (595, 842)
PRINTED_PX = 688  # A4 less its margins, at 96 px an inch
PHONE_PX = 360
BEYOND_A_FEW_ROWS = "tbody tr:nth-child(n + 9)"


@pytest.fixture(params=["500 layers", *GALLERY], ids=lambda one: getattr(one, "stem", one))
def report(request, large) -> Path:
    """Reports of the gallery, and the large one."""
    return large if request.param == "500 layers" else request.param


def grave(page: Page) -> list[str]:
    """Return what axe finds of impact serious or critical, a line for each element.

    Looked at with all details open; over a gradient axe cannot tell the contrast, and of a long table
    the first rows tell what the others do.
    """
    page.add_style_tag(content="* { background-image: none !important; }")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(
        f"document.querySelectorAll('{BEYOND_A_FEW_ROWS}').forEach((row) => row.remove())"
    )
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']}: {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def column(table: Locator, number: int) -> list[str]:
    """Return what a column is sorted by: `data-v` of its cells, else their text."""
    return table.evaluate(
        """(table, number) => Array.from(table.tBodies[0].rows, (row) =>
            row.cells[number].dataset.v ?? row.cells[number].textContent.trim())""",
        number,
    )


def too_wide(page: Page) -> list[str]:
    """Return the elements that end beyond the right edge of the page, with their text."""
    return page.evaluate(
        """() => Array.from(document.querySelectorAll("main *"))
            .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
            .map((one) => `${one.tagName}: ${one.textContent.slice(0, 40)}`)"""
    )


def brightness(page: Page, selector: str, what: str) -> float:
    """Return how bright a colour is that an element really has: 0 is black, 1 is white."""
    shown = page.locator(selector).first.evaluate(
        "(one, what) => getComputedStyle(one)[what].match(/[\\d.]+/g).map(Number)", what
    )
    return sum(shown[:3]) / 765


def as_engineer(opened):
    """Switch to the reading that shows every layer; it works without scripts too."""
    opened.page.locator("#reading-engineer").check()
    return opened.page


def printed(page: Page) -> pypdf.PdfReader:
    return pypdf.PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True, print_background=True)))


def test_it_asks_for_nothing_and_complains_of_nothing(viewer: Viewer, report):
    with viewer.open(report) as opened:
        opened.page.wait_for_load_state("networkidle")
        assert opened.requests == [report.as_uri()]
        assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(viewer: Viewer, report, scheme):
    with viewer.open(report, color_scheme=scheme, bypass_csp=True) as opened:
        assert grave(opened.page) == []
        assert grave(as_engineer(opened)) == []


def test_it_fits_a_phone(viewer: Viewer, report):
    with viewer.open(report, viewport={"width": PHONE_PX, "height": 640}) as opened:
        width = as_engineer(opened).evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE_PX


def test_a_click_sorts_and_another_one_turns_round(viewer: Viewer, large):
    with viewer.open(large) as opened:
        table = as_engineer(opened).locator("#variants table.sortable")
        head = table.locator("thead tr").last.locator("th").filter(has_text="p50")
        number = head.evaluate("(one) => one.cellIndex")
        before = column(table, number)
        head.get_by_role("button").click()
        values = [float(value) for value in column(table, number)]
        assert values == sorted(map(float, before))
        assert head.get_attribute("aria-sort") == "ascending"
        head.get_by_role("button").click()
        assert [float(value) for value in column(table, number)] == sorted(values, reverse=True)
        assert head.get_attribute("aria-sort") == "descending"
        assert table.locator("th[aria-sort]").count() == 1


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_the_keyboard_sorts_and_rows_stay_whole(viewer: Viewer, large, key):
    with viewer.open(large) as opened:
        table = as_engineer(opened).locator("#variants table.sortable")
        rows = {row.inner_text() for row in table.locator("tbody tr").all()}
        table.get_by_role("button").nth(1).focus()
        for expected in ("ascending", "descending"):
            opened.page.keyboard.press(key)
            assert table.locator("th[aria-sort]").get_attribute("aria-sort") == expected
        names = column(table, 1)
        assert names == sorted(names, reverse=True)
        assert {row.inner_text() for row in table.locator("tbody tr").all()} == rows


def test_a_search_leaves_the_rows_that_hold_it(viewer: Viewer, large):
    with viewer.open(large) as opened:
        table = as_engineer(opened).locator("table.searchable").first
        table.evaluate(
            "(one) => { for (let at = one; at = at.closest('details:not([open])');) at.open = true; }"
        )
        wanted = table.locator("tbody th").last.inner_text().split("\n")[0]
        field = table.locator("xpath=preceding::input[@type='search'][1]")
        field.fill(wanted)
        shown = [row for row in table.locator("tbody tr").all() if row.is_visible()]
        assert shown
        assert all(wanted in row.inner_text() for row in shown)
        field.fill("")
        assert all(row.is_visible() for row in table.locator("tbody tr").all())


def test_what_the_pointer_meets_at_a_point_tells_its_numbers(viewer: Viewer, large):
    with viewer.open(large) as opened:
        points = opened.page.locator("svg.chart [id^='point-']")
        assert points.count() == len(VARIANTS) + 1
        shown = []
        for point in points.all():
            point.scroll_into_view_if_needed()
            box = point.bounding_box()
            middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
            shown.append(
                opened.page.evaluate(
                    """([x, y]) => document.elementFromPoint(x, y)
                        .closest("[id^='point-']")?.querySelector("title")?.textContent""",
                    middle,
                )
            )
        for name in VARIANTS:
            assert [one for one in shown if one and one.startswith(f"{name}: ") and " ms" in one]


def test_a_point_come_to_by_keyboard_tells_its_numbers(viewer: Viewer, large):
    with viewer.open(large) as opened:
        details = opened.page.locator("#chart-details")
        assert not details.is_visible()
        opened.page.locator("#point-1").focus()
        assert details.is_visible()
        shown = details.inner_text()
        assert shown.startswith(f"{VARIANTS[0]}: ")
        assert "Command: trtcal quantize" in shown


def test_a_layer_s_histogram_opens_and_closes_by_keyboard(viewer: Viewer, large):
    with viewer.open(large) as opened:
        button = as_engineer(opened).locator("#rows td[data-t] button").nth(3)
        button.focus()
        opened.page.keyboard.press("Enter")
        shown = opened.page.locator("#rows .big")
        assert shown.locator("path").count() == 1
        assert shown.locator("path ~ line").count() == len(VARIANTS)
        assert "the largest value" in shown.inner_text()
        assert "percentile ends at" in shown.inner_text()
        opened.page.keyboard.press("Enter")
        assert shown.count() == 0


def test_a_manager_is_spared_the_layers_until_a_link_leads_there(viewer: Viewer, large):
    with viewer.open(large) as opened:
        layers = opened.page.locator("#layers")
        assert not layers.is_visible()
        opened.page.locator("footer a[href='#findings']").click()
        opened.page.locator("#findings").wait_for(state="visible")
        assert layers.is_visible()
        opened.page.locator("#reading-manager").check()
        assert not layers.is_visible()


@pytest.mark.parametrize(("width", "most"), [(1280, 1800), (390, None)])
def test_a_manager_reads_two_screens_and_two_sheets(viewer: Viewer, report, width, most):
    with viewer.open(report, viewport={"width": width, "height": 900}) as opened:
        size = opened.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        assert size[0] <= width
        if most:
            assert size[1] <= most
            assert len(printed(opened.page).pages) <= 2


def test_a_term_leads_to_the_glossary_without_scripts_too(viewer: Viewer, large):
    for has_scripts in (True, False):
        with viewer.open(large, java_script_enabled=has_scripts) as opened:
            term = opened.page.locator("a.term").first
            assert "highest-scoring" in term.get_attribute("title")
            term.click()
            assert opened.page.locator("#word-top1").is_visible()


def test_a_click_copies_the_next_command(viewer: Viewer, tmp_path):
    page = tmp_path / "page.html"
    document = write_report(SAMPLES.parent / "reports" / "digits-trouble.json", page)
    with viewer.open(page, permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.page.locator(".copied").click()
        opened.page.get_by_role("button", name="Copied").wait_for()
        copied = opened.page.evaluate("navigator.clipboard.readText()")
        assert copied == next_step(document).command
        assert opened.complaints == []


def test_the_first_tab_leads_past_the_head(viewer: Viewer, large):
    with viewer.open(large) as opened:
        opened.page.keyboard.press("Tab")
        focused = opened.page.locator(":focus")
        assert focused.is_visible()
        assert focused.bounding_box()["x"] >= 0
        target = focused.get_attribute("href")
        opened.page.keyboard.press("Enter")
        assert opened.page.locator(target).is_visible()
        assert opened.page.url.endswith(target)


def test_it_is_dark_where_the_reader_wants_that(viewer: Viewer, large):
    with viewer.open(large, color_scheme="dark") as opened:
        for selector in ("body", "section"):
            assert brightness(opened.page, selector, "backgroundColor") < 0.2
            assert brightness(opened.page, selector, "color") > 0.8
        opened.page.emulate_media(media="print")
        assert brightness(opened.page, "body", "backgroundColor") > 0.99
        assert brightness(opened.page, "section", "color") < 0.1


def test_nothing_is_cut_off_on_paper(viewer: Viewer, report):
    with viewer.open(report, viewport={"width": PRINTED_PX, "height": 1000}) as opened:
        as_engineer(opened).emulate_media(media="print")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert too_wide(opened.page) == []


def test_it_prints_on_a4_with_the_verdict_first_and_all_details(viewer: Viewer, large):
    with viewer.open(large) as opened:
        word = opened.page.locator("#verdict h2").inner_text().split(":")[-1].strip()
        last = as_engineer(opened).locator("details tbody th").last.text_content()
        paper = printed(opened.page)
    sizes = {(round(page.mediabox.width), round(page.mediabox.height)) for page in paper.pages}
    assert sizes == {A4_POINTS}
    assert word in paper.pages[0].extract_text()
    assert VARIANTS[0] in paper.pages[0].extract_text()
    pages = ("".join(page.extract_text().split()) for page in reversed(paper.pages))
    assert any("".join(last.split()) in page for page in pages)


def test_without_scripts_all_of_it_is_there(viewer: Viewer, large):
    with viewer.open(large, java_script_enabled=False) as opened:
        page = as_engineer(opened)
        assert page.locator("#verdict h2").is_visible()
        assert page.locator("main button:visible, main input:visible").count() == 0
        for summary in page.locator("summary").all():
            if summary.locator("xpath=..").get_attribute("open") is None:
                summary.click()
        for table in page.locator("table").all():
            assert table.is_visible()
            assert all(
                row.is_visible() for row in (table.locator("tr").first, table.locator("tr").last)
            )
        assert opened.complaints == []


def test_five_hundred_layers_of_three_builds_stay_under_300_kb(large):
    assert large.stat().st_size < 300_000
