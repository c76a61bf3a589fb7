"""The layers that TensorRT is expected to make, rule by rule, on small graphs."""

import re
from collections import Counter

from tests.fixtures.kinds import KINDS, Kind
from tests.fixtures.tables import each
from trtcal.evidence.layers.predicted import PREDICTED, fused_nodes, predict_layers
from trtcal.model import load_model
from trtcal.model.ops import QDQ
from trtcal.model.work import count_work

HEAD = """\
net ({kind}[1,{channels},8,8] x) => ({kind}[a,b,c,d] y)
<{kind}[32,32,3,3] w, {kind}[32,1,3,3] k, {kind}[32,64,3,3] two, {kind}[32,3,3,3] few,
 {kind}[8,8] m, {kind}[8,8] mask, {kind}[8] g, float s = {{0.1}}, float t = {{0.2}}, int8 z = {{0}}>
{{ {body} }}"""
PAIR = """\
[q_{0}_{1}] {0}{1}q = QuantizeLinear({0}, {1}, z)
[d_{0}_{1}] {0}{1} = DequantizeLinear({0}{1}q, {1}, z)"""


def net(folder, body, kind="float", channels=32):
    """Return a model: `x.s` is x through Q and DQ of scale s; nodes have the name of their output."""
    lines, known = [], set()
    for line in map(str.strip, body.split(";")):
        for name, scale in re.findall(r"(\w+)\.([st])\b", line):
            lines += [] if (name, scale) in known else [PAIR.format(name, scale)]
            known.add((name, scale))
        lines.append(f"[{line.split(' = ')[0]}] " + re.sub(r"(\w+)\.([st])\b", r"\1\2", line))
    text = HEAD.format(kind=kind, channels=channels, body="\n".join(lines))
    return load_model(Kind(text, dict).save(folder / "net.onnx"))


def shown(model, **options):
    """Return what each kernel reads and writes, and its nodes without Q/DQ."""
    skipped = {node.name for node in model.proto.graph.node if node.op_type in QDQ}
    return [
        f"{layer.kind} {'+'.join(t.dtype for t in layer.inputs)}"
        f">{'+'.join(t.dtype for t in layer.outputs)} "
        f"{' '.join(node for node in layer.nodes if node not in skipped)}".strip()
        for layer in predict_layers(model, **options)
        if not layer.is_idle
    ]


