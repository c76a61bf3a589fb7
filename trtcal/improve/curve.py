"""How many calibration samples a model needs: what INT8 loses with ranges from fewer and from more.

Losses are measured on samples that no range has seen. What this does not know: whether the data are
like those of the field, and what more samples than the largest size would bring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trtcal import __version__
from trtcal.calibration import Calibration, Parameters, calibrate, create_calibrator
from trtcal.compare.statistics import Interval
from trtcal.data import Dataset
from trtcal.errors import InputError
from trtcal.improve.draws import HELD_BACK, Chunks, Draws, draw
from trtcal.improve.spread import Losses, Values, excess, sample_margin, spread_of
from trtcal.model import Model
from trtcal.observe import Observation
from trtcal.quantize import find_layers, quantize, tensors_to_observe
from trtcal.search.evaluating import Evaluator
from trtcal.search.losses import Rows
from trtcal.search.memory import Memory
from trtcal.storage import Document, seal

KIND = "learning-curve"
TOLERANCE = 0.05  # of the loss with most samples: what fewer may lose more
NEGLIGIBLE = {"kl": 1e-3, "noise": 1e-4}  # a loss that no number of samples makes matter


@dataclass(frozen=True)
class Point:
    """What INT8 loses with ranges from `samples` samples; `losses` are those of the draws.

    `loss` is their mean, with the interval over draws, on these held-back samples. `excess` is how much
    more that is than with most samples (0.05: 5 % more); its interval is over draws and over
    held-back samples. `deviation` is the standard deviation of one draw, from the variances of all
    sizes together.
    """

    samples: int
    losses: tuple[float, ...]
    disjoint: bool
    deviation: float
    loss: Interval
    excess: Interval


@dataclass(frozen=True)
class LearningCurve:
    """The points by rising size; `measure` is `kl` (nats) or `noise` (error over signal power)."""

    model: str
    dataset: str
    method: str
    parameters: dict[str, int | float | str]
    measure: str
    chunk: int
    held_back: int
    seed: int
    points: tuple[Point, ...]
    notes: tuple[str, ...]

    @property
    def most(self) -> int:
        """The largest size, which all others are held against."""
        return self.points[-1].samples

    @property
    def needed(self) -> int | None:
        """The smallest size from which on the loss is within `TOLERANCE` of that with most samples.

        None if only the largest is: nobody knows then whether that is enough.
        """
        return self._from_which_on(lambda point: point.excess.value)

    @property
    def at_most(self) -> int | None:
        """The same for the upper ends of the intervals: so many are enough. None: not known."""
        return self._from_which_on(lambda point: point.excess.high)

    @property
    def at_least(self) -> int:
        """The smallest size that may be enough, by the lower ends; the largest if no other may be."""
        return next(one.samples for one in self.points if one.excess.low <= TOLERANCE)

    def _from_which_on(self, end: Callable[[Point], float]) -> int | None:
        found = None
        for point in reversed(self.points[:-1]):
            if end(point) > TOLERANCE:
                break
            found = point.samples
        return found

    @property
    def sentence(self) -> str:
        """What the curve says, for people."""
        if self.needed is None:
            last = self.points[-2]
            words = "more than" if self.at_least == self.most else "perhaps more than"
            return (
                f"{words} {self.most} samples: with {last.samples} the loss is still"
                f" {_percent(last.excess)} above that with {self.most}, and may fall further"
            )
        fewest = ", the fewest tried," if self.needed == self.points[0].samples else ""
        if self.at_most is None:
            fewer = f", or only {self.at_least}," if self.at_least < self.needed else fewest
            return (
                f"{self.needed} samples{fewer} seem enough, but these data can't rule out that it takes"
                f" more than {self.most}"
            )
        between = f" (between {self.at_least} and {self.at_most})"
        return (
            f"{self.needed} samples{fewest} are enough"
            f"{between if self.at_least < self.at_most else ''}: with {self.most} the loss is no more"
            f" than {TOLERANCE:.0%} lower"
        )

    def to_document(self) -> Document:
        """Return the curve as a sealed document."""
        answer = {name: getattr(self, name) for name in ("needed", "at_least", "at_most")}
        fields = dataclasses.asdict(self) | answer | {"tolerance": TOLERANCE}
        head = {"kind": KIND, "schema_version": 1, "trtcal": __version__}
        return seal({**head, **fields, "sentence": self.sentence})


def learning_curve(
    model: Model,
    dataset: Dataset,
    method: str,
    parameters: Parameters | None = None,
    draws: Draws | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> LearningCurve:
    """Measure what INT8 loses with ranges from 8, 16, 32, ... samples of a prepared model's data.

    `draws` are `draw(model, dataset)` if not given; `progress` is told samples run, of `draws.work`.
    `InputError` for too few samples, an unknown method, or outputs that are not finite.
    """
    chosen = dict(parameters or {})
    create_calibrator(method, chosen)
    drawn = draws or draw(model, dataset)
    ranges = _choose(model, dataset, drawn, lambda seen: calibrate(seen, method, chosen), progress)
    found = _judge(model, dataset, drawn, ranges, progress)
    measure, losses = _losses(found)
    points = _points(losses, drawn)
    notes = tuple(_notes(points, measure, losses, dataset, drawn))
    return LearningCurve(
        model.fingerprint,
        dataset.fingerprint,
        method,
        ranges[drawn.largest][0].parameters,
        measure,
        drawn.chunk,
        drawn.held_back,
        drawn.seed,
        points,
        notes,
    )


def _choose(
    model: Model,
    dataset: Dataset,
    drawn: Draws,
    choose: Callable[[Observation], Calibration],
    progress: Callable[[int], None],
) -> dict[int, list[Calibration]]:
    """Run every chunk once, and return the ranges from each draw."""
    tensors = tensors_to_observe(find_layers(model))
    with Chunks(model, dataset, drawn.chunk) as chunks:
        for number in range(drawn.pool // drawn.chunk):
            chunks.look(number, tensors)
            progress(drawn.chunk)
        return {size: [choose(chunks.seen(one)) for one in all_] for size, all_ in drawn.of.items()}


def _judge(
    model: Model,
    dataset: Dataset,
    drawn: Draws,
    ranges: Mapping[int, Sequence[Calibration]],
    progress: Callable[[int], None],
) -> dict[int, list[Rows]]:
    """Return the figures of each held-back sample with all layers in INT8, for each draw's ranges."""
    found: dict[int, list[Rows]] = {size: [] for size in ranges}
    any_, memory = ranges[drawn.largest][0], Memory(None, {})
    arguments = (dataset, drawn.held_back, "fp32", memory, drawn.first)
    with Evaluator(model, any_, (), *arguments) as evaluator:
        for size, one in ((size, one) for size, all_ in ranges.items() for one in all_):
            rows = evaluator.rows(quantize(model, one).proto)
            if rows is None:
                raise InputError(
                    f"with ranges from {size} samples the INT8 outputs are not finite",
                    "look at the data and at the float model's outputs first",
                )
            found[size].append(rows)
            progress(drawn.held_back)
    return found


