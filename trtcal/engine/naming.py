"""Names of layers as they stand in sentences: fused ones are long, and come from a file."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 60


def short(name: str) -> str:
    """Return a name cut to 60 characters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(short(name) for name in every[:most]) + more
