"""A detector with boxes of hundreds of pixels and scores below one in the same output."""

import numpy as np
import pytest
from onnx import helper

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, save
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.judging import Judge, decibels, divide, find_parts, weigh
from trtcal.model import load_model


def detector(path, scores=1.0, boxes=200.0, flat=False):
    """Two levels of boxes and scores; `scores` and `boxes` are what they are multiplied with."""
    draw = rng(4)
    weights = {
        "w_box": draw.standard_normal((4, 3, 1, 1)).astype(np.float32),
        "w_score": 3.0 * draw.standard_normal((2, 3, 1, 1)).astype(np.float32),
        "pixels": np.float32(boxes),
        "share": np.float32(scores),
        "shape": np.array([0, 6, -1]),
        "rows": np.array([-1, 6]),
    }
    nodes, levels = [], []
    for level, read in enumerate(("x", "small")):
        names = {one: f"{one}{level}" for one in ("box", "boxes", "score", "hit", "share", "all")}
        nodes += [
            helper.make_node("Conv", [read, "w_box"], [names["box"]]),
            helper.make_node("Mul", [names["box"], "pixels"], [names["boxes"]]),
            helper.make_node("Conv", [read, "w_score"], [names["score"]]),
            helper.make_node("Mul", [names["score"], "share"], [names["share"]]),
            helper.make_node("Sigmoid", [names["share"]], [names["hit"]]),
            helper.make_node("Concat", [names["boxes"], names["hit"]], [names["all"]], axis=1),
            helper.make_node("Reshape", [names["all"], "shape"], [f"level{level}"]),
        ]
        levels.append(f"level{level}")
    nodes.insert(
        0, helper.make_node("AveragePool", ["x"], ["small"], kernel_shape=[2, 2], strides=[2, 2])
    )
    nodes += [
        helper.make_node("Concat", levels, ["found"], axis=2),
        helper.make_node("Transpose", ["found"], ["y"], perm=[0, 2, 1]),
    ]
    outputs = {"y": ["n", 80, 6]}
    if flat:
        nodes[-1] = helper.make_node("Transpose", ["found"], ["t"], perm=[0, 2, 1])
        nodes.append(helper.make_node("Reshape", ["t", "rows"], ["y"]))
        outputs = {"y": ["m", 6]}
    read = {name for node in nodes for name in node.input}
    used = {name: one for name, one in weights.items() if name in read}
    return save(path, nodes, used, {"x": ["n", 3, 8, 8]}, outputs)


def division(path):
    """A sum over itself: not a number where all inputs are 0."""
    nodes = as_nodes("s = ReduceSum<keepdims=1>(x, axes)  y = Div(x, s)")
    return save(
        path, nodes, {"axes": np.array([1, 2, 3])}, {"x": ["n", 3, 8, 8]}, {"y": ["n", 3, 8, 8]}
    )


def test_boxes_and_scores_are_parts(tmp_path):
    parts = find_parts(load_model(detector(tmp_path / "net.onnx")))
    assert parts == [("boxes0", "boxes1"), ("hit0", "hit1")]


def test_an_output_that_nothing_was_joined_in_is_its_own_part(subject):
    network = subject(
        lambda path: save(
            path,
            as_nodes("c = Concat<axis=1>(x, x)  y = Relu(c)"),
            {},
            {"x": ["n", 3, 8, 8]},
            {"y": ["n", 6, 8, 8], "c": ["n", 6, 8, 8]},
        )
    )
    assert find_parts(network.prepared) == [("y",), ("c",)]


def test_what_becomes_of_the_scores_is_seen(tmp_path, subject):
    """Scores that are all wrong are less noise in the whole output than boxes that are 1 % off."""
    network = subject(detector)
    made = [
        load_model(detector(tmp_path / f"{name}.onnx", *factors)).proto
        for name, factors in (("wrong", (-1.0, 200.01)), ("off", (0.99, 202.0)))
    ]
    with Judge(network.prepared, network.dataset) as judge:
        wrong, off = map(judge.measure, made)
    assert wrong.loss.noise < 0.1 * off.loss.noise
    assert off.is_better(wrong)


def test_labels_need_a_row_a_sample(subject):
    network = subject(detector, 1.0, 200.0, True)
    with Judge(network.prepared, network.dataset) as judge, fails(InputError, "16"):
        judge.measure(network.prepared.proto)


def test_samples_without_signal_hardly_count():
    """Noise of 1 % where something is, and of 100 % of next to nothing elsewhere."""
    signal = np.array([[1.0, 1e-6, 1e-6, 1e-6]])
    noise = np.array([[0.01, 1e-6, 1e-6, 1e-6]])
    assert decibels(np.stack([noise, signal])).mean() < -15
    assert (10 * np.log10(noise / signal)).mean() > -6


def test_the_worst_part_decides():
    powers = np.ones((2, 2, 5))
    powers[0, 0], powers[0, 1] = 0.01, 0.0001
    np.testing.assert_allclose(decibels(powers), -22.97, atol=0.01)
    np.testing.assert_allclose(decibels(powers, np.array([0.25, 1.0])), -26.82, atol=0.01)


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_offsets_in_one_tensor_are_pieces(axis):
    draw = rng(3)
    boxes, scores = draw.uniform(0, 300, (5, 4, 7)), draw.uniform(0, 1, (5, 2, 7))
    values = np.moveaxis(np.concatenate([boxes, scores], axis=1), 1, axis)
    first, second = divide("y", values)
    np.testing.assert_array_equal(np.moveaxis(first.of({"y": values}), axis, 1), scores)
    np.testing.assert_array_equal(np.moveaxis(second.of({"y": values}), axis, 1), boxes)
    assert len(divide("y", boxes)) == len(divide("y", scores)) == 1


def test_boxes_weigh_less_than_the_scores_of_their_output(tmp_path):
    model = load_model(detector(tmp_path / "net.onnx"))
    draw = rng(5)
    values = {n: draw.uniform(0, 1, (6, 4)) for n in ("hit0", "hit1")}
    values |= {n: draw.uniform(0, 200, (6, 4)) for n in ("boxes0", "boxes1")}
    weights = [weight for weight, _ in weigh(find_parts(model), model, values)]
    assert weights == [0.25, 1.0]


def test_samples_without_a_finite_reference_do_not_count(tmp_path, subject):
    """The float model divides by zero on a sample of zeros."""
    network = subject(division)
    data = {"x": next(network.dataset.batches(20)).get("x").copy()}
    data["x"][3] = 0.0
    dataset = open_dataset(data, network.prepared)
    with Judge(network.prepared, dataset) as judge:
        verdict = judge.measure(network.prepared.proto)
    assert (len(verdict.values), verdict.loss.samples) == (19, 19)
    assert np.isfinite(verdict.value)


def test_outputs_that_are_not_finite_lose_to_all_others(tmp_path, subject):
    network = subject(detector)
    broken = load_model(detector(tmp_path / "broken.onnx", boxes=np.inf))
    with Judge(network.prepared, network.dataset) as judge:
        usual, lost = map(judge.measure, (network.prepared.proto, broken.proto))
    assert usual.is_better(lost)
    assert not lost.is_better(usual)
    with Judge(broken, network.dataset) as judge, fails(InputError, "infinite"):
        judge.measure(broken.proto)
