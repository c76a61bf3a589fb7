"""The seeds of all formats: what is mutated, as trtcal and others write it."""

import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnx.parser
from backports import zstd
from PIL import Image

from tests.evidence.layers.engines import inspected, int8_residual, profiled
from tests.fixtures.networks import rng, weight
from tests.fixtures.nsight import write_nsight
from tests.fixtures.trtexec import log_text, output_json, times_json
from tests.reporting.samples import build, comparison, improvement, write_improvement, write_run
from tests.runs.runs import report
from trtcal.calibration import observer
from trtcal.calibration.accumulator import Checkpoint
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.data.dataset import Array
from trtcal.documents import seal
from trtcal.evidence.log.recognition import RULES
from trtcal.model import load_model
from trtcal.model.passes import prepare_with_record
from trtcal.runs.history import History
from trtcal.runs.settings import write_settings
from trtcal.wings.forensics.checkpoints import GraphTables, checkpoints_of, write_checkpoints

ROOT = Path(__file__).parent.parent.parent
DIGITS = ROOT / "samples" / "digits"
SAMPLES = 16
ENDINGS = ("bmp", "gif", "jpg", "png", "ppm", "tif", "webp")

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

HUB = {
    "config.json": {
        "architectures": ["ViTForImageClassification"],
        "id2label": {str(number): f"digit {number}" for number in range(10)},
        "model_type": "vit",
        "problem_type": "single_label_classification",
    },
    "preprocessor_config.json": {
        "crop_pct": 0.875,
        "do_center_crop": True,
        "do_rescale": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "ConvNextImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": 8},
    },
}

TARGET = """name = "T4"
bandwidth_gb_s = 320
int8_tops = 130
fp16_tflops = 65
fp32_tflops = 8.1
"""
PATTERNS = """[operators]
mine = ["Relu", "com.example::Fast"]

[[form]]
operator = "Swish"
is = ["Mul(x, Sigmoid(x))", "Mul(Sigmoid(x), x)"]

[[pattern]]
name = "conv+mine"
is = "mine(Add(Conv, const))"
allows = ["Transpose"]
"""
PLAN = {"layers": {"stem/conv": "fp32"}, "rules": [{"pattern": "head/*", "precision": "fp16"}]}
TEXTS = {
    "trtcal.toml": CONFIG,
    "images.toml": IMAGES,
    "prices.toml": PRICES,
    "target.toml": TARGET,
    "patterns.toml": PATTERNS,
    "plan.json": json.dumps(PLAN),
    "changes.json": json.dumps({"new": ["calibration.json"], "gone": ["old.json"]}),
}
COMMANDS = (
    "calibrate digits.onnx --data data.npz --histograms histograms.npz -o calibration.json",
    "quantize digits.onnx --calibration calibration.json -o quantized.onnx",
    "build quantized.onnx --target cpu -o build",
    "ranges export calibration.json --format tensorrt-cache --tensorrt 8.6.1 --partial -o t.cache",
    "ranges export calibration.json --format onnxruntime -o table.onnxruntime",
    "ranges export calibration.json --format json -o table.json",
    "ranges export calibration.json --format text -o table.text",
    "ranges export calibration.json --format aimet -o aimet.json",
    "ranges export calibration.json --format aimet-1 -o aimet-1.json",
    "ranges export calibration.json --format aimet-fp8 -o aimet-fp8.json",
    "quantize digits.onnx --calibration calibration.json --precision fp8 -o fp8.onnx",
    "quantize digits.onnx --precision int4 -o int4.onnx",
    "quantize digits.onnx --precision nvfp4 -o nvfp4.onnx",
    "quantize digits.onnx --improve fast --data data.npz -o improved.onnx",
    "layers fusions check digits.onnx -o fusions.json",
    "search digits.onnx --calibration calibration.json --data data.npz --samples 4 --evaluate 8 "
    "--plans 2 -o search",
    "run trtcal.toml --no-history",
    "store push out --store store",
    "bundle out --variant int8-minmax -o bundle --despite-verdict",
    "bundle verify bundle --save-outputs outputs.npz",
    "report run -o run.html",
    "history dashboard --db history.sqlite -o pages",
)


def write_seeds(folder: Path) -> None:
    """Write the seeds of all formats into an empty folder: some seconds."""
    _write_models(folder)
    _write_arrays(folder)
    _write_images(folder)
    _write_others(folder)
    _write_measured(folder)
    _write_tables(folder)
    _write_logs(folder)
    _write_chains(folder)
    with _working_in(folder):
        for command in COMMANDS:
            _make(command)
        _write_checkpoint(folder)


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Make the folder the current one for the block, and that of the user's state."""
    state = {"XDG_STATE_HOME": str(folder / "state")}
    here = Path.cwd()
    with mock.patch.dict(os.environ, state):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def _make(command: str) -> None:
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        status = run_command([*command.split(), "-q"])
    if status > 1:
        raise RuntimeError(f"no seed: status {status} of {command}: {quiet.getvalue()}")


def _write_checkpoint(folder: Path) -> None:
    """Let a calibration leave what it counts while it is under way."""
    with mock.patch.object(Checkpoint, "due", True), mock.patch.object(observer, "removing"):
        _make("calibrate digits.onnx --data data.npz --batch 4 --method minmax -o counted.json")
    (folder / "counted.json.unfinished").rename(folder / "calibration.json.unfinished")


