"""`trtcal import`."""

from __future__ import annotations

from pathlib import Path

from trtcal.cli.options import JsonOptions, argument, option


class Import(JsonOptions, example="trtcal import qat.int8.onnx trained.npz -o trained.onnx"):
    """Put weights, scales and biases that PyTorch trained into QUANTIZED, a model with Q/DQ.

    QUANTIZED is the .int8.onnx file that `trtcal export torch` wrote, TRAINED the file that
    `save_trained` of the module wrote. Q/DQ stay where they are, and weights are rounded by their
    trained scales.
    """

    quantized: Path = argument()
    trained: Path = argument()
    output: Path = option("ONNX file for the trained model.", "-o", default=Path("trained.onnx"))

    def _run(self) -> None:
        from trtcal.errors import InputError
        from trtcal.model.files import write_onnx
        from trtcal.wings.training.trained import import_trained

        if self.output.resolve() == self.quantized.resolve():
            raise InputError(f"{self.output} is the model itself", "give another file with -o")
        written = write_onnx(self.output, import_trained(self.quantized, self.trained))
        self.present_onnx(self.output, written, {}, lambda: None)


command = Import.command()
