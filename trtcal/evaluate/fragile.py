"""Layers that must not be quantized: those whose own error becomes a large one at the outputs.

Nobody sees them one by one: a filter bank of six products behind a logarithm is as bad with five of
them in float as with all quantized. So groups are tried together: what leads to an operator that
amplifies small errors (logarithms, divisions, roots, recurrent cells) with the first and last layers,
then each half of the network. From a group that pays whatever brings nothing is taken out again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from trtcal.data import Dataset, held_back
from trtcal.data.dataset import batch_for
from trtcal.documents import Document, to_fields
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import TrtcalError, some
from trtcal.evaluate.judging import LARGEST, Judge
from trtcal.evaluate.per_sample import Values
from trtcal.evaluate.search.limits import Plan as Chosen
from trtcal.evaluate.search.limits import split, unit_of
from trtcal.evaluate.search.plan_time import Costs, work_of
from trtcal.evidence.gpus import DEFAULT_GPU, find_target
from trtcal.evidence.times import SpeedupEstimate
from trtcal.formats import NARROW
from trtcal.model import Model
from trtcal.model.graph import reads
from trtcal.model.ops import AMPLIFIES, MULTIPLIES
from trtcal.quantization import Plan, Rule, find_layers, quantize
from trtcal.ranges import Calibration
from trtcal.stats import Interval

LEAST_DB = 20 * math.log10(2)  # what a mixed plan has to bring: one bit more of the outputs
ENOUGH_DB = 30.0  # where nothing is looked for: the noise is a thousandth of the signal
SLACK_DB = 1.0  # that layers may bring together and still be quantized
TRIALS = 16  # plans that are measured at most
SAMPLES = 16  # that each is measured on
ERRORS = 3.0  # standard errors of a gain: as many plans are tried on the same samples
Layers = frozenset[str]


@dataclass(frozen=True)
class FloatGroup(Shown):
    """Layers that stay in float together, and what they bring at the outputs (dB) with its interval."""

    layers: tuple[str, ...]
    reason: str
    gain_db: Interval

    @property
    def sentence(self) -> str:
        """The layers with the gain, and why they were tried."""
        ends = f"{self.gain_db.low:.1f} to {self.gain_db.high:.1f}"
        return f"{some(self.layers)} ({self.reason}): {self.gain_db.value:.1f} dB ({ends})"


@dataclass(frozen=True)
class Fragile(Shown):
    """The plan with float layers, or the plan as it was where none pay: then there are no `groups`.

    `before_db` and `after_db` are the mean SQNR at the outputs on `samples` that were held back. `speed`
    is how many times as fast as all quantized the plan is on the `gpu` by estimate, None if not known.
    """

    plan: Plan
    groups: tuple[FloatGroup, ...]
    before_db: float
    after_db: float
    samples: int
    gpu: str
    speed: SpeedupEstimate | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that stay in float."""
        return tuple(name for group in self.groups for name in group.layers)

    @property
    def sentence(self) -> str:
        """What float layers bring and cost."""
        word = self.plan.default.upper()
        if not self.groups:
            return f"no layer has to stay in float: {word} has {self.before_db:.1f} dB"
        groups = "; ".join(group.sentence for group in self.groups)
        gain = f"{self.before_db:.1f} dB with all in {word}, {self.after_db:.1f} dB with in float: "
        return f"{gain}{groups}; {self.cost}"

    @property
    def cost(self) -> str:
        """The time beside all layers quantized."""
        if self.speed is None:
            return "what they cost in time is not known"
        ends = f"{self.speed.low:.3g} to {self.speed.high:.3g}"
        return f"{self.speed.ratio:.3g} times the speed of no float layers ({ends}, estimated for {self.gpu})"

    def overview(self) -> Overview:
        """Return the layers in float by group."""
        columns = {"layers": "{layers}", "why": "{reason}", "gain dB": "{gain_db.value:.1f}"}
        return Overview(self.sentence, things=self.groups, columns=columns)

    def to_document(self) -> Document:
        """Return the JSON form."""
        fields = {name: value for name, value in vars(self).items() if name != "plan"}
        groups = [to_fields(group) for group in self.groups]
        speed = self.speed and to_fields(self.speed)
        return {**fields, "groups": groups, "speed": speed, "sentence": self.sentence}


