"""A bundle for DeepStream: `deepstream/config_infer.txt`, which Gst-nvinfer reads.

nvinfer computes y = net-scale-factor * (x - offset) of each pixel; `[images]` in trtcal.toml declares
y = (x * scale - mean) / std. So net-scale-factor is scale / std, for which all channels need one std,
and an offset is mean / scale. The model has its ranges as Q/DQ; yet nvinfer turns INT8 on only if there
is a calibration cache, which TensorRT then leaves alone. So one is written, of the same ranges. Its
builder has no mode for FP8 and four bits: such models need an engine of TensorRT in the bundle.

Source: DeepStream's developer guide, Gst-nvinfer, "Gst-nvinfer File Configuration Specifications"; for
the cache, `nvdsinfer_model_builder.cpp` in DeepStream's sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtcal.calibration.formats.tensorrt_cache import cache_of
from trtcal.config import ImagesConfig
from trtcal.documents import write_bytes, write_text
from trtcal.errors import InputError
from trtcal.formats import NARROW
from trtcal.ranges import Calibration
from trtcal.runs.bundle.building import DEEPSTREAM, LABELS, Draft
from trtcal.wings.fleet.exporters.triton import max_batch

FILE, CACHE = "config_infer.txt", "calibration.cache"
USUAL = "10.3.0"  # TensorRT of DeepStream 7.1; the header matters only to models without Q/DQ
COLORS = {"RGB": 0, "BGR": 1, "gray": 2}
ORDERS = {"NCHW": 0, "NHWC": 1}
FILTERS = {"nearest": 0, "bilinear": 1, "opencv-bilinear": 1}
MODES = {"fp32": 0, "int8": 1, "fp16": 2}
CLASSIFIER, OTHER = 1, 100  # network-type
CHANNELS = {"RGB": 3, "BGR": 3, "gray": 1}


def export_deepstream(draft: Draft) -> Sequence[str]:
    """Write nvinfer's file; `InputError` if it cannot prepare images as it is declared."""
    images = draft.request.images
    if images is None:
        raise InputError(
            "--deepstream needs the declared preprocessing, but the run has none",
            "declare [images] in trtcal.toml: channels, layout, scale, mean, std",
        )
    if len(draft.model.inputs) != 1 or len(draft.model.inputs[0].shape) != 4:
        raise InputError(
            "nvinfer supports only models with one image input", "leave --deepstream out"
        )
    notes = list(_inexact(images))
    notes += _write_cache(draft)
    about = [f"# {line}" for line in (*notes, *_of_engine(draft))]
    pairs = [*_preprocessing(draft, images), *_network(draft)]
    lines = [*about, "[property]", *(f"{key}={value}" for key, value in pairs)]
    write_text(draft.folder / DEEPSTREAM / FILE, "\n".join(lines) + "\n")
    if any(key == "labelfile-path" for key, _ in pairs):
        write_text(draft.folder / DEEPSTREAM / LABELS, _listed(draft.names) + "\n")
    return [f"DeepStream: {line}" for line in notes]


def _preprocessing(draft: Draft, images: ImagesConfig) -> Iterator[tuple[str, object]]:
    std = set(images.std)
    if len(std) > 1:
        raise InputError(
            f"nvinfer has one net-scale-factor for all channels, but std is {list(images.std)}",
            "put the division into the model's first layers and declare std = 1 for it",
        )
    if images.scale == 0:
        raise InputError("nvinfer has no offset for scale = 0", "check [images] in trtcal.toml")
    count = CHANNELS[images.channels]
    means = images.mean * count if len(images.mean) == 1 else images.mean
    yield "net-scale-factor", repr(images.scale / std.pop())
    yield "offsets", ";".join(repr(mean / images.scale) for mean in means)
    yield "model-color-format", COLORS[images.channels]
    yield "network-input-order", ORDERS[images.layout]
    is_padded = images.letterbox is not None
    is_shorter = isinstance(images.resize, int) and images.crop is None
    yield "maintain-aspect-ratio", int(is_padded or is_shorter)
    if is_padded:
        yield "symmetric-padding", 1
    if images.interpolation in FILTERS:
        yield "scaling-filter", FILTERS[images.interpolation]
    if images.layout == "NCHW":
        yield "infer-dims", ";".join(map(str, (count, *_size(draft, images))))


