"""The figures that compare and ab give of tasks with and without labels, computed again by hand."""

import numpy as np
import onnx
import pytest
from onnx import helper
from scipy import special

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save
from tests.fixtures.tables import each
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.ab import ABOptions, Question, ab_test
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, compare
from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.variant_limits import with_default
from trtcal.evaluate.variants import open_variant
from trtcal.limits import parse_limits
from trtcal.model import load_model

SAMPLES = 64
SHAPES = {
    "multilabel": (5,), "binary": (1,), "embedding": (8,), "tokens": (6, 7), "audio": (300,),
    "regression": (1,), "segmentation": (5, 4, 6), "classes": (4,),
}  # fmt: skip
LAST = {"multilabel": "Sigmoid", "binary": "Sigmoid", "audio": "Tanh", "classes": "ArgMax"}
GIVEN = {kind: kind for kind in ("audio", "tokens", "segmentation")}


def network(path, kind, noise=0.0):
    """The input, with a constant added and the last operator of its kind."""
    shape = SHAPES[kind]
    offset = noise * np.random.default_rng(3).standard_normal((1, *shape)).astype(np.float32)
    last = LAST.get(kind, "LpNormalization" if kind == "embedding" else "Identity")
    given = {"axis": 1} if last == "LpNormalization" else {}
    add = helper.make_node("Add", ["x", "offset"], ["z"])
    nodes, outputs = [add, helper.make_node(last, ["z"], ["y"], **given)], {"y": ["n", *shape]}
    if last == "ArgMax":
        nodes = [add, *as_nodes("i = ArgMax<axis=1, keepdims=0>(z)  y = Cast<to=6>(i)")]
        outputs = {"y": ["n"]}
    path = save(path, nodes, {"offset": offset}, {"x": ["n", *shape]}, outputs)
    if last == "ArgMax":
        proto = onnx.load(path)
        proto.graph.output[0].type.tensor_type.elem_type = 6
        onnx.save(proto, path)
    return path


def made_by(kind, x, noise):
    z = x + (noise * np.random.default_rng(3).standard_normal((1, *SHAPES[kind]))).astype("f4")
    forms = {
        "Sigmoid": special.expit,
        "Tanh": np.tanh,
        "ArgMax": lambda z: z.argmax(1),
        "LpNormalization": lambda z: z / np.linalg.norm(z, axis=1, keepdims=True),
    }
    default = "LpNormalization" if kind == "embedding" else ""
    return forms.get(LAST.get(kind, default), lambda z: z)(z.astype(np.float64))


def cosine(a, b):
    a, b = (one.reshape(SAMPLES, -1) for one in (a, b))
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def sqnr(a, b):
    return 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())


def overlap(a, b):
    either = (a | b).sum(1)
    return np.where(either == 0, 1.0, (a & b).sum(1) / np.maximum(either, 1))


def of_both(p):
    return np.concatenate([1 - p, p], axis=1)


def judged(tmp_path, kind, labels=None, noise=0.4, limits=(), own=None):
    """What compare and ab give of a network and of a noisy one; and both outputs by numpy."""
    x = np.random.default_rng(1).standard_normal((SAMPLES, *SHAPES[kind])).astype(np.float32)
    paths = [network(tmp_path / f"{n}.onnx", kind, n * noise) for n in (0, 1)]
    data = {"x": x} if labels is None else {"x": x, "labels": labels(x)}
    dataset = open_dataset(data, load_model(paths[0]))
    one, other = (open_variant(path) for path in paths)
    task, limits = GIVEN.get(kind), parse_limits(limits)
    wanted = CollectSettings(task=task, own=own)
    found = compare(one, [other], dataset, limits, CompareSettings(16, 2, wanted))
    test = ab_test(one, other, dataset, Question(limits), ABOptions(batch=16, task=task, own=own))
    answers = {answer.name: (answer.baseline, answer.candidate) for answer in test.verdict.answers}
    return found, answers, made_by(kind, x, 0), made_by(kind, x, noise)


DECISIONS = {
    "multilabel": lambda a, b: overlap(a > 0.5, b > 0.5),
    "binary": lambda a, b: ((a > 0.5) == (b > 0.5))[:, 0],
    "tokens": lambda a, b: (a.argmax(-1) == b.argmax(-1)).mean(1),
    "segmentation": lambda a, b: (a.argmax(1) == b.argmax(1)).reshape(SAMPLES, -1).mean(1),
    "classes": lambda a, b: a == b,
}


