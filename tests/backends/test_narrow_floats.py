"""Float16 and bfloat16 on a CPU: what each node gives is rounded to its type, and overflows there."""

import json
from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tests.fixtures.commands import run, shows
from tests.fixtures.examples import FACTOR
from tests.fixtures.kinds import KINDS
from tests.fixtures.narrow import (
    FLOAT,
    SUMS_UP,
    TYPES,
    Narrow,
    Walk,
    in_float32,
    is_float,
    ulps,
)
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends import sessions
from trtcal.backends.sessions import open_session, run_once
from trtcal.model import load_model
from trtcal.model.tensors import value_types
from trtcal.quantization import Plan, quantize

FEW = range(24)
MANY = range(24, 24 + int(300 * FACTOR))
MARGIN_DB = 20.0
KERNELS = 2.0**-25  # what a kernel of float32 leaves of Exp(x) - 1, less than a unit of float16
BEYOND = 0.01  # of the sums that may be two units or more away


def opened(proto, as_it_is=False):
    """Open a model as variants are, with Q/DQ as they stand."""
    has_codes = any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return open_session(proto, 1, as_it_is=as_it_is or has_codes)


class Judge:
    """Holds graphs node by node, on the same inputs, against ONNX's evaluator, and at their outputs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[tuple[object, ...]] = []
        self.margins: list[float] = []

    def nodes(self, label, proto, kinds, feeds, as_it_is=False):
        """Count the values of each node: equal, one unit away, further away in sums; note faults."""
        names = [value.name for value in proto.graph.output]
        arrays = run_once(opened(proto, as_it_is), names, feeds)
        walk = Walk(proto, feeds)
        pairs = zip(names, arrays, strict=True)
        known = {name: np.asarray(array, TYPES.get(kinds[name])) for name, array in pairs}
        for node in proto.graph.node:
            self.counts["nodes"] += 1
            expected = dict(zip(node.output, walk.node(node, walk.start | known), strict=False))
            for name in set(expected) & set(known):
                self.compare((label, node.op_type, name), known[name], expected[name])

    def compare(self, place, computed, expected):
        if not is_float(computed):
            self.counts["integers"] += computed.size
            steps = np.abs(
                computed.astype(np.int64) - expected
            )  # of a quotient between two of them
            self.counts["integers one step away"] += int((steps > 0).sum())
            self.faults += [place] * int(steps.max(initial=0) > (place[1] == "QuantizeLinear"))
            return
        assert computed.dtype == expected.dtype, place
        apart = ulps(computed, expected)
        with np.errstate(invalid="ignore"):  # bfloat16 goes on where kernels of float32 end
            apart[np.abs(computed - expected.astype(np.float32)) < KERNELS] = 0
        self.counts["equal"] += int((apart == 0).sum())
        self.counts["one unit"] += int((apart == 1).sum())
        beyond, kind = int((apart > 1).sum()), "sums" if place[1] in SUMS_UP else "others"
        self.counts[kind] += apart.size
        self.counts[f"{kind} beyond"] += beyond
        if beyond and kind == "others":
            self.faults.append((*place, beyond, computed[apart > 1][0], expected[apart > 1][0]))

    def outputs(self, label, proto, feeds):
        """Hold a model's outputs: the same NaN and infinities, and noise far below its own loss."""
        names = [value.name for value in proto.graph.output]
        computed = run_once(opened(proto), names, feeds)
        full = {name: a.astype("f4") if a.dtype == "f2" else a for name, a in feeds.items()}
        wide = run_once(opened(in_float32(proto)), names, full)
        expected = Walk(proto, feeds).values
        for name, array, full in zip(names, computed, wide, strict=True):
            array, want, full = (a.astype(np.float64) for a in (array, expected[name], full))
            self.counts["outputs"] += 1
            finite = np.isfinite(array) & np.isfinite(want)
            self.counts["not finite"] += int(not finite.all())
            np.testing.assert_array_equal(array[~finite], want[~finite], str((label, name)))
            finite &= np.isfinite(full)
            noise, loss = (np.square(want[finite] - a[finite]).sum() for a in (array, full))
            self.counts["outputs equal"] += int(noise == 0)
            if noise:
                self.margins.append(float(10 * np.log10(loss / noise)) if loss else -np.inf)
                self.counts["margin missed"] += int(self.margins[-1] < MARGIN_DB)

    def check(self):
        """Return the counts; what does not hold fails."""
        assert not self.faults, self.faults
        assert self.counts["sums beyond"] <= BEYOND * self.counts["sums"], self.counts
        assert self.counts["equal"] > 50 * self.counts["one unit"], self.counts
        return self.counts


