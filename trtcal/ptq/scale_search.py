"""Scale search: each range in turn is made narrower or wider, if the outputs lose less with that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from trtcal.data import Dataset
from trtcal.evaluate.search.segments import Rerun, Scales, scale_of
from trtcal.model import Model
from trtcal.ranges import Calibration

FACTORS = (0.8, 0.9, 1.12, 1.3)
LEAST_GAIN = 0.005  # of the whole loss: less may be chance


def search_scales(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    samples: int,
    objective: str = "sqnr",
    may_go_on: Callable[[], bool] = lambda: True,
    progress: Callable[[int], None] = lambda done: None,
) -> Calibration | None:
    """Return the ranges after one round of coordinate descent, None if none was changed.

    All other tensors have the best ranges found so far, and only what comes after a tensor is run
    again. `objective` is `sqnr` or `kl`; the search ends early when `may_go_on` is false.
    """
    ranges = dict(calibration.ranges)
    with Rerun(model, calibration, dataset, samples) as rerun:
        whole = rerun.whole()
        measure = "kl" if objective == "kl" and whole.kl is not None else "noise"
        for source, scales in rerun.ranges():
            if not may_go_on():
                break
            before = ranges[source].amax
            amax = _best_range(rerun, scales, before, measure)
            if amax != before:
                note = f"{before:.6g} times {amax / before:g}, by the error of the outputs"
                ranges[source] = dataclasses.replace(ranges[source], amax=amax, note=note)
            progress(1)
    if ranges == calibration.ranges:
        return None
    return dataclasses.replace(calibration, ranges=ranges)


def _best_range(rerun: Rerun, scales: Scales, amax: float, measure: str) -> float:
    """Return the range with the least loss, the given one if none helps, and go on with it."""
    best, gain = amax, LEAST_GAIN * rerun.whole().of(measure)
    for tried in (amax * factor for factor in FACTORS):
        loss = rerun.loss_with("int8", rerun.with_range(scales, tried))
        less = rerun.whole(loss.samples).of(measure) - loss.of(measure)
        if less > gain:
            best, gain = tried, less
    if best != amax:
        rerun.adopt(rerun.with_range(scales, best))
        for name in scales:
            rerun.pair.tensors[name] = scale_of(best, rerun.pair.tensors[name])
    return best
