"""Small networks of many kinds, as exporters write them, data that fit each, and all commands on them.

Weights are the declared values that nothing computes, He-normal from a fixed seed. Data are random and
have no labels: the commands are asked whether they answer, and what the answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, parser

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

TARGET = "sm89"
SAMPLES = 24
FORMATS = ("fp8", "int4", "nvfp4")
ASK = "quantize {model} --precision FORMAT --target sm120"
COMMANDS = (
    "check-data {model} --data calibration.npz",
    "calibrate {model} --data calibration.npz",
    "ranges show calibration.json",
    "prepare {model} --data calibration.npz -o prepared.onnx",
    "quantize {model} --calibration calibration.json -o int8.onnx",
    f"build int8.onnx --target {TARGET} -o built",
    "log built/build.log",
    "layers show built",
    "fusion int8.onnx built",
    "diagnose built --model {model}",
    "compare {model} int8.onnx --data test.npz --rounds 5 -o comparison.json",
    "ab {model} int8.onnx --data test.npz",
    "sensitivity {model} --calibration calibration.json --data test.npz --samples 8",
    "search {model} --calibration calibration.json --data test.npz --samples 8 --evaluate 16 --plans 4",
    "plan show plan.json --model {model}",
    "quantize {model} --improve fast --data calibration.npz -o improved.onnx",
    *(
        command.replace("FORMAT", one)
        for one in FORMATS
        for command in (
            f"{ASK} --calibration calibration.json -o FORMAT.onnx",
            "build FORMAT.onnx --target sm120 -o built-FORMAT",
            "compare {model} FORMAT.onnx --data test.npz --rounds 2 --per-layer",
            f"{ASK} --improve fast --data calibration.npz -o FORMAT-improved.onnx",
        )
    ),
    "search {model} --calibration calibration.json --data test.npz --samples 8 --evaluate 16 --plans 4 "
    "--precisions all --gpu rtx-5090 --goal smallest --limit sqnr_db>=10 -o search-all",
    "report . -o report.html",
    "run trtcal.toml",
    "history list --db history.sqlite",
    "verify run",
)
"""Every command on a model, each with what those before it wrote; `doctor` needs none."""
CONFIG = f"""\
model = "{{model}}"
output = "run"
history = "history.sqlite"
[calibration]
data = "calibration.npz"
methods = ["minmax", "percentile"]
[evaluation]
data = "test.npz"
[build]
targets = ["{TARGET}"]
"""


def write_data(place: Path, model: str, make: Callable[..., Feeds], config: str = "") -> None:
    """Write data for calibration and a test, a plan and trtcal.toml of a model into a folder."""
    rng = np.random.default_rng(0)
    for name in ("calibration", "test"):
        np.savez(place / f"{name}.npz", **make(rng, SAMPLES))
    (place / "plan.json").write_text('{"default": "int8"}')
    (place / "trtcal.toml").write_text(CONFIG.format(model=model) + config)


@dataclass(frozen=True)
class Kind:
    """A network in ONNX's text form, and its data: `make(rng, count)` gives arrays of `count` samples.

    `config` are lines for trtcal.toml. `listed` has the weights among the inputs, as exports of before
    ONNX 1.4 do.
    """

    text: str
    make: Callable[[np.random.Generator, int], Feeds]
    config: str = ""
    listed: bool = False
    opsets: Mapping[str, int] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        """Write the network with random weights."""
        opsets = ", ".join(f'"{name}" : {number}' for name, number in self.opsets.items())
        head = f'<ir_version: 8, opset_import: ["" : 17{", " + opsets if opsets else ""}]>'
        model = parser.parse_model(f"{head}\n{self.text}")
        made = {name for node in model.graph.node for name in node.output}
        weights = [one for one in model.graph.value_info if one.name not in made]
        model.graph.initializer.extend(_weight(seed, one) for seed, one in enumerate(weights))
        del model.graph.value_info[:]
        for number, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_{number}"
        if self.listed:
            model.graph.input.extend(weights)
        onnx.save(model, path)
        return path


def _weight(seed: int, value: onnx.ValueInfoProto) -> onnx.TensorProto:
    tensor = value.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    fan_in = np.prod(shape[1:]) if len(shape) > 1 else 16
    drawn = np.random.default_rng(seed).standard_normal(shape) * np.sqrt(2 / fan_in)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return numpy_helper.from_array(drawn.astype(dtype), value.name)


def normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator, int], Feeds]:
    """Return a maker of standard normal samples of these shapes."""
    return lambda rng, count: {
        name: rng.standard_normal((count, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def _bytes(rng: np.random.Generator, count: int) -> Feeds:
    return {"image": rng.integers(0, 256, (count, 8, 8, 3), np.uint8)}


def _halves(rng: np.random.Generator, count: int) -> Feeds:
    return {"x": rng.standard_normal((count, 3, 8, 8)).astype(np.float16)}


def _words(rng: np.random.Generator, count: int) -> Feeds:
    lengths = rng.integers(4, 13, (count, 1))
    return {
        "ids": rng.integers(0, 50, (count, 12)),
        "mask": (np.arange(12) < lengths).astype(np.int64),
    }


def _masked(rng: np.random.Generator, count: int) -> Feeds:
    return {
        "x": rng.standard_normal((count, 10, 16)).astype(np.float32),
        "mask": rng.random((count, 10)) < 0.8,
    }


def _speech(rng: np.random.Generator, count: int) -> Feeds:
    return {"x": rng.standard_normal((count, 64)).astype(np.float32), "rate": np.array(16000)}


RECURRENT = """\
net (float[n,8,20] x) => (float[n,5] y)
<float[16,8,3] k, float[2,{rows},16] w, float[2,{rows},32] r, float[5,32] g>
{{
  [conv] a = Conv<pads=[1,1]>(x, k)
  b = Relu(a)
  c = Transpose<perm=[2,0,1]>(b)
  [cells] h = {op}<hidden_size=32, direction="bidirectional">(c, w, r)
  d = ReduceMean<axes=[0,1], keepdims=0>(h)
  [gemm] y = Gemm<transB=1>(d, g)
}}"""

CLASSIFIER = """\
net (float[{batch},3,8,8] x) => (float[{batch},4] y)
<float[8,3,3,3] w, float[8] b, float[8,8,3,3] v, float[4,8] g>
{{
  [first] a = Conv<pads=[1,1,1,1]>(x, w, b)
  c = Relu(a)
  [second] d = Conv<pads=[1,1,1,1]>(c, v)
  e = Add(d, c)
  f = Relu(e)
  p = GlobalAveragePool(f)
  q = Flatten(p)
  [gemm] s = Gemm<transB=1>(q, g)
  y = Softmax(s)
}}"""

KINDS = {
    "classifier": Kind(CLASSIFIER.format(batch="n"), normal(x=(3, 8, 8))),
    "batch of one": Kind(CLASSIFIER.format(batch="1"), normal(x=(3, 8, 8))),
    "weights as inputs": Kind(CLASSIFIER.format(batch="n"), normal(x=(3, 8, 8)), listed=True),
    "LSTM": Kind(RECURRENT.format(op="LSTM", rows=128), normal(x=(8, 20))),
    "GRU": Kind(RECURRENT.format(op="GRU", rows=96), normal(x=(8, 20))),
    "two inputs": Kind(
        """\
