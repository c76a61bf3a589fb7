"""The model of docs/guides/costly-layer.md: the digits, with one tensor that INT8 cannot carry."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.conftest import SAMPLES

CHANNELS, FACTOR = 3, 100.0


def make(folder: Path) -> None:
    """Write `model.onnx`, `calibration.npz` and `test.npz` of a classifier with unequal channels.

    Three channels of `separable/relu_out` are multiplied by 100, and the weights that read them divided
    by as much. The function in float is the same; in INT8 the other channels keep one step or two.
    """
    model = onnx.load(SAMPLES / "digits" / "digits.onnx")
    by_name = {one.name: one for one in model.graph.initializer}
    factors = np.ones(by_name["separable/bn1.weight"].dims[0], np.float32)
    factors[:CHANNELS] = FACTOR
    _multiply(by_name["separable/bn1.weight"], factors)
    _multiply(by_name["separable/bn1.bias"], factors)
    _multiply(by_name["separable/pointwise.weight"], (1 / factors).reshape(1, -1, 1, 1))
    onnx.save(model, folder / "model.onnx")
    for name in ("calibration.npz", "test.npz"):
        (folder / name).write_bytes((SAMPLES / "digits" / name).read_bytes())


def _multiply(tensor: onnx.TensorProto, factors: np.ndarray) -> None:
    values = numpy_helper.to_array(tensor) * factors
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
