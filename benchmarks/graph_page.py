"""How fast the page of a graph of 5,000 nodes is: first paint, drawing, panning, unfolding, memory.

    python -m benchmarks.graph_page [graph.html ...]

Without files: made networks of 500, 2,000 and 5,000 nodes. Each page is opened several times in a fresh
context of one Chromium (Debian's); printed are medians and the worst. `first paint` is of any content,
`drawn` when the boxes of the start stand there. `panning` is the longest task while the graph is
dragged: the browser reports tasks of 50 ms and more, 0 is none. `unfold` is the longest task of
`Unfold all`, up to the page's limit; `unfolded` is panning after that, and `far` panning with all of it
in view. `MB` is the JavaScript heap after a collection.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.int8_speed import describe_machine
from benchmarks.report_paint import TIMES
from tests.browser.conftest import find_browser
from tests.browser.graphs import nested
from trtcal.wings.graph.page import render

OPENINGS = 3
SIZES = (500, 2000, 5000)
STEPS = 60  # of a drag
FAR_CLICKS = 6
WATCH = """() => {
    window.tasks = [];
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map((task) => task.duration)))
        .observe({ type: "longtask" });
}"""
COLUMNS = ("first paint ms", "drawn ms", "panning ms", "unfold ms", "unfolded ms", "far ms", "MB")


def longest_task(page: Page) -> float:
    """Return the longest task in milliseconds while the graph is dragged up and down, 0 below 50 ms."""
    page.wait_for_timeout(500)
    page.evaluate("tasks.length = 0")
    bounds = page.locator("svg.graph").first.bounding_box() or {}
    x, y = bounds["x"] + 20, bounds["y"] + bounds["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(STEPS):
        y += 40 if step % 20 < 4 else -25
        page.mouse.move(x, y)
    page.mouse.up()
    page.wait_for_timeout(300)
    return float(page.evaluate("Math.max(0, ...tasks)"))


def unfold(page: Page) -> float:
    """Unfold all that the page unfolds; return the longest task in milliseconds."""
    page.evaluate("tasks.length = 0")
    page.locator("#unfold-all").click()
    page.locator("#count:not(:has-text('Laying'))").wait_for()
    page.wait_for_timeout(500)
    return float(page.evaluate("Math.max(0, ...tasks)"))


def measured(browser: Browser, file: Path) -> list[float]:
    """Open a file and use it; return the figures of the columns."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(file.as_uri())
    paint, _ = page.evaluate(TIMES)
    drawn = page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
    page.evaluate(WATCH)
    tasks = [longest_task(page), unfold(page), longest_task(page)]
    page.locator("#fit").click()
    for _ in range(FAR_CLICKS):
        page.locator("#zoom-out").click()
    tasks.append(longest_task(page))
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    context.close()
    return [paint, drawn, *tasks, heap]


def pages(folder: Path, files: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the pages to open with their names."""
    for size in () if files else SIZES:
        path = folder / f"{size}.html"
        path.write_text(render(nested(size)))
        yield f"{size} nodes", path
    yield from ((Path(file).name, Path(file).resolve()) for file in files)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser())
        print(f"# {describe_machine()}, Chromium {browser.version}")
        print(f"{'page':14} {'kB':>6}" + "".join(f"{title:>20}" for title in COLUMNS))
        for name, path in pages(Path(folder), sys.argv[1:]):
            runs = [measured(browser, path) for _ in range(OPENINGS)]
            shown = [f"{median(one):.0f} ({max(one):.0f})" for one in zip(*runs, strict=True)]
            size = path.stat().st_size / 1000
            print(f"{name:14} {size:6.0f}" + "".join(f"{one:>20}" for one in shown), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