net (float[n,8] a, float[n,4] b) => (float[n,1] y)
<float[16,8] u, float[16,4] v, float[16,32] w, float[1,16] z>
{
  [left] c = Gemm<transB=1>(a, u)
  [right] d = Gemm<transB=1>(b, v)
  e = Concat<axis=1>(c, d)
  f = Relu(e)
  [mix] g = Gemm<transB=1>(f, w)
  h = Relu(g)
  [end] y = Gemm<transB=1>(h, z)
}""",
        normal(a=(8,), b=(4,)),
    ),
    "segmentation": Kind(
        """\
net (float[n,3,16,16] x) => (float[n,4,16,16] y)
<float[8,3,3,3] w, float[16,8,3,3] v, float[16,8,2,2] t, float[4,8,1,1] z>
{
  [in] a = Conv<pads=[1,1,1,1]>(x, w)
  b = Relu(a)
  [down] c = Conv<pads=[1,1,1,1], strides=[2,2]>(b, v)
  d = Relu(c)
  [up] e = ConvTranspose<strides=[2,2]>(d, t)
  f = Add(e, b)
  [out] y = Conv(f, z)
}""",
        normal(x=(3, 16, 16)),
    ),
    "BERT": Kind(
        """\
net (int64[n,12] ids, int64[n,12] mask) => (float[n,12,50] logits)
<float[50,16] table, float[16] g1, float[16] b1, float[16,16] q, float[16,16] k, float[16,16] v,
 float[16,16] o, float[16,64] up, float[64,16] down, float[16,50] head,
 int64[4] heads = {0, 12, 2, 8}, int64[3] whole = {0, 12, 16}, int64[2] axes = {1, 2},
 float one = {1.0}, float far = {-10000.0}, float eighth = {0.353553}, float half = {0.5},
 float root = {1.414214}>
{
  e = Gather(table, ids)
  x = LayerNormalization(e, g1, b1)
  [query] xq = MatMul(x, q)
  [key] xk = MatMul(x, k)
  [value] xv = MatMul(x, v)
  rq = Reshape(xq, heads)
  rk = Reshape(xk, heads)
  rv = Reshape(xv, heads)
  tq = Transpose<perm=[0,2,1,3]>(rq)
  tk = Transpose<perm=[0,2,3,1]>(rk)
  tv = Transpose<perm=[0,2,1,3]>(rv)
  [scores] s = MatMul(tq, tk)
  m = Cast<to=1>(mask)
  m1 = Unsqueeze(m, axes)
  m2 = Sub(one, m1)
  m3 = Mul(m2, far)
  s1 = Mul(s, eighth)
  s2 = Add(s1, m3)
  p = Softmax(s2)
  [mixed] c = MatMul(p, tv)
  c1 = Transpose<perm=[0,2,1,3]>(c)
  c2 = Reshape(c1, whole)
  [projected] c3 = MatMul(c2, o)
  y = Add(c3, x)
  [up] h = MatMul(y, up)
  h1 = Div(h, root)
  h2 = Erf(h1)
  h3 = Add(h2, one)
  h4 = Mul(h, h3)
  h5 = Mul(h4, half)
  [down] z = MatMul(h5, down)
  z1 = Add(z, y)
  [head] logits = MatMul(z1, head)
}""",
        _words,
    ),
    "detector with NMS": Kind(
        """\
