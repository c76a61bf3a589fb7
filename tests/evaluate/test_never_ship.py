"""Random weights, swapped outputs, another order of classes: none may ship, in any task and metric."""

import numpy as np
import pytest
from onnx import helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save
from tests.fixtures.slow import slow_but
from trtcal.backends.sessions import open_session, run_session
from trtcal.data import open_dataset
from trtcal.evaluate.ab import ABOptions, Question, ab_test
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, compare
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evaluate.variants import open_variant
from trtcal.limits import BROKEN, HOLDS, parse_limits
from trtcal.model import load_model
from trtcal.reporting.verdict import judge

SAMPLES, INPUTS, HIDDEN, CELLS = 512, 12, 48, 30
HEADS = {
    "classification": (6,), "multilabel": (12,), "detection": (3, CELLS),
    "segmentation": (4, 6, 6), "regression": (1,), "embedding": (24,), "tokens": (8, 10),
    "audio": (600,),
}  # fmt: skip
"""Task -> what one head gives for a sample."""
UNSAID = ("classification", "tokens", "audio")  # of which these networks show nothing
CLASSES = {"tokens": -1}  # the axis of classes, else the first


def weights(task, seed, noise, order):
    """The weights of a network of two heads; `noise` is relative, `order` rolls the classes."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(99)
    made = {"w1": rng.standard_normal((INPUTS, HIDDEN)) / 3}
    for head in "ab":
        shape = HEADS[task]
        last = rng.standard_normal((HIDDEN, *shape)) / 3
        offset = rng.standard_normal((1, *shape))
        if order:
            axis = CLASSES.get(task, 0)
            last, offset = (np.roll(one, 1, axis % len(shape) + 1) for one in (last, offset))
        made |= {f"w{head}": last.reshape(HIDDEN, -1), f"b{head}": offset.reshape(1, -1)}
        places = rng.uniform(50, 500, (1, 4, CELLS))
        places[:, 2:] = rng.uniform(20, 60, (1, 2, CELLS))
        made[f"places {head}"] = places
    made = {
        name: one * (1 + noise * other.standard_normal(one.shape)) for name, one in made.items()
    }
    return {name: one.astype(np.float32) for name, one in made.items()}


def head_nodes(task, head, output):
    """Linear, reshaped as the task has it, with the task's last operator."""
    scores = f"scores {head}"
    nodes = [
        helper.make_node("MatMul", ["h", f"w{head}"], [f"m{head}"]),
        helper.make_node("Add", [f"m{head}", f"b{head}"], [f"z{head}"]),
        helper.make_node("Reshape", [f"z{head}", "shape"], [scores]),
    ]
    last = {"multilabel": "Sigmoid", "detection": "Sigmoid", "audio": "Tanh"}.get(task)
    if task == "embedding":
        return [*nodes, helper.make_node("LpNormalization", [scores], [output], axis=1)]
    if task == "detection":
        return [
            *nodes,
            helper.make_node("Sigmoid", [scores], [f"s{head}"]),
            helper.make_node("Slice", [f"z{head}", "zero", "one", "axis"], [f"c{head}"]),
            helper.make_node("Unsqueeze", [f"c{head}", "axis"], [f"u{head}"]),
            helper.make_node("Mul", [f"u{head}", "zeros"], [f"n{head}"]),
            helper.make_node("Add", [f"n{head}", f"places {head}"], [f"boxes{head}"]),
            helper.make_node("Concat", [f"boxes{head}", f"s{head}"], [output], axis=1),
        ]
    return [*nodes, helper.make_node(last or "Identity", [scores], [output])]


def network(path, task, seed=0, noise=0.0, order=False, swap=False):
    nodes = [
        *as_nodes("g = MatMul(x, w1)  h = Relu(g)"),
        *head_nodes(task, "a", "y2" if swap else "y1"),
        *head_nodes(task, "b", "y1" if swap else "y2"),
    ]
    shape = (-1, *HEADS[task])
    whole = (4 + HEADS[task][0], CELLS) if task == "detection" else HEADS[task]
    made = weights(task, seed, noise, order) | {"shape": np.array(shape)}
    if task == "detection":
        made |= {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([1])}
        made["zeros"] = np.zeros((1, 4, CELLS), np.float32)
    outputs = {name: ["n", *whole] for name in ("y1", "y2")}
    return save(path, nodes, made, {"x": ["n", INPUTS]}, outputs)


BROKEN_ONES = {
    "random weights": {"seed": 7},
    "swapped outputs": {"swap": True},
    "another order of classes": {"order": True},
}
LIMITS = (
    None, "agreement >= -10", "agreement >= 80", "cosine >= 0.8", "cosine >= -0.1",
    "relative_error <= 0.5", "sqnr_db >= 8",
)  # fmt: skip
HAS_AGREEMENT = ("classification", "multilabel", "detection", "segmentation", "tokens")
HAS_DISTANCE = tuple(task for task in HEADS if task != "detection")


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(5).standard_normal((SAMPLES, INPUTS)).astype(np.float32)


