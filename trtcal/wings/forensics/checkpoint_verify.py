"""A run, or the preparation passes of today, held against the checkpoints of a baseline.

A delta is made once more: what made it may have been an accident of the machine. If it comes again it
is a finding, whether the pass, its options or its input changed (then this is what changed the output)
or none of them did (then the pass gives different outputs to one input).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtcal.config import Config
from trtcal.documents import Document, Workplace
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.pipeline.inputs import prepared_by
from trtcal.pipeline.job import run
from trtcal.pipeline.own_passes import passes_of
from trtcal.reporting.document import read_report
from trtcal.runs.history import Entry, History, entry_of
from trtcal.runs.origin import REPORT_FILE
from trtcal.runs.settings import read_settings
from trtcal.wings.forensics.checkpoint_diff import ChainDifference, Delta, compare_chains
from trtcal.wings.forensics.checkpoints import PREPARE, PREVIOUS, Checkpoints
from trtcal.wings.forensics.follower import CheckpointFollower

AGAIN, GONE, THIRD = "same again", "gone", "another output again"
NOT_RUN, UNTRUSTED = "not run again", "not run again, as its scripts need --trust"
"""What came of running once more what gave another output than the baseline."""


@dataclass(frozen=True)
class Verification:
    """Checkpoints held against a baseline: the first delta, and what came of running it once more."""

    baseline: str
    checked: int
    difference: ChainDifference
    rerun: str = NOT_RUN

    @property
    def finding(self) -> Delta | None:
        """The first delta, None if there is none."""
        return self.difference.first

    @property
    def is_repeated(self) -> bool:
        """Whether there is a delta that was not an accident of one execution."""
        return self.finding is not None and self.rerun != GONE

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.finding is None:
            return f"all {self.checked} checkpoints give the same outputs as in {self.baseline}"
        later = len(self.difference.deltas) - 1
        after = f"; {later} checkpoints after it differ too" if later else ""
        return f"{self.finding}; run once more: {self.rerun}{after}"

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {
            "baseline": self.baseline,
            "checked": self.checked,
            "rerun": self.rerun,
            "sentence": self.sentence,
            **self.difference.to_document(),
        }


def verify_run(
    folder: Path, baseline: Path, rerun: bool = True, trust: bool = False
) -> Verification:
    """Hold a run's checkpoints against those in another folder.

    With `rerun`, what made the first delta is done once more from the run's own settings; its pass
    scripts run only if they are trusted. `InputError` if a chain is missing or was changed.
    """
    checkpoints, before = Checkpoints.read(folder), Checkpoints.read(baseline)
    difference = compare_chains(before, checkpoints)
    verification = Verification(str(baseline), len(checkpoints.chain), difference)
    if verification.finding is None or not rerun:
        return verification
    config = read_settings(folder).trusting(trust)
    return replace(verification, rerun=_rerun(config, verification.finding, before, checkpoints))


def verify_passes(config: Config, baseline: Path, rerun: bool = True) -> Verification:
    """Run a configuration's preparation passes, and hold them against the checkpoints in a folder."""
    before = Checkpoints.read(baseline)
    passes = tuple(checkpoint for checkpoint in before.chain if checkpoint.stage == PREPARE)
    with Workplace() as place:
        checkpoints = _prepare(config, Path(place))
        difference = compare_chains(replace(before, chain=passes), checkpoints)
        verification = Verification(str(baseline), len(checkpoints.chain), difference)
        if verification.finding is None or not rerun:
            return verification
        return replace(
            verification, rerun=_rerun(config, verification.finding, before, checkpoints)
        )


def _rerun(config: Config, delta: Delta, before: Checkpoints, checkpoints: Checkpoints) -> str:
    if delta.after is None or config.untrusted:
        return UNTRUSTED if config.untrusted else NOT_RUN
    with Workplace() as place:
        make = _prepare if delta.after.stage == PREPARE else _run
        again = make(config, Path(place))
        was, now = (_output(delta, chain) for chain in (checkpoints, again))
    if was == now:
        return AGAIN
    return GONE if now == _output(delta, before) else THIRD


def _output(delta: Delta, checkpoints: Checkpoints) -> list[str]:
    """Return the outputs of all executions of a delta's pass."""
    place = delta.checkpoint.place
    return [execution.after for execution in checkpoints.chain if execution.place == place]


def _prepare(config: Config, place: Path) -> Checkpoints:
    if config.model is None:
        raise InputError(f"{config.path} names no model", "set `model` in it")
    follower = CheckpointFollower(config)
    follower.see_prepared(
        prepared_by(load_model(config.model), config, passes_of(config), [follower])
    )
    follower.write(place)
    return Checkpoints.read(place)


def _run(config: Config, place: Path) -> Checkpoints:
    return Checkpoints.read(run(replace(config, output=place / "run")).folder)


def baseline_of(folder: Path, history: History | None, against: int | None = None) -> Path:
    """Return the folder with the checkpoints that a run is held against.

    That of the run with number `against`, else of the last one before it that still lies in its folder,
    else those of the run that it replaced. `InputError` if there is none.
    """
    entries = [] if history is None else _entries(folder, history, against)
    for entry in entries:
        place = Path(entry.folder or "")
        if entry.folder and place.absolute() != folder.absolute() and _is_of(entry, place):
            return place
    if against is None and (folder / PREVIOUS).is_dir():
        return folder / PREVIOUS
    what = f"run {against}" if against is not None else "a run before it"
    raise InputError(
        f"there are no checkpoints of {what} to compare {folder} with",
        "give --baseline FOLDER; `trtcal run -o FOLDER` writes each run to a separate folder",
    )


def _entries(folder: Path, history: History, against: int | None) -> list[Entry]:
    if against is not None:
        return [history.entry(against)]
    own = entry_of(read_report(folder / REPORT_FILE))
    same = [entry for entry in history.entries(with_figures=False) if _is_before(entry, own)]
    return same[::-1]


def _is_before(entry: Entry, own: Entry) -> bool:
    is_same = entry.name == own.name or entry.digests.get("model") == own.digests.get("model")
    return (
        is_same
        and (entry.made_at, entry.report) != (own.made_at, own.report)
        and (entry.made_at <= own.made_at)
    )


def _is_of(entry: Entry, folder: Path) -> bool:
    """Tell whether a run still lies in its folder."""
    try:
        return bool(read_report(folder / REPORT_FILE)["digest"] == entry.report)
    except InputError:
        return False
