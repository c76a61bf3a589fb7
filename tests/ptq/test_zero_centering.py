"""Zero-centering gives a bit more to what a Relu makes, and changes nothing else."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fixtures.fails import fails
from tests.fixtures.zoo import ZOO
from tests.ptq.conftest import applied, assert_the_same
from tests.ptq.nets import idle_net, offset_net, separable_net
from trtcal.calibration import calibrate, observe
from trtcal.errors import InputError
from trtcal.model.model import Overrides
from trtcal.ptq.artifact import Optimizations, read_optimizations, write_optimizations
from trtcal.ptq.changes import with_bounds
from trtcal.ptq.zero_centering import zero_center
from trtcal.quantization import find_layers, quantize, tensors_to_observe

CENTRED = ("bottleneck", "inverted_residual", "unpadded")


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_zero_centered_network_computes_the_same(from_zoo, name):
    model, dataset, feeds = from_zoo(name)
    observation = observe(model, dataset, tensors_to_observe(find_layers(model)))
    found = zero_center(model, calibrate(observation, "minmax"))
    assert found or name not in CENTRED
    if found is not None:
        assert_the_same(model, applied(model, found[0]), feeds)


def test_the_step_gets_half_as_large(subject):
    net = subject(idle_net)
    before = net.calibrated()
    found = zero_center(net.prepared, before)
    assert set(found[0].bounds) == {"second"}  # the depthwise layer pads what it reads
    assert found[1].ranges["r1"].amax == pytest.approx(before.ranges["r1"].amax / 2)
    assert "shifted by" in found[1].ranges["r1"].note
    assert {"c1", "r1"} == found[0].moved
    least, largest = found[0].bounds["second"]
    assert largest - least == pytest.approx(6.0)


def test_int8_loses_less(subject):
    net = subject(offset_net)
    found = zero_center(net.prepared, net.calibrated())
    assert net.decibels(applied(net.prepared, found[0]), found[1]) < net.decibels() - 3.0
    quantized = quantize(applied(net.prepared, found[0]), found[1])
    assert [node.op_type for node in quantized.proto.graph.node].count("Clip") == 1


def test_what_is_read_otherwise_stays(tmp_path, subject):
    assert zero_center(subject(separable_net).prepared, subject(separable_net).calibrated()) is None

    def write(path, last):
        model = onnx.load(offset_net(path))
        if last == "z":
            model.graph.node.append(helper.make_node("Sigmoid", ["r0"], ["z"], "other"))
        model.graph.output.append(helper.make_tensor_value_info(last, 1, ["n", 8, 8, 8]))
        onnx.save(model, path)
        return path

    for last in ("z", "r0"):
        net = subject(write, last)
        assert zero_center(net.prepared, net.calibrated()) is None


def test_bounds_lie_in_the_file(tmp_path, subject):
    net = subject(offset_net)
    moved, ranges = zero_center(net.prepared, net.calibrated())
    overrides = Overrides(moved=moved.moved)
    optimizations = Optimizations(net.prepared.fingerprint, moved, overrides, {})
    write_optimizations(tmp_path / "optimizations.npz", optimizations)
    read = read_optimizations(tmp_path / "optimizations.npz")
    assert read.changes.bounds == moved.bounds
    assert read.changes.bounds["relu"][1] == np.inf
    assert read.apply(net.prepared).proto == optimizations.apply(net.prepared).proto
    other = replace(optimizations, changes=replace(moved, bounds={"relu": (-1.0, 1.0)}))
    assert other.digest != optimizations.digest
    assert ranges.ranges["r0"].amax < net.calibrated().ranges["r0"].amax


@pytest.mark.parametrize("name", ["second", "nobody"])
def test_bounds_of_something_else_are_refused(subject, name):
    with fails(InputError, name):
        with_bounds(subject(offset_net).prepared.proto, {name: (-1.0, 1.0)})
