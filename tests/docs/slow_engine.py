"""The engines of docs/guides/not-faster.md: a residual block in FP16, and in INT8 with a float skip."""

from pathlib import Path

from tests.evidence.layers.engines import conv, float_residual, layer, tensor, write
from tests.fixtures.answered import LEVELS, LOGS

HALF = {"weights": "Half", "TacticName": "sm80_xmma_fprop_f16f16"}


def fp16_block():
    """Return the layers of the block in FP16, each with its time in ms."""
    half = {name: [tensor(name, "fp16")] for name in ("s", "i", "h", "o", "xh")}
    return [
        (layer("Cast_2", "Reformat", [tensor("x", "fp32")], half["xh"], Origin="CAST"), 0.05),
        (conv("stem.weight + Conv_9 + MaxPool_12", half["xh"], half["i"], **HALF), 0.14),
        (conv("a.weight + Conv_22", half["i"], half["h"], **HALF), 0.09),
        (
            conv("b.weight + Conv_34 + Add_36 + Relu_37", half["h"] + half["i"], half["o"], **HALF),
            0.1,
        ),
        (conv("c.weight + Conv_47", half["o"], [tensor("y", "fp32")], **HALF), 0.09),
    ]


def make(folder: Path) -> None:
    """Write both engines' layers with their times, as trtexec exports them, and two build logs."""
    write(folder / "int8", float_residual())
    write(folder / "fp16", fp16_block())
    for name in ("int8_only", "skipped"):
        lines = [LEVELS[line[0]] + line[2:] for line in LOGS[name].splitlines()]
        head = "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=net.onnx --int8"
        end = "&&&& PASSED TensorRT.trtexec [TensorRT v8601]\n"
        (folder / f"{name}.log").write_text("\n".join([head, *lines, end]))
