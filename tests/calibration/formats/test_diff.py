import json

import pytest
from hypothesis import given

from tests.calibration.formats.tables import TABLES, calibration
from tests.fixtures.fails import fails
from trtcal.documents import digest_document
from trtcal.errors import InputError
from trtcal.ranges import diff


def test_the_largest_movement_comes_first_up_or_down():
    a = calibration({"up": 1.0, "down": 4.0, "still": 3.0, "little": 1.0, "gone": 1.0})
    b = calibration({"up": 2.0, "down": 1.0, "still": 3.0, "little": 1.1}, method="entropy")
    result = diff(a, b)
    assert [item.tensor for item in result.moved] == ["down", "up", "little"]
    down = result.moved[0]
    assert (down.before, down.after, down.ratio, down.percent) == (4.0, 1.0, 0.25, -75.0)
    assert down.db == pytest.approx(-12.0412, abs=1e-4)
    assert result.same == 1
    assert (result.before.method, result.after.method) == ("minmax", "entropy")


def test_what_stands_on_one_side_only_says_why():
    a, b = calibration({"x": 1.0, "y": 1.0}), calibration({"z": 1.0}, unranged={"y": "no values"})
    result = diff(a, b)
    assert result.only_before == {"x": "the other file has no entry for it", "y": "no values"}
    assert result.only_after == {"z": "the other file has no entry for it"}
    assert result.moved == ()


def test_less_than_a_float32_scale_shows_is_no_movement():
    assert diff(calibration({"x": 1.0}), calibration({"x": 1.0 + 1e-12})).moved == ()


def test_an_empty_side_is_refused():
    with fails(InputError, hint="calibrate"):
        diff(calibration({"x": 1.0}), calibration({}))


@given(TABLES, TABLES)
def test_a_difference_is_a_document_and_turns_round(first, second):
    a, b = calibration(first), calibration(second)
    assert diff(a, a).moved == ()
    forth, back = diff(a, b), diff(b, a)
    assert forth.only_before == back.only_after
    assert {m.tensor for m in forth.moved} == {m.tensor for m in back.moved}
    assert forth.same + len(forth.moved) == len(set(first) & set(second))
    sizes = [abs(m.db) for m in forth.moved]
    assert sizes == sorted(sizes, reverse=True)
    document = forth.to_document()
    assert document["digest"] == digest_document(json.loads(json.dumps(document)))
