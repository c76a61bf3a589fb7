"""Check whether data look right to a model: samples, layout, pixels' values, channel order, labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from trtcal.check.evidence import BORDERLINE, Evidence, advantage, weigh
from trtcal.check.issues import DataIssue, channel_order, values
from trtcal.check.preprocessing import Change, changes
from trtcal.check.probe import ModelProbe, Response
from trtcal.check.samples import (
    check_labels,
    check_layout,
    check_numbers,
    check_plain,
    different,
    relaid,
)
from trtcal.check.sampling import Drawn, Images, draw, find_images
from trtcal.data import Dataset
from trtcal.data.dataset import Array
from trtcal.model import Model

SAMPLES = 64
CORRECTED = 32  # of them: so many are tried under every change of values
SCREENED = 8  # of them: so many see every change, more only what these do not speak against
ORDERED = 16  # of them: so many see exchanged channels, more only if these do not speak against it
TOGETHER = 16  # of them in a batch
ROOM = 1 << 28  # bytes of samples, up to which more of them are looked at in doubt

Checked = tuple[DataIssue | None, Drawn]
More = Callable[[Drawn], Drawn]
"""Gives more samples than those drawn, or the same where there are no more."""


def check_data(
    model: Model, dataset: Dataset, samples: int = SAMPLES, together: int = TOGETHER
) -> tuple[DataIssue, ...]:
    """Return what seems wrong with data for a model; nothing for data that look right.

    Up to `samples` samples from all over the data are run, and up to `CORRECTED` of them once more for
    each change of their values, `together` at a time. `BackendError` if the model cannot be run.
    """
    drawn = draw(model, dataset, samples)
    found = check_plain(drawn)
    if any(one.code in ("zero_samples", "constant_samples") for one in found):
        return tuple(found)
    drawn = _without_copies(drawn)
    probe = ModelProbe(model, together)
    if drawn.labels is not None:
        numbers = check_numbers(probe.look(drawn), drawn.labels)
        if numbers:
            found.append(numbers)
            drawn = replace(drawn, labels=None)
    more = partial(_more, model, dataset, drawn)
    return (*found, *_of_model(probe, find_images(model), drawn, more))


def _without_copies(drawn: Drawn) -> Drawn:
    """Leave out copies, which would count as evidence of their own; a fixed batch stays whole."""
    return drawn.at(different(drawn.feeds)) if drawn.batch == 1 else drawn


def _more(model: Model, dataset: Dataset, first: Drawn, drawn: Drawn) -> Drawn:
    """Return twice as many samples as were drawn first; no more if these were changed or are large."""
    size = sum(array.nbytes for array in drawn.feeds.values())
    if drawn is not first or drawn.total <= len(drawn) or 2 * size > ROOM:
        return drawn
    twice = _without_copies(draw(model, dataset, 2 * len(drawn)))
    return twice if drawn.labels is not None else replace(twice, labels=None)


def _of_model(
    probe: ModelProbe, images: Images | None, drawn: Drawn, more: More
) -> list[DataIssue]:
    """Return what the model shows; each fault is looked for with those before it mended."""
    found = list[DataIssue]()
    if images is not None:
        issue, mended = _layout(images, drawn)
        found += [issue] if issue else []
        for check in (_values, _channel_order):
            issue, mended = check(probe, images, mended, more)
            found += [issue] if issue else []
    if not found and drawn.labels is not None:
        issue = check_labels(probe.look(drawn), drawn.labels)
        found += [issue] if issue else []
    return found


def _layout(images: Images, drawn: Drawn) -> Checked:
    array = drawn.feeds[images.name]
    issue = check_layout(images, array)
    return issue, _changed(drawn, images, relaid(images, array)) if issue else drawn


def _values(probe: ModelProbe, images: Images, drawn: Drawn, more: More) -> Checked:
    """Try the samples in every form that they might have been meant to have."""
    array = drawn.feeds[images.name]
    if array.dtype.kind != "f":
        return None, drawn
    ways = _hopeful(probe, images, drawn, changes(images.planes(array)))
    tried, looked_at = list[tuple[Evidence, Change]](), 0
    for some in _larger_and_larger(drawn, more):
        if not ways or len(some) <= looked_at:
            break
        given, looked_at = probe.look(some), len(some)
        tried = [(_tried(probe, images, some, given, way), way) for way in ways]
        if not any(_is_borderline(evidence) for evidence, _ in tried):
            break
        ways = [way for one, way in tried if one.is_clear or _is_borderline(one)]
    clear = [one for one in tried if one[0].is_clear]
    if not clear:
        return None, drawn
    evidence, change = _best(clear)
    if change.is_mild and _order_evidence(probe, images, drawn).surpasses(evidence):
        return None, drawn
    return values(images.name, array, change, evidence), _through(images, drawn, change)


def _larger_and_larger(drawn: Drawn, more: More) -> Iterator[Drawn]:
    yield drawn.first(CORRECTED)
    yield drawn
    yield more(drawn)


def _hopeful(
    probe: ModelProbe, images: Images, drawn: Drawn, ways: Sequence[Change]
) -> list[Change]:
    """Return the changes that a few samples do not speak against: most can be left out at once."""
    few = drawn.first(SCREENED)
    if not ways or len(few) == len(drawn):
        return list(ways)
    given = probe.look(few)
    tried = [(_tried(probe, images, few, given, change), change) for change in ways]
    return [change for evidence, change in tried if evidence.may_be_clear]


def _best(tried: list[tuple[Evidence, Change]]) -> tuple[Evidence, Change]:
    """Return the best change; of those as good as that, the one with the least contrast."""
    best = max((evidence for evidence, _ in tried), key=lambda one: one.rank)
    as_good = [one for one in tried if one[0].is_as_good_as(best)]
    return min(as_good, key=lambda one: one[1].gain)


def _tried(
    probe: ModelProbe, images: Images, drawn: Drawn, given: Response, change: Change
) -> Evidence:
    changed = probe.look(_through(images, drawn, change))
    return weigh(given, changed, change.gain, drawn.labels, change.is_from_odd)


def _is_borderline(evidence: Evidence) -> bool:
    return not evidence.is_clear and evidence.strength > BORDERLINE


def _through(images: Images, drawn: Drawn, change: Change) -> Drawn:
    planes = change(images.planes(drawn.feeds[images.name]))
    return _changed(drawn, images, images.packed(planes))


def _channel_order(probe: ModelProbe, images: Images, drawn: Drawn, more: More) -> Checked:
    few = drawn.first(ORDERED)
    if len(few) < len(drawn) and not _order_evidence(probe, images, few).may_be_clear:
        return None, drawn
    evidence = _order_evidence(probe, images, drawn)
    if _is_borderline(evidence):
        evidence = _order_evidence(probe, images, more(drawn))
    if not evidence.is_clear:
        return None, drawn
    return channel_order(images.name, evidence), _turned(images, drawn)


def _order_evidence(probe: ModelProbe, images: Images, drawn: Drawn) -> Evidence:
    """Weigh the samples with their first and last channel exchanged; nothing changes in grey ones."""
    turned, given = _turned(images, drawn), probe.look(drawn)
    if np.array_equal(turned.feeds[images.name], drawn.feeds[images.name]):
        return weigh(given, given, None, drawn.labels)
    evidence = weigh(given, probe.look(turned), None, drawn.labels)
    return evidence.with_depths(advantage(probe.depths.stir(turned), probe.depths.stir(drawn)))


def _turned(images: Images, drawn: Drawn) -> Drawn:
    planes = images.planes(drawn.feeds[images.name])
    return _changed(drawn, images, images.packed(planes[:, ::-1]))


def _changed(drawn: Drawn, images: Images, array: Array) -> Drawn:
    feeds = {**drawn.feeds, images.name: np.ascontiguousarray(array)}
    return replace(drawn, feeds=feeds)
