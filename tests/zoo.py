"""The zoo: small graphs of every shape that networks take, each with what INT8 it must get.

`ZOO` maps names to entries. The networks are here; operators and products in files beside this one.
"""

from tests import zoo_convolutions, zoo_language, zoo_products
from tests.zoo_convolutions import LOWERED_HALF, image
from tests.zoo_net import NO_KERNEL, ZOO, Entry, Net, entry

__all__ = ["ZOO", "Entry", "Net", "zoo_convolutions", "zoo_language", "zoo_products"]


def basic_block(net, x, name, channels=8):
    a = net.relu(net.conv(f"{name}a", x, (channels, channels, 3, 3)))
    b = net.conv(f"{name}b", a, (channels, channels, 3, 3))
    return net.relu(net.add("Add", b, x))


@entry("stem onea oneb twoa twob head")
def residual():
    net = image(3)
    a = net.relu(net.conv("stem", "x", (8, 3, 3, 3)))
    a = basic_block(net, basic_block(net, a, "one"), "two")
    return net.done(net.head("head", a, 8))


@entry("main1 main2 shortcut head")
def residual_projected():
    net = image()
    a = net.relu(net.conv("main1", "x", (16, 8, 3, 3), strides=[2, 2]))
    a = net.conv("main2", a, (16, 16, 3, 3))
    b = net.conv("shortcut", "x", (16, 8, 1, 1), strides=[2, 2])
    return net.done(net.head("head", net.relu(net.add("Add", a, b)), 16))


@entry("one two head")
def residual_before():
    net = image()
    a = net.conv("one", net.relu("x"), (8, 8, 3, 3))
    a = net.add("Add", net.conv("two", net.relu(a), (8, 8, 3, 3)), "x")
    return net.done(net.head("head", net.relu(a), 8))


@entry("reduce middle expand head")
def bottleneck():
    net = image(16)
    a = net.relu(net.conv("reduce", "x", (8, 16, 1, 1)))
    a = net.relu(net.conv("middle", a, (8, 8, 3, 3)))
    a = net.add("Add", net.conv("expand", a, (16, 8, 1, 1)), "x")
    return net.done(net.head("head", net.relu(a), 16))


@entry("one two three head")
def three_added():
    net = image()
    parts = [net.conv(name, "x", (8, 8, 3, 3)) for name in ("one", "two", "three")]
    return net.done(net.head("head", net.relu(net.add("Sum", *parts)), 8))


@entry("a b1 b2 c1 c2 d last")
def inception():
    net = image(16)
    a = net.relu(net.conv("a", "x", (8, 16, 1, 1)))
    b = net.relu(net.conv("b2", net.relu(net.conv("b1", "x", (4, 16, 1, 1))), (8, 4, 3, 3)))
    c = net.relu(net.conv("c2", net.relu(net.conv("c1", "x", (4, 16, 1, 1))), (8, 4, 5, 5)))
    pooled = net.pool("MaxPool", "x", 3, 1, pads=[1] * 4)
    joined = net.add("Concat", a, b, c, net.relu(net.conv("d", pooled, (8, 16, 1, 1))), axis=1)
    return net.done(net.conv("last", joined, (8, 32, 1, 1)))


@entry("a b last")
def inception_averaged():
    net = image()
    pooled = net.pool("AveragePool", "x", 3, 1, pads=[1] * 4)
    parts = [net.conv("a", "x", (8, 8, 3, 3)), net.conv("b", pooled, (8, 8, 1, 1))]
    return net.done(net.conv("last", net.relu(net.add("Concat", *parts, axis=1)), (8, 16, 1, 1)))


@entry("squeeze left right head")
def fire():
    net = image(16)
    a = net.relu(net.conv("squeeze", "x", (4, 16, 1, 1)))
    parts = [net.conv("left", a, (8, 4, 1, 1)), net.conv("right", a, (8, 4, 3, 3))]
    joined = net.add("Concat", *map(net.relu, parts), axis=1)
    return net.done(net.head("head", net.pool("MaxPool", joined), 16))


