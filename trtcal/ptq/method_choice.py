"""Choose the method whose ranges serve a model best: by its outputs, on samples held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtcal.calibration import Observation
from trtcal.calibration.choose import calibrate
from trtcal.data import Dataset
from trtcal.model import Model
from trtcal.ptq.evaluation import Judge, Verdict, leading
from trtcal.quantization import quantize
from trtcal.ranges import Calibration, Parameters

METHODS = ("percentile", "mse", "auto", "minmax", "entropy")


@dataclass(frozen=True)
class Choice:
    """The ranges chosen, and by method what INT8 loses with its ranges."""

    calibration: Calibration
    verdicts: dict[str, Verdict]


def choose_method(
    prepared: Model,
    observation: Observation,
    select: Dataset,
    parameters: Parameters | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Choice:
    """Judge every method's ranges on samples that `observation` has not seen.

    A later one must be better than those before by more than a standard error, so that `percentile`
    stays unless there is evidence. `parameters` are those of `auto`, which goes tensor by tensor.
    """
    verdicts, tables = dict[str, Verdict](), dict[str, Calibration]()
    with Judge(prepared, select) as judge:
        for method in METHODS:
            given = parameters if method == "auto" else None
            tables[method] = calibrate(observation, method, given)
            verdicts[method] = judge.measure(quantize(prepared, tables[method]).proto)
            advance(1)
    _, chosen = leading((verdicts[method], tables[method]) for method in METHODS)
    return Choice(chosen, verdicts)