def exists(graph):
    """Tell whether ONNX has all operators of a graph in its types: in bfloat16 some are missing."""
    try:
        onnx.checker.check_model(graph.model(), full_check=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def judge_graphs(seeds):
    judge = Judge()
    for seed in seeds:
        graph = Narrow(seed)
        if not exists(graph):
            continue
        judge.counts["graphs"] += 1
        judge.nodes(seed, graph.model(every=True), graph.kinds, graph.feeds, bool(seed % 2))
        judge.outputs(seed, graph.model(), graph.feeds)
    counts = judge.check()
    assert counts["graphs"] > 0.85 * len(seeds)
    return judge


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    """Open without a fork, which would take most of the time."""
    monkeypatch.setattr(sessions, "crash_of", lambda parts, work: 0)


def test_each_node_of_random_graphs_rounds_to_its_type():
    judge_graphs(FEW)


@SLOW
def test_each_node_of_many_random_graphs_rounds_to_its_type():
    """Of a few outputs all that differs is one value between two, which layers after it spread."""
    counts = judge_graphs(MANY).counts
    assert counts["not finite"] > 0.01 * counts["graphs"]
    assert counts["outputs equal"] > 0.85 * counts["outputs"]
    assert counts["margin missed"] < 0.02 * counts["outputs"]


def every(proto):
    """Return a model with all tensors of its main graph as outputs, and their types."""
    known = value_types(proto)
    made = [name for node in proto.graph.node for name in node.output if name in known]
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    del shown.graph.output[:]
    shown.graph.output.extend(known[name] for name in made)
    return shown, {name: known[name].type.tensor_type.elem_type for name in made}


def fed(name):
    """Return the feeds of one run of a kind of network."""
    count = 1 if name in ("batch of one", "states") else 8
    feeds = KINDS[name].make(np.random.default_rng(3), count)
    return feeds | ({"state": np.zeros((1, 32), np.float32)} if name == "states" else {})


NOT_KNOWN = {"custom operator", "unknown operator"}  # to ONNX's evaluator


@SLOW
def test_each_node_of_the_kinds_of_networks_rounds_to_float16(tmp_path):
    judge = Judge()
    for name in set(KINDS) - NOT_KNOWN:
        model = load_model(KINDS[name].save(tmp_path / "net.onnx"))
        proto = quantize(model, None, Plan(default="fp16")).proto
        judge.nodes(name, *every(proto), fed(name))
        judge.outputs(name, proto, fed(name))
    assert not judge.check()["margin missed"]


RMS = """
  [square] b = Mul(a, a)  axis = Constant<value_ints=[1]>()  [mean] c = ReduceMean(b, axis)
  [root] d = Sqrt(c)  [divide] y = Div(a, d)"""
SOFTMAX = """
  [power] b = Exp(a)  axis = Constant<value_ints=[1]>()  [sum] c = ReduceSum(b, axis)
  [divide] y = Div(b, c)"""
NORM = "axis = Constant<value_ints=[1]>()  [norm] y = ReduceL2(a, axis)"
NETS = {
    "an RMS norm of values over 256": (RMS, 400.0, np.float16, 0.0),
    "the same in bfloat16": (RMS, 400.0, ml_dtypes.bfloat16, None),
    "an RMS norm of values that overflow": (RMS, 7e4, np.float16, np.nan),
    "Exp over 11.1": ("[power] y = Exp(a)", 12.0, np.float16, np.inf),
    "a sum of squares": (
        "[square] b = Mul(a, a)  axis = Constant<value_ints=[1]>()  [sum] y = ReduceSum(b, axis)",
        200.0, np.float16, np.inf,
    ),
    "a norm": (NORM, 300.0, np.float16, np.inf),
    "a softmax that is spelled out": (SOFTMAX, 12.0, np.float16, np.nan),
    "a subnormal": ("[square] y = Mul(a, a)", 1e-3, np.float16, 17 * 2.0**-24),
}  # fmt: skip


def net(nodes, dtype, opset=22):
    """Return a network in a type that begins with a MatMul by one: two equal columns of its input."""
    kind = "float16" if dtype == np.float16 else "bfloat16"
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = " ".join(sorted(nodes.split("  "), key=lambda part: "Constant" not in part))
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> net (float[n,2] x) => ({kind}[n,m] y) '
        f"{{ [down] h = Cast<to={number}>(x)  [layer] a = MatMul(h, one)  {nodes} }}"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(2, dtype=dtype), "one"))
    return proto


@each("name", NETS)
def test_what_overflows_in_its_type_overflows(name):
    nodes, value, dtype, expected = NETS[name]
    proto, feeds = net(nodes, dtype), {"x": np.full((3, 2), value, np.float32)}
    for as_it_is in (False, True):
        (result,) = run_once(open_session(proto, 1, as_it_is=as_it_is), None, feeds)
        (reference,) = (
            ReferenceEvaluator(proto).run(None, feeds) if expected is None else [expected]
        )
        np.testing.assert_array_equal(result.astype(np.float32), np.float32(reference))


def test_a_comparison_judges_float16_as_float16_and_says_what_is_not_known(tmp_path, capsys):
    """An RMS norm of values over 256: in float32 it would be as good as the reference."""
    narrow = net(f"{RMS}  z = Cast<to=1>(y)", np.float16)
    narrow.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", FLOAT, ["n", "m"]))
    files = [tmp_path / name for name in ("net.onnx", "fp16.onnx", "data.npz", "comparison.json")]
    onnx.save(in_float32(narrow), files[0])
    onnx.save(narrow, files[1])
    np.savez(files[2], x=np.random.default_rng(0).uniform(300, 500, (64, 2)).astype(np.float32))
    asked = ("--data", files[2], "--rounds", 2, "-o", files[3])
    status, out, err = run(capsys, "compare", *files[:2], *asked)
    assert status in (0, 1)
    shows(out + err, "float16 is rounded after every operator")
    assert json.loads(files[3].read_text())["rows"][1]["accuracy"]["sqnr_db"] < 10
