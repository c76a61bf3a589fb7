"""The layers that TensorRT 8 to 11 is expected to make of a model: a prediction from its graph.

What TensorRT decides by timing (layouts, and kernels that it fuses by chance) is not known before it
builds; the rules here are those that NVIDIA documents, for Q/DQ, fusions and types. A layer list of
TensorRT-RTX shows another compiler's choice. Sources: NVIDIA, TensorRT documentation, "Working with
Quantized Types" (Q/DQ interaction, placement recommendations) and "Layer fusion"; where they say
nothing, the engines that NVIDIA publishes with its engine explorer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx
from onnx import NodeProto

from trtcal.evidence.fusion.matching import WHOLE, find_matches
from trtcal.evidence.fusion.patterns import read_patterns
from trtcal.evidence.layers.layer import FLOATS, UNKNOWN, Layer, TensorInfo, dtype_named
from trtcal.evidence.layers.roofline import Target, find_target
from trtcal.formats import BY_LISTED, ROWS
from trtcal.model.files import attribute_of
from trtcal.model.model import Model
from trtcal.model.ops import (
    ACTIVATIONS,
    ATTENDS,
    CONVOLUTIONS,
    ELEMENTWISE,
    EPILOGUE,
    FREE,
    MOVES,
    MULTIPLIES,
    PICKS,
    QDQ,
    RECURRENT,
    SHAPE_ONLY,
)
from trtcal.model.shapes import UNKNOWN as NOTHING
from trtcal.model.shapes import Shape, Tensor
from trtcal.model.tensors import View
from trtcal.model.work import count_work

POINTWISE = ELEMENTWISE | {
    *("Abs", "Cast", "Cos", "Equal", "Erf", "Exp", "Greater", "Less", "Log", "Max", "Min", "Neg"),
    *("Not", "Pow", "Reciprocal", "Round", "Sign", "Sin", "Sqrt", "Sum", "Where"),
}
KINDS = {
    **dict.fromkeys(POINTWISE, "PointWise"),
    **dict.fromkeys(MOVES, "Shuffle"),
    **dict.fromkeys(FREE, "NoOp"),
    **dict.fromkeys(MULTIPLIES, "Gemm"),
    **dict.fromkeys(CONVOLUTIONS, "Convolution"),
    **dict.fromkeys(RECURRENT, "RNN"),
    **dict.fromkeys(ATTENDS, "Attention"),
    **dict.fromkeys(("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool"), "Pooling"),
    "ConvTranspose": "Deconvolution",
}
PATTERN_KINDS = {"attention": "Attention", "softmax": "Softmax", "layer_norm": "Normalization"}
HEAVY = ("Convolution", "Deconvolution", "Gemm")
QUANTIZED = (*HEAVY, "Attention", "PointWise", "Pooling")
"""Kinds that have INT8 kernels, besides those of what only moves values."""

Scale = tuple[str, bytes]
"""A quantization: the data type, and the bytes of its scale or, where that is computed, its name."""


def predict_layers(
    model: Model,
    target: Target | str = "a100",
    *,
    shapes: Mapping[str, Shape] | None = None,
    version: str = "10",
    strongly_typed: bool = True,
) -> tuple[Layer, ...]:
    """Return the layers that a version of TensorRT is expected to make of a model for a GPU.

    `shapes` are those of its inputs, where they are dynamic. Of a network that is not
    `strongly_typed`, float layers compute in FP16, as `trtexec --best` lets them.
    """
    work = count_work(model, shapes)
    view = View(model)
    gpu = find_target(target) if isinstance(target, str) else target
    return _Writer(_Graph(view, work.tensors), work.by_root, gpu, not strongly_typed).layers()


@dataclass
class _Kernel:
    """Nodes, by number, that one kernel computes; `kind` says what they do."""

    kind: str
    nodes: list[int]
    has_residual: bool = False

    @property
    def last(self) -> int:
        return max(self.nodes)


class _Graph:
    """A graph's nodes as kernels, and which of its tensors are quantized."""

    def __init__(self, view: View, tensors: Mapping[str, Tensor]) -> None:
        self.view, self.tensors = view, tensors
        self.folded = {i for i, node in enumerate(view.nodes) if self._is_folded(node)}
        self.kernels: dict[int, _Kernel] = {}
        self._take_matches()
        for number in sorted(self.kernels, reverse=True):
            if (kernel := self.kernels[number]).kind in HEAVY and number == kernel.last:
                self._extend(kernel)
        for number in sorted(self.kernels):
            if (kernel := self.kernels[number]).kind == "PointWise" and number == kernel.last:
                self._extend(kernel)

    def _is_folded(self, node: NodeProto) -> bool:
        known = (self.tensors.get(name, NOTHING).value is not None for name in node.output)
        return self.view.is_constant(node.output[0]) or all(known) or node.op_type in SHAPE_ONLY

    def _take_matches(self) -> None:
        numbers = {node.name: i for i, node in enumerate(self.view.nodes)}
        for match in find_matches(self.view, read_patterns()):
            if match.state == WHOLE:
                nodes = [numbers[name] for name in match.nodes if numbers[name] not in self.folded]
                self._take(PATTERN_KINDS.get(match.pattern, ""), nodes)
        for number, operator in enumerate(self.view.operators):
            if operator not in QDQ and number not in self.folded | self.kernels.keys():
                self._take("", [number])

    def _take(self, kind: str, nodes: list[int]) -> None:
        kinds = [KINDS.get(self.view.operators[node], self.view.operators[node]) for node in nodes]
        heavy = next((each for each in kinds if each in HEAVY), kinds[-1]) if kinds else ""
        self.kernels |= dict.fromkeys(nodes, _Kernel(kind or heavy, nodes))

    def readers(self, tensor: str) -> list[int]:
        """Return the nodes that read a tensor."""
        return [i for i in self.view.readers.get(tensor, ()) if i not in self.folded]

    def is_shown(self, tensor: str) -> bool:
        """Tell whether a tensor is read by the user, or by a subgraph."""
        return tensor in self.view.outputs or tensor in self.view.held

    def _extend(self, kernel: _Kernel) -> None:
        """Take the light kernels behind one into it, as long as it is all that they wait for."""
        while (following := self._following(kernel)) is not None:
            kernel.has_residual |= any(self._others(kernel, following))
            kernel.nodes.extend(following.nodes)
            self.kernels |= dict.fromkeys(following.nodes, kernel)

    def _following(self, kernel: _Kernel) -> _Kernel | None:
        output = self.view.nodes[kernel.last].output[0]
        readers = {id(self.kernels.get(i)): self.kernels.get(i) for i in self.readers(output)}
        following = next(iter(readers.values()), None) if len(readers) == 1 else None
        if following is None or self.is_shown(output) or following.kind != "PointWise":
            return None
        if kernel.kind in HEAVY:
            operators = {self.view.operators[node] for node in following.nodes}
            others = any(self._others(kernel, following))
            allowed = kernel.kind == "Convolution" and not kernel.has_residual
            if not operators <= EPILOGUE | ACTIVATIONS or (others and not allowed):
                return None
        return None if self._waits(following, kernel) else following

    def _others(self, kernel: _Kernel, following: _Kernel) -> Iterator[str]:
        """Yield what a kernel reads that neither it nor the one before it computes."""
        inside = {*kernel.nodes, *following.nodes}
        for tensor in self.reads(following):
            if not self.view.is_constant(tensor) and self.view.makers.get(tensor) not in inside:
                yield tensor

    def reads(self, kernel: _Kernel) -> list[str]:
        """Return the tensors that a kernel reads and does not compute, in order."""
        nodes = [self.view.nodes[i] for i in sorted(kernel.nodes)]
        made = {name for node in nodes for name in node.output}
        names = [name for node in nodes for name in node.input if name and name not in made]
        return [
            n
            for n in dict.fromkeys(names)
            if self.view.makers.get(self.source(n)) not in kernel.nodes
        ]

    def source(self, tensor: str) -> str:
        """Return the tensor that a DequantizeLinear's output was before it was quantized."""
        while (maker := self.view.maker(tensor)) is not None and self.view.operators[maker] in QDQ:
            tensor = self.view.nodes[maker].input[0]
        return tensor

    def _waits(self, following: _Kernel, kernel: _Kernel) -> bool:
        """Tell whether a kernel waits for another one by a detour."""
        pending, seen, first = [*self._others(kernel, following)], set[str](), min(kernel.nodes)
        while pending:
            tensor = pending.pop()
            maker = self.view.makers.get(tensor)
            if tensor in seen or maker is None or maker in self.folded:
                continue
            seen.add(tensor)
            if maker in kernel.nodes:
                return True
            owner = self.kernels.get(maker)
            nodes = owner.nodes if owner else [maker]
            if max(nodes) > first:
                pending.extend(name for node in nodes for name in self.view.nodes[node].input)
        return False

    def scale(self, node: NodeProto) -> Scale:
        """Return what a Q or DQ node quantizes to."""
        name = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        values = self.view.values(node.input[1])
        return self.dtype(name), values.tobytes() if values is not None else node.input[1].encode()

    def dtype(self, tensor: str) -> str:
        """Return the data type of a tensor in the model."""
        return TYPES.get(self.tensors.get(tensor, NOTHING).kind, UNKNOWN)

    def picks(self, node: NodeProto) -> list[str]:
        """Return the inputs of which a node's outputs have values, none if it computes others."""
        if node.op_type == "Concat":
            return list(node.input)
        is_nearest = attribute_of(node, "mode", b"nearest") in (b"nearest", "nearest")
        picks = node.op_type in PICKS or (node.op_type == "Resize" and is_nearest)
        return list(node.input[:1]) if picks else []

    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor does not depend on the inputs."""
        maker = self.view.makers.get(tensor)
        return self.view.is_constant(tensor) if maker is None else maker in self.folded

    def outputs(self, kernel: _Kernel) -> Iterator[str]:
        """Yield what a kernel computes and others read."""
        for number in sorted(kernel.nodes):
            for name in filter(None, self.view.nodes[number].output):
                readers = self.readers(name)
                is_read = any(i not in kernel.nodes for i in readers) or self.is_shown(name)
                if is_read or (not readers and number == kernel.last):
                    yield name

    def operands(self, kernel: _Kernel) -> set[str]:
        """Return what the nodes of a kernel that multiply read, without biases."""
        nodes = (self.view.nodes[i] for i in kernel.nodes)
        return {name for node in nodes if node.op_type in MULTIPLIES for name in node.input[:2]}

    def keeps(self, computed: Iterable[str], outputs: Iterable[str]) -> bool:
        """Tell whether all that a kernel reads comes quantized, and all that it writes is asked so."""
        return all(n in self.given for n in computed) and all(n in self.requested for n in outputs)

    def is_quantized(
        self, kernel: _Kernel, computed: Sequence[str], outputs: Sequence[str]
    ) -> bool:
        """Tell whether a kernel computes on quantized values, or moves them."""
        if all(self.picks(self.view.nodes[i]) for i in kernel.nodes):
            data = {name for i in kernel.nodes for name in self.picks(self.view.nodes[i])}
            return any(n in self.given for n in data) or any(n in self.requested for n in outputs)
        if kernel.kind in HEAVY:
            operands = self.operands(kernel)
            return bool(operands) and all(n in self.given or self._is_narrow(n) for n in operands)
        return kernel.kind in QUANTIZED and bool(computed) and self.keeps(computed, outputs)

    def _is_narrow(self, tensor: str) -> bool:
        maker = self.view.makers.get(tensor)
        return maker in self.folded and self.view.operators[maker] == "DequantizeLinear"

    @cached_property
    def given(self) -> dict[str, Scale]:
        """The tensors that come quantized: a DQ's output, and what only moves its values."""
        scales: dict[str, Scale] = {}
        for number, node in enumerate(self.view.nodes):
            if number in self.folded:
                continue
            if node.op_type == "DequantizeLinear":
                scales[node.output[0]] = self.scale(node)
            elif passed := {scales.get(name) for name in self.picks(node)}:
                scale = passed.pop()
                if not passed and scale is not None:
                    scales |= dict.fromkeys(node.output, scale)
        return scales

    @cached_property
    def requested(self) -> dict[str, Scale]:
        """The tensors that are read quantized only: by Qs of one scale, through what moves values."""
        scales: dict[str, Scale] = {}
        for number in reversed(range(len(self.view.nodes))):
            for name in self.view.nodes[number].output:
                if name and not self.is_shown(name):
                    read = {
                        self._requested_by(self.view.nodes[i], name, scales)
                        for i in self.readers(name)
                    }
                    scale = read.pop() if len(read) == 1 else None
                    if scale is not None:
                        scales[name] = scale
        return scales

    def _requested_by(
        self, node: NodeProto, tensor: str, scales: Mapping[str, Scale]
    ) -> Scale | None:
        if node.op_type == "QuantizeLinear":
            return self.scale(node)
        return scales.get(node.output[0]) if tensor in self.picks(node) else None


