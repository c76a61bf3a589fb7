"""ONNX Runtime sessions: opened and run in one way everywhere."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto

from trtcal.backends.narrow_floats import NOT_FOR_NARROW, is_narrow, is_rounded, kinds_of, rounded
from trtcal.backends.trial import crash_of, parts_of
from trtcal.backends.unsupported import hint_to_cut, lacking, refused_operators
from trtcal.documents import Workplace
from trtcal.errors import MODEL, BackendError, InputError, NativeCrash, TrtcalError, some
from trtcal.formats import TYPES
from trtcal.model import first_line
from trtcal.model.files import fits, write_beside
from trtcal.model.isolated import signal_name

onnxruntime.set_default_logger_severity(4)  # errors come as exceptions; its warnings are not ours

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

CPU = "CPUExecutionProvider"
# Without VNNI instructions the uint8 x int8 kernels add in 16 bits and saturate. This makes ONNX
# Runtime use uint8 x uint8 kernels there, which are exact and slower.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")
# Products with INT4 weights would round what they multiply with to INT8: 4, the default, allows it.
EXACT_INPUTS = ("session.qdq_matmulnbits_accuracy_level", "1")
# It would quantize float weights and biases by itself, and let a large bias overflow.
QUANTIZES_UNASKED = "WeightBiasQuantization"
# EXACT_PRODUCTS would give a QGemm of int8 inputs uint8 weights, for which there is no kernel.
UNSIGNS_WEIGHTS = "Avx2WeightS8ToU8Transformer"
# Before a Q they take a Clip, or a Relu, for part of its clamping, and refuse other types than bytes.
NOT_FOR_FLOAT8 = ("ClipQuantRewrite", "ReluQuantRewrite")
BEYOND_BYTES = {TensorProto.DataType.Value(name) for name in TYPES}
# The weights of an optimized graph are saved in a file of their own: a message ends at 2 GiB.
BESIDE = (
    ("session.optimized_model_external_initializers_file_name", "optimized.bin"),
    ("session.optimized_model_external_initializers_min_size_in_bytes", "1024"),
)
# Where a model that is in memory has weights in files: relative to this folder.
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
# Idle threads that spin take the cores from the other sessions that are measured in turns.
NO_SPINNING = ("session.intra_op.allow_spinning", "0")
# Sessions that run in turns take memory from a single arena, which grows by what is asked for.
AS_REQUESTED = 1
SHARED_ARENA = ("session.use_env_allocators", "1")
# Q/DQ are then operators as others, and constants are dequantized once.
WITHOUT_QDQ = ("session.disable_quant_qdq", "1")
ENTRIES = (EXACT_PRODUCTS, EXACT_INPUTS, NO_SPINNING)
"""What every session is configured with."""
RUN_S = 10  # of the sample that a model is tried with
OPS_SHOWN = 6
TENSORRT = "trt"  # the domain of Q/DQ that ModelOpt exported before ONNX had them


class Session(onnxruntime.InferenceSession):  # type: ignore[misc]  # it has no types
    """A session that knows where its inputs and outputs have samples.

    `ranks` are the numbers of axes of the inputs, None where the model leaves it open, `firsts` the
    first sizes of the outputs, None where there is none or it is dynamic. `rounds` tells whether values
    are rounded to float16 or bfloat16. `device` is "@NAME" of a session that runs on another machine.
    `constants` are inputs that every run gets beside its feeds.
    """

    device = ""
    constants: Feeds = MappingProxyType({})
    ranks: dict[str, int | None]
    firsts: dict[str, int | None]

    def __init__(
        self, model: onnx.ModelProto, source: bytes | str, narrow: bool, **options: Any
    ) -> None:
        super().__init__(source, **options)
        self.ranks = {value.name: len(value.shape) or None for value in self.get_inputs()}
        self.ranks |= dict.fromkeys(_scalars(model), 0)
        sizes = {value.name: (value.shape or [None])[0] for value in self.get_outputs()}
        self.firsts = {n: size if isinstance(size, int) else None for n, size in sizes.items()}
        self.rounds = narrow and self.get_providers()[0] == CPU

    def run(self, outputs: Sequence[str] | None, feeds: Feeds, *options: Any) -> Any:
        """Run on feeds and the constants."""
        return super().run(outputs, {**feeds, **self.constants}, *options)

    def runs_of(self, feeds: Feeds) -> list[dict[str, Array]]:
        """Return what to feed in each run that a batch takes."""
        return runs_of(self.ranks, feeds)

    def joined(self, name: str, outputs: Sequence[Array], feeds: Feeds) -> Array:
        """Return what one output is for all samples, which are along the first axis then."""
        alone = _without_samples(self.ranks, feeds)
        if len(outputs) > 1:
            whole = alone == set(feeds) or outputs[0].shape[:1] != (1,)
            return np.stack(outputs) if whole else np.concatenate(outputs)
        output, samples = outputs[0], _samples(feeds)
        if alone == set(feeds) or self.firsts.get(name) not in (None, samples):
            return np.broadcast_to(output, (samples, *output.shape))
        return output


def _without_samples(ranks: Mapping[str, int | None], feeds: Feeds) -> set[str]:
    """Return the inputs of which an array has an axis more than the model: that of the samples."""
    return {name for name, array in feeds.items() if array.ndim - 1 == ranks.get(name)}


def runs_of(ranks: Mapping[str, int | None], feeds: Feeds) -> list[dict[str, Array]]:
    """Return what to feed in each run: one for all samples, or one for each.

    `ranks` are the numbers of axes of the inputs. One without an axis for samples that is the same for
    all of them is fed once.
    """
    alone = _without_samples(ranks, feeds)
    if all((feeds[name] == feeds[name][:1]).all() for name in alone):
        return [{n: array[0] if n in alone else array for n, array in feeds.items()}]
    return [
        {n: array[i] if n in alone else array[i : i + 1] for n, array in feeds.items()}
        for i in range(_samples(feeds))
    ]


def _samples(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


def _scalars(model: onnx.ModelProto) -> list[str]:
    """Return the inputs that are scalars: ONNX Runtime says the same of those of unknown rank."""
    kinds = {value.name: value.type.tensor_type for value in model.graph.input}
    return [name for name, kind in kinds.items() if kind.HasField("shape") and not kind.shape.dim]


def open_session(
    model: onnx.ModelProto | bytes | Path,
    threads: int = 0,
    optimized: Path | None = None,
    severity: int = 4,
    as_it_is: bool = False,
    provider: str = CPU,
    arena: bool = True,
    name: str = "the model",
    shares_arena: bool = False,
    is_literal: bool = False,
) -> Session:
    """Open a session; `threads` 0 takes all cores; `optimized` is where to save the final graph.

    With `as_it_is` the graph is run without any optimization, in the order of its nodes: it is an
    optimized one already. Without `arena` it gives its memory back after each run: for sessions of
    which many are open at once. All that share an arena keep the memory of the largest, for sessions
    that run one after another.
    The model is tried in a fork before, if it has what none had (`trial`). `BackendError` if ONNX
    Runtime refuses it or cannot load the provider, `NativeCrash`, which has its `name`, if it crashes.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or os.cpu_count() or 1
    options.log_severity_level = severity
    _set_arena(options, arena, shares_arena)
    for entry in (*ENTRIES, *(BESIDE if optimized else ()), *([WITHOUT_QDQ] * is_literal)):
        options.add_session_config_entry(*entry)
    if as_it_is:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    try:
        graph, whole, narrow = _read(model, provider, options)
        with _source(whole) as source:
            settings = {
                "sess_options": options,
                "providers": list(dict.fromkeys([provider, CPU])),
                "disabled_optimizers": disabled_optimizers(graph, narrow),
                "narrow": narrow,
            }
            opening = partial(Session, graph, source, **settings)
            if provider == CPU:  # a fork cannot use the parent's GPU
                parts = parts_of(graph.graph, as_it_is)
                number = crash_of(parts, lambda: _run_zeros(opening(), graph.graph))
                _check_survival(name, graph, number)
            session = opening()
    except (NativeCrash, InputError):
        raise
    except Exception as error:
        what = f"ONNX Runtime {onnxruntime.__version__} cannot load the model: {first_line(error)}"
        raise BackendError(what, _advice(model, str(error))) from error
    if provider not in session.get_providers():  # it would go on with the CPU
        what = f"ONNX Runtime could not load its {provider}"
        raise BackendError(what, "read the log of ONNX Runtime for the cause")
    return session


