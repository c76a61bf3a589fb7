"""`trtcal export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import note, say
from trtcal.documents.streams import shell_word

if TYPE_CHECKING:
    from trtcal.wings.graph.figures import Figured


INSTALL = "pip install ai-edge-model-explorer model-explorer-onnx"


@click.group(
    cls=ExtendedGroup, epilog="Example: trtcal export netron reports/classifier -o classifier.onnx"
)
def command() -> None:
    """Write a model for other programs: viewers, with what is known of each node, or PyTorch."""


class ExportOptions(JsonOptions):
    """Which model is exported."""

    source: Path = argument()
    variant: str | None = option("Variant of a run.  [default: the verdict's]")
    target: str | None = option(
        "Target of the build; of a model without a build, GPU that times are estimated for.",
        metavar="NAME",
    )

    def open(self) -> Figured:
        """Return the model of the source with its figures, and note which it is."""
        from trtcal.wings.graph.figures import figured

        shown = figured(self.source, self.variant, self.target)
        others = ", ".join(shown.others)
        note(f"exported: {shown.title}", *([f"not exported: {others}"] if others else []))
        return shown


class ModelExplorer(
    ExportOptions, example="trtcal export model-explorer reports/classifier -o nodes"
):
    """Write a model, and node data of Model Explorer for each figure that is known of its nodes.

    SOURCE is the folder of a run or of a build, or an ONNX model: of that, the layers, precisions and
    times are those that TensorRT is expected to have.
    """

    output: Path = option("Folder for the files.", "-o", default=Path("model-explorer"))

    def _run(self) -> None:
        from trtcal.wings.graph.viewers import export_model_explorer

        figured = self.open()
        model, *files = export_model_explorer(figured, self.output)
        counts = {"nodes": len(figured.nodes), "files": [path.name for path in files]}
        words = ("model-explorer", str(model), "--extensions=model_explorer_onnx")
        data = ("--node_data_paths", ",".join(map(str, files)))
        document = {"output": str(self.output), "title": figured.title, **counts}

        def show() -> None:
            say(f"wrote {model} and {len(files)} files of node data")
            note(INSTALL, " ".join(map(shell_word, (*words, *data))))

        self.present(document, show)


class Netron(ExportOptions, example="trtcal export netron reports/classifier -o classifier.onnx"):
    """Write a model with what is known of its nodes as metadata, which Netron shows.

    SOURCE is the folder of a run or of a build, or an ONNX model: of that, the layers, precisions and
    times are those that TensorRT is expected to have. The model computes the same.
    """

    output: Path = option("ONNX file to write.", "-o", default=Path("netron.onnx"))

    def _run(self) -> None:
        from trtcal.wings.graph.viewers import export_netron

        figured = self.open()
        written = export_netron(figured, self.output)
        facts = {"title": figured.title, "nodes": len(figured.nodes)}
        self.present_onnx(self.output, written, facts, lambda: None)


explorer = ModelExplorer.command()
explorer.name = "model-explorer"
command.add_command(explorer)
command.add_command(Netron.command())
