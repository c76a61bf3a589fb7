"""Graphs with known answers: which patterns each has, whether they are whole, what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from tests.fixtures.zoo_net import Net
from trtcal.model import Model, load_model

SIZE = 12
SCALE = 0.05


@dataclass(frozen=True)
class Answer:
    """One pattern that is there: its nodes, and the nodes that break it, none if it is whole."""

    pattern: str
    nodes: frozenset[str]
    breakers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Graph:
    """A graph and all the answers to it."""

    name: str
    make: Callable[[], Sketch]
    answers: tuple[Answer, ...]

    def save(self, folder: Path) -> Model:
        """Write the ONNX and load it."""
        path = folder / f"{self.name}.onnx"
        onnx.save(self.make().proto(), path)
        return load_model(path)


GRAPHS: dict[str, Graph] = {}
STORIES = ("story_batch_norm", "story_layer_norm")


def known(*answers: Answer):
    def register(make):
        GRAPHS[make.__name__] = Graph(make.__name__, make, answers)
        return make

    return register


def has(pattern: str, nodes: str, broken_by: str = "") -> Answer:
    return Answer(pattern, frozenset(nodes.split()), frozenset(broken_by.split()))


class Sketch(Net):
    """A graph in which every node that matters is named."""

    def norm2d(self, name, x, channels=8):
        numbers = ((1.25, 0.1), (0.1, 0.05), (0.2, 0.1))
        ramps = [self.value(np.linspace(a - b, a + b, channels)) for a, b in numbers]
        variance = self.value(np.linspace(0.5, 1.5, channels))
        return self.add("BatchNormalization", x, *ramps, variance, name=name)

    def conv3(self, name, x, out=8, channels=8, **more):
        return self.conv(name, x, (out, channels // more.get("group", 1), 3, 3), **more)

    def same(self, x, name="same"):
        return self.add("Identity", x, name=name)

    def leaky(self, x, name="act"):
        return self.add("LeakyRelu", x, name=name, alpha=0.1)

    def act(self, x, name="act", op="Relu"):
        return self.add(op, x, name=name)

    def cast(self, x, kind, name):
        return self.add("Cast", x, name=name, to=kind)

    def pair(self, x, name, scale=SCALE):
        """Add QuantizeLinear and DequantizeLinear, `nameq` and `named`."""
        more = [self.value(scale), self.value(0, np.int8)]
        q = self.add("QuantizeLinear", x, *more, name=f"{name}q")
        return self.add("DequantizeLinear", q, *more, name=f"{name}d")

    def layer_norm(self, x, size=16, name="norm"):
        scale, shift = self.value(np.linspace(0.8, 1.2, size)), self.vector(size)
        return self.add("LayerNormalization", x, scale, shift, name=name, axis=-1)

    def chain(self, x, *steps, prefix="g"):
        """Add nodes one after the other; each is an operator and its other operands."""
        for number, (op, *others) in enumerate(steps):
            x = self.add(op, x, *others, name=f"{prefix}{number}")
        return x

    def erf_gelu(self, x):
        half = self.chain(x, ("Div", self.value(2**0.5)), ("Erf",), ("Add", self.value(1)))
        return self.chain(x, ("Mul", half), ("Mul", self.value(0.5)), prefix="h")

    def tanh_gelu(self, x):
        cube = self.chain(x, ("Pow", self.value(3)), ("Mul", self.value(0.044715)))
        inner = self.chain(cube, ("Add", x), ("Mul", self.value(0.7978845608)), prefix="i")
        grown = self.chain(inner, ("Tanh",), ("Add", self.value(1)), prefix="j")
        return self.chain(x, ("Mul", self.value(0.5)), ("Mul", grown), prefix="h")

    def swish(self, x):
        return self.add("Mul", x, self.add("Sigmoid", x, name="sigmoid"), name="mul")

    def linear_bias(self, x, inputs=16, outputs=16, name="mm", bias="bias"):
        y = self.add("MatMul", x, self.weight(inputs, outputs, fan_in=inputs), name=name)
        return self.add("Add", y, self.vector(outputs), name=bias)


ERF = "g0 g1 g2 h0 h1"
TANH = "g0 g1 i0 i1 j0 j1 h0 h1"


def image(channels=8, **more):
    return Sketch(x=[1, channels, SIZE, SIZE], **more)


def tokens():
    return Sketch(x=[1, 12, 16])


@known(has("norm+activation", "bn act", "same"))
def story_batch_norm():
    net = image()
    pooled = net.pool("MaxPool", "x")  # a BatchNormalization that nothing can fold away
    return net.done(net.leaky(net.same(net.norm2d("bn", pooled))))


@known(has("norm+activation", "norm act", "middleq middled"))
def story_layer_norm():
    net = tokens()
    normed = net.pair(net.layer_norm(net.pair("x", "before")), "middle")
    return net.done(net.pair(net.leaky(normed), "after"))


@known(has("norm+activation", "norm act"))
def layer_norm_inside_pairs():
    net = tokens()
    return net.done(net.pair(net.leaky(net.layer_norm(net.pair("x", "before"))), "after"))


@known(has("conv+activation", "c act"))
def conv_relu():
    net = image()
    return net.done(net.act(net.conv3("c", "x")))


@known(has("conv+activation", "c act"))
def conv_leaky():
    net = image()
    return net.done(net.leaky(net.conv3("c", "x")))


@known(has("conv+activation", "c act"))
def conv_prelu():
    net = image()
    return net.done(net.add("PRelu", net.conv3("c", "x"), net.value([[[0.1]]] * 8), name="act"))


@known(has("conv+bn+activation", "c bn act"))
def conv_bn_relu():
    net = image()
    return net.done(net.act(net.norm2d("bn", net.conv3("c", "x"))))


@known(has("conv+bn+activation", "c bn act", "same"))
def conv_bn_identity_leaky():
    net = image()
    return net.done(net.leaky(net.same(net.norm2d("bn", net.conv3("c", "x")))))


@known(has("conv+bn+activation", "c bn act", "one two"))
def conv_identity_bn_identity_relu():
    net = image()
    normed = net.norm2d("bn", net.same(net.conv3("c", "x"), "one"))
    return net.done(net.act(net.same(normed, "two")))


@known(has("conv+bn", "c bn"))
def conv_bn():
    net = image()
    return net.done(net.norm2d("bn", net.conv3("c", "x")))


@known(has("conv+bn+activation", "c bn sigmoid mul"))
def conv_bn_swish():
    net = image()
    return net.done(net.swish(net.norm2d("bn", net.conv3("c", "x"))))


@known(has("conv+activation", "c sigmoid"))
def conv_gate():
    net = image()
    gate = net.act(net.conv3("c", "x"), "sigmoid", "Sigmoid")
    return net.done(net.add("Mul", "x", gate, name="mul"))


@known(has("conv+activation", "c g0 g1 h0 h1"))
def conv_hard_swish():
    net = image()
    a = net.conv3("c", "x")
    inner = net.chain(a, ("Add", net.value(3)), ("Clip", net.value(0), net.value(6)))
    return net.done(net.chain(a, ("Mul", inner), ("Div", net.value(6)), prefix="h"))


@known(has("conv+activation", "c act", "drop"))
def conv_dropout_relu():
    net = image()
    return net.done(net.act(net.add("Dropout", net.conv3("c", "x"), name="drop")))


@known(has("conv+activation", "c act", "down up"))
def conv_casts_relu():
    net = image()
    half = net.cast(net.conv3("c", "x"), TensorProto.FLOAT16, "down")
    return net.done(net.act(net.cast(half, TensorProto.FLOAT, "up")))


@known(has("conv+activation", "c act", "up down"))
def half_conv_casts_relu():
    net = image(half=True)
    wide = net.cast(net.conv3("c", "x"), TensorProto.FLOAT, "up")
    return net.done(net.act(net.cast(wide, TensorProto.FLOAT16, "down")))


@known(has("conv+activation", "c act", "up"))
def half_conv_wide_relu():
    net = image(half=True)
    wide = net.act(net.cast(net.conv3("c", "x"), TensorProto.FLOAT, "up"))
    return net.done(net.cast(wide, TensorProto.FLOAT16, "last"))


@known(has("conv+activation", "c act", "there back"))
def conv_transposes_relu():
    net = image()
    turned = net.add("Transpose", net.conv3("c", "x"), name="there", perm=[0, 2, 3, 1])
    return net.done(net.act(net.add("Transpose", turned, name="back", perm=[0, 3, 1, 2])))


@known(has("conv+activation", "c act", "c"))
def conv_is_output():
    net = image()
    a = net.conv3("c", "x")
    return net.done(net.act(a), a)


@known(has("conv+activation", "c act", "pool"))
def conv_read_twice():
    net = image()
    a = net.conv3("c", "x")
    return net.done(net.act(a), net.add("GlobalAveragePool", a, name="pool"))


@known(has("conv+activation", "c act"))
def conv_shape_read():
    net = image()
    a = net.conv3("c", "x")
    return net.done(net.add("Reshape", net.act(a), net.add("Shape", a)))


@known()
def conv_pool_relu():
    net = image()
    return net.done(net.act(net.pool("MaxPool", net.conv3("c", "x"))))


@known(has("conv+activation", "one act1"), has("conv+activation", "two act2"))
def two_convs():
    net = image()
    a = net.act(net.conv3("one", "x"), "act1")
    return net.done(net.act(net.conv3("two", a), "act2"))


@known(has("conv+activation", "one act1"), has("add+activation", "sum act2"))
def residual():
    net = image()
    a = net.conv3("two", net.act(net.conv3("one", "x"), "act1"))
    return net.done(net.act(net.add("Add", a, "x", name="sum"), "act2"))


@known(has("conv+bn", "c bn"), has("add+activation", "sum act"))
def residual_normed():
    net = image()
    a = net.norm2d("bn", net.conv3("c", "x"))
    return net.done(net.act(net.add("Add", a, "x", name="sum")))


@known(has("add+activation", "sum act", "same"))
def residual_identity():
    net = image()
    a = net.same(net.add("Add", net.conv3("c", "x"), "x", name="sum"))
    return net.done(net.act(a))


@known(has("add+activation", "sum act", "last"))
def residual_kept():
    net = image()
    a = net.add("Add", net.conv3("c", "x"), "x", name="sum")
    return net.done(net.add("Add", net.conv3("d", net.act(a)), a, name="last"))


@known(
    has("conv+bn+activation", "expand bn1 act1"),
    has("conv+bn+activation", "depth bn2 act2"),
    has("conv+bn", "project bn3"),
)
def inverted_residual():
    net = image()
    a = net.norm2d("bn1", net.conv("expand", "x", (16, 8, 1, 1)), 16)
    a = net.add("Clip", a, net.value(0), net.value(6), name="act1")
    a = net.norm2d("bn2", net.conv("depth", a, (16, 1, 3, 3), group=16), 16)
    a = net.add("Clip", a, net.value(0), net.value(6), name="act2")
    a = net.norm2d("bn3", net.conv("project", a, (8, 16, 1, 1)))
    return net.done(net.add("Add", a, "x"))


@known(has("conv+activation", "up act"))
def transposed_conv_relu():
    net = image()
    return net.done(net.act(net.up("up", "x", (8, 8, 2, 2))))


@known(has("conv+activation", "c act"))
def quantized_conv_relu():
    net = image()
    a = net.conv3("c", net.pair("x", "in"), weight=net.pair(net.weight(8, 8, 3, 3), "w"))
    return net.done(net.pair(net.act(a), "out"))


@known(has("conv+activation", "c act", "inq ind"))
def conv_pair_relu():
    net = image()
    return net.done(net.act(net.pair(net.conv3("c", "x"), "in")))


@known(has("norm+activation", "norm act"))
def instance_norm_leaky():
    net = image()
    parameters = (net.value(np.ones(8)), net.vector(8))
    return net.done(net.leaky(net.add("InstanceNormalization", "x", *parameters, name="norm")))


@known(has("norm+activation", "norm act"))
def layer_norm_leaky():
    net = tokens()
    return net.done(net.leaky(net.layer_norm("x")))


@known(has("norm+activation", "norm act", "same"))
def layer_norm_identity_leaky():
    net = tokens()
    return net.done(net.leaky(net.same(net.layer_norm("x"))))


@known(has("norm+activation", "mean centred g0 g1 g2 g3 h0 h1 h2 act"))
def spelled_layer_norm_leaky():
    net = tokens()
    a = net.add("Sub", "x", net.add("ReduceMean", "x", name="mean", axes=[-1]), name="centred")
    a2 = net.add("Pow", a, net.value(2), name="g0")
    variance = net.add("ReduceMean", a2, name="g1", axes=[-1])
    deviation = net.add("Sqrt", net.add("Add", variance, net.value(1e-5), name="g2"), name="g3")
    scale, shift = net.value(np.linspace(0.8, 1.2, 16)), net.vector(16)
    a = net.chain(a, ("Div", deviation), ("Mul", scale), ("Add", shift), prefix="h")
    return net.done(net.leaky(a))


@known(has("layer_norm", "norm"), has("matmul+add", "mm bias"))
def layer_norm_matmul():
    net = tokens()
    return net.done(net.linear_bias(net.layer_norm("x")))


@known(has("matmul+add+activation", f"mm bias {ERF}"))
def matmul_erf_gelu():
    net = tokens()
    return net.done(net.erf_gelu(net.linear_bias("x")))


@known(has("matmul+add+activation", f"mm bias {TANH}"))
def matmul_tanh_gelu():
    net = tokens()
    return net.done(net.tanh_gelu(net.linear_bias("x")))


@known(has("matmul+add+activation", f"mm bias {ERF}", "same"))
def matmul_identity_gelu():
    net = tokens()
    return net.done(net.erf_gelu(net.same(net.linear_bias("x"))))


@known(has("matmul+add+activation", "mm bias act", "drop"))
def matmul_dropout_add_relu():
    net = tokens()
    a = net.add("MatMul", "x", net.weight(16, 16), name="mm")
    a = net.add("Add", net.add("Dropout", a, name="drop"), net.vector(16), name="bias")
    return net.done(net.act(a))


@known(has("matmul+add+activation", "fc act"))
def gemm_relu():
    net = Sketch(x=[4, 16])
    return net.done(net.act(net.gemm("fc", "x", 24, 16)))


@known(has("gelu", ERF))
def gelu_alone():
    net = tokens()
    return net.done(net.erf_gelu("x"))


def heads(net, *, scale=False, mask=False, between=lambda net, x: x):
    """Add attention over inputs q, k and v; its nodes are qk, scaled, masked, soft and qkv."""
    a = net.add("MatMul", "q", net.add("Transpose", "k", perm=[0, 1, 3, 2]), name="qk")
    if scale:
        a = net.add("Mul", a, net.value(8**-0.5), name="scaled")
    if mask:
        a = net.add("Add", a, "mask", name="masked")
    a = between(net, net.add("Softmax", a, name="soft", axis=-1))
    return net.add("MatMul", a, "v", name="qkv")


def towers(**more):
    return Sketch(**{name: [1, 2, 12, 8] for name in "qkv"}, **more)


@known(has("attention", "qk soft qkv"))
def attention():
    net = towers()
    return net.done(heads(net))


@known(has("attention", "qk scaled masked soft qkv"))
def attention_masked():
    net = towers(mask=[1, 1, 12, 12])
    return net.done(heads(net, scale=True, mask=True))


@known(has("attention", "qk scaled soft qkv", "drop"))
def attention_dropout():
    net = towers()
    return net.done(
        heads(net, scale=True, between=lambda net, x: net.add("Dropout", x, name="drop"))
    )


@known(has("attention", "qk soft qkv"))
def attention_quantized():
    net = towers()
    q, k, v = (net.pair(name, f"pair_{name}") for name in "qkv")
    a = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]), name="qk")
    a = net.pair(net.add("Softmax", a, name="soft", axis=-1), "weights", 1 / 127)
    return net.done(net.add("MatMul", a, v, name="qkv"))


@known(has("attention", "qk soft qkv", "soft"))
def attention_weights_kept():
    net = towers()
    kept = []
    result = heads(net, between=lambda net, x: kept.append(x) or x)
    return net.done(result, *kept)


@known(has("softmax", "soft"))
def softmax_alone():
    net = tokens()
    return net.done(net.add("Softmax", "x", name="soft", axis=-1))


@known(has("softmax", "most centred powers sum share"))
def spelled_softmax():
    net = tokens()
    most = net.add("ReduceMax", "x", name="most", axes=[-1])
    powers = net.add("Exp", net.add("Sub", "x", most, name="centred"), name="powers")
    total = net.add("ReduceSum", powers, net.ints(-1), name="sum")
    return net.done(net.add("Div", powers, total, name="share"))


@known(
    has("layer_norm", "norm"),
    has("matmul+add+activation", f"mm bias {ERF}"),
    has("matmul+add", "down shift"),
)
def feed_forward():
    net = tokens()
    wide = net.erf_gelu(net.linear_bias(net.layer_norm("x"), 16, 32))
    narrow = net.linear_bias(wide, 32, 16, "down", "shift")
    return net.done(net.add("Add", narrow, "x", name="sum"))
