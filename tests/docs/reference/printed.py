"""What each command prints with `--json`: the commands, run on samples, in the order of their files.

A line `> command` is run for its files alone; `  # name` names what is printed, where that is not the
kind of a document or the command itself.
"""

import ast
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.docs.pages import ROOT
from tests.docs.reference.commands import leaves
from trtcal.cli.main import run_command

SESSION = """
doctor
check-data digits.onnx --data calibration.npz
check-data digits.onnx --data glitch.npz
> calibrate digits.onnx --data calibration.npz --method minmax -o minmax.json
calibrate digits.onnx --data calibration.npz
calibrate digits.onnx --data calibration.npz --how-many
ranges show calibration.json
ranges diff minmax.json calibration.json
ranges export calibration.json --model digits.onnx --format tensorrt-cache \
--tensorrt 8.6.1 --partial -o m.cache
ranges import m.cache --model digits.onnx --partial -o imported.json
ranges tails digits.onnx calibration.json --data calibration.npz -o tails.json
prepare digits.onnx --data calibration.npz -o prepared.onnx
prepare --list  # prepare --list
plan suggest digits.onnx --calibration calibration.json --data test.npz -o suggested.json
plan show plan.json
plan show plan.json --model digits.onnx
plan diff suggested.json plan.json --model digits.onnx
quantize digits.onnx --calibration calibration.json -o int8.onnx
quantize digits.onnx --calibration calibration.json --plan plan.json -o mixed.onnx
quantize digits.onnx --improve fast --time-limit 5 --data calibration.npz -o improved.onnx
build int8.onnx --target cpu -o build
build int8.onnx --target sm89 -o sm89
build int8.onnx --target cpu --target sm89 -o both  # build --target A --target B
check-model int8.onnx {refused}
diagnose build
diagnose sm89
log sm89/build.log
log --explain tactic_failed  # log --explain
layers show build
layers show sm89 --gpu l4
layers show digits.onnx --gpu l4
layers diff build sm89
layers fusions int8.onnx sm89 -o fusions.json
layers fusions check digits.onnx -o expected.json
layers fusions diff expected.json fusions.json
graph sm89 -o graph.html
export model-explorer sm89 -o nodes
export netron sm89 -o netron.onnx
export ort sm89 -o model_ctx.onnx
export ort sm89 --embed -o embedded.onnx
export torch digits.onnx --calibration calibration.json --data calibration.npz -o qat.py
import qat.int8.onnx {trained} -o trained.onnx
compare digits.onnx int8.onnx mixed.onnx --data test.npz --limit 'top1 >= -1.0' --per-layer
ab digits.onnx int8.onnx --data test.npz --limit 'top1 >= -1.0'
sensitivity digits.onnx --calibration calibration.json --data test.npz -o sensitivity.json
search digits.onnx --calibration calibration.json --data test.npz --limit 'top1 >= -1.0' -o search
run digits.onnx --data calibration.npz --test test.npz --target sm89 --target cpu --output run
> run digits.onnx --data calibration.npz --test test.npz --target sm89 --target cpu --output again \
--tag team=vision
report run -o run.html
history list
history show 2
history devices
history diff 1 2
history check --limit 'top1 >= -1.0'
history cost --by team
bundle make run --variant int8-auto --target cpu -o bundle
bundle verify bundle --allow-unsigned --device --save-outputs outputs.npz --tier here
bundle drift bundle outputs.npz
bundle matrix bundle
verify run
upgrade run
store push run --store store
store list --store store
store show {run} --store store
store tag {run} team=vision --store store
store pull {run} --store store -o pulled
store origin run/{engine} --store store
store verify --store store
store gc --dry-run --store store
trace show run
trace diff run again
trace verify run --baseline again
> run samples/regression/good.toml --trust
> run samples/regression/bad.toml --trust
trace bisect --good reports/regression-good --bad reports/regression-bad --limit 'broken_fusions <= 0' \
--predicted --trust
device add here local:
device list
device check here
device clean here
device remove here
"""
UNTRIED = {
    "export openvino": "OpenVINO, which is not among the packages of the tests",
    "trace tvm": "TVM, which is not among the packages of the tests",
}
"""Commands that the session leaves out, and what they need."""


