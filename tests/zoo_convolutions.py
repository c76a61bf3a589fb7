"""The zoo's single operators over images and signals: convolutions, pooling, activations."""

from tests.zoo_net import NO_KERNEL, NOT_CONSTANT, SAME, Net, entry


def image(channels=8, height=12, width=12, **more):
    return Net(x=["n", channels, height, width], **more)


@entry("one two")
def conv1d():
    net = Net(x=["n", 6, 33])
    a = net.relu(net.conv("one", "x", (8, 6, 3)))
    return net.done(net.conv("two", a, (10, 8, 5), strides=[2], bias=False))


@entry("one two")
def conv2d():
    net = image(3)
    return net.done(net.conv("two", net.relu(net.conv("one", "x", (8, 3, 3, 3))), (8, 8, 1, 1)))


@entry("stem next")
def stem():
    net = image(3, 31, 31)
    a = net.relu(net.conv("stem", "x", (16, 3, 7, 7), strides=[2, 2]))
    a = net.pool("MaxPool", a, 3, 2, pads=[1] * 4)
    return net.done(net.conv("next", a, (8, 16, 3, 3)))


@entry("one two")
def odd_channels():
    net = image(5, 9, 11)
    a = net.relu(net.conv("one", "x", (7, 5, 3, 3), bias=False))
    return net.done(net.conv("two", a, (3, 7, 3, 3), strides=[2, 2]))


@entry("one")
def dilated():
    net = image()
    return net.done(net.conv("one", "x", (8, 8, 3, 3), dilations=[2, 2]))


@entry("wide tall")
def factored():
    net = image()
    return net.done(net.conv("tall", net.conv("wide", "x", (8, 8, 1, 7)), (8, 8, 7, 1)))


@entry("one")
def padded_unevenly():
    net = image()
    return net.done(net.conv("one", "x", (8, 8, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]))


@entry("one")
def same_upper():
    net = image(8, 11, 11)
    return net.done(net.conv("one", "x", (8, 8, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]))


@entry("one")
def padded_before():
    net = image()
    padded = net.add("Pad", "x", net.ints(0, 0, 1, 1, 0, 0, 1, 1))
    return net.done(net.conv("one", padded, (8, 8, 3, 3), pads=[0] * 4))


@entry("one")
def fixed_batch():
    net = Net(x=[4, 3, 12, 12])
    return net.done(net.relu(net.conv("one", "x", (8, 3, 3, 3))))


SIZES = {"x": ((1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32))}


@entry("one head", shapes=SIZES)
def dynamic_size():
    net = Net(x=["n", 3, "height", "width"])
    return net.done(net.head("head", net.relu(net.conv("one", "x", (8, 3, 3, 3))), 8))


@entry("one two")
def conv3d():
    net = Net(x=["n", 4, 6, 8, 8])
    a = net.relu(net.conv("one", "x", (8, 4, 3, 3, 3)))
    return net.done(net.conv("two", a, (8, 8, 1, 3, 3), strides=[1, 2, 2], bias=False))


@entry("depth")
def depthwise():
    net = image(16)
    return net.done(net.conv("depth", "x", (16, 1, 3, 3), group=16))


@entry("expand depth project")
def inverted_residual():
    net = image()
    a = net.add("Clip", net.conv("expand", "x", (24, 8, 1, 1)), net.value(0), net.value(6))
    a = net.conv("depth", a, (24, 1, 3, 3), group=24)
    a = net.add("Clip", a, net.value(0), net.value(6))
    return net.done(net.add("Add", net.conv("project", a, (8, 24, 1, 1)), "x"))


@entry("depth")
def depth_multiplied():
    net = image()
    return net.done(net.conv("depth", "x", (16, 1, 3, 3), group=8, bias=False))


@entry("one two")
def grouped():
    net = image(16)
    a = net.relu(net.conv("one", "x", (16, 4, 3, 3), group=4))
    return net.done(net.conv("two", a, (12, 8, 3, 3), group=2, strides=[2, 2]))


@entry("depth")
def depthwise1d():
    net = Net(x=["n", 12, 40])
    return net.done(net.conv("depth", "x", (12, 1, 5), group=12))


@entry("one", up=NO_KERNEL)
def transposed():
    net = image()
    return net.done(net.up("up", net.relu(net.conv("one", "x", (8, 8, 3, 3))), (8, 6, 2, 2)))


@entry("one", up=NO_KERNEL)
def transposed_groups():
    net = image()
    return net.done(net.conv("one", net.up("up", "x", (8, 4, 2, 2), group=2), (8, 8, 1, 1)))


@entry("one", up=NO_KERNEL)
def transposed1d():
    net = Net(x=["n", 8, 17])
    return net.done(net.up("up", net.relu(net.conv("one", "x", (8, 8, 3))), (8, 4, 4)))


@entry("one two")
def batch_norm():
    net = image()
    a = net.conv("one", "x", (8, 8, 3, 3), bias=False)
    ones = net.value([1.5] * 8)
    a = net.add("BatchNormalization", a, ones, net.vector(8), net.vector(8), ones)
    return net.done(net.conv("two", net.relu(a), (8, 8, 3, 3)))


