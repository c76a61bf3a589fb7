"""Falls of accuracy: in the run that has them, with FP32 first, until they come back."""

import pytest

from tests.runs.runs import report
from trtcal.runs.history import History
from trtcal.wings.fleet.series import falls_of, read_series


def falls(tmp_path, tops):
    """Return the falls over runs of which each has the top-1 of FP32 and of INT8."""
    history = History(tmp_path / "h.sqlite")
    for number, (reference, int8) in enumerate(tops):
        made = report(number, top1=int8)
        made["comparison"]["rows"][0]["accuracy"]["top1"] = reference
        history.record(made, "digits")
    entries = history.entries(with_figures=False)
    return falls_of(entries, read_series(history, entries))


def test_a_fall_of_fp32_is_the_cause_of_its_variants(tmp_path):
    (fall,) = falls(tmp_path, [(98.6, 98.4)] * 6 + [(26.6, 26.4)])
    assert fall.sentence == "FP32 fell from 98.6 % to 26.6 % in run 7 (top-1)"
    assert fall.stands


def test_a_fall_of_a_variant_names_it(tmp_path):
    (fall,) = falls(tmp_path, [(98.6, 98.4), (98.6, 90.0)])
    assert fall.sentence == "int8 fell from 98.4 % to 90 % in run 2 (top-1)"


@pytest.mark.parametrize(("last", "stands"), [(98.0, False), (91.0, True), (80.0, True)])
def test_a_fall_stands_until_it_comes_back(tmp_path, last, stands):
    tops = [(98.6, 98.4)] * 3 + [(98.6, 90.0), (98.6, last)]
    assert {fall.stands for fall in falls(tmp_path, tops)} == {stands}


def test_what_scatters_by_as_much_is_no_fall(tmp_path):
    tops = [(98.6, 95.0 + number % 3) for number in range(20)]
    assert [fall.run for fall in falls(tmp_path, tops) if fall.run > 5] == []
