"""The layers predicted for TensorRT beside those of engines that NVIDIA publishes, and TensorRT-RTX's.

    python -m benchmarks.predicted_layers ENGINES [--rtx sm86]

ENGINES is a folder with the `*graph.json` of `tools/experimental/trt-engine-explorer` of
github.com/NVIDIA/TensorRT (Apache-2.0) and, if it is there, `detr-layer-info.json` of
github.com/farabimahmud/detr-logs-trtexec, which has names only. Their models are not published, so
the graphs are written here after the layer lists: ResNet-18 (PyTorch, three placements of Q/DQ),
ResNet-50 (Keras), MobileNet-v2 (PyTorch, two placements), backbone and encoder of DETR. Nodes are
compared by operator and place in the graph. The rules were written with the former at hand; those of
DETR were compared when the rules stood.

Prints a line for each engine: products with the right precision (by number, and by
multiply-accumulates), fused sets of nodes that are equal, then predicted/listed kernels, copies and
10^6 bytes moved. With `--rtx`, the same for what TensorRT-RTX builds of the same graphs on the CPU.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.predicted import predict_layers
from trtcal.evidence.layers.reading import read_engine
from trtcal.evidence.layers.roofline import bytes_of
from trtcal.model import Model, load_model

COMPARED = ("Conv", "Gemm", "Add", "Clip", "MaxPool", "GlobalAveragePool", "Relu", "Softmax")
SCALE = ["s", "z"]


class Net:
    """A graph in the making, whose nodes are named by operator and number."""

    def __init__(self, *shape: int, quantized: bool, normed: bool = False) -> None:
        self.quantized, self.normed, self.shape = quantized, normed, shape
        self.nodes: list[object] = []
        self.constants = [
            numpy_helper.from_array(np.float32(0.1), "s"),
            numpy_helper.from_array(np.int8(0), "z"),
        ]
        self.counts: dict[str, int] = {}

    def add(self, op: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Add a node and return what it computes."""
        number = self.counts[op] = self.counts.get(op, -1) + 1
        name = name or f"{op}_{number}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def qdq(self, x: str, quantized: bool = True) -> str:
        """Add a pair of Q and DQ, all with one scale."""
        if not quantized:
            return x
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *SCALE), *SCALE)

    def weight(self, *shape: int) -> str:
        """Add a constant."""
        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
        return name

    def conv(
        self,
        x: str,
        into: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        **rest: int,
    ) -> str:
        """Add a convolution, with what a trainer leaves behind it."""
        w = self.qdq(self.weight(out, into // groups, kernel, kernel), self.quantized)
        bias = [] if self.normed else [self.weight(out)]
        square = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
        square["pads"] = [rest.get("pads", kernel // 2)] * 4
        y = self.add("Conv", self.qdq(x, self.quantized), w, *bias, group=groups, **square)
        weights = [self.weight(out) for _ in range(4 * self.normed)]
        return self.add("BatchNormalization", y, *weights) if self.normed else y

    def pool(self, x: str) -> str:
        """Add the pooling behind a first convolution."""
        return self.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])

    def pad(self, x: str, *sizes: int) -> str:
        """Add zeros before and behind each axis."""
        name = self.weight(0)
        self.constants[-1] = numpy_helper.from_array(np.array([*sizes, *sizes]), name)
        return self.add("Pad", x, name)

    def head(self, x: str, width: int, softmax: bool = False) -> Model:
        """Add the classifier, and return the model."""
        x = self.qdq(self.add("Flatten", x), self.quantized)
        w = self.qdq(self.weight(1000, width), self.quantized)
        y = self.add("Gemm", x, w, self.weight(1000), transB=1)
        y = self.add("Softmax", y) if softmax else y
        return self.model(y, (self.shape[0], 1000))

    def model(self, output: str, shape: tuple[int, ...]) -> Model:
        """Return the model."""
        ends = [("x", self.shape), (output, shape)]
        first, last = (helper.make_tensor_value_info(name, 1, shape) for name, shape in ends)
        graph = helper.make_graph(self.nodes, "net", [first], [last], self.constants)
        opsets = [helper.make_opsetid("", 17)]
        return load_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def resnet18(quantized: bool = False, residual: bool = False, pooled: bool = False) -> Model:
    """Return ResNet-18, with Q/DQ before products, skips and the last pooling."""
    net = Net(32, 3, 224, 224, quantized=quantized, normed=quantized)
    x = net.pool(net.add("Relu", net.conv("x", 3, 64, 7, 2)))
    into = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if width > 64 and not block else 1
            y = net.add("Relu", net.conv(x, into, width, 3, stride))
            y = net.conv(y, width, width, 3)
            x = net.conv(x, into, width, 1, stride) if stride == 2 else x
            x = net.add("Relu", net.add("Add", y, net.qdq(x, residual)))
            into = width
    return net.head(net.add("GlobalAveragePool", net.qdq(x, pooled)), 512)


def resnet50(quantized: bool = False) -> Model:
    """Return ResNet-50 as Keras has it: strides in the first convolution of a block."""
    net = Net(32, 224, 224, 3, quantized=quantized)
    x = net.qdq(net.pad("x", 0, 3, 3, 0)) if quantized else "x"
    x = net.add("Transpose", x, perm=[0, 3, 1, 2])
    x = net.add("Relu", net.conv(x, 3, 64, 7, 2, pads=0 if quantized else 3))
    x = net.add("MaxPool", net.pad(x, 0, 0, 1, 1), kernel_shape=[3, 3], strides=[2, 2])
    into = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.add("Relu", net.conv(x, into, width, 1, stride))
            y = net.conv(net.add("Relu", net.conv(y, width, width, 3)), width, 4 * width, 1)
            x = net.conv(x, into, 4 * width, 1, stride) if not block else x
            x = net.add("Relu", net.add("Add", y, net.qdq(x, quantized)))
            into = 4 * width
    x = net.add("GlobalAveragePool", net.qdq(x, quantized))
    return net.head(x, 2048, softmax=True)


def mobilenet(residual: bool) -> Model:
    """Return MobileNet-v2 with Q/DQ before products and, if asked, skips."""
    net = Net(1, 3, 224, 224, quantized=True, normed=True)
    limits = [net.weight(), net.weight()]
    net.constants[-1] = numpy_helper.from_array(np.float32(6), limits[1])

    def clipped(x: str, *sizes: int) -> str:
        return net.add("Clip", net.conv(x, *sizes), *limits)

    x, into = clipped("x", 3, 32, 3, 2), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for widen, width, blocks, first in (*rows, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            stride, hidden = first if not block else 1, widen * into
            y = clipped(x, into, hidden, 1) if widen > 1 else x
            y = net.conv(clipped(y, hidden, hidden, 3, stride, hidden), hidden, width, 1)
            skips = stride == 1 and into == width
            x = net.add("Add", net.qdq(x, residual), y) if skips else y
            into = width
    return net.head(net.add("GlobalAveragePool", clipped(x, 320, 1280, 1)), 1280)


PATH = "/model/model"


def detr() -> Model:
    """Return backbone and encoder of DETR, with frozen normalizations written out."""
    net = Net(1, 3, 800, 800, quantized=False)
    ints = iter(range(10**6))

    def shape(*sizes: int) -> str:
        name = f"i{next(ints)}"
        net.constants.append(numpy_helper.from_array(np.array(sizes), name))
        return name

    def normed(
        x: str, name: str, norm: str, into: int, out: int, kernel: int, stride: int = 1
    ) -> str:
        square = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        y = net.add("Conv", x, net.weight(out, into, kernel, kernel), name=f"{name}/Conv", **square)
        y = net.add("Mul", y, net.weight(1, out, 1, 1), name=f"{norm}/Mul")
        return net.add("Add", y, net.weight(1, out, 1, 1), name=f"{norm}/Add")

    def relu(x: str, name: str) -> str:
        return net.add("Relu", x, name=f"{name}/Relu")

    base = f"{PATH}/backbone/conv_encoder/model"
    x = net.add("Div", net.add("Sub", "x", net.weight(1, 3, 1, 1), name="/Sub"), "one", name="/Div")
    net.constants.append(numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "one"))
    x = relu(normed(x, f"{base}/conv1", f"{base}/bn1", 3, 64, 7, 2), f"{base}/act1")
    square = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    x, into = net.add("MaxPool", x, name=f"{base}/maxpool/MaxPool", **square), 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            at, stride = f"{base}/layer{stage}/{block}", 2 if stage > 1 and not block else 1
            y = relu(normed(x, f"{at}/conv1", f"{at}/bn1", into, width, 1), f"{at}/act1")
            y = normed(y, f"{at}/conv2", f"{at}/bn2", width, width, 3, stride)
            y = normed(relu(y, f"{at}/act2"), f"{at}/conv3", f"{at}/bn3", width, 4 * width, 1)
            if not block:
                down = f"{at}/downsample"
                x = normed(x, f"{down}/0", f"{down}/1", into, 4 * width, 1, stride)
            x = relu(net.add("Add", y, x, name=f"{at}/Add"), f"{at}/act3")
            into = 4 * width
    w, b = net.weight(256, 2048, 1, 1), net.weight(256)
    x = net.add("Conv", x, w, b, kernel_shape=[1, 1], name=f"{PATH}/input_projection/Conv")
    x = net.add("Reshape", x, shape(1, 256, 625), name=f"{PATH}/Reshape")
    x = net.add("Transpose", x, perm=[0, 2, 1], name=f"{PATH}/Transpose")
    for layer in range(6):
        x = encoded(net, x, f"{PATH}/encoder/layers.{layer}", shape)
    return net.model(x, (1, 625, 256))


def encoded(net: Net, x: str, at: str, shape: Callable[..., str]) -> str:
    """Add a layer of the encoder."""

    def linear(x: str, name: str, into: int = 256, out: int = 256) -> str:
        y = net.add("MatMul", x, net.weight(into, out), name=f"{name}/MatMul")
        return net.add("Add", net.weight(out), y, name=f"{name}/Add")

    def heads(x: str, first: str, transpose: str) -> str:
        x = net.add("Reshape", x, shape(1, 625, 8, 32), name=f"{own}/{first}")
        return net.add("Transpose", x, perm=[0, 2, 1, 3], name=f"{own}/{transpose}")

    def normed(x: str, name: str) -> str:
        weights = net.weight(256), net.weight(256)
        return net.add("LayerNormalization", x, *weights, name=f"{at}/{name}/LayerNormalization")

    own = f"{at}/self_attn"
    placed = net.add("Add", x, net.weight(1, 625, 256), name=f"{own}/Add")
    q = net.add("Mul", linear(placed, f"{own}/q_proj"), net.weight(1), name=f"{own}/Mul")
    k, v = linear(placed, f"{own}/k_proj"), linear(x, f"{own}/v_proj")
    k, v = heads(k, "Reshape", "Transpose"), heads(v, "Reshape_1", "Transpose_1")
    q, k = (
        net.add(
            "Reshape",
            heads(q, "Reshape_2", "Transpose_2"),
            shape(8, 625, 32),
            name=f"{own}/Reshape_3",
        ),
        net.add("Reshape", k, shape(8, 625, 32), name=f"{own}/Reshape_4"),
    )
    v = net.add("Reshape", v, shape(8, 625, 32), name=f"{own}/Reshape_5")
    k = net.add("Transpose", k, perm=[0, 2, 1], name=f"{own}/Transpose_3")
    p = net.add("MatMul", q, k, name=f"{own}/MatMul")
    p = net.add("Softmax", p, axis=-1, name=f"{own}/Softmax")
    y = net.add("MatMul", p, v, name=f"{own}/MatMul_1")
    y = net.add("Reshape", y, shape(1, 8, 625, 32), name=f"{own}/Reshape_8")
    y = net.add("Transpose", y, perm=[0, 2, 1, 3], name=f"{own}/Transpose_4")
    y = net.add("Reshape", y, shape(1, 625, 256), name=f"{own}/Reshape_9")
    x = net.add("Add", x, linear(y, f"{own}/out_proj"), name=f"{at}/Add")
    x = normed(x, "self_attn_layer_norm")
    y = linear(x, f"{at}/fc1", 256, 2048)
    y = linear(net.add("Relu", y, name=f"{at}/activation_fn/Relu"), f"{at}/fc2", 2048)
    return normed(net.add("Add", x, y, name=f"{at}/Add_1"), "final_layer_norm")


@dataclass(frozen=True)
class Case:
    """A published engine: a part of its path, its model, its GPU and whether floats may be FP16."""

    path: str
    model: Model
    gpu: str
    half: bool
    version: str = "8"


def cases() -> Iterator[Case]:
    """Yield the engines of NVIDIA's engine explorer."""
    yield Case("A100/fp32/|a100/fp32/", resnet18(), "a100", False)
    yield Case("A100/fp16/|a100/fp16/", resnet18(), "a100", True)
    yield Case("A100/qat/|a100/qat/", resnet18(True), "a100", True)
    yield Case("A100/qat-residual/|a100/qat-residual/", resnet18(True, True), "a100", False)
    yield Case("qat-residual-qgap/", resnet18(True, True, True), "a100", False)
    yield Case("(?i)rtx-?3090/fp32/", resnet50(), "rtx3090", False)
    yield Case("(?i)rtx-?3090/fp16/", resnet50(), "rtx3090", True)
    yield Case("(?i)rtx-?3090/qat/", resnet50(True), "rtx3090", False)
    yield Case("/mobilenet.qat", mobilenet(False), "titan-rtx", True)
    yield Case("/mobilenet_v2_residuals.qat", mobilenet(True), "titan-rtx", True)
    yield Case("detr-layer-info", detr(), "rtx3090", False)


NAMED = re.compile(rf"({'|'.join(COMPARED)})_+(\d+)$")
KERAS = (
    ("Conv", re.compile(r"conv(\d)_block(\d)_([1230])_conv/(?:Conv2D|BiasAdd)$")),
    ("Add", re.compile(r"conv(\d)_block(\d)_add/add$")),
    ("Relu", re.compile(r"conv(\d)_block(\d)_(\d|out)(?:_relu)?/Relu$")),
)
FIRST = (("Conv", r"Conv__435|quant_conv1_conv/(?:Conv2D|BiasAdd)$"), ("Relu", "conv1_relu/Relu"))
REST = (
    ("MaxPool", "pool/MaxPool$"),
    ("GlobalAveragePool", "avg_pool/Mean$"),
    ("Softmax", "predictions/Softmax$"),
)


def place_of(node: str) -> tuple[str, tuple[object, ...]] | None:
    """Return a node's operator and what orders it among those of its kind, None if not compared."""
    for operator, form in (*FIRST, *REST):
        if re.search(form, node):
            return operator, (0, 0, "")
    if match := NAMED.search(node):
        return match[1], (int(match[2]),)
    for operator, form in KERAS:
        if match := form.search(node):
            order = "9" if match.groups()[2:] in (("0",), ("out",)) else "".join(match.groups()[2:])
            return operator, (int(match[1]), int(match[2]), order)
    if node.endswith("predictions/MatMul"):
        return "Gemm", (9,)
    return None


def fusions(layers: Sequence[Layer]) -> list[tuple[Layer, frozenset[tuple[str, object]]]]:
    """Return kernels with their compared nodes: by path, or numbered by operator in graph order."""
    kernels = [layer for layer in layers if not layer.is_idle and not layer.is_reformat]
    nodes = dict.fromkeys(node for layer in kernels for node in layer.nodes)
    paths = {node: (node.rpartition("/")[2], node) for node in nodes if node.startswith("/")}
    places = {node: place for node in nodes.keys() - paths.keys() if (place := place_of(node))}
    counts: Counter[str] = Counter()
    numbers: dict[object, tuple[str, object]] = {}
    for operator, order in sorted(set(places.values())):
        numbers[operator, order] = operator, counts[operator]
        counts[operator] += 1
    known = paths | {node: numbers[place] for node, place in places.items()}
    return [(layer, frozenset(known[n] for n in layer.nodes if n in known)) for layer in kernels]


def compare(predicted: Sequence[Layer], actual: Sequence[Layer]) -> list[str]:
    """Return the figures of one engine."""
    ours, theirs = fusions(predicted), fusions(actual)
    counts = [{name for _, nodes in side for name in nodes} for side in (ours, theirs)]
    named = [Counter(operator for operator, _ in names) for names in counts]
    whole = {operator for operator, count in named[0].items() if count == named[1][operator]}
    common = {n for n in counts[0] & counts[1] if n[0] in whole or isinstance(n[1], str)}
    ours, theirs = ([(layer, nodes & common) for layer, nodes in side] for side in (ours, theirs))
    by_head = {
        node: layer for layer, nodes in ours for node in nodes if node[0] in ("Conv", "Gemm")
    }
    heads = [(n, layer) for layer, nodes in theirs for n in nodes if n in by_head]
    right = [(n, layer) for n, layer in heads if by_head[n].precision == layer.precision]
    macs = [sum(by_head[n].macs or 0 for n, _ in part) for part in (right, heads)]
    sets = {nodes for _, nodes in ours}
    wanted = [nodes for _, nodes in theirs if nodes]
    equal = sum(nodes in sets for nodes in wanted)
    if not bytes_of(actual):  # it has names only
        return ["", "", f"{equal}/{len(wanted)}", "", "", ""]
    copies = [sum(e.is_reformat and not e.is_idle for e in side) for side in (predicted, actual)]
    kernels = [sum(not layer.is_idle for layer in side) for side in (predicted, actual)]
    moved = [bytes_of(side) / 1e6 for side in (predicted, actual)]
    return [
        f"{len(right)}/{len(heads)}",
        f"{100 * macs[0] / max(macs[1], 1):.1f} %",
        f"{equal}/{len(wanted)}",
        "{}/{}".format(*kernels),
        "{}/{}".format(*copies),
        "{:.0f}/{:.0f}".format(*moved),
    ]


def built(model: Model, target: str) -> tuple[Layer, ...]:
    """Return the layers that TensorRT-RTX makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        build(model, TensorRTRTX(), BuildOptions(target), Path(folder))
        return read_engine(Path(folder)).layers


def main() -> None:
    """Compare every engine that is found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("--rtx", metavar="TARGET")
    arguments = parser.parse_args()
    files = sorted(arguments.engines.rglob("*.json"))
    print("engine | products | by MACs | fusions | kernels | copies | MB moved")
    for case in cases():
        path = next((p for p in files if re.search(case.path, str(p))), None)
        if path is None:
            continue
        tf32, typed = case.gpu != "titan-rtx", not case.half
        predicted = predict_layers(
            case.model, tf32=tf32, strongly_typed=typed, version=case.version
        )
        name = "/".join(path.parts[len(arguments.engines.parts) :][-3:])
        print(" | ".join([name, *compare(predicted, read_engine(path).layers)]), flush=True)
        if arguments.rtx:
            layers = built(case.model, arguments.rtx)
            print(" | ".join(["  TensorRT-RTX", *compare(predicted, layers)]), flush=True)


if __name__ == "__main__":
    main()
