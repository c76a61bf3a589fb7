"""`trtcal sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.advice import advise
from trtcal.cli.options import CalibratedOptions, TaskOptions, option
from trtcal.cli.output import print_overview, progress

if TYPE_CHECKING:
    from trtcal.evaluate.search.sensitivity import Sensitivities


class Sensitivity(
    CalibratedOptions,
    TaskOptions,
    example="trtcal sensitivity model.onnx --calibration calibration.json --data test.npz",
):
    """Measure how much accuracy each layer of MODEL loses in INT8, the most sensitive first.

    Each layer is quantized alone, then left in float while all others are INT8. Its share is the
    mean of the loss that it adds in the first case and the loss that it removes in the second,
    relative to the loss of all INT8. A loss compares the outputs with FP32: KL divergence of class
    scores, the share of boxes that are not found again after a NonMaxSuppression, else noise over
    signal.
    """

    samples: int = option("Number of samples to use, from the first.", default=64, least=2)
    exact: bool = option("Run every layer on all samples, even if fewer decide its rank.")
    output: Path | None = option("JSON file for the table.", "-o")

    def _run(self) -> None:
        from trtcal.documents import seal, write_document
        from trtcal.evaluate.search.segments import TOLERANCE
        from trtcal.evaluate.search.sensitivity import Sampling, measure_sensitivities
        from trtcal.quantization import find_layers
        from trtcal.ranges import Calibration

        loaded, prepared, dataset = self.open_all()
        table = Calibration.read(self.ranges)
        tolerance = 0.0 if self.exact else TOLERANCE
        sampling = Sampling(self.samples, tolerance, reader=self.task_reader)
        with progress("sensitivity of layers", len(find_layers(prepared).layers)) as advance:
            result = measure_sensitivities(prepared, table, dataset, sampling, progress=advance)
        self.say_guesses(sampling.reader)
        inputs = {
            "model": loaded.fingerprint,
            "calibration": table.digest,
            "dataset": dataset.fingerprint,
            "tolerance": sampling.tolerance,
        }
        document = seal(result.to_document({**inputs, **sampling.reader.key}))
        if self.output:
            document = write_document(self.output, document)
        self.present(document, lambda: show(result), self.output)
        words = ("search", self.model or self.config.model, "--calibration", self.ranges, "--data")
        advise(self, *words, self.data or self.config.evaluation.data)


command = Sensitivity.command()


def show(result: Sensitivities) -> None:
    """Print the layers, those with the largest share first."""
    print_overview(result.overview())
