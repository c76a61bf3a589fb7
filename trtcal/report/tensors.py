"""Every observed tensor for the report: a histogram in few bars, and each method's range on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators import Histogram
from trtcal.calibration import Calibration
from trtcal.observe import Observation
from trtcal.storage import Document

BARS = 40


def tensor_facts(
    observations: Sequence[Observation],
    calibrations: Sequence[Calibration],
    tails: Sequence[Document] = (),
) -> list[Document]:
    """Return each tensor with what was seen of it, in the order in which it was observed.

    `bars` count magnitudes in equal steps from 0 to the largest one (`observed`, in the tensor's own
    unit), exact zeros apart; None without histograms, or if no value was finite. `tail` are the
    samples that reach farthest. Histograms and tails that no calibration is of are left out.
    """
    chosen = {one.histograms for one in calibrations}
    histograms = next((one.histograms for one in observations if one.digest in chosen), {})
    data = {(one.model, one.dataset) for one in calibrations}
    reaches: Document = next(
        (one["tensors"] for one in tails if (one["model"], one["dataset"]) in data), {}
    )
    by_digest = {one.digest: one for one in calibrations}
    names = dict.fromkeys([*histograms, *(name for one in calibrations for name in one.ranges)])
    return [
        {
            "name": name,
            **_seen(histograms.get(name)),
            "ranges": [
                {"calibration": digest, "method": one.method, **_range(one, name)}
                for digest, one in by_digest.items()
                if name in one.ranges
            ],
            "tail": list(reaches.get(name, ())),
        }
        for name in names
    ]


def _seen(histogram: Histogram | None) -> Document:
    if histogram is None or not 0 < histogram.amax < np.inf:
        return {"values": None, "zeros": None, "observed": None, "bars": None}
    low, high, counts = histogram.magnitudes()
    places = ((low + high) / 2 * (BARS / histogram.amax)).astype(np.int64)
    bars: npt.NDArray[Any] = np.zeros(BARS, np.int64)
    np.add.at(bars, np.minimum(places, BARS - 1), counts)
    return {
        "values": int(histogram.count),
        "zeros": int(histogram.zeros),
        "observed": float(histogram.amax),
        "bars": bars.tolist(),
    }


def _range(calibration: Calibration, name: str) -> Document:
    one = calibration.ranges[name]
    return {"amax": one.amax, "clipped": one.clipped, "note": one.note}
