"""The optimizations of a model: applied to it, written to `optimizations.npz`, shown layer by layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.documents import (
    Document,
    canonical_json,
    digest_bytes,
    digest_document,
    parsing,
    read_npz,
    seal,
    write_npz,
)
from trtcal.errors import InputError
from trtcal.formats import FORMATS, Precision, by_dtype
from trtcal.model import Model, checked
from trtcal.model.graph import GraphWriter, export_model, import_graph, only_consumer
from trtcal.model.model import Floats, Grid, Overrides
from trtcal.ptq.adaptive_rounding import nearest_steps
from trtcal.ptq.changes import HOW_TO_MAKE, Bounds, Changes, missing
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement
from trtcal.quantization.weighted_ops import Layer, bias_of, block_axis, set_bias
from trtcal.ranges import Calibration

OPTIMIZATIONS_KIND = "optimizations"
LEVELS = 127  # steps on either side of zero in INT8


@dataclass(frozen=True)
class Optimizations:
    """`changes` of the model in float too; `overrides` of layers that are quantized only.

    `model` is the fingerprint of the model that they are for, `record` the document of how they were
    found.
    """

    model: str
    changes: Changes
    overrides: Overrides
    record: Document

    @property
    def digest(self) -> str:
        """Digest of all that they change."""
        arrays = {name: digest_bytes(array.tobytes()) for name, array in self._arrays()}
        return digest_bytes(canonical_json([self._header, arrays]))

    @property
    def document(self) -> Document:
        """The sealed record, with the digest of the changes."""
        return seal({**self.record, "optimizations": self.digest})

    def apply(self, prepared: Model) -> Model:
        """Return a prepared model with the optimizations; its fingerprint covers them.

        `InputError` if they are for another model, for one that was prepared otherwise, or for other
        layers and weights than it has.
        """
        if prepared.fingerprint != self.model:
            raise InputError(
                f"the optimizations are for another model ({self.model[:19]}…) "
                f"than {prepared.path} ({prepared.fingerprint[:19]}…)",
                "make them again for this model: `trtcal quantize --improve`",
            )
        optimized = replace(
            prepared,
            proto=self.changes.of(prepared.proto),
            fingerprint=optimized_fingerprint(self.model, self.digest),
            overrides=self.overrides,
            given=prepared.proto,
        )
        _check_overrides(optimized)
        return checked(optimized)

    @property
    def _header(self) -> Document:
        """All but the arrays: names, each at the place of its array, and the bounds of Clips."""
        precisions = self.overrides.precisions
        return {
            "model": self.model,
            "constants": list(self.changes.constants),
            "weights": list(self.overrides.weights),
            "biases": list(self.overrides.biases),
            "bounds": {
                name: [least, largest if largest < np.inf else None]
                for name, (least, largest) in self.changes.bounds.items()
            },
            "affines": list(self.changes.affines),
            "moved": sorted(self.changes.moved),
            **({"precisions": dict(precisions)} if precisions else {}),
        }

    def _arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield all arrays under numbers: a name in a model may be anything."""
        for number, array in enumerate(self.changes.constants.values()):
            yield f"constants/{number}", array
        for number, grid in enumerate(self.overrides.weights.values()):
            yield f"weights/{number}", grid.values.view(np.int8)  # numpy's files know no others
            yield f"scales/{number}", grid.scale
        for number, bias in enumerate(self.overrides.biases.values()):
            yield f"biases/{number}", bias


def _check_overrides(model: Model) -> None:
    """`InputError` if the quantized weights and biases of a model are not those of its layers."""
    graph = import_graph(model.proto)
    layers = {layer.name: layer for layer in find_layers(model, graph=graph).layers}
    nodes = {node.name: node for node in graph.nodes}
    overrides = model.overrides
    for name in (*overrides.weights, *overrides.biases, *overrides.precisions):
        if name not in layers:
            raise missing(f"layer {name!r}")
    for name, grid in overrides.weights.items():
        precision = overrides.precisions.get(name, "int8")
        if not _fits(grid, nodes[name], layers[name], FORMATS[precision]):
            raise InputError(
                f"the optimizations do not fit the weights of layer {name!r}", HOW_TO_MAKE
            )


def _fits(grid: Grid, node: gs.Node, layer: Layer, kind: Precision) -> bool:
    """Tell whether a grid has a layer's shape, and positive scales: by block, by channel, or one."""
    weight, values = layer.weight, layer.values(node)
    shape, scales = grid.values.shape, grid.scale.shape
    if weight is None or values is None or values.shape != shape or not np.all(grid.scale > 0):
        return False
    if not kind.weights_only:
        own = () if weight.axis is None or kind.name != "int8" else (shape[weight.axis],)
        return scales in ((), own)
    axis = block_axis(node)
    if axis is None or len(scales) != len(shape) or 0 in scales:
        return False
    return not shape[axis] % scales[axis] and scales[1 - axis] == shape[1 - axis]


def optimized_fingerprint(model: str, optimizations: str) -> str:
    """Return the fingerprint of a model with optimizations, of its own and the digest of these."""
    return digest_bytes(canonical_json([model, optimizations]))


def write_optimizations(path: Path, optimizations: Optimizations) -> Document:
    """Write `optimizations.npz`, and return the sealed record in it."""
    document = optimizations.document
    header = json.dumps({**optimizations._header, "record": document}, allow_nan=False)
    first = ("header", np.array(header))
    write_npz(path, chain([first], optimizations._arrays()), compressed=False)
    return document


