"""A model with what is known of its nodes as metadata, which Netron shows as their properties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from trtcal.errors import InputError, __version__
from trtcal.model.files import OnnxFile, refill, write_onnx
from trtcal.wings.graph.figures import Figured, NodeFigures

PREFIX = "trtcal."


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
