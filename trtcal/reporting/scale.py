"""The axis of a chart: where values stand, broken where a few far off would squeeze the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from sys import float_info

Reach = tuple[float, float]
"""The least and the largest of something."""
Spot = tuple[float, float, float]
"""The ends of a value's interval, low and high, and the value."""
Room = Callable[[float], float]
"""How many pixels the label of a value takes along the axis."""

LOG_RATIO = 20.0
FAR = 4.0  # an axis breaks before values that many times the others' range away; a logarithmic one at 1
LEAST = 0.02  # of a value: what a range is taken as at least
ASIDE, BREAK = 0.14, 0.05  # shares of the axis: of values far off, and of the break before them
PADDING = 0.1  # of an axis, before and after its values
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Band:
    """A part of an axis: `low` stands at `start` and `high` at `end`, in pixels.

    `values` are drawn there; `is_main` if they are most of all values.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    values: Sequence[float]
    is_main: bool

    def at(self, value: float) -> float:
        """Return where a value stands."""
        ends = (self.low, self.high, value)
        low, high, value = (math.log(each) if self.is_log else each for each in ends)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, room: Room) -> list[float]:
        """Return round values whose labels have room; of values far off the ends."""
        tries = [_steps(self.low, self.high, count) for count in (6, 5, 4, 3, 2, 1)]
        if self.is_log:
            tries = [_powers(self.low, self.high, digits) for digits in ((1, 2, 5), (1,))] + tries
        if not self.is_main:
            shown = sorted({float(f"{value:.3g}") for value in self.values})
            tries = [shown, [shown[0], shown[-1]], shown[:1]]
        return next((ticks for ticks in tries if self._fits(ticks, room)), [])

    def _fits(self, ticks: Sequence[float], room: Room) -> bool:
        return all(
            abs(self.at(tick) - self.at(after)) >= (room(tick) + room(after)) / 2
            for tick, after in pairwise(ticks)
        )


@dataclass(frozen=True)
class Axis:
    """An axis of one band, or of several with breaks between them, by rising values."""

    bands: tuple[Band, ...]

    @property
    def breaks(self) -> list[float]:
        """Where the axis is broken, in pixels."""
        return [(band.end + after.start) / 2 for band, after in pairwise(self.bands)]

    def at(self, value: float) -> float:
        """Return where a value stands, in pixels."""
        return next((band for band in self.bands if value <= band.high), self.bands[-1]).at(value)

    def is_near(self, value: float) -> bool:
        """Whether a value is no farther from most values than those are from each other."""
        low, high = next((band.low, band.high) for band in self.bands if band.is_main)
        return 2 * low - high <= value <= 2 * high - low

    def shows(self, value: float) -> bool:
        """Whether a value is on the axis."""
        return any(band.low <= value <= band.high for band in self.bands)

    def ticks(self, room: Room) -> list[float]:
        """Return the values with a label: those far off, and round ones that leave them room."""
        ticks: list[float] = []
        for band in sorted(self.bands, key=lambda band: band.is_main):
            ticks += [
                tick
                for tick in band.ticks(room)
                if all(
                    abs(self.at(tick) - self.at(one)) >= (room(tick) + room(one)) / 2
                    for one in ticks
                )
            ]
        return ticks


def axis_of(
    values: Sequence[Sequence[float]], start: float, end: float, may_be_log: bool = False
) -> Axis:
    """Return the axis from `start` to `end` that shows values, each with the ends of its interval."""
    spots = sorted((min(each), max(each), each[0]) for each in values) or [(0.0, 1.0, 0.0)]
    groups, main = _groups(spots, may_be_log)
    aside = (end - start) * ASIDE
    gap = (end - start) * BREAK
    main_length = (end - start) - (len(groups) - 1) * (aside + gap)
    bands = []
    for number, group in enumerate(groups):
        length = main_length if number == main else aside
        is_log, shown = _is_log(group, may_be_log), [value for _, _, value in group]
        limits = _padded(*_ends(group), is_log)
        bands.append(Band(*limits, start, start + length, is_log, shown, number == main))
        start += length + gap
    return Axis(tuple(bands))


def _groups(spots: list[Spot], may_be_log: bool) -> tuple[list[list[Spot]], int]:
    """Return sorted values in groups, and which is the main one: the others are fewer and far off."""
    is_log = _is_log(spots, may_be_log)
    for aside in range(1, (len(spots) + 1) // 2):
        for below in range(aside + 1):
            above = len(spots) - aside + below
            groups = [spots[:below], spots[below:above], spots[above:]]
            if all(_is_far(group, groups[1], is_log) for group in groups[::2] if group):
                return [group for group in groups if group], int(below > 0)
    return [spots], 0


def _is_far(group: Sequence[Spot], main: Sequence[Spot], is_log: bool) -> bool:
    """Whether a group is so far from the main one that both on an axis would squeeze that."""
    (low, high), (least, most) = _ends(main), _ends(group)
    if is_log:
        return max(least / high, low / most) > high / low
    return max(least - high, low - most) > FAR * _range(low, high)


def _ends(spots: Sequence[Spot]) -> Reach:
    return min(low for low, _, _ in spots), max(high for _, high, _ in spots)


def _is_log(spots: Sequence[Spot], may_be_log: bool) -> bool:
    low, high = _ends(spots)
    return may_be_log and low > 0 and high > LOG_RATIO * low


def _range(low: float, high: float) -> float:
    return max(high - low, LEAST * max(abs(low), abs(high)) or 1.0, 1e-9)


def _padded(low: float, high: float, is_log: bool) -> Reach:
    """Return limits with room at both ends, also where all values are equal."""
    if is_log:
        room = math.exp(PADDING * (math.log(high) - math.log(low)))
        return max(low / room, float_info.min), min(high * room, float_info.max)
    room = _range(low, high) * PADDING + (_range(low, high) - (high - low)) / 2
    return low - room, high + room


def _steps(low: float, high: float, count: int) -> list[float]:
    """Return at most `count` + 1 multiples of a round step."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(each * power for each in STEPS if each * power * count >= (high - low) * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1) if low <= number * step <= high]


def _powers(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """Return the powers of ten, times some digits."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    values = (digit * 10.0**power for power in powers for digit in digits)
    return [value for value in values if low <= value <= high]
