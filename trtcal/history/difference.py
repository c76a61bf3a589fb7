"""What got better and worse between two runs, and which of their inputs changed."""

from __future__ import annotations

from dataclasses import dataclass

from trtcal.history.figures import is_better
from trtcal.history.store import Entry
from trtcal.storage import Document


@dataclass(frozen=True)
class Changed:
    """A figure that both runs have and that differs; `share` is relative, None from zero."""

    candidate: str
    figure: str
    before: float
    after: float

    @property
    def share(self) -> float | None:
        """Relative change: 0.05 is 5 % more."""
        return self.after / self.before - 1.0 if self.before else None

    @property
    def is_better(self) -> bool | None:
        """Whether the change is for the better; None where it is neither."""
        return is_better(self.figure, self.after - self.before)

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "share": self.share, "is_better": self.is_better}


@dataclass(frozen=True)
class RunDifference:
    """Two runs: figures that differ, candidates that only one has, and inputs that changed.

    `inputs` gives for each what it was and what it is, None where it is missing.
    """

    before: int
    after: int
    changed: tuple[Changed, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    inputs: dict[str, tuple[str | None, str | None]]

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "changed": [one.to_document() for one in self.changed]}


def compare_runs(before: Entry, after: Entry) -> RunDifference:
    """Compare two runs, the largest relative change first."""
    changed = [
        Changed(*key, value, after.figures[key])
        for key, value in before.figures.items()
        if key in after.figures and after.figures[key] != value
    ]
    first, second = ({key[0] for key in one.figures} for one in (before, after))
    return RunDifference(
        before.number,
        after.number,
        tuple(sorted(changed, key=lambda one: -abs(one.share or 1.0))),
        tuple(sorted(first - second)),
        tuple(sorted(second - first)),
        changed_inputs(before, after),
    )


def changed_inputs(before: Entry, after: Entry) -> dict[str, tuple[str | None, str | None]]:
    """Return what of the digests and versions differs."""
    names = dict.fromkeys((*before.digests, *after.digests))
    pairs = {name: (before.digests.get(name), after.digests.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
