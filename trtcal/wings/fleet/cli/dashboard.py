"""`trtcal history dashboard`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.history import HistoryOptions
from trtcal.cli.options import option
from trtcal.cli.output import say


class Dashboard(HistoryOptions, example="trtcal history dashboard -o site"):
    """Write a static site: the figures of every project over time, and what changed when."""

    output: Path = option("Folder for the pages.", "-o", default=Path("dashboard"))
    last: int | None = option("Number of runs of each name, the newest.", least=1)

    def _run(self) -> None:
        from trtcal.wings.fleet.dashboard import write_dashboard

        files = write_dashboard(self.open(), self.output, self.last)
        say(f"wrote {len(files)} pages: {files[0]}")


command = Dashboard.command()
