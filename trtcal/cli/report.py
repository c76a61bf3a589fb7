"""`trtcal report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.options import (
    MEASURED,
    MEASURED_FILE,
    REDACT,
    JsonOptions,
    argument,
    config_here,
    option,
)
from trtcal.cli.output import print_json, print_page, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.documents import Document

PAGE = Path("report.html")


def _print_schema(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    from trtcal.reporting.document import read_schema

    if is_asked:
        print_json(read_schema())
        context.exit()


class Report(JsonOptions, example="trtcal report reports/digits -o digits.html"):
    """Write one self-contained HTML page about RUN.

    RUN is a folder with files of the other commands (comparison.json, build folders,
    calibrations), or a report.json to render again.
    """

    run: Path = argument()
    output: Path | None = option(
        f"File for the page; its JSON is written beside it.  [default: {PAGE}; with --md, "
        "standard output]",
        "-o",
    )
    as_markdown: bool = option("Write Markdown for a pull request, in place of HTML.", "--md")
    price: float | None = option("Price of an hour of the measured machine.")
    prices: Path | None = option(
        "TOML table of your prices; trtcal uses the price that names the measured GPU."
    )
    measured: tuple[str, ...] = option(MEASURED, metavar=MEASURED_FILE)
    redact: bool = option(REDACT)
    schema: bool = option(
        "Print the JSON Schema of a report's JSON and exit.", is_eager=True, callback=_print_schema
    )

    def _run(self) -> None:
        from trtcal.documents.redaction import FLAG, redacted
        from trtcal.reporting.render import check_page, write_page

        output = self.output or PAGE
        if not self.as_markdown:
            check_page(output)
        document = _document(self.run, self.price, self.prices, self.measured)
        if self.redact or config_here().report.redact or FLAG in document:
            document = redacted(document)
        if self.as_markdown:
            _write_markdown(self, document)
            return
        document = write_page(output, document, self.run)
        verdict = document["measured"]["verdict"]
        self.present(document, lambda: say(f"{verdict['word']}: {verdict['sentence']}"), output)


command = Report.command()


def _document(
    run: Path, amount: float | None, prices: Path | None, measured: Sequence[str]
) -> Document:
    """Return the report with what its variants cost, at the price given here or in trtcal.toml."""
    from trtcal.documents import parsing
    from trtcal.reporting.document import assemble_again, read_report
    from trtcal.runs.follower import completed, find, followers_of

    config = config_here()
    if amount is not None or prices is not None:
        find("costs", "prices")
        report = replace(config.report, price_per_hour=amount)
        cost = replace(config.cost, prices=prices or config.cost.prices)
        config = replace(config, report=report, cost=cost)
    if measured and not run.is_dir():
        raise InputError("--measured needs the folder of a run", f"give the folder of {run}")
    document = assemble_again(run, measured) if run.is_dir() else read_report(run)
    is_priced = config.report.price_per_hour is not None or prices is not None
    if not is_priced and document["measured"].get("costs"):
        return document
    return parsing(run, lambda: completed(document, followers_of(config)))


def _write_markdown(options: Report, document: Document) -> None:
    from trtcal.documents import parsing, write_text
    from trtcal.reporting.markdown import to_markdown

    output = options.output
    if output is not None and output.suffix == ".json":
        raise InputError(f"{output} is not a name for Markdown", "give a name that ends in .md")
    if output is None and options.as_json:
        raise InputError("--md and --json cannot both go to standard output", "give -o FILE")
    page: str = parsing(options.run, lambda: to_markdown(document))
    if output is None:
        print_page(page)
        return
    write_text(output, page)
    options.present(document, lambda: say(f"wrote {output}"))