TYPES = {onnx.TensorProto.DataType.Value(row.onnx): row.listed for row in ROWS if row.onnx} | {
    kind: dtype_named(name)
    for name, kind in onnx.TensorProto.DataType.items()
    if dtype_named(name) != UNKNOWN
}
TYPES[onnx.TensorProto.DOUBLE] = "fp32"


LINEAR, CHANNELS = "linear", "channels last"
FEW_CHANNELS = 4
"""Up to so many input channels, FP32 convolutions read and write the linear layout."""


@dataclass
class _Writer:
    """Writes the layers of a graph, with the copies between them; `half` says that floats are FP16."""

    graph: _Graph
    macs: Mapping[str, int | None]
    target: Target
    half: bool
    written: list[Layer] = field(default_factory=list)
    stored: dict[str, TensorInfo] = field(default_factory=dict)
    """The latest copy of each tensor in float."""
    listed: set[int] = field(default_factory=set)

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers in order."""
        view = self.graph.view
        for value in view.proto.graph.input:
            if value.name not in view.constants:
                self._store(
                    value.name, self._info(value.name, self.graph.dtype(value.name), LINEAR)
                )
        kernels = {id(kernel): kernel for kernel in self.graph.kernels.values()}
        for kernel in sorted(kernels.values(), key=lambda kernel: kernel.last):
            self._write(kernel)
        for name in view.outputs & self.graph.given.keys():
            self._dequantize(name, self.graph.dtype(name))
        return tuple(self.written)

    def _info(self, tensor: str, dtype: str, layout: str = "", name: str = "") -> TensorInfo:
        shape = self.graph.tensors.get(tensor, NOTHING).shape or ()
        return TensorInfo(name or tensor, dtype, shape, layout)

    def _write(self, kernel: _Kernel) -> None:
        graph, nodes = self.graph, [self.graph.view.nodes[i] for i in sorted(kernel.nodes)]
        reads = graph.reads(kernel)
        computed = [name for name in reads if not graph.is_constant(name)]
        outputs = list(graph.outputs(kernel))
        moves = all(map(graph.picks, nodes))
        is_narrow = graph.is_quantized(kernel, computed, outputs)
        writes_narrow = is_narrow and (moves or graph.keeps(computed, outputs))
        steps = list[int]()
        dtype = self._computed_in(outputs)
        inputs = [
            self._quantized(name, steps)
            if is_narrow and (moves or writes_narrow or name in graph.operands(kernel))
            else self._as_float(kernel, name, dtype)
            for name in computed
        ]
        constants = [
            self._constant(name, is_narrow, dtype, steps)
            for name in reads
            if graph.is_constant(name)
        ]
        layout = self._layout(kernel, inputs, dtype)
        results = []
        for name in outputs:
            if writes_narrow:
                results.append(self._quantized(name, steps))
                continue
            given = (
                "fp32"
                if is_narrow and graph.dtype(name) == "fp32" and name in graph.view.outputs
                else dtype
            )
            results.append(
                self._info(
                    name, given if graph.dtype(name) in FLOATS else graph.dtype(name), layout
                )
            )
        own = [*kernel.nodes, *(i for i in dict.fromkeys(steps) if i not in self.listed)]
        self.listed |= set(own)
        is_heavy = kernel.kind in HEAVY
        weights = next((c.dtype for c in constants if len(c.shape) > 1), None) if is_heavy else None
        tactic = (
            "tf32"
            if is_heavy and dtype == "fp32" and not is_narrow and self.target.tf32_tflops
            else None
        )
        macs = [self.macs.get(node.name) for node in nodes]
        name = " + ".join(node.name for node in nodes)
        kind = kernel.kind
        if (
            kind == "NoOp"
            and inputs
            and CHANNELS in (inputs[0].format,)
            and math.prod(inputs[0].shape[2:]) > 1
        ):
            kind = "Shuffle"
        listed = tuple(graph.view.nodes[i].name for i in sorted(own))
        total = None if None in macs else sum(filter(None, macs))
        self.written.append(
            Layer(
                name,
                kind,
                tuple(inputs),
                tuple(results),
                tuple(constants),
                tactic,
                listed,
                None,
                weights,
                0,
                total,
            )
        )
        for tensor, result in zip(outputs, results, strict=True):
            if not writes_narrow:
                self._store(tensor, result)

    def _computed_in(self, outputs: Sequence[str]) -> str:
        """Return the float type that a kernel computes in."""
        dtype = self.graph.dtype(outputs[0]) if outputs else UNKNOWN
        return "fp16" if self.half and dtype == "fp32" else dtype

    def _layout(self, kernel: _Kernel, inputs: Sequence[TensorInfo], dtype: str) -> str:
        if kernel.kind in ("Convolution", "Deconvolution"):
            return LINEAR if self._is_linear(inputs, dtype) else CHANNELS
        if kernel.kind in ("Gemm", "Shuffle", "Attention", "NoOp"):
            return LINEAR
        return inputs[0].format if inputs else LINEAR

    def _is_linear(self, inputs: Sequence[TensorInfo], dtype: str) -> bool:
        """Tell whether a convolution in float reads and writes the linear layout."""
        few = bool(inputs) and inputs[0].shape[1:2] <= (FEW_CHANNELS,)
        return dtype == "fp32" and (few or not self.target.tf32_tflops)

    def _store(self, tensor: str, info: TensorInfo) -> None:
        """Note how a tensor is stored, and write the copies that its readers need besides."""
        self.stored[tensor] = info
        graph, view = self.graph, self.graph.view
        if tensor in view.outputs and view.makers.get(tensor) is not None:
            result = self._info(tensor, graph.dtype(tensor), LINEAR)
            is_image = len(info.shape) > 3 and math.prod(info.shape[2:]) > 1
            if result.dtype != info.dtype or (is_image and info.format == CHANNELS):
                self._copy("REFORMAT", (), info, result)
        steps: dict[Scale, list[int]] = {}
        for number in graph.readers(tensor):
            if view.operators[number] == "QuantizeLinear":
                steps.setdefault(graph.scale(view.nodes[number]), []).append(number)
        if not steps and (scale := graph.requested.get(tensor)):
            steps[scale] = []
        for scale, numbers in steps.items():
            name = view.nodes[numbers[0]].output[0] if numbers else f"{tensor} quantized"
            self._copy("QDQ", numbers, info, self._info(tensor, scale[0], CHANNELS, name))

    def _quantized(self, tensor: str, steps: list[int]) -> TensorInfo:
        """Return a tensor as it is stored quantized; `steps` gets the Q/DQ nodes that are fused."""
        graph, view = self.graph, self.graph.view
        scale = graph.requested.get(tensor) or graph.given.get(tensor)
        if scale is None:
            return self._info(tensor, graph.dtype(tensor))
        maker = view.makers.get(tensor)
        if maker is not None and view.operators[maker] == "DequantizeLinear":
            steps.append(maker)
            return self._info(tensor, scale[0], CHANNELS, view.nodes[maker].input[0])
        readers = (i for i in graph.readers(tensor) if view.operators[i] == "QuantizeLinear")
        fused = [i for i in readers if graph.scale(view.nodes[i]) == scale]
        steps.extend(fused)
        name = view.nodes[fused[0]].output[0] if fused else tensor
        return self._info(tensor, scale[0], CHANNELS, name)

    def _as_float(self, kernel: _Kernel, tensor: str, dtype: str) -> TensorInfo:
        """Return a tensor as a kernel reads it that computes in float; write the copy that it needs."""
        own = self.graph.dtype(tensor)
        wanted = dtype if own in FLOATS and dtype in FLOATS and self.half else own
        if tensor in self.graph.given:
            return self._dequantize(tensor, wanted)
        info = self.stored.get(tensor) or self._info(tensor, wanted, LINEAR)
        is_conv = kernel.kind in ("Convolution", "Deconvolution")
        layout = CHANNELS if is_conv and not self._is_linear([info], dtype) else info.format
        result = replace(info, dtype=wanted if info.dtype in FLOATS else info.dtype, format=layout)
        if result != info:
            self._copy("REFORMAT", (), info, result)
            self.stored[tensor] = result
        return result

    def _dequantize(self, tensor: str, dtype: str) -> TensorInfo:
        if tensor not in self.stored:
            steps = list[int]()
            source = self._quantized(tensor, steps)
            self.stored[tensor] = self._info(tensor, dtype, CHANNELS)
            self._copy(
                "QDQ", [i for i in steps if i not in self.listed], source, self.stored[tensor]
            )
        return self.stored[tensor]

    def _constant(self, tensor: str, is_narrow: bool, dtype: str, steps: list[int]) -> TensorInfo:
        """Return a constant as it is stored; `steps` gets the Q/DQ nodes that it passes."""
        view, name = self.graph.view, tensor
        own = self.graph.dtype(tensor)
        stored = dtype if own in FLOATS and dtype in FLOATS else own
        while (maker := view.makers.get(name)) is not None and view.operators[maker] in QDQ:
            narrow = self.graph.scale(view.nodes[maker])[0]
            if is_narrow or (narrow in BY_LISTED and BY_LISTED[narrow].named_by_weights):
                stored = narrow
            steps.append(maker)
            name = view.nodes[maker].input[0]
        return self._info(tensor, stored, "", name)

    def _copy(
        self, origin: str, numbers: Sequence[int], source: TensorInfo, result: TensorInfo
    ) -> None:
        self.listed |= set(numbers)
        nodes = tuple(self.graph.view.nodes[i].name for i in numbers)
        name = nodes[0] if nodes else f"copy of {source.name}"
        self.written.append(Layer(name, "Reformat", (source,), (result,), (), None, nodes, origin))
