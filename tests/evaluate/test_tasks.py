"""Tasks: guessed from outputs, and broken, swapped or reordered outputs never agree in any of them."""

import numpy as np
import pytest
from scipy import special

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evaluate.accuracy import AccuracyMeter
from trtcal.evaluate.clues import GraphFacts, Input
from trtcal.evaluate.collectors import Contrast
from trtcal.evaluate.per_sample import compare_rows
from trtcal.evaluate.tasks import KINDS, check_limits, default_limits, find_task, unlimited

SIZE = 6


def rng(seed=0):
    return np.random.default_rng(seed)


def logits(*shape, seed=0):
    return (3 * rng(seed).standard_normal((SIZE, *shape))).astype(np.float32)


def softmax(values, axis):
    return special.softmax(values, axis).astype(np.float32)


def units(*shape):
    values = logits(*shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def heads(count=2, classes=3, side=640.0, seed=0):
    """YOLOv8's [B, 4+C, A]: some cells with a box, the others with low scores."""
    made = rng(seed)
    boxes = np.concatenate(
        [made.uniform(100, side - 100, (SIZE, 2, 50)), made.uniform(20, 80, (SIZE, 2, 50))], axis=1
    )
    scores = made.uniform(0, 0.1, (SIZE, classes, 50))
    for sample in range(SIZE):
        for cell in range(count):
            scores[sample, (sample + cell) % classes, 7 * cell] = 0.9 - 0.1 * cell
    return np.concatenate([boxes, scores], axis=1).astype(np.float32)


def rows(width=6, seed=0):
    """Boxes after a NonMaxSuppression: corners, score, class; of 4 rows a sample one is empty."""
    made = rng(seed)
    low = made.uniform(0, 500, (SIZE, 4, 2))
    found = np.concatenate([low, low + made.uniform(20, 90, (SIZE, 4, 2))], axis=2)
    scores, labels = made.uniform(0.5, 0.9, (SIZE, 4, 1)), made.integers(0, 5, (SIZE, 4, 1))
    found = np.concatenate([found, scores, labels], axis=2)
    found[:, 3] = 0.0
    return found.astype(np.float32)


ONE_OUTPUT = {
    "classification": (logits(10), "classification", "classes"),
    "probabilities": (softmax(logits(10), 1), "classification", "classes"),
    "trailing ones": (logits(10, 1, 1), "classification", "classes"),
    "class numbers": (np.arange(SIZE), "classification", "classes"),
    "multilabel": (special.expit(logits(10)), "multilabel", "labels"),
    "one value": (logits(1), "regression", "values"),
    "a number a sample": (logits(), "regression", "values"),
    "embedding": (units(32), "embedding", "vectors"),
    "segmentation": (logits(5, 12, 16), "segmentation", "pixels"),
    "channels last": (logits(12, 16, 5), "segmentation", "pixels"),
    "class of pixels": (rng().integers(0, 3, (SIZE, 12, 16)), "segmentation", "pixels"),
    "mask": ((logits(1, 12, 16) > 0).astype(np.float32), "segmentation", "pixels"),
    "depth": (10 + logits(1, 12, 16), "regression", "values"),
    "picture as the input": (logits(3, 20, 20), "regression", "values"),
    "tokens": (softmax(logits(14, 30), -1), "tokens", "tokens"),
    "token numbers": (rng().integers(0, 30, (SIZE, 14)), "tokens", "tokens"),
    "waveform": (np.tanh(logits(5000)) * 0.9, "audio", "signal"),
    "heads": (heads(), "detection", "boxes"),
    "rows": (rows(), "detection", "boxes"),
}


def task_of(outputs, **options):
    return find_task(outputs, SIZE, [Input("x", (SIZE, 3, 20, 20), "f")], **options)


@each("values, name, kind", ONE_OUTPUT.values())
def test_a_task_is_read_from_shapes_types_and_values(values, name, kind):
    task = task_of({"y": values})
    assert (task.name, [one.kind for one in task.outputs], task.is_given) == (name, [kind], False)


@each("values, name, kind", ONE_OUTPUT.values())
def test_a_model_agrees_with_itself_and_not_with_what_it_gives_for_others(values, name, kind):
    task = task_of({"y": values})
    mine = task.rows({"y": values}, SIZE)
    other = task.rows({"y": np.roll(values, 1, axis=0)}, SIZE)
    same, different = task.compare(mine, mine), task.compare(mine, other)
    for figure in ("agreement", "cosine"):
        assert figure not in same or same[figure] == pytest.approx(1.0)
    worst = different.get("agreement", 1 - different.get("relative_error", 0))
    assert worst.mean() < 0.9
    assert all(one.shape == (SIZE,) and one.dtype == np.float64 for one in different.values())


def test_classification_gives_what_it_gave_bit_for_bit():
    a, b = logits(10), logits(10) + 0.5 * logits(10, seed=1)
    labels = np.arange(SIZE)
    task = task_of({"y": a})
    found = task.compare(task.rows({"y": a}, SIZE), task.rows({"y": b}, SIZE), labels)
    before = compare_rows([a], [b], labels)
    assert {name: found[name].tolist() for name in before} == {
        name: one.tolist() for name, one in before.items()
    }
    assert set(found) - set(before) == {"relative_error"}


@each("kind", ["classification", "multilabel", "segmentation", "tokens", "heads"])
def test_another_order_of_classes_does_not_agree(kind):
    values = ONE_OUTPUT[kind][0]
    axis = {"tokens": -1}.get(kind, 1)
    if kind == "heads":
        other = np.concatenate([values[:, :4], np.roll(values[:, 4:], 1, axis=1)], axis=1)
    else:
        other = np.roll(values, 1, axis)
    task = task_of({"y": values})
    found = task.compare(task.rows({"y": values}, SIZE), task.rows({"y": other}, SIZE))
    assert found["agreement"].mean() < 0.5


def test_a_sample_is_as_good_as_its_worst_output():
    a, b = logits(10), logits(10, seed=1)
    task = task_of({"a": a, "b": b})
    expected, made = task.rows({"a": a, "b": b}, SIZE), task.rows({"a": a, "b": -b}, SIZE)
    found = task.compare(expected, made)
    assert found["agreement"].tolist() == [0.0] * SIZE
    assert set(task.by_output(expected, made)) == {"a", "b"}
    assert found["cosine"] == pytest.approx(-np.ones(SIZE))
    assert found["relative_error"] == pytest.approx(2 * np.ones(SIZE))
    swapped = task.compare(expected, task.rows({"a": b, "b": a}, SIZE))
    assert swapped["agreement"].mean() < 0.5


def test_probabilities_of_a_long_vocabulary_are_no_boxes():
    values = softmax(logits(40, 1200), -1)
    assert [one.kind for one in task_of({"y": values}).outputs] == ["tokens"]


def test_only_the_outputs_that_count_are_compared():
    a, b = logits(10), logits(10, seed=1)
    task = task_of({"a": a, "b": b}, output_names=["a"])
    found = task.compare(task.rows({"a": a}, SIZE), task.rows({"a": a}, SIZE))
    assert found["agreement"].tolist() == [1.0] * SIZE
    assert [one.name for one in task.outputs] == ["a"]


@each("name", KINDS.keys() - {"none"})
def test_a_given_task_takes_the_place_of_the_guess_or_is_refused(name):
    values = {"detection": heads()}.get(name, logits(7, 12, 16))
    task = task_of({"y": values}, tasks=name)
    assert (task.name, task.outputs[0].kind, task.is_given) == (name, KINDS[name], True)


def test_one_output_has_a_task_of_its_own_beside_that_of_the_others():
    outputs = {"a": logits(5), "b": logits(5, 12, 16), "c": logits(7)}
    both = task_of(outputs, tasks={"": "regression", "b": "segmentation"})
    assert both.kinds == {"a": "values", "b": "pixels", "c": "values"}
    one = task_of(outputs, tasks={"a": "classification"})
    assert one.kinds == {"a": "classes", "b": "pixels", "c": "values"}
    assert [guess.split()[0] for guess in one.guesses] == ["b", "c"]
    left = task_of(outputs, tasks={"b": "none", "c": "none"})
    assert (left.kinds, left.name) == ({"a": "values"}, "regression")
    with fails(InputError, "no output 'a'"):
        task_of({"b": logits(3)}, tasks={"a": "regression"})


def test_what_is_unknown_or_impossible_is_refused():
    with fails(InputError, "nonsense"):
        task_of({"y": logits(3)}, tasks="nonsense")
    with fails(InputError, "z"):
        task_of({"y": logits(3)}, output_names=["z"])
    with fails(InputError, "detection", "y", hint="--task"):
        task_of({"y": logits(10)}, tasks="detection")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_value_of_a_sigmoid_is_the_share_of_the_second_of_two_classes(shape):
    values = special.expit(logits(*shape))
    assert task_of({"y": values}).name == "regression"
    task = task_of({"y": values}, graph=GraphFacts(operators={"y": "Sigmoid"}))
    assert (task.name, task.outputs[0].kind) == ("classification", "classes")
    (rows,) = task.rows({"y": values}, SIZE)
    assert rows == pytest.approx(np.stack([1 - values.ravel(), values.ravel()], axis=1))
    labels = (values.ravel() > 0.5).astype(np.int64)
    labels[0] = 1 - labels[0]
    assert task.compare([rows], [rows], labels)["top1"].tolist() == [0, *[1] * (SIZE - 1)]
    logit = task_of({"y": logits(*shape)}, tasks="classification")
    assert logit.rows({"y": logits(*shape)}, SIZE)[0] == pytest.approx(rows, rel=1e-5)
    assert (
        task_of({"y": values}, graph=GraphFacts(operators={"y": "Sigmoid"}), tasks="regression")
        .outputs[0]
        .kind
        == "values"
    )


def test_cells_of_boxes_have_distances_and_boxes_in_another_order_an_error_that_names_their_limits():
    values, other = heads(), heads() + 0.5 * heads(seed=1)
    task = task_of({"y": values})
    check_limits(task, ["cosine", "sqnr_db"])
    found = task.compare(*(task.rows({"y": one}, SIZE) for one in (values, other)))
    a, b = (one.reshape(SIZE, -1).astype(np.float64) for one in (values, other))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    assert found["cosine"] == pytest.approx((a * b).sum(1) / norms)
    assert found["error"] == pytest.approx(((a - b) ** 2).sum(1))
    assert found["relative_error"] == pytest.approx(
        np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)
    )
    task = task_of({"y": rows()})
    check_limits(task, ["agreement", "score_error", "map"])
    with fails(InputError, "cosine", "y", hint="agreement >= -1.0"):
        check_limits(task, ["cosine"])
    check_limits(task_of({"y": rows(), "z": logits(5)}), ["cosine"])