net (float[n,3,16,16] x) => (int64[k,3] selected, float[k,4] boxes, float[k] scores)
<float[8,3,3,3] w, float[4,8,1,1] place, float[3,8,1,1] class, float four = {40.0},
 int64[3] as_boxes = {0, 4, 64}, int64[3] as_scores = {0, 3, 64}, int64[1] most = {5},
 float[1] iou = {0.5}, float[1] least = {0.5}, int64[2] sides = {0, 2}>
{
  [stem] a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)
  b = Relu(a)
  [places] c = Conv(b, place)
  [classes] d = Conv(b, class)
  e = Reshape(c, as_boxes)
  e1 = Mul(e, four)
  all_boxes = Transpose<perm=[0,2,1]>(e1)
  f = Reshape(d, as_scores)
  all_scores = Sigmoid(f)
  [nms] selected = NonMaxSuppression(all_boxes, all_scores, most, iou, least)
  g = Gather<axis=1>(selected, sides)
  boxes = GatherND(all_boxes, g)
  scores = GatherND(all_scores, selected)
}""",
        normal(x=(3, 16, 16)),
    ),
    "dynamic size": Kind(
        """\
net (float[n,3,h,w] x) => (float[n,3,h,w] y)
<float[8,3,3,3] u, float[3,8,3,3] v>
{
  [first] a = Conv<pads=[1,1,1,1]>(x, u)
  b = LeakyRelu<alpha=0.1>(a)
  [second] c = Conv<pads=[1,1,1,1]>(b, v)
  y = Add(c, x)
}""",
        normal(x=(3, 12, 20)),
    ),
    "embedding": Kind(
        """\
net (float[n,3,8,8] x) => (float[n,32] y)
<float[16,3,3,3] w, float[32,16] g>
{
  [conv] a = Conv<pads=[1,1,1,1]>(x, w)
  b = Relu(a)
  p = GlobalAveragePool(b)
  q = Flatten(p)
  [gemm] s = Gemm<transB=1>(q, g)
  y = LpNormalization<axis=1>(s)
}""",
        normal(x=(3, 8, 8)),
    ),
    "audio": Kind(
        """\
net (float[n,1,256] x) => (float[n,1,256] y)
<float[16,1,9] u, float[16,16,9] v, float[16,1,4] t>
{
  [analysis] a = Conv<pads=[4,4], strides=[4]>(x, u)
  b = Elu(a)
  [middle] c = Conv<pads=[4,4]>(b, v)
  d = Tanh(c)
  [synthesis] y = ConvTranspose<strides=[4]>(d, t)
}""",
        normal(x=(1, 256)),
    ),
    "multi-label": Kind(
        """\
net (float[n,3,8,8] x) => (float[n,12] y)
<float[16,3,3,3] w, float[12,16] g>
{
  [conv] a = Conv<pads=[1,1,1,1]>(x, w)
  b = HardSwish(a)
  p = GlobalAveragePool(b)
  q = Flatten(p)
  [gemm] s = Gemm<transB=1>(q, g)
  y = Sigmoid(s)
}""",
        normal(x=(3, 8, 8)),
    ),
    "If": Kind(
        """\
