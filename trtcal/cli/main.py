"""The `trtcal` program: finds the command, and turns every error into one line and a status.

Commands are imported when they are called, so that `trtcal --help` costs little more than click.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import shell_complete

from trtcal.cli.extended import MovedGroup, extension_commands
from trtcal.errors import INTERRUPTED, TrtcalError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
GROUPS: dict[str, dict[str, str]] = TABLE["groups"]
"""The core's commands with their line in `trtcal --help`, by what they are for."""
CORE = {name: line for group in GROUPS.values() for name, line in group.items()}
FIRST: dict[str, str] = TABLE["first"]
"""The commands to begin with, in the order of use, and an example of each."""
WHERE_NEXT = (
    "`trtcal --help` lists all commands, `trtcal COMMAND --help` explains one.",
    "`trtcal doctor` shows what works on this machine.",
    "docs: docs/tutorial.md",
)
COMPLETE = "_TRTCAL_COMPLETE"
"""The variable with which a shell's script asks for completions, as click has it."""
DEFECT = 70  # EX_SOFTWARE of sysexits.h


def groups() -> dict[str, dict[str, str]]:
    """Return all commands with their lines in `trtcal --help`, by what they are for."""
    sections = {title: dict(commands) for title, commands in GROUPS.items()}
    for name, command in extension_commands().items():
        if " " not in name:
            sections.setdefault(command.section, {})[name] = command.line
    return sections


def commands() -> dict[str, str]:
    """Return all commands with their lines, in the order of `trtcal --help`."""
    return {name: line for group in groups().values() for name, line in group.items()}


class LazyGroup(MovedGroup):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `trtcal --help`."""
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name in CORE:
            module = import_module(f"trtcal.cli.{cmd_name.replace('-', '_')}")
            command: click.Command = module.command
            return command
        extension = extension_commands().get(cmd_name)
        return extension.load() if extension else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups, without importing them."""
        width = max(map(len, commands()))
        for title, lines in groups().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog=f"Example: {FIRST['run']}",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def cli(context: click.Context, version: bool) -> None:
    """Take a network to INT8 with TensorRT, and measure accuracy, latency and what was built.

    Exit status: 0 fine, 1 a limit is broken, 2 bad input or usage, 3 a backend failed,
    4 out of memory, disk or time, 130 interrupted.
    """
    if version:
        from trtcal.cli.output import say
        from trtcal.cli.revision import version_line

        say(version_line())
        context.exit()
    if context.invoked_subcommand is None:
        from trtcal.cli.output import print_page

        print_page(first_screen())


def first_screen() -> str:
    """Return what `trtcal` prints without a command: the commands to begin with, and where more is."""
    lines = [*(cli.help or "").splitlines()[:1], ""]
    for name, example in FIRST.items():
        lines += [f"  {name:<9}  {CORE[name]}", f"{' ' * 13}{example}", ""]
    return "\n".join([*lines, *WHERE_NEXT, ""])


def main() -> None:
    """Run the program and exit with its status."""
    from trtcal.cli.output import warn_in_our_words
    from trtcal.documents.streams import guard, open_missing

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up, then end with 130
    gc.set_threshold(20_000)  # else the messages and nodes of large graphs are searched often
    open_missing()
    guard()  # Python's own words at its end are written through it too
    warn_in_our_words()
    status = run_command(sys.argv[1:])
    gc.freeze()  # the search for what could be freed takes 0.1 s, and the system frees all of it
    sys.exit(status)


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit status; errors go to standard error.

    The last line there is the command that is worth running next, if there is one.
    """
    from trtcal.cli.advice import say_next
    from trtcal.documents.streams import guarded

    with guarded():
        say_next(is_done=False)
        status = _run(arguments)
        say_next(is_done=status <= 1)
    return status


def _run(arguments: list[str]) -> int:
    try:
        if instruction := os.environ.get(COMPLETE):
            return shell_complete(cli, {}, "trtcal", COMPLETE, instruction)
        result = cli.main(arguments, prog_name="trtcal", standalone_mode=False)
    except TrtcalError as error:
        from trtcal.cli.pages import page_of

        return _say(error.message, error.hint, error.exit_status, page_of(error))
    except click.UsageError as error:
        return _say(*_usage(error), 2)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", "start the same command again", INTERRUPTED)
    except MemoryError:
        hint = "use a smaller `batch` in trtcal.toml, or `trtcal calibrate --max-memory`"
        return _say("out of memory", hint, 4)
    except OSError as error:
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return _say(what, "check the path and the space on the disk", 4)
    except BaseException as error:  # SystemExit too: no code of others decides on the status
        return _defect(error)
    return result if isinstance(result, int) else 0


def _usage(error: click.UsageError) -> tuple[str, str]:
    text = re.split(r" \(?Did you mean", error.format_message())[0].rstrip(".")
    path = error.ctx.command_path if error.ctx else "trtcal"
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if error.ctx and isinstance(error.ctx.command, click.Group) and "command" in text:
        known = error.ctx.command.list_commands(error.ctx)
        near = difflib.get_close_matches(text.rpartition(" ")[2].strip("'"), known)
    hint = (
        f"did you mean {' or '.join(near)}? See `{path} --help`" if near else f"see `{path} --help`"
    )
    return text[:1].lower() + text[1:], hint


def _defect(error: BaseException) -> int:
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate in a name of a file
        return _say(f"{error.object!r} is not a valid file name", "check the path", 2)
    ours = sys.modules.get("calibrators")
    if ours and not getattr(ours, "__file__", None):  # a folder without modules
        hint = "delete this folder, which an uninstalled trtcal left"
        return _say(f"{next(iter(ours.__path__))} hides the modules of trtcal", hint, 2)
    if os.environ.get("TRTCAL_DEBUG"):
        raise error
    text = f"defect in trtcal: {type(error).__name__}: {error}"
    return _say(text, "set TRTCAL_DEBUG=1 to see the traceback, and report it", DEFECT)


def _say(message: str, hint: str | None, status: int, page: str | None = None) -> int:
    from trtcal.cli.output import error

    error(message, hint, page)
    return status


if __name__ == "__main__":
    main()
