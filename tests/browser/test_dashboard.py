"""The history's dashboard in a real browser: charts, hover, sorting, searching, and a phone."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Viewer
from tests.fixtures.slow import SLOW
from tests.runs.runs import report, timed_report
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard
from trtcal.wings.fleet.prices import named_price, with_costs

pytestmark = SLOW

PHONE_PX = 390
RUNS = 14


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The index, and a project of which the last four runs lose accuracy and must not ship."""
    folder = tmp_path_factory.mktemp("dashboard")
    history = History(folder / "h.sqlite")
    for number in range(RUNS):
        made = report(number, top1=96.0 if number >= 10 else 98.0 + number / 100)
        word = "DO NOT SHIP" if number >= 10 else "SHIP"
        made["measured"]["verdict"]["word"] = word
        history.record(made, "segmenter")
    return write_dashboard(history, folder / "site")


def test_the_index_names_the_verdict_its_colour_and_since_when(viewer: Viewer, pages):
    with viewer.open(pages[0]) as opened:
        row = opened.page.locator("table.projects tbody tr").first
        word = row.locator(".word.stop")
        assert word.inner_text().strip() == "DO NOT SHIP"
        colours = [
            one.evaluate("(e) => getComputedStyle(e).color") for one in (word, row.locator("th"))
        ]
        assert colours[0] != colours[1]
        assert row.locator("svg.spark polyline").get_attribute("points").count(",") == RUNS
        assert "run 11" in row.inner_text()
        assert " ago" in row.inner_text() or "day" in row.inner_text()
        assert opened.complaints == []


def test_a_chart_shows_the_values_of_the_run_under_the_pointer(viewer: Viewer, pages):
    with viewer.open(pages[1]) as opened:
        plot = opened.page.locator(".plot").first
        assert plot.locator("canvas").count() == 1
        plot.scroll_into_view_if_needed()
        box = plot.locator(".u-over").bounding_box()
        opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
        values = opened.page.locator(".legend").first.locator(".run, .value")
        assert values.all_inner_texts() == [f"Run {RUNS}", "98.6", "96"]
        opened.page.mouse.move(box["x"] + 2, box["y"] + 20)
        assert values.all_inner_texts() == ["Run 1", "98.6", "98"]
        opened.page.mouse.move(box["x"] + 2, box["y"] - 40)
        assert values.all_inner_texts() == [f"Run {RUNS}", "98.6", "96"]
        assert opened.complaints == []


def test_runs_are_sorted_and_searched(viewer: Viewer, pages):
    with viewer.open(pages[1]) as opened:
        table = opened.page.locator("table.searchable")
        first = table.locator("tbody tr").first.locator("th")
        assert first.inner_text() == str(RUNS)
        table.locator("thead").get_by_role("button", name="Run").click()
        assert first.inner_text() == "1"
        opened.page.get_by_role("searchbox").fill("do not ship")
        assert table.locator("tbody tr:visible").count() == 4
        assert "has not been shippable since run 11" in opened.page.inner_text("main")


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    """An index and a project of which FP32 fell in run 7, while the verdicts are as before."""
    folder = tmp_path_factory.mktemp("fallen")
    history = History(folder / "h.sqlite")
    for number in range(9):
        made = report(number, top1=98.5 if number < 6 else 26.4)
        reference, variant = made["comparison"]["rows"]
        reference["accuracy"]["top1"] = 98.6 if number < 6 else 26.6
        names = ("int8", "fp16", "int8-minmax")
        made["comparison"]["rows"] = [reference, *({**variant, "name": name} for name in names)]
        shown = made["measured"]["variants"]
        made["measured"]["variants"] = shown | dict.fromkeys(names, shown["int8"])
        made["measured"]["verdict"]["word"] = "SHIP WITH CARE" if number >= 6 else "SHIP"
        history.record(made, "digits")
    return write_dashboard(history, folder / "site")


FELL = "FP32 fell from 98.6 % to 26.6 % in run 7 (top-1)"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_fall_of_fp32_stands_above_the_verdict_that_did_not_see_it(viewer: Viewer, fallen, mode):
    colour = "(e) => getComputedStyle(e).color"
    with viewer.open(fallen[0], color_scheme=mode) as opened:
        cell = opened.page.locator("table.projects td").first
        assert re.findall(r"FP32.*|SHIP.*", cell.inner_text()) == [FELL, "SHIP WITH CARE"]
        tone = {name: _colour(opened, name) for name in ("stop", "care", "open")}
        assert cell.locator(".fell").evaluate(colour) == tone["stop"]
        assert cell.locator(".word").evaluate(colour) == tone["open"]
        assert opened.page.locator("svg.spark circle").count() == 1
    with viewer.open(fallen[1], color_scheme=mode) as opened:
        assert opened.page.locator(".verdict h2").inner_text() == FELL
        assert opened.page.locator(".word.care").count() == 0
        assert opened.page.locator(".word.ship").count() == 6
        assert opened.page.locator("section", has_text="Top-1").locator("p.fell").count() == 1
        assert opened.complaints == []


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("place", [0, 1])
def test_axe_finds_nothing_serious(viewer: Viewer, fallen, place, mode):
    with viewer.open(fallen[place], color_scheme=mode, bypass_csp=True) as opened:
        violations = Axe().run(opened.page).response["violations"]
        assert [each for each in violations if each["impact"] in ("serious", "critical")] == []


