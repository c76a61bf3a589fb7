"""Random small networks, several side by side in one model, of operators that real ones have."""

import numpy as np
from onnx import helper

from tests.fixtures.networks import rng, save

WINDOW = {"kernel_shape": [3, 3], "pads": [1] * 4}
FINEST = 3.4028235e38  # what exporters write for minus infinity


class Tower:
    """One network: a stem, random blocks over an image or a sequence, and a head."""

    def __init__(self, name, seed, kind):
        self.name, self.draw = name, rng(seed)
        self.nodes, self.weights, self.count = [], {}, 0
        self.input = f"{name}/x"
        self.shape = (6, 8, 8) if kind == "image" else (6, 8)
        tensor = self.stem() if kind == "image" else self.input
        blocks = IMAGE_BLOCKS if kind == "image" else SEQUENCE_BLOCKS
        for block in self.draw.choice(blocks, 7):
            tensor = block(self, tensor)
        self.output = self.head(tensor, kind)

    def op(self, kind, *inputs, outputs=1, **attributes):
        self.count += 1
        name = f"{self.name}/{kind}_{self.count}"
        results = [f"{name}:{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), results, name, **attributes))
        return results[0] if outputs == 1 else results

    def const(self, values, dtype=np.float32):
        name = f"{self.name}/c{len(self.weights)}"
        self.weights[name] = np.asarray(values, dtype)
        return name

    def normal(self, *shape, scale=0.2):
        return self.const(self.draw.standard_normal(shape) * scale)

    def stem(self):
        return self.op("Conv", self.input, self.normal(6, 6, 3, 3), self.normal(6), pads=[1] * 4)

    def head(self, tensor, kind):
        if kind == "image":
            pooled = self.op("GlobalAveragePool", tensor)
            flat = self.op("Flatten", pooled)
            return self.op("Gemm", flat, self.normal(5, 6), self.normal(5), transB=1)
        return self.op("MatMul", tensor, self.normal(8, 5))


def conv_relu(t, x):
    act = t.draw.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Softplus", "Elu"])
    return t.op(str(act), t.op("Conv", x, t.normal(6, 6, 3, 3), t.normal(6), pads=[1] * 4))


def depthwise(t, x):
    y = t.op("Conv", x, t.normal(6, 1, 3, 3), pads=[1] * 4, group=6)
    return t.op("Clip", y, t.const(0.0), t.const(6.0))


def residual(t, x):
    y = t.op("Conv", t.op("Relu", x), t.normal(6, 6, 1, 1), t.normal(6))
    return t.op("Relu", t.op("Add", y, x))


def branches(t, x):
    left = t.op("Conv", x, t.normal(3, 6, 1, 1))
    right = t.op("AveragePool", t.op("Conv", x, t.normal(3, 6, 1, 1)), **WINDOW)
    return t.op("Concat", left, right, axis=1)


def excitation(t, x):
    squeezed = t.op("ReduceMean", x, t.const([2, 3], np.int64), keepdims=1)
    gate = t.op("Sigmoid", t.op("Conv", squeezed, t.normal(6, 6, 1, 1)))
    return t.op("Mul", x, gate)


def down_up(t, x):
    y = t.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = t.op("Conv", y, t.normal(6, 6, 1, 1))
    return t.op("Resize", y, "", t.const([1, 1, 2, 2]), mode="nearest")


def transposed(t, x):
    y = t.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return t.op("ConvTranspose", y, t.normal(6, 6, 2, 2), t.normal(6), strides=[2, 2])


def shuffle(t, x):
    shape = t.op("Shape", x)
    y = t.op("Reshape", x, t.const([0, 2, 3, 8, 8], np.int64))
    return t.op("Reshape", t.op("Transpose", y, perm=[0, 2, 1, 3, 4]), shape)


def split_swap(t, x):
    a, b = t.op("Split", x, t.const([3, 3], np.int64), outputs=2, axis=1)
    return t.op("Concat", t.op("Max", a, b), t.op("Sub", b, a), axis=1)


def padded(t, x):
    pads = t.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    y = t.op("Pad", x, pads, t.const(0.0), mode="constant")
    return t.op("Conv", y, t.normal(6, 6, 3, 3))


def instance_norm(t, x):
    return t.op("InstanceNormalization", x, t.const(np.ones(6)), t.const(np.zeros(6)))


def where(t, x):
    positive = t.op("Greater", x, t.const(0.1))
    return t.op("Where", positive, x, t.op("PRelu", x, t.normal(6, 1, 1)))


def projection(t, x):
    return t.op("Add", t.op("MatMul", x, t.normal(8, 8)), t.normal(8))


def gelu(t, x):
    erf = t.op("Erf", t.op("Div", x, t.const(np.sqrt(2.0))))
    return t.op("Mul", t.op("Mul", x, t.op("Add", erf, t.const(1.0))), t.const(0.5))


def layer_norm(t, x):
    return t.op("LayerNormalization", x, t.const(np.ones(8)), t.const(np.zeros(8)), axis=-1)


def written_norm(t, x):
    shifted = t.op("Sub", x, t.op("ReduceMean", x, t.const([-1], np.int64)))
    squares = t.op("Pow", shifted, t.const(2.0))
    mean = t.op("Add", t.op("ReduceMean", squares, t.const([-1], np.int64)), t.const(1e-12))
    return t.op("Mul", t.op("Div", shifted, t.op("Sqrt", mean)), t.normal(8))


def attention(t, x):
    query, key, value = (t.op("MatMul", x, t.normal(8, 8)) for _ in range(3))
    scores = t.op("MatMul", query, t.op("Transpose", key, perm=[0, 2, 1]))
    scores = t.op("Mul", scores, t.const(0.35))
    mask = t.const(np.triu(np.full((6, 6), -FINEST), 1))
    weights = t.op("Softmax", t.op("Add", scores, mask), axis=-1)
    return t.op("Add", x, t.op("MatMul", weights, value))


def gathered(t, x):
    return t.op("Gather", x, t.const([5, 4, 3, 2, 1, 0], np.int64), axis=1)


def table(t, x):
    best = t.op("ArgMax", x, axis=-1, keepdims=0)
    return t.op("Add", x, t.op("Gather", t.normal(8, 8), best))


IMAGE_BLOCKS = [
    conv_relu, depthwise, residual, branches, excitation, down_up, transposed, shuffle,
    split_swap, padded, instance_norm, where,
]  # fmt: skip
SEQUENCE_BLOCKS = [projection, gelu, layer_norm, written_norm, attention, gathered, table]


def towers(path, seeds, opset=19):
    """Write a model with a tower for every seed."""
    made = [Tower(f"t{seed}", seed, "sequence" if seed % 3 == 2 else "image") for seed in seeds]
    nodes = [node for tower in made for node in tower.nodes]
    weights = {name: array for tower in made for name, array in tower.weights.items()}
    inputs = {tower.input: [2, *tower.shape] for tower in made}
    outputs = {tower.output: [2, 5] if len(tower.shape) == 3 else [2, 6, 5] for tower in made}
    return save(path, nodes, weights, inputs, outputs, opset)


def feeds_for(model, count=8):
    draw = rng(5)
    return {
        spec.name: draw.standard_normal((count, *spec.shape[1:])).astype(np.float32)
        for spec in model.inputs
    }
