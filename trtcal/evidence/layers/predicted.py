"""The layers that TensorRT 8 to 11 is expected to make of a model: a prediction from its graph.

What TensorRT decides by timing (layouts, kernels that it fuses by chance) is known only when it has
built; the rules here are those that NVIDIA documents for Q/DQ, fusions and types. A layer list of
TensorRT-RTX shows another compiler's choice. Sources: NVIDIA, TensorRT documentation, "Working with
Quantized Types" (Q/DQ interaction, placement recommendations) and "Layer fusion"; where they say
nothing, the layer lists that NVIDIA publishes with its engine explorer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import NodeProto

from trtcal.evidence.fusion.matching import WHOLE, find_matches
from trtcal.evidence.fusion.patterns import read_patterns
from trtcal.evidence.layers.layer import FLOATS, UNKNOWN, Layer, TensorInfo, dtype_named
from trtcal.evidence.layers.roofline import Target, capability_of
from trtcal.formats import BY_LISTED, FORMATS
from trtcal.model.files import attribute_of
from trtcal.model.model import Model
from trtcal.model.ops import (
    ACTIVATIONS,
    ATTENDS,
    CONVOLUTIONS,
    CUTS,
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
    "Softmax": "Softmax",
    "LayerNormalization": "Normalization",
}
COMPILED = ("PointWise", "Softmax", "Normalization", "Reduction")
"""Kinds that TensorRT's compiler (Myelin) joins in chains, with the Q/DQ around them."""
FIRST_COMPILED = 9
"""The major version from which networks of products are compiled, and attention is one kernel."""
PATTERN_KINDS = {"attention": "Attention", "softmax": "Softmax", "layer_norm": "Normalization"}
HEAVY = ("Convolution", "Deconvolution", "Gemm", "Attention")
QUANTIZED = (*HEAVY, "PointWise", "Pooling")
"""Kinds that have INT8 kernels, besides those of what only moves values."""
FIRST_WITH_TF32 = 80
"""The compute capability, times 10, from which FP32 products use TF32."""
FEW_CHANNELS = 4
"""Up to so many input channels, FP32 convolutions read and write the linear layout."""
LINEAR, CHANNELS, VECTORS = (
    "Row major linear",
    "Channel major",
    "Thirty-two wide channel vectorized",
)
LAYOUTS = (LINEAR, CHANNELS)


def kind_of(operator: str) -> str:
    """Return the kind of a kernel that computes one operator."""
    return KINDS.get(operator, "Reduction" if operator.startswith("Reduce") else operator)


TYPES = {kind: dtype_named(name) for name, kind in onnx.TensorProto.DataType.items()}
TYPES |= {onnx.TensorProto.DataType.Value(row.onnx): row.listed for row in FORMATS.values()}
TYPES[onnx.TensorProto.DOUBLE] = "fp32"

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
    network = _Network(View(model), work.tensors, int(version.partition(".")[0]))
    return _Writer(network, work.by_root, _has_tf32(target), not strongly_typed).layers()


def _has_tf32(target: Target | str) -> bool:
    if isinstance(target, Target):
        return target.tf32_tflops is not None
    number = (capability_of(target) or target).removeprefix("sm")
    return not number.isdigit() or int(number) >= FIRST_WITH_TF32


@dataclass(frozen=True)
class _Read:
    """A tensor, and the Q/DQ nodes through which it is read, the last first, with their scale."""

    tensor: str
    scale: Scale | None = None
    steps: tuple[int, ...] = ()


@dataclass(eq=False)
class _Kernel:
    """Nodes, by number, that one kernel computes; `kind` says what they do."""

    kind: str
    nodes: list[int]
    has_residual: bool = False


