"""What optimizations changed in a model, as one file: `optimizations.npz`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper

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
from trtcal.model import Model, checked, unique
from trtcal.model.graph import export_model, import_graph, is_op, tensor_names
from trtcal.model.model import Floats, Grid, Int8Overrides
from trtcal.ptq.affine import HINT, with_affines
from trtcal.quantization import find_layers
from trtcal.quantization.weighted_ops import set_bias

KIND = "optimizations"
NAMED = ("moved", "affines")  # arrays of names of tensors
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Changes:
    """What is changed in a model in float: `constants` are initializers that have other values.

    `bounds` are by name the Relus and Clips that cut off at other values, as (least, largest), and
    `affines` the tensors that layers read by a Mul and an Add of their own (`affine`).
    """

    constants: Mapping[str, Floats] = field(default_factory=lambda: MappingProxyType({}))
    bounds: Mapping[str, Bounds] = field(default_factory=lambda: MappingProxyType({}))
    affines: tuple[str, ...] = ()

    def of(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return a model with the changes; `InputError` if they do not fit."""
        proto = with_constants(with_affines(proto, self.affines), self.constants)
        return with_bounds(proto, self.bounds)

    def then(self, others: Changes) -> Changes:
        """Return these changes with others after them."""
        return Changes(
            {**self.constants, **others.constants},
            {**self.bounds, **others.bounds},
            (*self.affines, *others.affines),
        )


@dataclass(frozen=True)
class Optimizations:
    """`changes` are there in float too; `overrides` is for INT8 alone.

    `model` is the fingerprint of the model that they are for, `record` the document of how they were
    found.
    """

    model: str
    changes: Changes
    overrides: Int8Overrides
    record: Document

    @property
    def digest(self) -> str:
        """Digest of all that they change."""
        parts = {name: digest_bytes(array.tobytes()) for name, array in self._arrays()}
        return digest_bytes(canonical_json([self.model, list(self.changes.constants), parts]))

    @property
    def document(self) -> Document:
        """The sealed record, with the digest of the changes."""
        return seal({**self.record, "optimizations": self.digest})

    def apply(self, prepared: Model) -> Model:
        """Return a prepared model with the optimizations; its fingerprint covers them.

        `InputError` if they are for another model, or for one that was prepared otherwise.
        """
        if prepared.fingerprint != self.model:
            raise InputError(
                f"the optimizations are for another model ({self.model[:19]}…) "
                f"than {prepared.path} ({prepared.fingerprint[:19]}…)",
                "make them again for this one",
            )
        proto = self.changes.of(prepared.proto)
        fingerprint = optimized_fingerprint(self.model, self.digest)
        return checked(
            replace(
                prepared,
                proto=proto,
                fingerprint=fingerprint,
                overrides=self.overrides,
                given=prepared.proto,
            )
        )

    def _arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield all arrays by the place of what they belong to: its name may be anything."""
        for number, array in enumerate(self.changes.constants.values()):
            yield f"constant/{number}", array
        for number, (name, bounds) in enumerate(self.changes.bounds.items()):
            yield f"bounds/{number}/name", np.array(name)
            yield f"bounds/{number}/values", np.array(bounds)
        for number, (name, grid) in enumerate(self.overrides.weights.items()):
            yield f"weight/{number}/name", np.array(name)
            yield f"weight/{number}/values", grid.values
            yield f"weight/{number}/scale", grid.scale
        for number, (name, bias) in enumerate(self.overrides.biases.items()):
            yield f"bias/{number}/name", np.array(name)
            yield f"bias/{number}/values", bias
        if self.overrides.moved:
            yield "moved", np.array(sorted(self.overrides.moved))
        if self.changes.affines:
            yield "affines", np.array(self.changes.affines)


def optimized_fingerprint(model: str, optimizations: str) -> str:
    """Return the fingerprint of a model with optimizations, of its own and the digest of these."""
    return digest_bytes(canonical_json([model, optimizations]))


def with_constants(proto: onnx.ModelProto, constants: Mapping[str, Floats]) -> onnx.ModelProto:
    """Return a model with other values for some initializers; `InputError` if they do not fit."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    left = dict(constants)
    for one in changed.graph.initializer:
        array = left.pop(one.name, None)
        if array is None:
            continue
        if tuple(one.dims) != array.shape or one.data_type != onnx.TensorProto.FLOAT:
            raise InputError(f"the optimizations do not fit the constant {one.name!r}", HINT)
        one.CopyFrom(numpy_helper.from_array(array, one.name))
    if left:
        raise InputError(
            f"the model has no constant {min(left)!r}, which the optimizations change", HINT
        )
    return changed


