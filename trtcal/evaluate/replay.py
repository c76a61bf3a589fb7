"""Run a reference and any number of variants over the same samples, once, in bounded memory.

`replay` goes through the data and yields each batch with everybody's outputs. A `Recording` keeps the
samples and the reference's outputs, for variants that come later. States that a recurrent network feeds
back become a part of the data (`carry`), so that whatever takes samples in another order gives each its
own.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, Session, open_session, run_session
from trtcal.backends.trial import crashes_as_warnings
from trtcal.config import DataConfig
from trtcal.data import Dataset, Feeds, Subset
from trtcal.data.dataset import CarriedFeeds
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import BackendError, InputError, some
from trtcal.evaluate.caches import SpillCache
from trtcal.evaluate.clues import Input, inputs_of
from trtcal.evaluate.per_sample import Labels
from trtcal.evaluate.texts import Texts
from trtcal.model import Model
from trtcal.model.cut import Tail, tail_of
from trtcal.model.states import CACHE, caches_of, tokens_of
from trtcal.stats import Mask

Outputs = dict[str, Array]
"""Output -> values, samples along the first axis, in the order in which they were asked for."""
Run = Callable[[Feeds], Outputs]
"""One model on one batch."""
T = TypeVar("T")
Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Called with a stage's title and its number of steps; gives what to call as they are done."""


