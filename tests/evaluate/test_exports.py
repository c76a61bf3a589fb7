"""Outputs of public exports: the right task, metric and limit, and a sentence that says why."""

import pytest

from tests.fixtures.outputs import EXPORTS, SIZE
from tests.fixtures.tables import each
from trtcal.config import TASKS
from trtcal.evaluate.clues import CLUES, NAMES, SEEN, WIDTHS
from trtcal.evaluate.tasks import KINDS, default_limits
from trtcal.metrics import RAW, UNJUDGED

LIMITS = {
    "classes": ("agreement >= -1.0",),
    "labels": ("agreement >= -1.0",),
    "boxes": ("agreement >= -1.0",),
    "pixels": ("agreement >= -1.0",),
    "tokens": ("agreement >= -1.0",),
    "language": ("agreement >= -1.0",),
    "vectors": ("cosine >= 0.99",),
    "signal": ("sqnr_db >= 30",),
    "image": ("psnr_db >= 40",),
    "values": (),
    RAW: (),
}
"""Kind -> its limit without labels; of the others SQNR >= 30 dB is suggested."""


@pytest.mark.parametrize("size", [SIZE, 1], ids=["six samples", "one sample"])
@each("export", EXPORTS)
def test_the_outputs_of_an_export_have_the_right_kind_and_limit(export, size):
    task = export.task(size)
    judged = {name: kind for name, kind in export.kinds.items() if kind != UNJUDGED}
    assert task.kinds == judged, (export.what, task.guesses)
    limits = dict.fromkeys(limit for kind in judged.values() for limit in LIMITS[kind])
    assert {*default_limits(task.kinds)} == {*limits}
    read = {name for output in task.outputs for name in output.names}
    said = {guess.partition(" is ")[0]: guess for guess in task.guesses}
    assert {*said} == read | ({*export.kinds} - {*judged})
    for name in {*export.kinds} - {*judged}:
        assert "is not judged: " in said[name]


def test_forty_and_more_outputs_have_every_kind():
    kinds = [kind for export in EXPORTS for kind in export.kinds.values()]
    assert len(kinds) >= 40
    assert {*kinds} == {*LIMITS, UNJUDGED}


def test_every_clue_is_of_a_known_kind_and_of_known_words():
    assert (*KINDS,) == TASKS
    assert {clue.kind for clue in CLUES} == {*KINDS.values(), RAW} - {"boxes"}
    words = {word for clue in CLUES for part in clue.when.split() for word in part.split("|")}
    assert {word.removeprefix("!") for word in words} == {*SEEN}
    assert {clue.width for clue in CLUES} | {"bins"} == {*WIDTHS, ""}
    assert {clue.named for clue in CLUES} | {"caches", "states"} == {*NAMES, ""}
