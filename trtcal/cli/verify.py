"""`trtcal verify`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument
from trtcal.cli.output import say
from trtcal.errors import GateFailed


class Verify(JsonOptions, example="trtcal verify reports/digits/report.html"):
    """Recompute the digests in reports (HTML or JSON), documents or run folders.

    The status is 1 if one does not hold; it is named.
    """

    paths: tuple[Path, ...] = argument()

    def _run(self) -> None:
        from trtcal.runs.verify import verify

        checks = [check for path in self.paths for check in verify(path)]
        broken = [check for check in checks if not check.holds]
        problems = [f"{check.what}: {check.problem}" for check in broken]
        lines = [*problems, f"{len(checks) - len(broken)} of {len(checks)} digests hold"]

        def show() -> None:
            for line in lines:
                say(line)

        self.present([vars(check) for check in checks], show)
        if broken:
            raise GateFailed(
                problems[0], "make it again from what it was made of, or get the original"
            )


command = Verify.command()
