"""An ONNX model and its fingerprint."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from trtcal.documents import checked_digest, digest_bytes, recover
from trtcal.documents.bounds import ARRAYS_BYTES, check_file
from trtcal.documents.overview import Overview, Shown
from trtcal.documents.trust import is_trusted
from trtcal.errors import InputError, some
from trtcal.model import files
from trtcal.model.checking import MODEL_BYTES, check, check_sizes, first_line
from trtcal.model.files import refill, weights_of, without_bytes
from trtcal.model.loaders import loader_of
from trtcal.model.ops import RECURRENT
from trtcal.model.pairs import check_pairs
from trtcal.model.qonnx import has_quant, write_qdq

Floats = npt.NDArray[np.floating[Any]]
Narrow = npt.NDArray[Any]
"""Values of a narrow type: int8, or FP8, INT4 and FP4 of ml_dtypes."""


def along(values: npt.NDArray[Any], rank: int, axis: int | None) -> npt.NDArray[Any]:
    """Return values, (channels,) or one for all, in a shape that broadcasts along a tensor's axis."""
    shape = [1] * rank
    if axis is not None:
        shape[axis] = -1
    return values.reshape(shape)


@dataclass(frozen=True)
class Grid:
    """A weight in steps of its scales: `values` of the weight's shape, in a narrow type.

    `scale`, float32 or float16, is () for all, (channels,) along the weight's axis of outputs, or for
    blocks as many-dimensional as the values, with one row or column for each block.
    """

    values: Narrow
    scale: Floats

    def scales(self, axis: int | None) -> Floats:
        """Return the scales in a shape that broadcasts to the values; `axis` is that of outputs."""
        if not self.scale.ndim == self.values.ndim > 1:  # no blocks of weights share a scale
            return along(self.scale, self.values.ndim, axis)
        scales = self.scale
        for place, (whole, blocks) in enumerate(zip(self.values.shape, scales.shape, strict=True)):
            scales = np.repeat(scales, whole // blocks, place) if whole > blocks else scales
        return scales

    def floats(self, axis: int | None) -> Floats:
        """Return the weight that the values stand for, float32."""
        return np.asarray(self.values.astype(np.float32) * self.scales(axis), np.float32)


@dataclass(frozen=True)
class Overrides:
    """By layer: the quantized weights and the biases, (channels,), that it takes if it is quantized.

    They are for INT8 where `precisions` names no other one for a layer. `moved` are tensors that have
    other values than in the model as it was given, and the outputs of layers that have other weights,
    in float too: they can't be compared with those of that model.
    """

    weights: Mapping[str, Grid] = field(default_factory=dict)
    biases: Mapping[str, Floats] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    precisions: Mapping[str, str] = field(default_factory=dict)

    def with_layer(
        self, name: str, weight: Grid | None, bias: Floats | None, precision: str
    ) -> Overrides:
        """Return the overrides with one layer's values in place of those before."""
        weights = self.weights if weight is None else {**self.weights, name: weight}
        biases = self.biases if bias is None else {**self.biases, name: bias}
        own = {} if precision == "int8" else {name: precision}
        precisions = {**self.precisions, **own}
        return replace(self, weights=weights, biases=biases, precisions=precisions)

    def precision(self, name: str) -> str | None:
        """Return the precision that they are for in a layer, None if there are none for it."""
        is_known = name in self.weights or name in self.biases
        return self.precisions.get(name, "int8") if is_known else None

    def without(self, names: Collection[str]) -> Overrides:
        """Return the overrides of all other layers."""
        weights = {name: grid for name, grid in self.weights.items() if name not in names}
        biases = {name: bias for name, bias in self.biases.items() if name not in names}
        return replace(self, weights=weights, biases=biases)


Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output: its name, its numpy type name, and its shape (names where dynamic)."""

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Model(Shown):
    """A checked ONNX model; `fingerprint` is the SHA-256 of its file and of its external data.

    `proto` holds the weights, or refers to the files that have them (`trtcal.model.files`).
    `overrides` are the optimizations of quantized layers; the fingerprint covers them too. `given`
    is then the model before the optimizations, which also change constants of the float model. No
    initializer of `proto` is an input of its graph; `defaults` are inputs of the file with a
    default value, which is a constant here. `source` is the file or folder of another framework
    that the model was converted from; `path` is then the resulting ONNX file.

    >>> model = load_model("samples/digits/digits.onnx")
    >>> [str(one) for one in model.outputs]
    ['logits: float32[batch, 10]']
    """

    path: Path
    proto: onnx.ModelProto
    fingerprint: str
    overrides: Overrides = field(default_factory=Overrides)
    given: onnx.ModelProto | None = None
    defaults: tuple[str, ...] = ()
    source: Path | None = None

    def overview(self) -> Overview:
        """Return the inputs and outputs, and the numbers of nodes by operator."""
        counts = Counter(node.op_type for node in self.proto.graph.node)
        columns = {"operator": "{0}", "nodes": "{1}"}
        ends = (("inputs", self.inputs), ("outputs", self.outputs))
        facts = [f"{name}: {some(map(str, specs), 4)}" for name, specs in ends]
        title = f"Model {self.name!r}: {counts.total():,} nodes, opset {self.opset}"
        return Overview(title, facts, things=counts.most_common(), columns=columns)

    @property
    def reference(self) -> onnx.ModelProto:
        """The float model that INT8 is compared with."""
        return self.proto if self.given is None else self.given

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a caller has to feed."""
        return tuple(_spec(value) for value in self.proto.graph.input)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The graph's outputs."""
        return tuple(_spec(value) for value in self.proto.graph.output)

    @property
    def opset(self) -> int:
        """The version of the default ONNX operator set."""
        return files.opset_of(self.proto)

    def weightless(self) -> Model:
        """Return the model without values of large weights: as much as counting its work takes."""
        proto = files.stand_in(self.proto)
        proto.graph.initializer.extend(map(without_bytes, weights_of(self.proto).values()))
        return replace(self, proto=proto)


ModelSource = str | os.PathLike[str] | onnx.ModelProto | Model
"""What `load_model` takes."""


def load_model(source: ModelSource, embedded: int = files.EMBEDDED, trust: bool = False) -> Model:
    """Load and check a model; a `Model` stays itself.

    A SavedModel, a `.keras`, `.tflite` or `.pt2` file is converted to ONNX, with `trust` even if
    it contains programs. External data of more than `embedded` bytes stay in their files.
    `InputError` if the file is missing or corrupt, is not valid ONNX, or has another type.

    >>> model = load_model("samples/digits/digits.onnx")
    >>> model.name, str(model.inputs[0]), model.opset
    ('digits', 'image: float32[batch, 1, 8, 8]', 17)
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return checked(_in_memory(source))
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"an object of type {type(source).__name__} is not a model",
            "give a path (str or Path), an onnx.ModelProto or a trtcal Model; "
            "trtcal.from_torch(module, examples) makes one from a PyTorch module",
        )
    path = Path(source)
    recover(path.parent)
    if (loader := loader_of(path)) is None:
        return checked(_of_file(path, embedded))
    converted = _of_file(loader.convert(path, trust or is_trusted()), embedded)
    return checked(replace(converted, source=path))


def _in_memory(proto: onnx.ModelProto) -> Model:
    """Return a model with the fingerprint of the file that `onnx.save` would write of it."""
    if any(uses_external_data(tensor) for tensor in files.tensors_of(proto)):
        raise InputError("the model's weights are in files beside it", "give the path of the model")
    name = re.sub(r"[^\w.-]+", "_", proto.graph.name) or "model"
    try:
        digest = digest_bytes(proto.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise InputError(
            "the model has 2 GiB or more", "save the model and give its path"
        ) from error
    try:
        check_sizes(proto)
    except ValueError as error:
        raise InputError(f"a weight of the model is broken: {error}", "export it again") from error
    changes = _initialized_inputs(proto) or _unshaped(proto.graph.value_info) or has_quant(proto)
    if changes or any(_blank_ends(proto)):
        source, proto = proto, onnx.ModelProto()
        proto.CopyFrom(source)
    return _normalized(Path(f"{name}.onnx"), proto, combined([digest]))


def _absence(path: Path) -> tuple[str, str]:
    if path.is_dir():
        where = f"model {path} is a folder without saved_model.pb"
        return where, "give an .onnx file, or the folder of a TensorFlow SavedModel"
    return f"model {path} does not exist or is not a file", "check the path of the model"


def _of_file(path: Path, embedded: int) -> Model:
    try:
        if not path.is_file():
            raise InputError(*_absence(path))
        check_file(path, MODEL_BYTES)
        digest = checked_digest(path)
        proto = onnx.load(path, format="protobuf", load_external_data=False)
        fingerprint = combined([digest, *map(checked_digest, external_files(path, proto))])
        files.load_external(proto, path.parent, embedded)
        check_sizes(proto)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
        raise InputError(
            f"model {path} cannot be read as ONNX: {first_line(error)}",
            "export it again, and keep its external data files beside it",
        ) from error
    return _normalized(path, proto, fingerprint)


def _normalized(path: Path, proto: onnx.ModelProto, fingerprint: str) -> Model:
    """Return a model whose inputs are no constants, and whose tensors are annotated with a shape.

    No node of it ends with an optional input by an empty name, which TensorRT refuses, and none is
    one of QONNX.
    """
    for value in _unshaped(proto.graph.value_info):  # as old exporters wrote them
        proto.graph.value_info.remove(value)
    for node, inputs in _blank_ends(proto):
        del node.input[inputs:]
    defaults = _drop_initialized_inputs(proto)
    if has_quant(proto):
        write_qdq(proto)
    return Model(path, proto, fingerprint, defaults=defaults)


def _unshaped(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    """Return the tensors without a shape: ONNX's checker wants one, ONNX Runtime runs them."""
    tensors = (value for value in values if value.type.HasField("tensor_type"))
    return [value for value in tensors if not value.type.tensor_type.HasField("shape")]


def _blank_ends(proto: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes whose last optional inputs have an empty name, and how many they keep."""
    for node in files.all_nodes(proto):
        kept = max((n for n, name in enumerate(node.input, 1) if name), default=0)
        is_known = node.domain in ("", "ai.onnx") and node.op_type not in ("Loop", "Scan")
        if kept < len(node.input) and is_known:  # bodies need their inputs by number
            yield node, kept


def _initialized_inputs(proto: onnx.ModelProto) -> list[str]:
    initialized = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name in initialized]


def _drop_initialized_inputs(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Make constants of inputs that have an initializer; return those that had a default value so.

    Up to IR version 3 every initializer had to be an input too; later ones are defaults.
    """
    names = set(initialized := _initialized_inputs(proto))
    refill(proto.graph.input, (value for value in proto.graph.input if value.name not in names))
    had_to_be, proto.ir_version = proto.ir_version <= 3, max(proto.ir_version, 4)
    return () if had_to_be else tuple(initialized)


def checked(model: Model) -> Model:
    """Return the model; `InputError` if the ONNX checker refuses it, or no compiler takes its Q/DQ."""
    if not model.proto.graph.node:
        raise InputError(f"model {model.path} has no nodes", "give a path to an ONNX model")
    check_pairs(model.proto, model.path, model.opset)
    small = files.stand_in(model.proto)
    for value in _unshaped(small.graph.output):
        value.type.tensor_type.shape.SetInParent()
    check(small, model.path)
    return _with_output_shapes(model)


def _with_output_shapes(model: Model) -> Model:
    """Return the model with a shape for every output of which ONNX can infer one."""
    if not _unshaped(model.proto.graph.output):
        return model
    small = onnx.shape_inference.infer_shapes(files.stand_in(model.proto), data_prop=True)
    inferred = {value.name: value.type for value in small.graph.output}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in _unshaped(proto.graph.output):
        value.type.CopyFrom(inferred[value.name])
    return replace(model, proto=proto)


ORDERED = re.compile(
    r"(num_?|n_?|max_?)?(seq(uence)?(_?len(gth)?)?|time(_?steps?)?|frames?|t)", re.I
)
"""Names of an axis that counts what follows one another in a sample."""


def without_samples(model: Model) -> frozenset[str]:
    """Return the inputs that evidently have no first axis for samples.

    Scalars, those whose first axis bears the name of a length, and what a recurrent operator reads as
    it is: a sequence first, or its initial states.
    """
    nodes = (node for node in model.proto.graph.node if node.op_type in RECURRENT)
    read = set[str]()
    for node in nodes:
        if not files.attribute_of(node, "layout", 0):  # batches first
            read.update((*node.input[:1], *node.input[5:7]))
    return frozenset(
        spec.name
        for spec in model.inputs
        if not spec.shape or spec.name in read or ORDERED.fullmatch(str(spec.shape[0]))
    )


def external_files(path: Path, proto: onnx.ModelProto) -> list[Path]:
    """Return the files of a model's external data."""
    outside = filter(uses_external_data, files.tensors_of(proto))
    names = {ExternalDataInfo(tensor).location for tensor in outside}
    return [_inside(path.parent, name) for name in sorted(names)]


def combined(digests: Iterable[str]) -> str:
    """Return the fingerprint of a model: of the digests of its file and of its external data."""
    raw = b"".join(bytes.fromhex(digest.removeprefix("sha256:")) for digest in digests)
    return digest_bytes(raw)


def uniquely_named(model: Model) -> Model:
    """Return the model with a name of its own for every node.

    Empty names become operator and place, repeated ones get a number; the fingerprint stays.
    """
    names = [node.name for node in model.proto.graph.node]
    if all(names) and len(set(names)) == len(names):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    name_nodes(proto)
    return replace(model, proto=proto)


def name_nodes(proto: onnx.ModelProto) -> None:
    """Give every node a name of its own, in place: see `uniquely_named`."""
    taken = set[str]()
    for number, node in enumerate(proto.graph.node):
        node.name = unique(node.name or f"{node.op_type}_{number}", taken)


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, with a number if it is taken, and take it."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _inside(folder: Path, name: str) -> Path:
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ValueError(f"its external data {name!r} are outside its folder")
    check_file(file, ARRAYS_BYTES, "keep the model's external data files beside it")
    return file


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise InputError(f"{value.name!r} is not a tensor", "give a model with tensor inputs only")
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    # some exporters write -1 or 0 where a size is not known
    dims = enumerate(tensor.shape.dim)
    shape = tuple(d.dim_value if d.dim_value > 0 else (d.dim_param or f"?{i}") for i, d in dims)
    return TensorSpec(value.name, dtype, shape)
