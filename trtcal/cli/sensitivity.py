"""`trtcal sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.advice import advise
from trtcal.cli.options import CalibratedOptions, TaskOptions, option
from trtcal.cli.output import Columns, print_table, progress

if TYPE_CHECKING:
    from trtcal.evaluate.search.sensitivity import Sensitivities


class Sensitivity(
    CalibratedOptions,
    TaskOptions,
    example="trtcal sensitivity model.onnx --calibration calibration.json --data test.npz",
):
    """Measure what each layer of MODEL loses in INT8, those that lose most first.

    Each layer is quantized alone, and left alone in float with all others in INT8. Its share is the
    mean of what it adds to the loss in these two, of all INT8's loss. Losses are of the outputs against
    FP32: KL divergence where they are class scores, else noise over signal; of boxes after a
    NonMaxSuppression the share that is not found again.
    """

    samples: int = option("Number of samples to use, from the first.", default=64, least=2)
    exact: bool = option("Run every layer on all samples, even if it is known earlier.")
    output: Path | None = option("Write the table here too.", "-o")

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
            seen = measure_sensitivities(prepared, table, dataset, sampling, progress=advance)
        of = {
            "model": loaded.fingerprint,
            "calibration": table.digest,
            "dataset": dataset.fingerprint,
            "tolerance": sampling.tolerance,
        }
        of |= sampling.reader.key
        document = seal(seen.to_document(of))
        if self.output:
            document = write_document(self.output, document)
        self.present(document, lambda: show(seen), self.output)
        words = ("search", self.model or self.config.model, "--calibration", self.ranges, "--data")
        advise(self, *words, self.data or self.config.evaluation.data)


command = Sensitivity.command()


def show(seen: Sensitivities) -> None:
    """Print the layers, those with the largest share first."""
    whole, measure = seen.whole, seen.measure
    name = "KL" if measure == "kl" else "noise"
    columns: Columns = {
        "layer": "{layer}",
        "op": "{op}",
        "share": lambda one: f"{one.share(measure) / (whole.of(measure) or 1.0):.1%}",
        f"{name} of it alone": lambda one: f"{one.alone.of(measure):.3g}",
        f"{name} with it left in float": lambda one: f"{one.left.of(measure):.3g}",
        "SQNR dB alone": "{alone.sqnr_db:.2f}",
        "SQNR dB with it left": "{left.sqnr_db:.2f}",
        "samples": "{left.samples}",
    }
    title = f"all INT8: {name} {whole.of(measure):.3g}, SQNR {whole.sqnr_db:.2f} dB"
    print_table(seen.ranked, columns, f"{title}, {whole.samples} samples")
