"""Float16 and bfloat16 on a CPU: what each node gives is rounded to its type, and overflows there."""

from collections import Counter

import numpy as np
import onnx
import pytest

from tests.fixtures.examples import FACTOR
from tests.fixtures.narrow import (
    SUMS_UP,
    TYPES,
    Narrow,
    Walk,
    in_float32,
    is_float,
    ulps,
)
from tests.fixtures.slow import SLOW
from trtcal.backends import sessions
from trtcal.backends.sessions import open_session, run_once

FEW = range(24)
MANY = range(24, 24 + int(300 * FACTOR))
MARGIN_DB = 20.0
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
            self.faults += [place] * (not np.array_equal(computed, expected))
            return
        assert computed.dtype == expected.dtype, place
        apart = ulps(computed, expected)
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
        computed, wide = (run_once(opened(p), names, feeds) for p in (proto, in_float32(proto)))
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
    assert counts["graphs"] > 0.9 * len(seeds)
    return judge


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    """Open without a fork, which would take most of the time."""
    monkeypatch.setattr(sessions, "crash_of", lambda parts, work: 0)


def test_each_node_of_random_graphs_rounds_to_its_type():
    judge_graphs(FEW)


@SLOW
def test_each_node_of_many_random_graphs_rounds_to_its_type(capsys):
    judge = judge_graphs(MANY)
    assert judge.counts["not finite"] > 5
    print(judge.counts, sorted(judge.margins)[:8])
