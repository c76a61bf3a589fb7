"""Networks whose outputs have another number of rows in each run, compared from end to end."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.commands import shows
from tests.fixtures.graphs import as_nodes
from tests.fixtures.schema import schema_errors
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.evaluate.ab import ABOptions, Question, ab_test
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, Comparison, compare
from trtcal.evaluate.metrics import load_metric, task_rows
from trtcal.evaluate.replay import Batch
from trtcal.evaluate.tasks import TaskReader
from trtcal.evaluate.variants import open_variant
from trtcal.limits import parse_limits
from trtcal.model import load_model
from trtcal.reporting.document import assemble
from trtcal.reporting.markdown import to_markdown
from trtcal.reporting.render import render
from trtcal.reporting.verdict import judge
from trtcal.runs.figures import figures_of_run

SAMPLES, INPUTS, CELLS, CLASSES = 64, 10, 24, 3
LAYOUTS = ("selected", "rows", "separate", "raw maps")


def detector(path, layout, seed=0, noise=0.0):
    """Scores by a MatMul, places that do not depend on the input, then a NonMaxSuppression."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(3)
    low = rng.uniform(0, 400, (1, CELLS, 2))
    places = np.concatenate([low, low + rng.uniform(30, 80, (1, CELLS, 2))], axis=2)
    weights = rng.standard_normal((INPUTS, CLASSES * CELLS))
    weights *= 1 + noise * other.standard_normal(weights.shape)
    made = {
        "w": weights.astype(np.float32),
        "offset": np.full((1,), -2.0, np.float32),
        "shape": np.array([0, CLASSES, CELLS]),
        "places": places.astype(np.float32),
        "zero": np.zeros((1, 1, 1), np.float32),
        "most": np.array([20]),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.5], np.float32),
        "all": np.array([-1]),
        "first": np.array([0]),
        "sides": np.array([0, 2]),
        "class": np.array([1]),
    }
    nodes = as_nodes(
        "[linear] m = MatMul(x, w)  a = Add(m, offset)  s = Sigmoid(a)  "
        "scores = Reshape(s, shape)  r = ReduceMean<axes=[1, 2], keepdims=1>(scores)  "
        "z = Mul(r, zero)  boxes = Add(z, places)  "
        "nms = NonMaxSuppression(boxes, scores, most, iou, least)  "
        "where = Gather<axis=1>(nms, sides)  kept_boxes = GatherND(boxes, where)  "
        "kept_scores = GatherND(scores, nms)  kept_class = Gather<axis=1>(nms, class)  "
        "sample = Gather<axis=1>(nms, first)  sample_f = Cast<to=1>(sample)  "
        "class_f = Cast<to=1>(kept_class)  score_f = Unsqueeze(kept_scores, class)  "
        "rows = Concat<axis=1>(sample_f, kept_boxes, class_f, score_f)  "
        "labels = Squeeze(kept_class, class)"
    )
    value = helper.make_tensor_value_info
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    outputs = {
        "selected": [value("nms", whole, ["k", 3])],
        "rows": [value("rows", floats, ["k", 7])],
        "separate": [
            value("kept_boxes", floats, ["k", 4]),
            value("kept_scores", floats, ["k"]),
            value("labels", whole, ["k"]),
        ],
        "raw maps": [
            value("boxes", floats, ["n", CELLS, 4]),
            value("scores", floats, ["n", CLASSES, CELLS]),
        ],
    }[layout]
    graph = helper.make_graph(
        nodes,
        "test",
        [value("x", floats, ["n", INPUTS])],
        outputs,
        [numpy_helper.from_array(one, name) for name, one in made.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(5).standard_normal((SAMPLES, INPUTS)).astype(np.float32)


def judged(folder, data, layout, limit="agreement >= -20", **how):
    a = detector(folder / "a.onnx", layout)
    b = detector(folder / "b.onnx", layout, **how)
    both = [open_variant(path) for path in (a, b)]
    dataset, limits = open_dataset(data, load_model(a)), parse_limits([limit])
    comparison = compare(
        both[0], both[1:], dataset, limits, CompareSettings(16, 2, CollectSettings())
    )
    return comparison, ab_test(*both, dataset, Question(limits), ABOptions(16))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_boxes_are_matched_and_not_refused(tmp_path, data, layout):
    comparison, test = judged(tmp_path, data, layout, noise=1e-3)
    assert comparison.task.name == test.task.name == "detection"
    assert comparison.task.outputs == {"boxes": "boxes"}
    figures = comparison.rows[1].accuracy
    assert 90 < figures.agreement <= 100
    assert figures.score_error < 0.1
    assert comparison.batch == (1 if layout == "separate" else 16)
    assert test.verdict.word == "SHIP"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_boxes_are_not_found_again(tmp_path, data, layout):
    comparison, test = judged(tmp_path, data, layout, seed=9)
    assert comparison.rows[1].accuracy.agreement < 40
    assert test.verdict.word == "DO NOT SHIP"


def test_empty_pictures_decide_nothing(tmp_path, data):
    comparison, test = judged(tmp_path, data * 0, "rows", seed=9)
    assert comparison.rows[1].accuracy.agreement == 100
    assert test.verdict.word == "INCONCLUSIVE"
    assert "the limit is too weak" in test.verdict.sentence


def test_the_commands_take_task_and_outputs_and_say_them(tmp_path, data, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    detector(tmp_path / "a.onnx", "raw maps")
    detector(tmp_path / "b.onnx", "raw maps", noise=1e-3)
    np.savez(tmp_path / "data.npz", x=data)
    (tmp_path / "trtcal.toml").write_text('task = "multilabel"\noutputs = ["scores"]\n')

    def run(*words):
        status = run_command([*words, "--data", "data.npz"])
        return status, "".join(capfd.readouterr())

    status, text = run("compare", "a.onnx", "b.onnx", "--rounds", "2")
    assert status == 0
    shows(text, "multilabel", "scores", "labels")
    found = json.loads((tmp_path / "comparison.json").read_text())["task"]
    assert (found["name"], found["outputs"]) == ("multilabel", {"scores": "labels"})
    words = ("ab", "a.onnx", "b.onnx", "--outputs", "boxes,scores", "--task", "regression")
    status, text = run(*words)
    shows(text, "regression", "boxes", "scores")
    assert status == 1
    shows(" ".join(text.split()), '--limit "sqnr_db >= 30"')
    status, text = run(*words, "--limit", "sqnr_db >= 30")
    assert status == 0, text
    status, text = run("ab", "a.onnx", "b.onnx", "--outputs", "maps")
    assert status == 2
    shows(text, "'maps'")
    assert run("ab", "a.onnx", "b.onnx", "--task", "nonsense")[0] == 2


@pytest.mark.parametrize(("layout", "is_of_boxes"), [("raw maps", False), ("rows", True)])
def test_the_noise_of_boxes_is_that_of_cells_where_there_are_any(
    tmp_path, data, layout, is_of_boxes
):
    a, b = (
        open_variant(detector(tmp_path / f"{name}.onnx", layout, noise=how))
        for name, how in (("a", 0.0), ("b", 1e-4))
    )
    names = [one.name for one in a.outputs]
    outputs = [one.runner(names)({"x": data[:8]}) for one in (a, b)]
    rows = task_rows(TaskReader(), Batch(np.arange(8), 8, None, outputs[0], (outputs[1],)))
    assert (rows["agreement"] == 1).all()
    assert (rows["error"] == 0).all() == is_of_boxes


def test_the_report_of_a_detector_names_its_figures(tmp_path, data):
    comparison, _ = judged(tmp_path, data, "rows", noise=1e-3)
    folder = tmp_path / "run"
    comparison.write(folder / "comparison.json")
    document = assemble(folder)
    for page in (render(document), to_markdown(document)):
        shows(page, "Boxes found again", "detection")
        assert "Top-1, %" not in page
    assert not schema_errors(document)
    assert "top-1" not in comparison._repr_html_()
    assert figures_of_run(document)["b", "score_error"] < 0.1
    assert Comparison.read(folder / "comparison.json") == comparison


def test_a_metric_of_ones_own_decides_in_compare_and_in_the_report(tmp_path, data):
    a, b = (
        detector(tmp_path / f"{name}.onnx", "raw maps", noise=how)
        for name, how in (("a", 0), ("b", 1e-3))
    )
    script = tmp_path / "own.py"
    code = "def metric(outputs, labels):\n    return {'peak': outputs['scores'].max()}\n"
    script.write_text(code)
    reference, other = map(open_variant, (a, b))
    dataset = open_dataset(data, load_model(a))
    words = {}
    for text in ("peak >= -0.05", "peak >= -10%", "peak >= 0.2", "peak >= 0.999"):
        limits, own = parse_limits([text]), load_metric(script)
        settings = CompareSettings(16, 2, CollectSettings(own=own))
        comparison = compare(reference, [other], dataset, limits, settings)
        test = ab_test(reference, other, dataset, Question(limits), ABOptions(16, own=own))
        words[text] = judge(comparison).word, test.verdict.word
    assert words == {
        "peak >= -0.05": ("SHIP WITH CARE", "SHIP"),
        "peak >= -10%": ("SHIP WITH CARE", "SHIP"),
        "peak >= 0.2": ("SHIP WITH CARE", "SHIP"),
        "peak >= 0.999": ("DO NOT SHIP", "DO NOT SHIP"),
    }
