"""Read tensors from inside a running ONNX Runtime session, at as little cost as can be had.

Asking a session for inner tensors in the plain way breaks its fusions and makes it reorder and copy
each one. A histogram does not care about the order of elements, so a tensor is tapped where the
optimized graph has it, in its blocked layout (NCHWc) if need be, into a buffer that is used again.

Where that is, is read off names that ONNX Runtime does not promise. So every tap is checked against
the plain way on the first batch, and asked for plainly if it differs.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.sessions import (
    Array,
    Session,
    give_back,
    open_session,
    run_bound,
    run_once,
    run_session,
)
from trtcal.errors import BackendError, ResourceError
from trtcal.model.files import write_beside
from trtcal.model.ops import ORT_FUSED
from trtcal.model.tensors import producers_of, readers_of

Feeds = Mapping[str, Array]
Shapes = tuple[tuple[int, ...], ...]
Forms = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name of a value in the optimized graph -> its shape and type."""
NCHWC = "_nchwc"
BLOCKED_DOMAIN = "com.microsoft.nchwc"
TOLERANCE = 1e-3
COLLECTED_BYTES = 1 << 25  # of tensors that a lane collects and counts then, or those of one batch
LANES_BYTES = 1 << 30  # of tensors of all lanes together
MOST_BATCHES = 8
PIECE = 1 << 18  # values processed together
MODEL, WEIGHTS = "model.onnx", "weights.bin"


@dataclass(frozen=True)
class Reading:
    """Batches of one tensor, a sample's elements in any order; zeros of padding; samples of each."""

    tensor: str
    values: Array
    padding: int
    samples: tuple[range, ...]