def _losses(found: Mapping[int, list[Rows]]) -> tuple[str, Losses]:
    """Return the measure, `kl` where outputs are class scores, and the losses in it."""
    measure = "kl" if all("kl" in rows for rows in next(iter(found.values()))) else "noise"

    def loss(rows: Rows) -> Values:
        return rows["kl"] if measure == "kl" else rows["error"] / (rows["signal"].mean() or 1.0)

    return measure, {size: np.array([loss(one) for one in all_]) for size, all_ in found.items()}


def _points(losses: Losses, drawn: Draws) -> tuple[Point, ...]:
    means = {size: values.mean(1) for size, values in losses.items()}
    shares = {size: 0.0 if size in drawn.disjoint else size / drawn.pool for size in losses}
    spread = spread_of(means, shares)
    margins = {size: spread.margin(size, len(means[size]), shares[size]) for size in losses}
    return tuple(
        Point(
            size,
            tuple(values.tolist()),
            size in drawn.disjoint,
            spread.deviation(size) * float(values.mean()),
            _interval(float(values.mean()), margins[size]),
            excess(losses, size, margins),
        )
        for size, values in means.items()
    )


def _interval(value: float, margin: float) -> Interval:
    return Interval(value, value * max(1 - margin, 0.0), value * (1 + margin))


def _notes(
    points: tuple[Point, ...], measure: str, losses: Losses, dataset: Dataset, drawn: Draws
) -> list[str]:
    """Return what a reader of the curve should know."""
    notes = []
    if all(one.loss.high < NEGLIGIBLE[measure] for one in points):
        notes.append(
            f"every size loses less than {NEGLIGIBLE[measure]:g}:"
            " the number of samples hardly matters here"
        )
    last, most = points[-2].samples, points[-1].samples
    margin = sample_margin(losses[last], losses[most])
    if margin > TOLERANCE:
        more = "; give more data" if drawn.held_back < HELD_BACK[1] else ""
        notes.append(
            f"{drawn.held_back} held-back samples are too few to tell {TOLERANCE:.0%}: they alone leave"
            f" ±{margin:.0%} between {last} and {most} samples{more}"
        )
    worse = [one for one in points if one.excess.high < -TOLERANCE]
    if worse:
        notes.append(
            f"with {worse[0].samples} samples the loss is {_percent(worse[0].excess)} below that with"
            f" {most}, as where rare values widen a range: try another method"
        )
    if drawn.first - drawn.pool >= drawn.chunk:
        notes.append(f"only the first {drawn.pool} of {drawn.first} samples were drawn from")
    labels = dataset.labels
    if labels is not None and labels[0] != labels[-1] and (np.diff(labels) >= 0).all():
        notes.append(
            "the samples come in the order of their classes: shuffle them, so that draws are random"
        )
    return notes


def _percent(excess: Interval) -> str:
    low, high = sorted((abs(excess.low), abs(excess.high)))
    if excess.low < 0 < excess.high:
        low, high = excess.low, excess.high
    return f"{abs(excess.value):.0%} ({low:.0%} to {high:.0%})"
