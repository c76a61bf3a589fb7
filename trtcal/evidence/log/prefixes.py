"""Strips what loggers put before a message, in every shape that TensorRT's many hosts print.

A prefix is a run of pieces: a time, a severity, a component, a source location, and decoration from
the place the log was pasted into. Pieces are taken off the front, one after another, until none
fits; so nested loggers (a runner that captures a builder that captures a parser) need no rule of
their own. The innermost severity wins: it is TensorRT's own.
"""

from __future__ import annotations

import re

MAX_PIECES = 12

WORDS = {
    "internal_error": "error",
    "fatal": "error",
    "critical": "error",
    "error": "error",
    "err": "error",
    "warning": "warning",
    "warn": "warning",
    "info": "info",
    "information": "info",
    "fixme": "info",
    "verbose": "verbose",
    "debug": "verbose",
    "trace": "verbose",
    "log": "verbose",
    "unknown": "verbose",  # TensorRT's oldest C++ sample logger had no word for verbose
    "e": "error",
    "f": "error",
    "w": "warning",
    "i": "info",
    "v": "verbose",
    "d": "verbose",
    "t": "verbose",
    "x": "verbose",
    "s": "verbose",
    "u": "verbose",
    "!": "error",
}

LEVEL = (
    r"(?P<{0}>INTERNAL_ERROR|FATAL|CRITICAL|ERROR|WARNING|WARN|INFO|VERBOSE|DEBUG|TRACE|UNKNOWN"
    r"|[Ee]rror|[Ww]arning|[Ii]nfo|[Vv]erbose|[Dd]ebug)"
)
DAY = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"

PIECES = (
    # [07/02/2026-03:47:19]
    r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d(?:\.\d{1,9})?\]:?",
    # [2024-05-06 07:08:09   ERROR]  and without the level
    rf"\[{DAY}Z?(?:\s{{1,8}}{LEVEL.format('dated')})?\]:?",
    # 2024-05-06 07:08:09.123456:   2024-05-06 07:08:09 WARNING   2024-05-06 07:08:09 | INFO     |
    rf"{DAY}Z?:?(?:(?: \||) {LEVEL.format('daily')}(?= ?\|?(?:\s|:)))?",
    # | module:function:12 -
    r"\|(?: [\w.:<>-]{1,120} -)?",
    # 0:00:01.508 10139 0x55afb59a90 INFO nvinfer file.cpp:619:function:<object>
    r"\d{1,3}:\d\d:\d\d\.\d{1,9}\s{1,9}\d{1,9}\s{1,9}0x[0-9a-f]{1,16}\s{1,9}"
    rf"{LEVEL.format('gst')}\s{{1,40}}\S{{1,40}}\s{{1,9}}\S{{1,200}}?:<[^>\n]{{0,200}}>",
    r"NvDsInferContext\[UID \d{1,6}\]:",
    rf"{LEVEL.format('from')} from \S{{1,200}} <[^>\n]{{0,200}}> \[UID = \d{{1,6}}\]:",
    # [W:onnxruntime:Default, file.h:92 log]
    r"\[(?P<ort>[EWIVF]):onnxruntime:[^\]\n]{0,300}\]",
    r"(?P<ortbare>[EWIVF]) onnxruntime:",
    # W tensorflow/path/trt_logger.cc:40] DefaultLogger
    r"(?P<tf>[EWIFT]) [\w./+-]{1,200}\.\w{1,4}:\d{1,6}\](?: TF-TRT Warning:)?(?: DefaultLogger)?",
    # W0102 03:04:05.678901  1234 file.cc:12]
    r"(?P<glog>[EWIF])\d{4} \d\d:\d\d:\d\d\.\d{1,9}\s{1,9}\d{1,9} \S{1,200}:\d{1,6}\]",
    # [W]   [Severity.WARNING]   [Logger.Severity.ERROR]
    r"\[(?P<letter>[EWIVFDTXSU!])\]:?",
    rf"\[(?:Logger\.)?Severity\.{LEVEL.format('enum')}\]:?",
    rf"\[{LEVEL.format('bracket')}\]:?(?: -(?= ))?",
    r"\[[\w.]{1,60}\](?=\[(?:ERROR|WARNING|INFO|DEBUG)\])",
    # [TRT]   [TensorRT]   [TRT-LLM]   [trt log]   [Torch-TensorRT TorchScript Conversion Context]
    r"\[(?:TRT|trt)(?:[-_ ][\w -]{1,30})?\]:?",
    r"\[(?:Torch-)?TensorRT(?:[- ](?:[\w]+ ?){1,6})?\](?: -|:)?",
    r"\[TRTorch[^\]\n]{0,60}\](?: -|:)?",
    r"\[modelopt\](?:\[\w{1,20}\])?",
    # WARNING:   WARNING TRT:   - INFO -   WARNING:logger.name [context]:
    rf"{LEVEL.format('bare')}(?: TRT)?:(?:[\w.]{{1,60}}(?: \[[^\]\n]{{0,60}}\])?:)?",
    rf"(?:- )?(?:[\w.]{{1,60}} )?- {LEVEL.format('dashed')} -",
    # module.name:12 -   WARNING  module.name:file.py:12
    r"[\w.]{1,60}:(?:\w{1,60}:)?\d{1,6} -",
    rf"{LEVEL.format('padded')} {{1,8}}[\w.]{{1,60}}:\w{{1,60}}\.py:\d{{1,6}}",
    # TRT:   TRT
    r"TRT(?::|(?=  ))",
    # pasted into a comment, a list or a quotation
    r"[#>*-](?= )(?=[ #>-]*(?:\[|\d{4}-|(?:INFO|WARN|WARNING|ERROR|DEBUG)\b))",
)
PIECE = re.compile("|".join(f"(?:{piece})" for piece in PIECES))
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
    r" (?:\[\S{1,100}\.(?:h|cc|cpp|cu):\d{1,6} [\w:~<>]{1,100}\]| {2,8}\w{1,60}\.cpp:\d{1,6})$"
)


def strip_decoration(text: str) -> str:
    """Remove line end, colours and cursor movement, and progress bars that the line overwrote."""
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    return text.rpartition("\r")[2] if "\r" in text else text


def split_prefix(text: str) -> tuple[str | None, str]:
    """Return the severity that a line's prefix tells, or None, and the message behind it."""
    severity, message, _ = split_line(text)
    return severity, message


def split_line(text: str) -> tuple[str | None, str, bool]:
    """Return severity, message, and whether there was any prefix at all."""
    if plain := PLAIN.match(text):
        return WORDS[plain[1].lower()], text[plain.end() :].rstrip(), True
    text = strip_decoration(text)
    severity = None
    position = start = _skip_space(text, 0)
    for _ in range(MAX_PIECES):
        piece = PIECE.match(text, position)
        if piece is None and severity is None:
            piece = EMBEDDED.search(text, position, position + EMBEDDED_WITHIN)
            position = piece.start() if piece else position
            piece = PIECE.match(text, position)
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
