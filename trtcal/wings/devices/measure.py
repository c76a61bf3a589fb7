"""`trtcal bundle --measure`: one archive that measures where trtcal cannot reach, and its result.

The archive has the models of a run, inputs of its data, and `measure.sh` (POSIX sh and trtexec). The
same run and data give the same bytes. The result is a tar of the files that trtexec wrote. It is
untrusted: regular members of known names, of bounded sizes, of the models that were packed.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtcal.backends.weakly_typed import for_tensorrt_8
from trtcal.data import Dataset
from trtcal.data.dataset import batch_for, fixed_batch
from trtcal.documents import (
    Document,
    digest_bytes,
    digest_document,
    json_bytes,
    parsing,
    seal,
    write_bytes,
)
from trtcal.documents.bounds import FILE_BYTES, check_file, parse_json
from trtcal.errors import InputError, __version__
from trtcal.evaluate.comparison import Row
from trtcal.model import Model, TensorSpec
from trtcal.model.files import embedded, fits
from trtcal.model.ops import QDQ
from trtcal.quantization.qdq import fp16_tensors
from trtcal.wings.devices.packing import pack
from trtcal.wings.devices.tools import INPUTS, Facts, read_piece

PURPOSE = "measure"
FOLDER, SCRIPT, SETTINGS = "measure", "measure.sh", "settings.sh"
MANIFEST, DIGESTS, WORKER = "measure.json", "digests.txt", "worker.pyz"
SPANS = ("min", "opt", "max")
SAMPLES = 4  # whose outputs are compared
MOST_BYTES, MOST_MEMBERS = 1 << 30, 20_000
MEMBER = re.compile(
    r"(\d{1,3})/(?:(?:times-\d|profile|layers|output)\.json|(?P<log>[a-z\d-]{1,20}\.log)"
    r"|debug/[\w.,-]{1,160}\.npy)",
    re.ASCII,
)
INPUT = re.compile(r"inputs/\d{1,3}\.bin\Z")
NAME = re.compile(r"[\w./:-]+", re.ASCII)
AGAIN = "run measure.sh again, and send its result file as it is"


@dataclass(frozen=True)
class Archive:
    """Where an archive lies, its digest, and its manifest."""

    path: Path
    digest: str
    manifest: Document


def make_archive(
    rows: Sequence[Row], models: Mapping[str, Model], data: Dataset, batch: int, path: Path
) -> Archive:
    """Write the archive of a comparison's variants, with the first inputs of the data."""
    files, reference = dict[str, bytes](), models[rows[0].model]
    few = min(SAMPLES, len(data), batch)
    feeds = next(data.batches(batch_for(reference, few)))
    manifest: Document = {
        "kind": PURPOSE,
        "schema_version": 1,
        "trtcal": __version__,
        "batch": fixed_batch(reference) or batch,
        "variants": [_pack(n, row, models[row.model], files) for n, row in enumerate(rows)],
        "inputs": [
            _pack_input(number, spec, feeds[spec.name], files)
            for number, spec in enumerate(reference.inputs)
        ],
    }
    manifest["profiles"] = {
        each["name"]: [_sized(each, count) for count in (1, manifest["batch"], manifest["batch"])]
        for each in manifest["inputs"]
        if each["is_open"]
    }
    manifest = seal(manifest)
    files[MANIFEST] = json_bytes(manifest)
    files[SETTINGS] = _settings(manifest).encode()
    files[SCRIPT] = Path(__file__).with_name(SCRIPT).read_bytes()
    files[WORKER] = pack()
    packed = _tar(files)
    write_bytes(path, packed)
    return Archive(path, digest_bytes(packed), manifest)


def _pack(number: int, row: Row, model: Model, files: dict[str, bytes]) -> Document:
    """Add a variant's model, for TensorRT 8 too where that needs another one."""
    proto = model.proto
    own = {f"models/{number}.onnx": proto}
    if (older := for_tensorrt_8(proto)) is not proto:
        own[f"models/{number}-trt8.onnx"] = older
    contents = {name: _serialized(each, row.name) for name, each in own.items()}
    files.update(contents)
    digests = {name: digest_bytes(content) for name, content in contents.items()}
    return {"name": row.name, "model": row.model, "kind": _kind(proto), "files": digests}


