"""The first tensor of an engine that differs from the simulated Q/DQ by more than rounding allows.

The variant's Q/DQ run here in float on the same inputs. A kernel that rounds elsewhere moves single
values by one step, and what follows by more. So a tensor may differ by the larger of two: one step of
its INT8 (its own scale, or its largest magnitude over 127), and twice what the simulation itself moves
when every scale is changed by 1/512, which puts other values on other sides of their steps.

What a debug tensor cannot show: the values inside a fused kernel. The first one that differs is behind
the cause, not always at it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtcal.backends.sessions import Array
from trtcal.backends.taps import Inside
from trtcal.documents import Document
from trtcal.errors import BackendError, InputError, some
from trtcal.evaluate.layerwise import SiteFinder
from trtcal.model import Model, TensorSpec
from trtcal.model.tensors import constants_of, producers_of
from trtcal.reporting.text import count

LEVELS = 127
MARGIN = 2.0
MOVED = 1 / 512  # relative, of every scale
PRINTED = 1e-5  # relative, of trtexec's six digits
INDEX = re.compile(r"^\d{4,6}_")
CONVERTED = re.compile(r"_to_(float|int8)$")
TYPES = {4: "<f4", 2: "<f2", 1: "i1"}
LONGEST, HALF = 150, 73  # of a file's name, as trtexec shortens a tensor's
NAMED = 20


def first_difference(
    model: Model, feeds: Mapping[str, Array], measured: Mapping[str, Array | bytes]
) -> Document:
    """Compare an engine's tensors, by their names or those of their files, in the graph's order.

    `tensor` is the first that differs, None where none does; `compared` and `place` count tensors,
    `left_out` names those that the graph does not have, or has in another shape.
    """
    producers = producers_of(model.proto.graph)
    names = _named(measured, list(producers))
    files = {name: file for file, name in reversed(names.items())}  # the first of several
    known = [name for name in producers if name in files]
    if not known:
        hint = "give the outputs or debug tensors of an engine of this variant"
        raise InputError(f"{model.name} has no tensor of those measured: {some([*measured])}", hint)
    simulated, moved = (
        _run(proto, known, feeds, model) for proto in (model.proto, _moved(model.proto))
    )
    sites = (site for site in SiteFinder(model.proto).sites if not site.is_weight)
    steps = {site.tensor: float(site.scale.max()) for site in sites}
    rows = [
        (name, *_held(values, simulated[name], moved[name], steps.get(name)))
        for name in known
        if (values := _values(measured[files[name]], simulated[name])) is not None
    ]
    compared = {row[0] for row in rows}
    left_out = [file for file in measured if names.get(file) not in compared]
    place, first = next(((n, r) for n, r in enumerate(rows, 1) if r[1] > r[2]), (None, None))
    node = producers[first[0]] if first else None
    return {
        "tensor": first and first[0],
        "node": node and (node.name or node.op_type),
        "difference": first and (first[1] if math.isfinite(first[1]) else None),
        "allowed": first and first[2],
        "place": place,
        "compared": len(rows),
        "left_out": left_out[:NAMED],
    }


def sentence_of(difference: Document, model: Model) -> str:
    """Return what a comparison of tensors shows."""
    simulation = "the simulated Q/DQ" if SiteFinder(model.proto).sites else "the float model"
    compared = f"{count(difference['compared'], 'tensor')} compared"
    if difference["tensor"] is None:
        return f"of {compared} none differs from {simulation} by more than rounding allows"
    by = difference["difference"]
    size = "is not finite" if by is None else f"differs by {by:.3g}"
    return (
        f"the engine differs from {simulation}: of {compared} the first in the graph's order is "
        f"{difference['tensor']!r} of {difference['node']}, which {size}, where rounding allows "
        f"{difference['allowed']:.3g}"
    )


def _run(
    proto: onnx.ModelProto, names: list[str], feeds: Mapping[str, Array], model: Model
) -> dict[str, Array]:
    missing = [spec.name for spec in model.inputs if spec.name not in feeds]
    if missing:
        what = f"the values of input {missing[0]!r} of {model.name} are not known"
        raise InputError(what, f"give them: --measured {missing[0]}=FILE")
    try:
        return Inside(proto, names).read({spec.name: feeds[spec.name] for spec in model.inputs})
    except BackendError as error:
        what = f"{model.name} does not run on the inputs of the measurement: {error.message}"
        raise InputError(what, "give the inputs that its engine was run on") from error


def _moved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which the scales of activations are larger and smaller in turns."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    constants = constants_of(copy.graph)
    nodes = (node for node in copy.graph.node if node.op_type == "QuantizeLinear")
    scales = dict.fromkeys(node.input[1] for node in nodes if node.input[0] not in constants)
    for number, name in enumerate(name for name in scales if name in constants):
        values = numpy_helper.to_array(constants[name])
        other = (values * (1 + MOVED * (-1) ** number)).astype(values.dtype)
        constants[name].CopyFrom(numpy_helper.from_array(other, name))
    return copy


def _held(values: Array, simulated: Array, moved: Array, step: float | None) -> tuple[float, float]:
    """Return the largest difference from the simulation, and the largest that is allowed."""
    ours, theirs = values.astype(np.float64), simulated.astype(np.float64)
    finite = np.isfinite(theirs)
    largest = float(np.abs(theirs[finite]).max(initial=0.0))
    if simulated.dtype.kind in "iub":
        step = 1.0
    shifts = np.abs(moved.astype(np.float64) - theirs)[finite].max(initial=0.0)
    allowed = max(step or largest / LEVELS, MARGIN * float(shifts)) + PRINTED * largest
    off = np.abs(ours[finite] - theirs[finite])
    return float("inf" if np.isnan(off).any() else off.max(initial=0.0)), allowed


def _values(stored: Array | bytes, simulated: Array) -> Array | None:
    """Return a tensor as the simulation has it, None if it is of another size."""
    if isinstance(stored, bytes):
        width, rest = divmod(len(stored), max(simulated.size, 1))
        known = width in TYPES and not rest
        return np.frombuffer(stored, TYPES[width]).reshape(simulated.shape) if known else None
    if stored.size != simulated.size or stored.dtype.kind not in "fiub":
        return None
    same = [n for n in stored.shape if n != 1] == [n for n in simulated.shape if n != 1]
    return stored.reshape(simulated.shape) if same else None


def _named(measured: Mapping[str, object], tensors: list[str]) -> dict[str, str]:
    """Return the tensor of each name or file's name; trtexec writes `0007_NAME_to_float.npy`."""
    by_file = defaultdict[str, list[str]](list)
    for tensor in tensors:
        by_file[_safe(tensor)].append(tensor)
    fits = {name: next(filter(None, map(by_file.get, _stems(name))), []) for name in measured}
    fits |= {name: [name] for name in tensors if name in measured}
    return {name: tensors[0] for name, tensors in fits.items() if len(tensors) == 1}


def _stems(file: str) -> Iterator[str]:
    stem = Path(file).stem
    for part in (stem, INDEX.sub("", stem)):
        yield part
        yield CONVERTED.sub("", part)


def _safe(tensor: str) -> str:
    """Return the name as trtexec makes a file's of it."""
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "._-," else "_" for c in tensor)
    return name if len(name) <= LONGEST else f"{name[:HALF]}...{name[-HALF:]}"


def shaped(data: bytes, spec: TensorSpec, file: Path) -> Array:
    """Return the values of an input in a raw file, as trtexec's --loadInputs takes it."""
    fixed = [size for size in spec.shape if isinstance(size, int)]
    dtype = np.dtype(spec.dtype)
    count, rest = divmod(len(data), max(math.prod(fixed), 1) * dtype.itemsize)
    open_sizes = len(spec.shape) - len(fixed)
    if rest or not count or open_sizes > 1 or (not open_sizes and count != 1):
        raise InputError(
            f"{file} has {len(data)} bytes and not those of {spec}", "give the file of --loadInputs"
        )
    shape = [size if isinstance(size, int) else count for size in spec.shape]
    return np.frombuffer(data, dtype).reshape(shape)
