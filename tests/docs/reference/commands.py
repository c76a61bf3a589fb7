"""A page for each command, from its own help."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from tests.docs.pages import ROOT
from tests.docs.reference.markdown import contents, prose, table
from trtcal.cli.extended import extension_commands
from trtcal.cli.main import cli, commands
from trtcal.cli.pages import page_of_module

BOUND = re.compile(r"(?:(\d+)<=)?x(>=|>|<=)(\d+)")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of every command, and that which lists them."""
    rows = [(f"[`trtcal {name}`]({name}.md)", prose(about)) for name, about in commands().items()]
    text = "# Commands\n\nThe options of every command, as `trtcal COMMAND --help` prints them.\n\n"
    yield (
        "commands/index.md",
        text + table(["command", "what it does"], rows) + "\n" + contents(commands()),
    )
    root = click.Context(cli, info_name="trtcal")
    for name in commands():
        command = cli.get_command(root, name)
        if command is not None:
            context = click.Context(command, info_name=name, parent=root)
            yield f"commands/{name}.md", _page(context)


def _page(context: click.Context) -> str:
    place = page_of_module(module_of(str(context.info_name))) or ""
    page = Path(place.partition("#")[0])
    title = (ROOT / page).read_text().splitlines()[0].removeprefix("# ")
    text = _section(context, "#")
    text += "".join(_section(inner, "##") for inner in _inner(context, is_deep=True))
    return (
        f"{text}**See also:** [{title}](../../{page.relative_to('docs').as_posix()}), and "
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
        rows = [(_link(inner), _short(inner.command)) for inner in _inner(context)]
        parts.append(table(["command", "what it does"], rows).rstrip())
    parts += ["Options:", *(_option(record) for record in _records(context))]
    return "\n\n".join(parts) + "\n\n"


def _link(context: click.Context) -> str:
    path = context.command_path
    return f"[`{path.removeprefix('trtcal ')}`](#{path.replace(' ', '-')})"


def _inner(context: click.Context, is_deep: bool = False) -> Iterator[click.Context]:
    """Yield the sub-commands of a group, and with `is_deep` theirs behind each."""
    group = context.command
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        command = group.get_command(context, name)
        if command is not None:
            inner = click.Context(command, info_name=name, parent=context)
            yield inner
            yield from _inner(inner, is_deep) if is_deep else ()


def module_of(name: str) -> str:
    """Return the module of a command."""
    extension = extension_commands().get(name)
    return extension.module if extension else f"trtcal.cli.{name.replace('-', '_')}"


def leaves() -> Iterator[click.Context]:
    """Yield every command that does something."""
    root = click.Context(cli, info_name="trtcal")
    for context in _inner(root, is_deep=True):
        if not isinstance(context.command, click.Group):
            yield context


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
