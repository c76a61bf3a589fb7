"""What each node got of what it was asked, over all optimization profiles of an engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from trtcal.buildlog.diagnosis import Outcome, check
from trtcal.buildlog.layers import Layer

PROFILE = re.compile(r" \[profile (\d+)\]")


def find_outcomes(
    asked: Mapping[str, str], layers: Sequence[Layer], profiles: int
) -> tuple[Outcome, ...]:
    """Return each node's outcome, of several profiles that of the first in which it was lost.

    A list of several profiles has every layer once for each, with ` [profile 1]` in its name from
    the second on.
    """
    found = [
        check(asked, [layer for layer in layers if not layer.is_heavy or _profile(layer) == number])
        for number in range(profiles)
    ]
    return tuple(_worst(outcomes) for outcomes in zip(*found, strict=True))


def _profile(layer: Layer) -> int:
    tag = PROFILE.search(layer.name)
    return int(tag[1]) if tag else 0


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    for number, outcome in enumerate(outcomes):
        if outcome.is_lost:
            where = f"in profile {number}, " if number else ""
            return dataclasses.replace(outcome, reason=f"{where}{outcome.reason}")
    return outcomes[0]
