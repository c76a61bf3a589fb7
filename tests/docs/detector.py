"""A detector of colored squares with weights made by hand, pictures, and COCO's annotations."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

SIDE, STRIDE, WINDOW, CLASSES = 64, 4, 20, 2
CELLS = SIDE // STRIDE
AREA = CELLS * CELLS
FACTOR = (
    4  # of the moments: positions are far larger than what scores are made of, as in many heads
)
COLORS = np.array([[220, 60, 60], [60, 220, 60]])


def write_detector(path: Path, with_nms: bool = False) -> None:
    """Write the network: [n, 6, cells] as YOLO's heads, or boxes, scores and what NMS selects of them.

    A window sums each class's mask and its moments along x and y: the box's side and middle.
    """
    nodes = [
        helper.make_node("Conv", ["images", "color", "half"], ["seen"], "backbone/color"),
        helper.make_node("Clip", ["seen", "zero", "one"], ["mask"], "backbone/clip"),
        helper.make_node("Conv", ["mask", "windows"], ["sums"], "neck/windows", **_around()),
        helper.make_node("Conv", ["sums", "scales"], ["head"], "head/conv"),
        *_decoding(),
    ]
    outputs = {"output": ["n", 4 + CLASSES, AREA]}
    if with_nms:
        nodes += _selecting()
        outputs = {"boxes": ["n", AREA, 4], "scores": ["n", CLASSES, AREA]}
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {"images": ["n", 3, SIDE, SIDE], **outputs}.items()
    ]
    if with_nms:
        values.append(helper.make_tensor_value_info("selected", TensorProto.INT64, ["k", 3]))
    weights = [numpy_helper.from_array(array, name) for name, array in _weights().items()]
    graph = helper.make_graph(nodes, "detector", values[:1], values[1:], weights)
    opset = helper.make_opsetid("", 17)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def _around() -> dict[str, list[int]]:
    before = WINDOW // 2 - STRIDE // 2
    after = WINDOW - STRIDE - before
    return {"strides": [STRIDE] * 2, "pads": [before, before, after, after]}


def _weights() -> dict[str, np.ndarray]:
    color = np.array([[6, -3, -3], [-3, 6, -3]]).reshape(CLASSES, 3, 1, 1)
    ramp = np.arange(WINDOW) - (WINDOW - 1) / 2
    windows = np.zeros((CLASSES + 2, CLASSES, WINDOW, WINDOW))
    windows[0, 0] = windows[1, 1] = 1
    windows[2], windows[3] = FACTOR * ramp, FACTOR * ramp[:, None]
    scales = np.diag([1, 1, 1 / FACTOR, 1 / FACTOR])
    middles = (np.arange(CELLS) + 0.5) * STRIDE
    arrays = {
        "color": color,
        "half": np.array([-0.5, -0.5]),
        "zero": np.array(0),
        "one": np.array(1),
        "windows": windows,
        "scales": scales.reshape(CLASSES + 2, CLASSES + 2, 1, 1),
        "grid": np.stack(np.meshgrid(middles, middles))[None],
        "least": np.array(20),
        "far": np.array(1 / 16),
        "small": np.array(1 / 40),
    }
    arrays |= {"overlap": np.array([0.5]), "score": np.array([0.25])}
    integers = {
        "flat": [0, -1, AREA],
        "parts": [CLASSES, 2],
        "box_parts": [4, CLASSES],
        "one_axis": [1],
        "most": [10],
    }
    return {
        **{name: array.astype(np.float32) for name, array in arrays.items()},
        **{name: np.array(value, np.int64) for name, value in integers.items()},
    }


def _decoding() -> list[onnx.NodeProto]:
    """Middle, side and scores of each cell: the part after the last convolution."""
    steps = [
        ("Split", ["head", "parts"], ["masses", "moments"], {"axis": 1}),
        ("ReduceSum", ["masses", "one_axis"], ["total"], {"keepdims": 1}),
        ("Max", ["total", "least"], ["mass"], {}),
        ("Div", ["moments", "mass"], ["moved"], {}),
        ("Add", ["moved", "grid"], ["middle"], {}),
        ("Sqrt", ["mass"], ["side"], {}),
        ("Mul", ["moved", "moved"], ["squared"], {}),
        ("ReduceSum", ["squared", "one_axis"], ["distance"], {"keepdims": 1}),
        ("Mul", ["distance", "far"], ["away"], {}),
        ("Sub", ["one", "away"], ["close"], {}),
        ("Clip", ["close", "zero", "one"], ["near"], {}),
        ("Mul", ["mass", "small"], ["large"], {}),
        ("Clip", ["large", "zero", "one"], ["enough"], {}),
        ("Div", ["masses", "mass"], ["share"], {}),
        ("Mul", ["share", "near"], ["likely"], {}),
        ("Mul", ["likely", "enough"], ["sure"], {}),
        ("Clip", ["sure", "zero", "one"], ["score_map"], {}),
        ("Concat", ["middle", "side", "side", "score_map"], ["map"], {"axis": 1}),
        ("Reshape", ["map", "flat"], ["output"], {}),
    ]
    return [
        helper.make_node(op, reads, makes, f"decode/{makes[0]}", **attributes)
        for op, reads, makes, attributes in steps
    ]


def _selecting() -> list[onnx.NodeProto]:
    """NonMaxSuppression behind it, as exporters put it there."""
    return [
        helper.make_node(
            "Split", ["output", "box_parts"], ["centered", "scores"], "nms/split", axis=1
        ),
        helper.make_node("Transpose", ["centered"], ["boxes"], "nms/boxes", perm=[0, 2, 1]),
        helper.make_node(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "overlap", "score"],
            ["selected"],
            "nms/select",
            center_point_box=1,
        ),
    ]


def write_pictures(folder: Path, count: int, seed: int) -> None:
    """Write PNG files with one to four squares, and instances.json beside the folder."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number in range(count):
        pixels = rng.normal(70, 12, (SIDE, SIDE, 3))
        quarters = rng.permutation(4)[: rng.integers(1, 5)]
        for quarter in quarters:
            side, kind = int(rng.integers(8, 15)), int(rng.integers(CLASSES))
            left, top = (
                int(rng.integers(4, 29 - side)) + 32 * int(at) for at in divmod(quarter, 2)
            )
            pixels[top : top + side, left : left + side] = COLORS[kind] + rng.normal(0, 12, 3)
            box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0}
            place = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": kind + 1}
            annotations.append({**place, **box})
        name = f"{number:04}.png"
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / name)
        images.append({"id": number + 1, "file_name": name, "width": SIDE, "height": SIDE})
    categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}]
    document = {"images": images, "categories": categories, "annotations": annotations}
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(document))
