"""Finds the failures that TensorRT prints twice: once bare, and once with their place."""

from __future__ import annotations

from trtcal.buildlog.states import Found

NEAR_LINES = 32
MAX_FAILURES = 64


class Repeats:
    """Remembers where the last errors stand, those with a place and those without."""

    def __init__(self) -> None:
        self._bare: dict[tuple[str, str], int] = {}
        self._placed: dict[tuple[str, str], int] = {}

    def twin(self, found: Found, line: int) -> int | None:
        """Return the line of the error that this one says again in another form, if it does."""
        failure = found.failure
        if failure is None:
            return None
        same, other = self._bare, self._placed
        if found.is_placed:
            same, other = other, same
        if len(same) >= MAX_FAILURES:
            same.clear()
        same[failure] = line
        twin = other.get(failure)
        return twin if twin is not None and line - twin <= NEAR_LINES else None
