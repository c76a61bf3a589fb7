"""From ranges to an ONNX model with Q/DQ that TensorRT obeys."""

from trtcal.passes import prepare
from trtcal.quantize.placement import find_layers, tensors_to_observe
from trtcal.quantize.plan import Plan, read_plan, write_plan
from trtcal.quantize.qdq import QuantizedModel, quantize, read_quantized, write_quantized
from trtcal.quantize.weighted import Layer

__all__ = [
    "Layer",
    "Plan",
    "QuantizedModel",
    "find_layers",
    "prepare",
    "quantize",
    "read_plan",
    "read_quantized",
    "tensors_to_observe",
    "write_plan",
    "write_quantized",
]
