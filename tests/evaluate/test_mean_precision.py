"""mAP beside COCO's annotations: the figures of pycocotools, their intervals, and what does not fit."""

import contextlib
import io
import json
import sys

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save
from tests.fixtures.slow import SLOW, slow_but
from trtcal.cli.main import run_command
from trtcal.config import read_config, tomllib
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.boxes import Boxes
from trtcal.evaluate.mean_precision import PrecisionCollector, matched, mean_precision
from trtcal.evaluate.tasks import find_task
from trtcal.model import load_model
from trtcal.pipeline.guess import Sources, draft_config

IMAGES, CLASSES, CELLS, HEIGHT, WIDTH = 200, 3, 96, 14, 16
IDS = (18, 3, 90)  # of the categories, as they stand in the file
CLASS_OF = {3: 0, 18: 1, 90: 2}


def scene(images=IMAGES, seed=0):
    """Heads [n, 4+C, A] in pixels of the input; annotations in those of images ten times as large."""
    rng = np.random.default_rng(seed)
    heads = np.zeros((images, 4 + CLASSES, CELLS))
    heads[:, :2], heads[:, 2:4] = rng.uniform(2, 14, (images, 2, CELLS)), 0.5
    heads[:, 4:] = rng.uniform(0, 0.02, (images, CLASSES, CELLS))
    annotations = []
    for image in range(images):
        for cell in range(0, 3 * rng.integers(0, 4), 3):
            kind, size = int(rng.choice(IDS)), rng.uniform(2, 6, 2)
            middle = rng.uniform(size / 2, (WIDTH, HEIGHT) - size / 2)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": 1000 - image,
                    "category_id": kind,
                    "bbox": [*((middle - size / 2) * 10), *(size * 10)],
                    "area": float(size.prod() * 100),
                    "iscrowd": int(rng.random() < 0.05),
                }
            )
            wrong = rng.random() < 0.1
            place = CLASS_OF[kind] if not wrong else (CLASS_OF[kind] + 1) % 3
            found = [*(middle + rng.normal(0, 0.3, 2)), *(size * rng.uniform(0.8, 1.2, 2))]
            heads[image, :4, cell], heads[image, 4 + place, cell] = found, rng.uniform(0.1, 0.95)
    pictures = [
        {"id": 1000 - n, "file_name": f"{n:04}.png", "width": 10 * WIDTH, "height": 10 * HEIGHT}
        for n in range(images)
    ]
    document = {
        "images": pictures,
        "categories": [{"id": one, "name": str(one)} for one in IDS],
        "annotations": annotations,
    }
    return heads[::-1].astype(np.float32), document  # samples are in the order of the images' ids


def detector(path, noise=0.0, scores=1.0):
    """A network whose input holds the head that it gives, with boxes moved and scores scaled."""
    shape = (1, 4 + CLASSES, CELLS)
    offset, factor = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    offset[:, :2] = noise * np.random.default_rng(1).standard_normal((1, 2, CELLS))
    factor[:, 4:] = scores
    nodes = as_nodes(
        "head = Reshape(x, shape)  scaled = Mul(head, factor)  y = Add(scaled, offset)"
    )
    weights = {"shape": np.array([-1, *shape[1:]]), "factor": factor, "offset": offset}
    return save(path, nodes, weights, {"x": ["n", 3, HEIGHT, WIDTH]}, {"y": ["n", *shape[1:]]})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    heads, document = scene()
    np.savez(folder / "data.npz", x=heads.reshape(IMAGES, 3, HEIGHT, WIDTH))
    (folder / "instances.json").write_text(json.dumps(document))
    detector(folder / "float.onnx")
    detector(folder / "same.onnx", 0.001)
    detector(folder / "worse.onnx", 1.0)
    return folder


def coco(document):
    one = COCO()
    one.dataset = document
    with contextlib.redirect_stdout(io.StringIO()):
        one.createIndex()
    return one


