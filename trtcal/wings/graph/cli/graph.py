"""`trtcal graph`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.wings.graph.figures import Figured


class Graph(JsonOptions, example="trtcal graph reports/digits -o graph.html"):
    """Write a page that shows a network with what is known of each node.

    SOURCE is a model, the folder of a build or that of a run, of which the verdict's variant is shown.
    Two sources of one network are shown beside each other, with what differs between them.
    """

    source: Path = argument(metavar="SOURCE")
    other: Path | None = argument(metavar="[SOURCE2]", required=False, default=None)
    output: Path = option("File for the page.", "-o", default=Path("graph.html"))
    variant: tuple[str, ...] = option(
        "Variant of a run; given twice, both are shown beside each other."
    )
    target: tuple[str, ...] = option("Target of a run's build; may be given twice.")

    def _run(self) -> None:
        from trtcal.documents import write_text
        from trtcal.wings.graph.document import graph_document
        from trtcal.wings.graph.page import render

        shown = self._shown()
        document = graph_document(shown)
        write_text(self.output, render(document))
        nodes = len(document["nodes"]["name"])
        where = " beside ".join(each.title for each in shown)
        self.present(document, lambda: say(f"wrote {self.output}: {nodes:,} nodes of {where}"))
