"""The table of optimizations: what each does, what it needs, and how it is applied to a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic as now

import onnx

from trtcal.backends.sessions import give_back
from trtcal.calibration import Observation, ObserveOptions, calibrate, observe
from trtcal.data import Dataset
from trtcal.documents import canonical_json, digest_bytes
from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.replay import Reporter
from trtcal.model import Model
from trtcal.model.model import Overrides
from trtcal.ptq.changes import Changes
from trtcal.ptq.channel_splitting import split_channels
from trtcal.ptq.equalization import equalize, smooth
from trtcal.ptq.reconstruction import LayerwiseReconstruction
from trtcal.ptq.zero_centering import zero_center
from trtcal.quantization import Plan, find_layers, tensors_to_observe
from trtcal.ranges import Calibration

BATCH = 32
RANGES, NEAREST = "ranges: ", "nearest weights"  # what is tried first, without optimizations
METHODS = ("auto", "percentile")  # of ranges of changed tensors: equalized channels have no tails


@dataclass(frozen=True)
class ImproveOptions:
    """How much to try (`fast` or `best`), for how long (s), and for which objective or metric.

    `only` and `leave_out` are names of optimizations. `plan` says what is quantized, and to what.
    """

    effort: str = "fast"
    seconds: float = 600.0
    objective: str = "sqnr"
    metric: OwnMetric | None = None
    leave_out: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    plan: Plan = field(default_factory=Plan)

    def takes(self, optimization: Optimization) -> bool:
        """Tell whether an optimization is to be tried."""
        name = optimization.name
        fits = self.plan.is_int8 or not optimization.finer
        within = fits and (optimization.fast or self.effort == "best")
        return within and name not in self.leave_out and (self.only is None or name in self.only)


@dataclass(frozen=True)
class State:
    """What a model is after some optimizations: its ranges, float changes, and overrides."""

    calibration: Calibration
    changes: Changes = field(default_factory=Changes)
    overrides: Overrides = field(default_factory=Overrides)

    @property
    def float_only(self) -> State:
        """The same without weights and biases of quantized layers."""
        return replace(self, overrides=Overrides(moved=self.changes.moved))

    def with_changes(self, changes: Changes) -> State:
        """Return a state with more changes, without weights and biases of quantized layers."""
        return replace(self, changes=self.changes.then(changes)).float_only


class OutOfTimeError(Exception):
    """An optimization takes longer than there is time."""


@dataclass(frozen=True)
class Context:
    """What optimizations work with: the prepared model, and samples to fit to.

    `samples` of `fit` are used, and `in_memory` of them layer by layer. `until` is when time is over,
    by `time.monotonic`. `build` gives the prepared model with changes.
    """

    prepared: Model
    fit: Dataset
    samples: int
    in_memory: int
    options: ImproveOptions
    until: float
    reporter: Reporter
    build: Callable[[Changes], onnx.ModelProto]

    def model(self, state: State) -> Model:
        """Return the model of a state."""
        return replace(self.prepared, proto=self.build(state.changes), overrides=state.overrides)

    @property
    def plan(self) -> Plan:
        """The plan, with float32 where it asks for float16: that loss is no optimization's."""
        return self.options.plan.without_fp16

    def check_time(self) -> None:
        """Leave an optimization if time is over."""
        if now() > self.until:
            raise OutOfTimeError

    @contextmanager
    def reported(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Report a stage that is left when time is over."""
        with self.reporter(title, total) as advance:

            def step(done: int) -> None:
                advance(done)
                self.check_time()

            yield step

    def observe(self, model: Model, tensors: Sequence[str], reporter: Reporter) -> Observation:
        """Return the histograms of tensors on all samples to fit to."""
        with reporter(f"observing {len(tensors)} tensors", len(self.fit)) as advance:
            options = ObserveOptions(batch=BATCH)
            return observe(model, self.fit, tensors, options, advance)


Apply = Callable[[Context, State], Sequence[State]]
"""Applies an optimization to a state; of several states the best one counts, none is nothing to do."""


@dataclass(frozen=True)
class Optimization:
    """One row of the table; `source` is where it is described.

    With `fast` it is tried by `--improve fast` too. One that makes the steps of INT8 `finer` is tried
    only where INT8 is the one narrow precision that is asked for. It is kept unless it clearly loses
    more: what it gains shows when biases are corrected.
    """

    name: str
    what: str
    needs: str
    source: str
    apply: Apply
    fast: bool = False
    finer: bool = False


def _changing(find: Callable[[Model, Dataset, int], Changes | None]) -> Apply:
    """Return what applies changes of the float model."""

    def apply(context: Context, state: State) -> Sequence[State]:
        changes = find(context.model(state), context.fit, context.samples)
        return () if changes is None else _recalibrated(context, state, changes)

    return apply


def _recalibrated(context: Context, state: State, changes: Changes) -> Sequence[State]:
    """Return states with changes, and new ranges for moved and new tensors by each of `METHODS`."""
    give_back()  # what finding the changes has left
    state = state.with_changes(changes)
    model = context.model(state)
    tensors = tensors_to_observe(find_layers(model))
    known = state.calibration.ranges
    changed = [tensor for tensor in tensors if tensor in changes.moved or tensor not in known]
    if not (changed and context.plan.ranged):
        return [state]
    observation = context.observe(model, changed, context.reported)
    new = (calibrate(observation, method) for method in METHODS)
    return [replace(state, calibration=_joined(tensors, state.calibration, table)) for table in new]


def _joined(tensors: Sequence[str], before: Calibration, new: Calibration) -> Calibration:
    """Return the ranges of tensors: new ones, and those from before of tensors not observed again."""
    by = "" if new.method == before.method else f"by {new.method}"
    noted = {
        name: replace(entry, note=", ".join(filter(None, (entry.note, by))) or None)
        for name, entry in new.ranges.items()
    }
    known, why = {**before.ranges, **noted}, {**before.unranged, **new.unranged}
    ranged = known.keys() - new.unranged.keys()
    return replace(
        before,
        histograms=digest_bytes(canonical_json([before.histograms, new.histograms])),
        ranges={name: known[name] for name in tensors if name in ranged},
        unranged={name: why[name] for name in tensors if name in why and name not in ranged},
    )


def _split(context: Context, state: State) -> Sequence[State]:
    model = context.model(state)
    changes = split_channels(model, state.calibration, context.fit, context.samples)
    return () if changes is None else _recalibrated(context, state, changes)


def _zero_center(context: Context, state: State) -> Sequence[State]:
    if (centered := zero_center(context.model(state), state.calibration)) is None:
        return ()
    return [replace(state.with_changes(centered[0]), calibration=centered[1])]


def _reconstructed(context: Context, state: State, rounding: bool = False) -> State:
    """Return a state with the overrides of layerwise reconstruction."""
    state = state.float_only
    model = context.model(state)
    layers = sum(layer.weight is not None for layer in find_layers(model).layers)
    title = "rounding weights" if rounding else "correcting biases"
    with (
        LayerwiseReconstruction(
            model, state.calibration, context.fit, context.in_memory, context.plan
        ) as work,
        context.reported(title, layers) as advance,
    ):
        return replace(state, overrides=work.run(rounding, advance))


OPTIMIZATIONS = (
    Optimization(
        "cross-layer equalization",
        "scales channels so that they share one range, and compensates in the weights of the next "
        "layer",
        "consecutive layers; depthwise layers gain most",
        "Nagel et al. 2019, section 4.1",
        _changing(equalize),
        fast=True,
    ),
    Optimization(
        "smoothing",
        "shifts and scales the channels that MatMuls read, and compensates in their weights and biases",
        "LayerNorm, GELU or gates: transformers",
        "SmoothQuant 2023, equation 4; Outlier Suppression+ 2023",
        _changing(smooth),
        fast=True,
    ),
    Optimization(
        "channel splitting",
        "turns unused channels into copies of others, half a step away, and reads the mean of both",
        "unused channels, common with Relu6",
        "OCS 2019, section 3",
        _split,
        fast=True,
        finer=True,
    ),
    Optimization(
        "zero-centering",
        "moves zero to the middle of the output range of a Relu, which halves the step",
        "readers without padding, such as pointwise layers",
        "Outlier Suppression+ 2023, section 4.1",
        _zero_center,
        fast=True,
        finer=True,
    ),
    Optimization(
        "bias correction",
        "corrects each bias so that the mean of its channel after the activation is that of FP32",
        "data",
        "Nagel et al. 2019, appendix D",
        lambda context, state: [_reconstructed(context, state)],
        fast=True,
    ),
    Optimization(
        "adaptive rounding",
        "chooses all weights of a layer together, by its output error on quantized inputs",
        "data",
        "AdaRound 2020, solved as in GPTQ 2022",
        lambda context, state: [_reconstructed(context, state, rounding=True)],
    ),
)
"""All optimizations in the order in which they are tried."""
