"""How names and numbers are written for people: in the report's sentences, tables and charts."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime, timezone

from trtcal.documents.streams import visible as visible

WIDE = frozenset({"W", "F"})
LARGE = frozenset("MWmw@%&\u2026\u2014")
MISSING = "\u2013"
TIMES = "\u00d7"
IN_CODE = (
    (r"[\w./\\~-]{1,200}\.(?:(?:cpp|cc|cu|hpp?)\b(?::+\w+)*|py:\d+):? ?", ""),
    (r" \(line \d+ of its log\)|\bIn function \w+: |(?<=: )\[\d+\] ", ""),
    (r"^([^:]{0,300}\b\d+ (?:[\w-]+ ){0,5}layers?\b.*?): .*$", r"\1."),
)
"""Patterns of files of code and of lists of layers, and what replaces each in plain words."""


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters, with an ellipsis in the middle: names differ at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def plain(sentence: str) -> str:
    """Return a sentence for people who read no code: a count of layers in place of their names."""
    for pattern, words in IN_CODE:
        sentence = re.sub(pattern, words, sentence, flags=re.DOTALL)
    return sentence


def width_em(text: str) -> float:
    """Return roughly how wide `text` is set, in units of the font size, and rather too wide."""
    wide = sum(unicodedata.east_asian_width(character) in WIDE for character in text)
    large = sum(character in LARGE for character in text)
    return 0.64 * (len(text) - wide - large) + 1.05 * (wide + large)


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of decimals, a real minus sign and no minus zero."""
    if value is None:
        return MISSING
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not float(text.replace(",", "")) else text.replace("-", "\u2212")


def figure(value: float | None) -> str:
    """Return a number of any size with three significant digits."""
    if value is None:
        return MISSING
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}".replace("-", "\u2212")
    return f"{float(f'{value:.3g}'):,g}".replace("-", "\u2212")


def money(value: float) -> str:
    """Return an amount with three significant digits, written out however small it is."""
    digits = 2 if value >= 1 or value == 0 else 2 - math.floor(math.log10(value))
    return number(value, digits)


def between(low: float, high: float, digits: int = 2) -> str:
    """Return an interval in words."""
    return f"{number(low, digits)} to {number(high, digits)}"


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds with three significant digits, without the unit."""
    if value is None:
        return MISSING
    return number(value, 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3)


def size(size_bytes: int | None) -> str:
    """Return a size in the decimal unit that suits it."""
    if size_bytes is None:
        return MISSING
    amount, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


def moment(value: str) -> str:
    """Return an ISO time in UTC as people write it, to the minute; anything else as it is."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{time:%Y-%m-%d %H:%M}" + (" UTC" if time.tzinfo == timezone.utc else "")


def count(amount: int, thing: str, things: str | None = None) -> str:
    """Return `1 layer`, `2 layers`, `1,000 layers`."""
    return f"{amount:,} {thing if amount == 1 else things or thing + 's'}"