@entry("grow0 grow1 grow2 transition head")
def dense_block():
    net = image()
    a, channels = "x", 8
    for number in range(3):
        new = net.relu(net.conv(f"grow{number}", a, (4, channels, 3, 3)))
        a, channels = net.add("Concat", a, new, axis=1), channels + 4
    a = net.pool("AveragePool", net.conv("transition", a, (8, channels, 1, 1)))
    return net.done(net.head("head", a, 8))


@entry("grow0 grow1 head")
def dense_block_normed():
    net = image()
    a, channels = "x", 8
    for number in range(2):
        scale, shift = net.value([[[1.25]]] * channels), net.value([[[0.1]]] * channels)
        active = net.relu(net.add("Add", net.add("Mul", a, scale), shift))
        new = net.conv(f"grow{number}", active, (4, channels, 3, 3))
        a, channels = net.add("Concat", a, new, axis=1), channels + 4
    return net.done(net.head("head", net.relu(a), channels))


@entry("down1 down2 bottom join out", up=NO_KERNEL)
def unet():
    net = image(3)
    a = net.relu(net.conv("down1", "x", (8, 3, 3, 3)))
    b = net.relu(net.conv("down2", net.pool("MaxPool", a), (16, 8, 3, 3)))
    b = net.relu(net.conv("bottom", b, (16, 16, 3, 3)))
    joined = net.add("Concat", net.up("up", b, (16, 8, 2, 2)), a, axis=1)
    return net.done(
        net.conv("out", net.relu(net.conv("join", joined, (8, 16, 3, 3))), (2, 8, 1, 1))
    )


def resize(net, x, mode="nearest"):
    return net.add("Resize", x, "", net.value([1, 1, 2, 2], "float32"), mode=mode)


@entry("down bottom join")
def unet_resized():
    net = image(3)
    a = net.relu(net.conv("down", "x", (8, 3, 3, 3)))
    b = net.relu(net.conv("bottom", net.pool("MaxPool", a), (8, 8, 3, 3)))
    joined = net.add("Concat", resize(net, b), a, axis=1)
    return net.done(net.conv("join", joined, (4, 16, 3, 3)))


@entry("fine coarse side smooth")
def pyramid():
    net = image()
    a = net.relu(net.conv("fine", "x", (8, 8, 3, 3)))
    b = net.relu(net.conv("coarse", a, (8, 8, 3, 3), strides=[2, 2]))
    joined = net.add("Add", net.conv("side", a, (8, 8, 1, 1)), resize(net, b, "linear"))
    return net.done(net.conv("smooth", joined, (8, 8, 3, 3)), b)


@entry("one reduce expand two")
def squeeze_excite():
    net = image()
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    gate = net.relu(net.conv("reduce", net.add("GlobalAveragePool", a), (4, 8, 1, 1)))
    gate = net.add("Sigmoid", net.conv("expand", gate, (8, 4, 1, 1)))
    return net.done(net.conv("two", net.add("Mul", a, gate), (8, 8, 1, 1)))


@entry("one reduce expand two")
def squeeze_excite_gemm():
    net = image()
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    pooled = net.add("Flatten", net.add("GlobalAveragePool", a))
    gate = net.gemm("expand", net.relu(net.gemm("reduce", pooled, 4, 8)), 8, 4)
    gate = net.add("Reshape", net.add("Sigmoid", gate), net.ints(0, 8, 1, 1))
    return net.done(net.conv("two", net.add("Mul", a, gate), (8, 8, 1, 1)))


@entry("one depth two")
def channel_shuffle():
    net = image()
    a = net.relu(net.conv("one", "x", (8, 4, 1, 1), group=2))
    a = net.add("Transpose", net.add("Reshape", a, net.ints(0, 2, 4, 12, 12)), perm=[0, 2, 1, 3, 4])
    a = net.conv("depth", net.add("Reshape", a, net.ints(0, 8, 12, 12)), (8, 1, 3, 3), group=8)
    return net.done(net.conv("two", a, (8, 4, 1, 1), group=2))