CONV = "Conv<pads=[1,1,1,1]>"
ENTRY = "Reformat fp32>int8"
RULES = {
    "a Relu and the Q behind it are fused": (
        f"a = {CONV}(x.s, w.s); r = Relu(a); y = {CONV}(r.s, w.s)",
        [ENTRY, "Convolution int8>int8 a r", "Convolution int8>fp32 y"],
    ),
    "without a Q behind, floats are written": (
        f"a = {CONV}(x.s, w.s); y = Relu(a)",
        [ENTRY, "Convolution int8>fp32 a y"],
    ),
    "a weight alone makes no INT8": (
        f"y = {CONV}(x, w.s)",
        ["Reformat fp32>fp32", "Convolution fp32>fp32 y", "Reformat fp32>fp32"],
    ),
    "data alone make no INT8": (
        f"y = {CONV}(x.s, w)",
        [ENTRY, "Reformat int8>fp32", "Convolution fp32>fp32 y", "Reformat fp32>fp32"],
    ),
    "depthwise": (
        "y = Conv<group=32, pads=[1,1,1,1]>(x.s, k.s)",
        [ENTRY, "Convolution int8>fp32 y"],
    ),
    "a float skip keeps the sum in float": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(a.s, w.s); c = {CONV}(b.s, w.s); d = Add(c, a);"
        f"y = {CONV}(d.s, w.s)",
        [
            *(ENTRY, "Convolution int8>fp32 a", ENTRY, "Convolution int8>int8 b"),
            *("Convolution int8+fp32>fp32 c d", ENTRY, "Convolution int8>fp32 y"),
        ],
    ),
    "a quantized skip makes it INT8": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(a.s, w.s); c = {CONV}(b.s, w.s); d = Add(c, a.s);"
        f"y = {CONV}(d.s, w.s)",
        [
            *(ENTRY, "Convolution int8>int8 a", "Convolution int8>int8 b"),
            *("Convolution int8+int8>int8 c d", "Convolution int8>fp32 y"),
        ],
    ),
    "a quantized skip before a float sum is dequantized": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(a.s, w.s); c = {CONV}(b.s, w.s); y = Add(c, a.s)",
        [
            *(ENTRY, "Convolution int8>int8 a", "Convolution int8>int8 b", "Reformat int8>fp32"),
            "Convolution int8+fp32>fp32 c y",
        ],
    ),
    "of two convolutions that are added, the later one adds": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.s, w.s); c = Add(a, b); y = Relu(c)",
        [ENTRY, "Convolution int8>fp32 a", "Convolution int8+fp32>fp32 b c y"],
    ),
    "what is behind a detour is not fused": (
        f"a = {CONV}(x.s, w.s); b = Softmax(a); c = Mul(a, b); y = Relu(c)",
        [
            *(ENTRY, "Convolution int8>fp32 a", "Softmax fp32>fp32 b"),
            *("PointWise fp32+fp32>fp32 c y", "Reformat fp32>fp32"),
        ],
    ),
    "Q moves before a MaxPool": (
        f"a = {CONV}(x.s, w.s); p = MaxPool<kernel_shape=[2,2]>(a); y = {CONV}(p.s, w.s)",
        [ENTRY, "Convolution int8>int8 a", "Pooling int8>int8 p", "Convolution int8>fp32 y"],
    ),
    "DQ moves behind a Transpose": (
        f"p = Transpose<perm=[0,1,3,2]>(x.s); y = {CONV}(p, w.s)",
        [ENTRY, "Shuffle int8>int8 p", "Convolution int8>fp32 y"],
    ),
    "an average is INT8 between DQ and Q only": (
        f"a = GlobalAveragePool(x.s); b = {CONV}(a.s, w.s); y = GlobalAveragePool(b.s)",
        [
            *(ENTRY, "Pooling int8>int8 a", "Convolution int8>int8 b"),
            *("Reformat int8>fp32", "Pooling fp32>fp32 y"),
        ],
    ),
    "a Softmax has no INT8": (
        f"a = {CONV}(x.s, w.s); b = Softmax(a.s); y = {CONV}(b.s, w.s)",
        [
            *(ENTRY, "Convolution int8>int8 a", "Reformat int8>fp32", "Softmax fp32>fp32 b"),
            *(ENTRY, "Convolution int8>fp32 y"),
        ],
    ),
    "two scales are two copies": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.t, w.s); y = Add(a, b)",
        [ENTRY, "Convolution int8>fp32 a", ENTRY, "Convolution int8+fp32>fp32 b y"],
    ),
    "a Concat of one scale is written in place": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.s, w.s); c = Relu(a); e = Sigmoid(b);"
        f"f = Concat<axis=1>(c.s, e.s); y = {CONV}(f, two.s)",
        [
            ENTRY,
            "Convolution int8>int8 a c",
            "Convolution int8>int8 b e",
            "Convolution int8>fp32 y",
        ],
    ),
    "a Concat of two scales is in float": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(a.s, w.s); c = Concat<axis=1>(a.s, b.t);"
        f"y = {CONV}(c, two.s)",
        [
            *(ENTRY, "Convolution int8>int8 a", "Convolution int8>int8 b"),
            *("Reformat int8>fp32", "Reformat int8>fp32", "Reformat fp32>fp32"),
            *("Convolution fp32>fp32 y", "Reformat fp32>fp32"),
        ],
    ),
    "what others read too is copied before a Concat": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(a.s, w.s); c = Concat<axis=1>(a, b);"
        f"y = {CONV}(c.s, two.s)",
        [
            *(ENTRY, "Convolution int8>int8 a", "Convolution int8>int8 b"),
            *("Reformat int8>int8", "Convolution int8>fp32 y"),
        ],
    ),
    "products of one tensor are one kernel": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.s, w.s); y = Add(a.s, b.s)",
        [
            ENTRY,
            "Convolution int8>int8+int8 a b",
            *["Reformat int8>fp32"] * 2,
            "PointWise fp32+fp32>fp32 y",
        ],
    ),
    "and what is no Relu stays behind it": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.s, w.s); c = Sigmoid(a); e = Sigmoid(b);"
        "f = GlobalAveragePool(c); y = Mul(e, f)",
        [
            *(ENTRY, "Convolution int8>fp32+fp32 a b", "PointWise fp32>fp32 c"),
            *("Pooling fp32>fp32 f", "PointWise fp32+fp32>fp32 e y", "Reformat fp32>fp32"),
        ],
    ),
    "with all that follows": (
        f"a = {CONV}(x.s, w.s); b = {CONV}(x.s, w.s); c = Sigmoid(a); e = Sigmoid(b);"
        "f = Add(c, mask); g = Add(e, mask); h = GlobalAveragePool(f); y = Mul(g, h)",
        [
            *(ENTRY, "Convolution int8>fp32+fp32 a b", "PointWise fp32>fp32 c f"),
            *("Pooling fp32>fp32 h", "PointWise fp32+fp32>fp32 e g y", "Reformat fp32>fp32"),
        ],
    ),
    "an input that is output too": ("y = Identity(x.s)", [ENTRY, "Reformat int8>fp32"]),
}
"""Rule -> a graph and its kernels."""


