"""From ranges to an ONNX model with Q/DQ that TensorRT obeys."""

from trtcal.passes import prepare
from trtcal.quantize.placement import find_layers, tensors_to_observe
from trtcal.quantize.plan import Plan, Rule, plan_of, read_plan, write_plan
from trtcal.quantize.planned import Planned, resolve
from trtcal.quantize.qdq import QuantizedModel, quantize, read_quantized, write_quantized
from trtcal.quantize.weighted import Layer

__all__ = [
    "Layer",
    "Plan",
    "Planned",
    "QuantizedModel",
    "Rule",
    "find_layers",
    "plan_of",
    "prepare",
    "quantize",
    "read_plan",
    "read_quantized",
    "resolve",
    "tensors_to_observe",
    "write_plan",
    "write_quantized",
]
