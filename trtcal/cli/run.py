"""`trtcal run`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.compare import show
from trtcal.cli.output import json_option, note, print_json, progress, say
from trtcal.config import FILE
from trtcal.errors import GateFailed


@click.command(epilog="Example: trtcal run samples/digits/trtcal.toml")
@click.argument("config", type=click.Path(path_type=Path), default=Path(FILE))
@json_option
def command(config: Path, as_json: bool) -> None:
    """Do all of CONFIG: calibrate, quantize, build, read the log, compare, report.

    The status is 1 if the verdict is DO NOT SHIP, or if a build breaks a limit under [gates].
    """
    from trtcal.compare import read_comparison
    from trtcal.config import read_config
    from trtcal.pipeline import run

    command_line = f"trtcal run {config.name}"
    result = run(
        read_config(config), command_line, progress, lambda message: note(f"note: {message}")
    )
    verdict = result.report["measured"]["verdict"]
    for target, reason in result.missing_builds.items():
        note(f"note: no engine: {target}: {reason}")
    if as_json:
        print_json(result.report)
    else:
        show(read_comparison(result.folder / "comparison.json"))
        say(f"{verdict['word']}: {verdict['sentence']}")
        say(f"report: {result.folder / 'report.html'}")
    if verdict["word"] == "DO NOT SHIP":
        raise GateFailed(f"DO NOT SHIP: {verdict['sentence']}", "the report says what to change")
    if result.breaches:
        raise GateFailed(
            f"builds break limits: {'; '.join(result.breaches)}",
            "see diagnosis.json beside each build, or `trtcal diagnose FOLDER`",
        )