@each("rule", RULES)
def test_rules(rule, tmp_path):
    body, wanted = RULES[rule]
    model = net(tmp_path, body)
    assert shown(model) == wanted
    listed = Counter(node for layer in predict_layers(model) for node in layer.nodes)
    assert listed == {node.name: 1 for node in model.proto.graph.node}


def test_a_first_convolution_in_int8_pools_as_well(tmp_path):
    model = net(
        tmp_path,
        f"a = {CONV}(x.s, few.s); r = Relu(a); p = MaxPool<kernel_shape=[2,2]>(r);"
        f"y = {CONV}(p.s, w.s)",
        channels=3,
    )
    assert shown(model) == [ENTRY, "Convolution int8>int8 a r p", "Convolution int8>fp32 y"]


FLOATS = (
    f"a = {CONV}(x, w); r = Relu(a); b = {CONV}(r, w); c = Add(b, x); p = Softmax(c); y = Relu(p)"
)
IN_FP16 = [
    *("Convolution fp16>fp16 a r", "Convolution fp16+fp16>fp16 b c"),
    *("Softmax fp16>fp16 p", "PointWise fp16>fp16 y"),
]


@each(
    "kind, options, wanted",
    [
        ("float16", {}, ["Reformat fp16>fp16", *IN_FP16, "Reformat fp16>fp16"]),
        (
            "float",
            {"strongly_typed": False},
            ["Reformat fp32>fp16", *IN_FP16, "Reformat fp16>fp32"],
        ),
        (
            "float",
            {},
            [
                "Reformat fp32>fp32",
                *(line.replace("16", "32") for line in IN_FP16),
                "Reformat fp32>fp32",
            ],
        ),
    ],
)
def test_floats(kind, options, wanted, tmp_path):
    assert shown(net(tmp_path, FLOATS, kind), **options) == wanted


def test_an_output_in_float32_is_copied_from_float16(tmp_path):
    kernels = shown(net(tmp_path, "y = GlobalAveragePool(x)"), strongly_typed=False)
    assert kernels == ["Reformat fp32>fp16", "Pooling fp16>fp16 y", "Reformat fp16>fp32"]


MASKED = """\
b = MatMul(x.s, x.s); c = Add(b, mask); p = Softmax(c); o = MatMul(p.t, x.s); e = MatMul(o.s, m.s);
y = Relu(e)"""


def test_a_mask_is_no_weight_of_attention(tmp_path):
    layers = predict_layers(net(tmp_path, MASKED), version="10")
    assert [layer.precision for layer in layers if layer.kind == "Attention"] == ["int8"]


def test_without_tf32_convolutions_keep_the_linear_layout(tmp_path):
    kernels = predict_layers(net(tmp_path, FLOATS), tf32=False)
    assert not any(layer.is_reformat for layer in kernels)


ATTENTION = """\
a = MatMul(x.s, m.s); q = MatMul(x.s, m.s); v = MatMul(x.s, m.s); r = Transpose<perm=[0,1,3,2]>(a);
b = MatMul(q.s, r.s); p = Softmax(b); o = MatMul(p.t, v.s); c = Add(o, x);
e = LayerNormalization(c, g); f = MatMul(e.s, m.s); y = Add(f, c)"""
PRODUCTS = "Gemm int8>int8+int8+int8 a q v"


