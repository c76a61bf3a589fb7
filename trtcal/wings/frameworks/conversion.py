"""A model of another framework becomes ONNX: in a child process, once for each digest.

The metadata of the ONNX say from what it was converted.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from trtcal.documents import (
    Document,
    Workplace,
    cache_path,
    canonical_json,
    digest_bytes,
    digest_file,
)
from trtcal.documents.bounds import ARRAYS_BYTES, check_file, raising, scaled
from trtcal.documents.streams import command_line
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.model.cut import metadata_of
from trtcal.model.files import write_onnx
from trtcal.model.isolated import Answer, answer, ask, signal_name
from trtcal.model.loaders import SOURCE
from trtcal.wings.frameworks.formats import Format
from trtcal.wings.frameworks.tidy import name_batch, name_weights, rename_values

LIMIT_S = 900.0
MODEL = "model.onnx"
UNSAFE = "unsafe"
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # a conversion needs no GPU, and must not wait for one
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_USE_LEGACY_KERAS": "0",
}
"""What TensorFlow and Keras take from the environment; a user's `~/.keras` changes nothing."""
MOST_FILES = 10_000  # of a model that is a folder


def convert(path: Path, form: Format, trust: bool) -> Path:
    """Return the ONNX file of a model, which is made if this user has none of the same digest.

    Such files lie in `$XDG_CACHE_HOME/trtcal/models`, and may be deleted. A model that holds programs
    is converted only with `trust`. `InputError` if it cannot be converted, or a package is missing;
    `ResourceError` if it takes longer than `LIMIT_S`.
    """
    source = {"format": form.name, "digest": digest_source(path), "packages": _versions(path, form)}
    code = {
        worker: digest_file(Path(__file__).with_name(f"{worker}.py"))
        for worker in (form.worker, "tidy")
    }
    key = digest_bytes(canonical_json([source, code])).removeprefix("sha256:")
    place = cache_path(f"models/{key[:32]}") / f"{_name(path)}.onnx"
    if not place.is_file():
        with Workplace() as folder:
            proto = _convert(path, form, Path(folder), trust)
            if digest_source(path) != source["digest"]:
                raise InputError(
                    f"model {path} changed during its conversion", "start the command again"
                )
            mark(proto, source)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_onnx(place, proto)
    return place


def _name(path: Path) -> str:
    path = Path(os.path.abspath(path))
    return path.name if path.is_dir() else path.stem


def _versions(path: Path, form: Format) -> dict[str, str]:
    """Return the versions of what converts a format; `InputError` if it is not installed."""
    try:
        return {name: metadata.version(name) for name in form.packages}
    except metadata.PackageNotFoundError as error:
        raise InputError(
            f"the conversion of model {path} needs {error.name}, which is not installed",
            f"pip install 'trtcal[{form.extra}]', or convert it elsewhere and give the ONNX file",
        ) from error


def _convert(path: Path, form: Format, folder: Path, trust: bool) -> onnx.ModelProto:
    request = {"path": os.path.abspath(path), "format": form.name, "trust": trust}
    module = f"trtcal.wings.frameworks.{form.worker}"
    environment = {**ENVIRONMENT, "KERAS_HOME": str(folder)}
    try:
        reply = ask(module, request, folder, limit := scaled(LIMIT_S), environment)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"the conversion of {path} was stopped after {limit:g} s", raising("times")
        ) from None
    if reply.status or "names" not in reply.found:
        raise _failure(path, reply)
    proto = onnx.load(folder / MODEL)
    proto.graph.ClearField("doc_string")  # tf2onnx writes there from which path it came
    rename_values(proto, reply.found["names"])
    name_batch(proto)
    name_weights(proto)
    return proto


def _failure(path: Path, reply: Answer) -> TrtcalError:
    if reply.status < 0:
        return BackendError(
            f"the converter of {path} crashed ({signal_name(-reply.status)}); "
            f"last line: {reply.last_line}",
            "check the memory: the system may have killed it; or convert the model elsewhere and "
            "give the ONNX file",
        )
    if UNSAFE in reply.found:
        command = command_line("prepare", path, trust=True, o="model.onnx")
        return InputError(
            f"model {path} contains programs, so conversion needs --trust: {reply.found[UNSAFE]}",
            f"if you trust its author: `{command}`",
        )
    reason = reply.found.get("error") or reply.last_line
    return InputError(
        f"model {path} cannot be converted to ONNX: {reason[:300]}",
        reply.found.get("hint")
        or "convert it with the tools of its framework, and give the ONNX file",
    )


class UnsafeError(Exception):
    """In a worker: the model holds a program."""


def work(convert: Callable[[dict[str, Any], Path], dict[str, str]]) -> None:
    """In a worker: convert what the request says, and answer with names to change, or what is wrong."""

    def names(request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"names": convert(request, Path(MODEL))}
        except UnsafeError as error:
            return {UNSAFE: str(error)}

    answer(names)


def digest_source(path: Path) -> str:
    """Return the digest of a file, or of a folder: of the names and digests of all its files.

    `InputError` if something in it is a link, a device or a pipe, or if it has too many entries.
    """
    if not path.is_dir():
        check_file(path, ARRAYS_BYTES)
        return digest_file(path)
    digest = hashlib.sha256()
    for file in sorted(_files(path)):
        digest.update(f"{file.relative_to(path).as_posix()}\0{digest_file(file)}\n".encode())
    return "sha256:" + digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for number, path in enumerate(folder.rglob("*")):
        if number >= scaled(MOST_FILES):
            raise InputError(
                f"model {folder} has more than {number} files", "give the folder of the model alone"
            )
        if path.is_symlink():
            raise InputError(
                f"model {folder} contains a link: {path}",
                "replace the link by a copy of its target",
            )
        if not path.is_dir():
            check_file(path, ARRAYS_BYTES)
            yield path


def mark(proto: onnx.ModelProto, source: Document) -> None:
    """Write down in a model what it was converted from."""
    metadata = {**metadata_of(proto), SOURCE: canonical_json(source).decode()}
    onnx.helper.set_model_props(proto, metadata)
