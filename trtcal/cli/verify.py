"""`trtcal verify`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import json_option, print_json, say
from trtcal.errors import GateFailed


@click.command(epilog="Example: trtcal verify reports/digits/report.html")
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True)
@json_option
def command(paths: tuple[Path, ...], as_json: bool) -> None:
    """Recompute the digests in reports (HTML or JSON), documents or run folders.

    The status is 1 if one does not hold; it is named.
    """
    from trtcal.runs.verify import verify

    checks = [check for path in paths for check in verify(path)]
    broken = [check for check in checks if not check.holds]
    if as_json:
        print_json([vars(check) for check in checks])
    else:
        for check in broken:
            say(f"{check.what}: {check.problem}")
        say(f"{len(checks) - len(broken)} of {len(checks)} digests hold")
    if broken:
        raise GateFailed(
            f"{broken[0].what}: {broken[0].problem}",
            "make it again from what it was made of, or get the original",
        )
