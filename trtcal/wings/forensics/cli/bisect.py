"""`trtcal trace bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, TrustOptions, option
from trtcal.cli.output import note, say

if TYPE_CHECKING:
    from trtcal.wings.forensics.bisect import Bisection


class Bisect(
    JsonOptions,
    TrustOptions,
    example="trtcal trace bisect --good good/ --bad reports/ --limit 'top1 >= -1.0'",
):
    """Find the one pass, plan entry, range or option of run BAD that breaks a limit which GOOD meets.

    The differences between the runs are numbered. Each step executes the pipeline, as far as the
    limit needs it, with the first of them from GOOD and the rest from BAD. The number of
    executions is about log2 of the number of differences.
    """

    good: Path = option("Folder of a run that meets the limit.")
    bad: Path = option("Folder of a run that breaks it.")
    limit: str = option(
        'The limit, as in "top1 >= -1.0" or "broken_fusions <= 0".', metavar="LIMIT"
    )
    variant: str | None = option(
        "The variant to judge.  [default: the limit's, else the first plan or the method's]"
    )
    predicted: bool = option(
        "Judge a limit on findings by the fusions that the graph lets expect, and build nothing."
    )

    def _run(self) -> None:
        from trtcal.limits import parse_limit
        from trtcal.runs.settings import read_settings
        from trtcal.wings.forensics.bisect import bisect

        limit = parse_limit(self.limit)
        good, bad = (read_settings(folder).trusting(self.trust) for folder in (self.good, self.bad))
        for name in (self.good, self.bad):
            _note_versions(name)

        def say_step(line: str) -> None:
            note(f"bisect: {line}")

        bisection = bisect(good, bad, limit, self.variant, say_step, self.predicted)
        self.present(bisection.to_document(), lambda: _show(bisection))


def _note_versions(folder: Path) -> None:
    """Note the packages of which a run had another version than this machine, which executes now."""
    from trtcal.backends.targets import packages
    from trtcal.runs.origin import Origin

    was = Origin.read(folder).measured.packages
    for name, version in packages().items():
        if name in was and was[name] != version:
            note(f"note: {folder} was made with {name} {was[name]}, this machine has {version}")


def _show(bisection: Bisection) -> None:
    say(bisection.sentence)
    say(f"good: {bisection.good}")
    say(f"bad: {bisection.bad}")
    say(f"{bisection.executions} executions for {bisection.candidates} differences")
