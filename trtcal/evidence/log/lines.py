"""Decides from a line's raw bytes whether it can be an event at all: nearly all of the speed.

A verbose log has a hundred lines of no interest for each that has some, and they carry a plain
prefix that gives their severity: verbose or information. Such a line can only matter if its message
begins as a rule's does, or holds one of the few literals of rules that begin with a name. Two quick
tests settle that. Every other line is searched for all literals.
"""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from trtcal.errors import InputError
from trtcal.evidence.log.recognition import MESSAGES, RULES
from trtcal.evidence.log.rules import Rule

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
    r"(?:\[TRT\] \[[EWIVF]\]|\[[EWIVF]\] \[TRT\]|\[TensorRT\] [A-Z_]{4,14}:|[A-Z]{4,7}: \[TRT\]:) "
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


BLOCK_BYTES = 1 << 18
PAUSE_S = 0.2
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

MAX_LINE_BYTES = 1 << 20


def portions_of_file(path: Path) -> Iterator[list[bytes]]:
    """Yield a file's lines in portions; `InputError` if it cannot be opened or read."""
    try:
        with path.open("rb") as file:
            yield from portions(blocks_of(file))
    except OSError as error:
        raise _unreadable(path, error) from error


def portions_of_growing_file(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file that is being written, without end, nothing while nothing comes.

    The file need not exist yet; one that is cut or replaced is read anew from its beginning.
    """
    try:
        yield from portions(_growing_blocks(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot read {path}: {reason}", "check the path")


def portions(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as many at a time as have come, which may be none.

    UTF-8 is expected; UTF-16 is recognised by its byte order mark (a shell may redirect so). A line
    is cut somewhere beyond `MAX_LINE_BYTES`.
    """
    rest = b""
    for block in _in_utf8(iter(blocks)):
        *lines, end = block.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = b""
        rest = (rest + end)[:MAX_LINE_BYTES]
        yield lines
    if rest:
        yield [rest]


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's bytes as they come, until its end."""
    read = file.read1 if isinstance(file, BufferedIOBase) else file.read
    while block := read(BLOCK_BYTES):
        yield block


def _in_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next((block for block in blocks if block), b"")
    if not first.startswith(UTF16):
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode()


def _growing_blocks(path: Path) -> Iterator[bytes]:
    while True:
        while not path.exists():
            yield b""
            time.sleep(PAUSE_S)
        with path.open("rb") as file:
            while not _was_replaced(path, file):
                yield from blocks_of(file)
                yield b""
                time.sleep(PAUSE_S)
        yield b"\n"


def _was_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return True
    here = os.fstat(file.fileno())
    return not os.path.samestat(there, here) or here.st_size < file.tell()


# A line is searched up to here.
SEARCHED = 1 << 16

MARKS = (
    *("[E]", "[W]", "[F]", "[!]", "[E:", "[W:", "[F:", ": E ", ": W ", ": F ", "E onnx", "W onnx"),
    *("Z E ", "Z W ", "Z F ", "[error]", "[warning]", "[critical]"),
    *("WARN", "ERROR", "FATAL", "CRITICAL", "Warning:", "Error:", "warning:", "error:"),
    *("Warning]", "Error]", "Error Code", "Layer(", "LayerType: ", "Layers:", "Time(ms)"),
    *("Time (ms)", "Engine Layer Information", "[DlaLayer]", "No layer is running on DLA"),
)
# Headings that are no event but change what the next lines mean.
HEADINGS = (
    *("Layers:", "Engine Layer Information", "Name: ", "Layer("),
    *("[DlaLayer]", "No layer is running on DLA"),
)
TABLE = ("(ms)",)
QUIET_PREFIX = (
    rb"[ \t]*(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?"
    rb"(?:(?:\[TRT\] )?\[[VIX]\](?: \[TRT\])?|\[TensorRT\] (?:VERBOSE|INFO):"
    rb"|(?:VERBOSE|INFO|DEBUG): \[TRT\]:|\[Severity\.(?:VERBOSE|INFO)\])[ \t]*"
)
# What may be one more logger's prefix behind the first: then the line is not known to be quiet.
NESTED = (
    rb"[ \t\x1b\r]|\[(?:[A-Z!][\]:]|\d\d/|\d{4}-|TRT|Tens|Torch|trt|Sever|Logger|modelopt)"
    rb"|\[[A-Z]{4,8}\]"
    rb"|\d{4}-\d\d-|\d{1,3}:|[EWF]\d{4} |[A-Z]{4,8}:|[EWF] [\w/]"
)

Node = dict[bytes, "Node"]
END: bytes = b""


def any_of(literals: Iterable[str]) -> bytes:
    """Return a pattern that matches wherever one of the literals begins.

    Common beginnings are shared, so that at most positions one test of one byte is enough: a plain
    alternation would try every literal at every position.
    """
    root: Node = {}
    for literal in sorted(set(literals)):
        _insert(root, literal.encode())
    return _pattern(root)


def _insert(node: Node, literal: bytes) -> None:
    for index in range(len(literal)):
        if END in node:
            return  # a shorter literal already matches here
        node = node.setdefault(literal[index : index + 1], {})
    node[END] = {}


def _pattern(node: Node) -> bytes:
    if END in node:
        return b""
    branches = [re.escape(byte) + _pattern(child) for byte, child in sorted(node.items())]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"


# Every timed kernel's line begins so: what follows must decide.
COMMON = frozenset({"Tactic: "})


def _is_known_by_beginning(rule: Rule) -> bool:
    return bool(rule.beginnings) and COMMON.isdisjoint(rule.beginnings)


BEGINNINGS = {
    *HEADINGS,
    *(start for rule in RULES if _is_known_by_beginning(rule) for start in rule.beginnings),
}
# Rules about errors and warnings need no search of a line whose logger calls it something less.
ANYWHERE = {
    needle
    for rule in RULES
    if not _is_known_by_beginning(rule) and rule.severity in ("info", "verbose")
    for needle in rule.needles
}
TALKING = NESTED + b"|" + any_of(BEGINNINGS)
TAGGED = re.compile(QUIET_PREFIX).match
QUIET = re.compile(QUIET_PREFIX + b"(?!" + TALKING + b")").match
LATER = re.compile(any_of((*ANYWHERE, *TABLE))).search
LITERALS = {*MARKS, *(needle for rule in RULES for needle in rule.needles)}
SEARCH = re.compile(any_of(LITERALS)).search
GLOG = re.compile(rb"[EWF](?:\d{4})? ").match


def may_matter(raw: bytes) -> bool:
    """Whether a line can be an event, or change what the next lines mean."""
    if QUIET(raw):
        return LATER(raw, 0, SEARCHED) is not None
    if TAGGED(raw):
        return True
    return SEARCH(raw, 0, SEARCHED) is not None or GLOG(raw) is not None
