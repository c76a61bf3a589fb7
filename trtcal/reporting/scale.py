"""The axis of a chart: broken where a few values far off would squeeze the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from calibrators.imports import MATPLOTLIB, without_file

with without_file(MATPLOTLIB):
    from matplotlib.scale import FuncScale, ScaleBase
    from matplotlib.ticker import Locator, LogLocator, MaxNLocator

Reach = tuple[float, float]
"""The least and the largest of something."""
Spot = tuple[float, ...]
"""The ends of a value's interval, low and high, and the value."""

LOG_RATIO, LARGEST = 20.0, 700.0  # beyond the first, an axis is logarithmic; the second a logarithm
FAR, FAR_LOG = 4.0, 1.0  # an axis breaks before values that many times the others' range away
LEAST = 0.02  # of a value: what a range is taken as at least
ASIDE, BREAK = 0.14, 0.05  # shares of the axis: of values far off, and of the break before them
PADDING = 0.1  # of a part, before and after its values


@dataclass(frozen=True)
class Axis:
    """The parts of an axis by rising values, with breaks between them; most values are on `main`.

    `limits` are the ends of each part, their logarithms if `is_log`, `places` the shares of the axis
    where these stand, and `aside` the values far off.
    """

    limits: Sequence[Reach]
    places: Sequence[Reach]
    main: int
    is_log: bool
    aside: Sequence[float]

    @property
    def ends(self) -> Reach:
        """The least and the largest value on the axis."""
        ends = self._values(self.limits)
        return float(ends[0][0]), float(ends[-1][1])

    @property
    def breaks(self) -> list[float]:
        """Where the axis is broken, in shares of it."""
        return [(end + start) / 2 for (_, end), (start, _) in pairwise(self.places)]

    def scale(self, drawn: Any) -> str | ScaleBase:
        """Return the scale for an axis of matplotlib."""
        if not self.breaks:
            return "log" if self.is_log else "linear"
        knots, places = np.ravel(self.limits), np.ravel(self.places)

        def share(values: Any) -> Any:
            own = np.log(np.maximum(values, math.exp(-LARGEST))) if self.is_log else values
            return np.interp(np.asarray(own), knots, places)

        def value(shares: Any) -> Any:
            return self._values(np.interp(shares, places, knots))

        return FuncScale(drawn, (share, value))

    def _values(self, limits: Any) -> Any:
        return np.exp(np.clip(limits, -LARGEST, LARGEST)) if self.is_log else np.asarray(limits)

    def is_near(self, value: float) -> bool:
        """Whether a value is no farther from most values than those are from each other."""
        low, high = self._values(self.limits[self.main])
        return bool(2 * low - high <= value <= 2 * high - low)

    def shows(self, value: float) -> bool:
        """Whether a value is on the axis."""
        return any(low <= value <= high for low, high in self._values(self.limits))

    def ticks(self, has_room: Callable[[list[float]], bool]) -> list[float]:
        """Return the values with a label: as many as have room, those far off first."""
        shown = sorted({float(f"{value:.3g}") for value in self._values(self.aside)})
        far = next((own for own in (shown, shown[:1]) if has_room(own)), [])
        own = next((own for own in self._round() if has_room(own)), [])
        return [*far, *(tick for tick in own if has_room([*far, tick]))]

    def _round(self) -> Iterator[list[float]]:
        """Yield fewer and fewer round values on the main part."""
        low, high = self._values(self.limits[self.main])
        locators: list[Locator] = [
            MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]) for count in (6, 5, 4, 3, 2, 1)
        ]
        if self.is_log:
            locators = [LogLocator(subs=(1.0, 2.0, 5.0)), LogLocator(), *locators]
        for locator in locators:
            yield [float(each) for each in locator.tick_values(low, high) if low <= each <= high]


def axis_of(values: Sequence[Sequence[float]], may_be_log: bool = False) -> Axis:
    """Return the axis that shows values, each with the ends of its interval."""
    spots: list[Spot] = sorted((min(each), max(each), each[0]) for each in values)
    spots = spots or [(0.0, 1.0, 0.0)]
    low, high = _ends(spots)
    is_log = may_be_log and low > 0 and high > LOG_RATIO * low
    if is_log:
        spots = [(math.log(low), math.log(high), math.log(value)) for low, high, value in spots]
    groups, main = _groups(spots, FAR_LOG if is_log else FAR)
    lengths = [ASIDE] * len(groups)
    lengths[main] = 1.0 - (len(groups) - 1) * (ASIDE + BREAK)
    ends = np.cumsum(lengths) + BREAK * np.arange(len(groups))
    aside = [spot[2] for group in groups if group is not groups[main] for spot in group]
    return Axis([*_limits(groups)], [*zip(ends - lengths, ends, strict=True)], main, is_log, aside)


def _limits(groups: Sequence[Sequence[Spot]]) -> Iterator[Reach]:
    """Yield the ends of each group's part: with room beside its values, but apart from the others'."""
    reaches = [_ends(group) for group in groups]
    gaps = [(after - before) / 3 for (_, before), (after, _) in pairwise(reaches)]
    for (low, high), below, above in zip(reaches, [np.inf, *gaps], [*gaps, np.inf], strict=True):
        room = _range(low, high) * PADDING + (_range(low, high) - (high - low)) / 2
        yield low - min(room, below), high + min(room, above)


def _groups(spots: list[Spot], far: float) -> tuple[list[list[Spot]], int]:
    """Return sorted values in groups, and which is the main one: the others are fewer and far off."""
    for aside in range(1, (len(spots) + 1) // 2):
        for below in range(aside + 1):
            above = len(spots) - aside + below
            groups = [spots[:below], spots[below:above], spots[above:]]
            low, high = _ends(groups[1])
            away = [_ends(group) for group in groups[::2] if group]
            if all(max(least - high, low - most) > far * _range(low, high) for least, most in away):
                return [group for group in groups if group], int(below > 0)
    return [spots], 0


def _ends(spots: Sequence[Spot]) -> Reach:
    return min(spot[0] for spot in spots), max(spot[1] for spot in spots)


def _range(low: float, high: float) -> float:
    return max(high - low, LEAST * max(abs(low), abs(high)) or 1.0, 1e-9)
