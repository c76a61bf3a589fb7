"""Write Q/DQ into the ONNX: int8, zero point 0, scales as constants, one pair a tensor."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.documents import canonical_json
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import InputError, some
from trtcal.formats import BY_OPERATOR, FORMATS, NARROW, WEIGHTS_ONLY
from trtcal.model import Model, checked
from trtcal.model.cut import metadata_of
from trtcal.model.files import OnnxFile, quantized_type, write_onnx
from trtcal.model.graph import GraphWriter, constant, export_model, import_graph, is_fp16
from trtcal.model.model import Overrides
from trtcal.model.ops import CARRIES, MULTIPLIES
from trtcal.model.passes import raised
from trtcal.model.passes.base import NotApplicable
from trtcal.quantization.blocks import least_scale, padded, scale_step
from trtcal.quantization.fp16 import Values
from trtcal.quantization.fp16_subgraphs import Fp16Subgraphs, make_fp16_subgraphs
from trtcal.quantization.placement import Placement, find_layers
from trtcal.quantization.plan import Decision, Plan, decide
from trtcal.quantization.propagate import is_unpadded, propagate
from trtcal.quantization.weighted_ops import Layer, Weight, block_axis, set_bias, without_kernel
from trtcal.quantization.weights import Scale, as_scale, nearest, step_above
from trtcal.ranges import Calibration

METADATA = "trtcal.quantization"
NONE = "none"  # what a record says of a calibration where weights alone are quantized
Names = dict[str, str]
BY_TYPE = {onnx.TensorProto.DataType.Value(row.onnx): name for name, row in FORMATS.items()}


@dataclass(frozen=True)
class QuantizedModel(Shown):
    """An ONNX model with Q/DQ; `asked` is the precision that every layer asks a compiler for.

    `skipped` gives the reason for every layer that did not get the precision that the plan asks
    for, `excluded` the name or rule of the plan that keeps a layer in float, and its reason.
    `unused` says of layers why their optimizations do not fit the plan.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> quantized = quantize(digits, calibrate(digits, data))
    >>> quantized.asked["stem/conv"]
    'int8'
    """

    proto: onnx.ModelProto
    asked: dict[str, str]
    skipped: dict[str, str]
    excluded: dict[str, str] = field(default_factory=dict)
    fp16_subgraphs: Fp16Subgraphs = field(default_factory=Fp16Subgraphs)
    unused: dict[str, str] = field(default_factory=dict)

    def overview(self) -> Overview:
        """Return how many layers ask for which precision, and those left in float with the reason."""
        counts = Counter(self.asked.values()).most_common()
        parts = ", ".join(f"{count} in {name}" for name, count in counts)
        left = {name: f"the plan: {why}" for name, why in self.excluded.items()} | self.skipped
        facts = [f"{len(left)} left in float: {some(left)}"] if left else []
        columns = {"left in float": "{0}", "why": "{1}"}
        title = f"Quantized model {self.proto.graph.name!r}, layers: {parts}"
        return Overview(title, facts, things=left.items(), columns=columns)

    @property
    def is_quantized(self) -> bool:
        """Whether any layer that multiplies asks for a narrow precision."""
        return not set(NARROW).isdisjoint(self.asked.values())

    @property
    def digest(self) -> str:
        """Digest of the ONNX file that `write_quantized` writes; it covers weights beside it.

        The same model, calibration and plan give the same one.
        """
        return OnnxFile(self.proto).digest


def quantize(
    model: Model, calibration: Calibration | None, plan: Plan | None = None
) -> QuantizedModel:
    """Return the prepared `model` with Q/DQ where `plan` (all INT8 if None) asks for it.

    Without a calibration, the plan may ask for formats of weights alone. `InputError` if the
    calibration is missing or belongs to another model, the plan names an unknown layer, or there is
    nothing to quantize.
    """
    plan = (plan or Plan()).of(model.proto)
    ranges = _ranges_of(model, calibration, plan)
    model = in_opset_of(model, plan)
    graph = import_graph(model.proto)
    placement = find_layers(model, not plan.asked.isdisjoint(NARROW), graph)
    decisions = decide(plan, graph, placement)
    writer = _Writer(graph, ranges, placement, plan, model.overrides)
    chosen, skipped = _choose(graph, placement, decisions, writer)
    unused = {layer.name: why for layer, form in chosen if (why := writer.unfit(layer, form))}
    writer.overrides = model.overrides.without(unused)
    for layer, precision in chosen:
        writer.write(layer, precision)
    names = {layer.name: precision for layer, precision in chosen}
    fp16_subgraphs = Fp16Subgraphs()
    if "fp16" in plan.asked:
        observed = {name: item.observed_amax for name, item in ranges.ranges.items()}
        quantized = [name for name, precision in names.items() if precision not in WEIGHTS_ONLY]
        observed |= ranges.peaks
        for (source, *_), result in writer.padded.items():
            observed |= {result.name: observed[source]} if source in observed else {}
        values = Values(observed, bool(ranges.peaks))
        fp16_subgraphs = make_fp16_subgraphs(graph, decisions, quantized, values, plan.floats)
        skipped |= fp16_subgraphs.skipped
    done = {layer.name: writer.precision(layer) for layer in placement.layers} | names
    choices = {layer.name: decisions[layer.name] for layer in placement.layers}
    excluded = {
        name: str(decision)
        for name, decision in choices.items()
        if decision.precision not in NARROW and not decision.is_default
    }
    proto = checked(replace(model, proto=export_model(graph, model.proto))).proto
    precisions = {n: done.get(n, precision) for n, precision in asked_precisions(proto).items()}
    result = QuantizedModel(proto, precisions, skipped, excluded, fp16_subgraphs, unused)
    _describe(result, ranges, plan, done, model.overrides.moved)
    return result


def in_opset_of(model: Model, plan: Plan) -> Model:
    """Return the model in the opset of the plan; what fp16 alone wants it may do without."""
    try:
        return raised(model, plan.opset)
    except NotApplicable as error:
        formats = plan.asked.intersection(NARROW) - {"int8"}
        if not formats:
            return model
        asked = ", ".join(sorted(formats))
        what = f"the plan asks for {asked}, which need opset {plan.opset}: {error}"
        hint = f"export the model with opset {plan.opset} or later"
        raise InputError(what, hint) from error


def _choose(
    graph: gs.Graph, placement: Placement, decisions: Mapping[str, Decision], writer: _Writer
) -> tuple[list[tuple[Layer, str]], dict[str, str]]:
    """Return the layers to quantize with their precision, and why others that the plan asks are not.

    Light nodes follow the INT8 layers around them unless the plan decides on them.
    """
    precisions = {name: decision.precision for name, decision in decisions.items()}
    narrow = {name: form for name, form in precisions.items() if form in NARROW}
    skipped = {name: why for name, why in placement.refused.items() if name in narrow}
    layers = [layer for layer in placement.layers if layer.name in narrow]
    layers = [layer for layer in layers if narrow[layer.name] == "int8" or layer.op in MULTIPLIES]
    optional = [layer for layer in placement.optional if layer.name in narrow]
    layers += [layer for layer in optional if not decisions[layer.name].is_default]
    pairs = [(layer.name, writer.missing(layer, narrow[layer.name])) for layer in layers]
    reasons = {name: why for name, why in pairs if why}
    free = (layer for layer in layers if decisions[layer.name].is_default)
    lacked = (layer for layer in free if layer.op in writer.plan.without)
    reasons |= {layer.name: f"no target has an INT8 kernel for {layer.op}" for layer in lacked}
    _check_wishes(reasons, decisions)
    able = [layer for layer in layers if layer.name not in reasons]
    skipped |= reasons | _too_narrow(graph, able, decisions)
    chosen = [(layer, narrow[layer.name]) for layer in layers if layer.name not in skipped]
    for layer in propagate(graph, [layer for layer, precision in chosen if precision == "int8"]):
        is_free = decisions[layer.name].is_default or narrow.get(layer.name) == "int8"
        if is_free and not writer.missing(layer, "int8"):
            chosen.append((layer, "int8"))
    return chosen, skipped


def _check_wishes(reasons: Mapping[str, str], decisions: Mapping[str, Decision]) -> None:
    """`InputError` if a plan names a layer for a format of weights that has no place in it."""
    for name, why in reasons.items():
        if decisions[name].by == "name" and decisions[name].precision in WEIGHTS_ONLY:
            what = f"the plan asks for {decisions[name].precision} in layer {name!r}: {why}"
            hint = "give the layer another precision; `trtcal plan show` lists the layers"
            raise InputError(what, hint)


NARROW_CHANNELS = 16  # FP8 tensor cores multiply 32 values at a time


def _too_narrow(
    graph: gs.Graph, layers: Sequence[Layer], decisions: Mapping[str, Decision]
) -> dict[str, str]:
    """Return why layers of few channels stay out of FP8, unless a plan names them or all are such.

    Kernels pad the channels of a group (TensorRT-RTX 1.7.1 writes four times those of a depthwise
    convolution), and three bits of mantissa lose most where few values are added up: in MobileNetV2 the
    depthwise convolutions make nearly all of the noise, in a vision transformer the first layer.
    Source: NVIDIA, ModelOpt 0.47, whose FP8 kernels of at most 16 channels are slower than FP16.
    """
    nodes = {node.name: node for node in graph.nodes}
    reasons = {}
    for layer in layers:
        decision, form = decisions[layer.name], FORMATS[decisions[layer.name].precision]
        values = layer.values(nodes[layer.name])
        if values is None or not (form.needs_ranges and form.is_float and decision.is_default):
            continue
        if (channels := min(values.shape[:2])) <= NARROW_CHANNELS:
            what = f"loses much and saves little on {channels} channels"
            reasons[layer.name] = f"{form.label} {what}"
    return reasons if len(reasons) < len(layers) else {}


def _ranges_of(model: Model, calibration: Calibration | None, plan: Plan) -> Calibration:
    """Return what is known of activations; `InputError` if it is of another model, or too little."""
    if calibration is not None and model.fingerprint != calibration.model:
        ours, theirs = f"{model.path} ({model.fingerprint[:19]}…)", f"({calibration.model[:19]}…)"
        what = f"the calibration is for another model {theirs} than {ours}"
        raise InputError(what, "calibrate this model: the ranges of another model do not fit")
    if calibration is None and plan.ranged:
        asked, weights = (" and ".join(names) for names in (plan.ranged, WEIGHTS_ONLY))
        raise InputError(
            f"the plan asks for {asked}, and there is no calibration with the ranges of activations",
            f"give the calibration.json of `trtcal calibrate`; {weights} alone need none",
        )
    return calibration or without_ranges(model)


def without_ranges(model: Model) -> Calibration:
    """Return a calibration of nothing, for plans that quantize weights only."""
    return Calibration(NONE, {}, model.fingerprint, NONE, 0, NONE, {}, {})


class _Writer(GraphWriter):
    """Puts Q/DQ pairs into one graph and remembers those that it has."""

    def __init__(
        self, graph: gs.Graph, ranges: Calibration, places: Placement, plan: Plan, own: Overrides
    ) -> None:
        super().__init__(graph)
        self.calibration, self.placement, self.plan, self.overrides = ranges, places, plan, own
        self.nodes = {node.name: node for node in graph.nodes}
        self.pairs: dict[tuple[str, bool, str], gs.Variable] = {}  # by tensor; is it the second one
        self.weights: dict[tuple[Any, ...], gs.Variable] = {}
        self.padded: dict[tuple[str, int, int], gs.Variable] = {}  # by tensor, axis and zeros

    def missing(self, layer: Layer, precision: str) -> str | None:
        """Return why a layer cannot be quantized: the format has no place, or no range, for it."""
        if precision != "int8" and layer.op not in MULTIPLIES:
            return f"{precision} is for layers that multiply; this one follows its neighbours"
        if precision in WEIGHTS_ONLY:
            return self._without_block(layer, precision) or self._too_small(layer, precision)
        form = FORMATS[precision]
        if form.is_float:
            why = without_kernel(self.nodes[layer.name], form) or self._too_small(layer, precision)
            if why:
                return why
        for name in map(self.placement.range_of, layer.activations.values()):
            if name not in self.calibration.ranges:
                why = self.calibration.unranged.get(name, "it was not observed")
                return f"tensor {name!r} has no range: {why}"
            if not form.is_float and not self.calibration.ranges[name].is_for_int8:
                return f"the range of tensor {name!r} is for FP8 alone"
        return None

    def _block(self, layer: Layer, precision: str) -> int | None:
        """Return the block size for a layer: the plan's, a smaller one, or the least if none divides.

        Where none divides its matrix, the last block of each column is filled up with zeros.
        TensorRT-RTX 1.7 expands a matrix that is one block high in a kernel of its own: two are sought.
        It refuses a matrix of one block in all: `ScaleMode is illegal`.
        """
        axis = block_axis(self.nodes[layer.name])
        if axis is None or layer.weight is None:
            return None
        shape = self.nodes[layer.name].inputs[1].shape
        summed, weights = shape[axis], math.prod(shape)
        known = [size for size in FORMATS[precision].blocks if size <= self.plan.block_size]
        sizes = [size for size in known if summed % size == 0 and size < weights]
        sizes = sizes or [size for size in known[-1:] if size < summed and size < weights]
        return next((size for size in sizes if size < summed), sizes[0] if sizes else None)

    def _without_block(self, layer: Layer, precision: str) -> str | None:
        """Return why no block size fits a layer's weights, None if one does."""
        node, blocks = self.nodes[layer.name], FORMATS[precision].blocks
        axis = block_axis(node)
        if self._block(layer, precision):
            return None
        if axis is None or layer.weight is None:
            return f"{precision} is for the constant matrix of a MatMul or Gemm"
        if math.prod(node.inputs[1].shape) in blocks:
            return f"{precision} takes two blocks of weights or more, and this matrix is one"
        sizes, summed = " or ".join(map(str, sorted(blocks))), node.inputs[1].shape[axis]
        return f"{precision} takes blocks of {sizes} weights, and this matrix has {summed} summed"

    def _too_small(self, layer: Layer, precision: str) -> str | None:
        """Return why a weight has no scale: what is below the smallest one becomes zero."""
        values = layer.values(self.nodes[layer.name])
        amax = 0.0 if values is None else float(np.abs(values).max(initial=0))
        least = least_scale(FORMATS[precision]) * FORMATS[precision].top
        sizes = f"at most {amax:.3g}, less than {least:.3g}"
        is_lost = 0 < amax < least
        return f"its weights are too small for {precision}: {sizes}" if is_lost else None

    def unfit(self, layer: Layer, precision: str) -> str | None:
        """Return why a layer's optimizations do not fit a precision, None if they do or if none are."""
        known, grid = self.overrides.precision(layer.name), self.overrides.weights.get(layer.name)
        if known not in (None, precision):
            return f"its optimizations are for {known}, not {precision}"
        size = self._block(layer, precision)
        if grid is None or size is None or grid.scale.size * size == grid.values.size:
            return None
        return f"its optimized weights are not in blocks of {size}"

    def write(self, layer: Layer, precision: str) -> None:
        """Quantize a layer's inputs."""
        node = self.nodes[layer.name]
        second = precision == "int8" and layer.name in self.plan.second_qdq
        if (bias := self.overrides.biases.get(layer.name)) is not None:
            set_bias(node, self.new_constant(f"{node.name}/bias", bias))
        for index in layer.activations if precision not in WEIGHTS_ONLY else ():
            node.inputs[index] = self._activation(node.inputs[index], second, precision)
        if layer.op == "AveragePool" and is_unpadded(node):
            node.attrs["count_include_pad"] = 1  # no difference here, but TensorRT-RTX wants it
        if layer.weight:
            self._pad(node, self._block(layer, precision))
            node.inputs[layer.weight.index] = self._weight(node, layer, layer.weight, precision)

    def precision(self, layer: Layer) -> str:
        """Return what a layer computes in without Q/DQ."""
        return "fp16" if is_fp16(self.nodes[layer.name]) else "fp32"

    def _activation(self, tensor: gs.Variable, second: bool, precision: str) -> gs.Variable:
        key = (tensor.name, second, precision)
        if key not in self.pairs:
            chosen = self.calibration.ranges[self.placement.range_of(tensor.name)]
            scale = as_scale(chosen.scale_in(precision), tensor.dtype or np.float32)
            before = self._activation(tensor, False, precision) if second else tensor
            scale = _scale_above(tensor.name, scale) if second else scale
            dtype = FORMATS[precision].dtype
            parameters = self._parameters(tensor.name, scale, dtype)
            quantized = self.new_variable(f"{tensor.name}/quantized", dtype, tensor)
            name = f"{quantized.name.rpartition('/')[0]}/quantize"
            self.new_node("QuantizeLinear", name, [before, *parameters], quantized)
            self.pairs[key] = self._dequantized(tensor, quantized, parameters, {})
        return self.pairs[key]

    def _pad(self, node: gs.Node, size: int | None) -> None:
        """Put as many zeros behind the first input of a matrix as blocks of `size` add to its rows."""
        axis = block_axis(node)
        if size is None or axis is None or not (more := -node.inputs[1].shape[axis] % size):
            return
        tensor, summed = node.inputs[0], 0 if node.attrs.get("transA") else -1
        key = (tensor.name, summed, more)
        if key not in self.padded:
            result = self.new_variable(f"{tensor.name}/padded", tensor.dtype, tensor)
            if tensor.shape is not None:
                result.shape = list(tensor.shape)
                result.shape[summed] = node.inputs[1].shape[axis] + more
            counts = self.new_constant(f"{result.name}/counts", np.array([0, more]))
            axes = self.new_constant(f"{result.name}/axes", np.array([summed]))
            inputs = [tensor, counts, gs.Variable.empty(), axes]
            self.padded[key] = self.new_node("Pad", f"{result.name}/pad", inputs, result)
        node.inputs[0] = self.padded[key]

    def _weight(self, node: gs.Node, layer: Layer, place: Weight, precision: str) -> gs.Variable:
        tensor, optimized = node.inputs[place.index], self.overrides.weights.get(layer.name)
        size = self._block(layer, precision)
        axis = place.axis if FORMATS[precision].by_channel else block_axis(node) if size else None
        key = (tensor.name, precision, axis, id(optimized) if optimized else None)
        if key not in self.weights:
            values = np.asarray(constant(tensor))
            if size is not None and axis is not None:
                values = padded(values, axis, size)
            grid = optimized or nearest(values, precision, axis, size)
            stored = self.new_constant(f"{tensor.name}/{precision}", grid.values)
            attributes = {} if axis is None else {"axis": axis}
            if size is None:
                parameters = self._parameters(tensor.name, grid.scale, grid.values.dtype)
            else:
                attributes["block_size"] = size
                parameters = [self._block_scales(tensor, grid.scale, precision, values.dtype)]
            self.weights[key] = self._dequantized(tensor, stored, parameters, attributes)
        return self.weights[key]

    def _block_scales(
        self, tensor: gs.Constant, scales: Scale, precision: str, dtype: Any
    ) -> gs.Tensor:
        """Return the scales of blocks: constants, or quantized and dequantized themselves."""
        name, form = f"{tensor.name}/scale", FORMATS[precision]
        if form.scales is None:
            return self.new_constant(name, scales.astype(dtype))
        step = np.asarray(scale_step(scales, form), dtype)
        stored = self.new_constant(name, FORMATS[form.scales].rounded(scales / np.float32(step)))
        parameters = [self.new_constant(f"{tensor.name}/scale_step", step)]
        return self._dequantized(stored, stored, parameters, {})

    def _parameters(self, name: str, scale: Scale, dtype: Any) -> list[gs.Constant]:
        return [
            self.new_constant(f"{name}/scale", scale),
            self.new_constant(f"{name}/zero_point", np.zeros(scale.shape, dtype)),
        ]

    def _dequantized(
        self, tensor: gs.Tensor, quantized: gs.Tensor, parameters: list[gs.Tensor], attributes: Any
    ) -> gs.Variable:
        result = self.new_variable(f"{tensor.name}/dequantized", parameters[0].dtype, quantized)
        name = f"{result.name.rpartition('/')[0]}/dequantize"
        return self.new_node("DequantizeLinear", name, [quantized, *parameters], result, attributes)


