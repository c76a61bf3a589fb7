import dataclasses

import pytest

from trtcal.evaluate.accuracy import Accuracy
from trtcal.evaluate.equality import hold_against

SAME = Accuracy(1000, 80.0, 0.0, (-0.5, 0.5), 98.0, 30.0, 0.99)


def held(integer=SAME, literal=SAME, between=SAME):
    return hold_against(integer, literal, between)


@pytest.mark.parametrize(("drop", "differs"), [(0.2, False), (0.3, True), (-0.3, True)])
def test_top1_decides_where_it_is_known(drop, differs):
    between = dataclasses.replace(SAME, top1_drop=drop, top1_drop_interval=(drop - 0.1, drop + 0.1))
    found = held(between=between)
    assert (found.measure, found.gap, found.differs) == ("top-1", -drop, differs)
    assert found.gap_interval == pytest.approx((-drop - 0.1, -drop + 0.1))
    assert not found.may_be_chance
    assert held(between=dataclasses.replace(between, top1_drop_interval=(-1.0, 1.0))).may_be_chance


def test_without_labels_agreement_decides_and_without_classes_sqnr():
    plain = dataclasses.replace(SAME, top1=None, top1_drop=None, top1_drop_interval=None)
    found = held(plain, dataclasses.replace(plain, agreement=98.5), plain)
    assert (found.measure, found.gap, found.differs) == ("agreement", -0.5, True)
    none = dataclasses.replace(plain, agreement=None)
    found = held(none, dataclasses.replace(none, sqnr_db=31.5), none)
    assert (found.measure, found.gap, found.differs) == ("SQNR", -1.5, True)
    assert not held(none, none, none).differs
