"""The journal of a run: where it writes, what it has written, and whom it tells."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtcal.documents import append_line, from_fields, to_fields
from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.documents.staging import STEPS
from trtcal.evaluate.replay import Reporter, silent
from trtcal.limits import Judgement
from trtcal.runs.follower import Follower, Stage
from trtcal.runs.origin import Origin, Step

Say = Callable[[str], None]
"""Called with one line about the work."""


@dataclass
class Journal:
    """Where a run writes, what it has written so far, and whom it tells.

    `limits` are those on builds and data, judged. `reads` are the samples read, by purpose, `done` the
    steps of the same run in a process that was killed, by output: they are not made again. `spent` has
    the seconds of stages not recorded yet.
    """

    folder: Path
    origin: Origin
    progress: Reporter = silent
    say: Say = lambda message: None
    limits: list[Judgement] = field(default_factory=list)
    followers: tuple[Follower, ...] = ()
    reads: dict[str, int] = field(default_factory=dict)
    done: dict[str, Step] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what a process before this one finished."""
        path, reads = self.folder / STEPS, dict[str, int]()
        for line in read_bytes(path).splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, LookupError, TypeError):
                fields = parse_json(line)
                step, reads = from_fields(Step, fields["step"]), fields["reads"]
                if (self.folder / step.output).is_file():
                    self.done[step.output] = step
        self.reads |= {key: reads[key] for key in reads if key not in self.reads}

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
        digests, before = list[str](), self.done.get(output)
        with self.timing(stage):
            yield digests.append
        spent = self.spent.pop(stage)
        step = Step(stage, output, digests[0], before.seconds if before else spent)
        self.origin.stages.append(step)
        if not before:
            line = json.dumps({"step": to_fields(step), "reads": self.reads})
            append_line(self.folder / STEPS, line)
        if inputs:
            for follower in self.followers:
                follower.see_stage(Stage(stage, output, inputs, options or {}, digests[0]))

    def digest_of(self, output: str) -> str | None:
        """Return the digest of an output that was recorded, the last one of its name."""
        digests = (step.digest for step in reversed(self.origin.stages) if step.output == output)
        return next(digests, None)
