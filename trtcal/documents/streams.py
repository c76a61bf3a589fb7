"""Standard output and error: no text disturbs a terminal there, and a closed pipe fails no work.

What has no shape of its own (control, format and direction characters) is written as its escape, by
whomever: trtcal, click, a library that warns, a script of the user. What nobody reads is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of which nothing is seen: control, format (bidi, zero width), surrogates."""

FORMULA = re.compile(r"(^|[,;])([^\S\n]*)(?=[=+\-@\uff0b\uff0d\uff1d\uff20])")
"""Where a cell begins, with a comma or semicolon before it, that spreadsheets take for a formula."""

UNDECODED = range(0xDC80, 0xDD00)
"""Characters that Python makes of bytes in file names that are no UTF-8."""

UNREAD_ERRORS = (errno.EPIPE, errno.EBADF)


class _Escapes(dict[int, str]):
    """For `str.translate`: what is written for each character, found when it is first met."""

    def __init__(self, escape: Callable[[int], str], kept: str = "") -> None:
        super().__init__({ord(character): character for character in kept})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        hidden = unicodedata.category(chr(code)) in HIDDEN
        self[code] = shown = self._escape(code) if hidden else chr(code)
        return shown


def _in_python(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(code: int) -> str:
    units = chr(code).encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _in_shell(code: int) -> str:
    how = "surrogateescape" if code in UNDECODED else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in chr(code).encode("utf-8", how))


ON_A_LINE = _Escapes(_in_python)
ON_LINES = _Escapes(_in_python, "\n")
JOINED = _Escapes(_in_python, "\n\u2060")
"""The word joiners of our Markdown stay: they keep a forge from making links of names."""
IN_JSON = _Escapes(_in_json, "\n")
IN_SHELL = _Escapes(_in_shell)
AS_IS: dict[int, str] = {}
"""For text that is printable already, and styled for a terminal."""


def visible(text: str) -> str:
    r"""Return `text` with every character that has no shape of its own written as its escape.

    >>> visible("conv\x1b[31m")
    'conv\\x1b[31m'
    """
    return text if text.isascii() and text.isprintable() else text.translate(ON_A_LINE)


def visible_cell(text: str) -> str:
    """Return a text for a cell of CSV: visible, and with an apostrophe before what would be a formula.

    Source: OWASP, CSV Injection.

    >>> visible_cell("=1+1"), visible_cell("resnet50")
    ("'=1+1", 'resnet50')
    """
    return FORMULA.sub(r"\1\2'", visible(text))


def shell_word(word: str) -> str:
    r"""Return a word as it is typed in a shell: quoted, and in `$'...'` if it has hidden characters.

    Bash, zsh, ksh and POSIX of 2024 read the same word out of it.

    >>> shell_word("a b.log"), shell_word("a\x1b.log")
    ("'a b.log'", "$'a\\x1b.log'")
    """
    if visible(word) == word:
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{plain.translate(IN_SHELL)}'"


def command_line(*words: object, **options: object) -> str:
    """Return a command of trtcal as it is typed: words, then options by name, without unset ones.

    A tuple repeats its option, `True` is a flag.

    >>> command_line("quantize", "my net.onnx", improve="fast", only=("a", "b"), plan=None)
    "trtcal quantize 'my net.onnx' --improve fast --only a --only b"
    """
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            words += (flag,) if each is True else (flag, each) if each else ()
    return " ".join(shell_word(str(word)) for word in ("trtcal", *words))


class Guarded:
    """A stream in front of another one: `shown` says what is written there for each character.

    The reader of a result may go: what is written then is dropped. Other failures of the result (a full
    disk) are raised, once; those of notes and errors never.
    """

    def __init__(
        self, stream: Any, shown: Mapping[int, str] = ON_LINES, is_result: bool = True
    ) -> None:
        outer = stream if isinstance(stream, Guarded) else None
        self._inner: TextIO = outer._inner if outer else stream
        self._first: Guarded = outer._first if outer else self
        self._shown, self._is_result, self._is_dropped = shown, is_result, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def encoding(self) -> str:
        """The name of the encoding behind."""
        return str(getattr(self._inner, "encoding", None) or "utf-8")

    @property
    def is_dropped(self) -> bool:
        """Whether nobody reads it any more."""
        return self._first._is_dropped

    def write(self, text: str) -> int:
        """Write a text as it is shown; what the encoding lacks as an escape too."""
        self._try(lambda: self._write(text.translate(self._shown)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def _write(self, text: str) -> None:
        try:
            self._inner.write(text)
        except UnicodeEncodeError:
            self._inner.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))

    def utf8(self) -> Callable[[str], None]:
        """Return a writer of pages and JSON: as UTF-8, whatever the terminal's encoding is."""
        self.flush()
        binary = getattr(self._inner, "buffer", None)

        def write(text: str) -> None:
            shown = text.translate(self._shown)
            self._try(lambda: binary.write(shown.encode()) if binary else self._inner.write(shown))

        return write

    def flush(self) -> None:
        """Write out what waits to be written."""
        self._try(self._inner.flush)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (OSError, ValueError) as error:  # ValueError: somebody closed it
            self._drop()
            if self._is_result and getattr(error, "errno", errno.EPIPE) not in UNREAD_ERRORS:
                raise

    def _drop(self) -> None:
        """Drop the waiting text and all that follows: Python writes it out at its end."""
        self._first._is_dropped = True
        with contextlib.suppress(OSError, ValueError):
            number, null = self._inner.fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def output(shown: Mapping[int, str] = ON_LINES) -> Guarded:
    """Return standard output, guarded; `shown` says how characters are written."""
    return Guarded(sys.stdout, shown)


def errors(shown: Mapping[int, str] = ON_LINES) -> Guarded:
    """Return standard error, guarded."""
    return Guarded(sys.stderr, shown, is_result=False)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and error in this block, whoever writes there."""
    before = sys.stdout, sys.stderr
    guard()
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = before


def guard() -> None:
    """Guard standard output and error from now on, as in a process that does nothing else."""
    sys.stdout = output()
    sys.stderr = errors()


def open_missing() -> None:
    """Give those of the three standard files that are closed a place, which another file would take."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def to_errors() -> contextlib.AbstractContextManager[object]:
    """Return a block in which what is printed goes to standard error: results stay clean."""
    return contextlib.redirect_stdout(sys.stderr)