def with_bounds(proto: onnx.ModelProto, bounds: Mapping[str, Bounds]) -> onnx.ModelProto:
    """Return a model in which some Relus and Clips, by name, are Clips with other bounds.

    `InputError` if one of them is something else.
    """
    if not bounds:
        return proto
    graph = import_graph(proto)
    names, left = tensor_names(graph), dict(bounds)
    for node in graph.nodes:
        if node.name not in left:
            continue
        if not is_op(node, "Relu", "Clip"):
            raise InputError(f"the optimizations do not fit {node.name!r}, a {node.op}", HINT)
        least, largest = left.pop(node.name)
        ends = {"least": least, "largest": largest} if largest < np.inf else {"least": least}
        given = [
            gs.Constant(unique(f"{node.name}/{end}", names), np.array(value, np.float32))
            for end, value in ends.items()
        ]
        node.op, node.inputs = "Clip", [node.inputs[0], *given]
    if left:
        raise InputError(
            f"the model has no node {min(left)!r}, which the optimizations change", HINT
        )
    return export_model(graph, proto)


def in_float(optimized: Model) -> Model:
    """Return a optimized model in which float has what INT8 would: weights on the grid, and biases.

    For builders that quantize weights themselves from ranges (TensorRT up to 10): they round these
    once more, to the grid that the largest weight of each channel gives.
    """
    graph = import_graph(optimized.proto)
    layers = {one.name: one for one in find_layers(optimized).layers}
    names = tensor_names(graph)
    overrides = optimized.overrides
    for node in list(graph.nodes):
        if node.name in overrides.biases:
            bias = overrides.biases[node.name]
            set_bias(node, gs.Constant(unique(f"{node.name}/bias", names), bias))
        weight = layers[node.name].weight if node.name in layers else None
        if weight is not None and node.name in overrides.weights:
            values = overrides.weights[node.name].floats(weight.axis)
            node.inputs[weight.index] = gs.Constant(unique(f"{node.name}/weight", names), values)
    return checked(
        replace(optimized, proto=export_model(graph, optimized.proto), overrides=Int8Overrides())
    )


def write_optimizations(path: Path, optimizations: Optimizations) -> Document:
    """Write `optimizations.npz`, and return the sealed record in it."""
    document = optimizations.document
    header = {
        "record": document,
        "model": optimizations.model,
        "constants": list(optimizations.changes.constants),
    }
    first = ("header", np.array(json.dumps(header, allow_nan=False)))
    write_npz(path, chain([first], optimizations._arrays()), compressed=False)
    return document


def read_optimizations(path: Path) -> Optimizations:
    """Read `optimizations.npz`; `InputError` if it is missing, altered or malformed."""
    arrays = read_npz(path)

    def build() -> Optimizations:
        header = json.loads(str(arrays["header"]))
        record = dict(header["record"])
        names = [str(name) for name in header["constants"]]
        constants = {name: _floats(arrays[f"constant/{i}"]) for i, name in enumerate(names)}
        weights = {
            name: Grid(np.asarray(of["values"], np.int8), _floats(of["scale"]))
            for name, of in _numbered(arrays, "weight")
        }
        biases = {name: _floats(of["values"]) for name, of in _numbered(arrays, "bias")}
        bounds = {name: _bounds(of["values"]) for name, of in _numbered(arrays, "bounds")}
        moved, affines = (map(str, arrays[one].tolist()) if one in arrays else () for one in NAMED)
        overrides = Int8Overrides(weights, biases, frozenset(moved))
        changes = Changes(constants, bounds, tuple(affines))
        found = Optimizations(str(header["model"]), changes, overrides, record)
        if record["optimizations"] != found.digest or record["digest"] != digest_document(record):
            raise InputError(f"{path} was altered", HINT)
        return found

    optimizations: Optimizations = parsing(path, build)
    return optimizations


def _numbered(arrays: Mapping[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arrays of each thing of a kind."""
    number = 0
    while f"{kind}/{number}/name" in arrays:
        start = f"{kind}/{number}/"
        own = {key.removeprefix(start): one for key, one in arrays.items() if key.startswith(start)}
        yield str(own["name"]), own
        number += 1


def _bounds(array: Any) -> Bounds:
    least, largest = map(float, array)
    if not -np.inf < least < largest:
        raise ValueError("its bounds are no interval")
    return least, largest


def _floats(array: Any) -> Floats:
    if array.dtype != np.float32 or not np.isfinite(array).all():
        raise ValueError("its numbers are not finite float32 values")
    return np.asarray(array)
