"""Boxes: the same ones read from every layout that exporters write, and found again."""

import numpy as np
import pytest

from tests.fixtures.tables import each
from trtcal.evaluate.boxes import Boxes, find_decoder, found_again, overlaps

CORNERS = np.array([[10.0, 20, 60, 90], [200, 40, 260, 100], [300, 300, 340, 390]])
SCORES, LABELS = np.array([0.9, 0.8, 0.6]), np.array([2.0, 0.0, 1.0])
CLASSES, CELLS = 3, 40


def cells():
    """Boxes of a head by cell: (x, y, width, height), scores of all classes, most of them low."""
    made = np.random.default_rng(0)
    boxes = np.concatenate([made.uniform(0, 400, (CELLS, 2)), made.uniform(5, 50, (CELLS, 2))], 1)
    scores = made.uniform(0, 0.1, (CELLS, CLASSES))
    for place, (corners, score, label) in enumerate(zip(CORNERS, SCORES, LABELS, strict=True)):
        middle, size = (corners[:2] + corners[2:]) / 2, corners[2:] - corners[:2]
        for cell in (5 * place, 5 * place + 1):  # its neighbour finds the same one, less surely
            boxes[cell] = [*(middle + (cell - 5 * place)), *size]
            scores[cell] = 0.0
            scores[cell, int(label)] = score - 0.1 * (cell - 5 * place)
    return boxes, scores


def yolo8():
    boxes, scores = cells()
    return {"y": np.concatenate([boxes, scores], 1).T[None]}


def yolo5():
    boxes, scores = cells()
    best = scores.max(1, keepdims=True)
    return {"y": np.concatenate([boxes, best, scores / np.maximum(best, 1e-9)], 1)[None]}


def listed(*columns, sample=False):
    table = {"box": CORNERS, "score": SCORES[:, None], "class": LABELS[:, None]}
    parts = [table[name] for name in columns]
    return {"y": np.concatenate([np.zeros((3, 1)), *parts] if sample else parts, 1)}


def separate(centers=False):
    boxes = CORNERS
    if centers:
        boxes = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    return {"boxes": boxes[None], "scores": SCORES[None], "labels": LABELS.astype(np.int64)[None]}


def with_count():
    pad = np.zeros((1, 2))
    return {
        "num_detections": np.array([[3]], np.int32),
        "detection_boxes": np.concatenate([CORNERS, np.zeros((2, 4))])[None],
        "detection_scores": np.concatenate([SCORES[None], pad], 1),
        "detection_classes": np.concatenate([LABELS[None], pad], 1),
    }


def of_all_classes(softmax=False):
    boxes, scores = cells()
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    if softmax:
        scores = np.concatenate([scores, np.clip(1 - scores.sum(1, keepdims=True), 0, 1)], 1)
        scores /= scores.sum(1, keepdims=True)
    return {"boxes": corners[None], "scores": scores[None]}


def selected():
    boxes, scores = of_all_classes().values()
    rows = [[0, int(label), 5 * place] for place, label in enumerate(LABELS)]
    return {"boxes": boxes, "scores": scores.swapaxes(1, 2), "chosen": np.array(rows)}


LAYOUTS = {
    "yolov8": yolo8(),
    "yolov5": yolo5(),
    "yolo after nms": {"y": listed("box", "score", "class")["y"][None]},
    "rows of one sample": listed("box", "score", "class"),
    "paddle": listed("class", "score", "box"),
    "yolov7": listed("box", "class", "score", sample=True),
    "ssd": {"y": listed("class", "score", "box", sample=True)["y"][None, None]},
    "separate": separate(),
    "centers": separate(centers=True),
    "tensorflow": with_count(),
    "torchvision": {name: values[0] for name, values in separate().items()},
    "mmdetection": {"dets": listed("box", "score")["y"][None], "labels": LABELS.astype(int)[None]},
    "all classes": of_all_classes(),
    "with background": of_all_classes(softmax=True),
    "selected": selected(),
}


def as_exported(outputs):
    return {
        name: one.astype(np.float32) if one.dtype.kind == "f" else one
        for name, one in outputs.items()
    }


@each("outputs", LAYOUTS.values())
def test_every_layout_gives_the_same_boxes(outputs):
    outputs = as_exported(outputs)
    decoder = find_decoder(outputs, 1)
    (found,) = decoder.decode(outputs, 1)
    order = np.argsort(-found.scores)
    assert found.corners[order] == pytest.approx(CORNERS, abs=0.01)
    assert found.scores[order] == pytest.approx(SCORES, abs=0.05)
    assert found.classes[order].tolist() == LABELS.tolist()
    assert set(decoder.names.values()) == set(outputs)


NONE = {
    "class scores": np.random.default_rng(0).standard_normal((1, 10)),
    "five classes": np.array([[0.1, 0.2, 0.3, 0.3, 0.1]]),
    "six classes": np.array([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]]),
    "tokens": np.random.default_rng(0).standard_normal((1, 14, 30)),
    "probabilities": np.full((1, 14, 6), 1 / 6),
    "raw offsets": np.random.default_rng(0).standard_normal((1, 300, 9)),
}


@each("values", NONE.values())
def test_other_outputs_are_no_boxes(values):
    assert find_decoder({"y": values.astype(np.float32)}, 1) is None


def test_rows_of_several_samples_say_which_they_are_of():
    rows = listed("box", "class", "score", sample=True)["y"]
    rows[2, 0] = 1
    found = find_decoder({"y": rows}, 2).decode({"y": rows}, 2)
    assert [len(one.scores) for one in found] == [2, 1]
    chosen = np.array([[0, 0, 3], [1, 2, 5], [1, 0, 1]])
    found = find_decoder({"chosen": chosen}, 2).decode({"chosen": chosen}, 2)
    assert [len(one.scores) for one in found] == [1, 2]


BOXES = Boxes(CORNERS, SCORES, LABELS)


def changed(**parts):
    return BOXES._replace(**parts)


MATCHES = {
    "itself": (BOXES, 1.0, 0.0),
    "another order": (Boxes(*(one[::-1] for one in BOXES)), 1.0, 0.0),
    "moved a little": (changed(corners=CORNERS + 5), 1.0, 0.0),
    "moved away": (changed(corners=CORNERS + 500), 0.0, 2 * 2.3 / 3),
    "other classes": (changed(classes=LABELS + 1), 0.0, 2 * 2.3 / 3),
    "lower scores": (changed(scores=SCORES - 0.1), 1.0, 0.1),
    "one lost": (Boxes(*(one[:2] for one in BOXES)), 2 / 3, 0.2),
    "twice": (Boxes(*(np.concatenate([one, one]) for one in BOXES)), 0.5, 2.3 / 6),
    "none": (Boxes(*(one[:0] for one in BOXES)), 0.0, 2.3 / 3),
}


@each("made, agreement, error", MATCHES.values())
def test_boxes_are_found_again_once_each(made, agreement, error):
    assert found_again(BOXES, made) == pytest.approx((agreement, error))


def test_nothing_is_found_again_in_nothing():
    nothing = Boxes(*(one[:0] for one in BOXES))
    assert found_again(nothing, nothing) == (1.0, 0.0)
    assert found_again(nothing, BOXES)[0] == 0.0


def test_overlaps_are_those_of_areas():
    a = np.array([[0.0, 0, 10, 10]])
    b = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [3, 3, 3, 3]])
    assert overlaps(a, b)[0] == pytest.approx([1.0, 1 / 3, 0.0, 0.0])
