"""Every format that trtcal reads: seeds, how they are mutated, and commands that read them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from PIL import Image

from tests.evidence.layers.engines import inspected, int8_residual, profiled
from tests.fuzz import mutations as m
from tests.networks import rng, weight
from tests.reporting.samples import build, comparison, improvement, write_improvement, write_run
from tests.runs.runs import report
from trtcal.cli.main import run_command
from trtcal.data.dataset import Array
from trtcal.documents import canonical_json, digest_bytes, seal
from trtcal.evidence.log.recognition import RULES
from trtcal.model import load_model
from trtcal.model.passes import prepare_with_record
from trtcal.runs.checkpoints import checkpoints_of, write_checkpoints
from trtcal.runs.history import History

ROOT = Path(__file__).parent.parent.parent
DIGITS = ROOT / "samples" / "digits"
SAMPLES = 16
Chooser = random.Random


@dataclass(frozen=True)
class Case:
    """Files by their path in a folder, one of them mutated, and the command that reads them there."""

    files: dict[str, bytes]
    command: tuple[str, ...]


NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
control (float[n, 1, 8, 8] image) => (float[n, 4] y) {
  shape = Shape (image)
  zero = Constant <value: tensor = int64 {0}> ()
  axes = Constant <value: tensor = int64[1] {0}> ()
  first = Gather <axis = 0> (shape, zero)
  one = Unsqueeze (first, axes)
  rest = Constant <value: tensor = int64[1] {-1}> ()
  wanted = Concat <axis = 0> (one, rest)
  flat = Reshape (image, wanted)
  four = MatMul (flat, weight)
  half = Constant <value: tensor = float {0.5}> ()
  total = ReduceSum <keepdims = 0> (four)
  over = Greater (total, half)
  y = If (over) <
    then_branch = g1 () => (float[n, 4] a) { a = Relu (four) },
    else_branch = g2 () => (float[n, 4] b) { b = Neg (four) }
  >
}"""
CONFIG = """model = "digits.onnx"
output = "out"
task = "classification"
limits = ["top1 >= -1.0", "cosine >= 0.5"]
project = "digits"

[prepare]
skip = ["types"]

[calibration]
data = "data.npz"
method = "percentile"
methods = ["minmax", "entropy"]
parameters = { percentile = { percentile = 99.9 } }
batch = 8

[evaluation]
data = "data.npz"
rounds = 2
batch = 8

[plans.mixed]
method = "minmax"
layers = { "stem/conv" = "fp32", "head/gemm" = "fp32" }

[build]
targets = ["cpu"]

[report]
price_per_hour = 0.10

[[suppress]]
kind = "fallback"
reason = "known"
"""
PRICES = """[[price]]
name = "A10G"
per_hour = 1.0
currency = "USD"
seen = 2031-01-01
devices = ["A10G"]
"""
IMAGES = """[images]
channels = "gray"
layout = "NCHW"
resize = [8, 8]
scale = 1.0
mean = 0.0
std = 1.0
"""


def write_seeds(folder: Path) -> None:
    """Write the seeds of all formats into an empty folder: some seconds."""
    (folder / "digits.onnx").write_bytes((DIGITS / "digits.onnx").read_bytes())
    (folder / "other.onnx").write_bytes((DIGITS / "digits.onnx").read_bytes())
    network = onnx.parser.parse_model(NETWORK)
    network.graph.initializer.append(onnx.numpy_helper.from_array(weight(64, 4), "weight"))
    onnx.save(network, folder / "control.onnx")
    _write_arrays(folder)
    _write_documents(folder)
    _write_images(folder)
    _write_others(folder)


def _write_arrays(folder: Path) -> None:
    with np.load(DIGITS / "test.npz") as arrays:
        some = {name: arrays[name][:SAMPLES] for name in arrays.files}
    np.savez_compressed(folder / "data.npz", **some)
    np.save(folder / "data.npy", some["image"])
    np.save(folder / "turned.npy", np.asfortranarray(some["image"]))