def _scale_above(tensor: str, scale: Scale) -> Scale:
    above = step_above(scale)
    if above is None:
        what = f"tensor {tensor!r} has no second scale: float16 is too coarse at {float(scale):.3g}"
        raise InputError(what, "remove its readers from `second_qdq` of the plan")
    return above


def _describe(
    result: QuantizedModel, calibration: Calibration, plan: Plan, done: Names, moved: Iterable[str]
) -> None:
    """Record in the model what was asked of it, so that a later command needs nothing else."""
    record: dict[str, Any] = {
        "model": calibration.model,
        "calibration": NONE if calibration.method == NONE else calibration.digest,
        "method": calibration.method,
        "plan": plan.to_document()["digest"],
        "layers": done,
        "skipped": result.skipped,
    }
    if calibration.sample_digests:
        record["samples"] = calibration.sample_digests
    if result.excluded:
        record["excluded"] = result.excluded
    if moved:
        record["moved"] = sorted(moved)
    if calibration.sizes:
        record["sizes"] = calibration.sizes
    if "fp16" in plan.asked:
        record["fp16_subgraphs"] = asdict(result.fp16_subgraphs)
    metadata = metadata_of(result.proto)
    metadata.pop(METADATA, None)  # of the model that it was made from
    metadata[METADATA] = canonical_json(record).decode()
    onnx.helper.set_model_props(result.proto, metadata)


