"""`preprocessor_config.json` of Hugging Face's transformers as keys of [images].

Its keys are those of the image processors: `size` is a number, height and width, or the shortest edge,
`crop_pct` what a crop shows of the resized image. Where a key changes pixels in a way that [images]
does not have, nothing is read: half of a preprocessing is a wrong one.

Source: `image_processing_*.py` of transformers 4.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from trtcal.config import ImagesConfig, WrongKeyError, read_section, read_toml

TABLE: Mapping[str, Any] = read_toml(Path(__file__).with_name("huggingface.toml"))["processors"]
FILTERS: list[str] = TABLE["filters"]
LARGE = 384  # from which on ConvNeXt sees whole images
Read = dict[str, tuple[Any, str]]
"""Key of [images] -> its value, and the keys that it comes from."""


class UnknownKeyError(ValueError):
    """A key that [images] cannot express."""


def images_of(
    processor: Mapping[str, Any], proto: onnx.ModelProto
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of [images], and for each the keys of the processor that it comes from.

    Nothing where the processor has no size and no mean, as for audio. `UnknownKeyError` if it changes
    pixels in another way than [images] can.
    """
    keys = {key: value for key, value in processor.items() if value is not None}
    if not keys.keys() & {"size", "image_mean", "crop_size"}:
        return {}, {}
    _check_known(keys)
    try:
        read = {**_pixels(keys, proto), **_sizes(keys)}
        images = {key: value for key, (value, _) in read.items()}
        read_section(ImagesConfig, images)
    except (
        WrongKeyError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        StopIteration,
    ) as error:
        raise UnknownKeyError(f"{type(error).__name__}: {str(error)[:200]}") from error
    return images, {key: reason for key, (_, reason) in read.items()}


def _check_known(keys: Mapping[str, Any]) -> None:
    size = keys["size"] if isinstance(keys.get("size"), dict) else {}
    flags = {key for key in keys if key.startswith("do_")} - {*TABLE["known"]}
    changing = [key for key in (*flags, *TABLE["unknown"]) if keys.get(key) or key in size]
    if changing:
        raise UnknownKeyError(f"[images] has nothing like {', '.join(sorted(changing))}")
    if keys.get("do_normalize", True) and "image_mean" not in keys:
        raise UnknownKeyError("do_normalize without image_mean")


def _pixels(keys: Mapping[str, Any], proto: onnx.ModelProto) -> Read:
    shapes = [value.type.tensor_type.shape.dim for value in proto.graph.input]
    sizes = next([dim.dim_value for dim in dims] for dims in shapes if len(dims) == 4)
    is_last = sizes[3] in (1, 3) and sizes[1] not in (1, 3)
    is_flipped = bool(keys.get("do_flip_channel_order"))
    is_gray = sizes[3 if is_last else 1] == 1
    channels = "gray" if is_gray else "BGR" if is_flipped else "RGB"
    scale = float(keys.get("rescale_factor", 1 / 255)) if keys.get("do_rescale", True) else 1
    read: Read = {
        "channels": (channels, "do_flip_channel_order" if is_flipped else "RGB is usual"),
        "layout": ("NHWC" if is_last else "NCHW", "the model's input"),
        "scale": ("1/255" if abs(255 * scale - 1) < 1e-9 else scale, "do_rescale, rescale_factor"),
    }
    if keys.get("do_normalize", True):
        for name in ("mean", "std"):
            values = keys[f"image_{name}"]
            read[name] = (values[:1] if is_gray else values, f"image_{name}")
    return read


def _sizes(keys: Mapping[str, Any]) -> Read:
    kind = str(keys.get("image_processor_type", keys.get("feature_extractor_type", "")))
    resize = _resize(keys, kind) if keys.get("do_resize", True) and "size" in keys else {}
    crop = keys.get("crop_size") if keys.get("do_center_crop", True) else None
    if crop is not None:
        resize["crop"] = (_pair(crop), "crop_size")
    number = keys.get("resample")
    if "resize" in resize and number is not None:
        resize["interpolation"] = (FILTERS[range(len(FILTERS))[int(number)]], "resample")
    return resize


def _resize(keys: Mapping[str, Any], kind: str) -> Read:
    """Return resize, and the crop that some processors make with it."""
    size = keys["size"]
    if isinstance(size, dict) and "shortest_edge" not in size:
        return {"resize": (_pair(size), "size")}
    is_number = not isinstance(size, dict)
    edge = int(size if is_number else size["shortest_edge"])
    usual = next((pct for name, pct in TABLE["crop_pct"].items() if kind.startswith(name)), None)
    share = keys.get("crop_pct", usual)
    if share is None:
        is_square = kind.startswith(tuple(TABLE["square"])) or "crop_size" not in keys
        return {"resize": ([edge, edge] if is_square and is_number else edge, "size")}
    is_covering = kind.startswith(tuple(TABLE["covering"]))
    if is_covering and edge >= LARGE:
        return {"resize": ([edge, edge], "size")}
    read: Read = {"resize": (int(edge / float(share)), "size, crop_pct")}
    return read | ({"crop": ([edge, edge], "size")} if is_covering else {})


def _pair(size: Any) -> list[int]:
    sides = [size["height"], size["width"]] if isinstance(size, dict) else [size, size]
    return [int(side) for side in sides]