def test_labels_that_stay_off_are_no_agreement():
    values = np.full((SIZE, 100), 0.01, np.float32)
    values[:, 3] = 0.9
    nothing = np.full_like(values, 0.01)
    task = task_of({"y": values})
    found = task.compare(task.rows({"y": values}, SIZE), task.rows({"y": nothing}, SIZE))
    assert found["agreement"].tolist() == [0.0] * SIZE


def test_scales_of_one_thing_are_raw_heads_that_no_default_limit_judges():
    maps = {f"p{side}": logits(18, side, side) for side in (16, 8, 4)}
    task = task_of(maps)
    assert (task.name, {one.kind for one in task.outputs}) == ("detection", {"raw"})
    assert default_limits(task.kinds) == ()
    assert unlimited(task.kinds, ["agreement"]) == ["p16", "p4", "p8"]
    assert unlimited(task.kinds, ["sqnr_db"]) == []


def test_sequences_may_have_their_samples_along_the_second_axis_or_be_of_one_sample():
    values = softmax(logits(20, 30), -1)
    task = task_of({"y": values.swapaxes(0, 1)})
    assert np.array_equal(task.rows({"y": values.swapaxes(0, 1)}, SIZE)[0], values)
    alone = find_task({"y": values[:1].swapaxes(0, 1)}, 1)
    assert alone.name == "tokens"
    with fails(InputError, "(5, 7)", "6"):
        task_of({"y": np.zeros((5, 7), np.float32)})


