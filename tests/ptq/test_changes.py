"""What optimizations changed in a layer, in figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.networks import conv_net
from tests.fixtures.quantized import calibrated
from trtcal.model.graph import constant, import_graph
from trtcal.model.model import Grid, Overrides
from trtcal.ptq.artifact import layer_changes
from trtcal.quantization.weights import quantize_weight


@pytest.fixture
def scene(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    nodes = {node.name: node for node in import_graph(model.proto).nodes}
    return (
        model,
        calibration,
        {name: list(map(constant, one.inputs)) for name, one in nodes.items()},
    )


def nearest(weight):
    scale = quantize_weight(weight, 0)[1]
    shaped = scale.reshape(-1, *[1] * (weight.ndim - 1))
    return np.clip(np.rint(weight / shaped), -127, 127).astype(np.int8), scale


def test_integers_are_held_against_the_nearest_on_their_own_grid(scene):
    model, calibration, constants = scene
    values, scale = nearest(constants["second"][1])
    values.reshape(-1)[[3, 5, 70]] += np.int8(1) - 2 * (values.reshape(-1)[[3, 5, 70]] == 127)
    overrides = Overrides(weights={"second": Grid(values, scale)})
    assert layer_changes(replace(model, overrides=overrides), calibration) == [
        {"name": "second", "weights": 8 * 8 * 9, "rounded": 3, "bias": None}
    ]


def test_a_bias_is_reported_in_steps_of_the_tensor_that_is_read_next(scene):
    model, calibration, constants = scene
    biases = {name: constants[name][2].copy() for name in ("gemm", "first")}
    step = calibration.ranges["b"].amax / 127  # behind the Relu
    biases["first"][2] -= 2 * step
    biases["first"][4] += step
    biases["gemm"] += 1
    found = layer_changes(replace(model, overrides=Overrides(biases=biases)), calibration)
    assert [one["name"] for one in found] == ["first", "gemm"]
    assert found[0] == {"name": "first", "weights": None, "rounded": None, "bias": found[0]["bias"]}
    assert found[0]["bias"] == pytest.approx(2, abs=1e-4)
    assert found[1]["bias"] is None  # no range stands behind it


def test_a_model_without_optimizations_has_no_changes(scene):
    model, calibration, _ = scene
    assert layer_changes(model, calibration) == []
