"""Finds the node for which a builder gives no engine, where its log names none: by builds of parts."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from onnx import NodeProto

from trtcal.backends.unsupported import hint_to_cut, hint_to_other
from trtcal.documents import Workplace
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.evidence.diagnosis.failure import failed_at
from trtcal.evidence.findings import Finding
from trtcal.model import Model
from trtcal.model.cut import cut, cut_points

BISECT_S = 60.0
"""Seconds that finding the node may take where nobody asked for it."""

Attempt = Callable[..., object]
"""Builds a model in a `folder`; `BackendError` if there is no engine."""


def names_node(finding: Finding, model: Model) -> bool:
    """Whether a finding says at which node, or at the making of which tensor, a build ended."""
    names = {n for node in model.proto.graph.node for n in (node.name, *node.output) if n}
    if finding.subject in names:
        return True
    names = {name for name in names if not name.isdigit()}  # messages have numbers of their own
    text = f"{finding.subject} {finding.what}"
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)


def bisect(model: Model, attempt: Attempt, cause: Finding, folder: Path, limit_s: float) -> Finding:
    """Return what ended a build with the node at which it did, or with the command that finds it.

    Half of what is left is built at a time: for `n` nodes log2(n) builds, each as long as the one that
    failed at most. That is done if it takes `limit_s` at most.
    """
    measured = folder / "measured.json"
    if not measured.exists():
        return cause
    points = [*cut_points(model), (len(model.proto.graph.node), ())]
    count = math.ceil(math.log2(len(points) + 1))
    seconds = json.loads(measured.read_text())["seconds"]
    if count * seconds > limit_s:
        times = f" in {count} builds of at most {math.ceil(seconds)} s each" if limit_s else ""
        return failed_at(cause, (), f"`trtcal build --bisect` finds the node{times}. {cause.fix}")
    try:
        nodes = _first_failing(model, attempt, points)
    except (InputError, ResourceError):  # a part that cannot be cut, or takes too long
        return cause
    if not nodes:
        return failed_at(cause, (), "It builds now: build it again, with nothing else running.")
    path = str(model.path)
    return failed_at(cause, nodes, hint_to_cut(path, model.proto, nodes) or hint_to_other(path))


def _first_failing(
    model: Model, attempt: Attempt, points: list[tuple[int, tuple[str, ...]]]
) -> list[NodeProto]:
    """Return the first node with which no engine is built, or a few; none if all build."""

    def fails(point: tuple[int, tuple[str, ...]]) -> bool:
        with Workplace() as name:
            try:
                attempt(cut(model, point[1]) if point[1] else model, folder=Path(name))
            except BackendError:
                return True
        return False

    first = bisect_left(points, True, key=fails)
    before = points[first - 1][0] if first else 0
    end = points[first][0] if first < len(points) else before
    nodes = model.proto.graph.node[before:end]
    return [node for node in nodes if node.op_type != "Constant"]