def of_pycocotools(heads, document):
    """mAP and mAP50 by pycocotools alone, in pixels of the images; heads in the order of the ids."""
    found = []
    (task,) = find_task({"y": heads}, len(heads)).outputs
    collector = PrecisionCollector(task.decoder)
    for number, boxes in zip(
        sorted(one["id"] for one in document["images"]),
        collector.decoder.decode({"y": heads}, len(heads)),
        strict=True,
    ):
        for corners, score, name in zip(*boxes[:3], strict=True):
            x, y, right, low = (corners * 10).tolist()
            kind = sorted(IDS)[int(name)]
            found.append(
                {"image_id": number, "category_id": kind, "bbox": [x, y, right - x, low - y]}
                | {"score": float(score)}
            )
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco(document)
        run = COCOeval(truth, truth.loadRes(found), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats[:2]


def collected(place, *heads, batch=64, labels="instances.json"):
    data = open_dataset(place / "data.npz", load_model(place / "float.onnx"), None, place / labels)
    task = find_task({"y": heads[0]}, len(heads[0])).fitting([[]], data.labels)
    found = PrecisionCollector.of(task)
    for start in range(0, IMAGES, batch):
        parts = [{"y": one[start : start + batch]} for one in heads]
        size = len(parts[0]["y"])
        found.add(parts, size, data.labels[start : start + batch], np.ones(size, bool))
    return found


def moved(heads, noise):
    made = heads.copy()
    made[:, :2] += noise * np.random.default_rng(1).standard_normal((1, 2, CELLS))
    return made


@SLOW
def test_the_figures_are_those_of_pycocotools(place):
    heads, document = scene()
    other = moved(heads, 0.5)
    found = collected(place, heads, other)
    for number, one in enumerate((heads, other)):
        wanted = of_pycocotools(one, document)
        assert 0.1 < wanted[0] < wanted[1] < 0.95
        means = found.means(number)
        assert [means[name].value.mean for name in ("map", "map50")] == pytest.approx(wanted)
    change = found.means(1)["map"].change.mean
    assert change == pytest.approx(
        of_pycocotools(other, document)[0] - of_pycocotools(heads, document)[0]
    )


@SLOW
def test_a_weight_counts_a_sample_as_often(place):
    """As pycocotools gives it for a data set in which images stand twice, and others not at all."""
    heads, document = scene()
    weights = np.random.default_rng(3).integers(0, 3, IMAGES)
    numbers = np.repeat(np.arange(IMAGES), weights)
    images = sorted(document["images"], key=lambda one: one["id"])
    again = {"categories": document["categories"], "images": [], "annotations": []}
    for place_, number in enumerate(numbers):
        again["images"].append(images[number] | {"id": place_})
        own = [a for a in document["annotations"] if a["image_id"] == images[number]["id"]]
        again["annotations"] += [one | {"image_id": place_} for one in own]
    again["annotations"] = [one | {"id": n} for n, one in enumerate(again["annotations"], 1)]
    wanted = of_pycocotools(heads[numbers], again)
    found = collected(place, heads)._matched()[1][0]
    assert mean_precision(found, weights.astype(float)) == pytest.approx(wanted)


@SLOW
def test_the_interval_of_the_difference_is_paired_and_never_of_width_zero(place):
    heads, _ = scene()
    found = collected(place, heads, moved(heads, 0.3), heads)
    paired, alone = found.corpus("map", (0, 1)), found.corpus("map", (0, 0))
    change = paired.compare(0.95, 1.0).difference
    assert change.low < change.value < change.high < 0
    unpaired = paired.candidate.variance + alone.candidate.variance
    assert paired.change.variance < 0.8 * unpaired
    same = found.corpus("map", (0, 2)).compare(0.95, 1.0)
    assert same.difference.value == 0.0
    assert same.difference.low < 0 < same.difference.high
    assert same.p == 1.0
    few = np.arange(IMAGES) < 50
    assert found.corpus("map", (0, 1), few).samples == 50
    assert found.corpus("map", (0, 1), few).values[0, 0] != paired.values[0, 0]


def test_boxes_as_y_and_x_in_shares_are_read_too(place):
    heads, _ = scene()
    turned = heads[:, [1, 0, 3, 2, 4, 5, 6]]
    sides = np.array([HEIGHT, WIDTH] * 2).reshape(4, 1)
    turned = np.concatenate([turned[:, :4] / sides, turned[:, 4:]], axis=1)
    found, (task,) = collected(place, heads), find_task({"y": heads}, IMAGES).outputs
    other = PrecisionCollector(task.decoder)
    other.add([{"y": turned}], IMAGES, np.concatenate(found.labels), np.ones(IMAGES, bool))
    for name in ("map", "map50"):
        expected = found.corpus(name, (0, 0)).values[0, 0]
        assert other.corpus(name, (0, 0)).values[0, 0] == pytest.approx(expected, abs=1e-3)


def command(capsys, place, name, *options, limit="map >= -3.0", **files):
    models = [place / "float.onnx", place / f"{files.get('variant', 'same')}.onnx"]
    given = ["--data", files.get("data", place / "data.npz"), "-o", place / f"{name}.json"]
    given += ["--labels", files.get("labels", place / "instances.json")]
    given += ["--rounds", "2"] if name == "compare" else []
    given += ["--limit", limit] if limit else []
    status = run_command([name, *map(str, [*models, *given, *options])])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", slow_but(["compare", "ab"]))
def test_a_limit_on_map_decides(place, capsys, name):
    status, out, err = command(capsys, place, name)
    assert status == 0
    assert [line.split()[:2] for line in err.splitlines()] == [["next:", "trtcal"]]
    assert "map" in out
    status, out, err = command(capsys, place, name, variant="worse")
    assert status == 1
    shown = err if name == "compare" else out + err
    assert ("points of mAP" if name == "ab" else "map is -") in shown
    judged = json.loads((place / f"{name}.json").read_text())["measured"]
    limits = judged["limits"] if name == "compare" else judged["verdict"]["limits"]
    (limit,) = (one for one in limits if one["metric"] == "map")
    assert (limit["label"], limit["unit"], limit["state"]) == ("mAP", "points", "broken")
    assert limit["samples"] == IMAGES


@SLOW
def test_map_is_the_default_limit_of_annotated_boxes(place, capsys):
    status, out, _ = command(capsys, place, "compare", limit=None)
    assert status == 0
    assert "map >= -1.0" in out
    assert {"mAP", "mAP50"} <= set(out.split())
    status, out, _ = command(capsys, place, "ab", limit=None)
    assert status == 1  # 200 samples cannot show a loss of less than 1 point
    shows(out, "INCONCLUSIVE", "map")


@SLOW
def test_a_detector_that_finds_nothing_annotated_shows_nothing(place, capsys):
    document = json.loads((place / "instances.json").read_text())
    for one in document["annotations"]:
        one["bbox"] = [0, 0, 1, 1]
    (place / "other.json").write_text(json.dumps(document))
    for name in ("compare", "ab"):
        command(capsys, place, name, labels=place / "other.json")
        judged = json.loads((place / f"{name}.json").read_text())["measured"]
        (limit,) = judged["limits"] if name == "compare" else judged["verdict"]["limits"]
        assert limit["state"] == "undecided"
        assert "FP32 reaches a mAP of 0 %" in limit["reason"]
        assert "not clearly better than the 0 % of the boxes of ot" in limit["reason"]


def written(place, **changes):
    document = scene(4)[1] | changes
    (place / "wrong.json").write_text(json.dumps(document))
    return place / "wrong.json"


def lost(document, key, name):
    return [{k: v for k, v in one.items() if k != name} for one in document[key]]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda one: {}, ("4", "200")),
        (lambda one: {"annotations": {}}, ("annotations",)),
        (lambda one: {"images": lost(one, "images", "width")}, ("images[0]", "width")),
    ],
)
def test_annotations_that_do_not_fit_are_refused(place, change, names):
    path = written(place, **change(scene(4)[1]))
    with fails(InputError, "wrong.json", *names):
        open_dataset(place / "data.npz", load_model(place / "float.onnx"), None, path)


