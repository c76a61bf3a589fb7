"""Inputs of every kind whose names somebody else chose, and commands that print those names."""

import csv
import io
import json
import unicodedata
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import onnx
from PIL import Image

from tests.fixtures.networks import conv_net, samples
from tests.reporting.hostile import Names
from trtcal.cli.main import run_command

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
JOINER = "\u2060"
Command = tuple[object, ...]


def unseen(text: str, kept: str = "\n") -> set[str]:
    """Return the characters of a text that control a terminal or turn a text around."""
    return {one for one in text if unicodedata.category(one) in HIDDEN} - set(kept)


def said(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its status and what it wrote to standard output and error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in "oe")
    with redirect_stdout(out), redirect_stderr(err):
        status = run_command([str(one) for one in arguments])
    out.flush()
    err.flush()
    return status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def in_protobuf(texts: Sequence[str]) -> list[str]:
    """Return texts that ONNX, a zip archive and SQLite take: no lone surrogates, no NUL."""
    return [one.encode("utf-8", "replace").decode().replace("\0", "0") for one in texts]


def in_json(text: str) -> str:
    """Return what JSON makes of a text: a high surrogate and a low one are one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def write_model(path: Path, name: Names) -> str:
    """Write a small network with such names; return its input's."""
    model = onnx.load(conv_net(path))
    names: dict[str, str] = {}

    def renamed(old: str) -> str:
        return names.setdefault(old, name()) if old else old

    for node in model.graph.node:
        node.name, node.doc_string = name(), name()
        node.input[:], node.output[:] = map(renamed, node.input), map(renamed, node.output)
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = renamed(value.name)
    model.graph.name = model.producer_name = name()
    onnx.save(model, path)
    return names["x"]


def write_inputs(folder: Path, texts: Sequence[str]) -> str:
    """Write a model and data with such names into a folder; return the input's name."""
    given = write_model(folder / "net.onnx", Names(texts))
    samples(folder / "data.npz", given, SAMPLES)
    samples(folder / "other.npz", Names(texts).file())
    (folder / "images.toml").write_text(IMAGES)
    label, file, attribute = (Names(texts) for _ in "lfa")
    _write_images(folder / "labelled", [("a.png", label()), ("b.png", label())])
    _write_images(folder / "named", [(file(), "1"), (file(), "2")])
    rows = [(attribute(), attribute()), *((attribute(), n % 2) for n in range(SAMPLES))]
    _write_csv(folder / "slices.csv", rows)
    return given


SAMPLES = 24
IMAGES = """[images]
channels = "rgb"
layout = "NCHW"
resize = [8, 8]
scale = 1.0
mean = 0.0
std = 1.0
"""


def _write_images(folder: Path, labels: Sequence[tuple[str, str]]) -> None:
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8), (200, 100, 0)).save(folder / name)
    _write_csv(folder / "labels.csv", [("file", "label"), *labels])


def _write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def model_commands(folder: Path) -> list[Command]:
    """Return command lines on a model and data, each of which reads what those before it wrote."""
    model, data = folder / "net.onnx", ("--data", folder / "data.npz")
    ranges = ("--calibration", folder / "calibration.json")
    lines: list[Command] = [
        ("prepare", model, "-o", folder / "prepared.onnx"),
        ("layers", "fusions", "check", model, "-v"),
        ("layers", "fusions", "check", model, "--json"),
        ("calibrate", model, *data, "--method", "minmax", "-v", "-o", folder / "calibration.json"),
        ("calibrate", model, "--data", folder / "other.npz", "-o", folder / "no.json"),
        ("check-data", model, *data),
        ("ranges", "show", folder / "calibration.json", "--json"),
        ("quantize", model, *ranges, "--keep-float", "*", "-o", folder / "no.onnx"),
        ("quantize", model, *ranges, "-o", folder / "int8.onnx"),
        ("build", folder / "int8.onnx", "--target", "cpu", "-o", folder / "build"),
        ("layers", "show", folder / "build"),
        ("layers", "show", folder / "build", "--json"),
        ("diagnose", folder / "build", "-v"),
        ("log", folder / "build" / "build.log", "-v"),
        ("log", folder / "build" / "build.log", "--json"),
    ]
    compared = (model, folder / "int8.onnx", *data, "--rounds", "2", "--no-simulate")
    made = ("-o", folder / "comparison.json")
    images = ("--labels", "csv", "--config", folder / "images.toml", "-o", folder / "no.json")
    return [
        *lines,
        ("compare", *compared, *made),
        ("compare", *compared, *made, "--slices", folder / "slices.csv"),
        ("compare", *compared, *made, "--json"),
        ("calibrate", model, "--data", folder / "labelled", *images),
        ("calibrate", model, "--data", folder / "named", *images),
    ]


def run_commands(folder: Path, run: Path) -> list[Command]:
    """Return command lines that print what a folder of a hostile run has."""
    built = next(path.parent for path in sorted(run.rglob("build.json")))
    database = ("--db", folder / "history.sqlite")
    calibration, plan = run / "calibration.json", run / "plan.json"
    lines: list[Command] = [
        ("report", run, "--md"),
        ("report", run, "-o", folder / "page.html"),
        ("verify", run),
        ("history", "add", folder / "page.json", *database),
        ("history", "list", *database),
        ("history", "show", "1", *database),
        ("history", "diff", "1", "1", *database),
        ("history", "export", "--format", "csv", *database),
        ("history", "check", "--limit", "top1 >= 50", "--alert", "cat; cat", *database),
        ("diagnose", built, "-v"),
        ("log", built / "build.log", "-v"),
        ("layers", "show", built),
        ("plan", "show", plan),
        ("plan", "diff", plan, plan),
        ("ranges", "show", calibration),
        ("ranges", "diff", calibration, calibration),
    ]
    both = ("verify", "history list", "history show", "log", "layers", "plan", "calibration")
    return lines + [(*one, "--json") for one in lines if " ".join(map(str, one)).startswith(both)]


def argument_commands(folder: Path, text: str) -> list[Command]:
    """Return command lines that have the text where a name, a path or a number is wanted."""
    path = folder / Names([text]).file()
    path.with_suffix(".toml").write_text(json.dumps(text)[1:-1] + " = 1", errors="replace")
    table = f"[calibration]\nmethod = {json.dumps(text)}\nlimits = 1\n"
    (folder / "table.toml").write_text(table, errors="replace")
    return [
        (text,),
        ("log", path),
        ("log", "--", text),
        ("log", f"--explain={text}"),
        ("completion", text),
        ("compare", f"--{text}"),
        ("compare", path, path, "--limit", text),
        ("calibrate", path, "--data", path, "-p", text),
        ("calibrate", path, "--batch", text),
        ("history", "list", "--db", folder / "h.sqlite", "--project", text),
        ("history", text),
        ("report", path),
        ("verify", path),
        ("run", path),
        ("run", path.with_suffix(".toml")),
        ("run", folder / "table.toml"),
        ("init", path, "--data", path),
        ("build", path, "--target", text, "-o", folder / "b"),
        ("layers", "show", path),
        ("ranges", "show", path),
        ("plan", "show", path),
    ]


def cells(text: str) -> list[str]:
    """Return all cells of a text of CSV."""
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]