def _size(draft: Draft, images: ImagesConfig) -> tuple[int, int]:
    """Return height and width: the model's, or where it leaves them open, those of the images."""
    height, width = draft.model.inputs[0].shape[2:]
    if isinstance(height, int) and isinstance(width, int):
        return height, width
    size = images.crop or images.resize
    if not isinstance(size, tuple):
        raise InputError(
            "nvinfer needs one size of the images, but neither the model nor [images] gives it",
            "set crop, or resize with height and width, in [images] of trtcal.toml",
        )
    return size


def _network(draft: Draft) -> Iterator[tuple[str, object]]:
    plans = [entry for entry, _ in draft.engines if entry["product"] == "tensorrt"]
    yield "gie-unique-id", 1
    if plans:
        yield "model-engine-file", f"../{plans[0]['file']}"
    if not (plans and _is_only_loaded(draft)):
        yield "onnx-file", _listed([f"../{draft.onnx}"])
        yield "network-mode", MODES[draft.precision_for("nvinfer")]
    batch = max_batch(draft, [shapes for entry in plans for shapes in entry["shapes"]])
    yield "batch-size", batch or draft.model.inputs[0].shape[0]
    if (draft.folder / DEEPSTREAM / CACHE).exists():
        yield "int8-calib-file", CACHE
    is_classifier = (draft.task or {}).get("name") == "classification"
    yield "network-type", CLASSIFIER if is_classifier else OTHER
    yield "output-blob-names", _listed([spec.name for spec in draft.model.outputs])
    if not is_classifier:
        yield "output-tensor-meta", 1
    elif draft.names:
        yield "labelfile-path", LABELS


def _is_only_loaded(draft: Draft) -> bool:
    """Whether nvinfer can load the engine, and cannot build it: then it gets no model to build of."""
    return not draft.asked.isdisjoint({*NARROW} - {"int8"})


def _listed(names: Sequence[str]) -> str:
    """Return names with ; between, as in a list of nvinfer's; a classifier's labels are one line."""
    bad = next((name for name in names if ";" in name or not name.isprintable()), None)
    if bad is not None:
        raise InputError(
            f"nvinfer does not accept the name {bad!r}",
            "rename it, because ; separates names in nvinfer",
        )
    return ";".join(names)


def _write_cache(draft: Draft) -> list[str]:
    """Write the cache that makes nvinfer build in INT8; return what to say where there is none."""
    if "int8" not in draft.asked or _is_only_loaded(draft):
        return []
    ranges = draft.folder / "calibration.json"
    built = [
        build.backend_version for entry, build in draft.engines if entry["product"] == "tensorrt"
    ]
    try:
        data = cache_of(Calibration.read(ranges), built[0] if built else USUAL)
    except InputError as error:
        return [f"there is no int8-calib-file, so nvinfer builds in FP16: {error.message}"]
    write_bytes(draft.folder / DEEPSTREAM / CACHE, data)
    return []


def _inexact(images: ImagesConfig) -> Iterator[str]:
    """Yield what nvinfer does in another way than it is declared."""
    if images.crop is not None:
        yield "nvinfer does not crop the center: it scales the whole frame to the size of the network"
    elif isinstance(images.resize, int):
        yield "nvinfer pads to keep the aspect ratio, but resizing by the shorter side is declared"
    if images.letterbox:
        yield f"nvinfer pads with black, but a border of {images.letterbox} is declared"
    if images.interpolation not in FILTERS:
        yield f"nvinfer's scaling is not {images.interpolation}: scaling-filter is its default"


def _of_engine(draft: Draft) -> Iterator[str]:
    if _is_only_loaded(draft):
        yield "nvinfer cannot build this engine: for another GPU or TensorRT, build it with trtcal."
    elif not any(entry["product"] == "tensorrt" for entry, _ in draft.engines):
        yield "The bundle has no engine of TensorRT: nvinfer builds one from onnx-file when it starts."
