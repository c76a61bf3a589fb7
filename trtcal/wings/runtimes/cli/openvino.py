"""`trtcal export openvino`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import note, say


class OpenVino(JsonOptions, example="trtcal export openvino model-int8.onnx -o model.xml"):
    """Write a quantized MODEL as OpenVINO's IR, and count the layers that this CPU runs in INT8.

    MODEL is an ONNX file with Q/DQ of INT8. The weights are in a .bin beside OUTPUT.
    """

    model: Path = argument()
    output: Path = option(
        "File of the IR to write, with the ending .xml.", "-o", default=Path("model.xml")
    )

    def _run(self) -> None:
        from trtcal.model import load_model
        from trtcal.wings.runtimes.openvino import export_openvino, may_saturate

        facts = export_openvino(load_model(self.model), self.output)
        weights = self.output.with_suffix(".bin")

        def show() -> None:
            say(f"wrote {self.output} and {weights}, which must stay beside it")
            say(f"{facts['fake_quantize']} FakeQuantize")
            counts = f"{facts['layers_in_int8']} of {facts['layers']} layers that multiply"
            note(f"OpenVINO {facts['openvino']} runs {counts} in INT8 on this CPU")
            if may_saturate():
                note("this CPU has no VNNI: its INT8 saturates, and its outputs prove nothing")

        self.present({"output": str(self.output), "weights": str(weights), **facts}, show)


command = OpenVino.command()
