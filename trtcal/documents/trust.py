"""The user's trust in programs: `--trust` of the command that runs, `trust=True` in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Let files that are opened inside the block run their programs, if `trust`."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted() -> bool:
    """Tell whether the user said so."""
    return _trusted.get()