net (float[n,3,8,8] x) => (float[n,8,8,8] y)
<float[8,3,3,3] w, float[8,8,1,1] near, float[8,8,3,3] far, float zero = {0.0}>
{
  [conv] a = Conv<pads=[1,1,1,1]>(x, w)
  m = ReduceMean<keepdims=0>(x)
  flag = Greater(m, zero)
  [if] y = If (flag) <
    then_branch = then () => (float[n,8,8,8] t) { t = Conv(a, near) },
    else_branch = other () => (float[n,8,8,8] o) { o = Conv<pads=[1,1,1,1]>(a, far) }
  >
}""",
        normal(x=(3, 8, 8)),
    ),
    "Loop": Kind(
        """\
net (float[n,16] x) => (float[n,16] y)
<float[16,16] w, float[16,16] v, int64 trips = {3}, bool yes = {1}>
{
  [before] a = Gemm<transB=1>(x, v)
  [loop] y = Loop (trips, yes, a)
    <body = body (int64 i, bool c, float[n,16] s) => (bool d, float[n,16] t) {
    d = Identity(c)
    m = MatMul(s, w)
    t = Tanh(m)
  }>
}""",
        normal(x=(16,)),
    ),
    "custom operator": Kind(
        """\
net (float[n,12,16] x) => (float[n,12,16] y)
<float[16,48] qkv, float[48] b, float[16,64] up, float[64,16] down>
{
  [attention] a = com.microsoft.Attention<num_heads=2>(x, qkv, b)
  [up] u = MatMul(a, up)
  [gelu] v = com.microsoft.FastGelu(u)
  [down] y = MatMul(v, down)
}""",
        normal(x=(12, 16)),
        opsets={"com.microsoft": 1},
    ),
    "unknown operator": Kind(
        """\
net (float[n,12,16] x) => (float[n,k] y)
<float[16,64] up, float[64,16] down>
{
  [up] u = MatMul(x, up)
  a = Relu(u)
  [down] b = MatMul(a, down)
  [decode] y = acme.ops.BeamSearch<width=4>(b)
}""",
        normal(x=(12, 16)),
        opsets={"acme.ops": 1},
    ),
    "float16": Kind(
        """\
net (float16[n,3,8,8] x) => (float16[n,4] y)
<float16[8,3,3,3] w, float16[8,8,3,3] v, float16[4,8] g>
{
  [first] a = Conv<pads=[1,1,1,1]>(x, w)
  c = Relu(a)
  [second] d = Conv<pads=[1,1,1,1]>(c, v)
  e = Relu(d)
  p = GlobalAveragePool(e)
  q = Flatten(p)
  [gemm] y = Gemm<transB=1>(q, g)
}""",
        _halves,
    ),
    "bytes": Kind(
        """\
net (uint8[n,8,8,3] image) => (float[n,4] y)
<float[8,3,3,3] w, float[4,8] g, float scale = {0.007843}, float mean = {127.5}>
{
  a = Cast<to=1>(image)
  b = Sub(a, mean)
  c = Mul(b, scale)
  d = Transpose<perm=[0,3,1,2]>(c)
  [conv] e = Conv<pads=[1,1,1,1]>(d, w)
  f = Relu(e)
  p = GlobalAveragePool(f)
  q = Flatten(p)
  [gemm] y = Gemm<transB=1>(q, g)
}""",
        _bytes,
    ),
    "mask": Kind(
        """\
net (float[n,10,16] x, bool[n,10] mask) => (float[n,8] y)
<float[16,32] u, float[32,8] v, float zero = {0.0}, int64[1] last = {2}>
{
  [up] a = MatMul(x, u)
  b = Relu(a)
  m = Unsqueeze(mask, last)
  c = Where(m, b, zero)
  d = ReduceMax<axes=[1], keepdims=0>(c)
  [out] y = MatMul(d, v)
}""",
        _masked,
    ),
    "states": Kind(
        """\
net (float[1,64] x, float[1,32] state, int64 rate) => (float[1,1] voice, float[1,32] next)
<float[64,64] u, float[32,64] w, float[32,32] r, float[1,32] v, float per = {0.0000625}>
{
  s = Cast<to=1>(rate)
  t = Mul(s, per)
  a0 = Mul(x, t)
  [first] a = Gemm<transB=1>(a0, u)
  b = Relu(a)
  [input] c = Gemm<transB=1>(b, w)
  [hidden] d = Gemm<transB=1>(state, r)
  e = Add(c, d)
  next = Tanh(e)
  [out] f = Gemm<transB=1>(next, v)
  voice = Sigmoid(f)
}""",
        _speech,
        config='[data.states]\nnext = "state"\n',
    ),
}
