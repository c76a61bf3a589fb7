"""`trtcal verify`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument
from trtcal.cli.output import say
from trtcal.errors import GateFailed


class Verify(JsonOptions, example="trtcal verify reports/digits/report.html"):
    """Recompute the digests in reports (HTML or JSON), documents or run folders.

    Each digest that does not match is named, and the status is 1.
    """

    paths: tuple[Path, ...] = argument()

    def _run(self) -> None:
        from trtcal.runs.verify import verify

        checks = [check for path in self.paths for check in verify(path)]
        broken = [check for check in checks if not check.holds]
        problems = [f"{check.what}: {check.problem}" for check in broken]
        lines = [*problems, f"{len(checks) - len(broken)} of {len(checks)} digests match"]

        def show() -> None:
            for line in lines:
                say(line)

        self.present([vars(check) for check in checks], show)
        if broken:
            raise GateFailed(
                f"{len(broken)} of {len(checks)} digests do not match",
                "make the file again with the command that wrote it, or get the original",
            )


command = Verify.command()
