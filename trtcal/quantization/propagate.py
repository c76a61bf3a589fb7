"""Where INT8 goes on between the heavy layers: through poolings and Concats that stand there.

A tensor that one reader takes as INT8 and another as float is stored twice, and a pooling in float
between two INT8 layers moves four times the bytes. So a pooling whose result is read quantized gets a
quantized input, and so do the light readers of a Concat that leads to INT8. What only moves values, and
Concat, pass a Q on to their inputs: the compiler moves it there.

Not here: average poolings with strides and padding that does not count, for which TensorRT-RTX 1.7 has
no INT8 kernel (seen in its layer lists: it would expand the values first), and sums over many values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_graphsurgeon as gs

from trtcal.model.ops import CUTS, INT8_LIGHT, MOVES, MULTIPLIES, POOLS
from trtcal.quantization.weighted_ops import Layer, is_activation, readers

PASSING_ON = MOVES | {"Concat"}
LEADING = INT8_LIGHT | PASSING_ON | POOLS | {"GlobalAveragePool"}


def propagate(graph: gs.Graph, layers: Iterable[Layer]) -> list[Layer]:
    """Return what more is quantized, in graph order, if these layers are."""
    layers = list(layers)
    cuts = cut_layers(graph, layers)
    propagation = _Propagation(graph, [*layers, *cuts])
    for node in reversed(graph.nodes):
        propagation.visit(node)
    further = propagation.found
    return cuts + [further[node.name] for node in graph.nodes if node.name in further]


def choices(graph: gs.Graph, layers: Iterable[Layer]) -> list[Layer]:
    """Return light nodes that could read a tensor quantized that another node reads so, but do not.

    Their range is known, and a plan that names one in INT8 gets it; whether that pays, only a trial
    on the compiler can say.
    """
    layers = list(layers)
    quantized = {name for layer in layers for name in layer.activations.values()}
    taken, light = {layer.name for layer in layers}, INT8_LIGHT | POOLS | {"Concat"}
    nodes = (node for node in graph.nodes if node.op in light and node.name not in taken)
    reads = (
        (node, {i: t.name for i, t in enumerate(node.inputs) if t.name in quantized})
        for node in nodes
    )
    return [Layer(node.name, node.op, read) for node, read in reads if read]


class _Propagation:
    """Decides from the outputs to the inputs, so that a tensor's readers are known before it is."""

    def __init__(self, graph: gs.Graph, layers: Iterable[Layer]) -> None:
        self.taken = {(layer.name, index) for layer in layers for index in layer.activations}
        self.found: dict[str, Layer] = {}
        self.quantized = set[str]()  # tensors that all readers take quantized
        self.leading = set[str]()  # those from which light nodes lead to one that does
        self.shown = {tensor.name for tensor in graph.outputs}

    def visit(self, node: gs.Node) -> None:
        """Decide on a node's output, then on its input."""
        for tensor in node.outputs:
            self._update(tensor)
        if node.op not in {"Concat", *POOLS} or not is_activation(node.inputs[0]):
            return
        result = node.outputs[0]
        if self._is_worth_storing(node):
            self._take_all(result)
        if is_pool(node) and result.name in self.quantized:
            self._take(node, 0)
            self._take_all(result)  # the compiler wants a Q right after it

    def _take_all(self, tensor: gs.Tensor) -> None:
        for reader, index in readers(tensor):
            self._take(reader, index)
        self._update(tensor)

    def _update(self, tensor: gs.Tensor) -> None:
        places = list(readers(tensor))
        takes = [self._takes(reader, index) for reader, index in places]
        if places and all(takes) and tensor.name not in self.shown:
            self.quantized.add(tensor.name)
        leads = (r.op in LEADING and r.outputs[0].name in self.leading for r, _ in places)
        if any(takes) or any(leads):
            self.leading.add(tensor.name)

    def _takes(self, reader: gs.Node, index: int) -> bool:
        if (reader.name, index) in self.taken:
            return True
        return reader.op in PASSING_ON and reader.outputs[0].name in self.quantized

    def _is_worth_storing(self, node: gs.Node) -> bool:
        """Tell whether values are stored, for several readers or by nested Concats, that take INT8."""
        result = node.outputs[0]
        places = list(readers(result))
        nested = any(tensor.inputs and tensor.inputs[0].op == "Concat" for tensor in node.inputs)
        stored = len(places) > 1 or nested
        if not stored or result.name in self.shown or result.name not in self.leading:
            return False
        return all(self._can_take(reader, index) for reader, index in places)

    def _can_take(self, reader: gs.Node, index: int) -> bool:
        result = reader.outputs[0].name
        pooled = is_pool(reader) and result in self.quantized
        pooled |= reader.op in POOLS and reader.inputs[index].inputs[0].op == "MaxPool"
        light = reader.op in INT8_LIGHT | {"Concat"} and result in self.leading
        return pooled or light or self._takes(reader, index)

    def _take(self, reader: gs.Node, index: int) -> None:
        if (reader.name, index) in self.taken:
            return
        self.taken.add((reader.name, index))
        layer = self.found.setdefault(reader.name, Layer(reader.name, reader.op, {}))
        layer.activations[index] = reader.inputs[index].name