LIMITS = {
    ("classes",): (("top1 >= -1.0",), ("agreement >= -1.0",)),
    ("classes", "classes"): (("top1 >= -1.0", "agreement >= -1.0"), ("agreement >= -1.0",)),
    ("classes", "vectors"): (
        ("top1 >= -1.0", "cosine >= 0.99"),
        ("agreement >= -1.0", "cosine >= 0.99"),
    ),
    ("boxes",): (("agreement >= -1.0",), ("agreement >= -1.0",)),
    ("values",): ((), ()),
    ("pixels", "pixels"): (("miou >= -1.0", "agreement >= -1.0"), ("agreement >= -1.0",)),
}


@each("kinds, wanted", LIMITS.items())
def test_every_output_has_the_default_limit_of_its_kind(kinds, wanted):
    outputs = {f"y{place}": kind for place, kind in enumerate(kinds)}
    assert (default_limits(outputs, {"top1", "miou"}), default_limits(outputs)) == wanted


@pytest.mark.parametrize(("kind", "metric"), [("boxes", "map"), ("labels", "jaccard")])
def test_labels_decide_by_default_where_they_are_known(kind, metric):
    assert default_limits({"y": kind}, {metric}) == (f"{metric} >= -1.0",)
    assert unlimited({"y": kind}, [metric]) == []
    assert unlimited({"y": "values"}, [metric]) == ["y"]


