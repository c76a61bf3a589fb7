"""The plans of a network: all of them, and all that are quick enough, by the model of costs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.data import Dataset
from trtcal.evaluate.metrics import Loss, rows_of, total
from trtcal.evaluate.search.limits import Plan, Point, Unit
from trtcal.evaluate.search.plan_time import FLOAT, Costs, Variable
from trtcal.evaluate.search.segments import PairedGraph
from trtcal.model import Model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe
from trtcal.ranges import Calibration


@dataclass(frozen=True)
class Subject:
    """A prepared network, its ranges, and what plans are judged on."""

    prepared: Model
    calibration: Calibration
    dataset: Dataset

    @property
    def units(self) -> list[str]:
        """The layers that a plan decides on."""
        return [layer.name for layer in find_layers(self.prepared).layers]


def subject(model: Model, calibration: Dataset, test: Dataset) -> Subject:
    """Prepare and calibrate a model."""
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    seen = observe(prepared, calibration, tensors)
    return Subject(prepared, calibrate(seen, "percentile"), test)


def point_of(plan: Plan, loss: Loss, costs: Costs) -> Point:
    """Return a measured plan with its price."""
    return Point(plan, loss, costs.plan_ms(plan), costs.baseline.plan_ms(()) / costs.plan_ms(plan))


def every_plan(one: Subject) -> Iterator[tuple[Plan, Loss]]:
    """Yield every plan and its loss, from one session in which flags choose the precisions.

    Q/DQ runs literally, with `Where` between each quantized tensor or weight and the float one.
    """
    session, feeds = flagged(one), next(one.dataset.batches(len(one.dataset)))
    plain = open_session(one.prepared.proto)
    expected = run_session(plain, None, feeds)
    for count in range(len(one.units) + 1):
        for chosen in itertools.combinations(one.units, count):
            flags = {f"flag {name}": np.array(name in chosen) for name in one.units}
            said = run_session(session, None, {**feeds, **flags})
            yield frozenset(chosen), total(rows_of(expected, said, one.dataset.labels))


def flagged(one: Subject):  # type: ignore[no-untyped-def]
    """Return a session of the model in which a flag for each layer says whether it is quantized."""
    pair = PairedGraph(one.prepared, quantize(one.prepared, one.calibration).proto)
    (whole,) = [segment for segment in pair.segments(()) if segment.start == 0]
    proto = pair.part(whole, pair.quantizable)
    given = {node.name: node for node in pair.nodes}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.name in one.units:
            for i, name in enumerate(given[node.name].input):
                if name != node.input[i]:
                    made = f"{node.name} {i}"
                    choice = [f"flag {node.name}", node.input[i], name]
                    nodes.append(helper.make_node("Where", choice, [made]))
                    node.input[i] = made
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    known = {tensor.name for tensor in proto.graph.initializer}
    read = {name for node in nodes for name in node.input}
    proto.graph.initializer.extend(
        pair.tensors[name] for name in sorted(read & set(pair.tensors) - known)
    )
    flags = [
        helper.make_tensor_value_info(f"flag {name}", onnx.TensorProto.BOOL, ())
        for name in one.units
    ]
    proto.graph.input.extend(flags)
    return open_session(proto, 1, as_it_is=True)


@dataclass(frozen=True)
class Least(Costs):
    """No more than any plan costs: `undecided` layers ask for nothing to be stored.

    Kernels that only move values are to be left out of its work, and undecided layers to be given as
    INT8, in which they read, hold and multiply least.
    """

    undecided: frozenset[str] = frozenset()

    def stored(self, int8: Collection[Unit]) -> set[Variable]:
        """Return what the decided layers ask for; a tensor that none asks for is stored in INT8."""
        kernels = (
            replace(one, reads=tuple(r for r in one.reads if r.unit not in self.undecided))
            for one in self.work.kernels
        )
        work = replace(self.work, kernels=tuple(kernels))
        asked = Costs(work, self.target, self.precision).stored(int8)
        return asked | {("int8", name) for name in self.work.sizes if (FLOAT, name) not in asked}


def quick_plans(units: Sequence[str], costs: Costs, most_ms: float) -> Iterator[Plan]:
    """Yield every plan that takes no longer than `most_ms`, each once."""
    kernels = tuple(one for one in costs.work.kernels if not one.moves)
    work = replace(costs.work, kernels=kernels)
    bounds = [
        Least(work, costs.target, costs.precision, costs.times, undecided=frozenset(units[i:]))
        for i in range(1, len(units) + 1)
    ]

    def below(place: int, int8: Plan) -> Iterator[Plan]:
        if place == len(units):
            if costs.plan_ms(int8) <= most_ms:
                yield int8
            return
        for plan in (int8, int8 - {units[place]}):
            if bounds[place].plan_ms(plan) <= most_ms:
                yield from below(place + 1, plan)

    return below(0, frozenset(units))


def maximal(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that have no other of them within: none leaves the same and more in float."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=len):
        if not any(other < plan for other in kept):
            kept.append(plan)
    return kept
