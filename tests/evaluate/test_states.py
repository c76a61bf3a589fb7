"""States of recurrent networks, fed back from sample to sample of a sequence."""

import numpy as np
import onnx
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.networks import rng, weight
from tests.fixtures.states import cell
from trtcal.backends.sessions import open_session
from trtcal.config import DataConfig
from trtcal.data import held_back, open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.replay import carry, replay, runner
from trtcal.model import load_model

STATES = {"next": "state"}


def by_hand(model, sequence, state=None):
    """The states before each step of a sequence, (steps, 6), and the outputs."""
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in model.proto.graph.initializer}
    state, before, made = np.zeros(6, np.float32) if state is None else state, [], []
    for x in sequence:
        before.append(state)
        state = np.tanh(x @ weights["w"] + state @ weights["r"])
        made.append(state @ weights["v"])
    return np.stack(before), np.stack(made)


@pytest.fixture
def model(tmp_path):
    return cell(tmp_path / "cell.onnx")


X = rng().standard_normal((12, 4)).astype(np.float32)


def states_of(dataset):
    return np.concatenate([feeds["state"] for feeds in dataset.batches(1)])


def carried(model, data, settings):
    """Open data and carry the states that the settings name."""
    return carry(model, open_dataset(data, model, settings=settings), settings)


def test_states_are_carried_through_a_sequence(model):
    dataset = carried(model, X, DataConfig(states=STATES))
    np.testing.assert_allclose(states_of(dataset), by_hand(model, X)[0], rtol=1e-5, atol=1e-6)


def test_each_feed_is_a_sequence_which_begins_with_its_constant(model):
    settings = DataConfig(states=STATES, constants={"state": [[0.5] * 6]})
    dataset = carried(model, [X[:5], X[5:]], settings)
    first = np.full(6, 0.5, np.float32)
    wanted = np.concatenate([by_hand(model, part, first)[0] for part in (X[:5], X[5:])])
    np.testing.assert_allclose(states_of(dataset), wanted, rtol=1e-5, atol=1e-6)


def test_a_sample_has_its_own_state_whatever_else_is_read(model):
    dataset = carried(model, X, DataConfig(states=STATES))
    whole = states_of(dataset)
    for some in held_back(dataset, 4):
        numbers = np.concatenate([np.arange(*span) for span in some.spans])
        np.testing.assert_array_equal(states_of(some), whole[numbers])


def test_a_variant_is_fed_the_states_that_it_made_itself(model, tmp_path):
    other = onnx.ModelProto()
    other.CopyFrom(model.proto)
    changed = next(one for one in other.graph.initializer if one.name == "r")
    changed.CopyFrom(onnx.numpy_helper.from_array(weight(6, 6, seed=9), "r"))
    dataset = carried(model, [X[:7], X[7:]], DataConfig(states=STATES))
    runs = [runner(open_session(one), ["y", "next"]) for one in (model.proto, other)]
    batches = list(replay(runs[0], runs[1:], dataset.batches(1)))
    parts = [by_hand(load_model(other), part)[1] for part in (X[:7], X[7:])]
    made = np.concatenate([batch.outputs[0]["y"] for batch in batches])
    np.testing.assert_allclose(made, np.concatenate(parts), rtol=1e-4, atol=1e-5)
    expected = np.concatenate([batch.expected["y"] for batch in batches])
    parts = [by_hand(model, part)[1] for part in (X[:7], X[7:])]
    np.testing.assert_allclose(expected, np.concatenate(parts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("states", "names"),
    [
        ({"next": "x0"}, ["x0"]),
        ({"other": "state"}, ["other"]),
        ({"y": "state"}, ["y", "float32[1, 2]"]),
    ],
)
def test_states_that_are_not_there_or_do_not_fit_are_refused(model, states, names):
    with fails(InputError, *names):
        carried(model, X, DataConfig(states=states))