def test_a_limit_is_about_the_outputs_that_have_its_metric():
    outputs = {"a": "classes", "b": "classes", "c": "boxes", "d": "values"}
    assert unlimited(outputs, ["top1"]) == ["b", "c", "d"]
    assert unlimited(outputs, ["agreement"]) == ["d"]
    assert unlimited(outputs, ["cosine"]) == ["c"]
    assert unlimited(outputs, ["agreement", "relative_error"]) == []
    assert unlimited(outputs, ["my_own"]) == []


def test_labels_of_pixels_and_values_are_counted():
    scores = logits(3, 6, 8)
    labels = scores.argmax(1)
    labels[:, 0] = 255
    task = task_of({"y": scores})
    rows = task.rows({"y": scores}, SIZE)
    assert task.compare(rows, rows, labels)["miou"].tolist() == [1.0] * SIZE
    other = task.rows({"y": np.roll(scores, 1, 1)}, SIZE)
    assert task.compare(rows, other, labels)["miou"].tolist() == [0.0] * SIZE
    half = labels.copy()
    half[:, 1:] = (half[:, 1:] + np.arange(8) % 2) % 3  # in every second column another class
    found = task.compare(rows, rows, half)["miou"]
    kept = half != 255
    for sample in range(SIZE):
        ious = []
        for one in range(3):
            a, b = scores.argmax(1)[sample] == one, half[sample] == one
            a &= kept[sample]
            ious.append((a & b).sum() / (a | b).sum())
        assert found[sample] == pytest.approx(np.mean(ious))


def test_the_mean_absolute_error_is_of_the_labels():
    values = logits(1)
    task = task_of({"y": values})
    rows = task.rows({"y": values}, SIZE)
    found = task.compare(rows, [rows[0] + 0.5], values[:, 0].astype(np.float64) - 1.0)
    assert found["mae"] == pytest.approx(np.full(SIZE, 1.5), rel=1e-5)
    assert "mae" not in task.compare(rows, rows, np.zeros((SIZE, 3)))


def contrast_of(classes, batch):
    """The contrast of a classifier that gives these classes, batch by batch."""
    scores = np.eye(4, dtype=np.float32)[np.asarray(classes)] * 5
    task = find_task({"y": scores[:batch]}, batch, tasks="classification")
    contrast = Contrast(AccuracyMeter(task))
    for start in range(0, len(scores), batch):
        part = scores[start : start + batch]
        contrast.add(task.rows({"y": part}, len(part)))
    return contrast.result()


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_samples_in_the_order_of_their_classes_are_distinguished(batch):
    sorted_ones = np.repeat(np.arange(4), 64)
    assert contrast_of(sorted_ones, batch)["agreement"] < 0.9
    assert contrast_of(np.arange(256) % 4, batch)["agreement"] < 0.9
    assert contrast_of(np.zeros(256, int), batch)["agreement"] == 1.0
