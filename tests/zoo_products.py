"""The zoo's matrix products: Gemm, MatMul, Einsum, and small stacks of them."""

from tests.zoo_convolutions import LOWERED_HALF
from tests.zoo_net import Net, entry


def rows(size=16, **more):
    return Net(x=["n", size], **more)


def tokens(length=12, size=16, **more):
    return Net(x=["n", length, size], **more)


@entry("one two")
def gemm():
    net = rows()
    return net.done(net.gemm("two", net.relu(net.gemm("one", "x", 24, 16)), 10, 24, bias=False))


@entry("one")
def gemm_upright():
    net = rows()
    return net.done(net.add("Gemm", "x", net.weight(16, 24), net.vector(24), name="one"))


@entry("one")
def gemm_scaled():
    net = rows()
    return net.done(net.gemm("one", "x", 24, 16, alpha=0.5, beta=2.0))


@entry("one")
def gemm_transposed():
    net = Net(x=[16, 8])
    return net.done(net.add("Gemm", "x", net.weight(16, 24), name="one", transA=1))


@entry("one two")
def odd_products():
    net = rows(10)
    return net.done(net.gemm("two", net.linear("one", "x", 10, 7), 3, 7))


@entry("one two")
def matmul2d():
    net = rows()
    return net.done(net.linear("two", net.relu(net.linear("one", "x", 16, 24)), 24, 8, bias=False))


@entry("one")
def matmul3d():
    net = tokens()
    return net.done(net.linear("one", "x", 16, 24))


@entry("one")
def matmul4d():
    net = Net(x=["n", 4, 6, 16])
    return net.done(net.linear("one", "x", 16, 24))


@entry("one")
def matmul_left():
    net = tokens()
    return net.done(net.add("MatMul", net.weight(20, 12), "x", name="one"))


@entry("one")
def matmul_stacked():
    net = Net(x=["n", 4, 6, 16])
    return net.done(net.add("MatMul", "x", net.weight(4, 16, 8, fan_in=16), name="one"))


@entry("one")
def matmul_vector():
    net = tokens()
    return net.done(net.add("MatMul", "x", net.weight(16, fan_in=16), name="one"))


@entry("one two")
def one_number():
    net = rows()
    return net.done(net.gemm("two", net.relu(net.gemm("one", "x", 16, 16)), 1, 16))


@entry("one")
def matmul_two_inputs():
    net = Net(x=["n", 12, 16], z=["n", 16, 12])
    return net.done(net.add("MatMul", "x", "z", name="one"))


@entry("one")
def matmul_gram():
    net = tokens()
    return net.done(net.add("MatMul", "x", net.add("Transpose", "x", perm=[0, 2, 1]), name="one"))


@entry("shared tied")
def shared_square():
    net = rows()
    weight = net.weight(16, 16)
    a = net.relu(net.add("Gemm", "x", weight, name="shared", transB=1))
    return net.done(net.add("MatMul", a, weight, name="tied"))


@entry("one")
def einsum_constant():
    net = tokens()
    weight = net.weight(16, 24, fan_in=16)
    return net.done(net.add("Einsum", "x", weight, name="one", equation="bij,jk->bik"))


@entry("one")
def einsum_batched():
    net = Net(x=["n", 12, 16], z=["n", 16, 10])
    return net.done(net.add("Einsum", "x", "z", name="one", equation="bij,bjk->bik"))


@entry("scores values")
def einsum_attention():
    net = Net(q=["n", 12, 2, 8], k=["n", 12, 2, 8], v=["n", 12, 2, 8])
    scores = net.add("Einsum", "q", "k", name="scores", equation="bqhd,bkhd->bhqk")
    weights = net.add("Softmax", scores, axis=-1)
    return net.done(net.add("Einsum", weights, "v", name="values", equation="bhqk,bkhd->bqhd"))


@entry("one two three")
def perceptron():
    net = rows()
    a = net.relu(net.gemm("one", "x", 32, 16))
    a = net.relu(net.gemm("two", a, 32, 32))
    return net.done(net.add("Softmax", net.gemm("three", a, 10, 32), axis=1))


@entry("one")
def recurrent():
    net = tokens()
    weights = [net.weight(1, 32, size, fan_in=size) for size in (16, 8)]
    a = net.add("LSTM", "x", *weights, hidden_size=8, outputs=2, layout=0)[0]
    return net.done(net.linear("one", net.add("Squeeze", a, net.ints(1)), 8, 10))


@entry("left right head")
def two_towers():
    net = Net(x=["n", 16], z=["n", 12])
    towers = [net.gemm("left", "x", 8, 16), net.gemm("right", "z", 8, 12)]
    joined = net.relu(net.add("Concat", *towers, axis=1))
    return net.done(net.gemm("head", joined, 10, 16))


@entry("left right")
def siamese():
    net = Net(x=["n", 16], z=["n", 16])
    weight = net.weight(16, 16)
    sides = [
        net.add("Gemm", name, weight, name=side, transB=1)
        for name, side in (("x", "left"), ("z", "right"))
    ]
    return net.done(net.add("Sub", *sides))


@entry("one two", stumbles=LOWERED_HALF)
def half_products():
    net = rows(half=True)
    return net.done(net.gemm("two", net.relu(net.linear("one", "x", 16, 24)), 10, 24))