def find_fragile(
    prepared: Model,
    calibration: Calibration,
    dataset: Dataset,
    plan: Plan | None = None,
    gpu: str = DEFAULT_GPU,
) -> Fragile:
    """Find the layers of a prepared model that a plan, all INT8 if None, should leave in float.

    `dataset` are samples that the ranges were not chosen from. Layers that the plan names stay as they are.
    """
    plan, unit = plan or Plan(), batch_for(prepared, 1)
    few = max(SAMPLES // unit, 1) * unit
    judged = held_back(dataset, few, unit)[1] if len(dataset) > few else dataset
    with Judge(prepared, judged) as judge:
        trials = _Trials(prepared, calibration, plan, judge)
        before = trials.sqnr_db(frozenset())
        floats = _chosen(trials) if before < ENOUGH_DB and trials.units else frozenset()
        costs = _costs(trials, judged, gpu) if floats else None
        if costs is not None:
            floats = _joined(trials, costs, floats)
        if not trials.is_gain(floats):
            return Fragile(plan, (), before, before, len(judged), gpu)
        groups = tuple(_groups(trials, floats))
        after, whole = trials.sqnr_db(floats), trials.whole
    left = frozenset(unit for unit in whole if split(unit).layer not in floats)
    speed = costs and costs.over(costs.estimate(whole), left)
    known = before, after, len(judged), gpu, speed
    return Fragile(_with_floats(plan, groups), groups, *known)


def _with_floats(plan: Plan, groups: Iterable[FloatGroup]) -> Plan:
    """Return a plan whose first rules leave groups of layers in float."""
    rules = [
        Rule("fp32", name, "name", reason=f"{group.gain_db.value:.1f} dB with {group.reason}")
        for group in groups
        for name in group.layers
    ]
    return replace(plan, rules=(*rules, *plan.rules))


@dataclass
class _Trials:
    """Plans with float layers, each measured once. `units` are the quantized layers in graph order."""

    model: Model
    calibration: Calibration
    plan: Plan
    judge: Judge
    values: dict[Layers, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        quantized = quantize(self.model, self.calibration, self.plan)
        self.values[frozenset()] = self._values(quantized.proto)
        known = {n: form for n, form in quantized.asked.items() if form in NARROW}
        forms = {
            layer.name: known.get(layer.name, "int8")
            for layer in find_layers(self.model).layers
            if (layer.name in known or layer.op not in MULTIPLIES) and self._is_free(layer.name)
        }
        order = [node.name for node in self.model.proto.graph.node if node.name in forms]
        self.units, self.forms = order, tuple(dict.fromkeys(map(forms.__getitem__, order)))
        self.whole: Chosen = frozenset(unit_of(name, forms[name]) for name in order)

    def _is_free(self, name: str) -> bool:
        return name not in self.plan.layers and name not in self.plan.second_qdq

    def _values(self, proto: object) -> Values:
        values = self.judge.measure(proto).values  # type: ignore[arg-type]
        return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=-LARGEST)

    @property
    def may(self) -> bool:
        """Whether another plan can be measured."""
        return len(self.values) < TRIALS

    def of(self, floats: Layers) -> Values:
        """Return the noise over signal (dB) of each sample with some layers in float."""
        if floats not in self.values:
            rules = tuple(Rule("fp32", name, "name") for name in self.units if name in floats)
            plan = replace(self.plan, rules=(*rules, *self.plan.rules))
            self.values[floats] = self._values(quantize(self.model, self.calibration, plan).proto)
        return self.values[floats]

    def sqnr_db(self, floats: Layers) -> float:
        """Return the mean over the samples."""
        return -float(self.of(floats).mean())

    def gain(self, floats: Layers, over: Layers = frozenset()) -> Interval:
        """Return what more layers in float bring (dB), in the mean of pairs."""
        gains = self.of(over) - self.of(floats)
        error = (
            ERRORS * float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else math.inf
        )
        return Interval(
            float(gains.mean()), float(gains.mean()) - error, float(gains.mean()) + error
        )

    def share_db(self, floats: Layers) -> float:
        """Return what as many layers would bring if all lost alike."""
        return -10 * math.log10(max(1 - len(floats) / len(self.units), 1e-3))

    def excess(self, floats: Layers) -> float:
        """Return by how much layers bring more than as many others."""
        return self.sqnr_db(floats) - self.share_db(floats)

    def is_gain(self, floats: Layers, over: Layers = frozenset()) -> bool:
        """Tell whether more layers in float bring a bit more than as many others, beyond chance."""
        if floats <= over:
            return False
        least = LEAST_DB + self.share_db(floats) - self.share_db(over)
        return self.gain(floats, over).low >= least


def _chosen(trials: _Trials) -> Layers:
    """Return the layers to leave in float: what pays of each probe, without what brings nothing."""
    kept, half = Layers(), len(trials.units) // 2
    halves = [Layers(trials.units[:half])], [Layers(trials.units[half:])]
    for parts in ([*_suspects(trials).values()], *halves):
        probe = kept.union(*parts)
        if trials.may and len(probe) < len(trials.units) and trials.is_gain(probe, kept):
            kept = _reduced(trials, probe, [*parts, kept])
        if trials.sqnr_db(kept) >= ENOUGH_DB:
            break
    return kept


def _reduced(trials: _Trials, kept: Layers, parts: Sequence[Layers]) -> Layers:
    """Return layers without the parts of them, halved again and again, that bring nothing."""
    best, queue = trials.excess(kept), deque(parts)
    while queue and trials.may:
        part = queue.popleft() & kept
        rest = kept - part
        if not part:
            continue
        if rest and trials.excess(rest) >= best - SLACK_DB:
            kept, best = rest, max(best, trials.excess(rest))
        elif len(part) > 1:
            order = [name for name in trials.units if name in part]
            half = len(order) // 2
            queue += Layers(order[half:]), Layers(order[:half])
    return kept


def _suspects(trials: _Trials) -> Mapping[str, Layers]:
    """Return the layers before what amplifies errors, in the first half, and those at both ends."""
    above = _layers_above(trials)
    groups, taken = dict[str, Layers](), set[str]()
    for node in trials.model.proto.graph.node:
        inputs = node.input[1:2] if node.op_type == "Div" else reads(node)
        layers = Layers().union(*(above.get(name, ()) for name in inputs))
        is_early = len(layers) <= len(trials.units) * 2 / 3
        if node.op_type in AMPLIFIES and is_early and (more := layers - taken):
            groups[node.op_type] = groups.get(node.op_type, Layers()) | more
            taken |= more
    return groups | {"the ends": Layers({*trials.units[:1], *trials.units[-1:]} - taken)}


def _layers_above(trials: _Trials) -> dict[str, Layers]:
    """Return for each tensor the layers whose error reaches it."""
    units, above = set(trials.units), dict[str, Layers]()
    for node in trials.model.proto.graph.node:
        mine = Layers().union(*(above.get(name, ()) for name in reads(node)))
        mine |= {node.name} & units
        above |= dict.fromkeys(node.output, mine)
    return above


def _groups(trials: _Trials, floats: Layers) -> Iterator[FloatGroup]:
    """Yield the layers by what they lead to, with what they bring beside the others."""
    left = floats
    for op, layers in _suspects(trials).items():
        if mine := layers & left:
            left -= mine
            yield _group(
                trials,
                floats,
                mine,
                f"their errors reach {op}" if op in AMPLIFIES else "the first or last layer",
            )
    if left:
        yield _group(trials, floats, left, "their errors grow")


def _group(trials: _Trials, floats: Layers, mine: Layers, reason: str) -> FloatGroup:
    names = tuple(name for name in trials.units if name in mine)
    return FloatGroup(names, reason, trials.gain(floats, floats - mine))


def _costs(trials: _Trials, dataset: Dataset, gpu: str) -> Costs | None:
    """Return what plans cost on a GPU, None where that is not known."""
    with suppress(TrtcalError):
        feeds = next(iter(dataset.batches(batch_for(trials.model, 1))))
        work = work_of(trials.model, trials.units, feeds)
        return Costs(work, find_target(gpu), "fp32", precisions=trials.forms)
    return None


def _joined(trials: _Trials, costs: Costs, floats: Layers) -> Layers:
    """Return the layers with those between them that are faster in float than with a Q/DQ at each side."""
    above = _layers_above(trials)
    nodes = {node.name: node for node in trials.model.proto.graph.node}
    before = {
        name: Layers().union(*(above.get(t, ()) for t in reads(nodes[name])))
        for name in trials.units
    }
    beyond = Layers().union(*(before[name] for name in floats))
    plan = frozenset(unit for unit in trials.whole if split(unit).layer not in floats)
    for name in trials.units:
        smaller = frozenset(unit for unit in plan if split(unit).layer != name)
        is_between = name in beyond and not floats.isdisjoint(before[name]) and name not in floats
        if is_between and costs.plan_ms(smaller) <= costs.plan_ms(plan):
            plan, floats = smaller, floats | {name}
    return floats