def _write_documents(folder: Path) -> None:
    made = [
        ("calibrate digits.onnx --data data.npz --histograms histograms.npz -o calibration.json"),
        ("quantize digits.onnx --calibration calibration.json -o quantized.onnx"),
        ("compare digits.onnx quantized.onnx --data data.npz --rounds 2 -o comparison.json"),
        ("build quantized.onnx --target cpu -o build"),
        ("calibration export calibration.json --format tensorrt-cache --tensorrt 8.6.1 -o t.cache"),
        *(
            f"calibration export calibration.json --format {form} -o table.{form}"
            for form in ("onnxruntime", "json", "text")
        ),
    ]
    for command in made:
        words = [str(folder / w) if "." in w and w[0].isalpha() else w for w in command.split()]
        words = [str(folder / "build") if w == "build" and i else w for i, w in enumerate(words)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = run_command([*words, "-q"])
        if status:
            raise RuntimeError(f"no seed: status {status} of {command}")
    run = write_run(folder / "run", comparison(), build("sha256:int8", {"conv1": "int8"}))
    write_improvement(run, improvement())
    plan = {"layers": {"stem/conv": "fp32"}, "rules": [{"pattern": "head/*", "precision": "fp16"}]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "report.json").write_bytes((ROOT / "reports" / "digits.json").read_bytes())


def _write_images(folder: Path) -> None:
    pixels = rng().integers(0, 256, (9, 11, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels)
    for ending in ENDINGS:
        picture.save(folder / f"picture.{ending}")
    picture.save(folder / "packed.tif", compression="tiff_lzw")
    picture.convert("LA").save(folder / "alpha.png")
    (folder / "labels.csv").write_text("file,label\na.png,1\nb.png,2\nc.png,0\n")
    tiers = "\n".join(f"{'low' if i % 3 else 'high'},{i % 2}" for i in range(SAMPLES))
    (folder / "slices.csv").write_text(f"tier,source\n{tiers}\n")
    images = [{"id": i, "width": 8, "height": 8, "file_name": f"{i}.png"} for i in range(SAMPLES)]
    boxes = [{"image_id": i, "category_id": 1, "bbox": [1, 1, 4, 4.5]} for i in range(SAMPLES)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1}, {"id": 7}]}
    (folder / "coco.json").write_text(json.dumps(coco))


def _write_others(folder: Path) -> None:
    (folder / "trtcal.toml").write_text(CONFIG)
    (folder / "images.toml").write_text(IMAGES)
    (folder / "prices.toml").write_text(PRICES)
    (folder / "graph.json").write_text(inspected(int8_residual()))
    (folder / "profile.json").write_text(profiled(int8_residual()))
    _write_chains(folder)
    lines = [example for rule in RULES for example in rule.example]
    (folder / "trtexec.log").write_text("\n".join(lines[::3]))
    (folder / "engine.plan").write_bytes(_engine())
    feed = {"image": rng().standard_normal((2, 1, 8, 8)).astype(np.float32)}
    _write_polygraphy(folder / "inputs.json", feed)
    history = History(folder / "history.sqlite")
    for number in range(3):
        history.record(report(number))
    with sqlite3.connect(folder / "history.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")


def _write_chains(folder: Path) -> None:
    model = load_model(folder / "control.onnx")
    for name, skip in (("chain", ()), ("other-chain", ("constants",))):
        prepared = prepare_with_record(model, skip=skip, with_graphs=True)
        write_checkpoints(folder / name, checkpoints_of(prepared), prepared.graphs)


def _write_polygraphy(path: Path, feed: dict[str, Array]) -> None:
    def packed(array: Array) -> dict[str, str]:
        file = io.BytesIO()
        np.save(file, array)
        text = base64.b64encode(file.getvalue()).decode()
        return {"array": text, "polygraphy_class": "ndarray"}

    path.write_text(json.dumps([{name: packed(array) for name, array in feed.items()}] * 2))


PROGRAM = b"""header {
version=1 name="net"
}
descriptors {
tensor={ id=0 name="x" type="f32" dims={ 1 3 8 8 } }
tensor={ id=1 name="y" type="f16" dims={ 1 8 8 8 } }
}
main {
function={ name="conv1 + relu" op="conv" inputs={ 0 } outputs={ 1 } }
corrltn={ name="conv2" inputs={ 1 } outputs={ 0 } }
}
"""


def _engine() -> bytes:
    length = len(PROGRAM).to_bytes(4, "little")
    return b"vtrt" + bytes(60) + b"NLYM" + bytes(4) + length + bytes(4) + PROGRAM + bytes(32)


COMMON = ("digits.onnx", "other.onnx", "data.npz", "calibration.json")


@dataclass(frozen=True)
class Format:
    """Mutates one of `seeds`, puts it beside the files that `commands` need, and chooses a command.

    In a command `{}` is the mutated file. `placed` is its path, the seed's name if not given.
    """

    seeds: tuple[str, ...]
    mutate: m.Mutator
    commands: tuple[str, ...]
    beside: tuple[str, ...] = ()
    placed: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def __call__(self, folder: Path, chooser: Chooser) -> Case:
        """Return a case."""
        seed = chooser.choice(self.seeds)
        name = self.placed.format(Path(seed).name) or Path(seed).name
        command = chooser.choice(self.commands).format(name)
        files = {one: (folder / one).read_bytes() for one in self.beside}
        files |= {place: (folder / one).read_bytes() for place, one in self.extra.items()}
        return Case({**files, name: _mutated(self.mutate, folder / seed, chooser)}, _words(command))

    def whole(self, folder: Path) -> Iterator[Case]:
        """Yield each command with each seed as it is: what is read if nothing is wrong."""
        for seed in self.seeds:
            for command in self.commands:
                one = replace(self, seeds=(seed,), commands=(command,), mutate=lambda data, _: data)
                yield one(folder, random.Random(0))  # noqa: S311


def _mutated(mutate: m.Mutator, path: Path, chooser: Chooser) -> bytes:
    seed = path.read_bytes()
    try:
        return mutate(seed, chooser)
    except (RecursionError, ValueError):  # what can't be written can't be read
        return m.of_bytes(seed, chooser)


