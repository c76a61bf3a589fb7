"""Pages of extensions beside a report, of the same run."""

from __future__ import annotations

import warnings
from pathlib import Path

from trtcal.documents import Document, write_text
from trtcal.extensions import PAGES, ExtensionWarning, entry_points, load_all


def page_beside(report: Path, name: str) -> Path:
    """Return the file of a page: `graph.html` beside `report.html`, `a-graph.html` beside `a.html`."""
    start = "" if report.stem == "report" else f"{report.stem}-"
    return report.with_name(f"{start}{name}.html")


def pages_beside(source: Path | None, report: Path, document: Document) -> dict[str, str]:
    """Return the pages beside a report by name, of a run's folder after they were written.

    `source` is that folder, or the JSON that is rendered again, whose pages lie in its own folder.
    """
    if source is not None and source.is_dir():
        return _written(source, report, document)
    if source is None or source.resolve().parent != report.resolve().parent:
        return {}
    files = {name: page_beside(source.with_suffix(".html"), name) for name in entry_points(PAGES)}
    return {name: file.name for name, file in files.items() if file.is_file()}


def _written(folder: Path, report: Path, document: Document) -> dict[str, str]:
    """Write what extensions show of the run in a folder; a page that fails is but a warning."""
    files = {}
    for name, page_of in load_all(PAGES).items():
        try:
            page = page_of(folder, document, report.name)
        except Exception as error:
            text = f"the page {name!r} is left out: {error}"
            warnings.warn(text, ExtensionWarning, stacklevel=2)
            continue
        if page is not None:
            write_text(page_beside(report, name), page)
            files[name] = page_beside(report, name).name
    return files
