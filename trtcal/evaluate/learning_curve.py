"""How many calibration samples are enough: what INT8 loses with ranges from 8, 16, 32, ... of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from trtcal.calibration import Observation, calibrate, create_calibrator
from trtcal.data import Dataset
from trtcal.documents import Document, seal
from trtcal.errors import InputError, __version__
from trtcal.evaluate.metrics import Rows
from trtcal.evaluate.per_sample import class_labels
from trtcal.evaluate.search.plan_loss import Reference
from trtcal.evaluate.subsets import HELD_BACK, Chunks, Subsets, choose_subsets
from trtcal.model import Model
from trtcal.quantization import find_layers, quantize, tensors_to_observe
from trtcal.ranges import Calibration, Parameters
from trtcal.stats import LEVEL, Interval, Values

KIND = "learning-curve"
TOLERANCE = 0.05  # of the loss with most samples: what fewer may lose more
NEGLIGIBLE = {"kl": 1e-3, "noise": 1e-4}  # a loss that no number of samples makes matter


@dataclass(frozen=True)
class Point:
    """What INT8 loses with ranges from `samples` samples; `losses` are those of the subsets.

    `loss` is their mean, with the interval over subsets, on these held-back samples. `excess` is how
    much more that is than with most samples (0.05: 5 % more); its interval is over subsets and over
    held-back samples. `deviation` is the standard deviation of one subset, from the variances of all
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
    warnings: tuple[str, ...]

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
        """The answer in one sentence."""
        if self.needed is None:
            last = self.points[-2]
            words = "more than" if self.at_least == self.most else "perhaps more than"
            return (
                f"{words} {self.most} samples are needed: with {last.samples} the loss is"
                f" {_percent(last.excess)} above that with {self.most}, and may fall further"
            )
        fewest = ", the fewest tried," if self.needed == self.points[0].samples else ""
        if self.at_most is None:
            fewer = f", or only {self.at_least}," if self.at_least < self.needed else fewest
            return (
                f"{self.needed} samples{fewer} seem enough, but these data cannot exclude that more "
                "than"
                f" {self.most} are needed"
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
    subsets: Subsets | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> LearningCurve:
    """Measure what INT8 loses with ranges from 8, 16, 32, ... samples of a prepared model's data.

    `subsets` are `choose_subsets(model, dataset)` if not given; `progress` gets the samples run, of
    `subsets.work`.
    `InputError` for too few samples, an unknown method, or outputs that are not finite.
    """
    chosen = dict(parameters or {})
    create_calibrator(method, chosen)
    subsets = subsets or choose_subsets(model, dataset)
    ranges = _choose(
        model, dataset, subsets, lambda seen: calibrate(seen, method, chosen), progress
    )
    found = _judge(model, dataset, subsets, ranges, progress)
    measure, losses = _losses(found)
    points = _points(losses, subsets)
    warnings = tuple(_warnings(points, measure, losses, dataset, subsets))
    return LearningCurve(
        model.fingerprint,
        dataset.fingerprint,
        method,
        ranges[subsets.largest][0].parameters,
        measure,
        subsets.chunk,
        subsets.held_back,
        subsets.seed,
        points,
        warnings,
    )


def _choose(
    model: Model,
    dataset: Dataset,
    subsets: Subsets,
    choose: Callable[[Observation], Calibration],
    progress: Callable[[int], None],
) -> dict[int, list[Calibration]]:
    """Run every chunk once, and return the ranges from each subset."""
    tensors = tensors_to_observe(find_layers(model))
    with Chunks(model, dataset, subsets.chunk) as chunks:
        for number in range(subsets.pool // subsets.chunk):
            chunks.observe(number, tensors)
            progress(subsets.chunk)
        return {
            size: [choose(chunks.seen(one)) for one in all_] for size, all_ in subsets.of.items()
        }


def _judge(
    model: Model,
    dataset: Dataset,
    subsets: Subsets,
    ranges: Mapping[int, Sequence[Calibration]],
    progress: Callable[[int], None],
) -> dict[int, list[Rows]]:
    """Return the figures of each held-back sample with all layers in INT8, for each subset's ranges."""
    found: dict[int, list[Rows]] = {size: [] for size in ranges}
    with Reference(model, dataset, subsets.held_back, subsets.first) as reference:
        for size, one in ((size, one) for size, all_ in ranges.items() for one in all_):
            rows = reference.rows(quantize(model, one).proto)
            if rows is None:
                raise InputError(
                    f"with ranges from {size} samples the INT8 outputs are not finite",
                    "check the data and the float model's outputs first",
                )
            found[size].append(rows)
            progress(subsets.held_back)
    return found


def _losses(found: Mapping[int, list[Rows]]) -> tuple[str, Losses]:
    """Return the measure, `kl` where outputs are class scores, and the losses in it."""
    measure = "kl" if all("kl" in rows for rows in next(iter(found.values()))) else "noise"

    def loss(rows: Rows) -> Values:
        return rows["kl"] if measure == "kl" else rows["error"] / (rows["signal"].mean() or 1.0)

    return measure, {size: np.array([loss(one) for one in all_]) for size, all_ in found.items()}


def _points(losses: Losses, subsets: Subsets) -> tuple[Point, ...]:
    means = {size: values.mean(1) for size, values in losses.items()}
    shares = {size: 0.0 if size in subsets.disjoint else size / subsets.pool for size in losses}
    variance = fit_variance(means, shares)
    margins = {size: variance.margin(size, len(means[size]), shares[size]) for size in losses}
    return tuple(
        Point(
            size,
            tuple(values.tolist()),
            size in subsets.disjoint,
            variance.deviation(size) * float(values.mean()),
            _interval(float(values.mean()), margins[size]),
            excess(losses, size, margins),
        )
        for size, values in means.items()
    )


def _interval(value: float, margin: float) -> Interval:
    return Interval(value, value * max(1 - margin, 0.0), value * (1 + margin))


def _warnings(
    points: tuple[Point, ...], measure: str, losses: Losses, dataset: Dataset, subsets: Subsets
) -> list[str]:
    """Return what limits the answer."""
    warnings = []
    if all(one.loss.high < NEGLIGIBLE[measure] for one in points):
        warnings.append(
            f"the loss is below {NEGLIGIBLE[measure]:g} with any number of samples,"
            " so the number hardly matters"
        )
    last, most = points[-2].samples, points[-1].samples
    margin = sample_margin(losses[last], losses[most])
    if margin > TOLERANCE:
        more = "; give more data" if subsets.held_back < HELD_BACK[1] else ""
        warnings.append(
            f"{subsets.held_back} held-back samples are too few to resolve {TOLERANCE:.0%}: the "
            "difference"
            f" between {last} and {most} samples is uncertain by ±{margin:.0%}{more}"
        )
    worse = [one for one in points if one.excess.high < -TOLERANCE]
    if worse:
        warnings.append(
            f"with {worse[0].samples} samples the loss is {_percent(worse[0].excess)} below that with"
            f" {most}; rare values may widen a range: try another method"
        )
    if subsets.first - subsets.pool >= subsets.chunk:
        warnings.append(
            f"only the first {subsets.pool} of {subsets.first} samples were used for subsets"
        )
    labels = class_labels(dataset.labels)
    if labels is not None and labels[0] != labels[-1] and (np.diff(labels) >= 0).all():
        warnings.append(
            "the samples are sorted by class: shuffle them, so that the subsets are random"
        )
    return warnings


def _percent(excess: Interval) -> str:
    low, high = sorted((abs(excess.low), abs(excess.high)))
    if excess.low < 0 < excess.high:
        low, high = excess.low, excess.high
    return f"{abs(excess.value):.0%} ({low:.0%} to {high:.0%})"


ROUNDS = 3  # of fits
WIDEST = 20.0  # of the logarithm of a ratio
NOTHING = 1e-9  # a loss below that is none: what is divided by is no less

Losses = Mapping[int, Values]
"""By size: the losses of each subset on each held-back sample, shape (subsets, samples)."""


@dataclass(frozen=True)
class SubsetVariance:
    """Why subsets differ, as variances of one subset's loss over the mean loss of that size.

    `rounding` is the part that does not fall with samples: every other scale rounds otherwise.
    `sampling` over the number of samples is the part of which samples they are.
    """

    rounding: float
    sampling: float
    degrees: int

    def deviation(self, size: int) -> float:
        """Return the standard deviation of one subset, over the mean."""
        return math.sqrt(self.rounding + self.sampling / size)

    def margin(self, size: int, subsets: int, share: float) -> float:
        """Return half the width of the mean's interval, over the mean.

        Each subset holds a `share` of the pool; 0 where they share no samples.
        """
        kept = share + (1 - share) / subsets  # the error of the pool itself is in all of them
        variance = self.rounding / subsets + self.sampling / size * kept
        return _quantile(self.degrees) * math.sqrt(variance)


def fit_variance(means: Mapping[int, Values], shares: Mapping[int, float]) -> SubsetVariance:
    """Fit both parts to the variances of all sizes; `means` are the subsets' losses.

    Subsets that share samples, each a `share` of the pool, vary by 1 - share of the sampling part
    (finite population correction). Least squares relative to the fit, both parts at least 0.
    """
    several = [size for size, values in means.items() if len(values) > 1]
    degrees = np.array([len(means[size]) - 1 for size in several])
    middles = np.array([max(float(means[size].mean()), NOTHING) for size in several])
    seen = np.array([means[size].var(ddof=1) for size in several]) / middles**2
    parts = np.array([[1.0, (1 - shares[size]) / size] for size in several])
    fit, least = np.ones(len(several)), 1e-6 * float(seen.max())
    found = np.zeros(2)
    for _ in range(ROUNDS if least else 0):
        weights = np.sqrt(degrees) / np.maximum(fit, least)
        found, _ = scipy.optimize.nnls(parts * weights[:, None], seen * weights)
        fit = parts @ found
    return SubsetVariance(float(found[0]), float(found[1]), int(degrees.sum()))


def excess(losses: Losses, size: int, margins: Mapping[int, float]) -> Interval:
    """Return how much more a size loses than the largest, relative to that, with its interval.

    `margins` are those of the sizes' means over subsets, relative too. The interval is that of the
    logarithm of the ratio. Subsets of two sizes are taken for independent, though they share
    samples: that rather widens it.
    """
    most = max(losses)
    if size == most:
        return Interval(0.0, 0.0, 0.0)
    mine, least = (max(float(losses[one].mean()), NOTHING) for one in (size, most))
    ratio = mine / least
    ours = sample_margin(losses[size], losses[most])
    factor = math.exp(min(math.hypot(ours, margins[size], margins[most]), WIDEST))
    return Interval(ratio - 1, ratio / factor - 1, ratio * factor - 1)


def sample_margin(losses: Values, most: Values) -> float:
    """Return half the width of the ratio's interval by held-back samples alone, over the ratio."""
    shares = [one.mean(0) / max(float(one.mean()), NOTHING) for one in (losses, most)]
    difference = shares[0] - shares[1]
    return (
        _quantile(len(difference) - 1) * float(difference.std(ddof=1)) / math.sqrt(len(difference))
    )


def _quantile(degrees: int) -> float:
    return float(scipy.stats.t.ppf(0.5 + LEVEL / 2, degrees))
