"""A issue: a fault that data seem to have, in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtcal.data.dataset import Array

if TYPE_CHECKING:
    from trtcal.check.evidence import Evidence
    from trtcal.check.preprocessing import Change


@dataclass(frozen=True)
class DataIssue:
    """A fault that data seem to have.

    `code` is a stable word, `seen` says in one sentence what was seen, with figures, `fix` what to do.
    """

    code: str
    seen: str
    fix: str

    def __str__(self) -> str:
        return f"{self.code}: {self.seen}; {self.fix}"

    def to_document(self) -> dict[str, str]:
        """Return the JSON form."""
        return asdict(self)


FIXES = {
    "pixels_not_scaled": "divide the pixels before they are normalized",
    "pixels_scaled": "leave the pixels at 0 to 255: do not divide them",
    "scaled_twice": "divide the pixels by 255 once, not twice",
    "not_normalized": "take the mean from the pixels and divide by the std, as in training",
    "normalized_twice": "take the mean and divide by the std once, not twice",
    "other_normalization": "normalize the pixels as in training",
}


def values(name: str, array: Array, change: Change, evidence: Evidence) -> DataIssue:
    """Return the issue that pixels reach the input in another form than the model's."""
    low, high = np.quantile(array, (0.001, 0.999))
    return DataIssue(
        change.code,
        f"{name!r} has values of {low:.4g} to {high:.4g}, which look like pixels as {change.had.text}; "
        f"as {change.wanted.text}, {evidence.sentence()}",
        f"{FIXES[change.code]} (the model seems to want pixels as {change.wanted.text})",
    )


def channel_order(name: str, evidence: Evidence) -> DataIssue:
    """Return the issue that red and blue are swapped."""
    return DataIssue(
        "channel_order",
        f"the channels of {name!r} look swapped: with red and blue exchanged {evidence.sentence()}",
        "read the images as BGR if they are RGB now, as RGB if they are BGR (`channels` in [images])",
    )
