"""Try optimizations one after another on one model, and keep those that help on samples held back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import onnx

from trtcal import __version__
from trtcal.calibration import Observation, observe
from trtcal.calibration.choose import calibrate
from trtcal.data import Dataset, held_back
from trtcal.data.dataset import fixed_batch, whole_batches
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import InputError
from trtcal.evaluate.judging import METHODS as ALL
from trtcal.evaluate.judging import Judge, Verdict, leading
from trtcal.model import Model
from trtcal.model.model import Int8Overrides
from trtcal.ptq.artifact import KIND, Changes, Optimizations
from trtcal.ptq.bias_correction import corrected_by_normalization
from trtcal.ptq.channel_splitting import split
from trtcal.ptq.equalization import Moved, equalized, smoothed
from trtcal.ptq.reconstruction import Mending, Walk, samples_in_memory
from trtcal.ptq.records import layer_changes
from trtcal.ptq.scale_search import refined
from trtcal.ptq.state import Improved, State, Try, Wanted
from trtcal.ptq.zero_centering import absorbed, centred
from trtcal.quantization import find_layers, quantize, tensors_to_observe
from trtcal.ranges import Calibration

METHODS = {"fast": ("percentile", "mse"), "best": ALL}
HELD_BACK = (16, 128)  # samples, at least and at most; a quarter between
FINER = ("splitting", "zero-centering")  # only make steps finer: kept unless they clearly lose more
REFINING = 1 / 3  # of the time left, at most: what comes after it mostly brings more
SMOOTH = "percentile"  # for what was smoothed: its channels have no tails of their own any more
LEAST = 32  # samples in all
FEW = 64
FITTED = {"fast": 64, "best": 256}  # samples that optimizations are fitted to, at most
BATCH = 32

Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Called with a stage's title and its number of steps; gives what to call as they are done."""

Make = Callable[[], State | Sequence[State] | None]
"""Makes what is tried: one state, or several of which the best one counts."""


def improve(
    prepared: Model,
    dataset: Dataset,
    wanted: Wanted,
    original: Model,
    reporter: Reporter,
) -> Improved:
    """Find the ranges and optimizations with which a prepared model loses least in INT8.

    Of the samples a quarter (16 to 128) is held back: on these, every try is judged, and nothing else
    sees them. `original` is the model before it was prepared. `InputError` for fewer than 32 samples.
    """
    fit, select = parted(prepared, dataset)
    held = len(select)
    with Judge(prepared, select, wanted.objective, wanted.metric) as judge:
        work = _Work(prepared, original, fit, judge, wanted, reporter)
        state = work.run()
    warnings = _warnings(len(fit), held)
    record = _record(prepared, dataset, wanted, work, len(fit), held, warnings)
    optimizations = Optimizations(prepared.fingerprint, state.changes, state.overrides, record)
    optimized = optimizations.apply(prepared)
    calibration = replace(state.calibration, model=optimized.fingerprint)
    return Improved(optimizations, optimized, calibration, tuple(work.tries), warnings)


