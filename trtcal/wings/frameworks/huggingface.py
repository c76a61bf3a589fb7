"""A folder of Hugging Face with an ONNX export, as Optimum and transformers.js lay it out.

`config.json`, maybe `preprocessor_config.json` and `tokenizer.json`, and ONNX files in the folder or
in `onnx/`: `model.onnx` and its variants, or several networks. All of it is untrusted: what cannot be
read is named, and left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import onnx

from trtcal.cli.output import note
from trtcal.config import read_toml
from trtcal.documents import read_json
from trtcal.errors import InputError, some
from trtcal.model.loaders import Declared
from trtcal.wings.frameworks.image_processor import UnknownKeyError, images_of

CONFIG, PROCESSOR, TOKENIZER = "config.json", "preprocessor_config.json", "tokenizer.json"
TABLE = read_toml(Path(__file__).with_suffix(".toml"))
VARIANTS: Mapping[str, str] = TABLE["variants"]
READ = ("", "_fp16")
"""Variants that trtcal takes, the first that there is."""
LOGITS, TOKENS = "logits", "input_ids"
EXPORT = "`optimum-cli export onnx --model NAME FOLDER` writes it"
Networks = dict[str, dict[str, Path]]
"""Files by network and variant."""


def has_networks(folder: Path) -> bool:
    """Tell whether a folder has ONNX files where exports have them."""
    return bool(_networks(folder))


def network_of(folder: Path) -> Path:
    """Return the float network of a folder, and print which it is; `InputError` if there is not one."""
    networks = _networks(folder)
    if "model" not in networks and len(networks) > 1:
        files = (next(iter(variants.values())) for variants in networks.values())
        names = ", ".join(file.relative_to(folder).as_posix() for file in files)
        raise InputError(
            f"folder {folder} has {len(networks)} networks: {names}",
            "quantize each alone: give the path of its ONNX file",
        )
    variants = networks.get("model") or next(iter(networks.values()))
    variant = next((name for name in READ if name in variants), None)
    if variant is None:
        names = some((f"{file.name} ({VARIANTS[name]})" for name, file in variants.items()), 4)
        raise InputError(f"folder {folder} has no float network, but {names}", EXPORT)
    file = variants[variant]
    _print_choice(folder, file, VARIANTS[variant], networks)
    return file


def _networks(folder: Path) -> Networks:
    networks = Networks()
    files = (*sorted(folder.glob("*.onnx")), *sorted(folder.glob("onnx/*.onnx")))
    for file in filter(Path.is_file, files):
        endings = (ending for ending in VARIANTS if ending and file.stem.endswith(ending))
        ending = max(endings, key=len, default="")
        name = file.stem.removesuffix(ending)
        networks.setdefault(name, {}).setdefault(ending, file)
    return networks


def _print_choice(folder: Path, file: Path, kind: str, networks: Networks) -> None:
    context = click.get_current_context(silent=True)
    key = f"trtcal.network {file}"
    if context is None or key in context.meta:
        return
    context.meta[key] = True
    every = [pair for variants in networks.values() for pair in variants.items()]
    others = [f"{each.name} ({VARIANTS[variant]})" for variant, each in every if each != file]
    left = f"; not read: {some(others, 8)}" if others else ""
    note(f"read: model = {file}: the {kind} network of {folder}{left}")


def declared_beside(path: Path, proto: onnx.ModelProto) -> Declared | None:
    """Return what the folder of an ONNX file declares; None if it is not a folder of Hugging Face."""
    folder = path.parent.parent if path.parent.name == "onnx" else path.parent
    notes = list[str]()
    config = _read(folder / CONFIG, notes)
    if not config.keys() & {"architectures", "model_type"}:
        return None
    task, why = _task(config, [value.name for value in proto.graph.output])
    _note_classes(config, notes)
    images = dict[str, Any]()
    if processor := _read(folder / PROCESSOR, notes):
        try:
            images, reasons = images_of(processor, proto)
            why |= {key: f"{PROCESSOR} ({reason})" for key, reason in reasons.items()}
        except UnknownKeyError as error:
            notes.append(f"not read: {folder / PROCESSOR}: {error}")
    return Declared(images, task, why, tuple(notes), _advice(folder, proto, images))


def _read(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return an object of JSON, empty where there is none; a note says if it cannot be read."""
    try:
        value = read_json(path) if path.is_file() else {}
    except InputError as error:
        notes.append(f"not read: {error.message}")
        return {}
    return value if isinstance(value, dict) else {}


def _task(
    config: Mapping[str, Any], outputs: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the task of the scores or of the one output, and the keys that it is read from."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    tasks: Mapping[str, str] = TABLE["tasks"]
    task = next((task for ending, task in tasks.items() if name.endswith(ending)), None)
    scores = LOGITS if LOGITS in outputs else outputs[0] if len(outputs) == 1 else None
    if task is None or scores is None:
        return {}, {}
    problem = config.get("problem_type")
    if task == "classification" and isinstance(problem, str) and problem in TABLE["problems"]:
        return {scores: TABLE["problems"][problem]}, {"task": f"{CONFIG} (problem_type: {problem})"}
    return {scores: task}, {"task": f"{CONFIG} (architectures: {name})"}


def _note_classes(config: Mapping[str, Any], notes: list[str]) -> None:
    """Note the names of classes in their order; nothing where they only have numbers."""
    table = config.get("id2label")
    if not isinstance(table, dict) or all(str(name)[:6] == "LABEL_" for name in table.values()):
        return
    names = [str(table.get(str(number))) for number in range(len(table))]
    notes.append(f"read: {len(names)} classes: {some(names, 4)}: {CONFIG} (id2label)")


def _advice(folder: Path, proto: onnx.ModelProto, images: Mapping[str, Any]) -> str:
    inputs = [value.name for value in proto.graph.input]
    if TOKENS in inputs and (folder / TOKENIZER).is_file():
        return (
            f"trtcal does not run {TOKENIZER}: give an .npz for each text, with "
            f"{', '.join(inputs)} (docs/guides/language-models.md)"
        )
    return f"[images] is read from {folder / PROCESSOR}: correct it there" if images else ""
