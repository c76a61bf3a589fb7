"""How long a browser takes to the first paint of a report, from the opening of its file.

    python -m benchmarks.report_paint [report.html ...]

Without files: the report on three builds of 500 layers each. Prints medians and the slowest of several
openings in a fresh context of one Chromium (Debian's): first paint of content, the end of loading, and
the same of a page with one word, which is what the browser takes for itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from benchmarks.int8_speed import describe_machine
from tests.browser.conftest import find_browser
from tests.reporting.large import write_large_run
from tests.reporting.samples import write_report

OPENINGS = 15
# A paint may be reported only after the page has loaded.
TIMES = """() => new Promise((tell) => new PerformanceObserver((seen) => {
    const paint = seen.getEntriesByName("first-contentful-paint")[0];
    if (paint) tell([paint.startTime, performance.getEntriesByType("navigation")[0].loadEventEnd]);
}).observe({ type: "paint", buffered: true }))"""


def opened(browser: Browser, page: Path) -> tuple[float, float]:
    """Open a file; return the milliseconds to the first paint and to the end of loading."""
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(page.as_uri())
    paint, loaded = tab.evaluate(TIMES)
    context.close()
    return paint, loaded


def pages(folder: Path, given: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the pages to open, the trivial one first."""
    (folder / "word.html").write_text("<!DOCTYPE html><title>word</title><p>word")
    yield "one word", folder / "word.html"
    if not given:
        write_report(write_large_run(folder / "run"), folder / "large.html")
        yield "500 layers", folder / "large.html"
    yield from ((Path(one).name, Path(one).resolve()) for one in given)


def main() -> None:
    """Print the times."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser())
        print(f"# {describe_machine()}, Chromium {browser.version}")
        print("page                   kB   first paint ms (slowest)   loaded ms (slowest)")
        for name, page in pages(Path(folder), sys.argv[1:]):
            times = [opened(browser, page) for _ in range(OPENINGS)]
            shown = "".join(
                f"{median(one):14.0f} ({max(one):.0f})" for one in zip(*times, strict=True)
            )
            print(f"{name:18} {page.stat().st_size / 1000:6.0f} {shown}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
