"""Check whether data look right to a model: samples, layout, pixels' values, channel order, labels."""

from __future__ import annotations

import numpy as np

from trtcal.data import Dataset
from trtcal.data.fingerprint import Array
from trtcal.model import Model
from trtcal.suspicion.drawing import Drawn, Images, draw, find_images
from trtcal.suspicion.forms import Change, changes
from trtcal.suspicion.judging import Evidence, weigh
from trtcal.suspicion.labels import check_labels
from trtcal.suspicion.layout import check_layout, relaid
from trtcal.suspicion.looking import Eye, Look
from trtcal.suspicion.plain import check_plain
from trtcal.suspicion.words import Suspicion, channel_order, values

SAMPLES = 64
CORRECTED = 32  # of them: so many are tried under every change of values


def check_data(model: Model, dataset: Dataset, samples: int = SAMPLES) -> tuple[Suspicion, ...]:
    """Return what seems wrong with data for a model; nothing for data that look right.

    Up to `samples` samples from all over the data are run, and up to `CORRECTED` of them once more for
    each change of their values. `BackendError` if the model cannot be run.
    """
    drawn = draw(model, dataset, samples)
    found = check_plain(drawn)
    if any(one.code in ("zero_samples", "constant_samples") for one in found):
        return tuple(found)
    eye = Eye(model)
    images = find_images(model)
    mended = drawn
    if images is not None:
        for check in (_layout, _values, _channel_order):
            suspicion, mended = check(eye, images, mended)
            found += [suspicion] if suspicion else []
    if mended is drawn and drawn.labels is not None:
        found += check_labels(eye.look(drawn), drawn.labels)
    return tuple(found)


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
    given = eye.look(few)
    planes = images.planes(few.feeds[images.name])
    tried: list[tuple[Evidence, Change]] = []
    for change in changes(images.planes(array)):
        looked = eye.look(_changed(few, images, images.packed(change(planes))))
        tried.append((weigh(given, looked, change.gain, few.labels), change))
    clear = [one for one in tried if one[0].is_clear]
    if not clear:
        return None, drawn
    evidence, change = max(clear, key=lambda one: _rank(one[0]))
    whole = images.packed(change(images.planes(array)))
    return values(images.name, array, change, evidence), _changed(drawn, images, whole)


def _rank(evidence: Evidence) -> tuple[float, float]:
    misfit = evidence.changed.misfit
    return (-misfit if misfit is not None else 0.0, _mean(evidence.changed) )


def _mean(look: Look) -> float:
    return 0.0 if look.sharpness is None else float(look.sharpness.mean())


def _channel_order(eye: Eye, images: Images, drawn: Drawn) -> Checked:
    planes = images.planes(drawn.feeds[images.name])
    if planes.shape[1] != 3:
        return None, drawn
    turned = _changed(drawn, images, images.packed(planes[:, ::-1]))
    evidence = weigh(eye.look(drawn), eye.look(turned), 1.0, drawn.labels)
    if not evidence.is_clear:
        return None, drawn
    return channel_order(images.name, evidence), turned


def _changed(drawn: Drawn, images: Images, array: Array) -> Drawn:
    feeds = {**drawn.feeds, images.name: np.ascontiguousarray(array)}
    return Drawn(feeds, drawn.labels, drawn.total, drawn.batch)
