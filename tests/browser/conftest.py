"""A real browser for the pages that trtcal writes: Debian's Chromium, driven by Playwright.

Where there is none, these tests are skipped; with `BROWSER_REQUIRED` set, as CI does, they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.reporting.large import write_large_run
from tests.reporting.samples import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of a browser to drive, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def required_browser() -> str:
    """Return the path of a browser; without one the test is skipped, or fails where CI requires it."""
    path = find_browser()
    if path is None and os.environ.get("BROWSER_REQUIRED"):
        pytest.fail(f"none of {', '.join(NAMES)} is installed")
    return path or pytest.skip("no Chromium here: these tests look at pages in one (chromium)")


@dataclass
class Opened:
    """A page in the browser, with everything that it asked for or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self._dismiss(dialog))
        self.page.on("console", lambda message: self._note(message.type, message.text))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _dismiss(self, dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


class Viewer:
    """Opens files of ours, each in a context of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def open(self, path: Path | str, **options) -> Iterator[Opened]:
        """Open a file or an address; `options` are Playwright's, such as `color_scheme`."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(600_000)
        try:
            opened = Opened(context.new_page())
            opened.page.goto(path if isinstance(path, str) else path.as_uri())
            yield opened
        finally:
            context.close()


# Not for the whole session: while Playwright runs, its thread has a running event loop.
@pytest.fixture(scope="package")
def viewer() -> Iterator[Viewer]:
    path = required_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield Viewer(browser)
        browser.close()


@pytest.fixture(scope="package")
def large(tmp_path_factory) -> Path:
    """The report on a run of 500 layers."""
    folder = write_large_run(tmp_path_factory.mktemp("large") / "run")
    write_report(folder, folder.parent / "large.html")
    return folder.parent / "large.html"