def silent(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Report nothing."""
    return nullcontext(lambda done: None)


@dataclass(frozen=True)
class Batch:
    """Samples by their numbers: the reference's outputs, those of variants, the inputs' forms.

    `times_ms` are those of the runs, the reference's first; none if the batch is unlike the first.
    """

    numbers: Labels
    size: int
    labels: Labels | None
    expected: Outputs
    outputs: tuple[Outputs, ...] = ()
    inputs: tuple[Input, ...] = ()
    times_ms: tuple[float, ...] = ()

    def at(self, where: Mask) -> Batch:
        """Return some of its samples, of all outputs that have one row for each."""
        expected, *outputs = (
            {n: rows[where] if rows.shape[:1] == (self.size,) else rows for n, rows in each.items()}
            for each in (self.expected, *self.outputs)
        )
        labels, numbers = None if self.labels is None else self.labels[where], self.numbers[where]
        return Batch(numbers, len(numbers), labels, expected, tuple(outputs), self.inputs)


def runner(session: Session, names: Sequence[str]) -> Run:
    """Return what runs a session for the outputs named, those after a cut among them.

    Outputs after a cut (`trtcal.model.cut`) are computed by the tail that the model carries.
    """
    own = {output.name for output in session.get_outputs()}
    tail = None if own.issuperset(names) else carried_tail(session)
    if tail is None:
        return lambda feeds: dict(zip(names, run_session(session, names, feeds), strict=True))
    return partial(_through, session, tail, open_session(tail.proto), names)


def carried_tail(session: Session) -> Tail | None:
    """Return the tail that a session's model carries, None if it was not cut."""
    return tail_of(session.get_modelmeta().custom_metadata_map)


def _through(
    body: Session, tail: Tail, session: Session, names: Sequence[str], feeds: Feeds
) -> Outputs:
    """Run a body, then its tail, which may read the feeds too."""
    cut = dict(zip(tail.cut, run_session(body, tail.cut, feeds), strict=True))
    known = {**feeds, **cut}
    outputs = [output.name for output in session.get_outputs() if output.name in names]
    inputs = {spec.name: known[spec.name] for spec in session.get_inputs()}
    values = {**cut, **dict(zip(outputs, run_session(session, outputs, inputs), strict=True))}
    return {name: values[name] for name in names}


def quantized_runner(proto: onnx.ModelProto, names: Sequence[str], threads: int = 0) -> Run:
    """Return what runs a model's integer kernels, or its Q/DQ literally where these do not take it."""
    with suppress(BackendError), crashes_as_warnings():
        return runner(open_session(lower(proto), threads), names)
    return runner(open_session(proto, threads, as_it_is=True), names)


def replay(
    reference: Run,
    variants: Sequence[Run],
    batches: Iterable[Feeds],
    labels: Labels | None = None,
    progress: Callable[[int], None] = lambda done: None,
    stopped: Collection[int | None] = (),
) -> Iterator[Batch]:
    """Yield each batch with everybody's outputs; `labels` are those of all samples.

    `progress` gets the number of samples of each batch. Where the data have states of a sequence, each
    variant is fed its own back. In place of variants `stopped`, from 1 on, the reference answers.
    """
    start, first = 0, None
    runs: list[Run] = [reference, *map(OwnStates, variants)]
    for feeds in batches:
        size = max((len(array) for array in feeds.values()), default=1)
        mine = None if labels is None else labels[start : start + size]
        timed = [_timed(run if n not in stopped else None, feeds) for n, run in enumerate(runs)]
        (expected, *answers), times = zip(*timed, strict=True)
        outputs = [answer or expected for answer in answers]
        numbers = np.arange(start, start := start + size)
        shapes = [array.shape for array in feeds.values()]
        is_plain = shapes == (first := first or shapes) and not isinstance(feeds, CarriedFeeds)
        more = tuple(outputs), inputs_of(feeds), times if is_plain else ()
        batch = Batch(numbers, size, mine, expected, *more)
        progress(size)
        yield batch


def _timed(run: Run | None, feeds: Feeds) -> tuple[Outputs, float]:
    if run is None:
        return {}, math.nan
    started = time.perf_counter()
    return run(feeds), 1e3 * (time.perf_counter() - started)


class OwnStates:
    """A variant on sequences: it gets the states that it made itself, not those of the float model."""

    def __init__(self, run: Run) -> None:
        self.run, self.last = run, Feeds()

    def __call__(self, feeds: Feeds) -> Outputs:
        """Return the outputs of a batch, which goes on with the states of the one before."""
        if not isinstance(feeds, CarriedFeeds):
            return self.run(feeds)
        samples = [
            self._next({n: array[i : i + 1] for n, array in feeds.items()}, feeds.states, start)
            for i, start in enumerate(feeds.starts)
        ]
        return {name: np.concatenate([outputs[name] for outputs in samples]) for name in samples[0]}

    def _next(self, sample: Feeds, states: Mapping[str, str], is_start: bool) -> Outputs:
        outputs = self.run(sample if is_start else sample | self.last)
        self.last = {
            name: fed_back(output, outputs[output], sample[name], CACHE.match(output) is not None)
            for output, name in states.items()
            if output in outputs
        }
        return outputs


class Kept:
    """A model's outputs for the batches of a replay, for later replays of the same batches.

    They stay in memory up to `room` bytes and in temporary files up to `most`; for the other batches
    the model runs again. Once the disk is full nothing is kept any more.
    """

    def __init__(self, room: int = 1 << 26, most: int = 1 << 30) -> None:
        self.spill, self.left, self.known = SpillCache(room), most, set[int]()

    def of(self, run: Run, anew: int) -> Run:
        """Return what gives the outputs of batch after batch; for the first `anew` the model runs."""
        numbers = itertools.count()

        def outputs_of(feeds: Feeds) -> Outputs:
            if (number := next(numbers)) in self.known and number >= anew:
                return self.spill.get("expected", number)
            self._keep(number, outputs := run(feeds))
            return outputs

        return outputs_of

    def _keep(self, number: int, outputs: Outputs) -> None:
        size = sum(array.nbytes for array in outputs.values())
        has_text = any(array.dtype.hasobject for array in outputs.values())
        if number in self.known or has_text or size > self.left:
            return
        try:
            self.spill.keep("expected", number, outputs)
        except OSError:  # the disk is full: whatever else is written needs it more
            self.left, self.known = -1, set()
            self.spill.close()
        else:
            self.left -= size
            self.known.add(number)


class Recording:
    """A replay of the reference alone, kept for variants that come later.

    Samples and outputs stay in memory up to `room` bytes, the others in temporary files. Variants run
    in `threads` threads, each on another batch.
    """

    def __init__(
        self,
        reference: Run,
        batches: Iterable[Feeds],
        labels: Labels | None = None,
        room: int = 0,
        threads: int = 1,
    ) -> None:
        self.spill = SpillCache(room)
        self.pool = ThreadPoolExecutor(threads, "replay") if threads > 1 else None
        self.heads: list[Batch] = []
        for batch in replay(partial(self._record, reference), (), batches, labels):
            self.spill.keep("expected", len(self.heads), batch.expected)
            self.heads.append(replace(batch, expected={}, outputs=()))

    def close(self) -> None:
        """Stop the threads and delete what is kept."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
        self.spill.close()

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def first(self) -> Batch:
        """The first batch, with the reference's outputs."""
        return replace(self.heads[0], expected=self.expected(0))

    def _record(self, reference: Run, feeds: Feeds) -> Outputs:
        self.spill.keep("feeds", len(self.heads), feeds)
        return reference(feeds)

    def feeds(self, number: int) -> Feeds:
        """Return the samples of a batch."""
        return self.spill.get("feeds", number)

    def expected(self, number: int) -> Outputs:
        """Return the reference's outputs for a batch."""
        return self.spill.get("expected", number)

    def compare(
        self,
        run: Callable[[int], Outputs],
        figures: Callable[[Batch], T],
        numbers: Sequence[int] | None = None,
    ) -> list[T]:
        """Return the figures of each batch with what a variant gives for it, by the batch's number."""

        def figures_of(number: int) -> T:
            head, expected = self.heads[number], self.expected(number)
            output = run(number)
            return figures(replace(head, expected=expected, outputs=(output,)))

        return self.each(figures_of, numbers)

    def each(self, work: Callable[[int], T], numbers: Sequence[int] | None = None) -> list[T]:
        """Return what is made of each batch's number, in the threads."""
        of = range(len(self)) if numbers is None else numbers
        return list(map(work, of) if self.pool is None else self.pool.map(work, of))

    def rerun(self, run: Run, figures: Callable[[Batch], T]) -> list[T]:
        """Return the figures of each batch with what a variant gives for its samples."""
        return self.compare(lambda number: run(self.feeds(number)), figures)


@dataclass(frozen=True)
class CarriedDataset(Subset):
    """A dataset with the states (output -> input) that a model, by its fingerprint, made of it.

    `carried` has the state before each sample, by input; `starts` are the samples that begin a
    sequence.
    """

    model: str = ""
    states: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, Array] = field(default_factory=dict)
    starts: frozenset[int] = frozenset()

    def _derived(self, digest: str) -> str:
        parts = {"whole": digest, "model": self.model, "states": dict(self.states)}
        return digest_bytes(canonical_json({**parts, "starts": sorted(self.starts)}))

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`, with their states."""
        for feeds in self.whole.batches(size, start, stop):
            numbers = range(start, start := start + len(next(iter(feeds.values()))))
            states = {name: array[numbers.start : start] for name, array in self.carried.items()}
            yield CarriedFeeds(feeds | states, self.states, [n in self.starts for n in numbers])


def carry(model: Model, dataset: Dataset, settings: DataConfig) -> Dataset:
    """Return the data with the states that a model feeds back, and texts with their next tokens.

    Each feed is a sequence, and so are data that are no feeds. `InputError` if an output is unknown, or
    is not of the shape of its input.
    """
    states, caches = settings.states, caches_of(model)
    is_text = settings.tokens or settings.steps or (caches and tokens_of(model))
    if is_text and not states:
        return Texts(model, dataset, settings)
    if not states:
        return dataset
    if growing := {*states.values()} & {*caches.values()}:
        what = f"[data.states] names {some(sorted(growing))}, which grows with each step"
        raise InputError(what, "leave it out, and give `steps` under [data] to run with a past")
    if (dataset.batch or 1) > 1:
        what = "[data.states] carries a state from sample to sample"
        what += f", and the batch of model {model.path} is fixed at {dataset.batch}"
        raise InputError(what, "export the model with a batch of 1, or a dynamic one")
    known = [spec.name for spec in model.outputs]
    for name in states:
        if name not in known:
            what = f"[data.states] names {name!r}, which is not an output of the model"
            raise InputError(what, f"its outputs are: {', '.join(known)}")
    starts = getattr(dataset, "starts", frozenset({0}))
    carried = _run_through(model, dataset, states, starts)
    spans, about = ((0, len(dataset)),), (model.fingerprint, states, carried, starts)
    return CarriedDataset(dataset.name, dataset, spans, *about)


def _run_through(
    model: Model, dataset: Dataset, states: Mapping[str, str], starts: frozenset[int]
) -> dict[str, Array]:
    session = open_session(model.proto)
    states_before = {name: list[Array]() for name in states.values()}
    last: Feeds = {}
    for number, feeds in enumerate(dataset.batches(1)):
        before = {name: feeds[name] for name in states_before} if number in starts else last
        for name, array in before.items():
            states_before[name].append(array)
        outputs = run_session(session, list(states), feeds | before)
        pairs = zip(states.items(), outputs, strict=True)
        last = {name: fed_back(output, array, feeds[name]) for (output, name), array in pairs}
    return {name: np.concatenate(arrays) for name, arrays in states_before.items()}


def fed_back(output: str, array: Array, before: Array, may_grow: bool = False) -> Array:
    """Return an output in the form of the input that it becomes, whose last value was `before`."""
    if may_grow and array.ndim == before.ndim and array.dtype == before.dtype:
        return array
    if array.size != before.size or array.dtype != before.dtype:
        form, needed = (f"{each.dtype}{list(each.shape)}" for each in (array, before))
        what = f"output {output!r} is {form}, and cannot be fed back to an input that is {needed}"
        hint = "give in [data.states] the output with the next state, and the input that takes it"
        raise InputError(what, hint)
    return array.reshape(before.shape)
