"""From ranges to an ONNX model with Q/DQ that TensorRT obeys."""

from trtcal.model.passes import prepare
from trtcal.quantization.placement import find_layers, tensors_to_observe
from trtcal.quantization.plan import Plan, Planned, Rule, plan_of, read_plan, resolve, write_plan
from trtcal.quantization.qdq import QuantizedModel, quantize, write_quantized
