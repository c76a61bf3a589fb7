"""Groups of commands that extensions add to: these are imported only when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import click

from trtcal.errors import InputError
from trtcal.extensions import COMMANDS, Command, load_all


@cache
def extension_commands() -> Mapping[str, Command]:
    """Return the commands and sub-commands of extensions by their names, such as "history cost"."""
    tables = load_all(COMMANDS).values()
    return {command.name: command for table in tables for command in table}


class MovedGroup(click.Group):
    """A group whose commands that were renamed are answered with their new names."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; `InputError` with the whole new line for a former name."""
        from trtcal.documents.schema import COMMANDS as RENAMED  # what --help does not wait for
        from trtcal.documents.streams import command_line

        path = f"{ctx.command_path} {args[0]}".partition(" ")[2]
        if path in RENAMED:
            line = command_line(*RENAMED[path].split(), *args[1:])
            raise InputError(f"`trtcal {path}` is now `trtcal {RENAMED[path]}`", f"`{line}`")
        return super().resolve_command(ctx, args)


class ExtendedGroup(MovedGroup):
    """A group with the sub-commands that extensions add to it behind its own.

    `default` is the command whose name may be left out.
    """

    def __init__(self, *args: Any, default: str | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command before arguments that do not begin with a command or ask for help."""
        known = (*self.list_commands(ctx), "--help", "-h")
        if self.default and args and args[0] not in known:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of its own commands, in their order, then those of extensions."""
        start = f"{ctx.info_name} "
        names = (key.removeprefix(start) for key in extension_commands() if key.startswith(start))
        return [*self.commands, *names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of its own, or import one of an extension."""
        own = super().get_command(ctx, cmd_name)
        extension = extension_commands().get(f"{ctx.info_name} {cmd_name}") if own is None else None
        command: click.Command | None = extension.load() if extension else own
        return command
