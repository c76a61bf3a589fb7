"""The network as a graph, with what is known of each node: a page of its own, or for other viewers."""

from __future__ import annotations

from pathlib import Path

from trtcal.documents import Document
from trtcal.extensions import Command

COMMANDS = (
    Command(
        "check-model",
        "Check whether TensorRT can read the Q/DQ of models.",
        "trtcal.wings.graph.cli.check_model",
        "Build, and see what was built",
    ),
    Command(
        "graph",
        "Show the network as a graph, with the figures of each node.",
        "trtcal.wings.graph.cli.graph",
        "Build, and see what was built",
    ),
    Command(
        "export",
        "Write a model for Model Explorer, Netron or PyTorch.",
        "trtcal.wings.graph.cli.export",
        "Build, and see what was built",
    ),
    Command(
        "export ort",
        "Write an ONNX model around an engine, for ONNX Runtime.",
        "trtcal.wings.runtimes.cli.ort",
    ),
    Command(
        "export openvino",
        "Write a model with Q/DQ as OpenVINO's IR.",
        "trtcal.wings.runtimes.cli.openvino",
    ),
)


def page_of_run(folder: Path, document: Document, report: str) -> str | None:
    """Return the page that goes beside a run's report; None without a build."""
    from trtcal.wings.graph.page import page_of_run

    return page_of_run(folder, document, report)
