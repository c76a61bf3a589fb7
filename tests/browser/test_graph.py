"""The graph page in a real browser: colours, cards, keyboard, two engines, axe, hostile names."""

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser import graphs
from tests.browser.conftest import Viewer
from tests.fixtures.slow import SLOW
from tests.reporting.hostile import NASTY
from trtcal.wings.graph.page import render

pytestmark = SLOW

SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
GATE = "/layer1/sigmoid4/Sigmoid"


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "graph.html"
    path.write_text(render(document))
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """A small network with two engines beside each other."""
    return written(tmp_path_factory.mktemp("pair"), graphs.two_engines())


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A network of 2,000 nodes."""
    return written(tmp_path_factory.mktemp("large"), graphs.nested(2000))


def box(page: Page, name: str, pane: int = 0):
    """Return the box of a node in a pane, by what it is called for a screen reader."""
    return page.locator(".pane").nth(pane).locator(f".box[aria-label*='{name}']")


def fills(page: Page, name: str) -> str:
    return box(page, name).locator(".back").evaluate("(e) => getComputedStyle(e).fill")


def test_an_overlay_colours_the_boxes_and_names_its_values(viewer: Viewer, pair):
    with viewer.open(pair) as opened:
        page = opened.page
        before = fills(page, "Relu")
        assert "INT8" in box(page, "Relu").text_content()
        page.get_by_label("Color").select_option("Time")
        assert fills(page, "Relu") != before
        assert "0.03 ms" in box(page, "Relu").text_content()
        assert "ms" in page.locator("#legend").inner_text()
        page.get_by_label("Color").select_option("Missed")
        assert box(page, "Sigmoid").locator(".value").text_content() == "1"
        assert page.locator(".badge.missed").count() == 3  # the gate in both, the Gemm in one
        assert page.locator("path.copy").count() == 2 + 1  # in each pane and in the legend
        assert opened.complaints == []
        assert opened.requests == [pair.as_uri()]


def test_a_link_to_a_node_unfolds_its_blocks_and_opens_its_card(viewer: Viewer, large):
    name = "/encoder/stage20/layer7/softmax3/Softmax"
    with viewer.open(large) as opened:
        assert box(opened.page, name).count() == 0
        opened.page.goto(f"{large.as_uri()}#node={name.replace('/', '%2F')}")
        card = opened.page.locator("#card")
        card.wait_for()
        assert name in card.inner_text()
        opened.page.wait_for_timeout(400)  # while the view moves
        bounds = box(opened.page, name).bounding_box()
        assert 0 < bounds["x"] < 1280
        assert 0 < bounds["y"] < 720
        card.get_by_role("button", name="Close").click()
        assert opened.page.evaluate("location.hash") == ""
        assert opened.complaints == []


def test_a_walk_by_keyboard(viewer: Viewer, pair):
    with viewer.open(pair) as opened:
        page, keys = opened.page, opened.page.keyboard

        def focused() -> str:
            return page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''")

        page.locator(".pane").first.locator(".box[tabindex='0']").focus()
        assert "Input" in focused()
        walk = ["Block layer1", "Conv /layer1/conv1", "Relu", "Block gate"]
        for expected in walk:
            keys.press("ArrowDown")
            assert expected in focused()
        keys.press("Enter")
        assert page.locator(".box[aria-expanded='false'][aria-label*='gate']").count() == 2
        keys.press("ArrowUp")
        keys.press("Enter")
        assert page.evaluate("document.activeElement.id") == "card-title"
        assert "Relu" in page.locator("#status").text_content()
        keys.press("Escape")
        assert page.locator("#card").is_hidden()
        assert "Relu" in focused()
        assert page.locator(".pane").first.locator("[tabindex='0']").count() == 1


def test_a_walk_leaves_blocks_at_their_end(viewer: Viewer, pair):
    with viewer.open(pair) as opened:
        page = opened.page
        page.locator(".pane").first.locator(".box[tabindex='0']").focus()
        for _ in range(10):  # four boxes, the two blocks that four others are in, and the output
            page.keyboard.press("ArrowDown")
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused.startswith("Output")


def test_two_engines_move_together_and_list_what_changed(viewer: Viewer, pair):
    with viewer.open(pair) as opened:
        page = opened.page
        labels = [box(page, "Gemm", pane).get_attribute("aria-label") for pane in (0, 1)]
        assert labels[0] != labels[1]
        assert all("changed" in label for label in labels)
        assert page.locator(".pane .badge.change").count() == 2
        page.get_by_role("button", name="Zoom in").click()
        moved = [page.locator(".pane svg > g").nth(at).get_attribute("transform") for at in (0, 1)]
        assert moved[0] == moved[1]
        page.get_by_role("button", name="Changed (1)").click()
        assert "INT8 to FP32" in page.locator("#card").inner_text()
        page.get_by_role("button", name="Next").click()
        assert "Gemm" in page.locator(".pane").first.locator(".selected").get_attribute(
            "aria-label"
        )


def test_search_and_table(viewer: Viewer, large):
    with viewer.open(large) as opened:
        page = opened.page
        page.get_by_role("combobox", name="Search").fill("stage3/ softmax")
        assert page.locator("#results li").count() == 10
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert "/encoder/stage3/layer1/softmax3" in page.locator("#card").inner_text()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Table").click()
        page.get_by_label("Block of the table").select_option("The whole network")
        assert page.locator("#table tbody tr").count() == 200
        assert "first 200 of 2,001 nodes" in page.locator("#table").inner_text()
        page.locator("#table thead").get_by_role("button", name="SQNR").click()
        assert page.locator("#table tbody tr").first.locator("td").nth(3).inner_text() == "18"


def test_unfolding_stops_at_a_limit_and_only_what_is_seen_is_in_the_page(viewer: Viewer, large):
    with viewer.open(large) as opened:
        page = opened.page
        page.emulate_media(reduced_motion="reduce")
        page.get_by_role("button", name="Unfold all").click()
        page.locator("#count", has_text="at most").wait_for()
        page.locator(".box").first.wait_for()
        assert 0 < page.locator(".box").count() < 200
        page.get_by_role("button", name="Fit").click()
        page.get_by_role("button", name="Zoom out").click(click_count=8)
        page.locator(".map path").nth(1).wait_for(state="attached")
        assert page.locator(".box").count() < 10


@pytest.mark.parametrize("size", SIZES)
def test_axe_has_nothing_to_say(viewer: Viewer, pair, size):
    with viewer.open(pair, viewport=SIZES[size]) as opened:
        page = opened.page
        page.evaluate("document.getElementById('legend').open = true")
        for step in (None, "Changed (1)", "/layer1/gemm7/Gemm", "Table"):
            if step:
                page.get_by_role("button", name=step, exact=True).click()
            page.wait_for_timeout(300)
            seen = Axe().run(page).response["violations"]
            assert [f"{one['id']}: {one['nodes'][0]['target']}" for one in seen] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
            if step == "/layer1/gemm7/Gemm":
                page.keyboard.press("Escape")


@pytest.mark.parametrize("size", SIZES)
def test_no_text_of_a_box_leaves_it_or_overlaps(viewer: Viewer, tmp_path, size):
    document = graphs.two_engines(["Long" * 40, "数字" * 30, "e\u0301" * 90])
    document["nodes"]["op"][2] = "W" * 60
    with viewer.open(written(tmp_path, document), viewport=SIZES[size]) as opened:
        wrong = opened.page.evaluate(
            """() => [...document.querySelectorAll(".box")].flatMap((box) => {
                const back = box.querySelector(".back").getBoundingClientRect();
                const texts = [...box.querySelectorAll("text")];
                const places = texts.map((text) => text.getBoundingClientRect());
                const leaves = (at) => at.left < back.left || at.right > back.right
                    || at.bottom > back.bottom;
                const overlaps = (at) => places.some((by) => at !== by && at.left < by.right
                    && by.left < at.right && at.top + 3 < by.bottom && by.top + 3 < at.bottom);
                return texts.filter((text, at) => leaves(places[at]) || overlaps(places[at]))
                    .map((text) => text.textContent);
            })"""
        )
        assert wrong == []


def test_the_nastiest_names_do_nothing(viewer: Viewer, tmp_path):
    names = [text for text in NASTY if "\ud800" not in text]
    with viewer.open(written(tmp_path, graphs.two_engines(names))) as opened:
        page = opened.page
        page.locator(".box[aria-label*='Relu']").first.click()
        page.get_by_role("button", name="Table").click()
        page.get_by_role("combobox", name="Search").fill("script")
        assert page.locator("#results li").count() > 0
        assert page.locator("img, [onload], [onerror], #table script, #card script").count() == 0
        assert "<script>alert(1)</script>" in page.locator("h1").inner_text()
        assert opened.complaints == []
        assert len(opened.requests) == 1
