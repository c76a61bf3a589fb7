"""A parsed build log as JSON: what `trtcal log --json` prints, and prints while it still reads.

The document is written as a stream: the events on a line each as they come, then what is known only
at the end. So a log may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from trtcal.buildlog.blocks import portions_of_file
from trtcal.buildlog.listing import Listing
from trtcal.buildlog.reader import Reader
from trtcal.buildlog.repeats import Repeats
from trtcal.buildlog.states import Found
from trtcal.buildlog.summary import Summary
from trtcal.storage import Document, canonical_json, write_json

Portions = Iterable[Iterable[bytes]]


def log_document(path: Path) -> Document:
    """Parse a build log; `InputError` if it can't be read.

    The digest covers what does not differ between two builds of the same model: category, severity
    and subject of every event but those of memory, timing and progress, and the layers.
    """
    output = io.BytesIO()
    LogWriter(str(path), output.write).write(portions_of_file(path))
    document: Document = json.loads(output.getvalue())
    return document


def write_log(path: Path, document: Document) -> None:
    """Write the JSON to a file."""
    write_json(path, document)


class LogWriter:
    """Writes one log's document through `write`, in pieces, while it reads.

    `newline` separates the events: nothing makes one line of it all. `layers` counts the layers, and
    `end` holds the last part of the document.
    """

    def __init__(self, source: str, write: Callable[[bytes], object], newline: str = "\n") -> None:
        self.reader = Reader(Listing())
        self.summary = Summary()
        self.layers = 0
        self.end: Document = {}
        self._source, self._write = source, write
        self._head = f',{newline}{{"line":'
        self._repeats = Repeats()
        self._digest = hashlib.sha256(b"[[")
        self._has_events = self._has_lasting = False  # so a comma comes first

    def write(self, portions: Portions) -> None:
        """Read all lines and write the whole document; nothing, if they cannot be read at all."""
        portions = iter(portions)
        first = next(portions, [])
        self._text(f'{{"schema_version":1,"source":{_json(self._source)},"events":[')
        for lines in chain([first], portions):
            self._events(self.reader.feed(lines))
        self._events(self.reader.flush())
        self._digest.update(b"],[")
        self._text('],"layers":[')
        number = 0
        for number, layer in enumerate(self.reader.listing.layers(), 1):
            document = layer.to_document()
            self._text("," * (number > 1) + _json(document))
            self._digest.update(b"," * (number > 1) + canonical_json(document))
        self._digest.update(b"]]")
        self.layers = number
        self.end = {
            "lines": self.reader.number,
            "summary": summary_document(self.summary, self.reader.listing),
            "digest": f"sha256:{self._digest.hexdigest()}",
        }
        self._text(f"],{_json(self.end)[1:]}\n")

    def _events(self, events: Iterable[tuple[Found, int]]) -> None:
        parts: list[str] = []
        seen: list[Found] = []
        twins: list[Found] = []
        for found, line in events:
            parts.append(self._head)
            parts.append(str(line))
            if found.failure and (twin := self._repeats.twin(found, line)):
                parts.append(f',"repeats":{twin}')
                twins.append(found)
            parts.append(found.tail)
            seen.append(found)
        if not seen:
            return
        self._text("".join(parts)[0 if self._has_events else 1 :])
        self._has_events = True
        self._cover([found.lasting for found in seen if found.lasting])
        for found, count in (Counter(seen) - Counter(twins)).items():
            self.summary.add(found.event, count)

    def _cover(self, lasting: list[bytes]) -> None:
        """Let the digest cover these events."""
        if lasting:
            self._digest.update(b"," * self._has_lasting + b",".join(lasting))
            self._has_lasting = True

    def _text(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogatepass"))


def summary_document(summary: Summary, listing: Listing) -> dict[str, Any]:
    """Return a summary's document, with what was left out of the layers too."""
    document = summary.to_document()
    document["left_out"]["layers"] = listing.left_out
    return document


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