def _set_arena(options: onnxruntime.SessionOptions, arena: bool, is_shared: bool) -> None:
    options.enable_cpu_mem_arena = arena
    if is_shared:
        _register_arena()
        options.enable_mem_pattern = False  # it takes the memory of a run as a single block
        options.add_session_config_entry(*SHARED_ARENA)


@cache
def _register_arena() -> None:
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    where = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    settings = onnxruntime.OrtArenaCfg({"arena_extend_strategy": AS_REQUESTED})
    onnxruntime.create_and_register_allocator(where, settings)


def disabled_optimizers(graph: onnx.ModelProto, narrow: bool) -> list[str]:
    """Return the optimizers of ONNX Runtime that would change what a model computes."""
    int8 = {item.name for item in graph.graph.initializer if item.data_type == TensorProto.INT8}
    signed = any(n.op_type == "QGemm" and int8.intersection(n.input[2:3]) for n in graph.graph.node)
    further = [UNSIGNS_WEIGHTS] * signed + [*NOT_FOR_NARROW] * narrow
    further += NOT_FOR_FLOAT8 if not BEYOND_BYTES.isdisjoint(kinds_of(graph)) else ()
    return [QUANTIZES_UNASKED, *further]


def _read(
    model: onnx.ModelProto | bytes | Path, provider: str, options: onnxruntime.SessionOptions
) -> tuple[onnx.ModelProto, onnx.ModelProto | bytes | Path, bool]:
    """Return a graph, rounded as its types say where a CPU runs it, and what to open a session with.

    The last is whether it `is_narrow`.
    """
    if isinstance(model, Path):
        graph = onnx.load(model, load_external_data=False)
    else:
        graph = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
    narrow = is_narrow(graph)
    if provider != CPU or not narrow or is_rounded(graph):
        return graph, model, narrow
    graph = rounded(graph)
    if not isinstance(model, Path):
        return graph, graph, narrow
    options.add_session_config_entry(WEIGHTS_FOLDER, str(model.parent))
    return graph, bytes(graph.SerializeToString()), narrow


