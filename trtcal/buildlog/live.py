"""What a build has said so far, while it still runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from trtcal.buildlog.events import Event
from trtcal.buildlog.listing import Listing
from trtcal.buildlog.reader import MAX_LINE_BYTES, Reader
from trtcal.buildlog.states import Found

SHOWN = 60
NAMES = {
    "uncalibrated": "uncalibrated",
    "tactic_skipped": "tactics skipped",
    "tactic_failed": "tactics failed",
    "fallback": "fallbacks",
    "precision_constraint": "precisions not obeyed",
    "range": "ranges",
    "weights_range": "weights out of range",
    "no_implementation": "without a kernel",
    "reformat": "reformats",
    "error": "errors",
    "deprecated": "deprecated",
    "other_warning": "warnings",
}


class Live:
    """Counts the findings in what a builder prints, by category, and keeps the latest one.

    `show` is called with each finding and its line. Constant memory; no bytes make it raise.
    """

    def __init__(
        self,
        show: Callable[[Found, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.latest: Event | None = None
        self._show, self._clock, self._started = show, clock, clock()
        self._reader = Reader(Listing(is_kept=False))
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what was printed, cut anywhere."""
        *lines, end = (self._rest + data).split(b"\n")
        self._rest = end[:MAX_LINE_BYTES]
        self._count(self._reader.feed(lines))

    def read(self, lines: Iterable[bytes]) -> None:
        """Take whole lines; none at all mean that nothing more comes for now."""
        lines = list(lines)
        self._count(self._reader.feed(lines) if lines else self._reader.flush())

    def close(self) -> None:
        """Take what waited for its end."""
        self._count(self._reader.feed([self._rest] if self._rest else []))
        self._count(self._reader.flush())
        self._rest = b""

    def _count(self, events: Iterable[tuple[Found, int]]) -> None:
        for found, line in events:
            if found.event.is_finding:
                self.counts[found.event.category] += 1
                self.latest = found.event
                if self._show:
                    self._show(found, line)

    def found(self) -> str:
        """Return in one line what was found how often, and the latest of it."""
        parts = [f"{count} {NAMES[name]}" for name in NAMES if (count := self.counts[name])]
        if self.latest is None:
            return "no findings"
        subject = self.latest.subject or self.latest.message.partition("\n")[0]
        return ", ".join([*parts, f"last: {self.latest.category} {subject[:SHOWN]}"])

    def text(self) -> str:
        """Return the seconds since the start, and what was found."""
        return f"{self._clock() - self._started:.0f} s, {self.found()}"