class _Network:
    """A graph as kernels, with Q/DQ nodes taken for the way in which tensors are read."""

    def __init__(self, view: View, tensors: Mapping[str, Tensor], version: int) -> None:
        self.view, self.tensors = view, tensors
        self.folded = {i for i, node in enumerate(view.nodes) if self._is_folded(node)}
        self.reads: dict[int, list[_Read]] = {}
        self.uses: dict[str, list[tuple[int | None, _Read]]] = {}
        for number, node in enumerate(view.nodes):
            if number not in self.folded and view.operators[number] not in QDQ:
                self.reads[number] = [self.read(name) for name in node.input if name]
                for read in self.reads[number]:
                    self.uses.setdefault(read.tensor, []).append((number, read))
        for read in map(self.read, (*view.outputs, *view.held)):
            self.uses.setdefault(read.tensor, []).append((None, read))
        self.given, self.requested = dict(self._given()), self._requested()
        self.kernels: dict[int, _Kernel] = {}
        counts = Counter(KINDS.get(view.operators[i]) for i in self.reads)
        is_new = version >= FIRST_COMPILED
        self.is_compiled = is_new and counts["Gemm"] > counts["Convolution"]
        self._group([] if is_new else ["attention"])

    def _is_folded(self, node: NodeProto) -> bool:
        known = (self.tensors.get(name, NOTHING).value is not None for name in node.output)
        return self.view.is_constant(node.output[0]) or all(known) or node.op_type in SHAPE_ONLY

    def read(self, tensor: str) -> _Read:
        """Return the tensor from which Q/DQ nodes make one, and how."""
        steps, scale = list[int](), None
        while (maker := self.view.maker(tensor)) is not None and self.view.operators[maker] in QDQ:
            node = self.view.nodes[maker]
            scale = scale or self._scale(node)
            steps.append(maker)
            tensor = node.input[0]
        return _Read(tensor, scale, tuple(steps))

    def _scale(self, node: NodeProto) -> Scale:
        values = self.view.values(node.input[1])
        narrow = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        return self.dtype(narrow), node.input[1].encode() if values is None else values.tobytes()

    def dtype(self, tensor: str) -> str:
        """Return the data type of a tensor in the model."""
        return TYPES.get(self.tensors.get(tensor, NOTHING).kind, UNKNOWN)

    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor does not depend on the inputs."""
        maker = self.view.makers.get(tensor)
        return self.view.is_constant(tensor) if maker is None else maker in self.folded

    def picked(self, number: int) -> list[_Read]:
        """Return the reads of which a node's outputs have values, none if it computes others."""
        node = self.view.nodes[number]
        is_nearest = attribute_of(node, "mode", b"nearest") in (b"nearest", "nearest")
        picks = node.op_type in PICKS or (node.op_type == "Resize" and is_nearest)
        return self.reads[number][: None if node.op_type == "Concat" else 1] if picks else []

    def scale_of(self, read: _Read) -> Scale | None:
        """Return the scale that a tensor is read with, which may come from before what moved it."""
        return read.scale or self.given.get(read.tensor)

    def _given(self) -> Iterator[tuple[str, Scale]]:
        """Yield the tensors that come quantized, as DQs are moved behind what only moves values."""
        self.given: dict[str, Scale] = {}
        for number in self.reads:
            scales = {self.scale_of(read) for read in self.picked(number)}
            if len(scales) == 1 and (scale := scales.pop()) is not None:
                self.given |= dict.fromkeys(self.view.nodes[number].output, scale)
        yield from self.given.items()

    def _requested(self) -> dict[str, Scale]:
        """Return the tensors that are only read quantized, as Qs are moved before what moves values."""
        requested: dict[str, Scale] = {}
        for number in reversed(self.reads):
            for name in self.view.nodes[number].output:
                scales = {self._asked(*use, requested) for use in self.uses.get(name, ())}
                if len(scales) == 1 and (scale := scales.pop()) is not None:
                    requested[name] = scale
        return requested

    def _asked(self, user: int | None, read: _Read, later: Mapping[str, Scale]) -> Scale | None:
        if read.scale or user is None or read not in self.picked(user):
            return read.scale
        return later.get(self.view.nodes[user].output[0])

    @property
    def chained(self) -> Collection[str]:
        """The kinds that one kernel computes in a chain."""
        return COMPILED if self.is_compiled else COMPILED[:1]

    def _group(self, without: Collection[str]) -> None:
        numbers = {node.name: i for i, node in enumerate(self.view.nodes)}
        for match in find_matches(self.view, read_patterns()):
            if match.state == WHOLE and match.pattern not in without:
                nodes = [numbers[name] for name in match.nodes if numbers[name] in self.reads]
                self._join(PATTERN_KINDS.get(match.pattern, ""), nodes)
        for number in self.reads.keys() - self.kernels.keys():
            self._join("", [number])
        for number in reversed(self.reads):  # of two convolutions that are added, the later adds
            if (kernel := self.kernels[number]).kind in HEAVY and number == max(kernel.nodes):
                self._extend(kernel)
        for number in self.reads:
            if (kernel := self.kernels[number]).kind in self.chained and number == max(
                kernel.nodes
            ):
                self._extend(kernel)
        self._join_beside()

    def _join(self, kind: str, nodes: list[int]) -> None:
        kinds = [kind_of(self.view.operators[node]) for node in nodes]
        heavy = next((each for each in kinds if each in HEAVY), kinds[-1]) if kinds else ""
        self.kernels |= dict.fromkeys(nodes, _Kernel(kind or heavy, nodes))

    def _extend(self, kernel: _Kernel) -> None:
        """Take the light kernels behind one into it, as long as they wait for nothing else."""
        while (following := self._following(kernel)) is not None:
            kernel.has_residual |= any(self._others(kernel, following))
            kernel.nodes.extend(following.nodes)
            self.kernels |= dict.fromkeys(following.nodes, kernel)

    def _following(self, kernel: _Kernel) -> _Kernel | None:
        uses = self.uses.get(self.view.nodes[max(kernel.nodes)].output[0], [])
        readers = {
            self.kernels[i] if i is not None and not read.scale else None for i, read in uses
        }
        following = readers.pop() if len(readers) == 1 else None
        if following is None or not self._fits(kernel, following):
            return None
        return None if self._waits(following, kernel) else following

    def _fits(self, kernel: _Kernel, following: _Kernel) -> bool:
        operators = {self.view.operators[node] for node in following.nodes}
        if kernel.kind not in HEAVY:
            return following.kind in self.chained
        if operators == {"MaxPool"}:
            image = self.tensors.get(self.reads[min(kernel.nodes)][0].tensor, NOTHING).shape or ()
            output = self.view.nodes[max(kernel.nodes)].output[0]
            return image[1:2] <= (FEW_CHANNELS,) and output in self.requested
        adds = any(self._others(kernel, following))
        can_add = kernel.kind == "Convolution" and not kernel.has_residual
        return (
            following.kind == "PointWise"
            and operators <= EPILOGUE | ACTIVATIONS
            and (can_add or not adds)
        )

    def _others(self, kernel: _Kernel, following: _Kernel) -> Iterator[str]:
        """Yield what a kernel reads that neither it nor the one before it computes."""
        inside = {*kernel.nodes, *following.nodes}
        for read in self.inputs(following):
            if (
                not self.is_constant(read.tensor)
                and self.view.makers.get(read.tensor) not in inside
            ):
                yield read.tensor

    def _waits(self, following: _Kernel, kernel: _Kernel) -> bool:
        """Tell whether a kernel waits for another one by a detour."""
        pending, seen = [*self._others(kernel, following)], set[int | None]({None})
        while pending:
            maker = self.view.makers.get(pending.pop())
            if maker in kernel.nodes:
                return True
            if maker not in seen and maker in self.kernels:
                nodes = self.kernels[maker].nodes
                seen.update(nodes)
                if max(nodes) > min(kernel.nodes):
                    pending.extend(read.tensor for node in nodes for read in self.reads[node])
        return False

    def _join_beside(self) -> None:
        """Join products of one tensor that have the same form; only Relu stays in them."""
        beside: dict[object, list[_Kernel]] = {}
        for kernel in dict.fromkeys(self.kernels.values()):
            beside.setdefault(self._form_of_product(kernel), []).append(kernel)
        beside.pop(None, None)
        for first, *others in beside.values():
            for kernel in (first, *others) if others else ():
                self._put_behind(kernel, ACTIVATIONS | {"Mul"})
                first.nodes = sorted({*first.nodes, *kernel.nodes})
                self.kernels |= dict.fromkeys(kernel.nodes, first)

    def _form_of_product(self, kernel: _Kernel) -> object:
        number, *behind = sorted(kernel.nodes)
        head, computed = self.view.nodes[number], self.computed(kernel)
        if kernel.kind not in ("Convolution", "Gemm") or len(computed) > 1:
            return None
        if attribute_of(head, "group", 1) > 1:
            return None
        weight = self.tensors.get(head.input[1], NOTHING).shape or ()
        attributes = sorted(each.SerializeToString() for each in head.attribute)
        operators = sorted(self.view.operators[i] for i in behind)
        is_scaled = self.reads[number][1].scale is None
        return head.op_type, computed[0], *attributes, *operators, weight[2:], is_scaled

    def _put_behind(self, kernel: _Kernel, operators: Collection[str]) -> None:
        tail = [i for i in kernel.nodes if self.view.operators[i] in operators]
        if {self.view.operators[i] for i in tail} - {"Relu"}:
            kernel.nodes = [i for i in kernel.nodes if i not in tail]
            self._join("PointWise", tail)

    def computed(self, kernel: _Kernel) -> list[_Read]:
        """Return what a kernel reads that depends on the inputs."""
        return [read for read in self.inputs(kernel) if not self.is_constant(read.tensor)]

    def inputs(self, kernel: _Kernel) -> list[_Read]:
        """Return what a kernel reads and does not compute, in order."""
        reads = (read for node in sorted(kernel.nodes) for read in self.reads[node])
        own = set(kernel.nodes)
        return [r for r in dict.fromkeys(reads) if self.view.makers.get(r.tensor) not in own]

    def outputs(self, kernel: _Kernel) -> list[str]:
        """Return what a kernel computes and others read."""
        names = [name for i in sorted(kernel.nodes) for name in self.view.nodes[i].output if name]
        read = [n for n in names if any(i not in kernel.nodes for i, _ in self.uses.get(n, ()))]
        return read or names[-1:]

    def operands(self, kernel: _Kernel) -> list[_Read]:
        """Return what the nodes of a kernel that multiply read from outside, without biases."""
        heavy = [i for i in kernel.nodes if self.view.nodes[i].op_type in MULTIPLIES]
        known = self.inputs(kernel)
        return [read for i in heavy for read in self.reads[i][:2] if read in known]

    def form(self, kernel: _Kernel) -> tuple[list[_Read], bool]:
        """Return what a kernel reads quantized, and whether it writes quantized."""
        outputs = self.outputs(kernel)
        requested = all(name in self.requested for name in outputs)
        data = [read for read in self.inputs(kernel) if not self.is_constant(read.tensor)]
        picked = [read for node in kernel.nodes for read in self.picked(node)]
        if self.is_compiled and kernel.kind in COMPILED:
            return [read for read in data if self.scale_of(read)], False
        if all(map(self.picked, kernel.nodes)):
            is_narrow = requested or all(name in self.given for name in outputs)
            return picked if is_narrow else [], is_narrow
        operands = self.operands(kernel)
        is_scaled = all(map(self.scale_of, data))
        if kernel.kind in HEAVY and operands:
            is_narrow = all(map(self.scale_of, operands))
            writes = is_narrow and requested and is_scaled
            return (data if writes else operands) if is_narrow else [], writes
        is_narrow = kernel.kind in QUANTIZED and bool(data) and is_scaled and requested
        return data if is_narrow else [], is_narrow

    def forms(
        self, kernel: _Kernel, outputs: Sequence[str], is_narrow: bool
    ) -> Iterator[tuple[str, Scale | None]]:
        """Yield what a kernel writes, with the scale if it is quantized."""
        for name in outputs:
            if is_narrow:
                yield name, self.requested.get(name) or self.given.get(name)
            elif self.is_compiled and kernel.kind in COMPILED:
                scales = dict.fromkeys(read.scale for _, read in self.uses.get(name, ()))
                yield from ((name, scale) for scale in scales or (None,))
            else:
                yield name, None


