"""A git repository with the digits, and the changes of it that pull requests bring."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.conftest import SAMPLES

CONFIG = """\
model = "digits.onnx"
output = "run"
project = "digits"
limits = ["top1 >= -1.0", "silent_fallbacks == 0", "int8_macs >= 80%"]

[calibration]
data = "calibration.npz"
methods = ["percentile"]
improve = "off"
mixed = "off"

[evaluation]
data = "test.npz"

[build]
targets = ["sm89"]
fp16 = false
"""
FILES = ("digits.onnx", "calibration.npz", "test.npz")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as somebody whose settings do not matter."""
    person = {
        f"GIT_{role}_{key}": "a@b.c"
        for role in ("AUTHOR", "COMMITTER")
        for key in ("NAME", "EMAIL")
    }
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(
        command, env={**os.environ, **person, **own}, check=True, capture_output=True, text=True
    ).stdout


def make_repository(folder: Path, settings: str = "") -> Path:
    """Make a repository whose branch `main` has a good project, with more settings of its own."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name in FILES:
        shutil.copy(SAMPLES / "digits" / name, folder)
    (folder / "trtcal.toml").write_text(settings + CONFIG)
    (folder / ".gitignore").write_text("kept/\n")
    commit(folder, "a good project")
    return folder


def commit(folder: Path, message: str) -> None:
    """Commit all that is in a folder."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def spoil_data(folder: Path) -> None:
    """Calibrate on data that a broken loader gave, with a method that believes them."""
    shutil.copy(SAMPLES / "digits" / "glitch.npz", folder / "calibration.npz")
    text = (folder / "trtcal.toml").read_text()
    (folder / "trtcal.toml").write_text(text.replace('"percentile"', '"minmax"'))


def ruin_model(folder: Path) -> None:
    """Exchange two classes of the FP32 model: INT8 agrees with it, and both are wrong."""
    model = onnx.load(folder / "digits.onnx")
    for tensor in model.graph.initializer:
        if tensor.name.startswith("head/gemm"):
            values = numpy_helper.to_array(tensor).copy()
            values[[3, 5]] = values[[5, 3]]
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "digits.onnx")


def lose_layers(folder: Path) -> None:
    """Compute the weights of the largest convolution in the graph, where no Q/DQ can hold them."""
    model = onnx.load(folder / "digits.onnx")
    graph, name = model.graph, "wide/conv.weight"
    place = next(i for i, node in enumerate(graph.node) if name in node.input)
    graph.node[place].input[1] = "wide/computed"
    low = helper.make_node("ReduceMin", [graph.input[0].name], ["low"], "low", keepdims=0)
    none = helper.make_node("Sub", ["low", "low"], ["none"], "none")
    computed = helper.make_node("Add", [name, "none"], ["wide/computed"], "computed")
    for node in (computed, none, low):
        graph.node.insert(place, node)
    onnx.save(model, folder / "digits.onnx")


def break_config(folder: Path) -> None:
    """Write a key that there is not, with a text that is a mention, a table and an image elsewhere."""
    text = (folder / "trtcal.toml").read_text()
    bad = '"@everyone | `x` <img src=x> ${{ github.token }} ::error::"'
    (folder / "trtcal.toml").write_text(f"{bad} = 1\n{text}")


def change_calibration(folder: Path) -> None:
    """Calibrate on fewer samples: another calibration, no worse."""
    with np.load(folder / "calibration.npz") as arrays:
        fewer = {name: values[: len(values) * 3 // 4] for name, values in arrays.items()}
    np.savez(folder / "calibration.npz", **fewer)
