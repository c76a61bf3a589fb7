"""Scale search: each range in turn is made narrower or wider, if the outputs lose less with that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.evaluate.search.methods import quantized_in, scale_of, scales_by_range, with_range
from trtcal.evaluate.search.segments import PairedGraph, Rerun
from trtcal.evaluate.search.sensitivity import BATCH, TOLERANCE
from trtcal.model import Model
from trtcal.quantization import find_layers, quantize
from trtcal.ranges import Calibration

FACTORS = (0.8, 0.9, 1.12, 1.3)
LEAST_GAIN = 0.005  # of the whole loss: less may be chance


@dataclasses.dataclass(frozen=True)
class ScaleSearch:
    """How ranges are searched: on how many `samples`, for which `objective` (`sqnr` or `kl`).

    The search ends early when `may_go_on` is false. `progress` is called once for each range.
    """

    samples: int
    objective: str = "sqnr"
    may_go_on: Callable[[], bool] = lambda: True
    progress: Callable[[int], None] = lambda done: None


def search_scales(
    model: Model, calibration: Calibration, dataset: Dataset, search: ScaleSearch
) -> Calibration | None:
    """Return the ranges after one round of coordinate descent, None if none was changed.

    All other tensors have the best ranges found so far, and only what comes after a tensor is run
    again.
    """
    placement = find_layers(model)
    pair = PairedGraph(model, quantize(model, calibration).proto)
    units = [one.name for one in placement.layers if one.name in pair.quantizable]
    scales = scales_by_range(pair, placement.range_of)
    found, done = dict(calibration.ranges), set[str]()
    batch = fixed_batch(model) or BATCH
    with Rerun(pair, units, dataset, search.samples, batch, TOLERANCE) as rerun:
        whole = rerun.whole()
        measure = "kl" if search.objective == "kl" and whole.kl is not None else "noise"
        for place, segment in rerun.segments():
            for source in dict.fromkeys(map(placement.range_of, quantized_in(pair, segment))):
                if source in done or source not in scales or not search.may_go_on():
                    continue
                done.add(source)
                before = found[source].amax
                amax = _best_range(rerun, place, scales[source], before, measure)
                if amax != before:
                    note = f"{before:.6g} times {amax / before:g}, by the error of the outputs"
                    found[source] = dataclasses.replace(found[source], amax=amax, note=note)
                search.progress(1)
    if found == calibration.ranges:
        return None
    return dataclasses.replace(calibration, ranges=found)


def _best_range(
    rerun: Rerun, place: int, scales: Collection[str], amax: float, measure: str
) -> float:
    """Return the range with the least loss, the given one if none helps, and go on with it."""
    best, gain = amax, LEAST_GAIN * rerun.whole().of(measure)
    for tried in (amax * factor for factor in FACTORS):
        loss = rerun.loss_with("int8", with_range(rerun, place, scales, tried))
        less = rerun.whole(loss.samples).of(measure) - loss.of(measure)
        if less > gain:
            best, gain = tried, less
    if best != amax:
        rerun.adopt(with_range(rerun, place, scales, best))
        for name in scales:
            rerun.pair.tensors[name] = scale_of(best, rerun.pair.tensors[name])
    return best
