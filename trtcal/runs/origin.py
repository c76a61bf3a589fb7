"""The origin of results, one record: `run.json`, written by a run and read by all that follow it.

origin = Origin.read(folder)                       # run.json, its own digest checked
origin.output_of(digest), list(origin.of_stage("build"))
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtcal import documents
from trtcal.backends.targets import machine, packages
from trtcal.config import read_tags
from trtcal.documents import FILES, Document
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError, __version__

RUN = "run"
RUN_FILE, REPORT_FILE = "run.json", "report.json"
GIT_S = 10.0
GIT_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True)
class Step:
    """One stage's output: `output` is its path inside the run folder."""

    stage: str
    output: str
    digest: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Configuration:
    """Which `trtcal.toml` a run had: its digest, the git commit of its folder, whether it `differs`.

    All are None where there is no file; `commit` and `differs` where git has no commit of its folder.
    """

    digest: str | None = None
    commit: str | None = None
    differs: bool | None = None

    @classmethod
    def of(cls, path: Path) -> Configuration:
        """Return that of a file."""
        if not path.is_file():
            return cls()
        data, commit = read_bytes(path), _revision(path.parent, "HEAD")
        if commit is None:
            return cls(documents.digest_bytes(data))
        blob = _revision(path.parent, f"HEAD:./{path.name}")
        return cls(documents.digest_bytes(data), commit, _blob(data, len(commit)) != blob)

    @property
    def sentence(self) -> str:
        """The commit and whether the file is the one in it."""
        if self.commit is None:
            return "no commit is recorded"
        return f"{self.commit}{', with uncommitted changes' if self.differs else ''}"


def _revision(folder: Path, name: str) -> str | None:
    """Return the hash that git has for a name; no hook or filter runs for that."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.decode("ascii", "replace").strip()
    return text if GIT_HASH.fullmatch(text) else None


def _blob(data: bytes, digits: int) -> str:
    """Return the hash under which git keeps a file (its object format: SHA-1, or SHA-256)."""
    digest = hashlib.new("sha1" if digits == 40 else "sha256", usedforsecurity=False)
    digest.update(b"blob %d\0" % len(data) + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Measured:
    """What is outside of a run's digest: files, seconds by output, the machine, the packages.

    `files` are the model, the configuration and the run's folder, from where the command was given.
    """

    files: dict[str, str] = field(default_factory=dict)
    configuration: Configuration = field(default_factory=Configuration)
    seconds: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine)
    packages: dict[str, str | None] = field(default_factory=packages)

    @property
    def architecture(self) -> str:
        """The processor's, such as x86_64: what engines for its GPU were built on."""
        return str(self.machine.get("architecture", "unknown"))

    @property
    def python(self) -> str:
        """Python's version, such as 3.11.7."""
        return str(self.machine.get("python", ""))


@dataclass
class Origin:
    """The steps of a run in order, what they started from, and which builds could not be made.

    `data_issues` are what looks wrong in the calibration data, `data_reads` how many of its samples
    were read for which purpose, `scripts` the digests of those that ran, by their keys in
    `trtcal.toml`, `cost` the tags and what serves the model, if the configuration says so, `source`
    what the model was converted from, if it was no ONNX.
    """

    model: str
    calibration_data: str
    evaluation_data: str
    stages: list[Step] = field(default_factory=list)
    missing_builds: dict[str, str] = field(default_factory=dict)
    data_issues: list[Document] = field(default_factory=list)
    data_reads: list[Document] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    cost: Document = field(default_factory=dict)
    source: Document | None = None
    measured: Measured = field(default_factory=Measured)
    digest: str = ""

    @classmethod
    def read(cls, folder: Path) -> Origin:
        """Read that of a run's folder; `InputError` if there is none, or it was changed."""
        path = folder / RUN_FILE
        document = documents.read_document(path, RUN, command="trtcal run")
        return documents.parsing(path, lambda: documents.from_fields(cls, document))

    @property
    def tags(self) -> dict[str, str]:
        """Who the run is for, as `[cost.tags]` says."""
        return read_tags(self.cost.get("tags", {}))

    def of_stage(self, stage: str) -> Iterator[Step]:
        """Yield the steps of a stage."""
        return (step for step in self.stages if step.stage == stage)

    def output_of(self, digest: object) -> str | None:
        """Return the output of this digest, None if there is none."""
        return next((step.output for step in self.stages if step.digest == digest), None)

    def write(self, folder: Path, command: str) -> Document:
        """Write `run.json`; times and the machine stand under `measured`."""
        left = {"measured", "digest"} | {k for k in ("source", "cost") if not getattr(self, k)}
        body = {key: value for key, value in vars(self).items() if key not in left}
        steps = [{"stage": s.stage, "output": s.output, "digest": s.digest} for s in self.stages]
        seconds = {step.output: round(step.seconds, 3) for step in self.stages}
        head = {"kind": RUN, "schema_version": 1, "trtcal": __version__, "command": command}
        measured = {**documents.to_fields(self.measured), "seconds": seconds, "record": FILES}
        document = {**head, **body, "stages": steps, "measured": measured}
        return documents.write_document(folder / RUN_FILE, document)


def check_replaceable(folder: Path) -> None:
    """`InputError` if a folder holds something else than a run that another one may replace."""
    documents.recover(folder)
    if folder.exists() and not (folder.is_dir() and _is_run(folder)):
        hint = "choose another folder: `output` in trtcal.toml, or -o"
        raise InputError(f"{folder} contains files that are not a trtcal run", hint)


def _is_run(folder: Path) -> bool:
    if all(documents.is_staging(entry.name) for entry in folder.iterdir()):
        return True
    run_file = folder / RUN_FILE
    return run_file.is_file() and bool(documents.read_document(run_file, RUN))
