"""Texts for language models: next tokens as labels, and steps that have the caches of those before.

Padded positions count in histograms and in every figure but perplexity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from trtcal.backends.sessions import open_session, run_session
from trtcal.config import DataConfig
from trtcal.data import Dataset, Feeds
from trtcal.data.checks import LABELS, Layout
from trtcal.data.dataset import PADDING, CarriedFeeds, Labels
from trtcal.data.feeds import FeedDataset
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.model.states import caches_of, tokens_of

NO_PAST = "; caches that the data lack are empty: `steps` under [data] adds samples with a past"


class Texts(FeedDataset):
    """The texts of a dataset, with the next tokens as labels where it has none.

    With `steps` the last tokens of each text are a sample each, with the caches that the float model
    made of those before. `InputError` if the model has no tokens, or no caches for steps.
    """

    def __init__(self, model: Model, dataset: Dataset, settings: DataConfig) -> None:
        caches, tokens = caches_of(model), settings.tokens or tokens_of(model)
        widths = {spec.name: spec.shape[1] for spec in model.inputs if len(spec.shape) == 2}
        if tokens not in widths or (settings.steps and not caches):
            lacking = "caches" if tokens in widths else "input with the tokens of a text"
            what = f"model {model.path} has no {lacking}"
            raise InputError(what, "correct `tokens` and `steps` under [data] of trtcal.toml")
        with_past = {n for n, width in widths.items() if width != widths[tokens] or "mask" in n}
        rows = (tokens, {*widths} - with_past, with_past)
        self.states = caches if settings.steps else {}
        has_no_past = bool(caches) and not settings.steps
        labels = f"the next values of {tokens}" if dataset.labels is None else "those of the data"
        self.about = f"the labels are {labels}{NO_PAST * has_no_past}"
        source = partial(_texts, model.reference, dataset, rows, settings.steps or 0, self.states)
        super().__init__(Path(dataset.name), Layout.of(model), source)
        self.unused = dataset.unused

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`, with their states."""
        for feeds in super().batches(size, start, stop):
            is_start = not any(feeds[name].size for name in self.states.values())
            starts = [is_start] * len(next(iter(feeds.values())))
            yield CarriedFeeds(feeds, self.states, starts) if self.states else feeds


Rows = tuple[str, set[str], set[str]]
"""The tokens, inputs with a value for each of them, and those with values for the past too."""


def _texts(
    model: onnx.ModelProto, dataset: Dataset, rows: Rows, steps: int, caches: Mapping[str, str]
) -> Iterator[Feeds]:
    """Yield texts with labels as they are, or their beginnings and then `steps` further tokens."""
    session, start = open_session(model) if steps else None, 0
    for feeds in dataset.batches(1):
        size, length = feeds[rows[0]].shape
        labels = _next_tokens(feeds, rows)
        if dataset.labels is not None:
            labels = dataset.labels[start : start + size]
        feeds, start = {**feeds, LABELS: labels}, start + size
        if session is None:
            yield feeds
            continue
        end = length - bool((labels[:, length - 1 : length] == PADDING).all())
        first, past = max(end - steps, 1), Feeds()
        for stop in range(first, end + 1):
            part = _part(feeds, rows, 0 if stop == first else stop - 1, stop) | past
            yield part
            inputs = {name: array for name, array in part.items() if name != LABELS}
            past = dict(zip(caches.values(), run_session(session, [*caches], inputs), strict=True))


def _next_tokens(feeds: Feeds, rows: Rows) -> Labels:
    """Return the token after each one, `PADDING` where there is none or it is masked."""
    tokens = feeds[rows[0]].astype(np.int64)
    for name in filter(re.compile("mask").search, rows[2]):
        tokens = np.where(feeds[name][:, -tokens.shape[1] :], tokens, PADDING)
    return np.pad(tokens[:, 1:], [(0, 0), (0, 1)], constant_values=PADDING)


def _part(feeds: Feeds, rows: Rows, begin: int, stop: int) -> Feeds:
    """Return some tokens of a text, with all up to them of what has values for the past too."""
    rest = feeds[rows[0]].shape[1] - stop
    cut = {n: feeds[n][:, begin:stop] for n in {LABELS, *rows[1]} if feeds[n].ndim == 2}
    whole = {name: feeds[name][:, : feeds[name].shape[1] - rest] for name in rows[2]}
    return {name: {**cut, **whole}.get(name, array) for name, array in feeds.items()}
