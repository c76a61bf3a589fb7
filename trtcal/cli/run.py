"""`trtcal run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.check_data import warn
from trtcal.cli.compare import show
from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import note, print_limits, progress, say
from trtcal.config import FILE
from trtcal.errors import GateFailed, TrtcalError

if TYPE_CHECKING:
    from trtcal.config import Config
    from trtcal.pipeline import RunResult
    from trtcal.runs.history import History


class Run(JsonOptions, example="trtcal run samples/digits/trtcal.toml"):
    """Do all of CONFIG: calibrate, quantize, build, read the log, compare, report.

    The status is 1 if the verdict is DO NOT SHIP, or if a limit on builds or data is broken.
    """

    config: Path = argument(default=Path(FILE))
    no_history: bool = option("Do not record the run in the history.")

    @property
    def model(self) -> Path | None:
        """The model that the configuration names."""
        from trtcal.config import read_config

        return read_config(self.config).model

    def _run(self) -> None:
        from trtcal.config import read_config
        from trtcal.evaluate.comparison import Comparison
        from trtcal.limits import require
        from trtcal.pipeline import run

        command_line = f"trtcal run {self.config.name}"
        settings = read_config(self.config)
        history = None if self.no_history else _history(settings)
        result = run(settings, command_line, progress, _note, history, warn)
        if history is not None:
            _record(history, result)
        verdict = result.report["measured"]["verdict"]
        for target, reason in result.missing_builds.items():
            note(f"note: no engine: {target}: {reason}")
        sentence = f"{verdict['word']}: {verdict['sentence']}"

        def show_all() -> None:
            show(Comparison.read(result.folder / "comparison.json"))
            print_limits(result.limits, "limits on builds and data")
            say(sentence)
            say(f"report: {result.folder / 'report.html'}")

        self.present(result.report, show_all)
        if verdict["word"] == "DO NOT SHIP":
            raise GateFailed(sentence, "the report says what to change")
        require(result.limits, "see diagnosis.json beside each build, or `trtcal diagnose FOLDER`")


command = Run.command()


def _note(message: str) -> None:
    note(f"note: {message}")


def _history(config: Config) -> History | None:
    """Open the history; one that cannot be had fails no run."""
    from trtcal.runs.history import History, default_path

    try:
        return History(config.history or default_path())
    except TrtcalError as error:
        note(f"note: not recorded in the history: {error.message}")
        return None


def _record(history: History, result: RunResult) -> None:
    try:
        number = history.record(result.report, folder=str(result.folder))
    except TrtcalError as error:
        note(f"note: not recorded in the history: {error.message}")
    else:
        note(f"note: run {number} of {history.path}")