@dataclass
class _Writer:
    """Writes the layers of a network, and the copies that they need; with `half`, floats are FP16."""

    network: _Network
    macs: Mapping[str, int | None]
    has_tf32: bool
    half: bool
    written: list[Layer] = field(default_factory=list)
    narrow: dict[tuple[str, Scale], TensorInfo] = field(default_factory=dict)
    """The tensors that are stored quantized."""
    wide: dict[tuple[str, Scale | None], TensorInfo] = field(default_factory=dict)
    """The latest copies of tensors in float, and of those that were quantized before."""
    listed: set[int] = field(default_factory=set)

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers in order."""
        view = self.network.view
        for value in view.proto.graph.input:
            self.wide[value.name, None] = self._info(value.name, self.network.dtype(value.name))
        for kernel in sorted(set(self.network.kernels.values()), key=lambda k: max(k.nodes)):
            self._write(kernel)
        for name in sorted(view.outputs):
            self._show(self.network.read(name), self.network.dtype(name))
        return tuple(self.written)

    def _info(self, tensor: str, dtype: str, layout: str = LINEAR, name: str = "") -> TensorInfo:
        shape = self.network.tensors.get(tensor, NOTHING).shape or ()
        return TensorInfo(name or tensor, dtype, shape, f"{layout} {dtype.upper()} format")

    def _write(self, kernel: _Kernel) -> None:
        network, nodes = self.network, [self.network.view.nodes[i] for i in sorted(kernel.nodes)]
        outputs = network.outputs(kernel)
        quantized, writes = network.form(kernel)
        reads, computed = network.inputs(kernel), network.computed(kernel)
        dtype = self._computed_in(kernel, outputs[0])
        layout = self._layout(kernel, computed, dtype)
        steps = [*kernel.nodes]
        inputs, constants = list[TensorInfo](), list[TensorInfo]()
        for read in reads:
            if read not in computed:
                constant = self._constant(read, bool(quantized), dtype)
                is_cut = nodes[0].op_type in CUTS and read == network.reads[kernel.nodes[0]][0]
                constants.append(self._info(outputs[0], constant.dtype) if is_cut else constant)
                steps += self._claimed(read.steps)
            elif read in quantized:
                scale = network.scale_of(read) or network.requested.get(read.tensor)
                inputs.append(self._quantized(read, scale or network.requested[outputs[0]]))
                steps += self._claimed(read.steps)
            else:
                inputs.append(self._float(read, dtype, layout))
        results = []
        for name, scale in network.forms(kernel, outputs, writes):
            if scale is not None:
                steps += (quantizers := self._claimed(self._quantizers(name, scale)))
                names = [network.view.nodes[i].output[0] for i in quantizers]
                result = self._info(name, scale[0], VECTORS, *names[:1])
                self.narrow[name, scale] = result
            else:
                result = self._info(name, self._written_in(kernel, name, quantized, dtype), layout)
                self.wide[name, None] = result
            results.append(result)
        self._add(kernel, nodes, steps, (inputs, results, constants), dtype, bool(quantized))

    def _add(
        self,
        kernel: _Kernel,
        nodes: Sequence[NodeProto],
        steps: Sequence[int],
        tensors: Any,
        dtype: str,
        is_narrow: bool,
    ) -> None:
        inputs, results, constants = map(tuple, tensors)
        is_heavy = kernel.kind in HEAVY
        weights = next((c.dtype for c in constants if len(c.shape) > 1), None) if is_heavy else None
        has_tf32 = is_heavy and dtype == "fp32" and not is_narrow and self.has_tf32
        macs = [self.macs.get(node.name) for node in nodes]
        total = None if None in macs else sum(filter(None, macs))
        names = tuple(self.network.view.nodes[i].name for i in sorted(steps))
        title = " + ".join(node.name for node in nodes)
        kind = kernel.kind
        if (
            kind == "NoOp"
            and inputs
            and inputs[0].format.startswith(CHANNELS)
            and math.prod(inputs[0].shape[2:]) > 1
        ):
            kind = "Shuffle"
        if nodes[0].op_type == "Concat":
            kind = "NoOp"
            computed = [
                r for r in self.network.inputs(kernel) if not self.network.is_constant(r.tensor)
            ]
            for read, info in zip(computed, inputs, strict=True):
                if not self._is_in_place(kernel, read):
                    self.written.append(
                        Layer(f"{info.name} copy", "Reformat", (info,), (info,), origin="CONCAT")
                    )
        self.written.append(
            Layer(
                title,
                kind,
                inputs,
                results,
                constants,
                "tf32" if has_tf32 else None,
                names,
                None,
                weights,
                0,
                total,
            )
        )

    def _is_in_place(self, concat: _Kernel, read: _Read) -> bool:
        """Tell whether what a Concat reads is written where it is needed."""
        network = self.network
        able = []
        for each in network.inputs(concat):
            maker = network.kernels.get(network.view.makers.get(each.tensor, -1))
            if maker is not None and maker.kind in (*HEAVY, "Pooling") and not maker.has_residual:
                able.append(each)
        alone = [each for each in able if len(network.uses[each.tensor]) == 1]
        return read in (alone or able[:1])

    def _computed_in(self, kernel: _Kernel, output: str) -> str:
        """Return the float type that a kernel computes in; what only moves values keeps theirs."""
        own = self.network.dtype(output)
        if all(map(self.network.picked, kernel.nodes)):
            picked = (read.tensor for i in kernel.nodes for read in self.network.picked(i))
            stored = (self.wide.get((tensor, None)) for tensor in picked)
            return next((info.dtype for info in stored if info), own)
        return "fp16" if self.half and own == "fp32" else own

    def _written_in(
        self, kernel: _Kernel, tensor: str, quantized: Sequence[_Read], dtype: str
    ) -> str:
        own = self.network.dtype(tensor)
        is_free = kernel.kind in HEAVY and quantized and tensor in self.network.view.outputs
        return dtype if own in FLOATS and not is_free else own

    def _layout(self, kernel: _Kernel, computed: Sequence[_Read], dtype: str) -> str:
        if kernel.kind in ("Convolution", "Deconvolution"):
            few = self._channels(computed) <= FEW_CHANNELS or not self.has_tf32
            return LINEAR if dtype == "fp32" and few else CHANNELS
        if kernel.kind in ("Gemm", "Shuffle", "Attention", "NoOp") or not computed:
            return LINEAR
        info = self.wide.get((computed[0].tensor, None))
        return next(
            (each for each in (LINEAR, CHANNELS) if info and info.format.startswith(each)), CHANNELS
        )

    def _channels(self, computed: Sequence[_Read]) -> int:
        shape = self.network.tensors.get(computed[0].tensor, NOTHING).shape if computed else None
        return shape[1] if shape and len(shape) > 1 else 0

    def _constant(self, read: _Read, is_narrow: bool, dtype: str) -> TensorInfo:
        own = self.network.dtype(read.tensor)
        stored = dtype if own in FLOATS and dtype in FLOATS else own
        if read.scale and (is_narrow or BY_LISTED[read.scale[0]].named_by_weights):
            stored = read.scale[0]
        elif read.scale:
            stored = dtype
        return self._info(read.tensor, stored, "")

    def _claimed(self, steps: Iterable[int]) -> list[int]:
        """Return those of some Q/DQ nodes that no layer lists yet."""
        new = [step for step in dict.fromkeys(steps) if step not in self.listed]
        self.listed |= set(new)
        return new

    def _quantizers(self, tensor: str, scale: Scale) -> list[int]:
        uses = (read for _, read in self.network.uses.get(tensor, ()) if read.scale == scale)
        nodes = self.network.view.nodes
        return [r.steps[-1] for r in uses if nodes[r.steps[-1]].op_type == "QuantizeLinear"]

    def _quantized(self, read: _Read, scale: Scale) -> TensorInfo:
        """Return a tensor as it is stored quantized; write the copy that this takes."""
        key = read.tensor, scale
        if key not in self.narrow:
            others = (info for (name, _), info in self.narrow.items() if name == read.tensor)
            source = self.wide.get((read.tensor, None)) or next(others, None)
            steps = self._claimed(self._quantizers(*key))
            names = [self.network.view.nodes[i].output[0] for i in steps]
            self.narrow[key] = self._info(read.tensor, scale[0], VECTORS, *names[:1])
            if source is not None:
                self._copy("QDQ", steps, source, self.narrow[key])
        return self.narrow[key]

    def _float(self, read: _Read, dtype: str, layout: str) -> TensorInfo:
        """Return a tensor as a layer reads it in float; write the copies that this takes."""
        own, scale = self.network.dtype(read.tensor), self.network.scale_of(read)
        key = read.tensor, scale
        stored = dtype if {own, dtype} <= FLOATS and self.half else own
        if scale is not None and key not in self.wide:
            source = self._quantized(read, scale)
            stored = dtype if dtype in FLOATS else "fp32"
            self.wide[key] = self._info(read.tensor, stored, layout)
            self._copy("QDQ", self._claimed(read.steps), source, self.wide[key])
        info = self.wide.setdefault(key, self._info(read.tensor, stored, layout))
        places = math.prod(info.shape[2:]) if len(info.shape) > 2 else 1
        result = self._info(read.tensor, stored if info.dtype in FLOATS else info.dtype, layout)
        if result.dtype == info.dtype and (places == 1 or result.format == info.format):
            return info
        self._copy("REFORMAT", (), info, result)
        self.wide[key] = result
        return result

    def _show(self, read: _Read, dtype: str) -> None:
        """Write the copies that an output of the network takes."""
        steps = [self.network.view.nodes[i].op_type for i in read.steps[:1]]
        if steps == ["QuantizeLinear"]:
            self._quantized(read, read.scale or ("", b""))
        elif (read.tensor, None) in self.wide or self.network.scale_of(read):
            self._float(read, dtype, LINEAR)

    def _copy(
        self, origin: str, steps: Sequence[int], source: TensorInfo, result: TensorInfo
    ) -> None:
        nodes = tuple(self.network.view.nodes[i].name for i in steps)
        name = nodes[0] if nodes else f"copy of {source.name}"
        self.written.append(Layer(name, "Reformat", (source,), (result,), (), None, nodes, origin))
