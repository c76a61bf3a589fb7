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
from itertools import chain
from pathlib import Path

import numpy as np
import onnx

from trtcal.backends.sessions import Array
from trtcal.backends.trtexec_words import quoted, shape_words
from trtcal.backends.weakly_typed import for_tensorrt_8
from trtcal.data import Dataset
from trtcal.data.dataset import batch_for
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
SCRIPT, MANIFEST, DIGESTS = "measure.sh", "measure.json", "digests.txt"
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


def make_archive(
    rows: Sequence[Row], models: Mapping[str, Model], data: Dataset, batch: int, path: Path
) -> Document:
    """Write the archive of a comparison's variants, with the first inputs; return its manifest."""
    files, inputs = dict[str, bytes](), models[rows[0].model].inputs
    batch = batch_for(models[rows[0].model], batch)
    few = batch_for(models[rows[0].model], min(SAMPLES, len(data), batch))
    feeds = next(data.batches(few))
    manifest = seal(
        {
            "kind": PURPOSE,
            "schema_version": 1,
            "trtcal": __version__,
            "batch": batch,
            "about": data.about,
            "variants": [_pack(n, row, models[row.model], files) for n, row in enumerate(rows)],
            "inputs": [_pack_input(n, x, feeds[x.name], files) for n, x in enumerate(inputs)],
            "profiles": {
                spec.name: [_sized(spec, feeds[spec.name], count) for count in (1, batch, batch)]
                for spec in inputs
                if not all(isinstance(size, int) for size in spec.shape)
            },
        }
    )
    files[MANIFEST] = json_bytes(manifest)
    files["settings.sh"] = _settings(manifest).encode()
    files[SCRIPT] = Path(__file__).with_name(SCRIPT).read_bytes()
    files["worker.pyz"] = pack()
    write_bytes(path, _tar(files))
    return manifest


def _pack(number: int, row: Row, model: Model, files: dict[str, bytes]) -> Document:
    """Add a variant's model, for TensorRT 8 too where that needs another one."""
    proto, older = model.proto, for_tensorrt_8(model.proto)
    contents = {f"models/{number}.onnx": _serialized(proto, row.name)}
    if older is not proto:
        contents[f"models/{number}-trt8.onnx"] = _serialized(older, row.name)
    files.update(contents)
    has_qdq = any(node.op_type in QDQ for node in proto.graph.node)
    kind = "q" * has_qdq + "h" * bool(fp16_tensors(proto.graph))
    digests = {name: digest_bytes(content) for name, content in contents.items()}
    return {"name": row.name, "model": row.model, "kind": kind, "files": digests}


