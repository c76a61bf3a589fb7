"""How the graphs of the zoo are written down: a builder, a registry, and the reasons for floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Size = int | str
Array = np.ndarray
Shapes = Mapping[str, tuple[tuple[int, ...], ...]]

# Why a node cannot be INT8: what its reported reason must say.
NO_KERNEL = "no INT8 kernel for ConvTranspose"
NOT_CONSTANT = "weights are computed, not constant"
SAME = "merged into another layer, or removed"


class Net:
    """A graph in the making: methods add nodes and return the name of what they compute.

    Inputs are standard normal, or ids below `vocabulary`; weights He-normal from fixed seeds.
    """

    def __init__(self, *, half: bool = False, vocabulary: int = 0, **inputs: Sequence[Size]):
        self.kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        self.dtype = np.float16 if half else np.float32
        self.vocabulary, self.inputs = vocabulary, inputs
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.outputs: list[str] = []

    def add(self, op: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: object):
        """Add a node; several outputs come as a list."""
        name = name or f"{op.lower()}_{len(self.nodes)}"
        results = [f"{name}:{i}" for i in range(outputs)] if outputs > 1 else [f"{name}:out"]
        self.nodes.append(helper.make_node(op, list(inputs), results, name, **attributes))
        return results if outputs > 1 else results[0]

    def value(self, array: object, dtype: type | None = None, name: str = "") -> str:
        """Add a constant."""
        name = name or f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype or self.dtype)
        return name

    def ints(self, *values: int) -> str:
        """Add a list of int64."""
        return self.value(values, np.int64)

    def weight(self, *shape: int, fan_in: int = 0, name: str = "") -> str:
        """Add a random weight, scaled by its fan-in (all axes but the first, if not given)."""
        rng = np.random.default_rng(len(self.constants) + 1)
        scale = np.sqrt(2 / (fan_in or np.prod(shape[1:])))
        return self.value(rng.standard_normal(shape) * scale, name=name)

    def vector(self, size: int) -> str:
        """Add a small bias."""
        return self.value(np.random.default_rng(len(self.constants)).standard_normal(size) / 8)

    def conv(self, name, x, shape, bias=True, weight=None, **attributes):
        """Add a Conv with a kernel of `shape`; padded to keep the size if nothing else is said."""
        if not {"pads", "auto_pad"} & set(attributes):
            dilations = attributes.get("dilations", [1] * len(shape[2:]))
            around = [d * (k - 1) // 2 for k, d in zip(shape[2:], dilations, strict=True)]
            attributes["pads"] = around * 2
        parameters = [weight or self.weight(*shape), *([self.vector(shape[0])] if bias else [])]
        return self.add("Conv", x, *parameters, name=name, **attributes)

    def up(self, name, x, shape, **attributes):
        """Add a ConvTranspose that doubles the size, with a kernel of (in, out / groups, ...)."""
        rank = len(shape) - 2
        weight = self.weight(*shape, fan_in=shape[0])
        return self.add("ConvTranspose", x, weight, name=name, strides=[2] * rank, **attributes)

    def gemm(self, name, x, outputs, inputs, bias=True, **attributes):
        """Add a Gemm with a weight of (outputs, inputs)."""
        parameters = [self.weight(outputs, inputs), *([self.vector(outputs)] if bias else [])]
        return self.add("Gemm", x, *parameters, name=name, transB=1, **attributes)

    def linear(self, name, x, inputs, outputs, bias=True):
        """Add a MatMul with a weight of (inputs, outputs), and an Add."""
        y = self.add("MatMul", x, self.weight(inputs, outputs, fan_in=inputs), name=name)
        return self.add("Add", y, self.vector(outputs)) if bias else y

    def relu(self, x):
        """Add a Relu."""
        return self.add("Relu", x)

    def norm(self, x, size):
        """Add a LayerNormalization over the last axis."""
        return self.add("LayerNormalization", x, self.value(np.ones(size)), self.vector(size))

    def gelu(self, x):
        """Add GELU, spelled out as exporters do."""
        inner = self.add("Erf", self.add("Div", x, self.value(2**0.5)))
        grown = self.add("Add", inner, self.value(1))
        return self.add("Mul", self.add("Mul", x, grown), self.value(0.5))

    def pool(self, op, x, size=2, stride=2, **attributes):
        """Add a pooling over two axes."""
        return self.add(op, x, kernel_shape=[size] * 2, strides=[stride] * 2, **attributes)

    def head(self, name, x, channels, classes=10):
        """Add global average pooling, Flatten and a Gemm."""
        pooled = self.add("Flatten", self.add("GlobalAveragePool", x))
        return self.gemm(name, pooled, classes, channels)

    def done(self, *outputs: str) -> Net:
        """End the graph."""
        self.outputs = list(outputs)
        return self

    def proto(self) -> onnx.ModelProto:
        """Return the model, opset 17."""
        integer = TensorProto.INT64 if self.vocabulary else self.kind
        given = [
            helper.make_tensor_value_info(name, integer if name == "ids" else self.kind, shape)
            for name, shape in self.inputs.items()
        ]
        results = [helper.make_tensor_value_info(name, self.kind, None) for name in self.outputs]
        weights = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "zoo", given, results, weights)
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred

    def samples(self, count: int, seed: int = 0) -> dict[str, Array]:
        """Return seeded samples for every input; symbolic sizes after the first are 8."""
        rng = np.random.default_rng(seed)
        made = {}
        for name, shape in self.inputs.items():
            whole = (count, *(size if isinstance(size, int) else 8 for size in shape[1:]))
            if name == "ids":
                made[name] = rng.integers(0, self.vocabulary, whole)
            else:
                made[name] = rng.standard_normal(whole).astype(self.dtype)
        return made


@dataclass(frozen=True)
class Entry:
    """A graph of the zoo, with what TensorRT-RTX can give it.

    `int8` are the heavy nodes that must be INT8; `floats` those that cannot, with what the reported
    reason must say. `shapes` are build ranges where the default doesn't serve.
    """

    name: str
    make: Callable[[], Net]
    int8: tuple[str, ...]
    floats: Mapping[str, str] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)


ZOO: dict[str, Entry] = {}


def entry(
    int8: str,
    shapes: Shapes | None = None,
    **floats: str,
):
    """Register a function that makes a graph, under its own name."""

    def register(make: Callable[[], Net]) -> Callable[[], Net]:
        name = make.__name__
        parts = (tuple(int8.split()), floats, shapes or {})
        ZOO[name] = Entry(name, make, *parts)
        return make

    return register