def test_a_category_that_is_not_listed_is_refused(place):
    (place / "categories.json").write_text(json.dumps(scene()[1] | {"categories": [{"id": 3}]}))
    with fails(InputError, "`categories`", hint="COCO"):
        collected(place, scene()[0], labels="categories.json")


def test_a_box_that_is_none_and_a_class_without_category_are_refused(place):
    document = scene()[1]
    document["annotations"][0]["bbox"] = [0, 0, -1, 5]
    (place / "box.json").write_text(json.dumps(document))
    with fails(InputError, "[0, 0, -1, 5]", "999"):
        open_dataset(place / "data.npz", load_model(place / "float.onnx"), None, place / "box.json")
    boxes = [Boxes(np.array([[0.0, 0, 1, 1]]), np.ones(1), np.array([7.0]))] * IMAGES
    labels = collected(place, scene()[0]).labels
    with fails(InputError, "7", "3"):
        matched(boxes, np.concatenate(labels))


def test_without_pycocotools_the_hint_names_the_extra(place, capsys, monkeypatch):
    for name in ("pycocotools", "pycocotools.coco", "pycocotools.cocoeval"):
        monkeypatch.setitem(sys.modules, name, None)
    status, _, err = command(capsys, place, "compare")
    assert status == 3
    shows(err, "mAP", "pycocotools", "pip install 'trtcal[detection]'")


