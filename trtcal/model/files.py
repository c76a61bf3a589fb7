"""ONNX files of any size: weights separate from the graph, in memory or in files beside the model.

A protobuf message ends at 2 GiB, and what takes a whole model (the checker, shape inference, the
converter of opsets) copies it several times. So they get a stand-in in which every weight is an input
of its type and shape. A *weight* here is a large initializer of the main graph. One that was left in
its file is an external tensor with an entry `basepath`: the folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)

from trtcal.documents import digest_blocks, digest_bytes, replacing, together, write_bytes
from trtcal.formats import REFUSED, TYPES, Precision

Array = npt.NDArray[Any]
Placed = list[tuple[int, TensorProto]]
"""Weights and their offsets in a file, rising."""

LARGE, PAGE, BLOCK = 1024, 4096, 1 << 24  # bytes
EMBEDDED = 1 << 28  # bytes of external data that are read into the model; more stay in their files
MESSAGE = 2_000_000_000  # bytes that one file takes: protobuf ends at 2**31 - 1
ITEM_BYTES: dict[int, int] = {
    TensorProto.DataType.Value(name): count
    for count, names in (
        (1, ("BOOL", "INT8", "UINT8")),
        (2, ("BFLOAT16", "FLOAT16", "INT16", "UINT16")),
        (4, ("FLOAT", "INT32", "UINT32")),
        (8, ("DOUBLE", "INT64", "UINT64")),
    )
    for name in names
}
"""Bytes of a value, of the types that numpy has, and BFLOAT16."""
NARROW_TYPES: dict[int, Precision] = {
    TensorProto.DataType.Value(name): row for name, row in {**TYPES, **REFUSED}.items()
}
"""ONNX's types of 8 and 4 bits that came after INT8, with the precision of that size."""
ITEM_BITS = {kind: 8 * count for kind, count in ITEM_BYTES.items()}
ITEM_BITS |= {kind: row.width for kind, row in NARROW_TYPES.items()}


def size_of(tensor: TensorProto) -> int:
    """Return the bytes that a tensor's type and shape want, 0 for types of no fixed size."""
    return -(-ITEM_BITS.get(tensor.data_type, 0) * math.prod(map(int, tensor.dims)) // 8)


def bytes_of(path: Path, proto: onnx.ModelProto) -> int:
    """Return the size of a model's file and of the weights that stay in files beside it."""
    outside = filter(uses_external_data, proto.graph.initializer)
    return path.stat().st_size + sum(map(size_of, outside))


def type_name(kind: int | None) -> str:
    """Return ONNX's name of a type in lower case, `unknown` for what is none."""
    known = kind in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(kind)).lower() if known else "unknown"


def quantized_type(node: onnx.NodeProto, constants: Mapping[str, TensorProto]) -> int:
    """Return the type that a QuantizeLinear gives: its zero point's, else what it says, or 0."""
    zero = constants.get(node.input[2]) if len(node.input) > 2 else None
    named = (item.i for item in node.attribute if item.name == "output_dtype")
    return int(next(named, 0) if zero is None else zero.data_type)


