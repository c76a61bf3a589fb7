"""Layers that must not be quantized: those whose own error becomes a large one at the outputs.

Nobody sees them one by one: a filter bank of six products behind a logarithm is as bad with five of
them in float as with all quantized. So groups are tried together: what leads to an operator that
amplifies small errors (logarithms, divisions, roots, recurrent cells) with the first and last layers,
then each half of the network. From a group that pays whatever brings nothing is taken out again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from trtcal.data import Dataset
from trtcal.data.dataset import batch_for
from trtcal.data.subsets import spread_over
from trtcal.documents.overview import Shown
from trtcal.errors import TrtcalError, some
from trtcal.evaluate.judging import LARGEST, Judge
from trtcal.evaluate.per_sample import Values
from trtcal.evaluate.search.limits import Plan as Chosen
from trtcal.evaluate.search.limits import unit_of
from trtcal.evaluate.search.plan_time import Costs, work_of
from trtcal.evidence.gpus import DEFAULT_GPU, find_target
from trtcal.evidence.times import SpeedupEstimate
from trtcal.formats import NARROW
from trtcal.model import Model
from trtcal.model.graph import reads
from trtcal.model.ops import AMPLIFIES, MULTIPLIES
from trtcal.quantization import Plan, find_layers, quantize
from trtcal.ranges import Calibration
from trtcal.stats import Interval

LEAST_DB = 20 * math.log10(2)  # what a mixed plan has to bring: one bit more of the outputs
ENOUGH_DB = 25.0  # where nothing is looked for: the noise is a third of a percent of the signal
SLACK_DB = 1.0  # that layers may bring together and still be quantized
TRIALS = 12  # plans that are measured at most
LEAST_SAMPLES, SAMPLES = 8, 16  # that each is measured on
MOST = 2 / 3  # of the layers that may lead to what amplifies errors, or they are all suspect
ENDS, REST = "first or last", "errors grow behind"  # why layers are in float
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

    `before_db` and `after_db` are the mean SQNR at the outputs, on `samples` of the dataset. `speed` is
    how many times as fast as without float layers the plan is on the `gpu` by estimate, None if that is
    not known.
    """

    plan: Plan
    groups: tuple[FloatGroup, ...]
    before_db: float
    after_db: float
    samples: int
    gpu: str
    speed: SpeedupEstimate | None = None

    @property
    def sentence(self) -> str:
        """What layers in float bring and cost, or that none has to be in float."""
        word = self.plan.default.upper()
        if not self.groups:
            return f"no layer has to stay in float: {word} has {self.before_db:.1f} dB"
        cost = "their cost in time is not known"
        if self.speed is not None:
            ends = f"{self.speed.low:.3g} to {self.speed.high:.3g}, estimated for {self.gpu}"
            cost = f"with {self.speed.ratio:.3g} times the speed ({ends})"
        groups = "; ".join(group.sentence for group in self.groups)
        layers = sum(len(group.layers) for group in self.groups)
        gain = f"{layers} layers in float raise {word} from {self.before_db:.1f} to "
        return f"{gain}{self.after_db:.1f} dB, {cost}: {groups}"


