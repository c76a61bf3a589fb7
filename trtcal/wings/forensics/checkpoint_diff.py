"""Two chains of checkpoints held against each other: the first pass or stage with another output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trtcal.documents import Document, to_fields
from trtcal.wings.forensics.chain import Checkpoint
from trtcal.wings.forensics.checkpoints import PREPARE, Checkpoints
from trtcal.wings.forensics.delta import GraphDelta, difference

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
COMPONENTS = {
    "version": "version",
    "options": "options",
    "before": "input",
    "tool": "tool",
    "tool_version": "tool version",
}
"""What decides on an output, as fields of a checkpoint and in words."""
WITH_GRAPHS = (PREPARE, "tvm")
"""The stages whose passes have their graphs beside the chain."""


@dataclass(frozen=True)
class Delta:
    """A pass or stage whose output differs between two chains, or that only one of them has.

    `number` is its place in the chain that has it, the second one if both do. `changed` names the
    components of its key that differ; with none of them the same input gave another output. `graph`
    says what changed in it, where both graphs are known.
    """

    number: int
    before: Checkpoint | None
    after: Checkpoint | None
    changed: tuple[str, ...] = ()
    graph: GraphDelta | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, of the second chain if it has one."""
        checkpoint = self.after or self.before
        if checkpoint is None:
            raise ValueError("a delta has a checkpoint")
        return checkpoint

    @property
    def got_another(self) -> bool:
        """Whether it had another input."""
        return COMPONENTS["before"] in self.changed

    @property
    def is_unexplained(self) -> bool:
        """Whether an equal key gave another output."""
        return self.before is not None and self.after is not None and not self.changed

    @property
    def name(self) -> str:
        """Stage, pass and subject in words."""
        checkpoint = self.checkpoint
        what = "pass" if checkpoint.stage == PREPARE else checkpoint.stage
        return (
            f"{what} {checkpoint.name!r}{f' of {checkpoint.subject}' if checkpoint.subject else ''}"
        )

    def __str__(self) -> str:
        if self.after is None or self.before is None:
            side = "removed" if self.after is None else "new"
            return f"{self.name} (number {self.number}) is {side}{self._shown_graph}"
        what = "has a different input" if self.got_another else "has a different output"
        names = " and ".join(self.changed)
        why = f"changed: its {names}" if names else "none of its inputs changed"
        return f"{self.name} (number {self.number}) {what}{self._shown_graph}; {why}"

    @property
    def _shown_graph(self) -> str:
        return f": {self.graph}" if self.graph else ""

    def to_document(self) -> Document:
        """Return the JSON form."""
        checkpoint = self.checkpoint
        return {
            **to_fields(self),
            "stage": checkpoint.stage,
            "name": checkpoint.name,
            "subject": checkpoint.subject,
            "is_unexplained": self.is_unexplained,
            "sentence": str(self),
        }


@dataclass(frozen=True)
class ChainDifference:
    """What differs between two chains: outputs in their order, and keys whose output stayed the same.

    The first delta is the cause of those after it, as far as these only have another input.
    """

    deltas: tuple[Delta, ...]
    same_output: tuple[Delta, ...] = field(default=())

    @property
    def first(self) -> Delta | None:
        """The first delta."""
        return self.deltas[0] if self.deltas else None

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {
            "first": None if self.first is None else self.first.to_document(),
            "deltas": [delta.to_document() for delta in self.deltas],
            "same_output": [delta.to_document() for delta in self.same_output],
        }


def compare_chains(before: Checkpoints, after: Checkpoints) -> ChainDifference:
    """Compare two chains; passes are paired by stage, subject and name, those of one name in order."""
    first, second = (
        dict(placed(enumerate(checkpoints.chain, 1), lambda numbered: numbered[1].place))
        for checkpoints in (before, after)
    )
    deltas, same = list[Delta](), list[Delta]()
    for place in merged(list(first), list(second)):
        was, now = first.get(place), second.get(place)
        if was is None or now is None:
            if _does_something(now or was):
                deltas.append(_with_graph(_delta(was, now), before, after))
        elif was[1].after != now[1].after:
            deltas.append(_with_graph(_delta(was, now), before, after))
        elif was[1].key != now[1].key:
            same.append(_delta(was, now))
    return ChainDifference(tuple(deltas), tuple(same))


Numbered = tuple[int, Checkpoint]


def placed(
    items: Iterable[Item], name_of: Callable[[Item], Key]
) -> Iterator[tuple[tuple[Key, int], Item]]:
    """Yield items with their name and their place among those of that name."""
    seen = Counter[Key]()
    for item in items:
        seen[name_of(item)] += 1
        yield (name_of(item), seen[name_of(item)]), item


def merged(first: Sequence[Key], second: Sequence[Key]) -> Iterator[Key]:
    """Yield what is in either list: in the second's order, what is in the first alone between."""
    known, others = set(first), set(second)
    gone: dict[Key | None, list[Key]] = {}
    last: Key | None = None
    for key in first:
        if key in others:
            last = key
        else:
            gone.setdefault(last, []).append(key)
    yield from gone.get(None, ())
    for key in second:
        yield key
        yield from gone.get(key, ()) if key in known else ()


def _does_something(numbered: Numbered | None) -> bool:
    """Tell whether a pass that only one chain has changed its input; a stage always does."""
    return numbered is not None and numbered[1].before != numbered[1].after


def _delta(was: Numbered | None, now: Numbered | None) -> Delta:
    number, _ = now or was or (0, None)
    if was is None or now is None:
        return Delta(number, was and was[1], now and now[1])
    pairs = {name: (getattr(was[1], name), getattr(now[1], name)) for name in COMPONENTS}
    changed = tuple(COMPONENTS[name] for name, (first, other) in pairs.items() if first != other)
    return Delta(number, was[1], now[1], changed)


def _with_graph(delta: Delta, before: Checkpoints, after: Checkpoints) -> Delta:
    """Add what changed in the graph: in what a pass got if that is another, else in what it made.

    Of a pass that only one chain has it is what the pass does.
    """
    if delta.checkpoint.stage not in WITH_GRAPHS:
        return delta
    side = "before" if delta.got_another else "after"
    if delta.before is None or delta.after is None:
        graphs = before.graphs if delta.after is None else after.graphs
        pair = [graphs.get(delta.checkpoint.before), graphs.get(delta.checkpoint.after)]
    else:
        pair = [before.graphs.get(getattr(delta.before, side))]
        pair.append(after.graphs.get(getattr(delta.after, side)))
    was, now = pair
    return replace(delta, graph=difference(was, now) if was and now else None)
