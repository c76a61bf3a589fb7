import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import trtcal
from tests.reporting.samples import accuracy, build, comparison, row, write_build, write_run
from trtcal.documents import write_document
from trtcal.evaluate.layerwise import LayerFigure, Layerwise
from trtcal.evidence.layers.layer import Layer, TensorInfo

DIGITS = Path(__file__).parent.parent.parent / "samples" / "digits"
KERNELS = "stem/conv + stem/relu6", "pointwise", "head/gemm"


@pytest.fixture(scope="package")
def quantized(tmp_path_factory) -> Path:
    """Return the digits' network in INT8."""
    path = tmp_path_factory.mktemp("models") / "int8.onnx"
    table = trtcal.calibrate(DIGITS / "digits.onnx", DIGITS / "calibration.npz")
    trtcal.quantize(DIGITS / "digits.onnx", table, output=path)
    return path


def _layer(name: str, kind: str, dtype: str, nodes: tuple[str, ...], ms: float) -> Layer:
    tensors = (TensorInfo(f"to {name}", dtype, (1, 250)),), (TensorInfo(name, dtype, (1, 250)),)
    return Layer(name, kind, *tensors, nodes=nodes, time_ms=ms)


@pytest.fixture
def run(tmp_path, quantized) -> Path:
    """Return a run: the first layer lost INT8 and is fused, a kernel without a product follows."""
    model = trtcal.load_model(quantized)
    layers = (
        _layer(KERNELS[0], "conv", "fp32", ("stem/conv", "stem/relu6"), 0.5),
        _layer(KERNELS[1], "kgen", "int8", ("stem/conv", "block1/add"), 0.25),
        _layer(KERNELS[2], "gemm", "int8", ("head/gemm",), 0.125),
    )
    built = build("int8", {"stem/conv": "fp32", "head/gemm": "int8"}, layers=layers)
    pairs = zip(built.outcomes, KERNELS[::2], strict=True)
    outcomes = tuple(replace(outcome, layer=name) for outcome, name in pairs)
    built = replace(built, model=model.fingerprint, outcomes=outcomes)
    figures = (LayerFigure("image", False, ("stem/conv",), None, 31.5, 31.5, None, 0.75),)
    lossy = replace(row("int8", accuracy(1, 0)), model=built.model, layers=Layerwise(8, figures))
    folder = write_run(tmp_path / "run", comparison(lossy), built)
    write_document(folder / "run.json", {"kind": "run", "schema_version": 1, "stages": []})
    (folder / "models").mkdir()
    shutil.copy(quantized, folder / "models" / "int8.onnx")
    return folder


@pytest.fixture
def lone_build(tmp_path, quantized) -> Path:
    """Return the folder of a build whose model is not near it."""
    return write_build(tmp_path / "a" / "b" / "c", build("int8", {"stem/conv": "int8"})).folder