def _run_zeros(session: Session, graph: onnx.GraphProto) -> None:
    """Run one sample of zeros, for `RUN_S` at most; what an operator refuses says nothing."""
    signal.alarm(RUN_S)
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    feeds = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        feeds[value.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kinds[value.name]))
    session.run(None, feeds)


def _check_survival(name: str, graph: onnx.ModelProto, number: int) -> None:
    """`NativeCrash` unless the number of the signal is 0."""
    if not number:
        return
    ops, end = tuple(dict.fromkeys(node.op_type for node in graph.graph.node)), signal_name(number)
    model = f"{name} ({'float16 ' * is_narrow(graph)}{some(ops, OPS_SHOWN)})"
    hint = "leave the model out, or keep these operators in float32 by a plan; update onnxruntime"
    if number == signal.SIGKILL:
        why = "the system ends processes when memory runs out"
        hint = f"{why}: add memory, or use a smaller --batch"
    what = f"ONNX Runtime {onnxruntime.__version__} crashes ({end}) with {model}"
    raise NativeCrash(what, hint, end, ops)


def _advice(model: onnx.ModelProto | bytes | Path, text: str) -> str:
    """Return what helps where ONNX Runtime refuses a model: a cut, if it lacks an operator."""
    graph = model if isinstance(model, onnx.ModelProto) else onnx.ModelProto()
    nodes = lacking(graph, refused_operators(text, graph))
    if any(node.domain == TENSORRT for node in nodes):
        return "export it with opset 19 for FP8, 21 for INT4, 23 for FP4, which have Q/DQ in ONNX"
    if nodes:
        rest = "the part that is cut off is not judged"
        alone = "no layer that multiplies comes before it: replace it with ONNX operators"
        return hint_to_cut(f"{MODEL}.onnx", graph, nodes, rest) or alone
    return "test the model in ONNX Runtime alone, then export it again or update onnxruntime"


@contextmanager
def _source(model: onnx.ModelProto | bytes | Path) -> Iterator[bytes | str]:
    """Yield what a session is opened with: bytes, or the path of a file that may go afterwards."""
    if isinstance(model, Path):
        yield str(model)
    elif isinstance(model, bytes):
        yield model
    elif fits(model):
        yield bytes(model.SerializeToString())
    else:
        with Workplace() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(write_beside(model, path.with_suffix(".bin")))
            yield str(path)


def run_session(session: Session, outputs: Sequence[str] | None, feeds: Feeds) -> list[Array]:
    """Run one batch and return the outputs named (all if None); `BackendError` if it fails.

    All arrays have samples along the first axis, those of inputs and outputs without such an axis too.
    """
    if not _without_samples(session.ranks, feeds):
        return run_once(session, outputs, feeds)
    runs = [run_once(session, outputs, run) for run in session.runs_of(feeds)]
    names = list(session.firsts) if outputs is None else outputs
    try:
        pairs = zip(names, zip(*runs, strict=True), strict=True)
        return [session.joined(name, arrays, feeds) for name, arrays in pairs]
    except ValueError as error:
        what = "samples run one at a time gave outputs of different shapes"
        raise BackendError(what, "run one sample in a batch: 1 for --batch") from error


def run_once(session: Session, outputs: Sequence[str] | None, feeds: Feeds) -> list[Array]:
    """Run on arrays that have the axes of the model's inputs; `BackendError` if it fails."""
    if outputs is not None and not outputs:
        return []
    try:
        results = session.run(outputs, {n: np.asarray(x, order="C") for n, x in feeds.items()})
    except TrtcalError:  # of a device
        raise
    except Exception as error:  # see open_session
        raise _failed(error) from error
    return [np.asarray(result) for result in results]


def run_bound(session: Session, binding: Any) -> None:
    """Run one batch from and into bound arrays; `BackendError` if it fails."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # see open_session
        raise _failed(error) from error


def give_back() -> None:
    """Return freed memory to the system, where the C library keeps it for later and can be asked.

    After a session or large arrays are freed: whether the C library used it again is left to chance.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _failed(error: Exception) -> BackendError:
    fits = "the data fit the model, and that --batch fits the fixed batch size of the model, if any"
    what = f"ONNX Runtime failed while running the model: {first_line(error)}"
    return BackendError(what, f"check that {fits}")
