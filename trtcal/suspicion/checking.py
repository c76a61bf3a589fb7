"""Check whether data look right to a model: samples, layout, pixels' values, channel order, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trtcal.data import Dataset
from trtcal.data.fingerprint import Array
from trtcal.model import Model
from trtcal.suspicion.drawing import Drawn, Images, draw, find_images
from trtcal.suspicion.forms import Change, changes
from trtcal.suspicion.judging import BORDERLINE, Evidence, weigh
from trtcal.suspicion.labels import check_labels, check_numbers
from trtcal.suspicion.layout import check_layout, relaid
from trtcal.suspicion.looking import Eye, Look
from trtcal.suspicion.plain import check_plain, different
from trtcal.suspicion.words import Suspicion, channel_order, values

SAMPLES = 64
CORRECTED = 32  # of them: so many are tried under every change of values
SCREENED = 8  # of them: so many see every change, more only what these do not speak against
TOGETHER = 16  # of them in a batch


def check_data(
    model: Model, dataset: Dataset, samples: int = SAMPLES, together: int = TOGETHER
) -> tuple[Suspicion, ...]:
    """Return what seems wrong with data for a model; nothing for data that look right.

    Up to `samples` samples from all over the data are run, and up to `CORRECTED` of them once more for
    each change of their values, `together` at a time. `BackendError` if the model cannot be run.
    """
    drawn = draw(model, dataset, samples)
    found = check_plain(drawn)
    if any(one.code in ("zero_samples", "constant_samples") for one in found):
        return tuple(found)
    if drawn.batch == 1:
        drawn = drawn.at(different(drawn.feeds))  # copies would count as evidence of their own
    eye = Eye(model, together)
    if drawn.labels is not None:
        numbers = check_numbers(eye.look(drawn), drawn.labels)
        if numbers:
            found.append(numbers)
            drawn = replace(drawn, labels=None)
    return (*found, *_of_model(eye, find_images(model), drawn))


def _of_model(eye: Eye, images: Images | None, drawn: Drawn) -> list[Suspicion]:
    """Return what the model shows; each fault is looked for with those before it mended."""
    found, mended = [], drawn
    if images is not None:
        for check in CHECKS:
            suspicion, mended = check(eye, images, mended)
            found += [suspicion] if suspicion else []
    if not found and drawn.labels is not None:
        suspicion = check_labels(eye.look(drawn), drawn.labels)
        found += [suspicion] if suspicion else []
    return found


Checked = tuple[Suspicion | None, Drawn]


def _layout(_: Eye, images: Images, drawn: Drawn) -> Checked:
    array = drawn.feeds[images.name]
    suspicion = check_layout(images, array)
    return suspicion, _changed(drawn, images, relaid(images, array)) if suspicion else drawn


def _values(eye: Eye, images: Images, drawn: Drawn) -> Checked:
    """Try the samples in every form that they might have been meant to have."""
    array = drawn.feeds[images.name]
    if array.dtype.kind != "f":
        return None, drawn
    few = drawn.first(CORRECTED)
    hopeful = _hopeful(eye, images, drawn, changes(images.planes(array)))
    given = eye.look(few) if hopeful else None
    tried = [(_tried(eye, images, few, given, change), change) for change in hopeful if given]
    if len(few) < len(drawn) and any(_is_borderline(evidence) for evidence, _ in tried):
        given = eye.look(drawn)
        tried = [
            (_tried(eye, images, drawn, given, change), change)
            for evidence, change in tried
            if evidence.is_clear or _is_borderline(evidence)
        ]
    clear = [one for one in tried if one[0].is_clear]
    if not clear:
        return None, drawn
    evidence, change = _best(clear)
    if change.is_mild and _order_evidence(eye, images, drawn).surpasses(evidence):
        return None, drawn
    return values(images.name, array, change, evidence), _through(images, drawn, change)


def _hopeful(eye: Eye, images: Images, drawn: Drawn, ways: Sequence[Change]) -> list[Change]:
    """Return the changes that a few samples do not speak against: most can be left out at once."""
    few = drawn.first(SCREENED)
    if not ways or len(few) == len(drawn):
        return list(ways)
    given = eye.look(few)
    tried = [(_tried(eye, images, few, given, change), change) for change in ways]
    return [change for evidence, change in tried if evidence.may_be_clear]


def _best(tried: list[tuple[Evidence, Change]]) -> tuple[Evidence, Change]:
    """Return the best change; of those as good as that, the one with the least contrast."""
    best = max((evidence for evidence, _ in tried), key=lambda one: one.rank)
    as_good = [one for one in tried if one[0].is_as_good_as(best)]
    return min(as_good, key=lambda one: one[1].gain)


def _tried(eye: Eye, images: Images, drawn: Drawn, given: Look, change: Change) -> Evidence:
    changed = eye.look(_through(images, drawn, change))
    return weigh(given, changed, change.gain, drawn.labels, change.is_from_odd)


def _is_borderline(evidence: Evidence) -> bool:
    return not evidence.is_clear and evidence.strength > BORDERLINE


def _through(images: Images, drawn: Drawn, change: Change) -> Drawn:
    planes = change(images.planes(drawn.feeds[images.name]))
    return _changed(drawn, images, images.packed(planes))


def _channel_order(eye: Eye, images: Images, drawn: Drawn) -> Checked:
    evidence = _order_evidence(eye, images, drawn)
    if not evidence.is_clear:
        return None, drawn
    return channel_order(images.name, evidence), _turned(images, drawn)


def _order_evidence(eye: Eye, images: Images, drawn: Drawn) -> Evidence:
    """Weigh the samples with their first and last channel exchanged; nothing changes with one."""
    given = eye.look(drawn)
    return weigh(given, eye.look(_turned(images, drawn)), None, drawn.labels)


def _turned(images: Images, drawn: Drawn) -> Drawn:
    planes = images.planes(drawn.feeds[images.name])
    return _changed(drawn, images, images.packed(planes[:, ::-1]))


def _changed(drawn: Drawn, images: Images, array: Array) -> Drawn:
    feeds = {**drawn.feeds, images.name: np.ascontiguousarray(array)}
    return replace(drawn, feeds=feeds)


CHECKS = (_layout, _values, _channel_order)
