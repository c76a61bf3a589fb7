"""`trtcal verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtcal.cli.options import JsonOptions, argument, make_command
from trtcal.cli.output import say
from trtcal.errors import GateFailed


@dataclass(frozen=True, kw_only=True)
class Options(JsonOptions):
    """The options of `trtcal verify`."""

    paths: tuple[Path, ...] = argument()


@make_command(Options, "trtcal verify reports/digits/report.html")
def command(options: Options) -> None:
    """Recompute the digests in reports (HTML or JSON), documents or run folders.

    The status is 1 if one does not hold; it is named.
    """
    from trtcal.runs.verify import verify

    checks = [check for path in options.paths for check in verify(path)]
    broken = [check for check in checks if not check.holds]
    problems = [f"{check.what}: {check.problem}" for check in broken]
    lines = [*problems, f"{len(checks) - len(broken)} of {len(checks)} digests hold"]

    def show() -> None:
        for line in lines:
            say(line)

    options.present([vars(check) for check in checks], show)
    if broken:
        raise GateFailed(problems[0], "make it again from what it was made of, or get the original")
