"""Every format that trtcal reads: what is mutated, how, and commands that read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.fuzz import mutations as m
from tests.fuzz.cases import Case, Chooser, Format, mutated
from tests.fuzz.seeds import ENDINGS
from trtcal.documents import canonical_json, digest_bytes, seal
from trtcal.runs.bundle.signing import envelope
from trtcal.runs.bundle.verifying import MANIFEST, SIGNATURE

COMMON = ("digits.onnx", "other.onnx", "data.npz", "calibration.json")
PICTURES = (*(f"picture.{one}" for one in ENDINGS), "packed.tif", "alpha.png")
WRITE = "-q -o made"
CHAINS = {
    path: path
    for path in (
        f"{folder}/{name}"
        for folder in ("chain", "other-chain")
        for name in ("checkpoints.jsonl", "graphs.npz")
    )
}
RUN_JSON, OUTPUTS = "bundle/run.json", "outputs.npz"
BUILD_FILES = {
    name: name
    for name in ("build/build.json", "build/diagnosis.json", "build/build.log", "build/engine.onnx")
}
RUN_FILES = (
    "run/comparison.json",
    "run/builds/0/build.json",
    "run/builds/0/build.log",
    "run/calibrations/percentile.json",
    "run/plan.json",
    "run/optimizations/int8-improved.json",
)


class Models(Format):
    """Mutates a model; the calibration says that it is of that one."""

    def case(self, folder: Path, seed: str, data: bytes, command: str) -> Case:
        """Return a case, with the model's fingerprint in the calibration."""
        case = super().case(folder, seed, data, command)
        fingerprint = digest_bytes(hashlib.sha256(data).digest())
        table = {**json.loads(case.files["calibration.json"]), "model": fingerprint}
        return replace(case, files={**case.files, "calibration.json": canonical_json(seal(table))})


class RunFolder:
    """Mutates a document of a run folder, and makes its report."""

    commands = (f"report {{}} {WRITE}.html", f"report {{}} --md {WRITE}.md", "verify {}")

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case: of a folder with all that a report may have, or of a real run."""
        run = chooser.choice(("run", "out"))
        documents = sorted(str(one.relative_to(folder)) for one in (folder / run).rglob("*.json"))
        changed = chooser.choice(documents)
        data = mutated(m.of_json, folder / changed, chooser)
        return self.case(folder, changed, data, chooser.choice(self.commands))

    def case(self, folder: Path, changed: str, data: bytes, command: str) -> Case:
        """Return a case in which a document has these bytes."""
        run = Path(changed).parts[0]
        found = [path for path in sorted((folder / run).rglob("*")) if path.is_file()]
        files = {str(one.relative_to(folder)): one.read_bytes() for one in found}
        return Case({**files, changed: data}, tuple(command.format(run).split()), changed)

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with both folders as they are."""
        for changed in ("run/plan.json", "out/run.json"):
            yield from self.every(folder, changed, (folder / changed).read_bytes())

    def every(self, folder: Path, changed: str, data: bytes) -> Iterator[Case]:
        """Yield each command with these bytes as that document."""
        for command in self.commands:
            yield self.case(folder, changed, data, command)


class BundleFolder(RunFolder):
    """Mutates a file of a bundle; a manifest goes into the envelope, as its forger would put it."""

    commands = ("bundle verify {} --no-self-test", "bundle matrix {} -q", "verify {}")

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case, mostly of a mutated manifest."""
        changed = chooser.choice((*[f"bundle/{MANIFEST}"] * 6, f"bundle/{SIGNATURE}", RUN_JSON))
        data = mutated(m.of_json, folder / changed, chooser)
        return self.case(folder, changed, data, chooser.choice(self.commands))

    def case(self, folder: Path, changed: str, data: bytes, command: str) -> Case:
        """Return a case in which a file, and its copy in the envelope, have these bytes."""
        made = super().case(folder, changed, data, command)
        if changed.endswith(MANIFEST):
            made.files[f"bundle/{SIGNATURE}"] = json.dumps(envelope(data, None)).encode()
        return made

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with the bundle as it is."""
        yield from self.every(folder, RUN_JSON, (folder / RUN_JSON).read_bytes())


