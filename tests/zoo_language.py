"""The zoo's blocks of language models: attention, encoders, embeddings, gates."""

import numpy as np

from tests.zoo_net import Net, entry
from tests.zoo_products import tokens


@entry("up down")
def gelu_mlp():
    net = tokens()
    return net.done(net.linear("down", net.gelu(net.linear("up", "x", 16, 64)), 64, 16))


@entry("gate up down")
def swiglu():
    net = tokens()
    gate = net.linear("gate", "x", 16, 32, bias=False)
    a = net.add("Mul", gate, net.add("Sigmoid", gate))
    a = net.add("Mul", a, net.linear("up", "x", 16, 32, bias=False))
    return net.done(net.linear("down", a, 32, 16, bias=False))


@entry("one two")
def layer_norm():
    net = tokens()
    a = net.norm(net.linear("one", "x", 16, 16), 16)
    return net.done(net.linear("two", a, 16, 16))


@entry("one two")
def layer_norm_spelled_out():
    net = tokens()
    a = net.linear("one", "x", 16, 16)
    a = net.add("Sub", a, net.add("ReduceMean", a, axes=[-1]))
    variance = net.add("ReduceMean", net.add("Pow", a, net.value(2)), axes=[-1])
    deviation = net.add("Sqrt", net.add("Add", variance, net.value(1e-5)))
    return net.done(net.linear("two", net.add("Div", a, deviation), 16, 16))


def split_heads(net, x, length, heads, size, perm=(0, 2, 1, 3)):
    return net.add("Transpose", net.add("Reshape", x, net.ints(0, length, heads, size)), perm=perm)


def attention(net, x, length=12, size=16, heads=2, mask=None, prefix=""):
    """Add self-attention with a projection each for query, key, value and the output."""
    one = size // heads
    parts = [net.linear(f"{prefix}{part}", x, size, size) for part in ("query", "key", "value")]
    query, value = (split_heads(net, part, length, heads, one) for part in parts[::2])
    key = split_heads(net, parts[1], length, heads, one, perm=(0, 2, 3, 1))
    scores = net.add("MatMul", query, key, name=f"{prefix}scores")
    scores = net.add("Div", scores, net.value(one**0.5))
    scores = net.add("Add", scores, mask) if mask else scores
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), value, name=f"{prefix}mix")
    mixed = net.add("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = net.add("Reshape", mixed, net.ints(0, length, size))
    return net.linear(f"{prefix}out", mixed, size, size)


ATTENTION = "query key value scores mix out"


@entry(ATTENTION)
def attention_block():
    net = tokens()
    return net.done(attention(net, "x"))


@entry(ATTENTION)
def attention_masked():
    net = tokens()
    mask = net.value(np.triu(np.full((12, 12), -1e4), 1))
    return net.done(attention(net, "x", mask=mask))


@entry("all scores mix")
def attention_fused():
    net = tokens()
    parts = net.add("Split", net.linear("all", "x", 16, 48), axis=-1, outputs=3)
    query, key, value = (
        split_heads(net, part, 12, 2, 8, perm)
        for part, perm in zip(parts, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], strict=True)
    )
    weights = net.add("Softmax", net.add("MatMul", query, key, name="scores"), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", weights, value, name="mix"), perm=[0, 2, 1, 3])
    return net.done(net.add("Reshape", mixed, net.ints(0, 12, 16)))


@entry("all scores mix")
def attention_packed():
    net = tokens()
    a = net.add("Reshape", net.linear("all", "x", 16, 48), net.ints(0, 12, 3, 2, 8))
    a = net.add("Transpose", a, perm=[2, 0, 3, 1, 4])
    query, key, value = (net.add("Gather", a, net.value(i, np.int64), axis=0) for i in range(3))
    turned = net.add("Transpose", key, perm=[0, 1, 3, 2])
    weights = net.add("Softmax", net.add("MatMul", query, turned, name="scores"), axis=-1)
    return net.done(net.add("MatMul", weights, value, name="mix"))


@entry("query key value scores mix")
def attention_across():
    net = Net(x=["n", 12, 16], z=["n", 10, 16])
    query = net.linear("query", "x", 16, 16)
    key, value = (net.linear(name, "z", 16, 16) for name in ("key", "value"))
    turned = net.add("Transpose", key, perm=[0, 2, 1])
    weights = net.add("Softmax", net.add("MatMul", query, turned, name="scores"), axis=-1)
    return net.done(net.add("MatMul", weights, value, name="mix"))


def encoder(net, x, length=12, size=16, heads=2, prefix=""):
    """Add a transformer's encoder layer, normalized after each addition as in BERT."""
    a = net.norm(net.add("Add", attention(net, x, length, size, heads, prefix=prefix), x), size)
    b = net.gelu(net.linear(f"{prefix}up", a, size, 4 * size))
    return net.norm(net.add("Add", net.linear(f"{prefix}down", b, 4 * size, size), a), size)


@entry(f"{ATTENTION} up down")
def encoder_layer():
    net = tokens()
    return net.done(encoder(net, "x"))


@entry(f"{ATTENTION} up down")
def encoder_normed_before():
    net = tokens()
    a = net.add("Add", "x", attention(net, net.norm("x", 16)))
    b = net.gelu(net.linear("up", net.norm(a, 16), 16, 64))
    return net.done(net.add("Add", a, net.linear("down", b, 64, 16)))


@entry("one two")
def embedding():
    net = Net(ids=["n", 12], vocabulary=40)
    a = net.add("Gather", net.weight(40, 16, fan_in=2), "ids")
    a = net.relu(net.linear("one", a, 16, 24))
    return net.done(net.linear("two", net.add("ReduceMean", a, axes=[1], keepdims=0), 24, 10))


@entry("one logits")
def tied_embedding():
    net = Net(ids=["n", 12], vocabulary=40)
    table = net.weight(40, 16, fan_in=2)
    a = net.relu(net.linear("one", net.add("Gather", table, "ids"), 16, 16))
    return net.done(net.add("MatMul", a, net.add("Transpose", table, perm=[1, 0]), name="logits"))


@entry("tokens_in tokens_out channels_in channels_out")
def mixer():
    net = tokens()
    turned = net.add("Transpose", "x", perm=[0, 2, 1])
    a = net.linear("tokens_out", net.gelu(net.linear("tokens_in", turned, 12, 24)), 24, 12)
    a = net.add("Add", net.add("Transpose", a, perm=[0, 2, 1]), "x")
    b = net.linear("channels_out", net.gelu(net.linear("channels_in", a, 16, 32)), 32, 16)
    return net.done(net.add("Add", a, b))


@entry("patches query key value scores mix out head")
def vision_transformer():
    net = Net(x=["n", 3, 12, 12])
    a = net.conv("patches", "x", (16, 3, 4, 4), strides=[4, 4], pads=[0] * 4)
    a = net.add("Transpose", net.add("Reshape", a, net.ints(0, 16, 9)), perm=[0, 2, 1])
    a = net.add("Add", a, attention(net, net.norm(a, 16), 9))
    return net.done(net.linear("head", net.add("ReduceMean", a, axes=[1], keepdims=0), 16, 10))


@entry(ATTENTION)
def half_attention():
    net = tokens(half=True)
    return net.done(attention(net, "x"))