def test_networks_of_products_are_compiled_from_version_9_on(tmp_path):
    model = net(tmp_path, ATTENTION)
    assert shown(model, version="10.3") == [
        *(ENTRY, PRODUCTS, "Shuffle int8>int8 r", "Attention int8+int8+int8>fp32 b p o"),
        *(
            "Normalization fp32+fp32>fp32+int8 c e",
            "Gemm int8>fp32 f",
            "PointWise fp32+fp32>fp32 y",
        ),
    ]
    assert shown(model, version="8.6") == [
        *(ENTRY, PRODUCTS, "Shuffle int8>int8 r", "Gemm int8+int8>fp32 b", "Softmax fp32>fp32 p"),
        *(
            ENTRY,
            "Gemm int8+int8>fp32 o",
            "PointWise fp32+fp32>fp32 c",
            "Normalization fp32>fp32 e",
        ),
        *(ENTRY, "Gemm int8>fp32 f", "PointWise fp32+fp32>fp32 y"),
    ]


def test_the_compiler_moves_values_in_the_kernels_that_compute(tmp_path):
    body = (
        "a = MatMul(x.s, m.s); r = Transpose<perm=[0,1,3,2]>(a); b = Transpose<perm=[0,2,1,3]>(r.s);"
        "p = Sigmoid(b); y = MatMul(p.t, m.s)"
    )
    model = net(tmp_path, body)
    assert shown(model, version="10") == [
        *(ENTRY, "Gemm int8>int8 a", "PointWise int8>int8 r b p", "Gemm int8>fp32 y"),
    ]
    assert len(shown(model, version="8")) == 6


def test_compiled_products_of_one_tensor_are_one_kernel_whatever_follows(tmp_path):
    body = (
        "a = MatMul(x.s, m.s); b = Sigmoid(a); c = MatMul(x.s, m.s); e = Mul(b, c);"
        "y = MatMul(e.s, m.s)"
    )
    model = net(tmp_path, body)
    joined = ["Gemm int8>fp32+fp32 a c", "PointWise fp32+fp32>int8 b e"]
    assert shown(model, version="10")[1:3] == joined


def test_layers_say_their_work(tmp_path):
    layers = predict_layers(net(tmp_path, RULES["depthwise"][0]))
    copy, product = (layer for layer in layers if not layer.is_idle)
    values = 32 * 8 * 8
    assert (copy.origin, copy.is_reformat, copy.bytes_moved) == ("QDQ", True, 5 * values)
    assert copy.nodes == ("q_x_s",)
    assert (product.macs, product.precision) == (9 * values, "int8")
    assert product.bytes_moved == values + 9 * 32 + 4 * values
    assert set(product.nodes) >= {"y", "d_x_s", "q_k_s", "d_k_s"}


@each("name, version", [(name, version) for name in KINDS for version in ("8", "10")])
def test_every_node_is_in_one_layer_or_constant(name, version, tmp_path):
    model = load_model(KINDS[name].save(tmp_path / "m.onnx"))
    layers = predict_layers(model, version=version)
    listed = Counter(node for layer in layers for node in layer.nodes)
    assert set(listed.values()) == {1}
    assert all(layer.tactic.startswith(PREDICTED) for layer in layers)
    made = {output.name for layer in layers for output in layer.outputs}
    assert {value.name for value in model.proto.graph.output} <= made
    known = {value.name for value in model.proto.graph.input}
    for layer in layers:
        assert {read.name for read in layer.inputs} <= known, layer
        known |= {output.name for output in layer.outputs}


def test_a_search_counts_kernels_of_one_product(tmp_path):
    model = net(tmp_path, ATTENTION)
    products = {node.name for node in model.proto.graph.node if node.op_type == "MatMul"}
    groups = list(fused_nodes(model, count_work(model).tensors))
    assert [group for group in groups if products & set(group)] == [[name] for name in "aqvbof"]
    assert ["c", "e"] not in groups
    float_model = net(tmp_path, FLOATS)
    groups = list(fused_nodes(float_model, count_work(float_model).tensors))
    assert groups == [["a", "r"], ["b", "c"], ["p"], ["y"]]
