"""What follows a run without being part of it.

Extensions write files of their own, add to the report, judge limits on it, and send runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trtcal.config import Config
from trtcal.documents import Document
from trtcal.extensions import JOURNAL, load, load_all
from trtcal.limits import Judgement, Limit
from trtcal.metrics import COST

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

    from trtcal.evidence.manifest import Build
    from trtcal.model.passes import PassRecord, Prepared


@dataclass(frozen=True)
class Stage:
    """A stage that ended: its name, its output and that one's digest, and what the output follows from.

    `inputs` are the digests of what the stage worked on, `options` any JSON value.
    """

    name: str
    output: str
    inputs: Sequence[str]
    options: object
    digest: str


class Follower:
    """Base of an entry point of `trtcal.journal`: a subclass overrides what it follows.

    A run makes one of each class, and calls its methods in the order in which they stand here, the
    last two of them not in a run.
    """

    name: ClassVar[str] = ""
    outputs: ClassVar[tuple[str, ...]] = ()
    """What it writes at the top of a run's folder; first the file whose digest `write` returns."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self) -> None:
        """Before the work: `TrtcalError` if its part of the configuration is wrong."""

    def see_graph(self, graph: gs.Graph, record: PassRecord | None) -> None:
        """Before the preparation passes (without record), and after each of them."""

    def start(self, folder: Path, place: Path) -> None:
        """When outputs can be written: to `place`, which becomes `folder`, where a run may lie."""

    def see_prepared(self, prepared: Prepared) -> None:
        """After the preparation passes."""

    def see_stage(self, stage: Stage) -> None:
        """After each stage whose output follows from digests."""

    def see_build(self, build: Build, model: str) -> None:
        """After each build of a model, given by its digest."""

    def write(self, folder: Path) -> str:
        """After the last stage: write `outputs` into a folder, and return the digest of the first."""
        raise NotImplementedError

    def complete(self, report: Document) -> Document:
        """Return a report with what this adds under `measured`."""
        return report

    def judge(self, limits: Sequence[Limit], report: Document) -> Sequence[Judgement]:
        """Return the judged limits on what `complete` adds."""
        return ()

    @staticmethod
    def meter(report: Document) -> Document | None:
        """Return what the history keeps of a report for this, any JSON object."""

    @staticmethod
    def problem(folder: Path, digest: str | None) -> str | None:
        """Return why the first of `outputs` in a folder is not as it was written, None if it is.

        `digest` is the one that `write` returned, if it is known.
        """

    @staticmethod
    def export(entries: Sequence[Any], address: str, advance: Callable[[int], None]) -> int:
        """Send runs of a history to an address; return how many it did not have yet."""
        raise NotImplementedError


def followers_of(config: Config) -> tuple[Follower, ...]:
    """Return what follows a run of a configuration; `InputError` if it needs what is not installed."""
    has_limit = any(limit.metric == COST for limit in config.limits)
    if config.report.price_per_hour or config.cost.prices or has_limit:
        find("costs", "prices and limits on costs")
    return tuple(kind(config) for kind in follower_kinds())


def completed(report: Document, followers: Sequence[Follower]) -> Document:
    """Return a report with what all followers add."""
    for follower in followers:
        report = follower.complete(report)
    return report


def find(name: str, purpose: str) -> type[Follower]:
    """Return the class of one follower; `InputError` if it is not installed, which `purpose` needs."""
    kind: type[Follower] = load(JOURNAL, name, purpose)
    return kind


def follower_kinds() -> tuple[type[Follower], ...]:
    """Return the classes of all that can follow a run."""
    return tuple(load_all(JOURNAL).values())
