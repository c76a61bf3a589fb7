"""`--improve` of `trtcal quantize`: what is run, written and said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.check_data import warn
from trtcal.cli.output import note, print_table, progress, required, say

if TYPE_CHECKING:
    from trtcal.calibration import Calibration
    from trtcal.config import Config
    from trtcal.improve import Wanted
    from trtcal.model import Model


@dataclass(frozen=True)
class Asked:
    """What the options say: effort, seconds, objective, a metric's file, data, where to write."""

    effort: str | None
    seconds: float
    objective: str
    metric: Path | None
    data: Path | None
    output: Path
    floats: Path | None

    def check(self, repairs: Path | None) -> None:
        """Refuse options that say nothing together."""
        if self.effort and repairs:
            raise click.UsageError("--improve finds repairs of its own: leave --repairs out")
        if not self.effort and (self.data or self.metric or self.floats):
            raise click.UsageError("--data, --metric and --float-output belong to --improve")

    def wanted(self) -> Wanted:
        """Return it as the library takes it."""
        from trtcal.compare.own_metric import load_metric
        from trtcal.improve import Wanted

        metric = load_metric(self.metric) if self.metric else None
        return Wanted(self.effort or "fast", self.seconds, self.objective, metric)


def improved_model(
    original: Model, prepared: Model, config: Config, asked: Asked
) -> tuple[Model, Calibration, dict[str, Any]]:
    """Find repairs, write them and the ranges beside the output; return model, ranges and record."""
    from trtcal.data import open_dataset
    from trtcal.improve import improve
    from trtcal.improve.saved import write_files
    from trtcal.suspicion import check_data

    source = required(asked.data or config.calibration.data, "the data", "--data")
    dataset = open_dataset(source, original, config.images, config.calibration.labels)
    warn(check_data(original, dataset))
    found = improve(prepared, dataset, asked.wanted(), original, progress)
    for line in found.warnings:
        note(f"warning: {line}")
    endings = (".repairs.npz", ".repairs.json", ".calibration.json")
    repairs, record, ranges = (asked.output.with_suffix(one) for one in endings)
    write_files(found, repairs, record, ranges)
    note(f"wrote {repairs}, {record} and {ranges}")
    if asked.floats:
        _write_floats(asked.floats, found.repaired, found.calibration)
    return found.repaired, found.calibration, found.repairs.document


def _write_floats(path: Path, model: Model, calibration: Calibration) -> None:
    """Write the repaired model in float, and its ranges, for builders that quantize by themselves."""
    from dataclasses import replace

    from trtcal.calibration import write_calibration
    from trtcal.improve import in_float
    from trtcal.model import load_model
    from trtcal.onnxfile import write_onnx

    write_onnx(path, in_float(model).proto)
    ranges = path.with_suffix(".calibration.json")
    write_calibration(ranges, replace(calibration, model=load_model(path).fingerprint))
    note(f"wrote {path}, in float, and {ranges}")


def show_tries(document: dict[str, Any]) -> None:
    """Print what was tried, and what each brought."""
    tries = document["tries"]
    rows = [
        (
            one["name"],
            "-" if one["value"] is None else f"{one['value']:.4g}",
            _decibels(one["loss"]["noise"]),
            "-" if one["loss"]["disagreement"] is None else f"{one['loss']['disagreement']:.2f}",
            "kept" if one["kept"] else "not kept",
        )
        for one in tries
    ]
    samples = document["samples"]
    title = f"on {samples['selection']} samples held back"
    loss = {"sqnr": "noise, mean dB", "kl": "KL, nats"}.get(document["objective"], "-metric")
    print_table(("repair", loss, "SQNR dB", "disagreement %", ""), rows, title)
    for name in document["untried"]:
        say(f"not tried for lack of time: {name}")


def _decibels(noise: float | None) -> str:
    return f"{-10 * math.log10(noise):.2f}" if noise else "-"
