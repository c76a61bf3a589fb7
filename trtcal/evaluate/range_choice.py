"""Ranges by which INT8 loses least at the outputs: of each tensor by the method that suits it.

The histograms give the ranges of every method. One Q/DQ graph whose scales are inputs runs samples
with any of them, so that a candidate costs one forward: first each method for all tensors, then the
best of them with another method for groups of tensors, halved where a group does not help as a whole.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import onnx

from calibrators import EmptyHistogramError, Histogram, Range
from calibrators.methods import Auto
from trtcal.backends.sessions import open_session
from trtcal.calibration.observation import Observation, calibrate, create_calibrator, ranged
from trtcal.data import Dataset, held_back
from trtcal.data.dataset import batch_for
from trtcal.errors import BackendError
from trtcal.evaluate.judging import METHODS, Judge, Verdict
from trtcal.evaluate.replay import runner
from trtcal.evaluate.search.segments import quantizers
from trtcal.model import Model
from trtcal.quantization import find_layers, quantize
from trtcal.ranges import Calibration

AUTO = "auto"
LEAST_SAMPLES, MOST_SAMPLES = 8, 16  # that candidates are run on
SWITCHES = 24  # groups of tensors that are tried, at most
SAME = 0.02  # ranges whose logarithms differ by less are the same
FURTHER = {"percentile 99.99": 99.99, "percentile 99.9": 99.9}
CANDIDATES = len(METHODS) + len(FURTHER) + SWITCHES
Ranges = Mapping[str, Range]
"""Tensor -> its range by one method."""
Group = tuple[str, list[str]]
"""A method, and the tensors that it is tried for."""


class ExchangeableRanges:
    """INT8 of a model in float arithmetic, with scales that are inputs: ranges change at no cost."""

    def __init__(self, judge: Judge, prepared: Model, calibration: Calibration) -> None:
        self.judge = judge
        proto = judge.showing(quantize(prepared, calibration).proto)
        places = find_layers(prepared)
        self.sources = {n.input[1]: places.range_of(n.input[0]) for n in quantizers(proto)}
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
            name: np.array(ranges[self.sources[name]].amax / 127, dtype)
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


def judged_samples(model: Model, dataset: Dataset) -> Dataset | None:
    """Return samples from all over the data to run candidates on, None if there are too few."""
    unit = batch_for(model, 1)
    most = max(MOST_SAMPLES // unit, 1) * unit
    if len(dataset) < LEAST_SAMPLES:
        return None
    return held_back(dataset, most, unit)[1] if most < len(dataset) else dataset


def choose_ranges(
    prepared: Model,
    observation: Observation,
    select: Dataset | None,
    report: Callable[[str, Verdict], None] = lambda name, verdict: None,
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
            search.switch()
    except BackendError:
        return calibrate(observation, AUTO)
    for method in METHODS:
        report("by histogram" if method == AUTO else method, search.verdicts[method])
    report(search.summary, search.verdict)
    return search.calibration(observation, len(select))


def candidates(observation: Observation) -> Mapping[str, Ranges]:
    """Return the ranges of all tensors by each method."""
    makers = {name: create_calibrator(name, {}) for name in METHODS if name != AUTO}
    makers |= {n: create_calibrator("percentile", {"percentile": p}) for n, p in FURTHER.items()}
    tables: dict[str, dict[str, Range]] = {name: {} for name in (*METHODS, *FURTHER)}
    by_histogram = Auto()
    for name, histogram in observation.histograms.items():
        try:
            ranges = {method: maker(histogram) for method, maker in makers.items()}
        except EmptyHistogramError:
            continue
        own = {method: ranges[method] for method in METHODS if method != AUTO}
        for method, chosen in {**ranges, AUTO: by_histogram.choose(own, histogram)}.items():
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
        self.advance(1)
        return self.exchange.measure(ranges)

    def _differing(self, method: str, tensors: Collection[str]) -> list[str]:
        """Return the tensors whose range differs by a method, those that differ most first."""
        reach = {
            name: abs(math.log(self.tables[method][name].amax / self._range(name).amax))
            for name in tensors
        }
        return sorted((n for n in reach if reach[n] > SAME), key=lambda n: -reach[n])

    def _range(self, name: str) -> Range:
        return self.tables[self.chosen[name]][name]

    def switch(self) -> None:
        """Give groups of tensors another method while that loses less, by more than chance."""
        order = sorted(self.tables, key=lambda name: self.verdicts[name].value)
        groups = deque[Group]()
        for method in order[1:]:
            self._halve(groups, method, [*self.chosen])
        for _ in range(SWITCHES):
            if not groups:
                break
            method, tensors = groups.popleft()
            tensors = self._differing(method, tensors)
            if tensors and not self._is_kept(method, tensors) and len(tensors) > 1:
                self._halve(groups, method, tensors)

    def _halve(self, groups: deque[Group], method: str, tensors: Collection[str]) -> None:
        names = self._differing(method, tensors)
        middle = len(names) // 2
        groups.extend((method, half) for half in (names[:middle], names[middle:]) if half)

    def _is_kept(self, method: str, tensors: Collection[str]) -> bool:
        """Try a method for tensors; keep it if it is better."""
        changed = self.chosen | dict.fromkeys(tensors, method)
        verdict = self._measure({name: self.tables[of][name] for name, of in changed.items()})
        if is_kept := verdict.is_better(self.verdict):
            self.chosen, self.verdict = changed, verdict
        return is_kept

    def calibration(self, observation: Observation, samples: int) -> Calibration:
        """Return the table, with the method of each tensor and the reason in its note."""

        def choose(name: str, histogram: Histogram) -> Range:
            if name not in self.chosen:
                raise EmptyHistogramError("no finite values were observed")
            chosen = self._range(name)
            if self.chosen[name] == AUTO:  # its note has the method and why
                return chosen
            why = f"{self.chosen[name]}: {self._reason(name)}"
            return replace(chosen, note="; ".join(filter(None, [why, chosen.note])))

        return ranged(observation, AUTO, {"samples_judged": samples}, choose)

    def _method(self, name: str) -> str:
        note = self._range(name).note or "minmax"
        return note.partition(":")[0] if self.chosen[name] == AUTO else self.chosen[name]

    def _reason(self, name: str) -> str:
        if self.chosen[name] == self.best:
            return "the outputs lose least with it for all tensors"
        return f"the outputs lose less than with {self.best}"
