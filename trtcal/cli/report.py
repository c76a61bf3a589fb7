"""`trtcal report`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import json_option, print_json, say


@click.command(epilog="Example: trtcal report reports/digits -o digits.html")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="Where to write the page; its JSON goes beside it.",
)
@json_option
def command(run: Path, output: Path, as_json: bool) -> None:
    """Write one self-contained HTML page about RUN.

    RUN is a folder with what the other commands wrote (comparison.json, build folders,
    calibrations), or a report.json to render again.
    """
    from trtcal.report import write_report

    document = write_report(run, output)
    if as_json:
        print_json(document)
        return
    verdict = document["measured"]["verdict"]
    say(f"{verdict['word']}: {verdict['sentence']}")
    say(f"wrote {output}  {document['digest'][:19]}")
