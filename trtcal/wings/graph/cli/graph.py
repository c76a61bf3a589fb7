"""`trtcal graph`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.wings.graph.figures import Figured

MOST = 2  # engines on a page


class Graph(JsonOptions, example="trtcal graph reports/digits -o graph.html"):
    """Write a page that shows a network with what is known of each node.

    SOURCE is a model, the folder of a build or that of a run, of which the verdict's variant is shown.
    Two sources of one network are shown beside each other, with what differs between them.
    """

    source: Path = argument()
    other: Path | None = argument()
    output: Path = option("File for the page.", "-o", default=Path("graph.html"))
    variant: tuple[str, ...] = option(
        "Variant of a run.  [default: that of the verdict]  Given twice, both are shown."
    )
    target: tuple[str, ...] = option("Target of a build.  [default: the first]  Given twice, both.")

    def _run(self) -> None:
        from trtcal.documents import write_text
        from trtcal.wings.graph.page import graph_document, render

        shown = list(self._shown())
        document = graph_document(shown)
        write_text(self.output, render(document))
        what = " beside ".join(each.title for each in shown)
        text = f"wrote {self.output}: {document['subtitle']}, {what}"
        self.present(document, lambda: say(text))

    def _shown(self) -> Iterator[Figured]:
        """Yield what is shown: one, or two beside each other."""
        from trtcal.wings.graph.figures import figured

        sources = [each for each in (self.source, self.other) if each]
        count = max(len(sources), len(self.variant), len(self.target))
        if count > MOST:
            hint = "give one source, or two sources, variants or targets of one network"
            raise InputError(f"a page shows {MOST} builds at most, not {count}", hint)
        for number in range(count):
            source = sources[min(number, len(sources) - 1)]
            variant, target = (
                each[min(number, len(each) - 1)] if each else None
                for each in (self.variant, self.target)
            )
            yield figured(source, variant, target)


command = Graph.command()