def opset_of(proto: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Return the version of the default operator set that is imported, 1 if none is."""
    versions = (item.version for item in proto.opset_import if item.domain in ("", "ai.onnx"))
    return max(versions, default=1)


def is_weight(tensor: TensorProto) -> bool:
    """Tell whether an initializer is large and its bytes lie in one piece."""
    in_one_piece = tensor.HasField("raw_data") or uses_external_data(tensor)
    return in_one_piece and size_of(tensor) >= LARGE


def weights_of(proto: onnx.ModelProto) -> dict[str, TensorProto]:
    """Return the weights of a model by name."""
    return {tensor.name: tensor for tensor in proto.graph.initializer if is_weight(tensor)}


def without_bytes(tensor: TensorProto) -> TensorProto:
    """Return a tensor's name, type and shape alone."""
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def stand_in(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which the weights are inputs of the graph."""
    small = _without_initializers(proto)
    named = {value.name for value in small.graph.input}
    for tensor in proto.graph.initializer:
        if not is_weight(tensor):
            small.graph.initializer.append(tensor)
        elif tensor.name not in named and proto.ir_version > 3:  # up to 3 they must be inputs
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            small.graph.input.append(value)
    return small


def _without_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    small = onnx.ModelProto()
    _copy_fields(proto, small, but="graph")
    _copy_fields(proto.graph, small.graph, but="initializer")
    return small


def refill(entries: Any, kept: Iterable[Any]) -> None:
    """Let a repeated field of a message have these entries, some of its own among them."""
    kept = list(kept)
    del entries[:]
    entries.extend(kept)


def _copy_fields(source: Any, target: Any, but: str) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        else:
            setattr(target, field.name, value)


def array_of(tensor: TensorProto) -> Array:
    """Return a tensor's values, read-only; those in a file are mapped, not read."""
    shape = tuple(tensor.dims)
    is_numpys = tensor.data_type in ITEM_BYTES and tensor.data_type != TensorProto.BFLOAT16
    if not is_numpys or not is_weight(tensor):
        return np.asarray(onnx.numpy_helper.to_array(embedded(tensor)))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
    if uses_external_data(tensor):
        file, offset = _place(tensor)
        return np.memmap(file, dtype, "r", offset, shape)
    return np.frombuffer(tensor.raw_data, dtype).reshape(shape)


def embedded(tensor: TensorProto) -> TensorProto:
    """Return a tensor that holds its bytes itself."""
    if not uses_external_data(tensor):
        return tensor
    whole = without_bytes(tensor)
    whole.raw_data = b"".join(_blocks(tensor))
    return whole


def _place(tensor: TensorProto) -> tuple[Path, int]:
    info = ExternalDataInfo(tensor)
    return Path(info.basepath) / info.location, info.offset or 0


def _blocks(tensor: TensorProto) -> Iterator[bytes]:
    """Yield a weight's bytes; no more than `BLOCK` at a time where they lie in a file."""
    if not uses_external_data(tensor):
        yield tensor.raw_data
        return
    path, offset = _place(tensor)
    left = size_of(tensor)
    with path.open("rb") as file:
        file.seek(offset)
        while left and (block := file.read(min(left, BLOCK))):
            left -= len(block)
            yield block
    if left:
        raise OSError(f"{path} ends before the data of tensor {tensor.name!r} do")


def digest_of(tensor: TensorProto) -> str:
    """Return the digest of a weight's bytes, read in blocks."""
    return digest_blocks(_blocks(tensor))


def load_external(proto: onnx.ModelProto, folder: Path, most: int = EMBEDDED) -> None:
    """Read a model's external data; if they are more than `most` bytes, leave weights in their files.

    `ValueError` or `OSError` if a file is missing or too short.
    """
    outside = [tensor for tensor in tensors_of(proto) if uses_external_data(tensor)]
    leave = sum(map(size_of, outside)) > most
    if leave:
        _constants_to_initializers(proto)
    initializers = len(proto.graph.initializer)  # the tensors that come first
    for number, tensor in enumerate(tensors_of(proto)):
        if not uses_external_data(tensor):
            continue
        if leave and number < initializers and is_weight(tensor):
            _keep_outside(tensor, folder)
        else:
            load_external_data_for_tensor(tensor, str(folder))


def tensors_of(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every constant tensor of a model: of its graph, then of nodes and their subgraphs."""
    yield from proto.graph.initializer
    for node in all_nodes(proto):
        for attribute in node.attribute:
            yield from [attribute.t, *attribute.tensors]
        for part in subgraphs_of(node):
            yield from part.initializer


def all_nodes(proto: onnx.ModelProto) -> Iterator[NodeProto]:
    """Yield every node of a model: of its graph, of subgraphs, of functions."""
    inner = (node for function in proto.functions for node in function.node)
    return with_inner([*proto.graph.node, *inner])


def with_inner(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Yield each node, and after it those of its subgraphs, and of theirs."""
    pending = [*reversed(nodes)]
    while pending:
        node = pending.pop()
        yield node
        for part in subgraphs_of(node):
            pending.extend(reversed(part.node))


def with_attributes(function: onnx.FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
    """Yield a function's nodes with the attributes of a call, or their defaults, in their places."""
    attributes = {item.name: item for item in (*function.attribute_proto, *call.attribute)}
    for node in function.node:
        filled = [_filled(attribute, attributes) for attribute in node.attribute]
        if any(attribute.ref_attr_name for attribute in node.attribute):
            copied = NodeProto()
            copied.CopyFrom(node)
            refill(copied.attribute, (item for item in filled if item is not None))
            node = copied
        yield node


def _filled(
    attribute: onnx.AttributeProto, attributes: Mapping[str, onnx.AttributeProto]
) -> onnx.AttributeProto | None:
    """Return an attribute, or what it refers to under its own name; None if that is not given."""
    if not attribute.ref_attr_name or attribute.ref_attr_name not in attributes:
        return None if attribute.ref_attr_name else attribute
    filled = onnx.AttributeProto()
    filled.CopyFrom(attributes[attribute.ref_attr_name])
    filled.name = attribute.name
    return filled


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute."""
    values = (item for item in node.attribute if item.name == name)
    return next(map(onnx.helper.get_attribute_value, values), default)


def subgraphs_of(node: NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs that a node holds itself, in the order of their attributes' names."""
    for attribute in sorted(node.attribute, key=lambda item: item.name):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _constants_to_initializers(proto: onnx.ModelProto) -> None:
    """Make initializers of large Constant nodes, for only those can stay in their files."""
    for node in list(proto.graph.node):
        values = [item.t for item in node.attribute if item.name == "value"]
        if node.op_type == "Constant" and values and is_weight(values[0]):
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(values[0])
            tensor.name = node.output[0]
            proto.graph.node.remove(node)


def _keep_outside(tensor: TensorProto, folder: Path) -> None:
    info, size = ExternalDataInfo(tensor), size_of(tensor)
    start, length = info.offset or 0, info.length or size
    if length != size or start + size > (folder / info.location).stat().st_size:
        raise ValueError(
            f"its external data do not have the {size} bytes of tensor {tensor.name!r}"
        )
    _refer(tensor, location=info.location, offset=start, length=size, basepath=folder)


def _refer(tensor: TensorProto, **entries: Any) -> None:
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def beside(proto: onnx.ModelProto, location: str) -> tuple[onnx.ModelProto, Placed]:
    """Return the model with its weights in a file beside it, and which weight belongs where there."""
    small, placed, end = _without_initializers(proto), Placed(), 0
    for tensor in proto.graph.initializer:
        if is_weight(tensor):
            start = end + -end % PAGE  # ONNX Runtime maps what begins at a page
            end = start + size_of(tensor)
            placed.append((start, tensor))
            tensor = without_bytes(tensor)
            _refer(tensor, location=location, offset=start, length=end - start)
        small.graph.initializer.append(tensor)
    return small, placed


def write_beside(proto: onnx.ModelProto, path: Path) -> bytes:
    """Write a model's weights to a new file; return the ONNX file that belongs into its folder."""
    small, placed = beside(proto, path.name)
    with path.open("wb") as file:
        file.writelines(_pieces(placed))
    return bytes(small.SerializeToString())


def _pieces(placed: Placed) -> Iterator[bytes]:
    end = 0
    for start, tensor in placed:
        yield bytes(start - end)
        yield from _blocks(tensor)
        end = start + size_of(tensor)


def fits(proto: onnx.ModelProto, most: int = MESSAGE) -> bool:
    """Tell whether a model holds all of its weights and can be written into one file."""
    small, placed = beside(proto, "")
    weights = [tensor for _, tensor in placed]
    size = small.ByteSize() + sum(map(size_of, weights))
    return size <= most and not any(map(uses_external_data, weights))


class OnnxFile:
    """A model as it is written: in one file, or with its weights beside it if it does not fit.

    `weights` is the second file's name, None if there is none. It is made from the digest of its
    bytes: so the model's own digest covers them, and new weights never come under an old model. Who
    writes models with other weights to one path clears up the files of the former ones himself.
    """

    def __init__(self, proto: onnx.ModelProto, most: int = MESSAGE) -> None:
        self.weights: str | None = None
        self.placed: Placed = []
        if not fits(proto, most):
            self.placed = beside(proto, "")[1]
            digest = digest_blocks(_pieces(self.placed)).partition(":")[2]
            self.weights = f"weights-{digest[:32]}.bin"
            proto, _ = beside(proto, self.weights)
        self.data = bytes(proto.SerializeToString(deterministic=True))

    @property
    def digest(self) -> str:
        """Digest of the ONNX file."""
        return digest_bytes(self.data)

    def write(self, path: Path) -> None:
        """Write what there is of the two files, both whole or not at all."""
        with together():
            if self.weights is not None:
                with replacing(path.parent / self.weights) as new, new.open("wb") as file:
                    file.writelines(_pieces(self.placed))
            write_bytes(path, self.data)


def write_onnx(path: Path, proto: onnx.ModelProto, most: int = MESSAGE) -> OnnxFile:
    """Write a model, with its weights beside it if need be, and return what was written."""
    file = OnnxFile(proto, most)
    file.write(path)
    return file
