"""A few inputs of every format, and those that once went wrong: `make fuzz` has many."""

import pytest

from tests.fixtures.shared import made_once
from tests.fixtures.slow import SLOW
from tests.fuzz.formats import FORMATS, KEPT, WHOLE, cases_of
from tests.fuzz.pool import run_format
from tests.fuzz.seeds import write_seeds

FEW = 6


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """The seeds of all formats, written once for all workers of a run."""

    def write(folder):
        (folder / "seeds").mkdir()
        write_seeds(folder / "seeds")

    return made_once(tmp_path_factory, "fuzz", write) / "seeds"


@SLOW
def test_mutated_inputs_end_with_a_status_and_one_error(seeds):
    outcomes = run_format(",".join(FORMATS), 0, FEW, seeds)
    assert outcomes.inputs == FEW * len(FORMATS)
    assert not outcomes.problems


def test_what_once_went_wrong_no_longer_does(seeds):
    count = len(cases_of(KEPT, seeds))
    outcomes = run_format(KEPT, 0, count, seeds)
    assert outcomes.inputs == count > 0
    assert not outcomes.problems


@SLOW
def test_seeds_reach_the_readers(seeds):
    """A format of which every input is refused at the first glance tests nothing."""
    count = len(cases_of(WHOLE, seeds))
    outcomes = run_format(WHOLE, 0, count, seeds)
    assert not outcomes.problems
    assert outcomes.statuses[0] + outcomes.statuses[1] >= 0.85 * count
