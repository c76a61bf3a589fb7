"""The metadata that Ultralytics writes into an ONNX export: preprocessing, task and classes.

Detectors and similar models take images that keep their aspect ratio in the middle of `imgsz`, with a
border of 114, resized by OpenCV; classifiers take the middle of images, resized by Pillow. Both take
RGB / 255.

Source: `exporter.py`, `predictor.py`, `augment.py` (LetterBox, classify_transforms) of ultralytics 8.4.
"""

from __future__ import annotations

import ast
from typing import Any

import onnx

from trtcal.config import ImagesConfig, WrongKeyError, read_section
from trtcal.errors import some
from trtcal.model.cut import metadata_of
from trtcal.model.loaders import Declared

MOST_CHARACTERS = 1 << 20
CLASSIFY, BORDER = "classify", 114
CHANNELS = {1: "gray", 3: "RGB"}
WHERE = "the model's metadata"


def declared_in(proto: onnx.ModelProto) -> Declared | None:
    """Return what the metadata of an export declare; None where Ultralytics did not write them."""
    texts = metadata_of(proto)
    if not {"task", "imgsz", "stride", "names"} <= texts.keys():
        return None
    values = {key: _value(text) for key, text in texts.items()}
    try:
        images, why = _images(values, texts["task"])
        read_section(ImagesConfig, images)
    except (WrongKeyError, TypeError, ValueError, LookupError, OverflowError) as error:
        reason = f"not read: the preprocessing in {WHERE}: {str(error)[:200]}"
        return Declared(notes=(reason,))
    why = {key: f"{WHERE} ({reason})" for key, reason in why.items()}
    names = values["names"]
    names = [*names.values()] if isinstance(names, dict) else [names]
    notes = (
        f"read: the task {texts['task'][:40]!r}: {WHERE} (task)",
        f"read: {len(names)} classes: {some(map(str, names), 4)}: {WHERE} (names)",
    )
    return Declared(images, why=why, notes=notes)


def _value(text: str) -> Any:
    """Return the Python literal that a text is, else the text."""
    try:
        return ast.literal_eval(text) if len(text) <= MOST_CHARACTERS else text
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _images(values: dict[str, Any], task: str) -> tuple[dict[str, Any], dict[str, str]]:
    size = values["imgsz"]
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = CHANNELS[values.get("channels", 3)]
    images: dict[str, Any] = {"channels": channels, "layout": "NCHW", "scale": "1/255"}
    why = {"channels": "channels", "layout": "task", "scale": f"task: {task}"[:40]}
    if task == CLASSIFY:
        is_square = height == width
        images |= {"resize": height if is_square else [height, width], "crop": [height, width]}
        return images, why | dict.fromkeys(("resize", "crop"), "imgsz, task")
    is_dynamic = isinstance(values.get("args"), dict) and values["args"].get("dynamic")
    more = "; Ultralytics pads a dynamic model to the stride only" if is_dynamic else ""
    images |= {"resize": [height, width], "letterbox": BORDER, "interpolation": "opencv-bilinear"}
    return images, why | {"resize": f"imgsz{more}", "letterbox": "task", "interpolation": "task"}
