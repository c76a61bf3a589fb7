"""A model with Q/DQ as OpenVINO's IR: pairs of activations become FakeQuantize, weights stay int8.

OpenVINO's own reader of ONNX converts it. Scales of weights for each channel stay; its low precision
passes take both forms to INT8 when a plug-in compiles the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtcal.documents import Workplace, together, write_bytes
from trtcal.documents.bounds import ARRAYS_BYTES, read_bytes
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.model.checking import first_line
from trtcal.quantization.qdq import dequantized_types

EXTRA = "pip install 'trtcal[openvino]'"
INT8 = ("i8", "u8")
HEAVY = ("Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNCell", "RNNSeq")
"""Types of layers in a compiled model that multiply."""


def export_openvino(model: Model, path: Path) -> dict[str, Any]:
    """Write an IR (`.xml`, and `.bin` beside it); return the numbers of its FakeQuantize and layers.

    `InputError` if OpenVINO is missing or cannot read the model, or if its Q/DQ are not of INT8.
    """
    _check_int8(model)
    if path.suffix != ".xml":
        raise InputError(f"{path} does not end with .xml", "give the file of an IR with -o")
    openvino = _openvino()
    with Workplace() as folder, _reading(model):
        place = Path(folder) / path.name
        converted = openvino.convert_model(model.path)
        openvino.save_model(converted, place, compress_to_fp16=False)
        counts = Counter(node.get_type_name() for node in converted.get_ops())
        precisions = layers_of(openvino.Core().compile_model(place, "CPU"))
        with together():
            for ending in (".xml", ".bin"):
                data = read_bytes(place.with_suffix(ending), ARRAYS_BYTES)
                write_bytes(path.with_suffix(ending), data)
    in_int8 = sum(precision in INT8 for precision in precisions)
    facts = {"fake_quantize": counts["FakeQuantize"], "layers": len(precisions)}
    return {**facts, "layers_in_int8": in_int8, "openvino": openvino.__version__}


def layers_of(compiled: Any) -> list[str]:
    """Return the precision in which each layer of a compiled model multiplies."""
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    heavy = [fact for fact in facts if fact["layerType"].astype(str) in HEAVY]
    return [fact["runtimePrecision"].astype(str) for fact in heavy]


def may_saturate() -> bool:
    """Tell whether this CPU has no VNNI: OpenVINO then adds products in 16 bits, which saturate."""
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8", errors="replace") if known.is_file() else ""
    return "avx2" in text and "vnni" not in text


def _check_int8(model: Model) -> None:
    others = {*dequantized_types(model.proto).values()} - {"int8"}
    if others:
        what = f"model {model.path} has Q/DQ in {', '.join(sorted(others))}"
        raise InputError(
            f"{what}, and OpenVINO's IR takes INT8",
            "give a model with Q/DQ of INT8, which `trtcal quantize` writes",
        )
    if not dequantized_types(model.proto):
        what = f"model {model.path} has no Q/DQ"
        raise InputError(what, f"give a quantized model: `trtcal quantize {model.path}` writes one")


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise InputError(f"{error.name} is not installed", EXTRA) from error
    return openvino


@contextmanager
def _reading(model: Model) -> Iterator[None]:
    """Make an `InputError` of what OpenVINO raises, which has no types of its own."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        what = f"OpenVINO cannot read model {model.path}: {first_line(error)}"
        raise InputError(
            what, "run the ONNX file with OpenVINO's provider in ONNX Runtime"
        ) from error
