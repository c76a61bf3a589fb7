"""A bundle's engines as a model repository of Triton: `triton/NAME/config.pbtxt` and `1/`.

Engines of TensorRT are one model, with a file for each compute capability; the CPU's engine is another.
Triton's TensorRT backend does not load engines of TensorRT-RTX: for these the quantized model is served
by ONNX Runtime with its TensorRT accelerator, which builds an engine on the server. Dynamic batching is
left out: it trades latency for throughput, which the user has to decide.

Source: `model_config.proto` of triton-inference-server/common, and the documents on model repositories.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtcal.backends.options import DEFAULT_BATCHES
from trtcal.config import read_toml
from trtcal.documents import Document, write_text
from trtcal.errors import InputError
from trtcal.model import TensorSpec
from trtcal.runs.bundle.building import LABELS, TRITON, Draft

TABLE = read_toml(Path(__file__).with_suffix(".toml"))
TYPES: dict[str, str] = TABLE["types"]
PLAN, ONNX = "tensorrt_plan", "onnxruntime_onnx"


def export_triton(draft: Draft) -> Sequence[str]:
    """Write the repository and return what is worth saying of it."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", draft.request.variant)
    products = {entry["product"] for entry, _ in draft.engines}
    notes = []
    if "tensorrt" in products:
        _write_plans(draft, name)
    elif "tensorrt-rtx" in products:
        accelerator = TABLE["on_server"] % draft.precision_for("Triton").upper()
        _write_onnx(draft, name, accelerator, draft.folder / draft.onnx)
        notes.append(
            "Triton cannot load engines of TensorRT-RTX; it builds its own engine from the "
            "quantized model"
        )
    for entry, _ in draft.engines:
        if entry["product"] == "onnxruntime":
            _write_onnx(draft, f"{name}-cpu", TABLE["on_cpu"], draft.folder / entry["file"])
    return notes


def _write_plans(draft: Draft, name: str) -> None:
    """Write the engines of TensorRT as one model."""
    engines = [entry for entry, _ in draft.engines if entry["product"] == "tensorrt"]
    place = _version(draft, name)
    lines: list[str] = []
    for entry in engines:
        file = f"model_{entry['capabilities'][0] if entry['capabilities'] else 'gpu'}.plan"
        shutil.copyfile(draft.folder / entry["file"], place / file)
        lines += [f"default_model_filename: {_text(file)}"] if not lines else []
        lines += [
            f"cc_model_filenames {{ key: {_text(f'{sm[2:-1]}.{sm[-1]}')} value: {_text(file)} }}"
            for sm in entry["capabilities"]
        ]
    batch = max_batch(draft, [shapes for entry in engines for shapes in entry["shapes"]])
    _write_config(draft, name, PLAN, batch, lines)


def _write_onnx(draft: Draft, name: str, how: str, source: Path) -> None:
    """Write an ONNX file as a model, with its weights if they lie beside it."""
    place = _version(draft, name)
    shutil.copyfile(source, place / "model.onnx")
    for weights in (draft.folder / "model").iterdir() if "model" in source.parts else ():
        if weights.suffix != ".onnx":
            shutil.copyfile(weights, place / weights.name)
    _write_config(draft, name, ONNX, max_batch(draft, []), [how])


def _version(draft: Draft, name: str) -> Path:
    """Return the new folder of a model's first version, its labels beside it."""
    place = draft.folder / TRITON / name / "1"
    place.mkdir(parents=True)
    if draft.names:
        shutil.copyfile(draft.folder / LABELS, place.parent / LABELS)
    return place


def max_batch(draft: Draft, profiles: Sequence[Document]) -> int:
    """Return the largest batch, 0 where the first axis of an input or output is fixed, or is none.

    It is the largest of the engine's profiles; of an ONNX file the usual one.
    """
    specs = (*draft.model.inputs, *draft.model.outputs)
    if not all(spec.shape and isinstance(spec.shape[0], str) for spec in specs):
        return 0
    largest = [int(shapes[2][0]) for profile in profiles for shapes in profile.values()]
    return min(largest, default=DEFAULT_BATCHES[2])


def _write_config(draft: Draft, name: str, platform: str, batch: int, more: Sequence[str]) -> None:
    lines = [
        f"name: {_text(name)}",
        f"platform: {_text(platform)}",
        f"max_batch_size: {batch}",
        *_tensors("input", draft.model.inputs, batch, None),
        *_tensors("output", draft.model.outputs, batch, LABELS if draft.names else None),
        *more,
    ]
    write_text(draft.folder / TRITON / name / "config.pbtxt", "\n".join(lines) + "\n")


def _tensors(
    side: str, specs: Sequence[TensorSpec], batch: int, labels: str | None
) -> Iterator[str]:
    for spec in specs:
        if spec.dtype not in TYPES:
            raise InputError(f"Triton has no type for {side} {spec}", "leave --triton out")
        shape = [size if isinstance(size, int) else -1 for size in spec.shape[bool(batch) :]]
        dims = f"dims: {shape}" if shape else "dims: [1] reshape { shape: [] }"
        label = f" label_filename: {_text(labels)}" if labels else ""
        yield f"{side} {{ name: {_text(spec.name)} data_type: {TYPES[spec.dtype]} {dims}{label} }}"


def _text(value: str) -> str:
    """Return a string as protobuf's text format has it; JSON's escapes are among its own."""
    return json.dumps(value, ensure_ascii=False)
