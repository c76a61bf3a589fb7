"""Converts a SavedModel, a `.keras` or a `.tflite` file by tf2onnx; runs in a child process.

What of a model is executed here: a SavedModel is loaded by `tf.saved_model.load`, which restores its
variables and runs the initializers that its object graph names; these are graphs of TensorFlow's own
operators, some of which read and write files. Keras builds a `.keras` from its configuration, which in
safe mode names Keras' own classes only. TFLite's interpreter plans a `.tflite` and runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from trtcal.config import read_toml
from trtcal.errors import InputError
from trtcal.wings.frameworks.conversion import UnsafeError, work
from trtcal.wings.frameworks.formats import GRAPH

OPSET = 17
SIGNATURES = "serving_default", "serve"
SAFE_KERAS = 3, 12
"""Before it, files that safe mode let through ran programs: CVE-2025-1550, 9905, 9906, 12058."""
TABLE = read_toml(Path(__file__).with_name("tensorflow.toml"))
STATEFUL = frozenset(TABLE["stateful"])
"""Operators with a state that reach nothing outside of the graph."""
OUTSIDE = frozenset(TABLE["outside"])
"""Operators without a state that read files, or call Python."""


def convert(request: dict[str, Any], output: Path) -> dict[str, str]:
    """Write the ONNX of a model; return new names of its inputs and outputs."""
    source, form = Path(request["path"]), request["format"]
    if form == "keras":
        return _convert_keras(source, output, request["trust"])
    if form == "saved_model":
        if not request["trust"]:
            check_graphs(source)
        return _convert_saved_model(source, output)
    _tf2onnx("--tflite", str(source), output)
    return _tflite_names(output)


def _tf2onnx(kind: str, source: str, output: Path, *more: str) -> None:
    """Run tf2onnx's own program, which knows what each of its loaders needs."""
    import tf2onnx.convert

    sys.argv = ["tf2onnx", kind, source, "--output", str(output), "--opset", str(OPSET), *more]
    tf2onnx.convert.main()
    if not output.exists():
        raise InputError("tf2onnx wrote no model", "`python -m tf2onnx.convert` prints the details")


def _convert_saved_model(folder: Path, output: Path) -> dict[str, str]:
    import tensorflow as tf

    names = list(tf.saved_model.load(str(folder)).signatures)
    chosen = next(
        (name for name in SIGNATURES if name in names), names[0] if len(names) == 1 else None
    )
    if chosen is None:
        raise InputError(
            f"its signatures are {', '.join(map(repr, names)) or 'none'}, none of which is the default",
            "save it with a signature `serving_default`",
        )
    _tf2onnx("--saved-model", str(folder), output, "--signature_def", chosen, "--tag", "serve")
    return {}


def _convert_keras(file: Path, output: Path, trust: bool) -> dict[str, str]:
    """Convert by way of a SavedModel; the outputs are named after their layers, as Keras names them."""
    version = tuple(int(part) for part in metadata.version("keras").split(".")[:2])
    if not trust and version < SAFE_KERAS:
        raise UnsafeError("install Keras 3.12 or newer: the safe mode of older versions has holes")
    model = _load_keras(file, trust)
    folder = Path("saved_model")
    model.export(str(folder), format="tf_saved_model", verbose=False)
    _convert_saved_model(folder, output)
    names = list(getattr(model, "output_names", []))
    return {f"output_{number}": name for number, name in enumerate(names)}


def _load_keras(file: Path, trust: bool) -> Any:
    import keras

    try:
        return keras.models.load_model(file, compile=False, safe_mode=not trust)
    except (ValueError, TypeError) as error:
        if "safe_mode" in str(error) or "unsafe" in str(error).lower():
            raise UnsafeError(str(error).split(".")[0]) from None
        if "custom" in str(error):
            raise InputError(
                "it has custom layers, whose code a .keras file does not contain",
                "in the program that defines these layers, export it as a SavedModel: "
                "model.export('folder')",
            ) from None
        raise


def _tflite_names(output: Path) -> dict[str, str]:
    """Return the names without what TFLite's converter put around them."""
    import onnx

    graph = onnx.load(output, load_external_data=False).graph
    names = [value.name for value in (*graph.input, *graph.output)]
    return {name: name.removesuffix(":0").removeprefix("serving_default_") for name in names}


def check_graphs(folder: Path) -> None:
    """`UnsafeError` if what loading a SavedModel runs may reach outside of its graphs.

    A model's own functions are those that its object graph names. Saving and restoring are named by the
    main graph alone, which loading does not run; it restores from the folder's own files.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / GRAPH).read_bytes())
    for graph in model.meta_graphs:
        if not graph.object_graph_def.nodes:
            raise UnsafeError("it is a model of TensorFlow 1, whose graph must run to load it")
        for function, operator in _operators(graph):
            if not _is_contained(operator):
                raise UnsafeError(f"function {function!r} has the operator {operator}")


def _operators(graph: Any) -> Iterator[tuple[str, str]]:
    """Yield the functions that the object graph reaches, with the operators in them."""
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    pending, seen = list(_named(graph.object_graph_def)), set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in functions[name].node_def:
            yield name, node.op
            pending.extend((node.op, *_called(node)))


def _named(objects: Any) -> Iterator[str]:
    """Yield the functions that an object graph names; that its list has all of them is not checked."""
    yield from objects.concrete_functions
    for node in objects.nodes:
        yield from node.function.concrete_functions
        yield node.bare_concrete_function.concrete_function_name


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def _is_contained(operator: str) -> bool:
    """Tell whether an operator computes, and reaches no file, network, device or Python."""
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(operator)
    if known is None:
        return False
    return operator in STATEFUL or (not known.is_stateful and operator not in OUTSIDE)


if __name__ == "__main__":
    work(convert)
