"""The log of a build, kept while it comes: as text, and as one JSON record for each message.

The parent process writes both, so that whatever becomes of the builder every record is whole.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import BinaryIO

from trtcal.buildlog.prefixes import split_line

OURS = re.compile(r"\[([EWIV])\] ?")
SEVERITIES = {"E": "error", "W": "warning", "I": "info", "V": "verbose"}
LONGEST = 1 << 20


class Transcript:
    """Writes bytes to `text` as they are and, message by message, to `records`.

    A record is `{"seconds": since the start, "severity": ..., "message": ...}` on a line of its own.
    A line without a logger's prefix goes on with the message before it.
    """

    def __init__(
        self, text: BinaryIO, records: BinaryIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._text, self._records, self._clock = text, records, clock
        self._started = clock()
        self._rest = b""
        self._seconds, self._severity, self._length = 0.0, "unknown", 0
        self._message: list[str] = []

    def write(self, data: bytes) -> None:
        """Take what the builder wrote, cut anywhere."""
        self._text.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST:
            self._line(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Write out the last message, whole or not."""
        if self._rest:
            self._line(self._rest)
        self._end()

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if ours := OURS.match(text):
            severity, message, begins = SEVERITIES[ours[1]], text[ours.end() :], True
        else:
            told, message, begins = split_line(text)
            severity = told or "unknown"
        if begins:
            self._begin(severity, message)
        elif self._length + len(text) > LONGEST:
            self._begin(self._severity, text)
        else:
            self._message.append(text)
        self._length += len(text)

    def _begin(self, severity: str, message: str) -> None:
        self._end()
        self._seconds = round(self._clock() - self._started, 6)
        self._severity, self._message, self._length = severity, [message], 0

    def _end(self) -> None:
        if not self._message:
            return
        message = "\n".join(self._message).rstrip("\n")
        record = {"seconds": self._seconds, "severity": self._severity, "message": message}
        self._records.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._message = []
