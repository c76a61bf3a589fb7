"""Which calibrator where: a method for each tensor, by what it does to the outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from trtcal.calibration import Observation, calibrate
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.segments import PairedGraph, Rerun, Segment
from trtcal.evaluate.search.sensitivity import BATCH, SAMPLES, TOLERANCE
from trtcal.model import Model
from trtcal.quantization import find_layers, quantize
from trtcal.ranges import Calibration, TensorRange


def scales_by_range(pair: PairedGraph, range_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the scales that hang on each range, by the tensor whose range it is."""
    found: dict[str, set[str]] = {}
    for node in pair.quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            found.setdefault(range_of(node.input[0]), set()).add(node.input[1])
    return found


def quantized_in(pair: PairedGraph, segment: Segment) -> Iterator[str]:
    """Yield the tensors that are quantized in a segment."""
    part = pair.part(segment, pair.quantizable)
    return (node.input[0] for node in part.graph.node if node.op_type == "QuantizeLinear")


def with_range(
    rerun: Rerun, start: int, scales: Collection[str], amax: float
) -> dict[int, onnx.ModelProto]:
    """Return the segments of the all-INT8 run that have these scales, from one on, with a range."""
    instead = dict[int, onnx.ModelProto]()
    for place in range(start, len(rerun.parts)):
        part = rerun.pair.part(rerun.parts[place], rerun.pair.quantizable)
        if mine := [one for one in part.graph.initializer if one.name in scales]:
            for one in mine:
                one.CopyFrom(scale_of(amax, one))
            instead[place] = part
    return instead


def scale_of(amax: float, like: onnx.TensorProto) -> onnx.TensorProto:
    """Return a range's scale, of the name and type of another one."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(like.data_type)
    return numpy_helper.from_array(np.array(amax / 127, dtype), like.name)


METHODS = ("percentile", "minmax", "entropy", "mse")
NAME = "searched"
SAME = 0.01  # ranges that differ by less are one


@dataclass(frozen=True)
class Choice:
    """One tensor's method, and the loss of the whole INT8 model with each that was tried there."""

    tensor: str
    method: str
    losses: Mapping[str, float]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"tensor": self.tensor, "method": self.method, "losses": dict(self.losses)}


@dataclass(frozen=True)
class Chosen:
    """The calibration that loses least, what the others lose, and the choices tensor by tensor."""

    calibration: Calibration
    losses: Mapping[str, Loss]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class MethodSettings:
    """The methods to choose from; on how many samples tensors are judged, and whole tables."""

    methods: Sequence[str] = METHODS
    samples: int = SAMPLES
    evaluated: int = 512


def choose_methods(
    model: Model,
    observation: Observation,
    dataset: Dataset,
    cache: EvaluationCache,
    settings: MethodSettings | None = None,
) -> Chosen:
    """Choose tensor by tensor, all others as the best of the methods has them, then judge the whole.

    Tables are judged with every layer in INT8. Where the choices together lose more than one method
    everywhere, that method's ranges are returned.
    """
    wanted = settings or MethodSettings()
    tables = {method: calibrate(observation, method) for method in wanted.methods}
    with Reference(model, dataset, wanted.evaluated) as reference:

        def judge(table: Calibration) -> Loss:
            return Evaluator(Plans(model, table), reference, cache).loss()

        losses = {name: judge(table) for name, table in tables.items()}
        measure = "noise" if losses[wanted.methods[0]].kl is None else "kl"
        order = sorted(tables, key=lambda name: losses[name].of(measure))
        tables = {name: tables[name] for name in order}
        choices = tuple(_choices(model, tables, dataset, measure, cache, wanted.samples))
        made = _assembled(tables, choices)
        losses[NAME] = judge(made)
    best = min(losses, key=lambda name: losses[name].of(measure))
    return Chosen(made if best == NAME else tables[best], losses, choices)


def _choices(
    model: Model,
    tables: Mapping[str, Calibration],
    dataset: Dataset,
    measure: str,
    cache: EvaluationCache,
    samples: int,
) -> Iterator[Choice]:
    first, *others = tables
    placement = find_layers(model)
    pair = PairedGraph(model, quantize(model, tables[first]).proto)
    units = [one.name for one in placement.layers if one.name in pair.quantizable]
    scales = scales_by_range(pair, placement.range_of)
    size = fixed_batch(model) or BATCH
    done = set[str]()
    with Rerun(pair, units, dataset, samples, size, TOLERANCE) as rerun:
        for place, _ in rerun.segments():
            here = quantized_in(pair, rerun.parts[place])
            for source in dict.fromkeys(placement.range_of(name) for name in here):
                if source in done or source not in scales:
                    continue
                done.add(source)
                losses = {first: 0.0}
                for method in others:
                    amax = tables[method].ranges[source].amax
                    if abs(amax / tables[first].ranges[source].amax - 1) < SAME:
                        continue
                    key = {"tensor": source, "amax": amax, "beside": tables[first].digest}
                    again = partial(_with_range, rerun, place, scales[source], amax)
                    loss = cache.recall(key, again)
                    usual = rerun.whole(loss.samples)
                    losses[method] = loss.of(measure) - usual.of(measure)
                yield Choice(source, min(losses, key=lambda name: losses[name]), losses)


def _with_range(rerun: Rerun, start: int, scales: set[str], amax: float) -> Loss:
    """Return the loss of the INT8 model with another range, from the first segment that has it."""
    return rerun.loss_with("int8", with_range(rerun, start, scales, amax))


def _assembled(tables: Mapping[str, Calibration], choices: Sequence[Choice]) -> Calibration:
    """Return the table with each tensor's range from its method, which the note names."""
    first = next(iter(tables.values()))
    ranges = dict(first.ranges)
    for one in choices:
        chosen: TensorRange = tables[one.method].ranges[one.tensor]
        note = "; ".join(
            filter(None, [f"{one.method}, by what it does to the outputs", chosen.note])
        )
        ranges[one.tensor] = dataclasses.replace(chosen, note=note)
    parameters: dict[str, int | float | str] = {"methods": " ".join(tables)}
    return dataclasses.replace(first, method=NAME, parameters=parameters, ranges=ranges)