def find_fragile(
    prepared: Model,
    calibration: Calibration,
    dataset: Dataset,
    plan: Plan | None = None,
    gpu: str = DEFAULT_GPU,
    reference: Model | None = None,
) -> Fragile:
    """Find the layers of a prepared model that a plan, all INT8 if None, should leave in float.

    `dataset` are best samples that the ranges were not chosen from. What the plan names stays as it is.
    The outputs are compared with those of the `reference`, else of the model itself.
    """
    plan = plan or Plan()
    few = int(np.clip(len(dataset) // 2, LEAST_SAMPLES, SAMPLES))
    judged = spread_over(dataset, few, batch_for(prepared, 1))
    with Judge(reference or prepared, judged) as judge:
        trials = _Trials(prepared, calibration, plan, judge)
        before = trials.sqnr_db(frozenset())
        floats = _chosen(trials) if before < ENOUGH_DB and trials.units else frozenset()
        costs = _costs(trials, judged, gpu) if floats else None
        if costs is not None:
            floats = _joined(trials, costs, floats)
        if not trials.is_gain(floats):
            return Fragile(plan, (), before, before, len(judged), gpu)
        groups, after = tuple(_groups(trials, floats)), trials.sqnr_db(floats)
    speed = None
    if costs is not None:
        speed = costs.over(costs.estimate(trials.chosen()), trials.chosen(floats))
    return Fragile(trials.mixed(floats), groups, before, after, len(judged), gpu, speed)


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
        fixed = {*self.plan.layers, *self.plan.second_qdq}
        forms = {
            layer.name: known.get(layer.name, "int8")
            for layer in find_layers(self.model).layers
            if (layer.name in known or layer.op not in MULTIPLIES) and layer.name not in fixed
        }
        order = [node.name for node in self.model.proto.graph.node if node.name in forms]
        self.units, self.forms, self.every = order, forms, Layers(order)
        self.precisions = tuple(dict.fromkeys(forms.values()))
        self.before = self._before()
        self.suspects = self._suspects()

    def _values(self, proto: object) -> Values:
        values = self.judge.measure(proto).values  # type: ignore[arg-type]
        return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=-LARGEST)

    @property
    def may(self) -> bool:
        """Whether another plan can be measured."""
        return len(self.values) < TRIALS

    def mixed(self, floats: Layers) -> Plan:
        """Return the plan with some layers in float."""
        layers = dict.fromkeys((name for name in self.units if name in floats), "fp32")
        return replace(self.plan, layers={**self.plan.layers, **layers})

    def chosen(self, floats: Layers = frozenset()) -> Chosen:
        """Return the units that stay quantized with some layers in float."""
        return frozenset(unit_of(name, self.forms[name]) for name in self.every - floats)

    def of(self, floats: Layers) -> Values:
        """Return the noise over signal (dB) of each sample with some layers in float."""
        if floats not in self.values:
            quantized = quantize(self.model, self.calibration, self.mixed(floats))
            self.values[floats] = self._values(quantized.proto)
        return self.values[floats]

    def _suspects(self) -> Mapping[str, Layers]:
        """Return the layers before what amplifies errors, unless these are most, and both ends."""
        groups, taken = dict[str, Layers](), set[str]()
        for node in self.model.proto.graph.node:
            layers = self.before[node.name] if node.op_type in AMPLIFIES else Layers()
            if len(layers) <= MOST * len(self.units) and (more := layers - taken):
                groups[node.op_type] = groups.get(node.op_type, Layers()) | more
                taken |= more
        return groups | {ENDS: Layers({*self.units[:1], *self.units[-1:]} - taken)}

    def _before(self) -> dict[str, Layers]:
        """Return for each node the layers whose error reaches it, of a division its divisor."""
        above, before = dict[str, Layers](), dict[str, Layers]()
        for node in self.model.proto.graph.node:
            mine = Layers().union(*(above.get(name, ()) for name in reads(node)))
            divisor = above.get(node.input[1], Layers()) if node.op_type == "Div" else mine
            before[node.name] = divisor
            above |= dict.fromkeys(node.output, mine | ({node.name} & self.every))
        return before

    def sqnr_db(self, floats: Layers) -> float:
        """Return the mean over the samples."""
        return -float(self.of(floats).mean())

    def gain(self, floats: Layers, over: Layers = frozenset()) -> Interval:
        """Return what more layers in float bring (dB), in the mean of pairs."""
        gains = self.of(over) - self.of(floats)
        gain, samples = float(gains.mean()), len(gains)
        error = ERRORS * float(gains.std(ddof=1)) / samples**0.5 if samples > 1 else math.inf
        return Interval(gain, gain - error, gain + error)

    def share_db(self, floats: Layers) -> float:
        """Return what as many layers would bring if all lost alike."""
        return -10 * math.log10(max(1 - len(floats) / len(self.units), 1e-3))

    def excess(self, floats: Layers) -> float:
        """Return by how much layers bring more than as many others."""
        return self.sqnr_db(floats) - self.share_db(floats)

    def is_gain(self, floats: Layers, over: Layers = frozenset()) -> bool:
        """Tell whether more layers in float bring a bit more than as many others, beyond chance."""
        if floats <= over or floats == self.every:
            return False
        gain, share = self.gain(floats, over), self.share_db(floats) - self.share_db(over)
        return gain.value >= LEAST_DB + share and gain.low > share


def _chosen(trials: _Trials) -> Layers:
    """Return the layers to leave in float: what pays of each probe, without what brings nothing."""
    kept, half = Layers(), len(trials.units) // 2
    halves = [Layers(trials.units[:half])], [Layers(trials.units[half:])]
    for parts in ([*trials.suspects.values()], *halves):
        probe = kept.union(*parts)
        if trials.may and len(probe) < len(trials.units) and trials.is_gain(probe, kept):
            kept = _reduced(trials, probe, [*parts, kept])
        if trials.sqnr_db(kept) >= ENOUGH_DB:
            break
    return kept


def _reduced(trials: _Trials, kept: Layers, parts: Iterable[Layers]) -> Layers:
    """Return layers without the parts of them, halved again and again, that bring nothing.

    Of two halves that are needed together, one is needed if the other is not: it is not measured.
    """
    best, queue = trials.excess(kept), deque((part, trials.every) for part in parts)
    while queue and trials.may:
        part, together = queue.popleft()
        part, rest = part & kept, kept - part
        if rest and part != together & kept and trials.excess(rest) >= best - SLACK_DB:
            kept, best = rest, max(best, trials.excess(rest))
        elif len(part) > 1:
            order = [name for name in trials.units if name in part]
            half = len(order) // 2
            queue += (Layers(order[half:]), part), (Layers(order[:half]), part)
    return kept


def _groups(trials: _Trials, floats: Layers) -> Iterator[FloatGroup]:
    """Yield the layers by what they lead to, with what they bring beside the others."""
    left = floats
    for name, layers in [*trials.suspects.items(), (REST, floats)]:
        mine, left = layers & left, left - layers
        if mine:
            names = tuple(unit for unit in trials.units if unit in mine)
            reason = f"before {name}" if name in AMPLIFIES else name
            yield FloatGroup(names, reason, trials.gain(floats, floats - mine))


def _costs(trials: _Trials, dataset: Dataset, gpu: str) -> Costs | None:
    """Return what plans cost on a GPU, None where that is not known."""
    with suppress(TrtcalError):
        feeds = next(iter(dataset.batches(batch_for(trials.model, 1))))
        work = work_of(trials.model, trials.units, feeds)
        return Costs(work, find_target(gpu), "fp32", precisions=trials.precisions)
    return None


def _joined(trials: _Trials, costs: Costs, floats: Layers) -> Layers:
    """Return the layers with those around them that cost no more in float than with their Q/DQ.

    Those are the ones that lead to the same operators, else those between them.
    """
    around = Layers()
    for layers in (*trials.suspects.values(), trials.every):
        if mine := layers & (floats - around):
            beyond = Layers().union(*(trials.before[name] for name in mine))
            between = Layers(name for name in beyond if trials.before[name] & mine)
            around |= mine | (between if layers == trials.every else layers)
    more = [name for name in trials.units if name in around - floats]
    for names in ({*more}, *({name} for name in more)):
        plan, fewer = trials.chosen(floats), trials.chosen(floats | names)
        if costs.plan_ms(fewer) <= costs.plan_ms(plan):
            floats = floats | names
    return floats
