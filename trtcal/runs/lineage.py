"""What a run consumed and produced, by digest: `run.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trtcal.backends.targets import machine, packages
from trtcal.documents import Document, seal, write_document
from trtcal.errors import __version__
from trtcal.runs.folder import KIND


@dataclass(frozen=True)
class Step:
    """One stage's output: `output` is its path inside the run folder."""

    stage: str
    output: str
    digest: str
    seconds: float = 0.0


@dataclass
class Lineage:
    """The steps of a run in order, what they started from, and which builds could not be made.

    `data_issues` are what looks wrong in the calibration data, `data_reads` how many of its samples
    were read for which purpose, `files` the model, the configuration and the run's folder, from where
    the command was given, `scripts` the digests of those that ran, by their keys in `trtcal.toml`,
    `cost` the tags and what serves the model, if the configuration says so; `configuration` is which
    one it was, with the commit; `source` what the model was converted from, if it was no ONNX.
    """

    model: str
    calibration_data: str
    evaluation_data: str
    steps: list[Step] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    data_issues: list[Document] = field(default_factory=list)
    data_reads: list[Document] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    source: Document | None = None
    scripts: dict[str, str] = field(default_factory=dict)
    cost: Document = field(default_factory=dict)
    configuration: Document = field(default_factory=dict)

    def to_document(self, command: str) -> Document:
        """Return the run as a sealed document; times and the machine stand under `measured`."""
        steps = [{"stage": s.stage, "output": s.output, "digest": s.digest} for s in self.steps]
        body = {
            "trtcal": __version__,
            "model": self.model,
            **({"source": self.source} if self.source else {}),
            "calibration_data": self.calibration_data,
            "evaluation_data": self.evaluation_data,
            "command": command,
            "stages": steps,
            "missing_builds": self.missing,
            "data_issues": self.data_issues,
            "data_reads": self.data_reads,
            "scripts": self.scripts,
            **({"cost": self.cost} if self.cost else {}),
            "measured": {
                "files": self.files,
                "configuration": self.configuration,
                "seconds": {step.output: round(step.seconds, 3) for step in self.steps},
                "machine": machine(),
                "packages": packages(),
            },
        }
        return seal({"kind": KIND, "schema_version": 1, **body})

    def write(self, folder: Path, command: str) -> Document:
        """Write `run.json`."""
        return write_document(folder / "run.json", self.to_document(command))