def _serialized(proto: onnx.ModelProto, name: str) -> bytes:
    """Return a model in one file; `InputError` if it is too large for that."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    for tensor in whole.graph.initializer:
        tensor.CopyFrom(embedded(tensor))
    if not fits(whole):
        raise InputError(f"{name} is larger than one ONNX file can be", "measure it with trtexec")
    return bytes(whole.SerializeToString(deterministic=True))


def _pack_input(number: int, spec: TensorSpec, array: Any, files: dict[str, bytes]) -> Document:
    if not NAME.fullmatch(spec.name):
        raise InputError(
            f"trtexec cannot be given values of an input named {spec.name!r}", "rename the input"
        )
    file = f"inputs/{number}.bin"
    files[file] = np.ascontiguousarray(array).tobytes()
    return {
        "name": spec.name,
        "file": file,
        "digest": digest_bytes(files[file]),
        "type": str(array.dtype),
        "shape": list(array.shape),
        "is_open": bool(spec.shape) and not isinstance(spec.shape[0], int),
    }


def _sized(described: Document, count: int) -> list[int]:
    return [count, *described["shape"][1:]]


def _settings(manifest: Document) -> str:
    """Return what the script reads: engines with what their models have, and shapes as options."""
    inputs, profiles = manifest["inputs"], manifest["profiles"]
    quoted = {each["name"]: each["name"] for each in inputs}
    quoted = {name: f"'{name}'" if ":" in name else name for name in quoted}

    def option(word: str, shapes: Mapping[str, Sequence[int]]) -> str:
        texts = (f"{quoted[name]}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
        return f"--{word}={','.join(texts)}" if shapes else ""

    spans = [option(f"{word}Shapes", _places(profiles, n)) for n, word in enumerate(SPANS)]
    loads = (f"{quoted[each['name']]}:{each['file']}" for each in inputs)
    kinds = (f"{number}:{each['kind']}" for number, each in enumerate(manifest["variants"]))
    values = {
        "ENGINES": " ".join(kinds),
        "SPAN": " ".join(filter(None, spans)),
        "BATCH": option("shapes", _places(profiles, -1)),
        "FEW": option(
            "shapes", {each["name"]: each["shape"] for each in inputs if each["is_open"]}
        ),
        "INPUTS": f"--loadInputs={','.join(loads)}",
    }
    return "".join(f'{name}="{value}"\n' for name, value in values.items())


def _places(profiles: Mapping[str, Sequence[list[int]]], number: int) -> dict[str, list[int]]:
    return {name: shapes[number] for name, shapes in profiles.items()}


def _kind(proto: onnx.ModelProto) -> str:
    has_qdq = any(node.op_type in QDQ for node in proto.graph.node)
    return "q" * has_qdq + "h" * bool(fp16_tensors(proto.graph))


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{FOLDER}/{name}")  # of no time, no user
            member.size, member.mode = len(content), 0o755 if name == SCRIPT else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def is_result(path: Path) -> bool:
    """Whether a file is a tar, as measure.sh writes one."""
    with path.open("rb") as file:
        return file.read(262)[257:] == b"ustar"


def read_result(path: Path, rows: Sequence[Row]) -> Iterator[tuple[str, Facts]]:
    """Yield what the files of a result hold, by variant, and first the inputs ("").

    `InputError` if it holds anything else, or was measured with other models than those of `rows`.
    """
    members = _members(path)
    manifest = parsing(path, lambda: _manifest(path, members))
    variants = parsing(path, lambda: _checked(path, manifest, members.get(DIGESTS, b""), rows))
    inputs = manifest["inputs"]
    feeds = parsing(path, lambda: {each["name"]: _input(path, each, members) for each in inputs})
    yield "", Facts(files=({"kind": INPUTS},), tensors=feeds)
    for name, content in members.items():
        match = MEMBER.fullmatch(name)
        if match is None or (match["log"] and not match["log"].startswith("times")) or not content:
            continue
        if (variant := variants.get(match[1])) is None:
            raise InputError(f"{path}: {name} belongs to none of its variants", AGAIN)
        yield variant, read_piece(path / name, content, f"{path.name}/{name}")


def _members(path: Path) -> dict[str, bytes]:
    size = check_file(path, MOST_BYTES)
    members = dict[str, bytes]()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for number, member in enumerate(archive):
                name = member.name.removeprefix("./")
                if member.isdir() and number < MOST_MEMBERS:
                    continue
                is_known = (
                    name in (MANIFEST, DIGESTS) or MEMBER.fullmatch(name) or INPUT.match(name)
                )
                is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse
                if not is_known or not is_plain or name in members or number >= MOST_MEMBERS:
                    raise InputError(
                        f"{path} has a member that measure.sh does not write: {name!r}", AGAIN
                    )
                content = archive.extractfile(member)
                if member.size > min(size, FILE_BYTES) or content is None:
                    raise InputError(
                        f"{path}: {name} is larger than the file, or than the bound", AGAIN
                    )
                members[name] = content.read()
    except (tarfile.TarError, OSError, ValueError, EOFError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a tar: {error}", AGAIN) from error
    return members


def _manifest(path: Path, members: Mapping[str, bytes]) -> Document:
    document: Document = parse_json(members[MANIFEST])
    if document["kind"] != PURPOSE or document["digest"] != digest_document(document):
        raise InputError(f"{path} is not a result of measure.sh, or was changed", AGAIN)
    return document


def _checked(path: Path, manifest: Document, digests: bytes, rows: Sequence[Row]) -> dict[str, str]:
    """Return number -> variant; `InputError` if a model is not as packed, or not that of the run."""
    lines = (line.split() for line in digests.decode("ascii", "replace").splitlines())
    there = {line[1].lstrip("*"): f"sha256:{line[0]}" for line in lines if len(line) == 2}
    models = {row.name: row.model for row in rows}
    packed = {
        name: digest for each in manifest["variants"] for name, digest in each["files"].items()
    }
    packed |= {each["file"]: each["digest"] for each in manifest["inputs"]}
    if changed := [name for name, digest in packed.items() if there.get(name) != digest]:
        raise InputError(f"{path} was measured with another {changed[0]} than was packed", AGAIN)
    for each in manifest["variants"]:
        if models.get(each["name"]) != each["model"]:
            raise InputError(
                f"{path} was measured with another model {each['name']} than that of this run",
                "give the folder of the run that the archive was made of",
            )
    return {str(number): str(each["name"]) for number, each in enumerate(manifest["variants"])}


def _input(path: Path, each: Document, members: Mapping[str, bytes]) -> Any:
    content = members[each["file"]]
    if digest_bytes(content) != each["digest"]:
        raise InputError(f"{path}: {each['file']} is not as it was packed", AGAIN)
    dtype = np.dtype(str(each["type"]))
    if dtype.hasobject:
        raise InputError(f"{path}: {each['file']} does not have a numeric type", AGAIN)
    return np.frombuffer(content, dtype).reshape([int(size) for size in each["shape"]])