@pytest.fixture(scope="module")
def verdicts(data, tmp_path_factory):
    """What compare and ab make of a variant: both words, and the state of every limit."""
    folder, known = tmp_path_factory.mktemp("nets"), {}

    def variant(task, **how):
        name = f"{task}-{'-'.join(f'{key}-{value}' for key, value in how.items()) or 'float'}"
        if name not in known:
            known[name] = open_variant(network(folder / f"{name}.onnx", task, **how), name)
        return known[name]

    def judged(task, limit, samples=SAMPLES, **how):
        reference, other = variant(task), variant(task, **how)
        dataset = open_dataset(data[:samples], load_model(folder / f"{task}-float.onnx"))
        limits = parse_limits([limit] if limit else [])
        given = task if task in UNSAID else None
        judged = ("y1",) if task == "detection" else ()  # boxes are read from one output
        settings = CompareSettings(32, 2, CollectSettings(task=given, outputs=judged))
        comparison = compare(reference, [other], dataset, limits, settings)
        options = ABOptions(task=given, outputs=judged)
        tested = ab_test(reference, other, dataset, Question(limits), options)
        assert comparison.task.name == tested.task.name == task
        return judge(comparison), tested.verdict

    return judged


def has_metric(task, limit):
    name = limit.split()[0] if limit else None
    distance = name in ("cosine", "relative_error", "sqnr_db")
    return (name != "agreement" or task in HAS_AGREEMENT) and (not distance or task in HAS_DISTANCE)


def cases(limits=LIMITS):
    return [(task, limit) for task in HEADS for limit in limits if has_metric(task, limit)]


QUICK = ("classification", "tokens")


def some(values):
    """Return parameters that begin with a task, all slow but a few tasks."""
    return slow_but(values, *(one for one in values if one[0] in QUICK))


@pytest.mark.parametrize(
    ("task", "limit", "broken"),
    some(
        [
            (task, limit, broken)
            for task, limit in cases()
            for broken in BROKEN_ONES
            if (task, broken)
            != ("regression", "another order of classes")  # one value has no order
        ]
    ),
)
def test_a_broken_network_never_ships(verdicts, task, limit, broken):
    report, test = verdicts(task, limit, 96, **BROKEN_ONES[broken])
    assert report.word in ("DO NOT SHIP", "INCONCLUSIVE")
    assert not test.is_good
    assert all(one.state != HOLDS for one in test.limits)


@pytest.mark.parametrize(
    ("task", "limit"), some(cases((None, "agreement >= -5", "cosine >= 0.99")))
)
def test_what_is_nearly_the_same_holds_the_same_limits(verdicts, task, limit):
    report, test = verdicts(task, limit, noise=1e-5)
    if limit is None and task == "regression":
        assert test.word == report.word == "INCONCLUSIVE"
        for one in (test, report):
            advice = 'y1, y2 have no default limit: give one, such as --limit "sqnr_db'
            assert advice in one.sentence
            assert "the suggested limit, >= 30 dB, holds; " in one.sentence
            states = {(limit.state, limit.gate, limit.is_suggested) for limit in one.limits}
            assert states == {("holds", "undecided", True)}
        return
    if (task, limit) == ("regression", "cosine >= 0.99"):  # of one value it is its sign
        return
    assert test.word == "SHIP"
    assert report.word == "SHIP WITH CARE"  # no engine was built


@pytest.mark.parametrize("limit", ["sqnr_db >= 30", "relative_error <= 0.01"])
@pytest.mark.parametrize("task", slow_but(HAS_DISTANCE, *QUICK))
def test_a_limit_on_any_metric_of_the_task_can_ship(verdicts, task, limit):
    report, test = verdicts(task, limit, noise=1e-5)
    assert (test.word, report.word) == ("SHIP", "SHIP WITH CARE")
    assert [str(one.limit) for one in test.limits] == [str(one.limit) for one in report.limits]


LABELLED = {"segmentation": ("miou", ()), "regression": ("mae", ("mae <= +0.05",))}


@pytest.mark.parametrize("task", LABELLED)
def test_labels_of_pixels_and_of_values_decide(task, data, tmp_path):
    a, b, broken = (
        network(tmp_path / f"{name}.onnx", task, **how)
        for name, how in (("a", {}), ("b", {"noise": 1e-5}), ("c", {"seed": 7}))
    )
    outputs = run_session(open_session(load_model(a).proto), ["y1"], {"x": data})[0]
    labels = outputs.argmax(1) if task == "segmentation" else outputs[:, 0] + 0.5
    metric, limits = LABELLED[task]
    dataset = open_dataset({"x": data, "labels": labels}, load_model(a))
    reference, *others = map(open_variant, (a, b, broken))
    settings = CompareSettings(32, 2, CollectSettings(outputs=("y1",)))
    comparison = compare(reference, others, dataset, parse_limits(limits), settings)
    states = {
        name: {one.limit.metric: one.state for one in judged}
        for name, judged in judge_variants(comparison).items()
    }
    assert states == {"b": {metric: HOLDS}, "c": {metric: BROKEN}}
    question, options = Question(parse_limits(limits)), ABOptions(outputs=("y1",))
    words = [ab_test(reference, one, dataset, question, options).verdict.word for one in others]
    assert words == ["SHIP", "DO NOT SHIP"]
