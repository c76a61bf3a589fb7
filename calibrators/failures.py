"""Exceptions kept from a caller that swallows them.

TensorRT's bindings print what a calibrator raises and go on as if the data had come to an end. Source:
`python/src/infer/pyInt8.cpp` in TensorRT's repository.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class Failures:
    """The first exception of those that were kept, None while there is none."""

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Remember an exception, unless there was one before."""
        if self.first is None:
            self.first = error

    @contextmanager
    def of_signals(self) -> Iterator[None]:
        """Keep what signal handlers raise (Ctrl-C's `KeyboardInterrupt`), and let it pass.

        The bindings run handlers before they enter a callback, where no callback can catch what
        they raise. Python runs them in its main thread; in others there is nothing to keep.
        """
        before = _handlers() if threading.current_thread() is threading.main_thread() else {}
        for number, handler in before.items():
            signal.signal(number, self._keeping(handler))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _keeping(self, handler: Callable[..., Any]) -> Callable[[int, FrameType | None], Any]:
        def handle(number: int, frame: FrameType | None) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                self.keep(error)
                raise

        return handle


def _handlers() -> dict[int, Callable[..., Any]]:
    found = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if callable(handler)}


def never_raises(method: Method) -> Method:
    """Make a method keep its exceptions in `self.failures` and return None; after one, do nothing."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments) if self.failures.first is None else None
        except BaseException as error:  # the caller would swallow Ctrl-C too
            self.failures.keep(error)
            return None

    return call  # type: ignore[return-value]  # of the same signature