def is_pool(node: gs.Node) -> bool:
    """Tell whether a node pools in a way that the compiler has INT8 kernels for."""
    if node.op not in POOLS or len(node.outputs) > 1:
        return False
    is_dense = set(node.attrs.get("strides", [1])) == {1}
    counts_padding = bool(node.attrs.get("count_include_pad", 0))
    return node.op == "MaxPool" or is_dense or counts_padding or is_unpadded(node)


def is_unpadded(pool: gs.Node) -> bool:
    """Tell whether there is no padding that an average pooling could count."""
    padded = any(pool.attrs.get("pads", [])) or pool.attrs.get("ceil_mode", 0)
    return not padded and pool.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def range_sources(graph: gs.Graph, names: Iterable[str]) -> dict[str, str]:
    """Return for quantized tensors whose range they take, where that is not their own.

    What goes into a Concat, from a pooling or another Concat, takes the Concat's, of nested ones the
    last's, so that a value is rounded once on its way through them. The output of a MaxPool that
    goes nowhere else, or into no Concat, takes that of its input: it has those values, the compiler
    moves a Q above the pooling, and where the Concat's range is another one, TensorRT-RTX 1.7 rounds to
    it in the kernel that fills the Concat, without a copy of the pooling's own.
    """
    tensors, known, sources = graph.tensors(), set(names), dict[str, str]()
    for name in sorted(known):
        source, passed = tensors[name], list[str]()
        while before := _before_pool(source):
            if len(source.outputs) > 1 and _outermost(source, known) != source.name:
                break
            passed.append(source.name)
            source = before
        sources |= dict.fromkeys([*passed, source.name], _outermost(source, known))
    return {name: last for name, last in sources.items() if name != last}


def _before_pool(tensor: gs.Tensor) -> gs.Tensor | None:
    producer = tensor.inputs[0] if tensor.inputs else None
    if producer is None or producer.op != "MaxPool" or len(producer.outputs) > 1:
        return None
    return producer.inputs[0] if is_activation(producer.inputs[0]) else None


def _outermost(tensor: gs.Tensor, known: set[str]) -> str:
    """Return the last of the quantized Concats that a tensor goes into, one into another."""
    while tensor.inputs and tensor.inputs[0].op in {"Concat", *POOLS}:
        into = [node.outputs[0] for node in tensor.outputs if node.op == "Concat"]
        into = [result for result in into if result.name in known]
        if not into:
            break
        tensor = into[0]
    return str(tensor.name)


def cut_layers(graph: gs.Graph, layers: Iterable[Layer]) -> list[Layer]:
    """Return the nodes that cut what products of two activations read; they read it quantized."""
    cuts: dict[str, Layer] = {}
    for _, whole in _cuts(graph, layers):
        for node, index in readers(whole):
            if node.op in CUTS:
                cuts[node.name] = Layer(node.name, node.op, {index: whole.name})
    return list(cuts.values())


def cut_sources(graph: gs.Graph, layers: Iterable[Layer]) -> dict[str, str]:
    """Return for the parts that are read quantized what they were cut from: it gives the range."""
    return {part: whole.name for part, whole in _cuts(graph, layers)}


def _cuts(graph: gs.Graph, layers: Iterable[Layer]) -> Iterator[tuple[str, gs.Tensor]]:
    tensors, every = graph.tensors(), list(layers)
    names = {layer.name for layer in every}
    products = (layer for layer in every if len(layer.activations) == 2)
    for name in (name for layer in products for name in layer.activations.values()):
        whole = _cut_from(tensors[name])
        if whole is not None and _products_of_parts(whole) <= names:
            yield name, whole


def _products_of_parts(whole: gs.Tensor) -> set[str]:
    """Return the heavy nodes that multiply parts of a tensor, straight or moved."""
    products: set[str] = set()
    parts = [tensor for node, _ in readers(whole) if node.op in CUTS for tensor in node.outputs]
    while parts:
        for node, _ in readers(parts.pop()):
            if node.op in MULTIPLIES:
                products.add(node.name)
            elif node.op in MOVES:
                parts.extend(node.outputs)
    return products


def _cut_from(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return what a tensor is a part of, if other parts are cut off it too."""
    while tensor.inputs and tensor.inputs[0].op in MOVES:
        tensor = tensor.inputs[0].inputs[0]
    cut = tensor.inputs[0] if tensor.inputs else None
    if cut is None or cut.op not in CUTS or not is_activation(cut.inputs[0]):
        return None
    parts = [node for node, index in readers(cut.inputs[0]) if node.op in CUTS and index == 0]
    return cut.inputs[0] if cut.op == "Split" or len(parts) > 1 else None
