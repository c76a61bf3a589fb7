"""Range refinement: every range in turn a little narrower or wider, kept if the outputs lose less."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import numpy_helper

from trtcal.calibration import Calibration
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.model import Model
from trtcal.quantize import find_layers, quantize
from trtcal.search.rerun import Rerun
from trtcal.search.segments import Segment, Twins
from trtcal.search.sensitivity import BATCH, TOLERANCE

FACTORS = (0.8, 0.9, 1.12, 1.3)
LEAST_GAIN = 0.005  # of the whole loss: less may be chance


def refined(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    samples: int,
    objective: str,
    may: Callable[[], bool],
    progress: Callable[[int], None],
) -> Calibration | None:
    """Return the ranges after one round of coordinate descent, None if none was changed.

    All other tensors have the best ranges found so far, and only what comes after a tensor is run
    again. It ends early when it no longer `may`.
    """
    placement = find_layers(model)
    twins = Twins(model, quantize(model, calibration).proto)
    units = [one.name for one in placement.layers if one.name in twins.quantizable]
    scales = _scales(twins, placement.range_of)
    found, done = dict(calibration.ranges), set[str]()
    with Rerun(twins, units, dataset, samples, fixed_batch(model) or BATCH, TOLERANCE) as rerun:
        whole = rerun.whole()
        measure = "kl" if objective == "kl" and whole.kl is not None else "noise"
        for place, segment in rerun.segments():
            for source in dict.fromkeys(map(placement.range_of, _quantized_in(twins, segment))):
                if source in done or source not in scales or not may():
                    continue
                done.add(source)
                factor = _best_factor(rerun, place, scales[source], measure)
                if factor != 1.0:
                    before = found[source]
                    note = f"{before.amax:.6g} times {factor:g}, by what it does to the outputs"
                    found[source] = dataclasses.replace(
                        before, amax=before.amax * factor, note=note
                    )
                progress(1)
    if found == calibration.ranges:
        return None
    return dataclasses.replace(calibration, ranges=found)


def _best_factor(rerun: Rerun, place: int, scales: set[str], measure: str) -> float:
    """Return by what the loss becomes least, 1 if nothing helps, and go on with it."""
    best, gain = 1.0, LEAST_GAIN * rerun.whole().of(measure)
    for factor in FACTORS:
        loss = rerun.loss_with("int8", dict(_with_scale(rerun, place, scales, factor)))
        less = rerun.whole(loss.samples).of(measure) - loss.of(measure)
        if less > gain:
            best, gain = factor, less
    if best != 1.0:
        rerun.adopt(dict(_with_scale(rerun, place, scales, best)))
        for name in scales:
            rerun.twins.tensors[name] = _scaled(rerun.twins.tensors[name], best)
    return best


def _scales(twins: Twins, range_of: Callable[[str], str]) -> Mapping[str, set[str]]:
    """Return the scales that hang on each range, by the tensor whose range it is."""
    found: dict[str, set[str]] = {}
    for node in twins.quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            found.setdefault(range_of(node.input[0]), set()).add(node.input[1])
    return found


def _quantized_in(twins: Twins, segment: Segment) -> Iterator[str]:
    nodes = twins.part(segment, twins.quantizable).graph.node
    return (node.input[0] for node in nodes if node.op_type == "QuantizeLinear")


def _with_scale(
    rerun: Rerun, start: int, scales: set[str], factor: float
) -> Iterator[tuple[int, onnx.ModelProto]]:
    """Yield the segments, from one on, in which a range occurs, with `factor` times that range."""
    for place in range(start, len(rerun.parts)):
        part = rerun.twins.part(rerun.parts[place], rerun.twins.quantizable)
        if mine := [one for one in part.graph.initializer if one.name in scales]:
            for one in mine:
                one.CopyFrom(_scaled(one, factor))
            yield place, part


def _scaled(tensor: onnx.TensorProto, factor: float) -> onnx.TensorProto:
    values = numpy_helper.to_array(tensor)
    return numpy_helper.from_array((values * factor).astype(values.dtype), tensor.name)
