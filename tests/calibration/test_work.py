"""However the work is split, killed and begun again, the result is the same to the bit."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import slow_but
from trtcal.calibration import ObserveOptions, observe
from trtcal.calibration import accumulator as accumulator
from trtcal.calibration import observer as observing
from trtcal.calibration import scheduler as scheduling
from trtcal.calibration.scheduler import LocalWorker
from trtcal.data import open_dataset
from trtcal.documents import unfinished
from trtcal.errors import BackendError, InputError, Interrupted, ResourceError

COUNT = 150


@pytest.fixture
def expected(scene):
    return observe(*scene, ObserveOptions(threads=1)).digest


@pytest.mark.parametrize("batch", [1, 7, 32])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches_and_threads_do_not_matter(scene, expected, batch, threads):
    assert observe(*scene, ObserveOptions(batch=batch, threads=threads)).digest == expected


@pytest.mark.parametrize(("workers", "batch"), slow_but([(2, 1), (4, 7), (2, 32)], (2, 1)))
def test_workers_do_not_matter(scene, expected, workers, batch):
    seen = []
    made = observe(*scene, ObserveOptions(batch=batch, workers=workers, threads=1), seen.append)
    assert made.digest == expected
    assert sum(seen) == COUNT


def test_order_of_samples_does_not_matter(scene, expected, tmp_path):
    model, data, tensors = scene
    order = np.random.default_rng(0).permutation(COUNT)
    np.savez(tmp_path / "shuffled.npz", x=data.arrays["x"][:][order])
    shuffled = open_dataset(tmp_path / "shuffled.npz", model)
    made = observe(model, shuffled, tensors, ObserveOptions(threads=1))
    straight = observe(*scene, ObserveOptions(threads=1))
    assert made.dataset != straight.dataset
    for name, histogram in made.histograms.items():
        assert histogram == straight.histograms[name]


class BrokenError(Exception):
    pass


def die(task):
    os._exit(1)


def breaking_after(number):
    """Return a progress that fails after so many samples, as a killed process would stop."""
    seen = []

    def progress(done):
        seen.append(done)
        if sum(seen) >= number:
            raise BrokenError

    return progress


def test_a_checkpoint_holds_the_values_of_its_samples(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(accumulator, "SPACING_S", 0.0)
    monkeypatch.setattr(accumulator, "SHARE", float("inf"))
    model, data, tensors = scene
    each, inner, seen = data.arrays["x"][:1].size, accumulator.Checkpoint.write, []

    def write(self, counted, passes):
        samples = sum(stop - start for start, stop in counted.done.get(0, []))
        assert counted.histograms["x"].count == each * samples
        seen.append(samples)
        inner(self, counted, passes)

    monkeypatch.setattr(accumulator.Checkpoint, "write", write)
    options = ObserveOptions(batch=1, threads=3, checkpoint=tmp_path / "kept")
    observe(model, data, tensors, options)
    assert len(set(seen)) > 3


class Torn:
    """A dataset that cannot be read to its end."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def batches(self, size, start=0, stop=None):
        if start > 60:
            raise InputError("the rest is gone")
        yield from self.inner.batches(size, start, stop)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_one_lane_ends_all(scene, threads):
    model, data, tensors = scene
    with fails(InputError, "the rest is gone"):
        observe(model, Torn(data), tensors, ObserveOptions(batch=2, threads=threads))


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (2, 1)])
def test_broken_off_work_goes_on_from_its_checkpoint(
    scene, expected, tmp_path, monkeypatch, workers, threads
):
    monkeypatch.setattr(accumulator, "SPACING_S", 0.0)
    monkeypatch.setattr(accumulator, "SHARE", float("inf"))
    where, said, seen = tmp_path / "kept", [], []
    options = ObserveOptions(batch=2, threads=threads, workers=workers, checkpoint=where)
    with pytest.raises(BrokenError):
        observe(*scene, options, breaking_after(40))
    assert where.exists()
    made = observe(*scene, options, seen.append, say=said.append)
    assert made.digest == expected
    assert said == [f"resuming from {where}"]
    assert seen[0] >= 30
    assert sum(seen) == COUNT
    assert not where.exists()


