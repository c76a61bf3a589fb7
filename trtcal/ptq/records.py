"""What an improvement leaves in a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.documents import write_document
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph, only_consumer
from trtcal.model.model import Floats, Grid
from trtcal.ptq.artifact import write_optimizations
from trtcal.ptq.state import Improved
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement
from trtcal.quantization.weighted_ops import Layer, bias_of
from trtcal.ranges import Calibration

LEVELS = 127


def layer_changes(model: Model, calibration: Calibration) -> list[dict[str, Any]]:
    """Return what the overrides of a optimized model changes, layer by layer in the graph's order.

    `weights` is how many a layer has and `rounded` how many of them have another integer than the
    nearest one on their grid; None where no integers were found for it. `bias` is the largest change
    of a channel's bias, in steps of the INT8 tensor that the layer makes; None where there is none.
    """
    graph, overrides = import_graph(model.proto), model.overrides
    nodes = {node.name: node for node in graph.nodes}
    placement = find_layers(model)
    found = []
    for layer in placement.layers:
        grid, bias = overrides.weights.get(layer.name), overrides.biases.get(layer.name)
        if grid is None and bias is None:
            continue
        node = nodes[layer.name]
        step = None if bias is None else _step(node, graph, placement, calibration)
        change = None if bias is None or step is None else _bias_change(node, bias) / step
        found.append({"name": layer.name, **_rounded(node, layer, grid), "bias": change})
    return found


def _rounded(node: gs.Node, layer: Layer, grid: Grid | None) -> dict[str, int | None]:
    values = constant(node.inputs[layer.weight.index]) if layer.weight else None
    if grid is None or layer.weight is None or values is None:
        return {"weights": None, "rounded": None}
    shape = [1] * values.ndim
    if layer.weight.axis is not None:
        shape[layer.weight.axis] = -1
    nearest = np.clip(np.rint(values / grid.scale.reshape(shape)), -LEVELS, LEVELS)
    return {"weights": values.size, "rounded": int((nearest != grid.values).sum())}


def _bias_change(node: gs.Node, bias: Floats) -> float:
    place = bias_of(node)
    before = np.zeros_like(bias) if place is None else place.values
    return float(np.abs(bias - before).max())


def _step(
    node: gs.Node, graph: gs.Graph, placement: Placement, calibration: Calibration
) -> float | None:
    """Return one step of what a layer makes: of the first tensor behind it that has a range."""
    reader: gs.Node | None = node
    while reader is not None:
        made = reader.outputs[0]
        known = calibration.ranges.get(placement.range_of(made.name))
        if known is not None:
            return known.amax / LEVELS
        reader = only_consumer(made, graph)
    return None


REPAIRS = "optimizations/improved.npz"
RECORD = "optimizations/improved.json"
RANGES = "calibrations/improved.json"


def write_improved(folder: Path, found: Improved) -> dict[str, str]:
    """Write optimizations, the record of them and the ranges; return the digest of each by its path."""
    write_files(found, *(folder / name for name in (REPAIRS, RECORD, RANGES)))
    record = str(found.optimizations.document["digest"])
    digests = (found.optimizations.digest, record, found.calibration.digest)
    return dict(zip((REPAIRS, RECORD, RANGES), digests, strict=True))


def write_files(found: Improved, optimizations: Path, record: Path, ranges: Path) -> None:
    """Write optimizations, the record of them and the ranges to these places."""
    write_document(record, write_optimizations(optimizations, found.optimizations))
    found.calibration.write(ranges)