@pytest.fixture
def run_folder(tmp_path):
    """Images that hold heads, annotations of them, a network with a convolution, and a trtcal.toml."""
    heads, document = scene(64)
    heads[:, 4:] *= 16  # all values are below 16, as those of pixels are below 256
    (tmp_path / "images").mkdir()
    pixels = np.round(heads * (255 / 16)).astype(np.uint8).reshape(64, 3, HEIGHT, WIDTH)
    names = {one["id"]: one["file_name"] for one in document["images"]}
    for number, image in zip(sorted(names), pixels, strict=True):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / "images" / names[number])
    for one in document["images"]:
        one["file_name"] = f"elsewhere/{one['file_name']}"
    (tmp_path / "instances.json").write_text(json.dumps(document))
    shape = (1, 4 + CLASSES, CELLS)
    factor = np.ones(shape, np.float32)
    factor[:, 4:] /= 16
    nodes = as_nodes("[conv] c = Conv(x, w)  head = Reshape(c, shape)  y = Mul(head, factor)")
    weights = {"w": np.eye(3, dtype=np.float32)[..., None, None], "factor": factor}
    weights |= {"shape": np.array([-1, *shape[1:]])}
    inputs = {"x": ["n", 3, HEIGHT, WIDTH]}
    save(tmp_path / "net.onnx", nodes, weights, inputs, {"y": ["n", *shape[1:]]})
    (tmp_path / "trtcal.toml").write_text(
        'model = "net.onnx"\noutput = "run"\nlimits = ["map >= -12"]\n'
        '[images]\nchannels = "RGB"\nlayout = "NCHW"\nscale = "16/255"\n'
        '[calibration]\ndata = "images"\nmethods = ["minmax"]\n'
        '[evaluation]\ndata = "images"\nlabels = "instances.json"\nrounds = 5\n'
        '[build]\ntargets = ["cpu"]\n'
    )
    return tmp_path


def test_a_run_judges_map_of_images_by_the_names_of_their_files(run_folder, capsys):
    status = run_command(["run", str(run_folder / "trtcal.toml"), "--no-history"])
    assert status == 0, capsys.readouterr().err
    report = json.loads((run_folder / "run" / "report.json").read_text())
    reference, row = report["comparison"]["rows"]
    assert 0.2 < reference["means"]["map"]["value"]["mean"] < 0.9
    verdict = report["measured"]["verdict"]
    (limit,) = (one for one in verdict["limits"] if one["metric"] == "map")
    change = row["means"]["map"]["change"]["mean"]
    assert limit["value"] == pytest.approx(100 * change)
    page = (run_folder / "run" / "report.html").read_text()
    assert "<dt>mAP</dt>" in page
    assert "reaches mAP " in verdict["sentence"]
    text = (run_folder / "trtcal.toml").read_text().replace('"RGB"', '"RGB"\ncrop = [14, 16]')
    (run_folder / "trtcal.toml").write_text(text)
    assert run_command(["run", str(run_folder / "trtcal.toml"), "--no-history"]) == 2
    shows(capsys.readouterr().err, "[images]")


def test_a_file_without_an_image_is_refused(run_folder):
    path = run_folder / "instances.json"
    document = json.loads(path.read_text())
    document["images"] = [one for one in document["images"] if "0005" not in one["file_name"]]
    path.write_text(json.dumps(document))
    images = read_config(run_folder / "trtcal.toml").images
    with fails(InputError, "0005.png", "1", "64"):
        open_dataset(run_folder / "images", load_model(run_folder / "net.onnx"), images, path)


@SLOW
def test_annotations_named_on_the_command_line_are_of_what_is_judged_on(run_folder, capsys):
    config, labels = run_folder / "trtcal.toml", run_folder / "instances.json"
    config.write_text(config.read_text().replace('labels = "instances.json"\n', ""))
    given = [config, "--labels", labels, "--no-history"]
    assert run_command(["run", *map(str, given)]) == 0, capsys.readouterr().err
    report = json.loads((run_folder / "run" / "report.json").read_text())
    assert "map" in report["comparison"]["rows"][0]["means"]
    images, model = run_folder / "images", load_model(run_folder / "net.onnx")
    for test, sections in ((None, ["calibration"]), (images, ["evaluation"])):
        text = draft_config(model, Sources(images, test, str(labels)), run_folder).text
        read = tomllib.loads(text)
        assert [
            name for name in ("calibration", "evaluation") if "labels" in read[name]
        ] == sections
        assert 'labels = "instances.json"' in text


def test_a_run_whose_labels_fit_no_output_ends_before_it_begins(run_folder, capsys):
    config = run_folder / "trtcal.toml"
    config.write_text(config.read_text().replace("16/255", "1/255"))
    assert run_command(["run", str(config), "--no-history"]) == 2
    shows(capsys.readouterr().err, "labels")
    assert not (run_folder / "run").exists()