@each("kind", SHAPES)
def test_agreement_cosine_and_sqnr(tmp_path, kind):
    found, answers, a, b = judged(tmp_path, kind)
    accuracy = found.rows[1].accuracy
    task = {"binary": "classification", "classes": "classification"}.get(kind, kind)
    assert found.task.name == task
    if kind in DECISIONS:
        wanted = 100 * DECISIONS[kind](a, b).mean()
        assert 20 < wanted < 100
        assert accuracy.agreement == pytest.approx(wanted)
        assert answers["agreement"] == pytest.approx((100, wanted))
    if kind != "classes":
        a, b = (of_both(one) if kind == "binary" else one for one in (a, b))
        assert accuracy.cosine == pytest.approx(cosine(a, b).mean(), rel=1e-4)
        assert accuracy.sqnr_db == pytest.approx(sqnr(a, b), rel=1e-3)
        assert answers["cosine"] == pytest.approx((1, cosine(a, b).mean()), rel=1e-4)
        relative = [np.linalg.norm(one) for one in a - b] / np.linalg.norm(
            a.reshape(SAMPLES, -1), axis=1
        )
        assert accuracy.relative_error == pytest.approx(relative.mean(), rel=1e-4)


def some(shape, below, seed=9):
    return lambda x: np.random.default_rng(seed).integers(0, below, (SAMPLES, *shape))


LABELS = {
    "multilabel": (
        some((5,), 2),
        "jaccard",
        lambda y, one: 100 * overlap(y > 0.5, one == 1).mean(),
    ),
    "binary": (some((1,), 2), "top1", lambda y, one: 100 * ((y > 0.5) == one).mean()),
    "classes": (some((), 4), "top1", lambda y, one: 100 * (y == one).mean()),
    "regression": (lambda x: x[:, 0] + 0.5, "mae", lambda y, one: np.abs(y[:, 0] - one).mean()),
    "segmentation": (
        some((4, 6), 5),
        "miou",
        lambda y, one: (
            100 * np.mean([mean_iou(*both) for both in zip(y.argmax(1), one, strict=True)])
        ),
    ),
}


def mean_iou(made, labels):
    classes = np.union1d(made, labels)
    return np.mean(
        [((made == c) & (labels == c)).sum() / ((made == c) | (labels == c)).sum() for c in classes]
    )


@pytest.mark.parametrize("kind", LABELS)
def test_figures_of_labels(tmp_path, kind):
    labels, metric, figure = LABELS[kind]
    found, answers, a, b = judged(tmp_path, kind, labels)
    given = labels(np.random.default_rng(1).standard_normal((SAMPLES, *SHAPES[kind])).astype("f4"))
    wanted = figure(a, given), figure(b, given)
    assert answers[metric] == pytest.approx(wanted, rel=1e-4)
    if metric == "top1":
        assert found.rows[1].accuracy.top1 == pytest.approx(wanted[1])
        assert found.rows[1].accuracy.top1_drop == pytest.approx(wanted[0] - wanted[1])
    else:
        factor = 1 if metric == "mae" else 100
        assert factor * found.rows[1].means[metric].value.mean == pytest.approx(wanted[1], rel=1e-4)


@pytest.mark.parametrize("kind", ["multilabel", "binary", "segmentation", "classes"])
def test_labels_may_be_floats_and_the_default_limit_is_about_them(tmp_path, kind):
    labels, metric, _ = LABELS[kind]
    whole = judged(tmp_path, kind, labels)[1]
    assert judged(tmp_path, kind, lambda x: labels(x).astype("f4"))[1][metric] == whole[metric]
    found, answers, *_ = judged(tmp_path, kind, labels, noise=0.0)
    assert [str(one) for one in with_default(found)] == [f"{metric} >= -1.0 points"]
    assert next(iter(answers)) == metric


UNFITTING = {
    "classes of samples for pixels": ("segmentation", some((), 3)),
    "three columns for one value": ("regression", lambda x: np.zeros((SAMPLES, 3))),
    "other labels than the model's": ("multilabel", some((4,), 2)),
    "classes for an embedding": ("embedding", some((), 8)),
    "five next tokens of six": ("tokens", some((5,), 7)),
}


@pytest.mark.parametrize(("kind", "labels"), UNFITTING.values(), ids=UNFITTING)
def test_labels_that_no_output_fits_are_an_error_unless_a_metric_takes_them(tmp_path, kind, labels):
    with fails(InputError, kind, "y", hint="--metric-file"):
        judged(tmp_path, kind, labels)
    own = OwnMetric(tmp_path, lambda outputs, labels: {"sum_of_labels": float(labels.sum())})
    found, *_ = judged(tmp_path, kind, labels, limits=["sum_of_labels >= 0.5"], own=own)
    assert found.rows[1].own[0].name == "sum_of_labels"


def test_labels_of_several_are_0_and_1(tmp_path):
    with fails(InputError, "3"):
        judged(tmp_path, "multilabel", some((5,), 4))