def _colour(opened, name):
    paint = "(n) => { const e = document.body.appendChild(document.createElement('i'));"
    paint += " e.style.setProperty('color', `var(--${n})`); return getComputedStyle(e).color; }"
    return opened.page.evaluate(paint, name)


def test_a_variant_has_one_colour_in_all_charts_of_a_page(viewer: Viewer, fallen):
    with viewer.open(fallen[1]) as opened:
        line = "[e.textContent.trim().split(' ')[0], e.querySelector('line').classList[0]]"
        lines = f"(all) => all.map(e => {line})"
        looks = opened.page.locator(".legend li:not(.run)").evaluate_all(lines)
        assert dict(map(tuple, looks)).items() == {
            ("digits", "reference"),
            ("fp16", "fp16"),
            ("int8", "series-1"),
            ("int8-minmax", "series-2"),
        }
        assert len({tuple(look) for look in looks}) == 4


@pytest.mark.parametrize("place", [0, 1])
def test_it_fits_a_phone_and_its_text_can_be_read(viewer: Viewer, pages, place):
    with viewer.open(pages[place], viewport={"width": PHONE_PX, "height": 700}) as opened:
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert page.evaluate(f"() => {cut}.length") == 0
        fonts = page.evaluate("() => new Set(FONT.match(/\\d+px/g)).size && parseInt(FONT)")
        assert fonts >= 12


def test_without_a_script_every_number_is_there(viewer: Viewer, pages):
    with viewer.open(pages[1], java_script_enabled=False) as opened:
        text = opened.page.locator("main").inner_text()
        assert "96" in text
        assert text.count("DO NOT SHIP") >= 5


def test_data_are_no_markup(pages):
    data = pages[1].read_text().split('id="data">', 1)[1].split("</script>", 1)[0]
    assert json.loads(data)["charts"][0]["title"] == "Top-1, %"


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """An index with two teams' projects, one of which costs more since its second version."""
    folder = tmp_path_factory.mktemp("costs")
    history = History(folder / "h.sqlite")
    for number in range(RUNS):
        for name, team in (("detector", "vision"), ("speech", "audio <b>")):
            p50 = 2.0 if name == "detector" and number >= 7 else 1.0
            made = timed_report(
                number,
                p50=p50,
                name=name,
                tags={"team": team},
                version=f"{name}-v{1 + number // 7}",
            )
            made["digest"] = f"sha256:{name}{number}"
            history.record(with_costs(made, price=named_price(0.85)), name)
    return write_dashboard(history, folder / "site")


def test_projects_are_found_by_a_tag_and_show_their_cost(viewer: Viewer, costs):
    with viewer.open(costs[0]) as opened:
        rows = opened.page.locator("table.projects tbody tr")
        assert rows.filter(has_text="50 % less than FP32").count() == 2
        assert rows.first.locator("svg.spark").count() == 2
        opened.page.get_by_role("button", name="team=vision").click()
        visible = opened.page.locator("table.projects tbody tr:visible")
        assert visible.count() == 1
        assert "detector" in visible.inner_text()
        opened.page.get_by_role("button", name="team=vision").click()
        assert visible.count() == 2
        assert (
            opened.page.locator("section", has_text="Cost by team").locator("canvas").count() == 1
        )
        assert "audio <b>" in opened.page.locator("main").inner_text()
        assert opened.complaints == []


def test_a_project_says_which_version_changed_its_cost(viewer: Viewer, costs):
    with viewer.open(costs[1]) as opened:
        text = opened.page.locator("section", has_text="A million inferences by").inner_text()
        assert "version sha256:detector-v2: +100.0 %" in text
        assert "changed inputs: model" in text
        assert "50.0 %" in text
        assert opened.complaints == []


@pytest.mark.parametrize("place", [0, 1])
def test_costs_fit_a_phone(viewer: Viewer, costs, place):
    with viewer.open(costs[place], viewport={"width": PHONE_PX, "height": 700}) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert opened.page.evaluate(f"() => {cut}.length") == 0
