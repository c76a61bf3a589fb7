"""The learning curve: which subsets it takes, what it computes of losses, and its answer."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from scipy import stats

from calibrators import Histogram
from tests.networks import conv_net, rng, transposed_net
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset, part
from trtcal.errors import InputError
from trtcal.evaluate.learning_curve import (
    LearningCurve,
    Point,
    excess,
    fit_variance,
    learning_curve,
    sample_margin,
)
from trtcal.evaluate.search.plan_loss import Reference
from trtcal.evaluate.subsets import Chunks, choose_subsets
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe
from trtcal.stats import Interval

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


def sized(count):
    """Random images."""
    return np.zeros((count, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("samples", "sizes", "held_back"),
    [
        (32, [8, 16], 16),
        (47, [8, 16], 16),
        (128, [8, 16, 32, 72], 32),
        (512, [8, 16, 32, 64, 128, 288], 128),
        (3000, [8, 16, 32, 64, 128, 256, 512, 768], 256),
    ],
)
def test_subsets_keep_clear_of_what_is_held_back(scene, samples, sizes, held_back):
    subsets = choose_subsets(*scene(sized(samples)))
    assert list(subsets.of) == sizes
    assert (subsets.held_back, subsets.first) == (held_back, samples - held_back)
    assert subsets.pool <= subsets.first
    for size, sets in subsets.of.items():
        assert len(set(sets)) == len(sets)
        for one in sets:
            assert len(set(one)) * subsets.chunk == size
            assert max(one) < subsets.pool // subsets.chunk
        chunks = [chunk for one in sets for chunk in one]
        assert (size in subsets.disjoint) == (len(chunks) == len(set(chunks)))
    assert subsets.disjoint[0] == 8
    assert all(len(subsets.of[size]) >= 4 for size in sizes if samples >= 128)


def test_subsets_hang_on_the_seed_alone(scene):
    model, dataset = scene(sized(128))
    assert choose_subsets(model, dataset) == choose_subsets(model, dataset)
    assert choose_subsets(model, dataset).of != choose_subsets(model, dataset, seed=1).of


def test_too_few_samples_are_refused_with_what_it_takes(scene):
    model, dataset = scene(sized(31))
    with pytest.raises(InputError, match="31 samples") as caught:
        learning_curve(model, dataset, "minmax")
    assert "32" in caught.value.hint


def test_an_unknown_method_is_refused_before_the_work(scene):
    model, dataset = scene(sized(64))
    reported = []
    with pytest.raises(InputError, match="magic"):
        learning_curve(model, dataset, "magic", progress=reported.append)
    assert not reported


def test_chunks_add_up_to_what_one_run_sees(scene):
    model, dataset = scene(images(48))
    with Chunks(model, dataset, 16) as chunks:
        for number in range(3):
            chunks.observe(number, ["x", "e"])
        some, everything = chunks.seen((1,)), chunks.seen((0, 1, 2))
    whole = observe(model, dataset, ["x", "e"])
    assert (some.samples, everything.samples) == (16, 48)
    assert everything.histograms["x"] == whole.histograms["x"]
    assert everything.histograms["e"].count == whole.histograms["e"].count
    alone = Histogram()
    alone.update(next(dataset.batches(16, 16, 32))["x"])
    assert some.histograms["x"] == alone


def test_a_curve_that_falls_says_so_and_is_the_same_each_time(scene):
    model, dataset = scene(images(128), transposed_net)
    reported = []
    curve = learning_curve(model, dataset, "minmax", progress=reported.append)
    assert sum(reported) == choose_subsets(model, dataset).work
    losses = [point.loss.value for point in curve.points]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 10 * losses[-1]
    assert (curve.needed, curve.at_least, curve.at_most) == (None, 72, None)
    assert "more than 72 samples" in curve.sentence
    assert curve.points[0].deviation > curve.points[-1].deviation
    document = curve.to_document()
    assert document["kind"] == "learning-curve"
    assert document == learning_curve(model, dataset, "minmax").to_document()


def test_a_loss_is_that_of_the_ranges_of_these_very_samples(scene):
    """The chunk's own calibration, made the plain way, gives the loss that the curve has for it."""
    model, dataset = scene(images(40))
    curve, subsets = learning_curve(model, dataset, "minmax"), choose_subsets(model, dataset)
    (first, *_) = subsets.of[8]
    samples = part(dataset, first[0] * 8, first[0] * 8 + 8)
    ranges = calibrate(
        observe(model, samples, tensors_to_observe(find_layers(model)), ObserveOptions(batch=8)),
        "minmax",
    )
    held_back = part(dataset, subsets.first, len(dataset))
    ranges = replace(ranges, dataset=dataset.identity)
    with Reference(model, held_back, len(held_back)) as reference:
        loss = reference.measure(quantize(model, ranges).proto)
    assert curve.measure == "kl"
    assert curve.points[0].losses[0] == pytest.approx(loss.kl, rel=1e-6)


