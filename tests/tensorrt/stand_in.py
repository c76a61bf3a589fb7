"""TensorRT's module and networks as far as we claim to know them; nothing else can be touched."""

from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from tests.calibrators.bindings import StandInBase
from tests.tensorrt.claims import TOUCHED

VERSIONS = {"8.6": "8.6.0", "10.16": "10.16.1.11", "11.4": "11.4.0.106", "rtx": "1.7.1.116"}
WEIGHTS = np.float32([0.5, -2.0, -np.inf])


def module(version):
    """Return a module that has what this version is claimed to have."""
    trt = SimpleNamespace(__version__=VERSIONS[version])
    for path, versions in TOUCHED.items():
        if version in versions and path != "__version__":
            place(trt, path)
    return trt


class Named(str):
    """Something of TensorRT's that can hold more, equal to its path."""


def place(trt, path):
    names = path.split(".")
    for number, name in enumerate(names, 1):
        if not hasattr(trt, name):
            base = name.startswith("IInt8")
            stood = type(name, (StandInBase,), {}) if base else Named(".".join(names[:number]))
            setattr(trt, name, stood)
        trt = getattr(trt, name)


@dataclass
class Tensor:
    name: str
    dtype: str = "DataType.FLOAT"
    is_shape_tensor: bool = False
    refuses: bool = False
    range: tuple | None = None

    def set_dynamic_range(self, low, high):
        """Keep a range as TensorRT does, in float32, and say whether it is one."""
        self.range = (np.float32(low), np.float32(high))
        return not self.refuses


@dataclass
class Layer:
    name: str
    inputs: list
    outputs: list
    precision: str | None = None
    type: str = "LayerType.ACTIVATION"

    @property
    def num_outputs(self):
        return len(self.outputs)

    def get_output(self, number):
        return self.outputs[number]

    def get_input(self, number):
        return self.inputs[number] if self.inputs else None


@dataclass
class LayerOfWeights(Layer):
    """What becomes an `IConstantLayer`."""

    weights: np.ndarray | None = None


@dataclass
class Network:
    inputs: list
    layers: list = field(default_factory=list)

    @property
    def num_inputs(self):
        return len(self.inputs)

    @property
    def num_layers(self):
        return len(self.layers)

    def get_input(self, number):
        return self.inputs[number]

    def get_layer(self, number):
        return self.layers[number]


def chain(*names):
    """Return a network of one layer after the other: tensors `names`, layers between them."""
    tensors = [Tensor(name) for name in names]
    pairs = pairwise(tensors)
    return Network(tensors[:1], [Layer(f"to {b.name}", [a], [b]) for a, b in pairs])


def parsed():
    """Return a network as TensorRT's parser makes it of a Gemm and a Softmax: two named tensors."""
    names = ("x", "w", "product", "b", "b rows", "y", "softmax", "p", "best", "loop")
    x, w, product, b, rows, y, softmax, p, best, loop = (Tensor(name) for name in names)
    ids = Tensor("ids", "DataType.INT64")
    layers = [
        LayerOfWeights("w", [], [w], type="LayerType.CONSTANT", weights=WEIGHTS),
        Layer("gemm", [x, w], [product], type="LayerType.MATRIX_MULTIPLY"),
        LayerOfWeights("b", [], [b], type="LayerType.CONSTANT", weights=np.zeros(3, np.float32)),
        LayerOfWeights("ids", [], [ids], type="LayerType.CONSTANT", weights=np.ones(3)),
        Layer("b rows", [b], [rows], type="LayerType.SHUFFLE"),
        Layer("sum", [product, rows], [y], type="LayerType.ELEMENTWISE"),
        Layer("softmax", [y], [softmax], type="LayerType.SOFTMAX"),
        Layer("back", [softmax], [p], type="LayerType.SHUFFLE"),
        Layer("best", [p], [best, ids], type="LayerType.TOPK"),
        Layer("loop", [p], [loop], type="LayerType.RECURRENCE"),
        Layer("row", [loop], [Tensor("row")], type="LayerType.SLICE"),
        Layer("cast", [p], [Tensor("whole", "DataType.INT32")], type="LayerType.CAST"),
    ]
    return Network([x], layers)


def ranges_of(network):
    """Return the ranges that a network's tensors have."""
    tensors = [*network.inputs, *(tensor for layer in network.layers for tensor in layer.outputs)]
    return {
        tensor.name: tensor.range for tensor in filter(None, tensors) if tensor.range is not None
    }
