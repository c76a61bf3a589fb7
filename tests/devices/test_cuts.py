"""Cut connections and killed processes: nothing is lost, nothing runs twice, nothing is left.

`python -m tests.fixtures.cuts --faults 200` does more of them.
"""

import pytest

from tests.fixtures.cuts import KINDS, Trial, faults, patch_pauses, undisturbed
from tests.fixtures.slow import SLOW


@pytest.fixture(scope="module")
def usual(server, tmp_path_factory):
    """What an undisturbed use of the device answers, and the bytes of its connection."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        return undisturbed(server, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def trial(device, usual, tmp_path, monkeypatch):
    """Do a trial of a seed; return how many faults there were."""
    patch_pauses(monkeypatch.setattr)

    def disturb(seed, kinds, count):
        place = tmp_path / str(seed)
        place.mkdir()
        one = Trial(device, place, usual[1], seed)
        assert one.run(usual[0], kinds, count) == [], f"seed {seed}"
        return faults(one.counts)

    return disturb


def test_cut_connections_resume(trial):
    assert trial(4, ("end", "reset", "half"), 3) > 0


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_loses_nothing(trial, kind):
    assert trial(0, [kind], 4) > 0
