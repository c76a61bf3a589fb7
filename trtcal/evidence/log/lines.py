"""A line's parts: what a logger or a terminal put before the message, the message, a table's cells."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trtcal.evidence.log.recognition import MESSAGES
from trtcal.evidence.log.rules import Value

# A line is searched up to here.
SEARCHED = 1 << 16
CACHED_LINES = 4096  # lines seen before: logs repeat themselves
CACHED_LENGTH = 2048
MAX_PIECES = 12

WORDS = MESSAGES.severities
PREFIX = re.compile(rf"(?:{'|'.join(MESSAGES.prefixes)})[ \t]*")
# By far the most lines: one glance is enough if the message then begins with a word.
PLAIN = re.compile(
    r"(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?(?:\[TRT\] )?\[([EWIVX])\] (?:\[TRT\] )?"
    r"[ \t]*(?=[A-Z][a-z]+ [ -%'-)+-;=-\[\]-_a-{}~\t]*$)(?!Info|Warning|Error)"
)
# TensorRT's own prefix behind something else: a container's name, a progress bar, another line.
EMBEDDED = re.compile(
    r"(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?"
    r"(?:\[TRT\] \[[EWIVF]\]|\[[EWIVF]\] \[TRT\]|(?:\[TensorRT\]|TRT) [A-Z_]{4,14}:"
    r"|[A-Z]{4,7}: \[TRT\]:) "
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[EWIVF]\] "
    r"|(?:(?<=[/|] )|(?<=[^\x00-\x7f])|(?<=[^\x00-\x7f] ))\[[EWIVF]\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9} \[[EWIVF]:onnxruntime:"
)
BEGINS_LINE = re.compile(EMBEDDED.pattern.encode())
MARK = r"\[(?:[EWIVF]:|[EWIVF]\] |TRT\][ :]|TensorRT\] )"
JOINED_BY, MAY_EMBED = re.compile(MARK.encode()), re.compile(rf"{MARK}|TRT [A-Z]")
EMBEDDED_WITHIN = 300
ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|[@-Z\\-_c])")
# ONNX Runtime puts the place behind the message: [file.h:123 function]; others do without brackets.
PLACE_BEHIND = re.compile(
    r" (?:\[\S{1,100}\.(?:h|cc|cpp|cu):\d{1,6} [\w:~<>]{1,100}\]| {2,8}\w{1,60}\.cpp:\d{1,6})$"
)
# What a page or a file of code puts behind a line.
TAIL = re.compile(
    r"(?: ?</?(?:br|p|b|code|pre|li|td|tr|div|span|strong|em) ?/?>|\*\*|\\[rn]|[\"'],?|,$| [/|])+$"
)
TAIL_LENGTH = 80
TAIL_ENDS = (">", "**", "\\n", "\\r", '",', "',", '\\n"', " |", " /")
ENTITY = re.compile(r"&(?:[lg]t|amp|quot|apos|nbsp|#3[49]|#x2[27F]);")
STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d\xa0", "''\"\" ")


def strip_decoration(text: str) -> str:
    """Remove line end, colours and cursor movement, and progress bars that the line overwrote."""
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    if "&" in text and ENTITY.search(text):
        text = html.unescape(text)
    text = text if text.isascii() else text.translate(STRAIGHT)
    return text.rpartition("\r")[2] if "\r" in text else text


def unjoined(raw: bytes) -> Sequence[bytes]:
    """Return the lines, each with its prefix, of which something else made a single line.

    Only a prefix behind `/` or `|` counts: elsewhere it may be part of a name, which makes no event.
    """
    if not JOINED_BY.search(raw, 32):
        return (raw,)
    starts = [0]
    for line in BEGINS_LINE.finditer(raw, 1):
        is_joined = raw[max(line.start() - 3, 0) : line.start()].rstrip(b" ").endswith((b"/", b"|"))
        if is_joined and raw[starts[-1] : line.start()].strip(b"[] 0123456789/:-|"):
            starts.append(line.start())
    ends = [*starts[1:], len(raw)]
    return [raw[start:end].rstrip(b" /|") for start, end in zip(starts, ends, strict=True)]


def split_line(text: str) -> tuple[str | None, str, bool]:
    """Return severity, message, and whether there was any prefix at all."""
    return _split_short(text) if len(text) <= CACHED_LENGTH else _split(text)


def _split(text: str) -> tuple[str | None, str, bool]:
    if plain := PLAIN.match(text):
        return WORDS[plain[1].lower()], text[plain.end() :].rstrip(), True
    text = strip_decoration(text)
    severity = None
    position = start = len(text) - len(text.lstrip(" \t"))
    for _ in range(MAX_PIECES):
        piece = PREFIX.match(text, position)
        if piece is None and severity is None and MAY_EMBED.search(text, position):
            piece = EMBEDDED.search(text, position, position + EMBEDDED_WITHIN)
            position = piece.start() if piece else position
            piece = PREFIX.match(text, position)
        if piece is None:
            break
        if piece.lastgroup is not None:
            severity = WORDS[piece[piece.lastgroup].lower()]
        position = piece.end()
    message = PLACE_BEHIND.sub("", text[position:].rstrip())
    if message.endswith(TAIL_ENDS):
        message = message[:-TAIL_LENGTH] + TAIL.sub("", message[-TAIL_LENGTH:])
    message = message.partition(" | ")[0] if text.startswith("|", start) else message
    return severity, _without_marks(message), position > start


def _without_marks(message: str) -> str:
    """Return a message without the marks of code around it, or behind it alone."""
    if message.endswith("`") and message.find("`", 1) == len(message) - 1:
        message = message.strip("`")
    for mark in '`"':
        if message.endswith(mark) and message.count(mark) % 2:
            message = message.rstrip(f"{mark} ")
    return message


_split_short = lru_cache(maxsize=CACHED_LINES)(_split)


MAX_COLUMNS = 6


@dataclass(frozen=True)
class Table:
    """A table being read: how many number columns it has, and on which side the layer stands.

    `columns` is 0 outside of a table. Two layouts exist: layer last (TensorRT 8.6 and later) and
    layer first, padded to the longest name (before).
    """

    columns: int = 0
    layer_first: bool = False

    def read_row(self, message: str) -> tuple[str | None, dict[str, Value]] | None:
        """Return a row's layer (None for the total) and its numbers, or None if it is no row."""
        split = message.rsplit if self.layer_first else message.split
        cells = split(None, self.columns)
        if len(cells) != self.columns + 1:
            return None
        name = cells.pop(0 if self.layer_first else -1).strip()
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            return None
        values: dict[str, Value] = {"rule": "time_layer", "total_ms": numbers[0]}
        values.update(average_ms=numbers[1], percent=numbers[-1])
        if len(numbers) > 3:
            values["median_ms"] = numbers[2]
        return (None if name == "Total" else name), values


NO_TABLE = Table()


def table_headed(message: str) -> Table:
    """Return the table that a message is the heading of, or `NO_TABLE`."""
    if "Time" not in message:
        return NO_TABLE
    place, time = message.find("Layer"), max(map(message.find, ("Time(ms)", "Time (ms)")))
    columns = message.count("(ms)") + message.count("(%)") + message.count("Time %")
    is_heading = place >= 0 and time >= 0 and 3 <= columns <= MAX_COLUMNS
    return Table(columns, place < time) if is_heading else NO_TABLE
