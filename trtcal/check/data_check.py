"""Check whether data fit a model: samples, layout, pixel values, channel order, labels."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from trtcal.check.evidence import (
    PART,
    Evidence,
    LabelEvidence,
    check_label_numbers,
    check_labels,
    is_possible,
    like_shuffled,
    weigh,
)
from trtcal.check.preprocessing import FIXES, Change, changes, settings_of
from trtcal.check.probe import ModelProbe, Response
from trtcal.check.ranking import NO_CLASS, Trial, answered, rank
from trtcal.check.samples import (
    ImageInput,
    Samples,
    check_layout,
    check_noise,
    check_samples,
    drop_duplicates,
    take_samples,
    transposed,
)
from trtcal.data import Dataset
from trtcal.data.dataset import Array
from trtcal.data.issues import DataCheck, DataIssue, Question
from trtcal.evaluate.per_sample import Labels
from trtcal.model import Model

SAMPLES = 64
CORRECTED = 32  # of them: so many are tried under every change of values
SCREENED = (8, 16)  # of them: so many see every change, more only what these do not speak against
ORDERED = 16  # of them: so many see exchanged channels, more only if these do not speak against it
BATCH = 16
LABELLED = 512  # so many where labels decide: enough for 5 points of accuracy
ROOM = 1 << 28  # bytes of samples, up to which more of them are read in doubt
LABELS_DECIDE = "class labels decide it (`labels` in an .npz, --labels for images)"
Way = Callable[[Array], Array] | None
"""How planes are changed; None leaves them."""
Proof = Evidence | LabelEvidence
Tried = tuple[Way, Proof | None]
Checked = tuple[DataIssue | None, Samples]
"""An issue, if there is one, and the samples without that fault."""


def check_data(
    model: Model,
    dataset: Dataset,
    count: int = SAMPLES,
    batch_size: int = BATCH,
    fingerprint: bool = True,
) -> DataCheck:
    """Return what is wrong with data for a model, and what may be; no issues for data that fit.

    What only the model's answers speak for is a question; labels make it an issue, or settle it.
    Up to `count` samples from all over the data are run, and up to 32 of them once more for each change
    of their values, `batch_size` at a time. Without `fingerprint` no other samples are read: the check
    lacks that of the data. `BackendError` if the model cannot be run.
    """
    samples = take_samples(model, dataset, count)
    issues = check_samples(samples)
    if not any(issue.kind in ("zero_samples", "constant_samples") for issue in issues):
        issues += _check_with_model(model, dataset, drop_duplicates(samples), batch_size)
    questions = tuple(issue for issue in issues if isinstance(issue, Question))
    statements = tuple(issue for issue in issues if not isinstance(issue, Question))
    digest = dataset.fingerprint if fingerprint else ""
    about = model.fingerprint, digest, dataset.name, len(dataset), len(samples)
    return DataCheck(*about, statements, questions)


def _check_with_model(
    model: Model, dataset: Dataset, samples: Samples, batch_size: int
) -> list[DataIssue]:
    probe, issues = ModelProbe(model, batch_size), list[DataIssue]()
    if samples.labels is not None:
        issue = check_label_numbers(probe.run(samples), samples.labels)
        if issue:
            issues.append(issue)
            samples = replace(samples, labels=None)
    if (image := ImageInput.of(model)) is not None:
        more = in_doubt(model, dataset, samples)
        issues += ImageChecks(probe, image, more).run(samples)
    elif samples.labels is None:
        probe.run(samples.first(1))  # that the model runs at all is part of the answer
    if samples.labels is not None and all(isinstance(issue, Question) for issue in issues):
        issue = check_labels(probe.run(samples), samples.labels)
        issues += [issue] if issue else []
    return issues


def in_doubt(model: Model, dataset: Dataset, first: Samples) -> Callable[[Samples], Samples]:
    """Return what gives more than the first samples; the same where they were changed or are large."""

    def more(samples: Samples) -> Samples:
        most = samples.fitting(2 * len(first) if samples.labels is None else LABELLED, ROOM)
        if samples is not first or min(samples.total, most) <= len(samples):
            return samples
        others = drop_duplicates(replace(take_samples(model, dataset, most), form=first.form))
        return others if samples.labels is not None else replace(others, labels=None)

    return more


exchanged = functools.partial(np.flip, axis=1)
"""Exchanges red and blue of planes."""
ARRANGED: dict[Callable[[Array], Array], str] = {
    lambda array: array.swapaxes(2, 3) if len({*array.shape[2:]}) == 1 else array: "transposed",
    lambda planes: planes[..., ::-1]: "mirrored",
    lambda planes: planes[:, :, ::-1]: "upside down",
    lambda planes: planes[:, :, ::-1, ::-1]: "turned by 180 degrees",
    lambda planes: planes.max() + planes.min() - planes: "inverted (dark for bright)",
}
"""What restores images -> what they are without it."""


class ImageChecks:
    """Checks of an image input; each is made on samples corrected for the faults before it.

    With `known`, the model's classes of all samples, `NO_CLASS` where not known, labels alone decide.
    """

    def __init__(
        self,
        probe: ModelProbe,
        image: ImageInput,
        more: Callable[[Samples], Samples],
        known: Labels | None = None,
    ) -> None:
        self.probe, self.image, self.more, self.known = probe, image, more, known
        self.driven: float | None = None  # the signal to bias of the samples as given, once known
        self.is_corrected = False

    def run(self, samples: Samples) -> list[DataIssue]:
        """Return the issues of layout, values and channel order; noise has neither of the latter."""
        issues, corrected = list[DataIssue](), samples
        checks = self._layout, self._noise, self._arrangement, self._values, self._channel_order
        for check in checks:
            self.driven = None
            issue, corrected = check(corrected)
            self.is_corrected = corrected is not samples
            issues += [issue] if issue else []
            if issue and issue.kind == "noise":
                break
        return issues

    def _layout(self, samples: Samples) -> Checked:
        array = samples.feeds[self.image.name]
        if (issue := check_layout(self.image, array)) is None:
            return None, samples
        return issue, self._with(samples, transposed(self.image, array), transposed)

    def _noise(self, samples: Samples) -> Checked:
        if (noise := check_noise(self.image, samples.feeds[self.image.name])) is None:
            return None, samples
        classes = self.probe.run(samples).classes
        if samples.labels is None or classes is None:
            return _question(noise, classes is not None), samples
        return noise if like_shuffled(classes, samples.labels) else None, samples

    def _values(self, samples: Samples) -> Checked:
        array = samples.feeds[self.image.name]
        if array.dtype.kind != "f":
            return None, samples
        ways = changes(self.image.planes(array))
        proof = self._proof(samples, (*ways, exchanged) if ways else ())
        change, evidence = proof or self._clearest(samples, () if self.known is not None else ways)
        if not isinstance(change, Change) or evidence is None:
            return None, samples
        return self._values_issue(array, change, evidence), self._changed(samples, change)

    def _proof(self, samples: Samples, ways: Sequence[Way]) -> Tried | None:
        """Return the way that labels prefer to the samples as given, None if they decide nothing."""
        if not ways or samples.labels is None or self.probe.run(samples.first(1)).classes is None:
            return None
        enough = functools.cache(lambda: self.more(samples))

        def answer(way: Way, count: int) -> tuple[Labels, Labels]:
            some = (samples if count < len(samples) else enough()).first(count)
            return self._answered(some, way)

        best, *others = rank([None, *ways], answer)
        if not best.decides:
            return None
        given = next((trial for trial in others if trial.way is None), best)
        again = Trial(best.way, *answer(best.way, len(given.labels)))
        evidence = again.over(Trial(None, *answer(None, len(given.labels))))
        if self.known is not None and not evidence.beats_constant:
            return None
        return (best.way, evidence) if evidence.is_better else (None, None)

    def _answered(self, samples: Samples, way: Way) -> tuple[Labels, Labels]:
        if self.known is not None and way is None and not self.is_corrected:
            classes = self.known[samples.numbers]
            if (classes != NO_CLASS).all():  # else some are yet to be replayed
                return classes, np.asarray(samples.labels)
        return answered(self.probe, self._changed(samples, way))

    def _clearest(self, samples: Samples, ways: Sequence[Change]) -> Tried:
        """Return the change for which the model's answers speak clearly, if there is one."""
        clear = [row for row in self._tried(samples, ways) if row[0].is_clear]
        if not clear:
            return None, None
        evidence, change = _best(clear)
        order = self._order_evidence(samples) if change.is_mild else evidence
        is_order = order.is_clear and order.model_t > evidence.model_t
        return (None, None) if is_order else (change, evidence)

    def _tried(self, samples: Samples, ways: Sequence[Change]) -> list[tuple[Evidence, Change]]:
        """Return the evidence for each change, from more and more samples while some may be clear."""
        tried, seen = list[tuple[Evidence, Change]](), 0
        for some in self._growing(samples):
            if not ways or len(some) <= seen:
                break
            response, seen = self.probe.run(some, inside=True), len(some)
            tried = [(self._weighed(some, response, way), way) for way in ways]
            if seen < min(CORRECTED, len(samples)):
                ways = [way for evidence, way in tried if evidence.may_be_clear]
            elif any(evidence.is_borderline for evidence, _ in tried):
                ways = [way for e, way in tried if e.is_clear or e.is_borderline]
            else:
                break
        return tried

    def _growing(self, samples: Samples) -> Iterator[Samples]:
        yield from map(samples.first, (*SCREENED, CORRECTED))
        yield samples
        yield self.more(samples)

    def _weighed(self, samples: Samples, original: Response, change: Change) -> Evidence:
        prepared = self._changed(samples, change)
        pair = self._driven(original, samples, self.probe.run(prepared), prepared)
        return weigh(*pair, change.gain, change.is_from_wrong)

    def _driven(
        self, original: Response, samples: Samples, changed: Response, prepared: Samples
    ) -> tuple[Response, Response]:
        """Return both responses with how the first layers are driven, where that decides anything."""
        if self.driven is None:
            self.driven = self.probe.signal_to_bias(samples)
        before = self.driven
        if before is None or (original.classes is not None and is_possible(before)):
            return original, changed
        after = self.probe.signal_to_bias(prepared)
        return replace(original, signal_to_bias=before), replace(changed, signal_to_bias=after)

    def _values_issue(self, array: Array, change: Change, evidence: Proof) -> DataIssue:
        low, high = (float(value) for value in np.quantile(array, (0.001, 0.999)))
        settings = settings_of(change.wanted.name, self.image.planes(array).shape[1])
        keys = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        issue = DataIssue(
            change.fault,
            self.image.name,
            f"{self.image.name!r} has values from {low:.4g} to {high:.4g}, which look like pixels "
            f"as {change.had.text}; the model expects {change.wanted.text}: {evidence.sentence()}",
            {"lowest": low, "highest": high, **evidence.figures()},
            f"{FIXES[change.fault]}: for image files, under [images]: {keys}; for arrays, in Python: "
            f"{change.code(self.image.planes(array).shape[1], self.image.channels_last)}",
            settings,
        )
        return _stated(issue, evidence)

    def _arrangement(self, samples: Samples) -> Checked:
        few = samples.first(CORRECTED)
        doubtful = few.labels is not None and np.equal(*self._answered(few, None)).mean() < PART
        way, proof = self._proof(samples, [*ARRANGED] if doubtful else []) or (None, None)
        if way is None or not isinstance(proof, LabelEvidence) or not proof.is_far_better:
            return None, samples
        text = f"the images of {self.image.name!r} are {ARRANGED[way]}: {proof.sentence()}"
        fix = "prepare them as in training: orientation, order of the axes, sign of the values"
        issue = DataIssue("arrangement", self.image.name, text, proof.figures(), fix)
        return issue, self._changed(samples, way)

    def _channel_order(self, samples: Samples) -> Checked:
        proof = self._proof(samples, (exchanged,))
        _, evidence = proof or (None, self._clear_order(samples))
        if evidence is None:
            return None, samples
        issue = DataIssue(
            "channel_order",
            self.image.name,
            f"red and blue of {self.image.name!r} are exchanged: {evidence.sentence()}",
            evidence.figures(),
            "exchange the channels, RGB for BGR or BGR for RGB: for image files `channels = "
            '"BGR"` under [images]; for arrays, in Python: x = '
            f"x[{'..., ' if self.image.channels_last else ':, '}::-1]",
            {"channels": "BGR"},
        )
        return _stated(issue, evidence), self._changed(samples, exchanged)

    def _clear_order(self, samples: Samples) -> Evidence | None:
        if self.known is not None:
            return None
        few = samples.first(ORDERED)
        if len(few) < len(samples) and not self._order_evidence(few).may_be_clear:
            return None
        evidence = self._order_evidence(samples)
        if evidence.is_borderline:
            evidence = self._order_evidence(self.more(samples))
        return evidence if evidence.is_clear else None

    def _order_evidence(self, samples: Samples) -> Evidence:
        """Weigh samples with their first and last channel exchanged; nothing changes in grey ones."""
        swapped = self._changed(samples, exchanged)
        if np.array_equal(swapped.feeds[self.image.name], samples.feeds[self.image.name]):
            original = self.probe.run(samples)
            return weigh(original, original, None)
        original, changed = (self.probe.run(each, inside=True) for each in (samples, swapped))
        return weigh(*self._driven(original, samples, changed, swapped), None)

    def _changed(self, samples: Samples, way: Way) -> Samples:
        if way is None:
            return samples
        planes = self.image.planes(samples.feeds[self.image.name])
        alone = isinstance(way, Change) or way is exchanged  # others may depend on all samples
        return self._with(samples, self.image.packed(way(planes)), way if alone else object())

    def _with(self, samples: Samples, array: Array, way: object) -> Samples:
        feeds = {**samples.feeds, self.image.name: np.ascontiguousarray(array)}
        return replace(samples, feeds=feeds, form=(*samples.form, way))


def _stated(issue: DataIssue, evidence: Proof) -> DataIssue:
    if isinstance(evidence, LabelEvidence):
        return issue
    return _question(issue, evidence.given.classes is not None)


def _question(issue: DataIssue, has_classes: bool) -> Question:
    """Return an issue that is not proved as a question, with what decides it."""
    text = f"is {issue.subject!r} prepared as in training? Perhaps {issue.sentence}"
    decides = LABELS_DECIDE if has_classes else "the code of the training decides it"
    fix = f"{decides}; if it is so, {issue.fix}"
    return Question(issue.kind, issue.subject, text, issue.evidence, fix, issue.settings)


def _best(tried: list[tuple[Evidence, Change]]) -> tuple[Evidence, Change]:
    """Return the best change; of those as good as that, the one with the least contrast.

    Values may look like two forms: those are pixels in the one that uses most of 0 to 255.
    """
    best = max((evidence for evidence, _ in tried), key=lambda evidence: evidence.rank)
    as_good = [row for row in tried if row[0].is_as_good_as(best)]
    had = as_good[0][1].had
    return min((row for row in as_good if row[1].had == had), key=lambda row: row[1].gain)
