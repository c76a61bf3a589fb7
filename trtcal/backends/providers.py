"""ONNX Runtime's execution providers, by the name of the target that each one runs.

Those of CUDA and TensorRT have never been run by the authors.
"""

from __future__ import annotations

import onnxruntime

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt-ep": "TensorrtExecutionProvider",
}


def has_provider(target: str) -> bool:
    """Whether the installed ONNX Runtime was built with the provider of a target."""
    return PROVIDERS[target] in onnxruntime.get_available_providers()
