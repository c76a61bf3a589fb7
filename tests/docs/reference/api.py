"""The Python API, from signatures and docstrings."""

from __future__ import annotations

from collections.abc import Iterator


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of everything that `import trtcal` exports."""
    yield "python.md", "# Python\n\nNames.\n"
