"""The learning curve: which samples it takes, what it computes of losses, and its answer."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, rng, transposed_net
from tests.fixtures.stored import part
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.learning_curve import _excess, curve_of, learning_curve
from trtcal.evaluate.metrics import total
from trtcal.evaluate.replay import silent
from trtcal.evaluate.search.plan_loss import Reference
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe

SCRIPT = """
from pathlib import Path
import numpy as np
def load_data():
    with Path(__file__).with_suffix(".log").open("a") as log:
        log.write("run ")
    for sample in np.load(Path(__file__).with_suffix(".npy")):
        yield {"x": sample[None]}
"""


def images(count, seed=9):
    """Images of very different brightness: ranges from few of them miss the brightest."""
    draw = rng(seed)
    bright = np.exp(draw.standard_normal((count, 1, 1, 1)))
    return (bright * draw.standard_normal((count, 3, 8, 8))).astype(np.float32)


@pytest.fixture
def scene(tmp_path):
    def made(data, write=conv_net, **others):
        model = load_model(write(tmp_path / "net.onnx"))
        np.savez(tmp_path / "data.npz", x=data, **others)
        return prepare(model), open_dataset(tmp_path / "data.npz", model)

    return made


@pytest.mark.parametrize(
    ("samples", "sizes", "held_back"), [(96, [8, 16], 24), (240, [8, 16, 40], 60)]
)
def test_sizes_double_up_to_a_quarter_of_what_is_not_held_back(scene, samples, sizes, held_back):
    curve = learning_curve(*scene(images(samples)), "minmax", {}, silent)
    assert [point.samples for point in curve.points] == sizes
    assert curve.held_back == held_back
    assert all(len(point.losses) == 4 for point in curve.points)


def test_too_few_samples_are_refused_with_what_it_takes(scene):
    with fails(InputError, "79", hint="96"):
        learning_curve(*scene(images(79)), "minmax", {}, silent)


def test_an_unknown_method_is_refused_before_the_work(scene):
    with fails(InputError, "magic"):
        learning_curve(*scene(images(8)), "magic", {}, silent)


def test_a_curve_that_falls_says_so_and_is_the_same_each_time(scene):
    model, dataset = scene(images(128, seed=10), transposed_net)
    curve = learning_curve(model, dataset, "minmax", {}, silent)
    losses = [np.mean(point.losses) for point in curve.points]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 2 * losses[-1]
    assert (curve.needed, curve.at_most) == (None, None)
    assert "more than 24 samples" in curve.sentence
    document = curve.to_document()
    assert document["kind"] == "learning-curve"
    assert document == learning_curve(model, dataset, "minmax", {}, silent).to_document()


def test_a_loss_is_that_of_the_ranges_of_these_very_samples(scene):
    """The second series' chunks, calibrated the plain way, give the loss that the curve has for it."""
    model, dataset = scene(images(96))
    curve = learning_curve(model, dataset, "minmax", {}, silent)
    observations = [
        observe(
            model,
            part(dataset, start, start + 8),
            tensors_to_observe(find_layers(model)),
            ObserveOptions(batch=8),
        )
        for start in (8, 40)
    ]
    for name, histogram in observations[0].histograms.items():
        histogram.merge(observations[1].histograms[name])
    ranges = replace(calibrate(observations[0], "minmax"), dataset=dataset.identity)
    with Reference(model, dataset, 24, 72) as reference:
        loss = total(reference.rows(quantize(model, ranges).proto))
    assert curve.measure == "noise"
    assert curve.points[1].losses[1] == pytest.approx(loss.noise, rel=1e-6)


def test_samples_that_are_all_alike_need_no_more_than_the_fewest(scene):
    model, dataset = scene(np.repeat(images(1), 96, axis=0))
    curve = learning_curve(model, dataset, "percentile", {}, silent)
    assert (curve.needed, curve.at_least, curve.at_most) == (8, 8, 8)


def test_outputs_that_are_no_class_scores_are_judged_by_their_noise(scene):
    curve = learning_curve(*scene(images(96), transposed_net), "percentile", {}, silent)
    assert curve.measure == "noise"
    assert all(0 < loss < 1 for point in curve.points for loss in point.losses)


def test_a_fixed_batch_is_kept_to(scene):
    """Chunks and held-back samples are whole batches of three."""

    def write(path):
        proto = onnx.load(conv_net(path))
        for value in (proto.graph.input[0], proto.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = 3
        onnx.save(proto, path)
        return path

    curve = learning_curve(*scene(images(96), write), "minmax", {}, silent)
    assert [point.samples for point in curve.points] == [9, 18]
    assert curve.held_back == 24


def test_a_script_is_not_begun_again_for_each_chunk(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    np.save(tmp_path / "loader.npy", images(128))
    (tmp_path / "loader.py").write_text(SCRIPT)
    dataset = open_dataset(tmp_path / "loader.py", model)
    log = tmp_path / "loader.log"
    before = len(log.read_text().split())
    learning_curve(prepare(model), dataset, "minmax", {}, silent)
    assert len(log.read_text().split()) - before <= 2


def test_samples_in_the_order_of_their_classes_are_noted(scene):
    model, dataset = scene(images(96), labels=np.repeat(np.arange(4), 24))
    warnings = learning_curve(model, dataset, "minmax", {}, silent).warnings
    assert any("sorted by class" in one for one in warnings)


def series(*levels, noise=0.0):
    """Losses by size, alike in all series and samples but for noise."""
    draw = rng(2)
    shape = (4, 64)
    return {
        8 * 2**place: [{"kl": row} for row in level * (1 + noise * draw.standard_normal(shape))]
        for place, level in enumerate(levels)
    }


@pytest.mark.parametrize(
    ("rows", "answer", "words"),
    [
        (series(1.2, 1.06, 1.01, 1.0), (32, 32, 32), "32 samples are enough"),
        (series(1.01, 1.0, 1.0), (8, 8, 8), "8 samples are enough"),
        (series(1.4, 1.2, 1.0), (None, None, None), "more than 32 samples"),
        (series(1.01, 1.0, 1.0, noise=0.5), (8, 8, None), "cannot exclude"),
        (series(1.4, 1.1, 1.0, noise=0.3), (None, 16, None), "perhaps more than 32 samples"),
        (series(2e-4, 1e-4), (None, None, None), "hardly matters"),
    ],
)
def test_what_a_curve_says(rows, answer, words):
    curve = curve_of({}, rows, ())
    assert (curve.needed, curve.at_least, curve.at_most) == answer
    assert words in curve.sentence


def test_the_interval_holds_the_excess_as_often_as_it_says():
    """Series and held-back samples drawn anew: at least 95 % of the intervals hold the true excess."""
    draw, inside = rng(5), 0
    for _ in range(500):
        difficulty = draw.exponential(1.0, 64)
        of_series = 1 + 0.1 * draw.standard_normal((2, 4, 1))
        mine, last = difficulty * of_series * (1 + 0.1 * draw.standard_normal((2, 4, 64)))
        interval = _excess(1.2 * mine, last)
        inside += interval.low <= 0.2 <= interval.high
    assert inside >= 465
