"""Cut connections and killed processes: nothing is lost, nothing runs twice, nothing is left.

`python -m tests.fixtures.cuts --faults 200` does more of them.
"""

import sys

import pytest

from tests.fixtures.commands import succeed
from tests.fixtures.cuts import KINDS, Trial, faults, network, patch_pauses, undisturbed
from tests.fixtures.slow import SLOW
from tests.fixtures.sshd import Cut
from trtcal.evidence.manifest import read_build


@pytest.fixture(scope="module")
def usual(server, tmp_path_factory):
    """What an undisturbed use of the device answers, and the bytes of its connection."""
    with pytest.MonkeyPatch.context() as patch:
        server.enter(patch)
        return undisturbed(server, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def trial(device, usual, tmp_path, monkeypatch):
    """Do a trial of a seed; return how many faults there were."""
    patch_pauses(monkeypatch)

    def disturb(seed, kinds, count):
        place = tmp_path / str(seed)
        place.mkdir()
        disturbed = Trial(device, place, usual[1], seed)
        assert disturbed.run(usual[0], kinds, count) == [], f"seed {seed}"
        return faults(disturbed.counts)

    return disturb


def test_cut_connections_resume(trial):
    assert trial(4, ("end", "reset", "half"), 3) > 0


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_loses_nothing(trial, kind):
    assert any(trial(seed, [kind], 4) for seed in range(9))  # a job may end before its fault


@SLOW
def test_commands_by_ssh_resume_and_leave_nothing(device, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(network())
    options = ("--python", sys.executable, "--folder", tmp_path / "device")
    succeed(capsys, "device", "add", "cut", device.host, *options)
    succeed(capsys, "build", "net.onnx", "--target", "@cut", "-o", "usual")
    succeed(capsys, "device", "clean", "cut")
    before = device.cut
    device.kill_clients()
    device.cut_next(*(Cut(number) for number in (2_000, 30_000, 60_000)))
    succeed(capsys, "build", "net.onnx", "--target", "@cut", "-o", "cut")
    assert device.cut > before
    assert read_build(tmp_path / "cut").digest == read_build(tmp_path / "usual").digest
    succeed(capsys, "device", "clean", "cut")
    succeed(capsys, "device", "remove", "cut")
    assert not (tmp_path / "device").exists()
