"""`trtcal export torch`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtcal.cli.options import CalibratedOptions, option
from trtcal.cli.output import note, say
from trtcal.documents.streams import command_line


class Torch(
    CalibratedOptions,
    example="trtcal export torch model.onnx --calibration calibration.json -o qat.py",
):
    """Write MODEL with Q/DQ as a PyTorch module with fake quantization, whose scales are trained too.

    Beside OUTPUT are its weights (.weights.npz), and the model with Q/DQ that it computes as
    (.int8.onnx).
    """

    plan: Path | None = option("Plan of int8 and fp32.  [default: int8 for every layer]")
    output: Path = option("Python file for the module.", "-o", default=Path("qat.py"))

    def _run(self) -> None:
        from trtcal.quantization import Plan, quantize, read_plan
        from trtcal.quantization.qdq import in_opset_of
        from trtcal.ranges import Calibration
        from trtcal.wings.training.module import export_module

        model = self.prepare(self.load_model(), self.optimizations)
        plan = replace(read_plan(self.plan) if self.plan else Plan(), rest="fp32")
        quantized = quantize(model, Calibration.read(self.ranges), plan)
        floats = in_opset_of(model, plan.of(model.proto)).proto
        written = export_module(self.output, quantized, floats)
        weights, beside = map(self.output.with_suffix, (".weights.npz", ".int8.onnx"))
        back = command_line("import", beside, "trained.npz", o="trained.onnx")

        def show() -> None:
            say(f"wrote {self.output}, {weights} and {beside}")
            note(f"after training: `{back}`")

        layers = sum(precision == "int8" for precision in quantized.asked.values())
        document = {"output": str(self.output), "digest": written.digest, "layers": layers}
        self.present(document, show)


command = Torch.command()
