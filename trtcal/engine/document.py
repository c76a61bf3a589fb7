"""All that is said of one engine, as a JSON document: what `trtcal layers show --json` prints."""

from __future__ import annotations

from typing import Any

from trtcal.buildlog.layers import Layer
from trtcal.engine.chains import find_chains
from trtcal.engine.flow import follow
from trtcal.engine.judging import judge
from trtcal.engine.reading import Engine
from trtcal.engine.reformats import find_reformats, find_unfused
from trtcal.engine.roofline import Target, estimate
from trtcal.engine.shares import (
    bytes_of,
    counted_precision,
    share_by_kind,
    share_by_precision,
    time_of,
)
from trtcal.storage import Document


def engine_document(engine: Engine, target: Target | None = None) -> Document:
    """Return layers, shares, copies, left-over Q/DQ, chains and findings of an engine.

    With a target every layer has an `estimate`, a limit from its datasheet that is no measurement.
    """
    flow = follow(engine.layers)
    reformats, unfused, chains = find_reformats(flow), find_unfused(flow), find_chains(flow)
    findings = judge(engine.layers, reformats, unfused, chains)
    return {
        "schema_version": 1,
        "source": engine.source,
        "notes": list(engine.notes),
        "total_ms": engine.total_ms,
        "layers_ms": time_of(engine.layers),
        "moved_bytes": bytes_of(engine.layers),
        "shares_of": "time" if engine.is_timed else "bytes",
        "by_precision": [share.to_document() for share in share_by_precision(engine)],
        "by_kind": [share.to_document() for share in share_by_kind(engine)],
        "reformats": [one.to_document() for one in reformats],
        "unfused_qdq": [one.to_document() for one in unfused],
        "chains": [one.to_document() for one in chains],
        "findings": [one.to_document() for one in findings],
        "target": target.name if target else None,
        "layers": [_layer(layer, target) for layer in engine.layers],
    }


def _layer(layer: Layer, target: Target | None) -> dict[str, Any]:
    return {
        **layer.to_document(),
        "counted_precision": counted_precision(layer),
        "bytes_read": layer.bytes_read,
        "bytes_written": layer.bytes_written,
        "estimate": estimate(layer, target).to_document() if target else None,
    }
