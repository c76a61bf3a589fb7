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

        found = tuple(explanations()) if name == ALL else explain_name(name)
        show = _list if name == ALL else _show
        self.present({"explanations": list(map(asdict, found))}, lambda: show(found))


def _show(found: tuple[Explanation, ...]) -> None:
    for number, one in enumerate(found):
        if number:
            say("")
        say(f"{one.name}: {one.title}")
        say_wrapped("  means: ", one.meaning)
        say_wrapped("  bad because: ", one.why)
        say_wrapped("  do: ", one.fix)
        for example in one.examples:
            say_wrapped("  line: ", example)


def _list(found: tuple[Explanation, ...]) -> None:
    """Print a line for each name, those of a category below it."""
    about = None
    for one in found:
        if one.about == "finding" != about:
            say("")
            say("Findings of a diagnosis")
        about = one.about
        if about == "category":
            say("")
        head = one.name if about == "category" else f"  {one.name}"
        say_wrapped(f"{head}: ", one.meaning.partition(". ")[0])
