"""Engines and models with Q/DQ for other runtimes: ONNX Runtime on GPUs, and OpenVINO."""

from trtcal.extensions import Command

COMMANDS = (
    Command(
        "export ort",
        "Write an ONNX model around an engine, for ONNX Runtime.",
        "trtcal.wings.runtimes.cli.ort",
    ),
    Command(
        "export openvino",
        "Write a model with Q/DQ as OpenVINO's IR.",
        "trtcal.wings.runtimes.cli.openvino",
    ),
)
