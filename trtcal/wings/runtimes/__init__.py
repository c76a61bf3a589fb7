"""Engines and models with Q/DQ for other runtimes: ONNX Runtime on GPUs, and OpenVINO."""
