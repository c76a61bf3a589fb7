"""Ranges by which INT8 loses least at the outputs: of each tensor by the method that suits it.

The histograms give the ranges of every method. One Q/DQ graph whose scales are inputs runs samples
with any of them, so that a candidate costs one forward: first each method for all tensors, then the
best of them with another method for groups of tensors, halved where a group does not help as a whole.
Few samples favour what happens to suit them, so a group needs much evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
import onnx

from calibrators import EmptyHistogramError, Histogram, Range
from calibrators.methods import Auto, gains
from calibrators.range import guard, scale_of
from trtcal.backends.sessions import open_session
from trtcal.calibration.observation import Observation, calibrate, create_calibrator, ranged
from trtcal.data import Dataset
from trtcal.data.dataset import batch_for
from trtcal.data.subsets import spread_over
from trtcal.errors import BackendError
from trtcal.evaluate.judging import Judge, Verdict
from trtcal.evaluate.replay import runner
from trtcal.model import Model
from trtcal.model.files import subgraphs_of
from trtcal.quantization import find_layers, quantize
from trtcal.ranges import Calibration, Parameters

AUTO = "auto"
LEAST_SAMPLES, MOST_SAMPLES = 8, 64  # that candidates are run on
MOST_TRIALS = 24  # candidates that are run
RUNS, CHECKED, VALUES = 4, 64, 3 << 23  # see `affordable`
EVIDENCE = 3.0  # standard errors by which a switch has to be better: many are tried
SAME = 0.02  # ranges whose logarithms differ by less are the same
GAINS = {AUTO: 1.0, "auto 0.3": 0.3}  # dB that clipping brings at least (`Auto`)
BETWEEN = {f"between mse and {other}": other for other in ("minmax", "percentile")}
SINGLE = ("percentile", "mse", "minmax", "entropy")
Report = Callable[[str, Verdict], None]
"""Called with the name of candidate ranges and what INT8 loses with them."""
Ranges = Mapping[str, Range]
"""Tensor -> its range by one method."""
Group = tuple[float, str, list[str]]
"""By how much the loss rises (dB) with a method for tensors, the method, and the tensors."""


class ExchangeableRanges:
    """INT8 of a model in float arithmetic, with scales that are inputs: ranges change at no cost."""

    def __init__(self, judge: Judge, prepared: Model, calibration: Calibration) -> None:
        self.judge = judge
        proto = judge.showing(quantize(prepared, calibration).proto)
        places = find_layers(prepared)
        nodes = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
        self.sources = {node.input[1]: places.range_of(node.input[0]) for node in nodes}
        self.types = {
            tensor.name: onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            for tensor in proto.graph.initializer
            if tensor.name in self.sources
        }
        self.session = open_session(_with_inputs(proto, self.types), is_literal=True)
        self.run = runner(self.session, judge.shown)

    def measure(self, ranges: Ranges) -> Verdict:
        """Return what INT8 with these ranges loses."""
        self.session.constants = {
            name: np.asarray(scale_of(ranges[self.sources[name]].amax), dtype)
            for name, dtype in self.types.items()
        }
        return self.judge.measure_run(self.run)


def _with_inputs(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return a model that takes these of its constants, which are numbers, as inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for tensor in [each for each in model.graph.initializer if each.name in names]:
        model.graph.initializer.remove(tensor)
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, [])
        model.graph.input.append(value)
    return model


def affordable(model: Model, observation: Observation) -> int:
    """Return on how many samples candidates may be run, in all: by the work that was done before.

    That is `RUNS` times all samples, and as many of those of the data check. Small networks, whose
    tensors have few values a sample, take less time than the command takes to start, unless they
    have loops.
    """
    samples = max(observation.samples, 1)
    runs = RUNS * (samples + min(samples, CHECKED))
    if any(any(subgraphs_of(node)) for node in model.proto.graph.node):
        return runs
    values = sum(histogram.count for histogram in observation.histograms.values())
    return runs + VALUES // max(values // samples, 1)


def judged_samples(model: Model, dataset: Dataset, observation: Observation) -> Dataset | None:
    """Return samples from all over the data to run candidates on, None if there are too few."""
    if len(dataset) < LEAST_SAMPLES:
        return None
    tables = len(SINGLE) + len(BETWEEN) + len(GAINS)
    samples = min(max(affordable(model, observation) // tables, LEAST_SAMPLES), MOST_SAMPLES)
    return spread_over(dataset, samples, batch_for(model, 1))


def ranges_by(
    method: str,
    parameters: Parameters | None,
    prepared: Model,
    dataset: Dataset,
    observation: Observation,
    report: Report = lambda name, verdict: None,
    advance: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Return the ranges of a method; those of `auto` without parameters by the loss on samples.

    `InputError` for an unknown method or parameters that it does not take.
    """
    if method != AUTO or parameters:
        return calibrate(observation, method, parameters)
    select = judged_samples(prepared, dataset, observation)
    return choose_ranges(prepared, observation, select, report, advance)


