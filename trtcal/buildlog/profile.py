"""Reader of layer times: `trtexec --exportProfile`, and joining them to a layer list.

trtexec writes names without any JSON escape, so a quote, a backslash or a control character in one
makes a document that no JSON reader takes. So the fixed sequence of fields around each name is
looked for instead. A name that imitates it can misdescribe that entry, no other.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trtcal.buildlog.events import Event
from trtcal.buildlog.layers import Layer
from trtcal.errors import InputError

MAX_ENTRIES = 1_000_000
MAX_MS = 1e12
HINT = "give what `trtexec --exportProfile` or `trtcal build --layer-times` wrote"

SPACE = r"\s{0,64}"
FIELD = rf'{SPACE},{SPACE}"(\w{{1,32}})"{SPACE}:{SPACE}([-+.\w]{{1,40}})'
OPENING = re.compile(rf'\{{{SPACE}"name"{SPACE}:{SPACE}"')
CLOSING = re.compile(
    rf'"((?:{FIELD}){{1,8}}){SPACE}\}}(?={SPACE}(?:,{SPACE}\{{{SPACE}"name"{SPACE}:|\]|$))'
)
COLUMNS = ("average_ms", "median_ms", "percent")
FIELDS = re.compile(FIELD)
COUNT = re.compile(rf'\{{{SPACE}"count"{SPACE}:{SPACE}(\d{{1,12}}){SPACE}\}}')


@dataclass(frozen=True)
class LayerTime:
    """One entry of a profile, in milliseconds; `name` is as it stands between the quotes.

    `average_ms` is the mean over the runs: means can be added up, medians can't.
    """

    name: str
    average_ms: float | None
    median_ms: float | None = None
    percent: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What the name may mean: as written, or, where that is JSON, as JSON reads it."""
        try:
            return self.name, str(json.loads(f'"{self.name}"', strict=False))
        except ValueError:
            return (self.name,)


@dataclass(frozen=True)
class Profile:
    """The times of an engine's layers, in its order, over `runs` runs (None if not told)."""

    times: tuple[LayerTime, ...]
    runs: int | None = None

    @property
    def total_ms(self) -> float:
        """The sum of what was measured of one run."""
        return math.fsum(time.average_ms or 0.0 for time in self.times)


@dataclass(frozen=True)
class Timed:
    """Layers with their times, and what could not be joined on either side."""

    layers: tuple[Layer, ...]
    without_time: tuple[str, ...] = ()
    without_layer: tuple[LayerTime, ...] = ()


def read_profile(source: str | bytes) -> Profile:
    """Read a profile; `InputError` if it holds no layer's time."""
    text = source if isinstance(source, str) else source.decode("utf-8", "backslashreplace")
    count = COUNT.search(text[:1000])
    runs = int(count[1]) if count else None
    times = tuple(_entries(text, runs))
    if not times:
        raise InputError("this profile holds no layer with its time", HINT)
    return Profile(times, runs)


def _entries(text: str, runs: int | None) -> list[LayerTime]:
    """Cut the text behind every closing sequence; what stands before it begins with an opening."""
    entries: list[LayerTime] = []
    start = 0
    for closing in CLOSING.finditer(text):
        opening = OPENING.search(text, start, closing.start() + 1)
        if opening and opening.end() <= closing.start() and len(entries) < MAX_ENTRIES:
            name = text[opening.end() : closing.start()]
            entries.append(_entry(name, dict(FIELDS.findall(closing[1])), runs))
        start = closing.end()
    return entries


def _entry(name: str, fields: dict[str, str], runs: int | None) -> LayerTime:
    numbers = {key: _number(value) for key, value in fields.items()}
    average = numbers.get("averageMs")
    total = numbers.get("timeMs")
    if average is None and total is not None and runs:
        average = total / runs
    return LayerTime(name, average, numbers.get("medianMs"), numbers.get("percentage"))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_MS else None


def profile_in_log(events: Iterable[Event]) -> Profile | None:
    """Return the table of layer times that a log of `trtexec --dumpProfile` ends with, or None."""
    rows = [event for event in events if event.fields.get("rule") == "time_layer"]
    times = tuple(
        LayerTime(row.subject, *(_number(str(row.fields.get(key))) for key in COLUMNS))
        for row in rows
        if row.subject is not None
    )
    return Profile(times) if times else None


def join_times(layers: Sequence[Layer], profile: Profile) -> Timed:
    """Give each layer its time: by name, and among equal names by order."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for index, time in enumerate(profile.times):
        for name in dict.fromkeys(time.names):
            waiting[name].append(index)
    taken: set[int] = set()
    timed = tuple(_timed(layer, waiting[layer.name], profile, taken) for layer in layers)
    return Timed(
        timed,
        tuple(layer.name for layer in timed if layer.time_ms is None),
        tuple(time for index, time in enumerate(profile.times) if index not in taken),
    )


def _timed(layer: Layer, waiting: deque[int], profile: Profile, taken: set[int]) -> Layer:
    while waiting:
        index = waiting.popleft()
        if index not in taken:
            taken.add(index)
            return replace(layer, time_ms=profile.times[index].average_ms)
    return layer
