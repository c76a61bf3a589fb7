"""The journal of a run: where it writes, what it has written, and whom it tells."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtcal.evaluate.replay import Reporter, silent
from trtcal.limits import Judgement
from trtcal.runs.follower import Follower, Stage
from trtcal.runs.origin import Origin, Step

Say = Callable[[str], None]
"""Called with one line about the work."""


@dataclass
class Journal:
    """Where a run writes, what it has written so far, and whom it tells.

    `limits` are those on builds and data, judged. `spent` has the seconds of stages not recorded yet.
    """

    folder: Path
    origin: Origin
    progress: Reporter = silent
    say: Say = lambda message: None
    limits: list[Judgement] = field(default_factory=list)
    followers: tuple[Follower, ...] = ()
    spent: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Count the time towards a stage that is recorded later."""
        started = time.perf_counter()
        yield
        self.spent[stage] = self.spent.get(stage, 0.0) + time.perf_counter() - started

    @contextlib.contextmanager
    def step(
        self, stage: str, output: str, inputs: Sequence[str] = (), options: object = None
    ) -> Iterator[Callable[[str], None]]:
        """Record one stage; the caller gives the digest of what it wrote to what this yields.

        `inputs` are the digests of what the stage works on: with them followers see it.
        """
        digests = list[str]()
        with self.timing(stage):
            yield digests.append
        seconds = self.spent.pop(stage)
        self.origin.stages.append(Step(stage, output, digests[0], seconds))
        if inputs:
            for follower in self.followers:
                follower.see_stage(Stage(stage, output, inputs, options or {}, digests[0]))

    def digest_of(self, output: str) -> str | None:
        """Return the digest of an output that was recorded, the last one of its name."""
        digests = (step.digest for step in reversed(self.origin.stages) if step.output == output)
        return next(digests, None)
