"""An engine as an ONNX model of one node `EPContext`, which ONNX Runtime's providers load as it is.

The node has the engine's inputs and outputs, and the engine itself or the name of a file beside the
model: a provider reads no path that is absolute or leads out of the folder. Of the attributes a
provider reads `embed_mode`, `ep_cache_context`, `partition_name` (the name of its runtime cache) and
`hardware_architecture`, for a warning on another GPU.

Source: the schema of `com.microsoft.EPContext` in `contrib_defs.cc`, `onnx_ctx_model_helper.cc` of the
providers for TensorRT and TensorRT-RTX in ONNX Runtime, and of NVIDIA's plug-in for TensorRT-RTX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from trtcal.backends.targets import CAPABILITY
from trtcal.documents import digest_file, together, write_bytes
from trtcal.documents.bounds import MB, read_bytes
from trtcal.errors import InputError, __version__
from trtcal.evidence.manifest import MANIFEST, Build, is_build_folder, read_build
from trtcal.model import TensorSpec, load_model
from trtcal.model.files import MESSAGE, OnnxFile, write_onnx

DOMAIN, OPERATOR, OPSET, IR_VERSION = "com.microsoft", "EPContext", 17, 10
MOST_BYTES = 100_000 * MB
PROVIDERS = {b"vtrt": "NvTensorRTRTXExecutionProvider", b"ftrt": "TensorrtExecutionProvider"}
"""What loads an engine, by its first bytes: those of TensorRT-RTX, and of TensorRT."""
BUILD = "`trtcal build model.onnx --target sm89` writes a folder with an engine"


@dataclass(frozen=True)
class Engine:
    """An engine with its inputs and outputs; what is not known of it is empty."""

    path: Path
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    name: str
    version: str = ""
    target: str = ""
    build: str = ""


def open_engine(source: Path, model: Path | None) -> Engine:
    """Return the engine of a build's folder, or an engine with the ONNX model that it was built of.

    `InputError` if it was altered, or if nothing says what its inputs and outputs are.
    """
    if not source.exists():
        raise InputError(f"{source} does not exist", BUILD)
    folder = source if source.is_dir() else source.parent
    if model is None and is_build_folder(folder):
        build = read_build(folder)
        if source.is_dir() or source.name in (build.engine_file, MANIFEST):
            return _of_build(build)
    if model is None or source.is_dir():
        what = f"{source} is not the folder of a build, so its inputs and outputs are not known"
        raise InputError(what, f"{BUILD}; for an engine of another tool give --model MODEL.onnx")
    known = load_model(model)
    return Engine(source, known.inputs, known.outputs, known.name)


def _of_build(build: Build) -> Engine:
    path = build.engine
    if path.is_file() and digest_file(path) != build.measured.get("engine_digest"):
        raise InputError(f"engine {path} is not the one that {build.folder} was built with", BUILD)
    names = (build.backend_version, build.target, build.digest)
    return Engine(path, build.inputs, build.outputs, build.model_name, *names)


def export_context(engine: Engine, path: Path, embed: bool) -> tuple[OnnxFile, str, Path | None]:
    """Write the model; return what was written, the provider that loads it, and the engine's copy."""
    if path.suffix != ".onnx":
        raise InputError(f"{path} does not end with .onnx", "give an ONNX file with -o")
    data = read_bytes(engine.path, MOST_BYTES)
    provider = PROVIDERS.get(data[:4])
    if provider is None:
        what = f"{engine.path} is not an engine of TensorRT-RTX or TensorRT"
        raise InputError(what, f"give one of these: {BUILD}")
    if embed and len(data) > MESSAGE:
        what = f"{engine.path} has {len(data) / MB:.0f} MB, more than fits into an ONNX file"
        raise InputError(what, "leave out --embed: the engine then goes beside the model")
    beside = None if embed else path.with_suffix(".engine")
    with together():
        if beside is not None:
            write_bytes(beside, data)
        content = data if beside is None else beside.name
        return write_onnx(path, _proto(engine, provider, content)), provider, beside


def _proto(engine: Engine, provider: str, content: bytes | str) -> onnx.ModelProto:
    name = re.sub(r"[^\w-]", "_", engine.name) or "engine"
    inputs, outputs = map(_values, (engine.inputs, engine.outputs))
    names_in, names_out = ([value.name for value in values] for values in (inputs, outputs))
    node = helper.make_node(OPERATOR, names_in, names_out, name=name, domain=DOMAIN)
    attributes = {
        "main_context": 1,  # this node has the engine
        "embed_mode": int(isinstance(content, bytes)),
        "ep_cache_context": content,
        "source": provider,
        "ep_sdk_version": engine.version,
        "hardware_architecture": _architecture(engine.target),
        "onnx_model_filename": f"{name}.onnx",
        "partition_name": name,
        "notes": f"trtcal {__version__} {engine.build}".strip(),
    }
    known = {key: value for key, value in attributes.items() if value != ""}
    node.attribute.extend(helper.make_attribute(key, value) for key, value in known.items())
    graph = helper.make_graph([node], name, inputs, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="trtcal"
    )


def _values(specs: Sequence[TensorSpec]) -> list[onnx.ValueInfoProto]:
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)) for spec in specs]
    return [
        helper.make_tensor_value_info(spec.name, kind, spec.shape)
        for spec, kind in zip(specs, types, strict=True)
    ]


def _architecture(target: str) -> str:
    """Return a compute capability as the providers write it, "89"; nothing for several."""
    known = CAPABILITY.fullmatch(target)
    return "".join(known.groups()) if known else ""