def write_quantized(path: Path, quantized: QuantizedModel) -> OnnxFile:
    """Write the ONNX file, and beside it the weights of a model that is too large for one file."""
    return write_onnx(path, quantized.proto)


def asked_precisions(proto: onnx.ModelProto) -> dict[str, str]:
    """Return node -> precision for the heavy nodes of any model, read off its Q/DQ and its types.

    A node is asked in a narrow precision if one of its two operands comes from a DQ node, so that
    models quantized by other tools are understood too, and one-sided Q/DQ, which compilers run in
    float, is found.
    """
    dequantized, fp16 = dequantized_types(proto), fp16_tensors(proto.graph)

    def precision(node: onnx.NodeProto) -> str:
        narrow = [dequantized[name] for name in node.input[:2] if name in dequantized]
        if narrow:
            return narrow[-1]  # the weight's, where only that is in four bits
        return "fp32" if fp16.isdisjoint((*node.input, *node.output)) else "fp16"

    heavy = (node for node in proto.graph.node if node.op_type in MULTIPLIES)
    return {node.name: precision(node) for node in heavy}


def dequantized_types(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the precision of every tensor that a DQ node gives, INT8 for other integers.

    Weights in four bits may be cast or moved before they are multiplied, as other tools write them.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    types = {name: tensor.data_type for name, tensor in constants.items()}
    precisions = dict[str, str]()
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            types[node.output[0]] = quantized_type(node, constants)
        elif node.op_type == "DequantizeLinear":
            precisions[node.output[0]] = BY_TYPE.get(types.get(node.input[0], 0), "int8")
        elif node.op_type in BY_OPERATOR:
            precisions[node.output[0]] = BY_OPERATOR[node.op_type]
        elif node.op_type in CARRIES and precisions.get(node.input[0]) in WEIGHTS_ONLY:
            precisions[node.output[0]] = precisions[node.input[0]]
    return precisions


def fp16_tensors(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that are float16, as far as types are stated."""
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT16}


def in_fp16_already(model: Model, plan: Plan) -> list[str]:
    """Return the nodes that a plan names to be in fp32, but that are float16 in the model itself."""
    named = {name for name, precision in plan.layers.items() if precision == "fp32"}
    narrow = fp16_tensors(model.proto.graph)
    nodes = (node for node in model.proto.graph.node if node.name in named)
    return [node.name for node in nodes if not narrow.isdisjoint(node.output)]


def quantization_record(proto: onnx.ModelProto) -> dict[str, Any]:
    """Return what `quantize` recorded in a model, {} if it did not make it."""
    return record_in(metadata_of(proto))


def record_in(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what `quantize` recorded in a model's metadata, {} if that is not there."""
    try:
        record = json.loads(metadata.get(METADATA, "{}"))
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def provenance(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a record that says where a model came from: method, calibration, plan.

    Without a calibration, which would name it, also the fingerprint of the model.
    """
    keys = ("method", "calibration", "plan", *(["model"] if record.get("method") == NONE else []))
    return {key: record[key] for key in keys if key in record}