def parted(model: Model, dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Return the samples to fit to and those to judge by; `InputError` if there are too few."""
    samples = len(dataset)
    if samples < LEAST:
        raise InputError(
            f"{samples} samples are too few to improve a model: some are held back to judge by",
            f"give {LEAST} or more, better {4 * FEW}",
        )
    unit = fixed_batch(model) or 1
    held = min(max(samples // 4, HELD_BACK[0]), HELD_BACK[1])
    return held_back(dataset, max(held // unit, 1) * unit, unit)


def _warnings(fit: int, held: int) -> tuple[str, ...]:
    if fit + held >= FEW:
        return ()
    return (
        f"{fit} samples to fit to and {held} to judge by are few: "
        f"what was found may not hold on others; give {2 * FEW} or more",
    )


class _OutOfTimeError(Exception):
    """What is being tried takes longer than there is time."""


class _Work:
    """The tries of one call, and what is best so far."""

    def __init__(
        self,
        prepared: Model,
        original: Model,
        fit: Dataset,
        judge: Judge,
        wanted: Wanted,
        reporter: Reporter,
    ) -> None:
        self.prepared, self.original, self.fit = prepared, original, fit
        self.judge, self.wanted, self.reporter = judge, wanted, reporter
        seen = min(FITTED[wanted.effort], len(fit))
        samples = samples_in_memory(prepared, fit, seen) if wanted.effort == "fast" else seen
        self.seen, self.samples = (
            min(whole_batches(one, prepared), len(fit)) for one in (seen, samples)
        )
        self.until = monotonic() + wanted.seconds
        self.tries = list[Try]()
        self.untried = list[str]()
        self.best: State | None = None
        self.changed: tuple[Changes, onnx.ModelProto] | None = None  # the last ones, and the model
        self.verdict: Verdict | None = None
        self.refined: State | None = None

    def run(self) -> State:
        """Try everything in its order, and return the best."""
        tensors = tensors_to_observe(find_layers(self.prepared))
        observation = self._observe(self.prepared, tensors)
        tables = {one: calibrate(observation, one) for one in METHODS[self.wanted.effort]}
        for method, calibration in tables.items():
            self._judge(f"ranges: {method}", "", partial(State, calibration, tables))
        for name, what, make in self._optimizations():
            if not self.wanted.takes(name):
                continue
            try:
                self._check_time()
                self._judge(name, what, make)
            except _OutOfTimeError:
                self.untried.append(name)
        return self.state

    def _check_time(self) -> None:
        """Leave what is being tried if time is over; ranges are tried whatever time there is."""
        if self.best is not None and monotonic() > self.until:
            raise _OutOfTimeError

    @contextmanager
    def _reported(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        with self.reporter(title, total) as advance:

            def step(done: int) -> None:
                advance(done)
                self._check_time()

            yield step

    def _optimizations(self) -> Iterator[tuple[str, str, Make]]:
        """Yield the optimizations in their order, each with its source and what makes it."""
        yield (
            "equalization",
            "channels scaled alike, undone in the weights behind (Nagel et al. 2019, section 4.1)",
            self._equalized,
        )
        yield (
            "smoothing",
            "zero into the middle of channels (Outlier Suppression+ 2023), their sizes into weights "
            "(SmoothQuant 2023, equation 4)",
            self._smoothed,
        )
        yield (
            "bias absorption",
            "what a Relu never cuts off goes into the next bias (Nagel et al. 2019, section 4.1.3)",
            self._absorbed,
        )
        yield (
            "splitting",
            "channels that never fire take copies of others, rounded otherwise (OCS 2019, section 3)",
            self._split,
        )
        yield (
            "zero-centering",
            "zero in the middle of what a Relu makes (Outlier Suppression+ 2023, section 4.1)",
            self._centred,
        )
        yield (
            "bias correction by BatchNorm",
            "of the means that its statistics tell, without data (Nagel et al. 2019, section 4.2)",
            self._by_normalization,
        )
        yield (
            "bias correction",
            "mean of each channel, behind its activation, as in float (Nagel et al. 2019, appendix D)",
            lambda: self._mended(Mending()),
        )
        yield "range refinement", "ranges in turn, by the output error", self._refined
        rounding = "by each layer's output error (AdaRound 2020, solved as in GPTQ 2022)"
        yield "adaptive rounding", rounding, lambda: self._mended(Mending(rounding=True))
        yield (
            "range refinement",
            "the same ranges, with adaptive rounding",
            self._refined_and_rounded,
        )
        yield (
            "weight clipping",
            "scales of weights by output error (Banner et al. 2019), with adaptive rounding",
            lambda: self._mended(Mending(rounding=True, clipping=True)),
        )

    def _judge(self, name: str, what: str, make: Make) -> None:
        """Make one or several states, and keep the best of them if it is better than what there is."""
        started = monotonic()
        made = make() or ()
        states = [made] if isinstance(made, State) else made
        if not states:
            return
        verdict, state = self._best_of(states)
        if len(states) > 1:
            what = f"{what}; with ranges by {state.calibration.method}"
        if self.verdict is None:
            kept = True
        elif name in FINER:
            kept = not self.verdict.is_better(verdict)
        else:
            kept = verdict.is_better(self.verdict)
        if kept:
            self.best, self.verdict = state, verdict
        seconds = monotonic() - started
        self.tries.append(Try(name, what, verdict.loss, verdict.value, kept, seconds))

    def _best_of(self, states: Sequence[State]) -> tuple[Verdict, State]:
        """Measure states while there is time, and return the leading one."""
        first, *others = states
        in_time = itertools.takewhile(lambda _: monotonic() <= self.until, others)
        return leading((self._measure(one), one) for one in itertools.chain([first], in_time))

    def _measure(self, state: State) -> Verdict:
        return self.judge.measure(quantize(self.model_of(state), state.calibration).proto)

    @property
    def state(self) -> State:
        """The best so far."""
        if self.best is None:
            raise RuntimeError("nothing has been tried yet")
        return self.best

    def model_of(self, state: State) -> Model:
        """Return the model with what was optimized."""
        if self.changed is None or self.changed[0] is not state.changes:
            self.changed = state.changes, state.changes.of(self.prepared.proto)
        return replace(self.prepared, proto=self.changed[1], overrides=state.overrides)

    def _observe(self, model: Model, tensors: Sequence[str]) -> Observation:
        batch = fixed_batch(model) or BATCH
        with self._reported(f"observing {len(tensors)} tensors", len(self.fit)) as advance:
            return observe(model, self.fit, tensors, batch, advance)

    def _again(self, moved: Moved | None, own: str = "") -> Sequence[State]:
        """Return states with other constants, and new ranges for what was moved or is new.

        With them other ranges may be best: `best` tries all. With the method that is best so far,
        what was moved takes the ranges of the method `own`, if it is given.
        """
        if moved is None:
            return ()
        state = self._moved(moved)
        model = self.model_of(state)
        tensors = tensors_to_observe(find_layers(model))
        known = state.calibration.ranges
        changed = [one for one in tensors if one in moved.tensors or one not in known]
        if not changed:
            return [state]
        seen = self._observe(model, changed)
        first = state.calibration.method
        others = state.tables if self.wanted.effort == "best" else ()
        methods = dict.fromkeys((first, *others))
        tables = dict(state.tables)
        for method in methods:
            found = calibrate(seen, own if own and method == first else method)
            before = state.calibration if method == first else tables[method]
            tables[method] = _joined(tensors, before, found)
        return [replace(state, calibration=tables[one], tables=tables) for one in methods]

    def _moved(self, moved: Moved) -> State:
        """Return a state with what was moved, without what was found for INT8 alone."""
        before = self.state
        return State(
            before.calibration,
            before.tables,
            before.changes.then(moved),
            Int8Overrides(moved=before.overrides.moved | moved.tensors),
        )

    def _equalized(self) -> Sequence[State]:
        model = self.model_of(self.state)
        return self._again(equalized(model, self.fit, self.seen, "layers"))

    def _smoothed(self) -> Sequence[State]:
        return self._again(smoothed(self.model_of(self.state), self.fit, self.seen), SMOOTH)

    def _absorbed(self) -> Sequence[State]:
        return self._again(absorbed(self.model_of(self.state), self.fit, self.seen))

    def _split(self) -> Sequence[State]:
        state = self.state
        return self._again(split(self.model_of(state), state.calibration, self.fit, self.seen))

    def _centred(self) -> State | None:
        found = centred(self.model_of(self.state), self.state.calibration)
        return None if found is None else replace(self._moved(found[0]), calibration=found[1])

    def _by_normalization(self) -> State | None:
        model = self.model_of(self.state)
        overrides = corrected_by_normalization(model, self.original)
        return None if overrides is None else replace(self.state, overrides=overrides)

    def _mended(self, mending: Mending, state: State | None = None) -> State:
        state = (state or self.state).float_only
        model = self.model_of(state)
        layers = sum(one.weight is not None for one in find_layers(model).layers)
        name = "rounding weights" if mending.rounding else "correcting biases"
        with (
            Walk(model, state.calibration, self.fit, self.samples) as walk,
            self._reported(name, layers) as advance,
        ):
            return replace(state, overrides=walk.mend(mending, advance))

    def _refined(self) -> State | None:
        """Refine ranges without biases corrected for others, and correct biases for them."""
        before = self.state.float_only
        model = self.model_of(before)
        now = monotonic()
        until = now + REFINING * (self.until - now)
        with self.reporter("refining ranges", len(self.state.calibration.ranges)) as advance:
            table = refined(
                model,
                self.state.calibration,
                self.fit,
                min(self.samples, 64),
                self.judge.objective,
                lambda: monotonic() < until,
                advance,
            )
        if table is None:
            return None
        self.refined = replace(before, calibration=table)
        return (
            self._mended(Mending(), self.refined) if self.state.overrides.biases else self.refined
        )

    def _refined_and_rounded(self) -> State | None:
        """Round for refined ranges that were not kept: rounding may bring out what they bring."""
        refined = self.refined
        if refined is None or refined.calibration is self.state.calibration:
            return None
        asked = self.wanted.takes("adaptive rounding")
        return self._mended(Mending(rounding=True), refined) if asked else None


def _joined(tensors: Sequence[str], before: Calibration, found: Calibration) -> Calibration:
    """Return ranges of tensors: those found, and before them those of tensors not looked at again."""
    by = "" if found.method == before.method else f"by {found.method}"
    noted = {
        name: replace(one, note=", ".join(filter(None, (one.note, by))) or None)
        for name, one in found.ranges.items()
    }
    known, why = {**before.ranges, **noted}, {**before.unranged, **found.unranged}
    ranged = known.keys() - found.unranged.keys()
    return replace(
        before,
        histograms=digest_bytes(canonical_json([before.histograms, found.histograms])),
        ranges={name: known[name] for name in tensors if name in ranged},
        unranged={name: why[name] for name in tensors if name in why and name not in ranged},
    )


def _record(
    prepared: Model,
    dataset: Dataset,
    wanted: Wanted,
    work: _Work,
    fit: int,
    held: int,
    warnings: tuple[str, ...],
) -> dict[str, Any]:
    tries = [one.to_document() for one in work.tries]
    return {
        "kind": KIND,
        "schema_version": 1,
        "trtcal": __version__,
        "model": prepared.fingerprint,
        "dataset": dataset.fingerprint,
        "effort": wanted.effort,
        "objective": "metric" if wanted.metric else wanted.objective,
        "samples": {"fitted": work.samples, "calibration": fit, "selection": held},
        "tries": tries,
        "untried": work.untried,
        "layers": layer_changes(work.model_of(work.state), work.state.calibration),
        "warnings": list(warnings),
        "measured": {"seconds": [round(one.seconds, 3) for one in work.tries]},
    }
