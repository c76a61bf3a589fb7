"""Takes a line apart: what a logger or a terminal put before the message, and the message."""

from __future__ import annotations

import re

from trtcal.evidence.log.recognition import MESSAGES

# A line is searched up to here.
SEARCHED = 1 << 16
MAX_PIECES = 12

PREFIX, WORDS = MESSAGES.prefix, MESSAGES.severities
# By far the most lines: one glance is enough if the message then begins with a word.
PLAIN = re.compile(
    r"(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?(?:\[TRT\] )?\[([EWIVX])\] (?:\[TRT\] )?"
    r"[ \t]*(?=[A-Z][a-z]+ [^\x1b\r]*$)(?!Info|Warning|Error)"
)
# TensorRT's own prefix behind something else: a container's name, a progress bar, another thread.
EMBEDDED = re.compile(
    r"(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?"
    r"(?:\[TRT\] \[[EWIVF]\]|\[[EWIVF]\] \[TRT\]|(?:\[TensorRT\]|TRT) [A-Z_]{4,14}:"
    r"|[A-Z]{4,7}: \[TRT\]:) "
)
EMBEDDED_WITHIN = 300
SPACE = re.compile(r"[ \t]*")
ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|[@-Z\\-_c])")
# ONNX Runtime puts the place behind the message: [file.h:123 function]; others do without brackets.
PLACE_BEHIND = re.compile(
    r" (?:\[\S{1,100}\.(?:h|cc|cpp|cu):\d{1,6} [\w:~<>]{1,100}\]| {2,8}\w{1,60}\.cpp:\d{1,6}"
    r"| ?<br ?/?>|\*\*)$"
)


def strip_decoration(text: str) -> str:
    """Remove line end, colours and cursor movement, and progress bars that the line overwrote."""
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    return text.rpartition("\r")[2] if "\r" in text else text


def split_line(text: str) -> tuple[str | None, str, bool]:
    """Return severity, message, and whether there was any prefix at all."""
    if plain := PLAIN.match(text):
        return WORDS[plain[1].lower()], text[plain.end() :].rstrip(), True
    text = strip_decoration(text)
    severity = None
    position = start = _skip_space(text, 0)
    for _ in range(MAX_PIECES):
        piece = PREFIX.match(text, position)
        if piece is None and severity is None:
            piece = EMBEDDED.search(text, position, position + EMBEDDED_WITHIN)
            position = piece.start() if piece else position
            piece = PREFIX.match(text, position)
        if piece is None:
            break
        if piece.lastgroup is not None:
            severity = WORDS[piece[piece.lastgroup].lower()]
        position = _skip_space(text, piece.end())
    message = text[position:].rstrip()
    return severity, PLACE_BEHIND.sub("", message), position > start


def _skip_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    return match.end() if match else position