def _words(command: str) -> tuple[str, ...]:
    return tuple(command.split())


ENDINGS = ("bmp", "gif", "jpg", "png", "ppm", "tif", "webp")
PICTURES = (*(f"picture.{one}" for one in ENDINGS), "packed.tif", "alpha.png")
WRITE = "-q -o made"
RUN_FILES = (
    "run/comparison.json",
    "run/builds/0/build.json",
    "run/builds/0/build.log",
    "run/calibrations/percentile.json",
    "run/plan.json",
    "run/optimizations/improved.json",
)


def _of_onnx(folder: Path, chooser: Chooser) -> Case:
    """Mutate a model; the calibration says that it is of that one."""
    case = MODELS(folder, chooser)
    data = next(one for name, one in case.files.items() if name.endswith(".onnx"))
    fingerprint = digest_bytes(hashlib.sha256(data).digest())
    table = {**json.loads(case.files["calibration.json"]), "model": fingerprint}
    return replace(case, files={**case.files, "calibration.json": canonical_json(seal(table))})


def _of_run(folder: Path, chooser: Chooser) -> Case:
    """Mutate a file of a run folder, and make its report."""
    found = [str(one.relative_to(folder)) for one in (folder / "run").rglob("*") if one.is_file()]
    files = {name: (folder / name).read_bytes() for name in sorted(found)}
    chosen = chooser.choice(sorted(one for one in files if one.endswith(".json")))
    files[chosen] = _mutated(m.of_json, folder / chosen, chooser)
    command = chooser.choice(
        (f"report run {WRITE}.html", f"report run --md {WRITE}.md", "verify run")
    )
    return Case(files, tuple(command.split()))


MODELS = Format(
    ("digits.onnx", "quantized.onnx", "control.onnx"),
    m.of_onnx,
    (
        f"prepare {{}} {WRITE}.onnx",
        f"quantize {{}} --calibration calibration.json {WRITE}.onnx",
        "fusion check {} -q",
        "plan show plan.json --model {} -q",
        f"calibrate {{}} --data data.npz --method minmax {WRITE}.json",
        f"compare {{}} other.onnx --data data.npz --rounds 2 --no-simulate {WRITE}.json",
        "calibration show {} -q",
    ),
    ("data.npz", "calibration.json", "plan.json", "other.onnx"),
)

CHAINS = {
    path: path
    for path in (
        f"{folder}/{name}"
        for folder in ("chain", "other-chain")
        for name in ("checkpoints.jsonl", "graphs.npz")
    )
}
FORMATS: dict[str, Callable[[Path, Chooser], Case]] = {
    "onnx": _of_onnx,
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
            "calibration show {} -q",
            "calibration diff {} good.json -q",
            f"quantize digits.onnx --calibration {{}} {WRITE}.onnx",
            f"calibration export {{}} --format json {WRITE}.json",
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
    "run folder": _of_run,
    "build": Format(
        ("build/build.json", "build/diagnosis.json"),
        m.of_json,
        ("layers show {} -q", "diagnose build -q", "layers diff build build -q", "verify build"),
        extra={
            "build/build.json": "build/build.json",
            "build/diagnosis.json": "build/diagnosis.json",
            "build/build.log": "build/build.log",
            "build/engine.onnx": "build/engine.onnx",
        },
        placed="build/{}",
    ),
    "engine JSON": Format(
        ("graph.json",),
        m.of_json,
        (
            "layers show {} -q",
            "layers show {} --target t4 --profile profile.json -q",
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
        extra={name: name for name in ("build/build.json", "build/build.log", "build/engine.onnx")},
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
            f"calibration import {{}} --model digits.onnx --partial {WRITE}.json",
            "calibration show {} -q",
            "calibration diff {} calibration.json -q",
        ),
        ("digits.onnx", "calibration.json"),
    ),
    "table": Format(
        ("table.onnxruntime",),
        m.of_bytes,
        (
            f"calibration import {{}} --model digits.onnx --partial {WRITE}.json",
            "calibration show {} -q",
        ),
        ("digits.onnx",),
    ),
    "table JSON": Format(
        ("table.json",),
        m.of_json,
        (
            f"calibration import {{}} --model digits.onnx --partial {WRITE}.json",
            "calibration show {} -q",
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
    "checkpoints": Format(
        ("chain/checkpoints.jsonl",),
        m.of_text,
        ("checkpoint show chain -q", "checkpoint diff other-chain {} -q"),
        extra=CHAINS,
        placed="chain/{}",
    ),
    "graphs": Format(
        ("chain/graphs.npz",),
        m.of_npz,
        ("checkpoint diff other-chain chain -q", "checkpoint diff chain other-chain --json"),
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
WHOLE = "whole"
"""Instead of a format: every seed as it is, through every command."""


@cache
def whole_cases(folder: Path) -> list[Case]:
    """Return what is read if nothing is wrong."""
    formats = [one for one in (MODELS, *FORMATS.values()) if isinstance(one, Format)]
    return [case for one in formats for case in one.whole(folder)]