def _write_models(folder: Path) -> None:
    for name in ("digits.onnx", "other.onnx"):
        (folder / name).write_bytes((DIGITS / "digits.onnx").read_bytes())
    network = onnx.parser.parse_model(NETWORK)
    network.graph.initializer.append(onnx.numpy_helper.from_array(weight(64, 4), "weight"))
    onnx.save(network, folder / "control.onnx")
    beside = {"save_as_external_data": True, "location": "external.bin", "size_threshold": 0}
    onnx.save(onnx.load(folder / "digits.onnx"), folder / "external.onnx", **beside)


def _write_arrays(folder: Path) -> None:
    with np.load(DIGITS / "test.npz") as arrays:
        some = {name: arrays[name][:SAMPLES] for name in arrays.files}
    np.savez_compressed(folder / "data.npz", **some)
    np.save(folder / "data.npy", some["image"])
    np.save(folder / "turned.npy", np.asfortranarray(some["image"]))


def _write_images(folder: Path) -> None:
    pixels = rng().integers(0, 256, (9, 11, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels)
    for ending in ENDINGS:
        picture.save(folder / f"picture.{ending}")
    picture.save(folder / "packed.tif", compression="tiff_lzw")
    picture.convert("LA").save(folder / "alpha.png")
    (folder / "hub").mkdir()
    for name, keys in HUB.items():
        (folder / "hub" / name).write_text(json.dumps(keys))
    (folder / "labels.csv").write_text("file,label\na.png,1\nb.png,2\nc.png,0\n")
    tiers = "\n".join(f"{'low' if i % 3 else 'high'},{i % 2}" for i in range(SAMPLES))
    (folder / "slices.csv").write_text(f"tier,source\n{tiers}\n")
    images = [{"id": i, "width": 8, "height": 8, "file_name": f"{i}.png"} for i in range(SAMPLES)]
    boxes = [{"image_id": i, "category_id": 1, "bbox": [1, 1, 4, 4.5]} for i in range(SAMPLES)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1}, {"id": 7}]}
    (folder / "coco.json").write_text(json.dumps(coco))


def _write_chains(folder: Path) -> None:
    model = load_model(folder / "control.onnx")
    for name, skip in (("chain", ()), ("other-chain", ("constants",))):
        graphs = GraphTables()
        prepared = prepare_with_record(model, skip=skip, see=graphs.see)
        write_checkpoints(folder / name, checkpoints_of(prepared, graphs.tables), graphs.tables)
    chain = folder / "chain"
    write_settings(chain, read_config(folder / "trtcal.toml"), chain)


def _write_others(folder: Path) -> None:
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "graph.json").write_text(inspected(int8_residual()))
    (folder / "profile.json").write_text(profiled(int8_residual()))
    (folder / "engine.plan").write_bytes(_engine())
    feed = {"image": rng().standard_normal((2, 1, 8, 8)).astype(np.float32)}
    _write_polygraphy(folder / "inputs.json", feed)
    run = write_run(folder / "run", comparison(), build("sha256:int8", {"conv1": "int8"}))
    write_improvement(run, improvement())
    (folder / "report.json").write_bytes((ROOT / "reports" / "digits.json").read_bytes())


def _write_measured(folder: Path) -> None:
    place, logits = folder / "measured", np.linspace(0, 1, 20, dtype=np.float32).reshape(2, 10)
    place.mkdir()
    (place / "times.json").write_text(times_json("10.8.0", [1.0, 1.01, 0.99]))
    (place / "output.json").write_text(output_json({"logits": logits}))
    (place / "trtexec.log").write_text(log_text("8.6.1", 1.5))
    write_nsight(place / "kernels.sqlite")
    array = {"array": _base64(logits), "polygraphy_class": "ndarray"}
    runs = {"lst": [["trt", [{"outputs": {"logits": array}}]]], "polygraphy_class": "RunResults"}
    (place / "results.json").write_text(json.dumps(runs))
    variant = {"name": "digits", "model": "sha256:fp32", "kind": "", "files": {}}
    manifest = seal({"kind": "measure", "variants": [variant], "inputs": []})
    own = {"measure.json": json.dumps(manifest).encode(), "digests.txt": b""}
    own["0/times-1.json"] = (place / "times.json").read_bytes()
    with tarfile.open(place / "measured.tar", "w") as archive:
        for name, content in own.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _base64(array: Array) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def _write_tables(folder: Path) -> None:
    history = History(folder / "history.sqlite")
    for number in range(3):
        history.record(report(number))
    with sqlite3.connect(folder / "history.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")


def _write_logs(folder: Path) -> None:
    lines = [example for rule in RULES for example in rule.example]
    text = "\n".join(lines[::3]).encode()
    (folder / "trtexec.log").write_bytes(text)
    packers = {"gz": gzip, "bz2": bz2, "xz": lzma, "zst": zstd}
    for ending, packer in packers.items():
        (folder / f"packed.{ending}").write_bytes(packer.compress(text))


def _write_polygraphy(path: Path, feed: dict[str, Array]) -> None:
    def packed(array: Array) -> dict[str, str]:
        return {"array": _base64(array), "polygraphy_class": "ndarray"}

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