@entry("entry0 inner join")
def split_and_joined():
    net = image()
    a = net.relu(net.conv("entry0", "x", (16, 8, 1, 1)))
    left, right = net.add("Split", a, axis=1, outputs=2)
    joined = net.add("Concat", left, net.relu(net.conv("inner", right, (8, 8, 3, 3))), axis=1)
    return net.done(net.conv("join", joined, (8, 16, 1, 1)))


@entry("narrow join")
def pyramid_pooling():
    net = image()
    a = net.relu(net.conv("narrow", "x", (4, 8, 1, 1)))
    pooled = [a]
    for _ in range(3):
        pooled.append(net.pool("MaxPool", pooled[-1], 5, 1, pads=[2] * 4))
    return net.done(net.conv("join", net.add("Concat", *pooled, axis=1), (8, 16, 1, 1)))


@entry("trunk boxes classes")
def detector():
    net = image(3)
    a = net.relu(net.conv("trunk", "x", (8, 3, 3, 3), strides=[2, 2]))
    flat = []
    for name, channels in (("boxes", 8), ("classes", 6)):
        y = net.add("Transpose", net.conv(name, a, (channels, 8, 3, 3)), perm=[0, 2, 3, 1])
        flat.append(net.add("Reshape", y, net.ints(0, -1, 2)))
    return net.done(net.add("Concat", *flat, axis=1))


@entry("near far join")
def two_images():
    net = Net(x=["n", 3, 12, 12], z=["n", 1, 12, 12])
    sides = [net.conv("near", "x", (8, 3, 3, 3)), net.conv("far", "z", (8, 1, 3, 3))]
    return net.done(net.conv("join", net.relu(net.add("Concat", *sides, axis=1)), (4, 16, 1, 1)))


@entry("conv value key query scores mix head")
def attention_over_image():
    net = image(3, 6, 6)
    a = net.relu(net.conv("conv", "x", (8, 3, 3, 3)))
    flat = {
        name: net.add("Reshape", net.conv(name, a, (8, 8, 1, 1)), net.ints(0, 8, 36))
        for name in ("value", "key", "query")
    }
    turned = net.add("Transpose", flat["query"], perm=[0, 2, 1])
    scores = net.add("Softmax", net.add("MatMul", turned, flat["key"], name="scores"), axis=-1)
    turned = net.add("Transpose", scores, perm=[0, 2, 1])
    mixed = net.add("MatMul", flat["value"], turned, name="mix")
    mixed = net.add("Add", net.add("Reshape", mixed, net.ints(0, 8, 6, 6)), a)
    return net.done(net.head("head", mixed, 8))


@entry("first second third")
def multilayer_audio():
    net = Net(x=["n", 1, 64])
    a = net.add("Tanh", net.conv("first", "x", (8, 1, 9), strides=[2]))
    a = net.add("Tanh", net.conv("second", a, (8, 8, 3), dilations=[2]))
    a = net.add("MaxPool", a, kernel_shape=[2], strides=[2])
    return net.done(net.gemm("third", net.add("Flatten", a), 10, 128))


@entry("one two")
def scaled_input():
    net = image(3)
    a = net.add("Div", net.add("Sub", "x", net.value([[[0.5]]] * 3)), net.value([[[0.25]]] * 3))
    a = net.add("Mul", net.conv("one", a, (8, 3, 3, 3)), net.value(0.1))
    return net.done(net.conv("two", net.relu(a), (8, 8, 3, 3)))


@entry("one two head", stumbles=LOWERED_HALF)
def half_residual():
    net = image(half=True)
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    a = net.add("Add", net.conv("two", a, (8, 8, 3, 3)), a)
    return net.done(net.head("head", net.pool("MaxPool", a), 8))