def activated(*ops, **attributes):
    net = image()
    a = "x"
    for number, op in enumerate(ops):
        a = net.add(op, net.conv(f"conv{number}", a, (8, 8, 3, 3)), **attributes)
    return net.done(net.head("head", a, 8))


@entry("conv0 conv1 head")
def leaky():
    return activated("LeakyRelu", "LeakyRelu", alpha=0.1)


@entry("conv0 conv1 conv2 head")
def smooth():
    return activated("Sigmoid", "Tanh", "Softplus")


@entry("conv0 conv1 conv2 head")
def hard():
    return activated("HardSwish", "HardSigmoid", "Elu")


@entry("conv0 conv1 head")
def silu():
    net = image()
    a = "x"
    for number in range(2):
        a = net.conv(f"conv{number}", a, (8, 8, 3, 3))
        a = net.add("Mul", a, net.add("Sigmoid", a))
    return net.done(net.head("head", a, 8))


@entry("one two")
def prelu():
    net = image()
    slope = net.value([[[0.25]]] * 8)
    a = net.add("PRelu", net.conv("one", "x", (8, 8, 3, 3)), slope)
    return net.done(net.conv("two", a, (8, 8, 3, 3)))


@entry("one two head")
def max_pooled():
    net = image(8, 13, 13)
    a = net.pool("MaxPool", net.relu(net.conv("one", "x", (8, 8, 3, 3))))
    a = net.pool("MaxPool", net.conv("two", a, (8, 8, 3, 3)), 3, 1, pads=[1] * 4)
    return net.done(net.head("head", a, 8))


@entry("one two head")
def average_pooled():
    net = image()
    a = net.pool("AveragePool", net.relu(net.conv("one", "x", (8, 8, 3, 3))))
    a = net.pool("AveragePool", net.conv("two", a, (8, 8, 3, 3)), 3, 1, pads=[1] * 4)
    return net.done(net.head("head", a, 8))


@entry("one two")
def normalized():
    net = image()
    a = net.conv("one", "x", (8, 8, 3, 3))
    a = net.add("InstanceNormalization", a, net.value([1.0] * 8), net.vector(8))
    return net.done(net.conv("two", net.relu(a), (8, 8, 3, 3)))


@entry("one two")
def shared_tensor():
    net = image()
    a = net.relu("x")
    return net.done(net.conv("one", a, (8, 8, 3, 3)), net.conv("two", a, (4, 8, 1, 1)))


@entry("one two")
def shared_weight():
    net = image()
    weight = net.weight(8, 8, 3, 3)
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3), weight=weight))
    return net.done(net.conv("two", a, (8, 8, 3, 3), weight=weight, bias=False))


@entry("one two last")
def shared_weight_between():
    net = image()
    weight = net.weight(8, 8, 3, 3)
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3), weight=weight))
    a = net.relu(net.conv("two", a, (8, 8, 3, 3), weight=weight))
    return net.done(net.conv("last", a, (4, 8, 1, 1)))


@entry("same last", one=SAME)
def pair():
    net = image()
    weight = net.weight(8, 8, 3, 3)
    sides = [
        net.conv(name, "x", (8, 8, 3, 3), weight=weight, bias=False) for name in ("one", "same")
    ]
    joined = net.relu(net.add("Concat", *sides, axis=1))
    return net.done(net.conv("last", joined, (4, 16, 1, 1)))


@entry("filter gate last")
def gated():
    net = Net(x=["n", 8, 24])
    a = net.add("Tanh", net.conv("filter", "x", (8, 8, 3), dilations=[2]))
    b = net.add("Sigmoid", net.conv("gate", "x", (8, 8, 3), dilations=[2]))
    return net.done(net.conv("last", net.add("Mul", a, b), (8, 8, 1)))


@entry("one two")
def shown_inside():
    net = image()
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    return net.done(net.conv("two", a, (4, 8, 1, 1)), a)


@entry("one two")
def weight_from_nodes():
    net = image()
    kernel = net.add("Reshape", net.weight(8, 72), net.ints(8, 8, 3, 3))
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3), weight=kernel))
    return net.done(
        net.conv("two", a, (8, 8, 1, 1), weight=net.add("Identity", net.weight(8, 8, 1, 1)))
    )


@entry("one two")
def narrow():
    net = image(1)
    return net.done(net.conv("two", net.relu(net.conv("one", "x", (1, 1, 3, 3))), (1, 1, 3, 3)))


@entry("one", dynamic=NOT_CONSTANT)
def computed_weight():
    net = Net(x=[8, 8, 12, 12], kernel=[8, 8, 3, 3])
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    return net.done(net.add("Conv", a, "kernel", name="dynamic"))


@entry("one two three head")
def half():
    net = image(half=True)
    a = net.relu(net.conv("one", "x", (8, 8, 3, 3)))
    b = net.relu(net.conv("two", a, (8, 8, 3, 3), bias=False))
    b = net.add("Add", net.conv("three", b, (8, 8, 3, 3)), a)
    return net.done(net.head("head", net.relu(b), 8))
