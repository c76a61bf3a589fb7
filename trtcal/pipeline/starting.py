"""Where a search starts: from the model as it is, or optimized where INT8 throughout falls short."""

from __future__ import annotations

from trtcal.data import Dataset
from trtcal.evaluate.replay import Reporter
from trtcal.evaluate.search.pipeline import SearchOptions, whole_test
from trtcal.model import Model
from trtcal.ptq.improver import Improved, improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.ranges import Calibration


def improved_start(
    prepared: Model,
    calibration: Calibration,
    samples: tuple[Dataset, Dataset],
    settings: SearchOptions,
    reporter: Reporter,
    effort: str = "auto",
) -> Improved | None:
    """Return the optimized model to search from, None where INT8 throughout is good as it is.

    `samples` are those to search on, and those to fit optimizations to: none of them are those that
    the recommended plan is tested on. With `auto` it depends on the limits, see `whole_test`.
    """
    searched, fitted = samples
    if settings.precisions[0] != "int8":
        return None
    if effort == "auto" and whole_test(prepared, calibration, searched, settings).keeps_all:
        return None
    return improve(
        prepared, fitted, ImproveOptions("fast" if effort == "auto" else effort), reporter
    )