def test_samples_that_are_all_alike_need_no_more_than_the_fewest(scene):
    model, dataset = scene(np.repeat(images(1), 64, axis=0))
    curve = learning_curve(model, dataset, "percentile")
    assert (curve.needed, curve.at_least, curve.at_most) == (8, 8, 8)
    assert [point.deviation for point in curve.points] == [0.0, 0.0, 0.0]
    assert "8 samples, the fewest tried, are enough: with" in curve.sentence


def test_outputs_that_are_no_class_scores_are_judged_by_their_noise(scene):
    model, dataset = scene(images(40), transposed_net)
    curve = learning_curve(model, dataset, "percentile")
    assert curve.measure == "noise"
    assert all(0 < point.loss.value < 1 for point in curve.points)


def test_a_fixed_batch_is_kept_to(scene):
    """Chunks and held-back samples are whole batches of three."""

    def write(path):
        proto = onnx.load(conv_net(path))
        for value in (proto.graph.input[0], proto.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = 3
        onnx.save(proto, path)
        return path

    model, dataset = scene(images(60), write)
    curve = learning_curve(model, dataset, "minmax")
    assert [point.samples for point in curve.points] == [9, 18, 27]
    assert (curve.chunk, curve.held_back) == (9, 18)


def test_a_script_is_not_begun_again_for_each_chunk(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    np.save(tmp_path / "loader.npy", images(128))
    (tmp_path / "loader.py").write_text(SCRIPT)
    dataset = open_dataset(tmp_path / "loader.py", model)
    log = tmp_path / "loader.log"
    before = len(log.read_text().split())
    learning_curve(prepare(model), dataset, "minmax")
    assert len(log.read_text().split()) - before <= 2


def test_samples_in_the_order_of_their_classes_are_noted(scene):
    model, dataset = scene(images(40), labels=np.repeat(np.arange(4), 10))
    warnings = learning_curve(model, dataset, "minmax").warnings
    assert any("sorted by class" in one for one in warnings)


def curve_of(*ends):
    """A curve with these low, middle and high ends of what smaller sizes lose more."""
    sizes = [8 * 2**place for place in range(len(ends) + 1)]
    loss = Interval(1.0, 0.9, 1.1)
    spans = [Interval(middle, low, high) for low, middle, high in ends] + [Interval(0, 0, 0)]
    points = tuple(
        Point(size, (1.0,), True, 0.1, loss, span) for size, span in zip(sizes, spans, strict=True)
    )
    return LearningCurve("m", "d", "minmax", {}, "kl", 8, 32, 0, points, ())


@pytest.mark.parametrize(
    ("ends", "answer", "words"),
    [
        (
            [(0.1, 0.2, 0.3), (0.04, 0.06, 0.08), (0.0, 0.01, 0.02), (-0.01, 0.0, 0.01)],
            (32, 16, 32),
            "32 samples are enough (between 16 and 32)",
        ),
        (
            [(-0.2, 0.0, 0.2), (-0.1, 0.0, 0.04)],
            (8, 8, 16),
            "8 samples, the fewest tried, are enough (between 8 and 16)",
        ),
        ([(-0.2, 0.01, 0.2), (-0.2, 0.0, 0.2)], (8, 8, None), "cannot exclude"),
        ([(0.2, 0.4, 0.6), (0.1, 0.2, 0.3)], (None, 32, None), "more than 32 samples"),
        ([(0.2, 0.4, 0.6), (-0.1, 0.2, 0.5)], (None, 16, None), "perhaps more than 32 samples"),
        (
            [(-0.1, 0.0, 0.04), (0.01, 0.06, 0.1), (-0.1, 0.0, 0.1)],
            (32, 8, None),
            "32 samples, or only 8, seem enough",
        ),
    ],
)
def test_what_a_curve_says(ends, answer, words):
    curve = curve_of(*ends)
    assert (curve.needed, curve.at_least, curve.at_most) == answer
    assert words in curve.sentence


def test_both_parts_of_the_variance_are_found_again():
    """Subsets simulated with a known rounding part and a known sampling part."""
    random = rng(3)
    means = {
        size: 5 * (1 + np.sqrt(0.01 + 0.8 / size) * random.standard_normal(4000))
        for size in (8, 32, 128)
    }
    variance = fit_variance(means, dict.fromkeys(means, 0.0))
    assert variance.rounding == pytest.approx(0.01, rel=0.2)
    assert variance.sampling == pytest.approx(0.8, rel=0.1)
    assert variance.deviation(32) == pytest.approx(np.sqrt(0.035), rel=0.1)


def test_subsets_that_overlap_do_not_pass_for_independent_ones():
    """Means of subsets of a small pool vary less than their distance from the truth does."""
    random = rng(4)
    means = {8: [], 24: []}
    distances = []
    for _ in range(400):
        pool = 1 + 0.1 * random.standard_normal(32)
        means[8].append(pool.reshape(4, 8).mean(1))
        subsets = [random.choice(pool, 24, replace=False).mean() for _ in range(8)]
        means[24].append(np.array(subsets))
        distances.append(np.mean(subsets))
    variances = {size: np.mean([one.var(ddof=1) for one in all_]) for size, all_ in means.items()}
    pairs = {size: 1 + np.sqrt(one / 2) * np.array([-1.0, 1.0]) for size, one in variances.items()}
    variance = fit_variance(pairs, {8: 0.0, 24: 0.75})
    assert variance.sampling == pytest.approx(0.01, rel=0.15)
    error = variance.margin(24, 8, 0.75) / stats.t.ppf(0.975, variance.degrees)
    assert error == pytest.approx(np.std(distances), rel=0.1)


def test_losses_that_do_not_differ_have_no_margin():
    same = np.full((4, 16), 0.25)
    assert fit_variance({8: same.mean(1), 16: same.mean(1)}, {8: 0.0, 16: 0.5}).margin(8, 4, 0) == 0
    assert sample_margin(same, same) == 0
    assert excess({8: 2 * same, 16: same}, 8, {8: 0.0, 16: 0.0}) == Interval(1.0, 1.0, 1.0)
    nothing = np.zeros((4, 16))
    assert excess({8: nothing, 16: nothing}, 8, {8: 0.0, 16: 0.0}) == Interval(0.0, 0.0, 0.0)


def test_the_interval_of_a_ratio_holds_it_as_often_as_it_says():
    """Held-back samples drawn anew a thousand times: 95 % of the intervals hold the true ratio."""
    random, held = rng(5), 0
    for _ in range(1000):
        hard = random.exponential(1.0, 40)
        mine = hard * (1.2 + 0.3 * random.standard_normal((1, 40)))
        theirs = hard * (1.0 + 0.3 * random.standard_normal((1, 40)))
        found = excess({8: mine, 16: theirs}, 8, {8: 0.0, 16: 0.0})
        held += found.low <= 0.2 <= found.high
    assert 920 <= held <= 975
