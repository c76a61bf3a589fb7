"""Finds the failures that TensorRT prints twice: once bare, and once with their place."""

from __future__ import annotations

from collections import deque

from trtcal.buildlog.states import Found

NEAR_LINES = 64


class Repeats:
    """Remembers the last errors."""

    def __init__(self) -> None:
        self._recent: deque[tuple[tuple[str, str], bool, int]] = deque(maxlen=4)

    def twin(self, found: Found, line: int) -> int | None:
        """Return the line of the error that this one says again in another form, if it does."""
        failure, placed = found.failure, found.is_placed
        near = line - NEAR_LINES
        twin = next(
            (at for f, p, at in self._recent if f == failure and p != placed and at > near), None
        )
        self._recent.append((failure, placed, line))
        return twin