@dataclass(frozen=True)
class Printed:
    """A document, the path of the command that printed it, and the name of its form."""

    command: str
    name: str
    document: Any


DIGITS = ROOT / "samples" / "digits"
PLAN = {
    "default": "int8",
    "layers": {"stem/conv": "fp32"},
    "rules": [{"op": "Gemm", "precision": "fp16"}],
}


def record(folder: Path) -> Iterator[Printed]:
    """Run the session in an empty folder; yield what each command printed."""
    with inside(folder):
        lay_out(folder)
        for line in SESSION.strip().splitlines():
            words, _, name = line.removeprefix("> ").partition("  # ")
            command = shlex.split(words.format_map(Places(folder)))
            document = printed_by([*command, "-q", "--json"])
            if not line.startswith("> "):
                path = path_of(command)
                kind = document.get("kind") if isinstance(document, dict) else None
                yield Printed(path, name or kind or path, document)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, which is the user's home too."""
    here, names = Path.cwd(), ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(folder / ".home")))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.update({name: value for name, value in before.items() if value is not None})
        for name in (name for name, value in before.items() if value is None):
            del os.environ[name]


class Places(dict[str, str]):
    """What a line names that no line before it chose: the digest of a run, the name of an engine."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> str:
        if name == "trained":
            return trained(self.folder)
        if name == "refused":
            return refused(self.folder)
        if name == "engine":
            engine = next((self.folder / "run").rglob("engine*"))
            return engine.relative_to(self.folder / "run").as_posix()
        (run,) = printed_by(["store", "list", "--store", "store", "--json"])
        return str(run["digest"])


def lay_out(folder: Path) -> None:
    """Write what the commands begin with: the sample of digits, and a plan."""
    for file in DIGITS.iterdir():
        if file.suffix in (".npz", ".onnx"):
            (folder / file.name).symlink_to(file)
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "samples").mkdir()
    (folder / "samples" / "regression").symlink_to(DIGITS.with_name("regression"))


def trained(folder: Path) -> str:
    """Write what `save_trained` writes of a network that was not trained; return the file's name."""
    text = (folder / "qat.py").read_text()
    (layout,) = (
        ast.literal_eval(item.value)
        for item in ast.parse(text).body
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "LAYOUT"
    )
    with np.load(folder / "qat.weights.npz") as arrays:
        kept = {key: arrays[key] for key in arrays if not key.endswith(".float")}
    np.savez(folder / "trained.npz", **kept, model=np.array(layout["model"]))
    return "trained.npz"


def refused(folder: Path) -> str:
    """Write the quantized model with a zero point that TensorRT refuses; return the file's name."""
    model = onnx.load(folder / "int8.onnx")
    zero = next(node for node in model.graph.node if node.op_type == "QuantizeLinear").input[2]
    for tensor in model.graph.initializer:
        if tensor.name == zero:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.int8(3), zero))
    onnx.save(model, folder / "refused.onnx")
    return "refused.onnx"


def printed_by(words: list[str]) -> Any:
    """Run a command; return what it prints."""
    out = TextIOWrapper(BytesIO(), "utf-8")
    errors = StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        status = run_command(words)
    out.flush()
    text = out.buffer.getvalue().decode()
    if status > 1 or not text.strip():
        raise AssertionError(f"trtcal {shlex.join(words)}: status {status}: {errors.getvalue()}")
    return json.loads(text)


def path_of(words: list[str]) -> str:
    """Return the name of a command, as `layers fusions check`."""
    names = (" ".join(words[:count]) for count in (3, 2, 1))
    return next((name for name in names if name in PATHS), "layers fusions check")


PATHS = {context.command_path.removeprefix("trtcal ") for context in leaves()}
