"""Takes off what stands around a log's lines: a container's, a scheduler's, a CI's form of its own.

Which wrappers there are, one around the other, is decided once, from a share of the first lines.
Lines of several processes are kept apart by their prefix, and lines that were cut are joined. Lines
keep the number that they have in the file; of joined ones it is that of the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trtcal.config import read_toml
from trtcal.evidence.log.files import MAX_LINE_BYTES
from trtcal.evidence.log.lines import ESCAPE
from trtcal.evidence.log.rules import fill


class Line(NamedTuple):
    """A line, its number, and the name of the process that printed it, empty if there is one only."""

    number: int
    stream: bytes
    text: bytes


class Peeled(NamedTuple):
    """What is in a wrapped line.

    `goes_on` says that the next line from the same `source` goes on with it, `joins` that it goes on
    with the one before.
    """

    text: bytes
    stream: bytes = b""
    source: bytes = b""
    goes_on: bool = False
    joins: bool = False


Peel = Callable[[bytes], Peeled | None]


@dataclass(frozen=True)
class Wrapper:
    """A form in which lines come: how one is taken off, and which share of lines must have it.

    Where `proof` is given, one line must match it. A line in which `own` follows does not count for
    the share: it may be a program's own form. `is_held` says that only the next line shows
    whether a line is whole.
    """

    name: str
    peel: Peel
    share: float = 0.5
    proof: re.Pattern[bytes] | None = None
    own: re.Pattern[bytes] | None = None
    is_held: bool = False

    def is_around(self, lines: list[bytes]) -> bool:
        """Whether these lines are in this form."""
        if self.proof and not any(map(self.proof.match, lines)):
            return False
        wrapped = [peeled.text for line in lines if (peeled := self.peel(line))]
        if self.own:
            wrapped = [text for text in wrapped if not self.own.match(text)]
        return bool(wrapped) and len(wrapped) >= self.share * len(lines)


def _prefix(pattern: re.Pattern[bytes]) -> Peel:
    """Return what takes a prefix off: its groups may give `stream`, `source`, `more` and `joins`."""

    def peel(line: bytes) -> Peeled | None:
        match = pattern.match(line)
        if match is None:
            return None
        groups = match.groupdict(b"")
        origin = groups.get("stream", b""), groups.get("source", b"")
        goes_on, joins = (bool(groups.get(name)) for name in ("more", "joins"))
        return Peeled(line[match.end() :], *origin, goes_on, joins)

    return peel


def _docker(line: bytes) -> Peeled | None:
    entry = _json(line, b'"log"')
    text = entry.get("log")
    if not isinstance(text, str):
        return None
    raw = text.encode("utf-8", "backslashreplace")
    source = str(entry.get("stream", "")).encode("utf-8", "replace")
    return Peeled(raw.removesuffix(b"\n"), b"", source, goes_on=not raw.endswith(b"\n"))


def _journal(line: bytes) -> Peeled | None:
    entry = _json(line, b'"MESSAGE"')
    text = entry.get("MESSAGE")
    if isinstance(text, list) and all(isinstance(code, int) and 0 <= code < 256 for code in text):
        raw = bytes(text)  # so are messages written that hold colours, or are no UTF-8
    elif isinstance(text, str):
        raw = text.encode("utf-8", "backslashreplace")
    else:
        return None
    return Peeled(raw, str(entry.get("_PID", "")).encode("utf-8", "replace"))


def _json(line: bytes, key: bytes) -> dict[str, object]:
    """Return a line's JSON object if it has that key, else an empty one."""
    if not line.startswith(b"{") or key not in line:
        return {}
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


ESCAPED = re.compile(ESCAPE.pattern.encode())
TABLE = read_toml(Path(__file__).with_suffix(".toml"))


def _of_row(name: str, share: float = 0.5, is_held: bool = False, **patterns: str) -> Wrapper:
    """Return the wrapper of a row of the table, the shared parts put into its patterns."""
    filled = {key: fill(text, TABLE["parts"]).encode() for key, text in patterns.items()}
    compiled = {key: re.compile(pattern) for key, pattern in filled.items()}
    peel, proof, own = _prefix(compiled["prefix"]), compiled.get("proof"), compiled.get("own")
    return Wrapper(name, peel, share, proof, own, is_held)


WRAPPERS = (
    Wrapper(
        "Windows line ends",
        lambda line: Peeled(line.rstrip(b"\r")) if line.endswith(b"\r") else None,
    ),
    Wrapper("docker", _docker),
    Wrapper("journald's JSON", _journal),
    Wrapper(
        "colours", lambda line: Peeled(ESCAPED.sub(b"", line)) if b"\x1b" in line else None, 0.3
    ),
    *(_of_row(**row) for row in TABLE["wrapper"]),
)
MAX_DEPTH, FIRST_LINES, FIRST_BYTES = 6, 256, 1 << 20


