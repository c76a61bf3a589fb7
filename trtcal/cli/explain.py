"""`trtcal explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument
from trtcal.cli.output import say, say_wrapped

if TYPE_CHECKING:
    from trtcal.evidence.explanations import Explanation


class Explain(JsonOptions, example="trtcal explain missing_scale"):
    """Explain a message of build logs or a kind of finding: what it means, and what to do.

    NAME is one that `trtcal log` or `trtcal diagnose` prints. Without NAME the command lists all
    names.
    """

    name: str | None = argument(metavar="[NAME]")

    def _run(self) -> None:
        from trtcal.evidence.explanations import explain_name, explanations

        found = explain_name(self.name) if self.name else tuple(explanations())
        show = _show if self.name else _list
        self.present({"explanations": list(map(asdict, found))}, lambda: show(found))


command = Explain.command()


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
