"""`trtcal report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import config_here, json_option, print_json, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.documents import Document

PAGE = Path("report.html")
KEPT = ("against", "costs")


def _print_schema(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    from trtcal.reporting.document import read_schema

    if is_asked:
        print_json(read_schema())
        context.exit()


@click.command(epilog="Example: trtcal report reports/digits -o digits.html")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"Where to write the page; its JSON goes beside it.  [default: {PAGE}; with --md, print it]",
)
@click.option(
    "--md", "as_markdown", is_flag=True, help="Write Markdown for a pull request instead."
)
@click.option("--price", type=float, help="What an hour of the machine that was measured costs.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="Your table of prices; one counts if it names the GPU that was measured.",
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of a report's JSON and exit.",
)
@json_option
def command(
    run: Path,
    output: Path | None,
    as_markdown: bool,
    price: float | None,
    prices: Path | None,
    as_json: bool,
) -> None:
    """Write one self-contained HTML page about RUN.

    RUN is a folder with what the other commands wrote (comparison.json, build folders,
    calibrations), or a report.json to render again.
    """
    from trtcal.reporting.render import check_page, write_page

    if not as_markdown:
        check_page(output or PAGE)
    document = _document(run, price, prices)
    if as_markdown:
        _write_markdown(run, document, output, as_json)
        return
    output = output or PAGE
    document = write_page(output, document, run)
    if as_json:
        print_json(document)
        return
    verdict = document["measured"]["verdict"]
    say(f"{verdict['word']}: {verdict['sentence']}")
    say(f"wrote {output}  {document['digest'][:19]}")


def _document(run: Path, amount: float | None, prices: Path | None) -> Document:
    """Return the report with what its variants cost, at the price given here or in trtcal.toml."""
    from trtcal.documents import parsing
    from trtcal.reporting import assemble
    from trtcal.reporting.document import read_report
    from trtcal.reporting.prices import load_prices, named_price, with_costs

    settings = config_here().report
    if amount is None and prices is None:
        amount = settings.price_per_hour
    price = None if amount is None else named_price(amount, settings.currency)
    document = _kept(assemble(run), run) if run.is_dir() else read_report(run)
    costs = document["measured"].get("costs")
    if price is None and prices is None and costs:
        return document
    table = load_prices(prices) if price is None else None
    made: Document = parsing(run, lambda: with_costs(document, table, price))
    return made


def _kept(document: Document, run: Path) -> Document:
    """Return a report with what only `trtcal run` could know, if the folder has its report."""
    from trtcal.reporting.document import read_report

    try:
        before = read_report(run / "report.json")
    except InputError:
        return document
    measured, then = document["measured"], before["measured"]
    kept = {key: then[key] for key in KEPT if key in then}
    same = all(before.get(part) == document[part] for part in ("comparison", "builds"))
    timed = all(then.get(part) == measured[part] for part in ("variants", "machine"))
    return {**document, "measured": {**measured, **kept}} if same and timed else document


def _write_markdown(run: Path, document: Document, output: Path | None, as_json: bool) -> None:
    from trtcal.documents import parsing, write_text
    from trtcal.reporting.markdown import to_markdown

    if output is not None and output.suffix == ".json":
        raise InputError(f"{output} is no name for Markdown", "end it in .md")
    if output is None and as_json:
        raise InputError("both --md and --json would be printed", "give -o FILE")
    page: str = parsing(run, lambda: to_markdown(document))
    if output is None:
        click.echo(page.encode(), nl=False)
        return
    write_text(output, page)
    if as_json:
        print_json(document)
    else:
        say(f"wrote {output}")
