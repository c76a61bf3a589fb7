"""INT8 that falls short is optimized before layers go to float; an attempt that fails ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from trtcal.data import Dataset
from trtcal.errors import TrtcalError
from trtcal.evaluate.replay import Reporter, silent
from trtcal.evaluate.search.pipeline import SearchOptions, samples_searched, whole_test
from trtcal.model import Model
from trtcal.pipeline.journal import Say
from trtcal.ptq.improver import Improved, improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.ranges import Calibration

T = TypeVar("T")


def where_short(is_short: Callable[[], bool], work: Callable[[], T], say: Say) -> T | None:
    """Return what optimizing gives, None where INT8 does not fall short or the attempt fails."""
    try:
        if not is_short():
            return None
        say("INT8 misses a limit or loses more than noise: trying optimizations (improve = fast)")
        return work()
    except TrtcalError as error:
        say(f"INT8 was not optimized: {error.message}")
        return None


def improved_for_search(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    settings: SearchOptions,
    data: Callable[[], Dataset | None] = lambda: None,
    reporter: Reporter = silent,
    say: Say = lambda line: None,
) -> Improved | None:
    """Return the optimized model that a search starts from, None where it starts from plain INT8.

    `data` gives the samples to fit it to, else those that plans are measured on: none of those that the
    recommended plan is tested on.
    """
    if settings.improve == "off" or settings.precisions[0] != "int8":
        return None
    searched = samples_searched(dataset, settings, model)

    def optimized(effort: str = "fast") -> Improved:
        return improve(model, data() or searched, ImproveOptions(effort), reporter)

    if settings.improve != "auto":
        return optimized(settings.improve)
    plain = cache(lambda: whole_test(model, calibration, searched, settings))

    def optimized_if_better() -> Improved | None:
        improved = optimized()
        test = whole_test(improved.optimized, improved.calibration, searched, settings)
        figures = [of.candidate for tested in (plain(), test) for of in tested.verdict.answers[:1]]
        if figures == sorted(figures):
            return improved
        say("the optimized model loses more on the samples of the search, which starts without it")
        return None

    return where_short(lambda: not plain().keeps_all, optimized_if_better, say)
