"""The layers that TensorRT 8 to 11 is expected to make of a model: a prediction from its graph.

What TensorRT decides by timing (layouts, some fusions) is known only when it has built. The rules are
those that NVIDIA documents, "Working with Quantized Types" (Q/DQ interaction, placement) and "Layer
fusion"; where they say nothing, those of published layer lists (docs/benchmarks.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import chain

import onnx
from onnx import NodeProto

from trtcal.evidence.fusion.matching import WHOLE, find_matches
from trtcal.evidence.fusion.patterns import read_patterns
from trtcal.evidence.layers.layer import (
    FLOATS,
    NAMED_BY_WEIGHTS,
    PREDICTED,
    UNKNOWN,
    Layer,
    TensorInfo,
    dtype_named,
)
from trtcal.formats import FORMATS
from trtcal.model import ops
from trtcal.model.files import attribute_of
from trtcal.model.model import Model
from trtcal.model.shapes import UNKNOWN as NOTHING
from trtcal.model.shapes import Shape, Tensor
from trtcal.model.tensors import View
from trtcal.model.work import Work, count_work

KINDS = {
    **dict.fromkeys(ops.POINTWISE, "PointWise"),
    **dict.fromkeys(ops.MOVES, "Shuffle"),
    **dict.fromkeys((*ops.FREE, "Concat"), "NoOp"),
    **dict.fromkeys(ops.MULTIPLIES, "Gemm"),
    **dict.fromkeys(ops.CONVOLUTIONS, "Convolution"),
    **dict.fromkeys(ops.RECURRENT, "RNN"),
    **dict.fromkeys(ops.ATTENDS, "Attention"),
    **dict.fromkeys(ops.POOLINGS, "Pooling"),
    "ConvTranspose": "Deconvolution",
    "LayerNormalization": "Normalization",
}
PATTERN_KINDS = {"attention": "Attention", "softmax": "Softmax", "layer_norm": "Normalization"}
HEAVY = ("Convolution", "Deconvolution", "Gemm", "Attention")
QUANTIZED = (*HEAVY, "PointWise", "Pooling")
"""Kinds that have INT8 kernels, besides those of what only moves values."""
COMPILED = ("NoOp", "Slice", "Shuffle", "PointWise", "Reduction", "Softmax", "Normalization")
"""Kinds that TensorRT's compiler (Myelin) joins, and the Q/DQ around them; the last names a kernel."""
FIRST_COMPILED = 9
"""The major version from which networks of products are compiled, and attention is one kernel."""
FEW_CHANNELS = 4
"""Up to so many input channels, FP32 convolutions keep the linear layout, and INT8 ones pool."""
LINEAR, CHANNELS = "Row major linear", "Channel major"
VECTORS = "Thirty-two wide channel vectorized"

TYPES = {kind: dtype_named(name) for name, kind in onnx.TensorProto.DataType.items()}
TYPES |= {onnx.TensorProto.DataType.Value(row.onnx): row.listed for row in FORMATS.values()}
TYPES[onnx.TensorProto.DOUBLE] = "fp32"

Scale = tuple[str, bytes]
"""A quantization: the data type, and the bytes of its scale or, where that is computed, its name."""


def predict_layers(
    model: Model,
    *,
    tf32: bool = True,
    shapes: Mapping[str, Shape] | None = None,
    version: str = "10",
    strongly_typed: bool = True,
    counted: Work | None = None,
) -> tuple[Layer, ...]:
    """Return the layers that a version of TensorRT is expected to make of a model.

    Their tactic is `predicted`, followed by `tf32` where the GPU has that for FP32 products.
    `shapes` are those of its inputs, where they are dynamic, `counted` its work if that is known. Of a
    network that is not `strongly_typed`, float layers compute in FP16, as `trtexec --best` lets them.
    """
    work = counted or count_work(model, shapes)
    network = _Network(View(model), work.tensors, int(version.partition(".")[0]))
    return _Writer(network, work.by_root, tf32, not strongly_typed).layers()