def wrappers_of(lines: Iterable[bytes]) -> list[Wrapper]:
    """Return the wrappers that are around lines, the outermost first."""
    wrappers: list[Wrapper] = []
    lines = [line for line in lines if line.strip()]
    while len(wrappers) < MAX_DEPTH:
        wrapper = next((known for known in WRAPPERS if lines and known.is_around(lines)), None)
        if wrapper is None:
            break
        wrappers.append(wrapper)
        numbered = (Line(number, b"", line) for number, line in enumerate(lines))
        lines = [line.text for line in _Layer(wrapper).peel(numbered) if line.text.strip()]
    return wrappers


@dataclass
class _Layer:
    """One wrapper of a log, and the beginnings of lines whose rest is still to come."""

    wrapper: Wrapper
    begun: dict[tuple[bytes, bytes], Line] = field(default_factory=dict)

    def peel(self, lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            peeled = self.wrapper.peel(line.text)
            if peeled is None:
                yield line
            elif self.begun or peeled.goes_on or self.wrapper.is_held:
                yield from self._joined(line, peeled)
            else:
                yield from _split(line, peeled.stream, peeled.text)

    def _joined(self, line: Line, peeled: Peeled) -> Iterator[Line]:
        place = line.stream + peeled.stream, peeled.source
        before = self.begun.pop(place, None)
        now = Line(line.number, line.stream, peeled.text)
        if before and (peeled.joins or not self.wrapper.is_held):
            now = before._replace(text=(before.text + peeled.text)[:MAX_LINE_BYTES])
        elif before:
            yield from _split(before, peeled.stream, before.text)
        if peeled.goes_on or self.wrapper.is_held:
            self.begun[place] = now
        else:
            yield from _split(now, peeled.stream, now.text)

    def rest(self) -> Iterator[Line]:
        begun, self.begun = self.begun, {}
        for (place, _), line in begun.items():
            yield from _split(line, place.removeprefix(line.stream), line.text)


def _split(line: Line, stream: bytes, text: bytes) -> Iterator[Line]:
    for part in text.split(b"\n"):
        yield Line(line.number, line.stream + stream, part)


class Unwrapper:
    """Takes the wrappers off a log that comes in portions of whole lines.

    With `is_live` it decides which there are from the lines that have come, and again when there are
    twice as many; else it holds the first lines back until they are enough. `lines` counts those of
    a file that has wrappers.
    """

    def __init__(self, is_live: bool = False) -> None:
        self.lines, self._due, self._first = 0, 1, b""
        self._is_live, self._is_decided = is_live, False
        self._layers: list[_Layer] = []

    def feed(self, text: bytes, before: int) -> Iterator[Line]:
        """Yield runs of lines of one process: the first one's number, and the text of all.

        `before` is how many lines of the file were given back so far.
        """
        if not self._is_decided:
            self._first += text
            count = self._first.count(b"\n")
            self._is_decided = count >= FIRST_LINES or len(self._first) >= FIRST_BYTES
            if not (self._is_decided or self._is_live):
                return
            text = self._decided(text, count)
        yield from self._runs(text, before)

    def flush(self, before: int) -> Iterator[Line]:
        """Yield what is held back, as `feed` does."""
        if not self._is_live and self._first:
            self._is_decided = True
            yield from self._runs(self._decided(b"", FIRST_LINES), before)
        for number, layer in enumerate(self._layers, 1):
            yield from _runs(_through(self._layers[number:], layer.rest()))

    def _decided(self, text: bytes, count: int) -> bytes:
        """Choose the wrappers, and return the text that is to be read now."""
        if count >= self._due:
            self._due = 2 * count
            wrappers = wrappers_of(self._first.split(b"\n")[:FIRST_LINES])
            if wrappers != [layer.wrapper for layer in self._layers]:
                self._layers = [_Layer(wrapper) for wrapper in wrappers]
        text = text if self._is_live else self._first
        self._first = b"" if self._is_decided else self._first
        return text

    def _runs(self, text: bytes, before: int) -> Iterator[Line]:
        if not self._layers:
            yield Line(before + 1, b"", text)
            return
        texts = text.split(b"\n")[:-1]
        self.lines = before + len(texts)
        lines = (Line(number, b"", line) for number, line in enumerate(texts, before + 1))
        yield from _runs(_through(self._layers, lines))


def _through(layers: Iterable[_Layer], lines: Iterator[Line]) -> Iterator[Line]:
    for layer in layers:
        lines = layer.peel(lines)
    return lines


def _runs(lines: Iterable[Line]) -> Iterator[Line]:
    """Join lines that one process printed and that follow each other in the file."""
    texts: list[bytes] = []
    first = Line(0, b"", b"")
    for line in lines:
        if line.stream != first.stream or line.number != first.number + len(texts):
            if texts:
                yield first._replace(text=b"\n".join(texts) + b"\n")
            first, texts = line, []
        texts.append(line.text)
    if texts:
        yield first._replace(text=b"\n".join(texts) + b"\n")
