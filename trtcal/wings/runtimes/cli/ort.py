"""`trtcal export ort`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import note, say

LOAD = {
    "NvTensorRTRTXExecutionProvider": "pip install onnxruntime onnxruntime-ep-nv-tensorrt-rtx",
    "TensorrtExecutionProvider": "pip install onnxruntime-gpu, and TensorRT of the engine's version",
}
"""What the provider is part of."""


class Ort(JsonOptions, example="trtcal export ort builds/sm89 -o model_ctx.onnx"):
    """Write an engine as an ONNX model of one EPContext node, which ONNX Runtime loads without a build.

    ENGINE is the folder of a build, or an engine of TensorRT-RTX or TensorRT. Nothing is loaded here:
    that takes the GPU that the engine was built for.
    """

    engine: Path = argument()
    model: Path | None = option(
        "ONNX model that an engine of another tool was built from: it has the inputs and outputs."
    )
    embed: bool = option("Put the engine into the ONNX file, not into a file beside it.")
    output: Path = option("ONNX file to write.", "-o", default=Path("model_ctx.onnx"))

    def _run(self) -> None:
        from trtcal.wings.runtimes.ep_context import export_context, open_engine

        engine = open_engine(self.engine, self.model)
        written, provider, beside = export_context(engine, self.output, self.embed)
        facts = {"provider": provider, "engine": beside and beside.name, "loaded": False}

        def show() -> None:
            if beside is not None:
                say(f"wrote the engine beside it, where it must stay: {beside.name}")
            version = f", with {engine.version} of its library" if engine.version else ""
            gpu = f" ({engine.target})" if engine.target else ""
            note(f"it loads with {provider}: {LOAD[provider]}{version}")
            note(f"not loaded here: that takes a GPU that the engine is for{gpu}")

        self.present_onnx(self.output, written, facts, show)


command = Ort.command()