class Taps:
    """Reads the same tensors of a model laid out in a folder; a context manager.

    Batches are run in lanes, one beside the other, each with its own buffers and its share of the
    threads: as many lanes as threads, unless their tensors would take too much room. Two runs with a
    thread each never wait for one another, as two threads do at the end of every operator.

    `room` is how many bytes a lane may collect before they are returned. `batch_bytes` is what the
    tensors of the first batch take.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Sequence[str],
        first: Feeds,
        threads: int = 1,
        room: int = COLLECTED_BYTES,
    ) -> None:
        self.tensors, self.threads, self.room = tuple(tensors), threads, room
        self.data = (folder / MODEL).read_bytes()
        self.graph = onnx.ModelProto.FromString(self.data)
        self.known = {value.name for value in self.graph.graph.output}
        self.places: dict[str, str] = {}
        self.forms: dict[Shapes, Forms] = {}
        self.lanes: list[Lane] = []
        self._folder = tempfile.TemporaryDirectory(dir=folder, prefix="taps-")
        self.folder = Path(self._folder.name)
        (self.folder / WEIGHTS).hardlink_to(folder / WEIGHTS)
        try:
            self._open(first)
        except BaseException:
            self.close()
            raise

    def _open(self, first: Feeds) -> None:
        plain = self._session(self._with_outputs(self.data, self.tensors), as_it_is=True)
        first = plain.runs_of(first)[0]
        expected = dict(zip(self.tensors, _run(plain, self.tensors, first), strict=True))
        del plain
        give_back()
        self.batch_bytes = sum(array.nbytes for array in expected.values())
        self.channels = {n: array.shape[1] for n, array in expected.items() if array.ndim > 2}
        most = LANES_BYTES // max(self.batch_bytes, self.room) if self.room else 1
        lanes = max(1, min(self.threads, most))
        self.threads //= lanes
        self.session = self._tapped(expected, first) or self._session(
            self._with_outputs(self.data, self.tensors)
        )
        self.lanes = [Lane(self) for _ in range(lanes)]
        del expected
        give_back()

    def __enter__(self) -> Taps:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the model's temporary copy, and let go of the lanes, which refer to this."""
        self.lanes = []
        self._folder.cleanup()

    def _tapped(self, expected: dict[str, Array], first: Feeds) -> Session | None:
        plainly = list[str]()
        for _ in range(3):  # a tap that fails its check is asked for plainly, and all is done again
            data = self._optimize(self._with_outputs(self.data, plainly))
            self.places = locate(onnx.ModelProto.FromString(data), self.graph, self.tensors)
            missing = [name for name in self.tensors if name not in self.places]
            if not missing:
                outputs = [name for name in self.places.values() if name not in plainly]
                try:  # ONNX Runtime cannot load what it made of convolutions in subgraphs
                    session = self._session(self._with_outputs(data, outputs), as_it_is=True)
                except BackendError:
                    break
                missing = self._differing(session, expected, first)
                if not missing:
                    return session
            plainly += missing
        self.places, self.forms = {}, {}
        return None

    def _session(self, data: bytes, **options: Any) -> Session:
        path = self.folder / MODEL
        path.write_bytes(data)
        return open_session(path, self.threads, **options)

    def _optimize(self, data: bytes) -> bytes:
        """Return the graph that ONNX Runtime would run on this machine, its weights beside it."""
        path = self.folder / "optimized.onnx"
        try:
            self._session(data, optimized=path)
        except BackendError as error:
            if shutil.disk_usage(self.folder).free < len(data):
                hint = "free disk space, or set TMPDIR to another folder"
                raise ResourceError("there is no disk space for temporary files", hint) from error
            raise
        give_back()
        return path.read_bytes()

    def _with_outputs(self, data: bytes, tensors: Sequence[str]) -> bytes:
        """Return a serialized model with these tensors as graph outputs too.

        Serialized messages that are joined are merged.
        """
        new = [name for name in dict.fromkeys(tensors) if name not in self.known]
        values = [onnx.ValueInfoProto(name=name) for name in new]
        more = onnx.ModelProto(graph=onnx.GraphProto(output=values))
        return bytes(data + more.SerializeToString())

    def _differing(self, session: Session, expected: dict[str, Array], first: Feeds) -> list[str]:
        values = _run(session, list(self.places.values()), first)
        self.forms = {_shapes(first): _forms(dict(zip(self.places.values(), values, strict=True)))}
        return [
            name
            for name, array in zip(self.places, values, strict=True)
            if not _same_values(array, expected[name], self.padding(name, array))
        ]

    def forms_of(self, feeds: Feeds) -> Forms:
        """Return what the tensors look like for such feeds; what is not known yet is run."""
        shapes = _shapes(feeds)
        if shapes not in self.forms:
            names = [self.places.get(name, name) for name in self.tensors]
            values = _run(self.session, names, feeds)
            self.forms[shapes] = _forms(dict(zip(names, values, strict=True)))
        return self.forms[shapes]

    def padding(self, name: str, values: Array) -> int:
        """Return how many zeros fill up a blocked tensor's channels; only those have any."""
        channels = self.channels.get(name)
        if self.places.get(name, name) == name or channels is None:
            return 0
        return int(values.size - values.size // values.shape[1] * channels)


class Lane:
    """Runs one batch after another into its own buffers.

    Small tensors are collected over several batches, because counting many values of one tensor at
    a time is cheaper than counting a few of each.
    """

    def __init__(self, taps: Taps) -> None:
        self.taps, self.buffers, self.latest = taps, dict[Shapes, _Buffers](), Shapes()
        self.samples: list[range] = []  # of each batch that is collected

    def read(self, feeds: Feeds, samples: range) -> list[Reading]:
        """Run the batch of these samples; return what has been collected if enough, else nothing.

        What is returned is overwritten by the next batch.
        """
        if not self.taps.tensors:  # only inputs are read: nothing has to run
            return []
        runs = self.taps.session.runs_of(feeds)
        if len(runs) == 1:
            return self._read(runs[0], samples)
        each = zip(runs, samples, strict=True)
        readings = (reading for run, i in each for reading in self._read(run, range(i, i + 1)))
        return [replace(reading, values=reading.values.copy()) for reading in readings]

    def _read(self, feeds: Feeds, samples: range) -> list[Reading]:
        shapes = _shapes(feeds)
        before = self.rest() if shapes != self.latest else []
        self.latest = shapes
        buffers = self._buffers(shapes, feeds)
        run_bound(self.taps.session, buffers.next(feeds))
        self.samples.append(samples)
        return before + (self.rest() if buffers.full else [])

    def rest(self) -> list[Reading]:
        """Return what is collected and was not yet returned."""
        buffers, taps = self.buffers.get(self.latest), self.taps
        collected = buffers.take() if buffers else {}
        samples, self.samples = tuple(self.samples), []
        return [
            Reading(name, values, len(values) * taps.padding(name, values[0]), samples)
            for name in dict.fromkeys(taps.tensors)
            if (values := collected.get(taps.places.get(name, name))) is not None
        ]

    def _buffers(self, shapes: Shapes, feeds: Feeds) -> _Buffers:
        """Return the buffers for batches of these shapes; those of the two latest are kept."""
        if shapes not in self.buffers:
            self.buffers = {key: self.buffers[key] for key in list(self.buffers)[-1:]}
            forms = self.taps.forms_of(feeds)
            self.buffers[shapes] = _Buffers(self.taps.session, forms, self.taps.room)
        return self.buffers[shapes]


class _Buffers:
    """Room for some batches of all tensors, and a binding for each batch."""

    def __init__(self, session: Session, forms: Forms, room: int) -> None:
        batch_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms.values())
        batches = int(max(1, min(MOST_BATCHES, room // max(batch_bytes, 1))))
        self.arrays = {n: np.empty((batches, *shape), kind) for n, (shape, kind) in forms.items()}
        self.bindings = [
            _binding(session, {name: array[i, ...] for name, array in self.arrays.items()})
            for i in range(batches)
        ]
        self.filled = 0

    @property
    def full(self) -> bool:
        return self.filled == len(self.bindings)

    def next(self, feeds: Feeds) -> Any:
        """Return the binding to run the next batch with."""
        binding = self.bindings[self.filled]
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.asarray(array, order="C"))
        self.filled += 1
        return binding

    def take(self) -> dict[str, Array]:
        """Return what is filled, shape (batches, *batch), and begin anew."""
        filled, self.filled = self.filled, 0
        return {name: array[:filled] for name, array in self.arrays.items()} if filled else {}


def lay_out(proto: onnx.ModelProto, folder: Path) -> None:
    """Write the model into `folder` in two files, of which the second has the large initializers.

    The first is small whatever the model's size; ONNX Runtime maps the other.
    """
    (folder / MODEL).write_bytes(write_beside(proto, folder / WEIGHTS))


def locate(
    optimized: onnx.ModelProto, original: onnx.ModelProto, tensors: Sequence[str]
) -> dict[str, str]:
    """Return where in the optimized graph each tensor probably is: tensor -> name of a value there."""
    values = {name for node in optimized.graph.node for name in node.output}
    readers, producers = readers_of(original.graph), producers_of(original.graph)
    blocked = {
        _last_fused(node, readers, producers): node.output[0]
        for node in optimized.graph.node
        if node.domain == BLOCKED_DOMAIN and node.name.endswith(NCHWC)
    }
    places = {name: blocked.get(name, name) for name in tensors}
    return {name: place for name, place in places.items() if place in values}


def _last_fused(
    blocked: onnx.NodeProto,
    readers: Mapping[str, list[onnx.NodeProto]],
    producers: Mapping[str, onnx.NodeProto],
) -> str:
    """Return the tensor past the addition and the activation that were fused into a blocked node."""

    def past(tensor: str, ops: Collection[str]) -> str:
        nodes = readers.get(tensor, [])
        return nodes[0].output[0] if len(nodes) == 1 and nodes[0].op_type in ops else tensor

    tensor = blocked.name.removesuffix(NCHWC)
    if len(blocked.input) > 3:
        tensor = past(tensor, ("Add", "Sum"))
    activated = any(item.name == "activation" for item in blocked.attribute)
    producer = producers.get(tensor)
    if activated and producer is not None and producer.op_type not in ORT_FUSED:
        tensor = past(tensor, ORT_FUSED)
    return tensor


def _run(session: Session, names: Sequence[str], feeds: Feeds) -> list[Array]:
    """Run for outputs of which some may be named twice."""
    unique = list(dict.fromkeys(names))
    values = dict(zip(unique, run_once(session, unique, feeds), strict=True))
    return [values[name] for name in names]


def _binding(session: Session, places: Mapping[str, Array]) -> Any:
    binding = session.io_binding()
    for name, array in places.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return binding


def _shapes(feeds: Feeds) -> Shapes:
    return tuple(array.shape for array in feeds.values())


def _forms(values: Mapping[str, Array]) -> Forms:
    return {name: (array.shape, array.dtype) for name, array in values.items()}


def _same_values(actual: Array, expected: Array, padding: int) -> bool:
    """Return whether two arrays hold the same values in some order, but for zeros of padding.

    By number, type, extremes and three moments: a tensor that agrees in all of them to
    `TOLERANCE` is the same one, computed by other kernels.
    """
    if actual.size - padding != expected.size or actual.dtype != expected.dtype:
        return False
    if padding and np.count_nonzero(actual == 0) < padding:
        return False
    ours, theirs = _moments(actual, expected.size), _moments(expected, expected.size)
    near = TOLERANCE * (np.abs(theirs) + theirs[1])
    return bool((np.abs(ours - theirs) <= near).all() or np.array_equal(ours, theirs, True))


def _moments(values: Array, count: int) -> npt.NDArray[np.float64]:
    """Return mean, mean magnitude, mean square, minimum and maximum, zeros of padding not counted."""
    flat = values.reshape(-1)
    rows = []
    for start in range(0, flat.size, PIECE):  # copies in float64 of all of it would be the peak
        piece = flat[start : start + PIECE].astype(np.float64)
        sums = piece.sum(), np.abs(piece).sum(), np.square(piece).sum()
        rows.append([*sums, piece.min(), piece.max()])
    table = np.reshape(rows, (-1, 5))
    # padding makes 0 a value of either extreme
    ends = table[:, 3].min(initial=0.0), table[:, 4].max(initial=0.0)
    return np.array([*table[:, :3].sum(0) / count, *ends])


class Inside:
    """One model, its nodes executed as they stand; `tensors` may be inputs and outputs as well."""

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str]) -> None:
        inputs = {value.name for value in proto.graph.input}
        self.names, self.tensors = [name for name in tensors if name not in inputs], tensors
        self.session = open_session(showing(proto, self.names), as_it_is=True, arena=False)

    def read(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the tensors of one batch."""
        outputs = run_session(self.session, self.names, dict(feeds)) if self.names else []
        known = {**feeds, **dict(zip(self.names, outputs, strict=True))}
        return {name: known[name] for name in self.tensors}

    def read_each(self, feeds: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield the tensors of each run that a batch takes, with the axes that the model gives them."""
        for run in self.session.runs_of(feeds):
            outputs = run_once(self.session, self.names, run)
            known = {**run, **dict(zip(self.names, outputs, strict=True))}
            yield {name: known[name] for name in self.tensors}


def showing(proto: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Return a model of which these tensors are outputs too, behind its own."""
    known = {value.name for value in proto.graph.output}
    copy = deepcopy(proto)
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in tensors if n not in known)
    return copy
