"""`trtcal completion`."""

from __future__ import annotations

from typing import Literal

from trtcal.cli.options import Options, argument
from trtcal.cli.output import print_page

PROGRAM = "trtcal"


class Completion(Options, example="trtcal completion bash >> ~/.bashrc"):
    """Print the script that completes commands, options and files in a shell.

    For zsh append the script to ~/.zshrc; for fish write it to
    ~/.config/fish/completions/trtcal.fish.
    """

    shell: Literal["bash", "zsh", "fish"] = argument()

    def _run(self) -> None:
        from click.shell_completion import get_completion_class

        from trtcal.cli.main import COMPLETE

        kind = get_completion_class(self.shell)
        if kind is not None:
            names = {"complete_func": f"_{PROGRAM}_completion", "complete_var": COMPLETE}
            print_page(kind.source_template % {**names, "prog_name": PROGRAM} + "\n")


command = Completion.command()
