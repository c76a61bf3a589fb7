"""Outputs that a network wants back as an input at its next step."""

import numpy as np
from onnx import helper

from tests.fixtures.networks import save
from tests.fixtures.tables import each
from trtcal.model import load_model
from trtcal.model.states import state_pairs

CASES = (
    ("state", "stateN", True),
    ("h", "hn", True),
    ("lstm_h0", "lstm_hn", True),
    ("r1i", "r1o", True),
    ("cache", "new_cache", True),
    ("past_key_values.0.key", "present.0.key", True),
    ("past_key_values.0.key", "present.0.value", False),
    ("h1", "h2", False),
    ("input", "output", False),
    ("picture", "answer", False),
)


@each("name, output, is_state", CASES)
def test_states_are_known_by_their_names(name, output, is_state, tmp_path):
    nodes = [helper.make_node("Relu", [name], [output])]
    model = load_model(save(tmp_path / "net.onnx", nodes, {}, {name: [1, 4]}, {output: [1, 4]}))
    assert state_pairs(model) == ({output: name} if is_state else {})


def test_a_state_has_the_form_of_its_input(tmp_path):
    nodes = [helper.make_node("MatMul", ["h", "w"], ["hn"])]
    weights = {"w": np.zeros((4, 5), "float32")}
    model = load_model(save(tmp_path / "net.onnx", nodes, weights, {"h": [1, 4]}, {"hn": [1, 5]}))
    assert state_pairs(model) == {}
