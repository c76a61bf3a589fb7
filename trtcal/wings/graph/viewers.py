"""A model for other viewers: node data for Model Explorer, and metadata that Netron shows.

Of Model Explorer's node data each figure has a JSON file: by the name of the graph, `results` with a
value by the name of each node, and its colors. The ONNX adapter of Model Explorer (model-explorer-onnx)
takes both names from the model, and makes some up where a node has none: so the model is written with a
name for every node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from trtcal import reporting
from trtcal.documents import Document, removing, together, write_json
from trtcal.errors import InputError, __version__
from trtcal.model.files import OnnxFile, refill, write_onnx
from trtcal.wings.graph.figures import Figured, NodeFigures

MODEL = "model.onnx"
PALETTE = Path(reporting.__file__).parent / "templates" / "palette.css"
LOW, HIGH, MISSED, UNKNOWN = "tint", "accent", "stop", "unknown"
PREFIX = "trtcal."


@cache
def _colors() -> dict[str, str]:
    """Return the colors of trtcal's pages by name, those of light pages."""
    light = PALETTE.read_text(encoding="utf-8").partition("@media")[0]
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", light))
    named = {name: value.removeprefix("var(--").removesuffix(")") for name, value in values.items()}
    return {name: values.get(value, value) for name, value in named.items()}


@dataclass(frozen=True)
class NodeData:
    """A figure of nodes by which Model Explorer colors them: the dark ones matter."""

    name: str
    value: Callable[[NodeFigures], Any]
    color: Callable[[str], str] | None = None
    is_low_bad: bool = False

    def to_document(self, nodes: Mapping[str, NodeFigures]) -> Document:
        """Return one graph's node data, without nodes of which the figure is not known."""
        known = {name: self.value(node) for name, node in nodes.items()}
        results = {name: {"value": value} for name, value in known.items() if value is not None}
        if self.color:
            for row in results.values():
                row["bgColor"] = self.color(row["value"])
            return {"results": results}
        ends = (HIGH, LOW) if self.is_low_bad else (LOW, HIGH)
        gradient = [{"stop": stop, "bgColor": _colors()[name]} for stop, name in enumerate(ends)]
        return {"results": results, "gradient": gradient}


def _requested(node: NodeFigures) -> str | None:
    if node.requested is None or node.built in (None, node.requested):
        return node.requested
    return f"{node.requested}, missed: {node.built}"


def _color(precision: str) -> str:
    name = MISSED if "missed" in precision else precision
    return _colors().get(name, _colors()[UNKNOWN])


def _times(is_measured: bool) -> Callable[[NodeFigures], float | None]:
    return lambda node: node.ms if node.is_measured == is_measured else None


NODE_DATA = (
    NodeData("precision-requested", _requested, _color),
    NodeData("sqnr-db", lambda node: node.loss_db, is_low_bad=True),
    NodeData("share-of-loss", lambda node: node.share),
    NodeData("ms-measured", _times(is_measured=True)),
    NodeData("ms-estimated", _times(is_measured=False)),
    NodeData("bytes", lambda node: node.bytes),
    NodeData("clipped-percent", lambda node: node.clipped),
    NodeData("findings", lambda node: len(node.findings)),
    NodeData("precision-built", lambda node: node.built, _color),
)
"""Model Explorer shows the last one that it loads."""


def export_model_explorer(figured: Figured, folder: Path) -> list[Path]:
    """Write the model and the node data of each figure that is known; return their paths."""
    proto, known = figured.model.proto, [folder / MODEL]
    with together():
        write_onnx(folder / MODEL, proto)
        for data in NODE_DATA:
            path, document = folder / f"{data.name}.json", data.to_document(figured.nodes)
            if any(row["value"] for row in document["results"].values()):
                write_json(path, {proto.graph.name: document})
                known.append(path)
            elif path.exists():  # of an earlier export
                removing(path)
    return known


def export_netron(figured: Figured, path: Path) -> OnnxFile:
    """Write the model with its figures as metadata; what it computes is not changed."""
    if path.resolve() == figured.model.path.resolve():
        raise InputError(f"{path} is the model itself", "give another file with -o")
    proto = onnx.ModelProto()
    proto.CopyFrom(figured.model.proto)
    for node in proto.graph.node:
        _add(node, _of_node(figured.nodes[node.name]))
    _add(proto, _of_model(figured))
    return write_onnx(path, proto)


def _add(entry: Any, properties: Mapping[str, Any]) -> None:
    """Add metadata to a model or a node, in place of what an earlier export wrote."""
    known = {f"{PREFIX}{key}": str(value) for key, value in properties.items() if value is not None}
    kept = [item for item in entry.metadata_props if item.key not in known]
    refill(entry.metadata_props, kept)
    for key, value in known.items():
        entry.metadata_props.add(key=key, value=value)


def _of_node(node: NodeFigures) -> dict[str, Any]:
    time = "ms_measured" if node.is_measured else "ms_estimated"
    return {
        "requested": node.requested,
        "built": node.built,
        "why": node.why,
        "sqnr_db": _rounded(node.loss_db),
        "share_of_loss": _rounded(node.share),
        time: _rounded(node.ms),
        "bytes": node.bytes,
        "macs": node.macs or None,
        "clipped_percent": _rounded(node.clipped),
        "layer": node.layer,
        "findings": "; ".join(node.findings) or None,
    }


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _of_model(figured: Figured) -> dict[str, Any]:
    build, document = figured.build, figured.document
    return {
        "title": figured.title,
        "version": __version__,
        "model": figured.model.fingerprint,
        "build": build and build.digest,
        "builder": build and f"{build.backend} {build.backend_version}",
        "report": document and document["digest"],
    }
