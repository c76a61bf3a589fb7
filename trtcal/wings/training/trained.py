"""Puts what PyTorch trained into the model with Q/DQ: the places stay, nothing is quantized again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx

from trtcal.documents import canonical_json, checked_digest, digest_file, read_npz
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.cut import metadata_of
from trtcal.model.model import along
from trtcal.quantization.qdq import METADATA, quantization_record
from trtcal.quantization.weights import LEVELS, step_above
from trtcal.wings.training.layout import Array, Layout, Quantizer

HINT = "give the .onnx and the .npz of one export: `save_trained` writes the latter"
LEAST_SCALE = float(np.finfo(np.float32).tiny)


def import_trained(quantized: Path, trained: Path) -> onnx.ModelProto:
    """Return the model with Q/DQ of an export with the weights, scales and biases of `save_trained`.

    A weight is rounded half to even by its trained scale. `InputError` if they are of another export,
    have other shapes, or are not finite, or if a scale is not positive.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(load_model(quantized).proto)
    arrays = read_npz(trained)
    if str(arrays.get("model")) != checked_digest(quantized):
        raise InputError(f"{trained} was not trained from the export of {quantized}", HINT)
    layout, read = Layout(proto), partial(_read, trained, arrays)
    for key, part in (*layout.activations.items(), *layout.weights.items()):
        before = layout.array(part.scale)
        scale = read(f"{key}.scale", before, LEAST_SCALE)
        for name in part.tied:
            above = None if layout.array(name) == before else step_above(scale)
            _set(layout, name, scale if above is None else above)
        _set(layout, part.scale, scale)
        if part.values:
            values = read(f"{key}.values", layout.array(part.values))
            _set(layout, part.values, _rounded(values, scale, part))
    for key, name in layout.trained.items():
        _set(layout, name, read(key, layout.array(name)))
    _record(proto, digest_file(trained))
    return proto


def _read(
    path: Path, arrays: dict[str, Array], name: str, like: Array, least: float = -np.inf
) -> Array:
    """Return an array of float32, of the shape of another one and with values from `least` on."""
    array = arrays.get(name, np.empty(0))
    is_like = array.shape == like.shape and array.dtype == np.float32
    if not is_like or not (np.isfinite(array) & (array >= least)).all():
        bound = "finite" if least < 0 else "positive"
        what = f"no {bound} float32 array {name} of shape {list(like.shape)}"
        raise InputError(f"{path} has {what}", HINT)
    return array


def _rounded(values: Array, scale: Array, part: Quantizer) -> Array:
    steps = np.rint(values / along(scale, values.ndim, part.axis))
    return np.asarray(np.clip(steps, -LEVELS, LEVELS), np.int8)


def _set(layout: Layout, name: str, values: Array) -> None:
    layout.initializers[name].CopyFrom(onnx.numpy_helper.from_array(values, name))


def _record(proto: onnx.ModelProto, digest: str) -> None:
    """Record that the ranges are no longer those of the calibration, but trained from them."""
    record = quantization_record(proto)
    record |= {"method": f"{record.get('method', 'none')}, trained", "trained": digest}
    metadata = {**metadata_of(proto), METADATA: canonical_json(record).decode()}
    onnx.helper.set_model_props(proto, metadata)