def _serialized(proto: onnx.ModelProto, name: str) -> bytes:
    """Return a model in one file; `InputError` if it is too large for that."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    for tensor in whole.graph.initializer:
        tensor.CopyFrom(embedded(tensor))
    if not fits(whole):
        raise InputError(f"{name} is larger than one ONNX file can be", "measure it with trtexec")
    return bytes(whole.SerializeToString(deterministic=True))


def _pack_input(number: int, spec: TensorSpec, array: Array, files: dict[str, bytes]) -> Document:
    if not NAME.fullmatch(spec.name):
        what = f"trtexec cannot be given values of an input named {spec.name!r}"
        raise InputError(what, "rename the input")
    file = f"inputs/{number}.bin"
    files[file] = np.ascontiguousarray(array).tobytes()
    return {
        "name": spec.name,
        "file": file,
        "digest": digest_bytes(files[file]),
        "type": str(array.dtype),
        "shape": list(array.shape),
        "is_open": _has_open_batch(spec),
    }


def _has_open_batch(spec: TensorSpec) -> bool:
    return bool(spec.shape) and not isinstance(spec.shape[0], int)


def _sized(spec: TensorSpec, array: Array, count: int) -> list[int]:
    return [count, *array.shape[1:]] if _has_open_batch(spec) else list(array.shape)


def _settings(manifest: Document) -> str:
    """Return what the script reads: engines with what their models have, and shapes as options."""
    inputs, profiles = manifest["inputs"], manifest["profiles"]
    spans = [{name: shapes[place] for name, shapes in profiles.items()} for place in range(3)]
    few = {each["name"]: each["shape"] for each in inputs if each["name"] in profiles}
    words = [shape_words(f"{word}Shapes", span) for word, span in zip(SPANS, spans, strict=True)]
    values = {
        "ENGINES": [f"{number}:{each['kind']}" for number, each in enumerate(manifest["variants"])],
        "SPAN": chain.from_iterable(words),
        "BATCH": shape_words("shapes", spans[-1]),
        "FEW": shape_words("shapes", few),
        "INPUTS": [
            "--loadInputs=" + ",".join(f"{quoted(each['name'])}:{each['file']}" for each in inputs)
        ],
    }
    return "".join(f'{name}="{" ".join(texts)}"\n' for name, texts in values.items())


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{PURPOSE}/{name}")  # of no time, no user
            member.size, member.mode = len(content), 0o755 if name == SCRIPT else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def read_result(path: Path, rows: Sequence[Row]) -> Iterator[tuple[str, Facts]]:
    """Yield what the files of a result hold, by variant, and first the inputs ("").

    `InputError` if it holds anything else, or was measured with other models than those of `rows`.
    """
    members = _members(path)
    variants, feeds = parsing(path, lambda: _checked(path, members, rows))
    yield "", Facts(files=({"kind": INPUTS},), tensors=feeds)
    for name, content in members.items():
        match = MEMBER.fullmatch(name)
        if match is None or (match["log"] and not match["log"].startswith("times")) or not content:
            continue
        if (variant := variants.get(match[1])) is None:
            raise InputError(f"{path}: {name} belongs to none of its variants", AGAIN)
        yield variant, read_piece(path / name, content, f"{path.name}/{name}")


def _members(path: Path) -> dict[str, bytes]:
    check_file(path, MOST_BYTES)
    members = dict[str, bytes]()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for number, member in enumerate(archive):
                name = member.name.removeprefix("./")
                if number == MOST_MEMBERS:
                    raise InputError(f"{path} has over {MOST_MEMBERS:,} members", AGAIN)
                if not member.isdir():
                    members[name] = _content(path, archive, member, name not in members)
    except (tarfile.TarError, OSError, ValueError, EOFError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a tar: {error}", AGAIN) from error
    return members


def _content(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, is_new: bool) -> bytes:
    name = member.name.removeprefix("./")
    is_known = name in (MANIFEST, DIGESTS) or MEMBER.fullmatch(name) or INPUT.match(name)
    is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse
    content = archive.extractfile(member) if is_known and is_plain and is_new else None
    if content is None:
        raise InputError(f"{path} has a member that measure.sh does not write: {name!r}", AGAIN)
    if member.size > min(path.stat().st_size, FILE_BYTES):
        raise InputError(f"{path}: {name} is larger than the file, or than the bound", AGAIN)
    return content.read()


def _checked(
    path: Path, members: Mapping[str, bytes], rows: Sequence[Row]
) -> tuple[dict[str, str], dict[str, Array]]:
    """Return number -> variant, and the inputs; `InputError` if one is not as packed, or of the run."""
    manifest: Document = parse_json(members.get(MANIFEST, b"{}"))
    if manifest.get("kind") != PURPOSE or manifest["digest"] != digest_document(manifest):
        raise InputError(f"{path} is not a result of measure.sh, or was changed", AGAIN)
    variants, inputs = manifest["variants"], manifest["inputs"]
    lines = (line.split() for line in members[DIGESTS].decode("ascii", "replace").splitlines())
    there = {line[1].lstrip("*"): f"sha256:{line[0]}" for line in lines if len(line) == 2}
    packed = {name: digest for each in variants for name, digest in each["files"].items()}
    packed |= {each["file"]: each["digest"] for each in inputs}
    changed = [name for name, digest in packed.items() if there.get(name) != digest]
    changed += [x["file"] for x in inputs if digest_bytes(members[x["file"]]) != x["digest"]]
    if changed:
        raise InputError(f"{path} was measured with another {changed[0]} than was packed", AGAIN)
    models = {row.name: row.model for row in rows}
    for each in variants:
        if models.get(each["name"]) != each["model"]:
            what = f"{path} was measured with another model {each['name']} than that of this run"
            raise InputError(what, "give the folder of the run that the archive was made of")
    names = {str(number): str(each["name"]) for number, each in enumerate(variants)}
    return names, {each["name"]: _input(each, members[each["file"]]) for each in inputs}


def _input(described: Document, content: bytes) -> Array:
    shape, dtype = [int(size) for size in described["shape"]], str(described["type"])
    if not dtype.isidentifier():  # numpy would read it as Python
        raise ValueError(f"type {dtype!r}")
    return np.frombuffer(content, dtype).reshape(shape)