def choose_ranges(
    prepared: Model,
    observation: Observation,
    select: Dataset | None,
    report: Report = lambda name, verdict: None,
    advance: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Return the ranges by which INT8 of a prepared model loses least on samples.

    Without samples, or where ONNX Runtime cannot run the model, only the histograms decide.
    `report` gets the loss of each method for all tensors, and of what is chosen.
    """
    if select is None:
        return calibrate(observation, AUTO)
    try:
        with Judge(prepared, select) as judge:
            tables = candidates(observation)
            start = calibrate(observation, "minmax")
            search = _Search(ExchangeableRanges(judge, prepared, start), tables, advance)
            search.switch(min(affordable(prepared, observation) // len(select), MOST_TRIALS))
    except BackendError:
        return calibrate(observation, AUTO)
    for method in (*SINGLE, AUTO):
        report("by histogram" if method == AUTO else method, search.verdicts[method])
    report(search.summary, search.verdict)
    return search.calibration(observation, len(select))


def candidates(observation: Observation) -> Mapping[str, Ranges]:
    """Return the ranges of all tensors by each method, and by what lies between two of them.

    The geometric mean of two ranges suits more samples than either, which is at an end.
    """
    makers = {name: create_calibrator(name, {}) for name in SINGLE}
    tables: dict[str, dict[str, Range]] = {name: {} for name in (*SINGLE, *GAINS, *BETWEEN)}
    for name, histogram in observation.histograms.items():
        try:
            ranges = {method: maker(histogram) for method, maker in makers.items()}
        except EmptyHistogramError:
            continue
        gained = gains(ranges, histogram)
        by_histogram = {key: Auto(least).choose(ranges, gained) for key, least in GAINS.items()}
        between = {
            key: guard(math.sqrt(ranges["mse"].amax * ranges[other].amax), histogram)
            for key, other in BETWEEN.items()
        }
        for method, chosen in (ranges | by_histogram | between).items():
            tables[method][name] = chosen
    return tables


class _Search:
    """What was found so far: the method of each tensor, and the loss with it."""

    def __init__(
        self,
        exchange: ExchangeableRanges,
        tables: Mapping[str, Ranges],
        advance: Callable[[int], None],
    ) -> None:
        self.exchange, self.tables, self.advance = exchange, tables, advance
        self.known = dict[tuple[float, ...], Verdict]()
        self.verdicts = {name: self._measure(ranges) for name, ranges in tables.items()}
        self.best = min(tables, key=lambda name: self.verdicts[name].value)
        self.verdict = self.verdicts[self.best]
        self.chosen = dict.fromkeys(tables[self.best], self.best)

    @property
    def summary(self) -> str:
        """How many tensors have which method."""
        counts = Counter(map(self._method, self.chosen)).most_common()
        return "chosen: " + ", ".join(f"{count} {name}" for name, count in counts)

    def _measure(self, ranges: Ranges) -> Verdict:
        """Return the loss, measured once: on small networks several methods give the same ranges."""
        key = tuple(chosen.amax for chosen in ranges.values())
        if key not in self.known:
            self.advance(1)
            self.known[key] = self.exchange.measure(ranges)
        return self.known[key]

    def _differing(self, method: str, tensors: Collection[str]) -> list[str]:
        """Return the tensors whose range differs by a method, those that differ most first."""
        reach = {
            name: abs(math.log(self.tables[method][name].amax / self._range(name).amax))
            for name in tensors
        }
        return sorted((n for n in reach if reach[n] > SAME), key=lambda n: -reach[n])

    def _range(self, name: str) -> Range:
        return self.tables[self.chosen[name]][name]

    def switch(self, trials: int) -> None:
        """Give groups of tensors another method while that loses less, by more than chance.

        The half of a group whose ranges differ most is tried; the other half has the rest of what the
        loss rose by. What seems to lose least is divided next.
        """
        start = self.verdict.value
        groups = [
            (self.verdicts[method].value - start, method, [*self.chosen])
            for method in self.tables
            if method != self.best and math.isfinite(self.verdicts[method].value)
        ]
        heapify(groups)
        while groups and len(self.known) < trials:
            whole, method, tensors = heappop(groups)
            tensors = self._differing(method, tensors)
            middle = -(-len(tensors) // 2)
            rise, halves = whole, (tensors[:middle], tensors[middle:])
            for half in filter(None, halves):
                if half is halves[0] or (rise < 0 and len(tensors) > 1):
                    more, is_kept = self._tried(method, half)
                else:
                    more, is_kept = rise, False
                rise -= more
                if len(half) > 1 and not is_kept and math.isfinite(more):
                    heappush(groups, (more, method, half))

    def _tried(self, method: str, tensors: Collection[str]) -> tuple[float, bool]:
        """Try a method for tensors; return by how much the loss rises (dB), and whether it is kept."""
        changed = self.chosen | dict.fromkeys(tensors, method)
        verdict = self._measure({name: self.tables[of][name] for name, of in changed.items()})
        rise = verdict.value - self.verdict.value
        if is_kept := verdict.is_better(self.verdict, EVIDENCE):
            self.chosen, self.verdict = changed, verdict
        return rise, is_kept

    def calibration(self, observation: Observation, samples: int) -> Calibration:
        """Return the table, with the method of each tensor and the reason in its note."""

        def choose(name: str, histogram: Histogram) -> Range:
            if name not in self.chosen:
                raise EmptyHistogramError("no finite values were observed")
            chosen = self._range(name)
            if self.chosen[name] in GAINS:  # its note has the method and why
                return chosen
            why = f"{self.chosen[name]}: {self._reason(name)}"
            return replace(chosen, note="; ".join(filter(None, [why, chosen.note])))

        return ranged(observation, AUTO, {"samples_judged": samples}, choose, self._method)

    def _method(self, name: str) -> str:
        note = self._range(name).note or "minmax"
        return note.partition(":")[0] if self.chosen[name] in GAINS else self.chosen[name]

    def _reason(self, name: str) -> str:
        if self.chosen[name] == self.best:
            return "the outputs lose least with it for all tensors"
        return f"the outputs lose less than with {self.best}"