class SavedOutputs(BundleFolder):
    """Mutates the outputs that a device saved, beside their bundle."""

    commands = ("bundle drift {} outputs.npz -q",)

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case of mutated outputs."""
        data = mutated(m.of_npz, folder / OUTPUTS, chooser)
        return self.case(folder, OUTPUTS, data, self.commands[0])

    def case(self, folder: Path, changed: str, data: bytes, command: str) -> Case:
        """Return a case in which the outputs have these bytes."""
        made = super().case(folder, RUN_JSON, (folder / RUN_JSON).read_bytes(), command)
        return replace(made, files={**made.files, OUTPUTS: data}, changed=OUTPUTS)

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield the command with the outputs as they are."""
        yield from self.every(folder, OUTPUTS, (folder / OUTPUTS).read_bytes())


class Store:
    """Mutates a Statement in a store, named by its new digest, or an object, or the marker."""

    commands = (
        "store list --store store -q",
        "store show {} --store store -q",
        "store show {} --store store --json",
        "store pull {} --store store -q -o made",
        "store origin {engine} --store store -q",
        "store verify --store store -q",
    )

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case; three of four change the Statement."""
        changed = (
            "statement.json" if chooser.random() < 0.75 else chooser.choice(self.others(folder))
        )
        path = self.statement(folder) if changed == "statement.json" else folder / changed
        mutate = m.of_json if path.suffix == ".json" else m.of_bytes
        data = mutated(mutate, path, chooser)
        return self.case(folder, changed, data, chooser.choice(self.commands))

    @staticmethod
    def statement(folder: Path) -> Path:
        """Return the file of the Statement."""
        return next((folder / "store" / "runs").iterdir())

    def others(self, folder: Path) -> list[str]:
        """Return the store's marker and its objects."""
        found = sorted(one for one in (folder / "store").rglob("*") if one.is_file())
        return [str(one.relative_to(folder)) for one in found if one != self.statement(folder)]

    def case(self, folder: Path, changed: str, data: bytes, command: str) -> Case:
        """Return a case in which a file of the store has these bytes."""
        statement = self.statement(folder)
        files = {one: (folder / one).read_bytes() for one in self.others(folder)}
        time, digits = statement.name.split("-")[0], statement.stem.split("-")[1]
        engine = digest_bytes(next((folder / "out" / "builds").rglob("engine.*")).read_bytes())
        if changed == "statement.json":
            digits = digest_bytes(data).removeprefix("sha256:")
            changed = f"store/runs/{time}-{digits}.json"
        else:
            files[f"store/runs/{statement.name}"] = statement.read_bytes()
        words = command.format(digits, engine=engine).split()
        return Case({**files, changed: data}, tuple(words), changed)

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with the store as it is."""
        yield from self.every(folder, "statement.json", self.statement(folder).read_bytes())

    def every(self, folder: Path, changed: str, data: bytes) -> Iterator[Case]:
        """Yield each command with these bytes as that file."""
        for command in self.commands:
            yield self.case(folder, changed, data, command)


FORMATS: dict[str, Format | RunFolder | Store] = {
    "onnx": Models(
        ("digits.onnx", "quantized.onnx", "control.onnx"),
        m.of_onnx,
        (
            f"prepare {{}} {WRITE}.onnx",
            f"quantize {{}} --calibration calibration.json {WRITE}.onnx",
            "layers fusions check {} -q",
            "plan show plan.json --model {} -q",
            f"calibrate {{}} --data data.npz --method minmax {WRITE}.json",
            f"compare {{}} other.onnx --data data.npz --rounds 2 --no-simulate {WRITE}.json",
            "ranges show {} -q",
        ),
        ("data.npz", "calibration.json", "plan.json", "other.onnx"),
    ),
    "narrow types": Models(
        ("fp8.onnx", "int4.onnx", "nvfp4.onnx"),
        m.of_onnx,
        (
            f"prepare {{}} {WRITE}.onnx",
            f"quantize {{}} --precision int4 {WRITE}.onnx",
            f"calibrate {{}} --data data.npz --method minmax {WRITE}.json",
            f"compare {{}} other.onnx --data data.npz --rounds 2 --no-simulate {WRITE}.json",
            "layers fusions check {} -q",
        ),
        ("data.npz", "calibration.json", "other.onnx"),
    ),
    "external data": Format(
        ("external.onnx", "external.bin"),
        m.of_external,
        (
            "ranges show external.onnx -q",
            f"prepare external.onnx {WRITE}.onnx",
            f"calibrate external.onnx --data data.npz --method minmax {WRITE}.json",
        ),
        ("external.onnx", "external.bin", "data.npz"),
    ),
    "npz": Format(
        ("data.npz", "histograms.npz"),
        m.of_npz,
        (
            f"calibrate digits.onnx --data {{}} --method minmax {WRITE}.json",
            f"calibrate digits.onnx --data good.npz --histograms {{}} {WRITE}.json",
            "check-data digits.onnx --data {} -q",
        ),
        ("digits.onnx",),
        extra={"good.npz": "data.npz"},
    ),
    "histograms": Format(
        ("histograms.npz",),
        m.of_npz,
        (f"calibrate digits.onnx --data data.npz --histograms {{}} --method minmax {WRITE}.json",),
        ("digits.onnx", "data.npz"),
    ),
    "checkpoint": Format(
        ("calibration.json.unfinished",),
        m.of_npz,
        ("calibrate digits.onnx --data data.npz --method minmax -q --batch 4 -o calibration.json",),
        ("digits.onnx", "data.npz"),
    ),
    "optimizations": Format(
        ("improved.optimizations.npz",),
        m.of_npz,
        (
            "quantize digits.onnx --calibration improved.calibration.json "
            f"--optimizations {{}} {WRITE}.onnx",
        ),
        ("digits.onnx", "improved.calibration.json"),
    ),
    "feeds": Format(
        ("data.npz",),
        m.of_npz,
        (f"calibrate digits.onnx --data folder --method minmax {WRITE}.json",),
        ("digits.onnx",),
        placed="folder/{}",
    ),
    "npy": Format(
        ("data.npy", "turned.npy"),
        m.of_npy,
        (f"calibrate digits.onnx --data {{}} --method minmax {WRITE}.json",),
        ("digits.onnx",),
    ),
    "images": Format(
        PICTURES,
        m.of_bytes,
        (f"calibrate digits.onnx --data folder --config images.toml --method minmax {WRITE}.json",),
        ("digits.onnx", "images.toml"),
        placed="folder/{}",
    ),
    "calibration": Format(
        ("calibration.json",),
        m.of_json,
        (
            "ranges show {} -q",
            "ranges diff {} good.json -q",
            f"quantize digits.onnx --calibration {{}} {WRITE}.onnx",
            f"ranges export {{}} --format json {WRITE}.json",
            "verify {}",
        ),
        ("digits.onnx",),
        extra={"good.json": "calibration.json"},
    ),
    "plan": Format(
        ("plan.json", "run/plan.json"),
        m.of_json,
        (
            "plan show {} --model digits.onnx -q",
            f"quantize digits.onnx --calibration calibration.json --plan {{}} {WRITE}.onnx",
            "plan diff {0} {0}",
        ),
        ("digits.onnx", "calibration.json"),
    ),
    "report": Format(
        ("report.json",),
        m.of_json,
        ("history add {} --db h.sqlite -q", f"report {{}} {WRITE}.html", "verify {}"),
    ),
    "run folder": RunFolder(),
    "bundle": BundleFolder(),
    "outputs": SavedOutputs(),
    "store": Store(),
    "build": Format(
        ("build/build.json", "build/diagnosis.json"),
        m.of_json,
        (
            "layers show {} -q",
            "diagnose build -q",
            "layers diff build build -q",
            "verify build",
            "build digits.onnx --target cpu -q -o build",
        ),
        ("digits.onnx",),
        extra=BUILD_FILES,
        placed="build/{}",
    ),
    "engine JSON": Format(
        ("graph.json",),
        m.of_json,
        (
            "layers show {} -q",
            "layers show {} --gpu t4 --profile profile.json -q",
            "layers diff {} good.json -q",
            "diagnose --layers {} -q",
        ),
        ("profile.json",),
        extra={"good.json": "graph.json"},
    ),
    "profile": Format(
        ("profile.json",), m.of_json, ("layers show graph.json --profile {} -q",), ("graph.json",)
    ),
    "engine": Format(("engine.plan",), m.of_text, ("layers show {} -q", "diagnose --layers {} -q")),
    "log": Format(
        ("trtexec.log", "build/build.log"),
        m.of_text,
        ("log {} -q", "log {} --json -q", "diagnose --log {} -q", "layers show {} -q"),
    ),
    "packed log": Format(
        ("packed.gz", "packed.bz2", "packed.xz", "packed.zst"),
        m.of_bytes,
        ("log {} -q", "diagnose --log {} -q"),
    ),
    "fusions": Format(
        ("fusions.json",),
        m.of_json,
        ("layers fusions diff {} good.json -q",),
        extra={"good.json": "fusions.json"},
    ),
    "patterns": Format(
        ("patterns.toml",),
        m.of_toml,
        ("layers fusions check digits.onnx --patterns {} -q",),
        ("digits.onnx",),
    ),
    "target": Format(
        ("target.toml",), m.of_toml, ("layers show graph.json --gpu {} -q",), ("graph.json",)
    ),
    "toml": Format(
        ("trtcal.toml",),
        m.of_toml,
        (
            f"calibrate --config {{}} {WRITE}.json",
            f"quantize --config {{}} --calibration calibration.json {WRITE}.onnx",
            f"compare digits.onnx other.onnx --config {{}} {WRITE}.json",
            f"prepare --config {{}} {WRITE}.onnx",
            "diagnose build --config {} -q",
        ),
        COMMON,
        extra=BUILD_FILES,
    ),
    "images.toml": Format(
        ("images.toml",),
        m.of_toml,
        (f"calibrate digits.onnx --data folder --config {{}} --method minmax {WRITE}.json",),
        ("digits.onnx",),
        extra={"folder/a.png": "picture.png", "folder/b.jpg": "picture.jpg"},
    ),
    "cache": Format(
        ("t.cache", "table.text"),
        m.of_text,
        (
            f"ranges import {{}} --model digits.onnx --partial {WRITE}.json",
            "ranges show {} -q",
            "ranges diff {} calibration.json -q",
        ),
        ("digits.onnx", "calibration.json"),
    ),
    "table": Format(
        ("table.onnxruntime",),
        m.of_bytes,
        (
            f"ranges import {{}} --model digits.onnx --partial {WRITE}.json",
            "ranges show {} -q",
        ),
        ("digits.onnx",),
    ),
    "table JSON": Format(
        ("table.json",),
        m.of_json,
        (
            f"ranges import {{}} --model digits.onnx --partial {WRITE}.json",
            "ranges show {} -q",
        ),
        ("digits.onnx",),
    ),
    "encodings": Format(
        ("aimet.json", "aimet-1.json", "aimet-fp8.json"),
        m.of_json,
        (
            f"ranges import {{}} --model digits.onnx --partial {WRITE}.json",
            "ranges show {} -q",
        ),
        ("digits.onnx",),
    ),
    "labels": Format(
        ("labels.csv",),
        m.of_text,
        (
            "calibrate digits.onnx --data folder --labels csv --config images.toml "
            f"--method minmax {WRITE}.json",
        ),
        ("digits.onnx", "images.toml"),
        placed="folder/{}",
        extra={f"folder/{one}.png": "picture.png" for one in "abc"},
    ),
    "slices": Format(
        ("slices.csv",),
        m.of_text,
        (f"compare digits.onnx other.onnx --data data.npz --slices {{}} --rounds 2 {WRITE}.json",),
        ("digits.onnx", "other.onnx", "data.npz"),
    ),
    "COCO": Format(
        ("coco.json",),
        m.of_json,
        (f"calibrate digits.onnx --data data.npy --labels {{}} --method minmax {WRITE}.json",),
        ("digits.onnx", "data.npy"),
    ),
    "Polygraphy": Format(
        ("inputs.json",),
        m.of_json,
        (f"calibrate digits.onnx --data {{}} --method minmax {WRITE}.json",),
        ("digits.onnx",),
    ),
    "history": Format(
        ("history.sqlite",),
        m.of_bytes,
        (
            "history list --db {} -q",
            "history show 1 --db {} -q",
            "history diff 1 2 --db {} -q",
            "history list --db {} --json",
        ),
    ),
    "page": Format(("run.html",), m.of_text, ("verify {}", "report run -q -o {}"), RUN_FILES),
    "dashboard": Format(
        ("pages/index.html",),
        m.of_text,
        ("history dashboard --db history.sqlite -q -o pages",),
        ("history.sqlite",),
        placed="pages/{}",
    ),
    "evaluations": Format(
        ("search/evaluations.jsonl",),
        m.of_text,
        (
            "search digits.onnx --calibration calibration.json --data data.npz --samples 4 "
            "--evaluate 8 --plans 2 -q -o search",
        ),
        ("digits.onnx", "calibration.json", "data.npz"),
        placed="search/{}",
    ),
    "state": Format(
        ("state/trtcal/engines.jsonl", "state/trtcal/made.jsonl"),
        m.of_text,
        (f"compare digits.onnx build --data data.npz --rounds 2 {WRITE}.json", "diagnose build"),
        ("digits.onnx", "data.npz"),
        placed="state/trtcal/{}",
        extra=BUILD_FILES,
    ),
    "journal": Format(
        ("changes.json",),
        m.of_json,
        ("ranges show out/calibration.json -q", "verify out"),
        placed="out/.trtcal-commit/{}",
        extra={
            "out/calibration.json": "calibration.json",
            "out/old.json": "plan.json",
            "out/.trtcal-commit/new/calibration.json": "calibration.json",
            "out/.trtcal-commit/old/kept.json": "plan.json",
        },
    ),
    "checkpoints": Format(
        ("chain/checkpoints.jsonl",),
        m.of_text,
        ("trace show chain -q", "trace diff other-chain {} -q"),
        extra=CHAINS,
        placed="chain/{}",
    ),
    "settings": Format(
        ("chain/settings.json",),
        m.of_json,
        ("trace verify chain --baseline chain -q",),
        extra=CHAINS,
        placed="chain/{}",
    ),
    "graphs": Format(
        ("chain/graphs.npz",),
        m.of_npz,
        ("trace diff other-chain chain -q", "trace diff chain other-chain --json"),
        extra=CHAINS,
        placed="chain/{}",
    ),
    "prices": Format(
        ("prices.toml",),
        m.of_toml,
        (f"report run --prices {{}} {WRITE}.html",),
        RUN_FILES,
    ),
}
WHOLE, KEPT = "whole", "kept"
"""Instead of a format: every seed as it is, and what once went wrong, through every command."""
CORPUS = Path(__file__).parent / "corpus"
"""What once went wrong, as FORMAT/NUMBER-PATH, with `~` instead of `/`."""


@cache
def cases_of(form: str, folder: Path) -> list[Case]:
    """Return the cases of `WHOLE` or `KEPT`."""
    if form == WHOLE:
        return [case for one in FORMATS.values() for case in one.whole(folder)]
    return [case for path in sorted(CORPUS.glob("*/*")) for case in _kept(path, folder)]


def _kept(path: Path, folder: Path) -> Iterator[Case]:
    changed = path.name.partition("-")[2].replace("~", "/")
    return FORMATS[path.parent.name].every(folder, changed, path.read_bytes())


def keep(form: str, number: int, case: Case) -> Path:
    """Add the changed file of a case to the corpus; return its path there."""
    path = CORPUS / form / f"{number}-{case.changed.replace('/', '~')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(case.files[case.changed])
    return path
