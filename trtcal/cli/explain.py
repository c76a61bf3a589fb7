"""`trtcal log --explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, option
from trtcal.cli.output import say, say_wrapped

if TYPE_CHECKING:
    from trtcal.evidence.explanations import Explanation


ALL = "all"
"""Stands for every name."""


class ExplainOptions(JsonOptions):
    """The option that explains a message of build logs or a kind of finding."""

    explain: str | None = option(
        "Explain the message or kind of finding of this name, or list all names.",
        metavar="[NAME]",
        is_flag=False,
        flag_value=ALL,
    )

    def show_explanations(self, name: str) -> None:
        """Print what a name means and what to do, or a line for each name."""
        from trtcal.evidence.explanations import explain_name, explanations

        entries = tuple(explanations()) if name == ALL else explain_name(name)
        show = _list if name == ALL else _show
        self.present({"explanations": list(map(asdict, entries))}, lambda: show(entries))


def _show(entries: tuple[Explanation, ...]) -> None:
    for number, entry in enumerate(entries):
        if number:
            say("")
        say(f"{entry.name}: {entry.title}")
        say_wrapped("  means: ", entry.meaning)
        say_wrapped("  bad because: ", entry.why)
        say_wrapped("  do: ", entry.fix)
        for example in entry.examples:
            say_wrapped("  line: ", example)


def _list(entries: tuple[Explanation, ...]) -> None:
    """Print a line for each name, those of a category below it."""
    about = None
    for entry in entries:
        if entry.about == "finding" != about:
            say("")
            say("Findings of a diagnosis")
        about = entry.about
        if about == "category":
            say("")
        head = entry.name if about == "category" else f"  {entry.name}"
        say_wrapped(f"{head}: ", entry.meaning.partition(". ")[0])
