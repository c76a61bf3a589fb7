"""Ctrl-C and SIGTERM end the work after the batch at hand instead of in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def finishing_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second one interrupts at once.

    Outside the main thread signals are not ours, and the event stays unset.
    """
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
