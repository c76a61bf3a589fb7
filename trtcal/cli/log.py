"""`trtcal log`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import json_option, print_json, print_table, say

SHOWN = 40


@click.command(epilog="Example: trtcal log build.log --json")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the JSON here too.")
@json_option
def command(file: Path, output: Path | None, as_json: bool) -> None:
    """Say what a build log of TensorRT means: what fell back, failed, or has no range."""
    from trtcal.buildlog.document import BACKGROUND, log_document, write_log

    document = log_document(file)
    if output:
        write_log(output, document)
    if as_json:
        print_json(document)
        return
    found = [event for event in document["events"] if event["category"] not in BACKGROUND]
    rows = [
        (
            event["category"],
            event["line"],
            event["severity"],
            event["subject"] or "",
            event["message"][:120],
        )
        for event in found[:SHOWN]
    ]
    print_table(("category", "line", "severity", "subject", "message"), rows, str(file))
    if len(found) > SHOWN:
        say(f"… and {len(found) - SHOWN} more: use --json")
    say(f"{document['lines']} lines, {len(found)} findings, {len(document['layers'])} layers")