def fused_nodes(model: Model, tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Yield the nodes of each kernel, in the order of the graph, with one product at most."""
    network = _Network(View(model), tensors)
    for kernel in network.in_order():
        yield [network.view.nodes[i].name for i in sorted(kernel.nodes)]


def _only(scales: Iterable[Scale | None]) -> Scale | None:
    different = set(scales)
    return different.pop() if len(different) == 1 else None


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
    """A graph as kernels, with Q/DQ nodes taken for the way in which tensors are read.

    `dequantized` are the tensors that come quantized, as DQs are moved behind what only moves values,
    `requested` those that are only read quantized, as Qs are moved before it.
    """

    def __init__(self, view: View, tensors: Mapping[str, Tensor], version: int = 0) -> None:
        self.view, self.tensors = view, tensors
        self.folded = {i for i, node in enumerate(view.nodes) if self._is_folded(node)}
        kept = (i for i, node in enumerate(view.nodes) if any(node.output))
        self.nodes = [i for i in kept if i not in self.folded and view.operators[i] not in ops.QDQ]
        self.reads = {i: [self.read(n) for n in view.nodes[i].input if n] for i in self.nodes}
        self.uses: dict[str, list[tuple[int | None, _Read]]] = {}
        shown = ((None, self.read(name)) for name in (*view.outputs, *view.held))
        for use in chain(((i, read) for i in self.nodes for read in self.reads[i]), shown):
            self.uses.setdefault(use[1].tensor, []).append(use)
        self.dequantized, self.requested = dict[str, Scale](), dict[str, Scale]()
        self._move_steps()
        self.kernels: dict[int, _Kernel] = {}
        self.inner = set[int]()  # nodes behind the first of a kernel, up to its last
        counts = Counter(KINDS.get(view.operators[i]) for i in self.nodes)
        is_new = version >= FIRST_COMPILED
        self.is_compiled = is_new and counts["Gemm"] > counts["Convolution"]
        self.chained = COMPILED if self.is_compiled else ("PointWise",)
        self._match(() if is_new else ("attention",))
        self._grow(joins=version > 0)

    def _is_folded(self, node: NodeProto) -> bool:
        known = (self.tensors.get(name, NOTHING).value is not None for name in node.output)
        return self.view.is_constant(node.output[0]) or all(known) or node.op_type in ops.SHAPE_ONLY

    def read(self, tensor: str) -> _Read:
        """Return the tensor from which Q/DQ nodes make one, and how."""
        steps, scale = list[int](), None
        while (maker := self.view.maker(tensor)) is not None:
            node = self.view.nodes[maker]
            if node.op_type not in ops.QDQ:
                break
            scale = scale or self._scale(node)
            steps.append(maker)
            tensor = node.input[0]
        return _Read(tensor, scale, tuple(steps))

    def _scale(self, node: NodeProto) -> Scale:
        values = self.view.values(node.input[1])
        narrow = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        return self.dtype(narrow), node.input[1].encode() if values is None else values.tobytes()

    def dtype(self, tensor: str) -> str:
        return TYPES.get(self.tensors.get(tensor, NOTHING).kind, UNKNOWN)

    def shape(self, tensor: str) -> Shape:
        return self.tensors.get(tensor, NOTHING).shape or ()

    def has_few_channels(self, read: _Read) -> bool:
        return self.shape(read.tensor)[1:2] <= (FEW_CHANNELS,)

    def picked(self, number: int) -> list[_Read]:
        """Return the reads of which a node's outputs have values, none if it computes others."""
        node = self.view.nodes[number]
        is_nearest = attribute_of(node, "mode", b"nearest") in (b"nearest", "nearest")
        picks = node.op_type in ops.MOVES_Q or (node.op_type == "Resize" and is_nearest)
        return self.reads[number][: None if node.op_type == "Concat" else 1] if picks else []

    def scale_of(self, read: _Read) -> Scale | None:
        """Return the scale that a tensor is read with, which may come from before what moved it."""
        return read.scale or self.dequantized.get(read.tensor)

    def _move_steps(self) -> None:
        for number in self.nodes:
            if scale := _only(self.scale_of(read) for read in self.picked(number)):
                self.dequantized |= dict.fromkeys(self.view.nodes[number].output, scale)
        for number in reversed(self.nodes):
            for name in self.view.nodes[number].output:
                if scale := _only(self._asked(*use) for use in self.uses.get(name, ())):
                    self.requested[name] = scale

    def _asked(self, user: int | None, read: _Read) -> Scale | None:
        if read.scale or user is None or read not in self.picked(user):
            return read.scale
        return self.requested.get(self.view.nodes[user].output[0])

    def _match(self, without: Collection[str]) -> None:
        numbers = {self.view.nodes[i].name: i for i in self.nodes}
        for match in find_matches(self.view, read_patterns()):
            if match.state == WHOLE and match.pattern not in without:
                nodes = [numbers[name] for name in match.nodes if name in numbers]
                self._join(nodes, PATTERN_KINDS.get(match.pattern))
        for number in set(self.nodes) - self.kernels.keys():
            self._join([number])

    def _grow(self, joins: bool) -> None:
        for number in reversed(self.nodes):  # of two convolutions that are added, the later adds
            if self.kernels[number].kind in HEAVY:
                self._extend(self.kernels[number])
        if joins:
            self._join_beside()
        for number in self.nodes:
            if self.kernels[number].kind in self.chained:
                self._extend(self.kernels[number])

    def _join(self, nodes: list[int], kind: str | None = None) -> None:
        operators = [self.view.operators[i] for i in nodes]
        kinds = [KINDS.get(n, "Reduction" if n.startswith("Reduce") else n) for n in operators]
        heavy = next((each for each in kinds if each in HEAVY), kinds[-1]) if kinds else ""
        self._set(nodes, _Kernel(kind or heavy, nodes))

    def _set(self, nodes: Collection[int], kernel: _Kernel) -> None:
        self.kernels |= dict.fromkeys(nodes, kernel)
        if kernel.nodes:
            self.inner.update(range(min(kernel.nodes) + 1, max(kernel.nodes) + 1))

    def _extend(self, kernel: _Kernel) -> None:
        """Take the light kernels behind one into it, as long as they wait for nothing else."""
        while (following := self._following(kernel)) is not None:
            kernel.has_residual |= len(self.computed(following)) > 1
            kernel.nodes.extend(following.nodes)
            if kernel.kind in self.chained:
                kernel.kind = max(kernel.kind, following.kind, key=self.chained.index)
            self._set(following.nodes, kernel)

    def _following(self, kernel: _Kernel) -> _Kernel | None:
        last = self.view.nodes[max(kernel.nodes)].output[0]
        branches = self.is_compiled and kernel.kind in self.chained
        for name in self.outputs(kernel) if branches else (last,):
            moves = all(map(self.picked, kernel.nodes))
            same = {None, self.requested.get(name) if moves else None}
            uses = [(i, read) for i, read in self.uses.get(name, ()) if i not in kernel.nodes]
            joined = [self.kernels[i] for i, r in uses if i is not None and r.scale in same]
            is_alone = len(set(joined)) == 1 and len(joined) == len(uses)
            users = sorted(set(joined), key=lambda user: user.nodes)
            for each in users if branches or is_alone else ():
                if self._fits(kernel, each) and not self._waits(each, kernel):
                    return each
        return None

    def _fits(self, kernel: _Kernel, following: _Kernel) -> bool:
        operators = {self.view.operators[i] for i in following.nodes}
        if kernel.kind not in HEAVY:
            return following.kind in self.chained
        if operators == {"MaxPool"}:
            result = self.view.nodes[max(kernel.nodes)].output[0]
            return self.has_few_channels(self.inputs(kernel)[0]) and result in self.requested
        adds = len(self.computed(following)) > 1
        if adds and (kernel.kind != "Convolution" or kernel.has_residual):
            return False
        light = ops.ACTIVATIONS | ({"Add", "Sum"} if adds else ops.EPILOGUE)
        return following.kind == "PointWise" and operators <= light

    def _waits(self, following: _Kernel, kernel: _Kernel) -> bool:
        """Tell whether a kernel waits for another one by a detour.

        No kernel lies on both sides of `start`: what is before it waits for nothing behind it.
        """
        start = min(kernel.nodes)
        while start in self.inner:
            start -= 1
        reads = self.computed(following)
        pending = [m for r in reads if (m := self.view.makers.get(r.tensor)) not in kernel.nodes]
        seen = set[_Kernel]()
        while pending:
            before = self.kernels.get(-1 if (maker := pending.pop()) is None else maker)
            if before is kernel:
                return True
            if before is not None and before not in seen and before.nodes[0] >= start:
                seen.add(before)
                pending.extend(self.view.makers.get(read.tensor) for read in self.inputs(before))
        return False

    def _join_beside(self) -> None:
        """Join products of one tensor that have the same form; no activation but Relu stays in them."""
        beside: dict[object, list[_Kernel]] = {}
        for kernel in dict.fromkeys(self.kernels.values()):
            beside.setdefault(self._form_of_product(kernel), []).append(kernel)
        beside.pop(None, None)
        for first, *others in beside.values():
            for kernel in (first, *others) if others else ():
                tail = self._tail(kernel)
                self._join(tail)
                kernel.nodes = [i for i in kernel.nodes if i not in tail]
                first.nodes = sorted({*first.nodes, *kernel.nodes})
                self._set(kernel.nodes, first)

    def _tail(self, kernel: _Kernel) -> list[int]:
        """Return the activations in a kernel, and what is behind them, if one is no Relu."""
        numbers = [i for i in kernel.nodes if self.view.operators[i] in {*ops.ACTIVATIONS, "Mul"}]
        is_kept = {self.view.operators[i] for i in numbers} <= {"Relu"}
        return [] if is_kept else [i for i in sorted(kernel.nodes) if i >= min(numbers)]

    def _form_of_product(self, kernel: _Kernel) -> object:
        number, *behind = sorted(kernel.nodes)
        head, computed = self.view.nodes[number], self.computed(kernel)
        is_product = kernel.kind in ("Convolution", "Gemm") and len(computed) == 1
        if not is_product or attribute_of(head, "group", 1) > 1:
            return None
        attributes = sorted(each.SerializeToString() for each in head.attribute)
        behind = [] if self.is_compiled else behind
        operators = sorted(self.view.operators[i] for i in behind)
        is_scaled = self.reads[number][1].scale is None
        sizes = self.shape(head.input[1])[2:]
        return head.op_type, computed[0], *attributes, *operators, sizes, is_scaled

    def inputs(self, kernel: _Kernel) -> list[_Read]:
        """Return what a kernel reads and does not compute, in order."""
        reads = (read for node in sorted(kernel.nodes) for read in self.reads[node])
        own = set(kernel.nodes)
        return [r for r in dict.fromkeys(reads) if self.view.makers.get(r.tensor) not in own]

    def computed(self, kernel: _Kernel) -> list[_Read]:
        """Return what a kernel reads that depends on the inputs of the network."""
        return [read for read in self.inputs(kernel) if not self._is_constant(read.tensor)]

    def _is_constant(self, tensor: str) -> bool:
        maker = self.view.makers.get(tensor)
        return self.view.is_constant(tensor) if maker is None else maker in self.folded

    def outputs(self, kernel: _Kernel) -> list[str]:
        """Return what a kernel computes and others read."""
        names = [name for i in sorted(kernel.nodes) for name in self.view.nodes[i].output if name]
        read = [n for n in names if any(i not in kernel.nodes for i, _ in self.uses.get(n, ()))]
        return read or names[-1:]

    def quantized(self, kernel: _Kernel) -> tuple[list[_Read], bool]:
        """Return what a kernel reads quantized, and whether it computes what it writes so too."""
        outputs, computed = self.outputs(kernel), self.computed(kernel)
        scaled = [read for read in computed if self.scale_of(read)]
        is_requested = all(name in self.requested for name in outputs)
        if all(map(self.picked, kernel.nodes)):
            is_narrow = is_requested or all(name in self.dequantized for name in outputs)
            return [r for i in kernel.nodes for r in self.picked(i)] if is_narrow else [], is_narrow
        if self.is_compiled and kernel.kind in COMPILED:
            return [r for r in computed if r in scaled or r.tensor in self.requested], False
        heavy = [i for i in kernel.nodes if self.view.nodes[i].op_type in ops.MULTIPLIES]
        operands = [r for i in heavy for r in self.reads[i][:2] if r in self.inputs(kernel)]
        keeps = is_requested and len(scaled) == len(computed) > 0
        if kernel.kind in HEAVY and operands:
            is_narrow = all(map(self.scale_of, operands))
            return (computed if keeps else operands) if is_narrow else [], keeps and is_narrow
        keeps = keeps and kernel.kind in QUANTIZED
        return computed if keeps else [], keeps

    def forms(self, kernel: _Kernel, is_narrow: bool) -> Iterator[tuple[str, Scale | None]]:
        """Yield what a kernel writes, with the scale where it is quantized."""
        for name in self.outputs(kernel):
            scales = [self.requested.get(name) or self.dequantized.get(name) if is_narrow else None]
            if not is_narrow and self.is_compiled and kernel.kind in COMPILED:
                scales = [self._asked(*use) for use in self.uses.get(name, ())] or scales
            yield from ((name, scale) for scale in dict.fromkeys(scales))

    def in_order(self) -> Iterable[_Kernel]:
        """Return the kernels, each behind those that it waits for."""
        order = TopologicalSorter[_Kernel]()
        for kernel in dict.fromkeys(self.kernels[i] for i in self.nodes):
            makers = {self.view.makers.get(read.tensor, -1) for read in self.inputs(kernel)}
            order.add(kernel, *(self.kernels[i] for i in sorted(makers) if i in self.kernels))
        return order.static_order()


@dataclass
class _Writer:
    """Writes the layers of a network, and the copies that they need; with `half`, floats are FP16.

    `narrow` are the tensors that are stored quantized, `wide` the latest copies of those in float,
    and of those that were quantized before.
    """

    network: _Network
    macs: Mapping[str, int | None]
    has_tf32: bool
    is_fp16: bool
    written: list[Layer] = field(default_factory=list)
    narrow: dict[tuple[str, Scale], TensorInfo] = field(default_factory=dict)
    wide: dict[tuple[str, Scale | None], TensorInfo] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers in order."""
        view = self.network.view
        for value in view.proto.graph.input:
            self.wide[value.name, None] = self._info(value.name, self.network.dtype(value.name))
        for kernel in self.network.in_order():
            self._write(kernel)
        for name in sorted(view.outputs):
            self._show(self.network.read(name), self.network.dtype(name))
        return tuple(self.written)

    def _info(self, tensor: str, dtype: str, layout: str = LINEAR, name: str = "") -> TensorInfo:
        layout = f"{layout} {dtype.upper()} format"
        return TensorInfo(name or tensor, dtype, self.network.shape(tensor), layout)

    def _write(self, kernel: _Kernel) -> None:
        """Write the layer of a kernel, behind the copies that it needs."""
        network, nodes = self.network, self.network.view.nodes
        kernel.nodes.sort()
        quantized, is_narrow = network.quantized(kernel)
        written = list(network.forms(kernel, is_narrow))
        dtype = self._computed_in(kernel, written[0][0])
        layout = self._layout(kernel, dtype)
        computed, steps = network.computed(kernel), [*kernel.nodes]
        scale = written[0][1] or ("", b"")
        narrow = [read for read in computed if read in quantized]
        floats = [read for read in computed if read not in quantized]
        scales = [network.scale_of(r) or network.requested.get(r.tensor, scale) for r in narrow]
        inputs = list(map(self._quantized, narrow, scales))
        inputs += [self._float(read, dtype, layout) for read in floats]
        others = (read for read in network.inputs(kernel) if read not in computed)
        constants = [self._constant(kernel, read, bool(quantized), dtype) for read in others]
        reads = chain.from_iterable(network.reads[i] for i in kernel.nodes)
        steps += self._claimed(i for read in reads if read not in floats for i in read.steps)
        steps += self._claimed(i for form in written for i in self._quantizers(*form))
        outputs = [self._output(*form, dtype, layout, bool(quantized)) for form in written]
        is_heavy, names = kernel.kind in HEAVY, [nodes[i].name for i in kernel.nodes]
        weighs = is_heavy and kernel.kind != "Attention"
        weights = [each.dtype for each in constants if weighs and len(each.shape) > 1]
        is_tf32 = is_heavy and self.has_tf32 and dtype == "fp32" and not quantized
        macs = [self.macs.get(name) for name in names]
        if nodes[kernel.nodes[0]].op_type == "Concat":
            self._join_parts(computed, inputs)
        is_moved = inputs and inputs[0].format.startswith(CHANNELS) and _places(inputs[0]) > 1
        self.written.append(
            Layer(
                name=" + ".join(names),
                kind="Shuffle" if is_moved and self._is_free(kernel) else kernel.kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                constants=tuple(constants),
                tactic=f"{PREDICTED} tf32" if is_tf32 else PREDICTED,
                nodes=tuple(nodes[i].name for i in sorted(steps)),
                weights=weights[0] if weights else None,
                macs=None if None in macs else sum(filter(None, macs)),
            )
        )

    def _output(
        self, name: str, scale: Scale | None, dtype: str, layout: str, is_narrow: bool
    ) -> TensorInfo:
        if scale:
            return self._narrowed(name, scale)
        own = self.network.dtype(name)
        is_last = is_narrow and name in self.network.view.outputs  # written in any form of float
        form = (own, LINEAR) if own not in FLOATS or is_last else (dtype, layout)
        self.wide[name, None] = self._info(name, *form)
        return self.wide[name, None]

    def _join_parts(self, parts: Sequence[_Read], inputs: Sequence[TensorInfo]) -> None:
        """Write the copies of what a Concat reads and no kernel can write where it is needed."""
        network = self.network
        makers = [(r, network.kernels.get(network.view.makers.get(r.tensor, -1))) for r in parts]
        kinds = (*HEAVY, "Pooling")
        able = [r for r, each in makers if each and each.kind in kinds and not each.has_residual]
        alone = [read for read in able if len(network.uses[read.tensor]) == 1]
        for read, info in zip(parts, inputs, strict=True):
            is_new = read.scale and info.dtype in FLOATS  # the copy that dequantizes it
            if not is_new and read not in (alone or able[:1]):
                self._copy("CONCAT", (), info, info)

    def _computed_in(self, kernel: _Kernel, output: str) -> str:
        """Return the float type that a kernel computes in; what only moves values keeps theirs."""
        own = self.network.dtype(output)
        if all(map(self.network.picked, kernel.nodes)):
            data = self.network.inputs(kernel)[0].tensor
            return self.wide[data, None].dtype if (data, None) in self.wide else own
        return "fp16" if self.is_fp16 and own == "fp32" else own

    def _layout(self, kernel: _Kernel, dtype: str) -> str:
        data = next(iter(self.network.computed(kernel)), _Read(""))
        if kernel.kind in ("Convolution", "Deconvolution"):
            is_plain = not self.has_tf32 or self.network.has_few_channels(data)
            return LINEAR if dtype == "fp32" and is_plain else CHANNELS
        is_linear = kernel.kind in ("Gemm", "Shuffle", "Attention") or self._is_free(kernel)
        first = self.wide.get((data.tensor, None))
        follows = first is not None and first.format.startswith(CHANNELS)
        return CHANNELS if follows and not is_linear else LINEAR

    def _is_free(self, kernel: _Kernel) -> bool:
        return self.network.view.operators[kernel.nodes[0]] in ops.FREE

    def _constant(self, kernel: _Kernel, read: _Read, is_narrow: bool, dtype: str) -> TensorInfo:
        own, first = self.network.dtype(read.tensor), self.network.view.operators[kernel.nodes[0]]
        stored = dtype if dtype in FLOATS and (own in FLOATS or read.scale) else own
        if read.scale and (is_narrow or read.scale[0] in NAMED_BY_WEIGHTS):
            stored = read.scale[0]
        if first in ops.CUTS and read == self.network.inputs(kernel)[0]:  # of a table, some rows
            return self._info(self.network.outputs(kernel)[0], stored)
        return self._info(read.tensor, stored)

    def _claimed(self, steps: Iterable[int]) -> list[int]:
        """Return those of some Q/DQ nodes that no layer lists yet."""
        new = [step for step in dict.fromkeys(steps) if step not in self.listed]
        self.listed |= set(new)
        return new

    def _quantizers(self, tensor: str, scale: Scale | None) -> list[int]:
        uses = (read for _, read in self.network.uses.get(tensor, ()) if read.scale == scale)
        operators = self.network.view.operators
        return [r.steps[-1] for r in uses if r.steps and operators[r.steps[-1]] == "QuantizeLinear"]

    def _quantized(self, read: _Read, scale: Scale) -> TensorInfo:
        """Return a tensor as it is stored quantized; write the copy that this takes."""
        key = read.tensor, scale
        if key not in self.narrow:
            others = (info for (name, _), info in self.narrow.items() if name == read.tensor)
            source = self.wide.get((read.tensor, None)) or next(others, None)
            result = self._narrowed(*key)
            if source:
                self._copy("QDQ", self._claimed(self._quantizers(*key)), source, result)
        return self.narrow[key]

    def _narrowed(self, tensor: str, scale: Scale) -> TensorInfo:
        names = [self.network.view.nodes[i].output[0] for i in self._quantizers(tensor, scale)[:1]]
        self.narrow[tensor, scale] = self._info(tensor, scale[0], VECTORS, *names)
        return self.narrow[tensor, scale]

    def _float(self, read: _Read, dtype: str, layout: str) -> TensorInfo:
        """Return a tensor as a layer reads it in float; write the copies that this takes."""
        own, scale = self.network.dtype(read.tensor), self.network.scale_of(read)
        key = read.tensor, scale
        stored = dtype if self.is_fp16 and {own, dtype} <= FLOATS else own
        if scale and key not in self.wide:
            source = self._quantized(read, scale)
            self.wide[key] = self._info(read.tensor, dtype if dtype in FLOATS else "fp32", layout)
            self._copy("QDQ", self._claimed(read.steps), source, self.wide[key])
        info = self.wide.setdefault(key, self._info(read.tensor, stored, layout))
        result = self._info(read.tensor, stored if info.dtype in FLOATS else info.dtype, layout)
        if result.dtype == info.dtype and (_places(info) == 1 or result.format == info.format):
            return info
        self._copy("REFORMAT", (), info, result)
        self.wide[key] = result
        return result

    def _show(self, read: _Read, dtype: str) -> None:
        """Write the copies that an output of the network takes."""
        if read.scale and self.network.view.operators[read.steps[0]] == "QuantizeLinear":
            self._quantized(read, read.scale)
        elif (read.tensor, None) in self.wide or self.network.scale_of(read):
            self._float(read, dtype, LINEAR)

    def _copy(self, why: str, steps: Sequence[int], source: TensorInfo, result: TensorInfo) -> None:
        nodes = tuple(self.network.view.nodes[i].name for i in steps)
        name = nodes[0] if nodes else f"copy of {source.name}"
        copy = Layer(name, "Reformat", (source,), (result,), (), PREDICTED, nodes, why)
        self.written.append(copy)


def _places(info: TensorInfo) -> int:
    """Return the places of an image; 1 where a layout makes no difference."""
    return math.prod(info.shape[2:]) if len(info.shape) > 3 else 1
