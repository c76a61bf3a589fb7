"""The stages of TensorRT's builder, as a verbose log has them: what each one fused and left.

TensorRT and TensorRT-RTX print `Original: 34 layers` and then `After vertical fusions: 9 layers`
behind each stage, and between these lines what they fused, removed or moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trtcal.evidence.log.files import portions_of_file
from trtcal.evidence.log.lines import split_line

STAGE = re.compile(r"(?:After )?([A-Za-z][\w -]{0,60}): (\d{1,9}) layers$")
CHANGE = re.compile(
    r"(?:\w+: )?(?:Fusing|Fused|Removing|Removed|Eliminating|Merging|Swapping|Moving|Retargeting|"
    r"Replacing|Converting|Simplifying|Eliminated|Merged|Swapped)\b"
)
MOST_STAGES = 10_000


@dataclass(frozen=True)
class BuilderStage:
    """One stage: its name, how many layers it left, and what it says that it changed."""

    name: str
    layers: int
    changes: tuple[str, ...]


def builder_stages(log: Path) -> tuple[BuilderStage, ...]:
    """Return the stages of a verbose build log in their order, none of a log that lists none."""
    stages, changes = list[BuilderStage](), list[str]()
    for line in _lines(log):
        if CHANGE.match(line):
            changes.append(line)
        elif (stage := STAGE.match(line)) and len(stages) < MOST_STAGES:
            stages.append(BuilderStage(stage[1], int(stage[2]), tuple(changes)))
            changes = []
    return tuple(stages)


def _lines(log: Path) -> Iterator[str]:
    for portion in portions_of_file(log):
        for line in portion.decode("utf-8", "replace").split("\n"):
            yield split_line(line)[1]
