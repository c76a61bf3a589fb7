"""Groups of commands that extensions add to: these are imported only when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import click

from trtcal.extensions import COMMANDS, Command, load_all


@cache
def extension_commands() -> Mapping[str, Command]:
    """Return the commands and sub-commands of extensions by their names, such as "history cost"."""
    tables = load_all(COMMANDS).values()
    return {command.name: command for table in tables for command in table}


class ExtendedGroup(click.Group):
    """A group with the sub-commands that extensions add to it behind its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of its own commands, in their order, then those of extensions."""
        start = f"{ctx.info_name} "
        names = (
            name.removeprefix(start) for name in extension_commands() if name.startswith(start)
        )
        return [*self.commands, *names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of its own, or import one of an extension."""
        own = super().get_command(ctx, cmd_name)
        extension = extension_commands().get(f"{ctx.info_name} {cmd_name}") if own is None else None
        command: click.Command | None = extension.load() if extension else own
        return command
