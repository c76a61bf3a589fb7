"""Faults that are planted in data become issues, and right data have none."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper
from scipy import ndimage

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import samples, save, weight
from tests.fixtures.pictures import CLASSES, SIZE, paint, smooth, template_classifier
from tests.fixtures.tables import each
from trtcal.backends.sessions import run_session
from trtcal.check import probe
from trtcal.check.data_check import check_data
from trtcal.check.evidence import check_labels, weigh
from trtcal.check.preprocessing import (
    KNOWN,
    MEAN_SUBTRACTED,
    NORMAL,
    RAW,
    SIGNED,
    UNIT,
    VALID,
    Change,
    forms_of,
)
from trtcal.check.probe import FirstLayers, ModelProbe, Response
from trtcal.check.samples import (
    ImageInput,
    Samples,
    check_layout,
    drop_duplicates,
    roughness,
    take_samples,
)
from trtcal.data import open_dataset
from trtcal.data.dataset import ArrayDataset
from trtcal.model import load_model


@pytest.fixture(
    scope="module", params=[NORMAL, SIGNED, MEAN_SUBTRACTED, UNIT], ids=lambda form: form.name
)
def colours(request, tmp_path_factory):
    """A classifier that compares normalized images with templates of its classes, and right data."""
    form = request.param
    labels = np.random.default_rng(1).integers(0, CLASSES, 64)
    path = template_classifier(tmp_path_factory.mktemp("colours") / "colours.onnx", form)
    return load_model(path), form, Change(RAW, form)(paint(labels, 2)[0]).astype(np.float32), labels


def codes(model, images, labels=None):
    name = model.inputs[0].name
    data = ArrayDataset("planted", {name: np.ascontiguousarray(images)}, labels, "")
    check = check_data(model, data)
    return [issue.kind for issue in check.issues] + [f"{one.kind}?" for one in check.questions]


def proved(kind, labelled):
    return kind if labelled else f"{kind}?"


@pytest.mark.parametrize("labelled", [True, False])
def test_right_colours_have_no_issue(colours, labelled):
    model, _, images, labels = colours
    assert codes(model, images, labels if labelled else None) == []


@pytest.mark.parametrize("labelled", [True, False])
def test_swapped_channels_are_named(colours, labelled):
    model, _, images, labels = colours
    found = codes(model, images[:, ::-1], labels if labelled else None)
    assert found == [proved("channel_order", labelled)]


@pytest.mark.parametrize("labelled", [True, False])
def test_reshaped_images_are_named(colours, labelled):
    model, _, images, labels = colours
    reshaped = np.moveaxis(images, 1, -1).reshape(images.shape)
    assert codes(model, reshaped, labels if labelled else None) == ["layout"]


@pytest.mark.parametrize("labelled", [True, False])
def test_pixels_of_another_scale_are_named(colours, labelled):
    model, form, images, labels = colours
    planted = Change(form, UNIT if form == MEAN_SUBTRACTED else RAW)(images)
    wanted = "pixels_scaled" if form == MEAN_SUBTRACTED else "pixels_not_scaled"
    assert proved(wanted, labelled) in codes(model, planted, labels if labelled else None)


def test_labels_of_other_samples_and_other_numbers_are_named(colours):
    model, _, images, labels = colours
    assert codes(model, images, np.random.default_rng(3).permutation(labels)) == ["labels_disagree"]
    assert codes(model, images, labels + 1) == ["labels_off_by_one"]
    assert codes(model, images, labels - 1) == ["labels_off_by_one"]


def test_noise_is_named(colours):
    model, _, images, labels = colours
    noise = np.random.default_rng(3).standard_normal(images.shape).astype(np.float32)
    assert codes(model, noise, labels) == ["noise"]
    shuffled = np.random.default_rng(4).permutation(images.reshape(-1))
    assert codes(model, shuffled.reshape(images.shape)) == ["noise?"]


@each("last", [False, True])
@each("channels", [1, 3])
def test_the_line_of_python_is_the_change(channels, last):
    planes = np.random.default_rng(5).uniform(-1, 1, (4, channels, 6, 6)).astype(np.float32)
    for had in KNOWN:
        for change in (Change(had, wanted) for wanted in VALID if wanted != had):
            scope = {"x": np.moveaxis(planes, 1, -1) if last else planes, "np": np}
            exec(change.code(channels, last), scope)  # noqa: S102
            found = np.moveaxis(scope["x"], -1, 1) if last else scope["x"]
            assert found.dtype == np.float32
            expected = change(planes)
            assert np.allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_pixels_of_0_to_255_are_called_that(colours):
    model, form, images, _ = colours
    if form is MEAN_SUBTRACTED:
        pytest.skip("the model wants pixels of 0 to 255, less the mean")
    data = ArrayDataset("planted", {"x": Change(form, RAW)(images)}, None, "")
    question = check_data(model, data).questions[0]
    assert "which look like pixels as 0 to 255; the model expects " in question.sentence
    assert "so prepared, " in question.sentence
    assert question.fix.startswith("class labels decide it (")
    assert "divide the pixels before they are normalized: for image files, " in question.fix


@pytest.fixture(scope="module")
def detecting(tmp_path_factory):
    """A classifier of -1 to 1 that answers nothing but zeros to images without its classes."""
    _, templates = paint(np.zeros(1, int), 2)
    rows = Change(RAW, SIGNED)(templates)
    rows = (rows - rows.mean(0)).reshape(CLASSES, -1)
    weights = {
        "w": (10 * rows / np.square(rows).sum(1, keepdims=True)).astype(np.float32),
        "b": np.full(CLASSES, -7, np.float32),
    }
    nodes = as_nodes("f = Flatten(x)  g = Gemm<transB=1>(f, w, b)  y = Relu(g)")
    path = tmp_path_factory.mktemp("detecting") / "m.onnx"
    return load_model(
        save(path, nodes, weights, {"x": ["n", 3, SIZE, SIZE]}, {"y": ["n", CLASSES]})
    )


def test_what_a_model_answers_to_images_without_its_classes_is_a_question(detecting):
    generator = np.random.default_rng(9)
    pixels = np.clip(127 + 70 * np.stack([smooth(generator) for _ in range(64)]), 0, 255)
    images = Change(RAW, SIGNED)(pixels).astype(np.float32)
    check = check_data(detecting, ArrayDataset("", {"x": images}, None, ""))
    assert check.issues == ()
    (question,) = check.questions
    assert question.sentence.startswith("is 'x' prepared as in training? Perhaps ")
    figures = question.evidence
    assert figures["mutual_information_given"] < 0.1 < 1 < figures["mutual_information_changed"]
    assert " instead of 0" in question.sentence
    assert "--labels" in question.fix


def test_labels_settle_what_the_model_alone_asks(detecting):
    labels = np.random.default_rng(1).integers(0, CLASSES, 64)
    images = Change(RAW, SIGNED)(paint(labels, 2)[0]).astype(np.float32)
    assert codes(detecting, images) == ["other_normalization?"]
    assert codes(detecting, images, labels) == []


def test_one_class_alone_is_no_fault(colours):
    model, form, _, _ = colours
    labels = np.full(64, 2)
    images = Change(RAW, form)(paint(labels, 5)[0]).astype(np.float32)
    assert codes(model, images, labels) == []
    assert codes(model, images) == []


@pytest.mark.parametrize("name", ["calibration", "glitch", "test"])
def test_the_digits_have_no_issue(digits, name):
    model = load_model(digits / "digits.onnx")
    assert check_data(model, open_dataset(digits / f"{name}.npz", model)).issues == ()


def blank(images):
    images[::4] = images[::4].mean((2, 3), keepdims=True)
    return images


def repeat(images):
    images[::4] = images[0]
    return images


def black(images):
    images[::4] = 0
    return images


PLANTED = {
    "pixels_not_scaled": lambda x: x * 255,
    "scaled_twice": lambda x: x / 255,
    "constant_samples": blank,
    "zero_samples": black,
    "repeated_samples": repeat,
    "too_few_samples": lambda x: x[:9],
}


@pytest.mark.parametrize("code", PLANTED)
@pytest.mark.parametrize("labelled", [True, False])
def test_faults_of_digits_are_named(digits, code, labelled):
    model = load_model(digits / "digits.onnx")
    stored = np.load(digits / "test.npz")
    images = PLANTED[code](stored["image"][:64].copy())
    labels = stored["labels"][: len(images)] if labelled else None
    by_model = code in ("pixels_not_scaled", "scaled_twice")
    assert codes(model, images, labels) == [proved(code, labelled or not by_model)]


def test_data_that_are_no_images_are_checked_for_what_any_data_may_be(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.eye(20, 5, dtype=np.float32)}
    model = load_model(save(tmp_path / "m.onnx", nodes, weights, {"x": ["n", 20]}, {"y": ["n", 5]}))
    rows = np.random.default_rng(0).standard_normal((40, 20)).astype(np.float32)
    assert codes(model, rows) == []
    assert codes(model, rows * 0) == ["zero_samples"]
    assert codes(model, rows[np.arange(40) % 8]) == ["repeated_samples"]


@pytest.mark.parametrize("batch", [48, 1])
def test_a_fixed_batch_is_kept_and_channels_may_come_last(tmp_path, batch):
    labels = np.random.default_rng(1).integers(0, CLASSES, 96)
    pixels, templates = paint(labels, 2)
    rows = np.moveaxis(templates / 255, 1, -1).reshape(CLASSES, -1)
    weights = {
        "w": rows.astype(np.float32),
        "b": (-np.square(rows).sum(1) / 2).astype(np.float32),
        "shape": np.array([batch, -1]),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
    ]
    path = tmp_path / "m.onnx"
    save(path, nodes, weights, {"x": [batch, SIZE, SIZE, 3]}, {"y": [batch, CLASSES]})
    model = load_model(path)
    images = np.moveaxis(pixels / 255, 1, -1).astype(np.float32)
    assert codes(model, images, labels) == []
    assert codes(model, images[..., ::-1], labels) == ["channel_order"]
    reshaped = np.moveaxis(images, -1, 1).reshape(images.shape)
    assert codes(model, reshaped) == ["layout"]


def test_the_form_of_pixels_is_recognized_by_their_values():
    pixels = paint(np.arange(CLASSES), 0)[1]
    pixels[0, :, 0, 0], pixels[0, :, 0, 1] = 0, 255
    for form in (RAW, UNIT, SIGNED, NORMAL, MEAN_SUBTRACTED):
        assert forms_of(Change(RAW, form)(pixels))[0] == form


def test_roughness_tells_noise_from_images():
    noise = np.random.default_rng(0).standard_normal((2, 3, 32, 32))
    assert roughness(noise) == pytest.approx([1, 1], abs=0.1)
    assert (roughness(ndimage.gaussian_filter(noise, (0, 0, 3, 3))) < 0.4).all()
    assert (roughness(np.ones((2, 3, 32, 32))) == 0).all()


def respond(lead, sharpness):
    """Return responses to samples that differ in nothing but these two."""
    rng, ones = np.random.default_rng(0), np.ones(32)
    lead, sharpness = (value + 0.1 * rng.standard_normal(32) for value in (lead, sharpness))
    return Response(None, ones, lead, sharpness, ones, ones, None)


def test_other_values_have_to_raise_confidence_whatever_the_factor():
    given, louder, better = respond(1, 1), respond(2, 0.5), respond(2, 2)
    for gain in (0.5, 1.0, 2.0):  # what only shifts the values is no exception
        assert not weigh(given, louder, gain).is_clear
        assert weigh(given, better, gain).is_clear
    assert weigh(given, louder, None).is_clear  # exchanged channels change no value


@pytest.mark.parametrize("others", [[], ["boxes"]])
def test_raw_maps_beside_others_are_no_class_scores(tmp_path, others):
    names = ["map", *others]
    nodes = [helper.make_node("Conv", ["x", f"w {one}"], [one], one) for one in names]
    weights = {f"w {one}": 5.0 * weight(8, 3, 1, 1, seed=3) for one in names}
    outputs = {one: ["n", 8, 8, 8] for one in names}
    model = load_model(save(tmp_path / "maps.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, outputs))
    dataset = open_dataset(samples(tmp_path / "data.npz", count=16), model)
    seen = ModelProbe(model, 16).run(take_samples(model, dataset, 16))
    assert (seen.lead is None) == bool(others)


class Copies(ArrayDataset):
    """Samples that are made when they are read."""

    def batches(self, *places):
        """Yield copies of the samples."""
        return ({name: a.copy() for name, a in feeds.items()} for feeds in super().batches(*places))


def test_samples_are_in_memory_once(tmp_path):
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"], "pool")]
    ends = {"x": ["n", 3, 128, 128]}, {"y": ["n", 3, 1, 1]}
    model = load_model(save(tmp_path / "pool.onnx", nodes, {}, *ends))
    values = np.random.default_rng(0).random((64, 3, 128, 128), np.float32)
    tracemalloc.start()
    taken = take_samples(model, Copies("", {"x": values}, None, ""), 64)
    ModelProbe(model, 4).run(taken)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (taken.feeds["x"] == values).all()
    assert (taken.numbers == np.arange(64)).all()
    assert peak < 1.5 * values.nbytes


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """Maps of how much images look like templates, without classes, and right data of 0 to 1."""
    labels = np.random.default_rng(1).integers(0, CLASSES, 128)
    pixels, templates = paint(labels, 2)
    centred = templates / 255 - templates.mean() / 255
    weights = {
        "w": (centred / np.square(centred).sum((1, 2, 3), keepdims=True)).astype(np.float32),
        "b": np.full(CLASSES, -0.5, np.float32),
        "v": weight(1, CLASSES, 1, 1, seed=3),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "like", pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], "map"),
    ]
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    save(path, nodes, weights, {"x": ["n", 3, SIZE, SIZE]}, {"y": ["n", 1, 5, 5]})
    return load_model(path), (pixels / 255).astype(np.float32)


def test_scale_and_order_are_named_without_class_scores(detector):
    model, images = detector
    assert codes(model, images) == []
    assert codes(model, images * 255) == ["pixels_not_scaled?"]
    assert codes(model, images / 255) == ["scaled_twice?"]
    assert codes(model, images[:, ::-1]) == ["channel_order?"]


def test_no_sample_is_run_twice_in_one_form(detector, monkeypatch):
    model, images = detector
    rows = []

    def counting(session, names, feeds):
        rows.extend(row.tobytes() for row in feeds["x"] if names[0] == "y")
        return run_session(session, names, feeds)

    monkeypatch.setattr(probe, "run_session", counting)
    assert codes(model, images[:, ::-1]) == ["channel_order?"]
    assert len(rows) == len({*rows}) > 64


def test_samples_that_differ_in_one_value_are_no_copies():
    array = np.zeros((4, 3, 30, 30), np.float32)
    array[1, 0, 0, 1] = array[2, 0, 0, 1] = 1
    kept = drop_duplicates(Samples({"x": array}, None, 4, 1, np.arange(4)))
    assert kept.numbers.tolist() == [0, 1]


def test_a_first_layer_is_driven_as_strongly_as_its_input_is_stretched(detector):
    model, images = detector
    ratio = FirstLayers(model).signal_to_bias
    assert ratio({"x": images}) == pytest.approx(ratio({"x": images * 255}) - np.log10(255))
    assert ratio({"x": images * 0}) is None


def test_what_fits_the_running_statistics_stays(detector):
    model, images = detector
    seen = ModelProbe(model, 16).run(
        take_samples(model, ArrayDataset("", {"x": images}, None, ""), 32)
    )
    for before, after, clear in ((0.08, 0.03, False), (0.3, 0.09, True), (3, 0.3, True)):
        given, changed = (replace(seen, misfit=one) for one in (before, after))
        assert weigh(given, changed, 1.0).is_clear == clear


def test_running_statistics_may_be_in_constant_nodes(tmp_path):
    names = ["scale", "bias", "mean", "var"]
    values = {name: np.full(3, float(name in ("scale", "var")), np.float32) for name in names}
    nodes = [
        *(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values[name]))
            for name in names
        ),
        helper.make_node("BatchNormalization", ["x", *names], ["y"]),
    ]
    model = load_model(
        save(tmp_path / "m.onnx", nodes, {}, {"x": ["n", 3, 8, 8]}, {"y": ["n", 3, 8, 8]})
    )
    assert [norm.tensor for norm in ModelProbe(model, 16).norms] == ["x"]


def test_flat_images_with_other_means_by_channel_are_no_layout():
    noise = np.random.default_rng(0).standard_normal((8, 3, 16, 16))
    offsets = 100 * np.arange(3).reshape(3, 1, 1)
    assert check_layout(ImageInput("x", False), noise + offsets) is None
    given = np.moveaxis(ndimage.gaussian_filter(noise, (0, 0, 3, 3)) + offsets / 100, 1, -1)
    assert check_layout(ImageInput("x", False), given.reshape(noise.shape)).kind == "layout"


def test_twice_as_many_samples_are_read_in_doubt(detector):
    model, images = detector
    grey = images.mean(1, keepdims=True)
    noise = 0.3 * np.random.default_rng(4).standard_normal(images.shape)
    turned = (grey + 0.06 * (images - grey) + noise).astype(np.float32)[:, ::-1]
    assert codes(model, turned) == ["channel_order?"]
    assert codes(model, turned[:64]) == []


@pytest.mark.parametrize(
    ("right", "confidence", "is_issue"),
    [(90, 0.6, True), (350, 0.9, False), (240, 0.6, False), (90, 0.2, False), (240, 1.0, False)],
)
def test_far_fewer_labels_right_than_the_confidence_says_are_an_issue(right, confidence, is_issue):
    labels = np.arange(500) % 10
    classes = np.where(np.arange(500) < right, labels, (labels + 1) % 10)
    response = Response(classes, np.full(500, confidence), *[None] * 5)
    assert (check_labels(response, labels) is not None) == is_issue
