"""A page for each command, from its own help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from tests.docs.pages import ROOT
from tests.docs.reference.markdown import contents, prose, table
from trtcal.cli.main import COMMANDS, cli
from trtcal.cli.pages import page_of_module

BOUND = re.compile(r"(?:(\d+)<=)?x(>=|>|<=)(\d+)")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of every command, and that which lists them."""
    rows = [(f"[`trtcal {name}`]({name}.md)", prose(about)) for name, about in COMMANDS.items()]
    text = "# Commands\n\nThe options of every command, as `trtcal COMMAND --help` prints them.\n\n"
    yield (
        "commands/index.md",
        text + table(["command", "what it does"], rows) + "\n" + contents(COMMANDS),
    )
    root = click.Context(cli, info_name="trtcal")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if command is not None:
            context = click.Context(command, info_name=name, parent=root)
            yield f"commands/{name}.md", _page(context)


def _page(context: click.Context) -> str:
    place = page_of_module(f"trtcal.cli.{str(context.info_name).replace('-', '_')}") or ""
    page = Path(place.partition("#")[0])
    title = (ROOT / page).read_text().splitlines()[0].removeprefix("# ")
    text = _section(context, "#")
    if isinstance(context.command, click.Group):
        for name, command in context.command.commands.items():
            text += _section(click.Context(command, info_name=name, parent=context), "##")
    return (
        f"{text}**See also:** [{title}](../../{page.name}), and "
        "[Exit statuses](../exit-statuses.md) for what the command's end says.\n"
    )


def _section(context: click.Context, head: str) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"{head} {context.command_path}", _help(command.help or "")]
    parts += [f"```text\n{usage}\n```"]
    if command.epilog:
        example = command.epilog.removeprefix("Example:").strip()
        parts += ["Example:", f"```sh\n{example}\n```"]
    if isinstance(command, click.Group):
        rows = [
            (f"[`{context.info_name} {name}`](#trtcal-{context.info_name}-{name})", _short(one))
            for name, one in command.commands.items()
        ]
        parts.append(table(["command", "what it does"], rows).rstrip())
    parts += ["Options:", *(_option(record) for record in _records(context))]
    return "\n\n".join(parts) + "\n\n"


def _short(command: click.Command) -> str:
    return prose(command.get_short_help_str(limit=500))


def _help(text: str) -> str:
    return "\n\n".join(prose(one) for one in re.split(r"\n\s*\n", text.strip()))


def _records(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield record


def _option(record: tuple[str, str]) -> str:
    """Return an option as an entry of a list: its names, what it does, then default and bounds."""
    about, *extras = f"  {record[1]}".split("  [")  # as click joins them, and our own texts
    names = record[0].replace("INTEGER RANGE", "INTEGER").replace("FLOAT RANGE", "FLOAT")
    facts = [_fact(one) for extra in extras for one in extra.strip().removesuffix("]").split("; ")]
    text = f"`{names}`\n: {prose(about)}"
    return f"{text}\n\n  {' '.join(facts)}" if facts else text


def _fact(text: str) -> str:
    """Return a default, a bound or the word `required` as a sentence."""
    if found := BOUND.fullmatch(text):
        least, sign, end = found.groups()
        more = f"{end} or more" if sign == ">=" else f"more than {end}"
        return f"Allowed: {least} to {end}." if least else f"Allowed: {more}."
    return f"{text[0].upper()}{prose(text[1:])}."
