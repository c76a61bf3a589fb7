"""The `trtcal` program: finds the command, and turns every error into one line and a status.

Commands are imported when they are called, so that `trtcal --help` costs little more than click.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module

import click
from click.shell_completion import shell_complete

from trtcal import __version__
from trtcal.errors import INTERRUPTED, TrtcalError

COMMANDS = {
    "init": "Write trtcal.toml from what a model and data show.",
    "run": "Do the whole job, as trtcal.toml or options describe it, and write a report.",
    "prepare": "Make a model ready for Q/DQ, and show what that changed.",
    "check-data": "Check whether data are prepared as a model needs them.",
    "calibrate": "Choose the range of every tensor from data.",
    "calibration": "Show, diff, import and export tables of ranges.",
    "plan": "Show what a plan of precisions decides, and how two plans differ.",
    "quantize": "Write Q/DQ, and float16, into an ONNX model.",
    "build": "Build an engine and list its layers.",
    "log": "Explain a build log.",
    "explain": "Explain a message of build logs or a kind of finding.",
    "layers": "Show what an engine spends its time on, and how two engines differ.",
    "diagnose": "List what is wrong with a build, what it costs and the remedy.",
    "fusion": "Show which fusions are expected, what breaks them, and what was built.",
    "compare": "Compare models with their FP32 reference.",
    "ab": "Test whether one model can replace another.",
    "history": "Follow figures over runs: what changed, and since which run.",
    "cost": "Show what inferences cost by team, product or any tag, and since which version.",
    "store": "Keep runs in a store, on disk or S3, and trace an engine back.",
    "sensitivity": "Measure what each layer loses in INT8.",
    "search": "Find the layers to leave out of INT8, and what that brings.",
    "report": "Write the HTML report of a run.",
    "checkpoint": "Show the output of each pass and stage, and the first that differs.",
    "bisect": "Find the pass, plan entry, range or option that breaks a limit.",
    "bundle": "Make a bundle that a device can check, verify one, and see where it loads.",
    "drift": "Compare outputs that devices saved with a bundle's golden ones.",
    "verify": "Recompute the digests in reports, documents and run folders.",
    "doctor": "Show what works on this machine, and how to get the rest.",
    "completion": "Print the script that completes commands in bash, zsh or fish.",
}
COMPLETE = "_TRTCAL_COMPLETE"
"""The variable with which a shell's script asks for completions, as click has it."""
DEFECT = 70  # EX_SOFTWARE of sysexits.h


class LazyGroup(click.Group):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the pipeline."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"trtcal.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog="Example: trtcal calibrate model.onnx --data images.npz --method percentile",
)
@click.version_option(__version__, prog_name="trtcal")
@click.pass_context
def cli(context: click.Context) -> None:
    """Calibrate a network to INT8 for TensorRT, and see what you really get.

    Exit status: 0 fine, 1 a limit is broken, 2 bad input or usage, 3 a backend failed,
    4 out of memory, disk or time, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        from trtcal.cli.output import print_page

        print_page(f"{context.get_help()}\n")


def main() -> None:
    """Run the program and exit with its status."""
    from trtcal.cli.output import warn_in_our_words
    from trtcal.documents.streams import guard, open_missing

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up, then end with 130
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
        return _fail(error)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "trtcal"
        return _say(error.format_message(), f"see `{command} --help`", 2)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", "start the same command again", INTERRUPTED)
    except MemoryError:
        return _say("out of memory", "use a smaller --batch", 4)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _say(f"{error.strerror or error}{where}", "make room, or check the path", 4)
    except BaseException as error:  # SystemExit too: no code of others decides on the status
        return _defect(error)
    return result if isinstance(result, int) else 0


def _fail(error: TrtcalError) -> int:
    from trtcal.cli.pages import page_of

    return _say(error.message, error.hint, error.exit_status, page_of(error))


def _defect(error: BaseException) -> int:
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate in a name of a file
        return _say(f"{error.object!r} is no name of a file", "check the path", 2)
    if os.environ.get("TRTCAL_DEBUG"):
        raise error
    text = f"defect in trtcal: {type(error).__name__}: {error}"
    return _say(text, "set TRTCAL_DEBUG=1 to see where, and report it", DEFECT)


def _say(message: str, hint: str | None, status: int, page: str | None = None) -> int:
    from trtcal.cli.output import error

    error(message, hint, page)
    return status


if __name__ == "__main__":
    main()