def read_optimizations(path: Path) -> Optimizations:
    """Read `optimizations.npz`; `InputError` if it is missing, altered or malformed."""
    arrays = read_npz(path)

    def build() -> Optimizations:
        header = json.loads(str(arrays["header"]))

        def floats(kind: str, array: str = "") -> dict[str, Floats]:
            return {
                str(name): _floats(arrays[f"{array or kind}/{number}"])
                for number, name in enumerate(header[kind])
            }

        precisions = {str(n): str(kind) for n, kind in header.get("precisions", {}).items()}
        if unknown := set(precisions.values()) - FORMATS.keys():
            raise ValueError(f"it has the unknown precision {min(unknown)!r}")
        grids = {
            name: _grid(arrays[f"weights/{number}"], scale, precisions.get(name, "int8"))
            for number, (name, scale) in enumerate(floats("weights", "scales").items())
        }
        bounds = {str(name): _bounds(*ends) for name, ends in header["bounds"].items()}
        affines, moved = tuple(map(str, header["affines"])), frozenset(map(str, header["moved"]))
        changes = Changes(floats("constants"), bounds, affines, moved)
        overrides = Overrides(grids, floats("biases"), moved, precisions)
        record = dict(header["record"])
        result = Optimizations(str(header["model"]), changes, overrides, record)
        if record["optimizations"] != result.digest or record["digest"] != digest_document(record):
            raise InputError(f"{path} was changed after it was written", HOW_TO_MAKE)
        return result

    return parsing(path, build)


def _bounds(least: float, largest: float | None) -> Bounds:
    ends = float(least), np.inf if largest is None else float(largest)
    if not -np.inf < ends[0] < ends[1]:
        raise ValueError("its bounds are not an interval")
    return ends


def _grid(values: Any, scale: Floats, precision: str) -> Grid:
    kind = FORMATS[precision]
    if values.dtype != np.int8:
        raise ValueError("its weights are not bytes")
    grid = Grid(values.view(kind.dtype), scale)
    if not np.abs(grid.values.astype(np.float32)).max(initial=0.0) <= kind.most:
        raise ValueError(f"its weights are not {precision}")
    return grid


def _floats(array: Any) -> Floats:
    if array.dtype != np.float32 or not np.isfinite(array).all():
        raise ValueError("its numbers are not finite float32 values")
    return np.asarray(array)


def in_float(optimized: Model) -> Model:
    """Return an optimized model whose float weights and biases have the values of INT8.

    For builders that quantize weights themselves from ranges (TensorRT up to 10): they round these
    once more, to the grid that the largest weight of each channel gives.
    """
    graph = import_graph(optimized.proto)
    layers = {layer.name: layer for layer in find_layers(optimized, graph=graph).layers}
    writer = GraphWriter(graph)
    overrides = optimized.overrides
    for node in list(graph.nodes):
        if overrides.precision(node.name) != "int8":
            continue
        if node.name in overrides.biases:
            set_bias(node, writer.new_constant(f"{node.name}/bias", overrides.biases[node.name]))
        weight = layers[node.name].weight if node.name in layers else None
        if weight is not None and node.name in overrides.weights:
            values = overrides.weights[node.name].floats(weight.axis)
            node.inputs[weight.index] = writer.new_constant(f"{node.name}/weight", values)
    return checked(
        replace(optimized, proto=export_model(graph, optimized.proto), overrides=Overrides())
    )


def layer_changes(model: Model, calibration: Calibration) -> list[dict[str, Any]]:
    """Return what the overrides of an optimized model change, layer by layer in the graph's order.

    `weights` is how many a layer has and `rounded` how many of them have another integer than the
    nearest one on their grid; None where no integers were found for it. `bias` is the largest change
    of a channel's bias, in steps of the INT8 tensor that the layer makes; None where there is none.
    """
    graph, overrides = import_graph(model.proto), model.overrides
    nodes = {node.name: node for node in graph.nodes}
    placement = find_layers(model, graph=graph)
    rows = []
    for layer in placement.layers:
        grid, bias = overrides.weights.get(layer.name), overrides.biases.get(layer.name)
        if grid is None and bias is None:
            continue
        node = nodes[layer.name]
        step = None if bias is None else _step(node, graph, placement, calibration)
        change = None if bias is None or step is None else _bias_change(node, bias) / step
        rows.append({"name": layer.name, **_rounded(node, layer, grid), "bias": change})
    return rows


def _rounded(node: gs.Node, layer: Layer, grid: Grid | None) -> dict[str, int | None]:
    values = layer.values(node)
    if grid is None or layer.weight is None or values is None:
        return {"weights": None, "rounded": None}
    exact = values / grid.scales(layer.weight.axis)
    nearest = nearest_steps(exact, by_dtype()[grid.values.dtype])
    rounded = int((nearest != grid.values.astype(np.float32)).sum())
    return {"weights": values.size, "rounded": rounded}


def _bias_change(node: gs.Node, bias: Floats) -> float:
    place = bias_of(node)
    before = np.zeros_like(bias) if place is None else place.values
    return float(np.abs(bias - before).max())


def _step(
    node: gs.Node, graph: gs.Graph, placement: Placement, calibration: Calibration
) -> float | None:
    """Return one step of a layer's output: of the first tensor behind it that has a range."""
    reader: gs.Node | None = node
    while reader is not None:
        output = reader.outputs[0]
        if (known := calibration.ranges.get(placement.range_of(output.name))) is not None:
            return known.amax / LEVELS
        reader = only_consumer(output, graph)
    return None
