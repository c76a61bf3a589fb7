"""What crashes natively ends a fork, and is an error here."""

import itertools
import os
import signal
from functools import partial

import numpy as np
import onnx

from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.recurrent import ROWS, forget_trials, fusing, save_pair
from tests.fixtures.tables import each
from trtcal.backends import sessions, trial
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.trial import crash_of, parts_of, try_together
from trtcal.errors import NativeCrash

NUMBERS = itertools.count(1 << 40)
FEEDS = {"x": np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)}


def kill(number):
    return lambda: os.kill(os.getpid(), number)


def key(*parts):
    return frozenset(map(hash, (*parts, next(NUMBERS))))


def fail():
    raise ValueError


@each("number", sorted(trial.CRASHES))
def test_the_signal_of_a_crash_is_known_and_this_process_goes_on(number):
    assert crash_of(key(), kill(number)) == number


@each("work", [fail, kill(signal.SIGTERM), kill(signal.SIGINT), kill(signal.SIGALRM), lambda: None])
def test_an_exception_or_an_end_from_outside_is_no_crash(work):
    assert crash_of(key(), work) == 0


def test_what_was_tried_is_not_tried_again(tmp_path):
    file, crash, fine = tmp_path / "tries", key("a"), key("b")

    def note(number=0):
        with file.open("a") as out:
            out.write("x")
        kill(number)()

    for parts, number in ((crash, signal.SIGSEGV), (fine, 0)):
        assert [crash_of(parts, lambda number=number: note(number)) for _ in range(3)] == [
            number
        ] * 3
    assert crash_of(frozenset(list(fine)[:1]), kill(signal.SIGSEGV)) == 0  # a part of what survived
    assert file.read_text() == "xx"


def test_a_trial_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(trial, "LIMIT_S", 0.05)
    assert crash_of(key(), signal.pause) == 0


def test_what_survives_a_trial_of_many_is_not_tried_again_and_a_crash_leaves_all_to_their_own():
    keys, crash = [key(number) for number in range(9)], key("crash")
    tries = [partial(crash_of, parts, fail if i else list) for i, parts in enumerate(keys)]
    try_together([*tries, fail])
    assert [crash_of(parts, kill(signal.SIGSEGV)) for parts in keys] == [0] * 9
    other = key("other")
    try_together([partial(crash_of, other, list), partial(crash_of, crash, kill(signal.SIGSEGV))])
    assert [crash_of(parts, kill(signal.SIGSEGV)) for parts in (other, crash)] == [
        signal.SIGSEGV
    ] * 2


def test_a_trial_of_many_ends_when_nothing_new_comes(monkeypatch):
    monkeypatch.setattr(trial, "WORKS_WITHOUT_NEW_PARTS", 3)
    known, late = key("known"), key("late")
    same = [partial(crash_of, known, list)] * 4
    try_together([*same, partial(crash_of, late, list)])
    assert [crash_of(parts, kill(signal.SIGBUS)) for parts in (known, late)] == [0, signal.SIGBUS]


def test_weights_and_names_are_not_parts_of_a_graph_but_attributes_and_shapes_are(tmp_path):
    first = onnx.load(conv_net(tmp_path / "net.onnx")).graph
    parts = parts_of(first)
    first.initializer[0].raw_data = bytes(len(first.initializer[0].raw_data))
    first.node[0].name = "other"
    assert parts_of(first) == parts
    assert not parts_of(first, True) & parts
    known, plain = parts_of(first, True), len(first.output)
    first.output.add(name=first.node[0].output[0])  # it may end a fusion, and there is none then
    assert parts_of(first) - parts
    assert parts_of(first, True) == known
    del first.output[plain:]
    first.node[2].attribute[0].ints[0] = 0
    assert 0 < len(parts_of(first) - parts) < len(parts)
    first.initializer[0].dims[0] = 9
    assert len(parts_of(first) - parts) > 2


@each("op", ROWS)
def test_recurrent_layers_in_float16_run_as_in_float32(op, tmp_path):
    full, half = (onnx.load(path) for path in save_pair(tmp_path, op))
    expected, values = (run_session(open_session(proto), ["y"], FEEDS)[0] for proto in (full, half))
    assert np.allclose(values, expected, atol=0.02)


def test_the_crash_of_the_fusion_is_an_error_that_names_model_signal_and_operators(
    tmp_path, monkeypatch
):
    fusing(monkeypatch)
    for op in ROWS:
        half = onnx.load(save_pair(tmp_path, op)[1])
        with fails(NativeCrash, "SIGSEGV", "float16", op, "mine", hint="float32") as caught:
            open_session(half, name="mine")
        assert (caught.value.signal, caught.value.exit_status) == ("SIGSEGV", 3)
        assert {op, "MatMul", "Squeeze"} <= {*caught.value.ops}


def test_a_crash_while_a_sample_runs_is_found_before_the_model_is_opened_here(
    tmp_path, monkeypatch
):
    forget_trials(monkeypatch)
    monkeypatch.setattr(sessions.Session, "run", lambda *_: kill(signal.SIGABRT)())
    with fails(NativeCrash, "SIGABRT"):
        open_session(onnx.load(conv_net(tmp_path / "net.onnx")))
