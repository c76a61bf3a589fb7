"""Engines that other tools measured, as they join what trtcal knows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trtcal.documents import Document
from trtcal.evaluate.comparison import Comparison, Row
from trtcal.evaluate.target_times import TargetTime
from trtcal.evidence.manifest import Build
from trtcal.extensions import MEASUREMENTS, load
from trtcal.limits import SHIP, WITH_CARE
from trtcal.model import Model
from trtcal.reporting.collect import Findings
from trtcal.reporting.verdict import Verdict


@dataclass(frozen=True)
class Measured:
    """What the files of other tools say of one variant's engine.

    `build` has its layers, with times where there is a profile; `time` is None where no file has times
    of whole inferences. `facts` is the JSON for the report: `variant`, `on`, `hardware`, `ms`, `files`
    with their digests, `warnings` (sentences), and `difference`, None where no tensor was compared.
    """

    variant: str
    build: Build | None
    time: TargetTime | None
    facts: Document


def read_measured(
    files: Sequence[str], comparison: Comparison, models: Mapping[str, Model]
) -> Sequence[Measured]:
    """Read what other tools measured of the variants of a comparison, the reference among them.

    Each file is `[VARIANT[@DEVICE]=]FILE`; `models` are those known, by fingerprint.
    """
    reader = load(MEASUREMENTS, "files", "files of other tools")
    measured: Sequence[Measured] = reader(files, comparison.rows, models)
    return measured


def with_measured(comparison: Comparison, measured: Sequence[Measured]) -> Comparison:
    """Return a comparison with measured times: before the others if all variants have one."""
    times = {each.variant: each.time for each in measured if each.time}
    targets = {time.target for time in times.values()}
    is_whole = len(targets) == 1 and all(row.name in times for row in comparison.rows)

    def joined(row: Row) -> tuple[TargetTime, ...]:
        new = [times[row.name]] if row.name in times else []
        others = [time for time in row.times if time.target not in {each.target for each in new}]
        return (*new, *others) if is_whole else (*others, *new)

    rows = tuple(replace(row, times=joined(row)) for row in comparison.rows)
    return replace(comparison, rows=rows)


def warned(verdict: Verdict, measured: Sequence[Measured]) -> Verdict:
    """Return a verdict with what is to be known of the measurement of its variant."""
    facts = [each.facts for each in measured if each.variant == verdict.variant]
    reasons = tuple(f"{text[0].upper()}{text[1:]}." for each in facts for text in each["warnings"])
    word = WITH_CARE if reasons and verdict.word == SHIP else verdict.word
    return replace(verdict, word=word, reasons=(*verdict.reasons, *reasons))


def with_engines(findings: Findings, measured: Sequence[Measured]) -> Findings:
    """Return what a run's folder holds with the engines that were measured elsewhere."""
    builds = [each.build for each in measured if each.build]
    where = findings.where | {build.digest: "imported" for build in builds}
    return replace(findings, builds=(*findings.builds, *builds), where=where)
