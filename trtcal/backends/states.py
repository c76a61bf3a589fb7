"""States of recurrent networks: outputs that are inputs at the next sample of a sequence.

The float model is run over each sequence once. What it feeds back becomes a part of the data, so that
whatever takes samples in another order gives each the state that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from trtcal.backends.sessions import open_session, run_session
from trtcal.data import Dataset, Subset
from trtcal.data.dataset import Array, CarriedFeeds, Feeds
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import InputError
from trtcal.model import Model


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


def carry(model: Model, dataset: Dataset, states: Mapping[str, str]) -> Dataset:
    """Return the data with the states that a model feeds back, output -> input; as they are for none.

    Each feed is a sequence, and so are data that are no feeds. `InputError` if an output is unknown, or
    is not of the shape of its input.
    """
    if not states:
        return dataset
    known = [spec.name for spec in model.outputs]
    for name in states:
        if name not in known:
            raise InputError(
                f"[data.states] names {name!r}, which is no output of the model",
                f"its outputs are: {', '.join(known)}",
            )
    starts = getattr(dataset, "starts", frozenset({0}))
    carried = _run_through(model, dataset, states, starts)
    spans, about = ((0, len(dataset)),), (model.fingerprint, states, carried, starts)
    return CarriedDataset(dataset.name, dataset, spans, *about)


def _run_through(
    model: Model, dataset: Dataset, states: Mapping[str, str], starts: frozenset[int]
) -> dict[str, Array]:
    session, found = open_session(model.proto), {name: list[Array]() for name in states.values()}
    last: Feeds = {}
    for number, feeds in enumerate(dataset.batches(1)):
        before = {name: feeds[name] for name in found} if number in starts else last
        for name, array in before.items():
            found[name].append(array)
        made = run_session(session, list(states), feeds | before)
        pairs = zip(states.items(), made, strict=True)
        last = {name: fed_back(output, array, feeds[name]) for (output, name), array in pairs}
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def fed_back(output: str, array: Array, before: Array) -> Array:
    """Return an output in the form of the input that it becomes, whose last value was `before`."""
    if array.size != before.size or array.dtype != before.dtype:
        raise InputError(
            f"output {output!r} is {array.dtype}{list(array.shape)}, and cannot be fed back to an "
            f"input that is {before.dtype}{list(before.shape)}",
            "name the output that has the next state in [data.states], and its input",
        )
    return array.reshape(before.shape)