def test_a_checkpoint_of_other_work_is_not_used(scene, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(accumulator, "SPACING_S", 0.0)
    model, data, tensors = scene
    where, said = tmp_path / "kept", []
    options = ObserveOptions(batch=2, threads=1, checkpoint=where)
    with pytest.raises(BrokenError):
        observe(model, data, tensors[:1], options, breaking_after(40))
    options = ObserveOptions(threads=1, checkpoint=where)
    assert observe(*scene, options, say=said.append).digest == expected
    assert len(said) == 1
    shows(said[0], str(where), "different job")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nothing", None])
def test_a_damaged_checkpoint_is_said_and_not_used(scene, expected, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(accumulator, "SPACING_S", 0.0)
    where, said = tmp_path / "kept", []
    with pytest.raises(BrokenError):
        observe(*scene, ObserveOptions(batch=2, threads=1, checkpoint=where), breaking_after(40))
    whole = where.read_bytes()
    where.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    options = ObserveOptions(threads=1, checkpoint=where)
    assert observe(*scene, options, say=said.append).digest == expected
    shows(said[0], str(where))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_finishes_the_batch_and_says_how_to_go_on(scene, expected, tmp_path, workers):
    where, before = tmp_path / "kept", signal.getsignal(signal.SIGINT)

    def interrupt(done):
        signal.raise_signal(signal.SIGINT)

    options = ObserveOptions(batch=2, threads=1, workers=workers, checkpoint=where)
    with fails(Interrupted, "kept", hint="same command") as caught:
        observe(*scene, options, interrupt)
    assert caught.value.exit_status == 130
    assert observe(*scene, ObserveOptions(batch=2, threads=1, checkpoint=where)).digest == expected
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_without_a_checkpoint_says_that_nothing_is_kept(scene):
    options = ObserveOptions(batch=2, threads=1)
    with fails(Interrupted, "not saved"):
        observe(*scene, options, lambda done: signal.raise_signal(signal.SIGTERM))


def test_a_killed_worker_costs_nothing_but_time(scene, expected, monkeypatch):
    killed = []
    submit = LocalWorker.submit

    def submit_and_kill(self, task):
        future = submit(self, task)
        if not killed and len(task[1]) > 0:
            killed.extend(self.pool._processes)
            for process in killed:
                os.kill(process, signal.SIGKILL)
        return future

    monkeypatch.setattr(LocalWorker, "submit", submit_and_kill)
    assert observe(*scene, ObserveOptions(batch=1, workers=2, threads=1)).digest == expected
    assert killed


def test_work_that_kills_every_worker_is_given_up(scene, monkeypatch):
    monkeypatch.setattr(scheduling, "_work", die)  # what a worker is asked to do
    with fails(BackendError, "3 times", hint="--workers"):
        observe(*scene, ObserveOptions(workers=2, threads=1))


def test_an_error_in_a_worker_is_the_users(scene, tmp_path):
    model, data, tensors = scene
    (tmp_path / "data.npz").unlink()
    with pytest.raises(InputError):
        observe(model, data, tensors, ObserveOptions(workers=2, threads=1))


SCRIPT = """
import os, signal, sys
from trtcal.cli.main import run_command
from trtcal.calibration import accumulator
accumulator.SPACING_S, accumulator.SHARE = 0.0, float("inf")
write, written = accumulator.Checkpoint.write, []
def write_and_die(self, *arguments):
    write(self, *arguments)
    written.append(self)
    if len(written) == int(os.environ.get("WRITTEN", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
accumulator.Checkpoint.write = write_and_die
sys.exit(run_command(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("workers", "written"), slow_but([("1", "1"), ("1", "5"), ("2", "1")], ("1", "5"))
)
def test_after_sigkill_the_same_command_resumes(tmp_path, workers, written):
    net = conv_net(tmp_path / "net.onnx")
    data = samples(tmp_path / "data.npz", count=200)
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    result, straight = tmp_path / "calibration.json", tmp_path / "straight.json"
    words = ["calibrate", net, "--data", data, "--method", "percentile", "--batch", "1"]
    command = [sys.executable, script, *words, "--workers", workers, "-o", result]
    killed = subprocess.run(command, env={**os.environ, "WRITTEN": written}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert unfinished(result).exists()
    assert not result.exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "resuming from" in again.stderr
    subprocess.run([sys.executable, script, *words, "-o", straight], check=True)
    assert result.read_bytes() == straight.read_bytes()
    left = {path.name for path in tmp_path.iterdir()}
    checks = {f"{path.stem}.data-check.json" for path in (result, straight)}
    assert left == {"net.onnx", "data.npz", "main.py", result.name, straight.name} | checks


def test_outside_the_main_thread_signals_are_left_alone(scene, expected):
    made = []
    options = ObserveOptions(threads=1)
    thread = threading.Thread(target=lambda: made.append(observe(*scene, options)))
    thread.start()
    thread.join()
    assert made[0].digest == expected


def test_several_passes_give_the_same(scene, expected, monkeypatch):
    monkeypatch.setattr(observing, "passes_within", lambda *others: [[name] for name in others[2]])
    seen = []
    made = observe(*scene, ObserveOptions(batch=7, threads=1, max_memory=1), seen.append)
    assert made.digest == expected
    assert sum(seen) == COUNT


def test_a_ceiling_that_is_too_low_is_refused(scene):
    with fails(ResourceError, "1 MB", hint="--max-memory"):
        observe(*scene, ObserveOptions(max_memory=10**6))
