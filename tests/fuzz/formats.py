"""Every format that trtcal reads: what is mutated, how, and commands that read it."""

import hashlib
import json
import re
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


TABLE = """
onnx: digits.onnx quantized.onnx control.onnx | onnx | data.npz calibration.json plan.json other.onnx
 prepare {} WRITE.onnx
 quantize {} --calibration calibration.json WRITE.onnx
 layers fusions check {} -q
 plan show plan.json --model {} -q
 calibrate {} --data data.npz --method minmax WRITE.json
 compare {} other.onnx --data data.npz --rounds 2 --no-simulate WRITE.json
 ranges show {} -q
narrow types: fp8.onnx int4.onnx nvfp4.onnx | onnx | data.npz calibration.json other.onnx
 prepare {} WRITE.onnx
 quantize {} --precision int4 WRITE.onnx
 calibrate {} --data data.npz --method minmax WRITE.json
 compare {} other.onnx --data data.npz --rounds 2 --no-simulate WRITE.json
 layers fusions check {} -q
external data: external.onnx external.bin | external | external.onnx external.bin data.npz
 ranges show external.onnx -q
 prepare external.onnx WRITE.onnx
 calibrate external.onnx --data data.npz --method minmax WRITE.json
npz: data.npz histograms.npz | npz | digits.onnx | good.npz=data.npz
 calibrate digits.onnx --data {} --method minmax WRITE.json
 calibrate digits.onnx --data good.npz --histograms {} WRITE.json
 check-data digits.onnx --data {} -q
histograms: histograms.npz | npz | digits.onnx data.npz
 calibrate digits.onnx --data data.npz --histograms {} --method minmax WRITE.json
checkpoint: calibration.json.unfinished | npz | digits.onnx data.npz
 calibrate digits.onnx --data data.npz --method minmax -q --batch 4 -o calibration.json
optimizations: improved.optimizations.npz | npz | digits.onnx improved.calibration.json
 quantize digits.onnx --calibration improved.calibration.json --optimizations {} WRITE.onnx
feeds: data.npz | npz | digits.onnx | placed=folder/{}
 calibrate digits.onnx --data folder --method minmax WRITE.json
npy: data.npy turned.npy | npy | digits.onnx
 calibrate digits.onnx --data {} --method minmax WRITE.json
images: PICTURES | bytes | digits.onnx images.toml | placed=folder/{}
 calibrate digits.onnx --data folder --config images.toml --method minmax WRITE.json
calibration: calibration.json | json | digits.onnx | good.json=calibration.json
 ranges show {} -q
 ranges diff {} good.json -q
 quantize digits.onnx --calibration {} WRITE.onnx
 ranges export {} --format json WRITE.json
 verify {}
plan: plan.json run/plan.json | json | digits.onnx calibration.json
 plan show {} --model digits.onnx -q
 quantize digits.onnx --calibration calibration.json --plan {} WRITE.onnx
 plan diff {0} {0}
report: report.json | json
 history add {} --db h.sqlite -q
 report {} WRITE.html
 verify {}
build: build/build.json build/diagnosis.json | json | digits.onnx | placed=build/{} BUILD
 layers show {} -q
 diagnose build -q
 layers diff build build -q
 verify build
 build digits.onnx --target cpu -q -o build
engine JSON: graph.json | json | profile.json | good.json=graph.json
 layers show {} -q
 layers show {} --gpu t4 --profile profile.json -q
 layers diff {} good.json -q
 diagnose --layers {} -q
profile: profile.json | json | graph.json
 layers show graph.json --profile {} -q
engine: engine.plan | text
 layers show {} -q
 diagnose --layers {} -q
log: trtexec.log build/build.log | text
 log {} -q
 log {} --json -q
 diagnose --log {} -q
 layers show {} -q
packed log: packed.gz packed.bz2 packed.xz packed.zst | bytes
 log {} -q
 diagnose --log {} -q
fusions: fusions.json | json |  | good.json=fusions.json
 layers fusions diff {} good.json -q
patterns: patterns.toml | toml | digits.onnx
 layers fusions check digits.onnx --patterns {} -q
target: target.toml | toml | graph.json
 layers show graph.json --gpu {} -q
toml: trtcal.toml | toml | COMMON | BUILD
 calibrate --config {} WRITE.json
 quantize --config {} --calibration calibration.json WRITE.onnx
 compare digits.onnx other.onnx --config {} WRITE.json
 prepare --config {} WRITE.onnx
 diagnose build --config {} -q
images.toml: images.toml | toml | digits.onnx | folder/a.png=picture.png folder/b.jpg=picture.jpg
 calibrate digits.onnx --data folder --config {} --method minmax WRITE.json
hub: hub/config.json hub/preprocessor_config.json | json |  | placed=hub/{} HUB
 calibrate hub --data folder --method minmax WRITE.json
 init hub --data folder -q -o made
cache: t.cache table.text | text | digits.onnx calibration.json
 ranges import {} --model digits.onnx --partial WRITE.json
 ranges show {} -q
 ranges diff {} calibration.json -q
table: table.onnxruntime | bytes | digits.onnx
 ranges import {} --model digits.onnx --partial WRITE.json
 ranges show {} -q
table JSON: table.json | json | digits.onnx
 ranges import {} --model digits.onnx --partial WRITE.json
 ranges show {} -q
encodings: aimet.json aimet-1.json aimet-fp8.json | json | digits.onnx
 ranges import {} --model digits.onnx --partial WRITE.json
 ranges show {} -q
labels: labels.csv | text | digits.onnx images.toml | placed=folder/{} THREE
 calibrate digits.onnx --data folder --labels csv --config images.toml --method minmax WRITE.json
slices: slices.csv | text | digits.onnx other.onnx data.npz
 compare digits.onnx other.onnx --data data.npz --slices {} --rounds 2 WRITE.json
COCO: coco.json | json | digits.onnx data.npy
 calibrate digits.onnx --data data.npy --labels {} --method minmax WRITE.json
Polygraphy: inputs.json | json | digits.onnx
 calibrate digits.onnx --data {} --method minmax WRITE.json
history: history.sqlite | bytes
 history list --db {} -q
 history show 1 --db {} -q
 history diff 1 2 --db {} -q
 history list --db {} --json
page: run.html | text | RUN_FILES
 verify {}
 report run -q -o {}
dashboard: pages/index.html | text | history.sqlite | placed=pages/{}
 history dashboard --db history.sqlite -q -o pages
evaluations: search/evaluations.jsonl | text | digits.onnx calibration.json data.npz \
| placed=search/{}
 search digits.onnx --calibration calibration.json --data data.npz --samples 4 --evaluate 8 \
--plans 2 -q -o search
state: state/trtcal/engines.jsonl state/trtcal/made.jsonl | text | digits.onnx data.npz \
| placed=state/trtcal/{} BUILD
 compare digits.onnx build --data data.npz --rounds 2 WRITE.json
 diagnose build
journal: changes.json | json |  | placed=out/.trtcal-commit/{} COMMIT
 ranges show out/calibration.json -q
 verify out
checkpoints: chain/checkpoints.jsonl | text |  | placed=chain/{} CHAINS
 trace show chain -q
 trace diff other-chain {} -q
settings: chain/settings.json | json |  | placed=chain/{} CHAINS
 trace verify chain --baseline chain -q
graphs: chain/graphs.npz | npz |  | placed=chain/{} CHAINS
 trace diff other-chain chain -q
 trace diff chain other-chain --json
trtexec: measured/times.json measured/output.json measured/trtexec.log | text | RUN_FILES
 report run --measured digits={} WRITE.html
debug tensor: data.npy | npy | RUN_FILES
 report run --measured digits={} WRITE.html
results: measured/results.json | json | RUN_FILES
 report run --measured digits={} WRITE.html
Nsight: measured/kernels.sqlite | bytes | RUN_FILES
 report run --measured digits={} WRITE.html
measure: measured/measured.tar | bytes | RUN_FILES
 report run --measured {} WRITE.html
prices: prices.toml | toml | RUN_FILES
 report run --prices {} WRITE.html
"""
"""A line a format: its seeds, how they are mutated, files beside, where they lie; then its commands."""
GROUPS = {"PICTURES": PICTURES, "RUN_FILES": RUN_FILES, "COMMON": COMMON}
ALONGSIDE = {
    "BUILD": BUILD_FILES,
    "CHAINS": CHAINS,
    "THREE": {f"folder/{one}.png": "picture.png" for one in "abc"},
    "HUB": {
        "hub/model.onnx": "digits.onnx",
        "hub/config.json": "hub/config.json",
        "hub/preprocessor_config.json": "hub/preprocessor_config.json",
        "folder/a.png": "picture.png",
        "folder/b.jpg": "picture.jpg",
    },
    "COMMIT": {
        "out/calibration.json": "calibration.json",
        "out/old.json": "plan.json",
        "out/.trtcal-commit/new/calibration.json": "calibration.json",
        "out/.trtcal-commit/old/kept.json": "plan.json",
    },
}


def _format(lines: str) -> tuple[str, Format]:
    """Return the name and the format of its lines in the table."""
    head, *commands = lines.replace("WRITE", WRITE).splitlines()
    name, _, about = head.partition(": ")
    seeds, mutation, beside, places, *_ = [*(one.split() for one in about.split("|")), [], []]
    extra: dict[str, str] = {}
    for place in places:
        path, _, seed = place.partition("=")
        extra |= ALONGSIDE.get(place) or {path: seed}
    placed = extra.pop("placed", "{}")
    kind = Models if mutation == ["onnx"] else Format
    mutate = getattr(m, f"of_{mutation[0]}")
    said = tuple(one.strip() for one in commands)
    return name, kind(_grouped(seeds), mutate, said, _grouped(beside), placed, extra)


def _grouped(words: list[str]) -> tuple[str, ...]:
    return tuple(one for word in words for one in GROUPS.get(word, (word,)))


FORMATS: dict[str, Format | RunFolder | Store] = {
    **dict(_format(lines) for lines in re.split(r"\n(?! )", TABLE.strip())),
    "run folder": RunFolder(),
    "bundle": BundleFolder(),
    "outputs": SavedOutputs(),
    "store": Store(),
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
