"""Writes a model with Q/DQ as a PyTorch module: code with one line a node, and its weights.

The code has nothing of the model but numbers, identifiers of our own, and names inside of literals.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtcal.documents import together, write_npz, write_text
from trtcal.errors import InputError, __version__, some
from trtcal.model.files import OnnxFile, array_of, attribute_of, write_onnx
from trtcal.model.graph import STANDARD
from trtcal.model.model import along
from trtcal.quantization import QuantizedModel
from trtcal.wings.training.layout import DEQUANTIZE, QUANTIZE, Array, Layout, Quantizer

LARGEST_INLINE = 16  # integers of a constant that stands in the code
INSIDE = 0.49  # of a step: a weight that far from its integer is rounded to it
HEADER = '''"""{title}, with the Q/DQ of {file} as fake quantization.

Written by `trtcal export torch` of trtcal {version}: see docs/guides/qat.md. `Network()` computes as
the model with Q/DQ, `Network(quantized=False)` as the float model; `save_trained(network, path)`
writes what `trtcal import {file} PATH` reads.
"""
'''
CLASS = '''

class Network(QuantizedNetwork):
    """The network, with inputs and outputs as in the ONNX model."""

    def __init__(self, quantized: bool = True) -> None:
        with np.load(Path(__file__).with_suffix(".weights.npz"), allow_pickle=False) as arrays:
            super().__init__(arrays, LAYOUT, quantized)

'''


Attributes = Mapping[str, tuple[Any, ...] | None]
"""The attributes of an operator, with the values that its function takes, None for all."""


def _source(name: str) -> str:
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


@cache
def operators() -> dict[str, Attributes]:
    """Return the functions that compute operators, read from their source: torch is not needed."""
    known = dict[str, Attributes]()
    for item in ast.parse(_source("operators")).body:
        if isinstance(item, ast.FunctionDef):
            names = *item.args.args, *item.args.kwonlyargs  # older opsets name inputs, such as axes
            known[item.name] = {each.arg: _choices(each) for each in names}
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            known[item.targets[0].id] = {}
    return known


def _choices(argument: ast.arg) -> tuple[Any, ...] | None:
    """Return the values of a parameter whose type is a Literal, None of another one."""
    kind = argument.annotation
    if not isinstance(kind, ast.Subscript) or ast.unparse(kind.value) != "Literal":
        return None
    values = ast.literal_eval(kind.slice)
    return values if isinstance(values, tuple) else (values,)


def function_name(operator: str) -> str:
    """Return the function of an operator: `ConvTranspose` is `conv_transpose`, `Slice` is `slice_`."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", operator).lower()
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


def export_module(path: Path, quantized: QuantizedModel, floats: onnx.ModelProto) -> OnnxFile:
    """Write PATH with its weights beside it, and the model with Q/DQ that it computes as.

    `floats` is the float model, with nodes of the same names. `InputError` if an operator has no form
    in PyTorch here, or Q/DQ is not INT8.
    """
    layout = Layout(quantized.proto)
    code, beside = _Code(layout), path.with_suffix(".int8.onnx")
    body = [*code.lines()]
    with together():
        written = write_onnx(beside, quantized.proto)
        document = {"model": written.digest, **code.document()}
        write_npz(path.with_suffix(".weights.npz"), _arrays(layout, floats), compressed=False)
        write_text(path, "".join(_text(quantized.proto, beside, document, code.layers(), body)))
    return written


def _text(
    proto: onnx.ModelProto, beside: Path, document: Any, layers: Any, body: Iterable[str]
) -> Iterator[str]:
    title, file = (_plain(name) for name in (proto.graph.name or "A model", beside.name))
    yield HEADER.format(title=title, file=file, version=__version__)
    for name in ("quantizers", "operators"):
        yield from _copied(name)
    inputs = [value.name for value in proto.graph.input]
    yield f"\nINPUTS = {inputs!a}\nLAYOUT = {_literal(document)}\nLAYERS = {_literal(layers)}\n"
    yield CLASS
    yield from (f"    {line}\n" for line in body)


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)


def _copied(name: str) -> Iterator[str]:
    """Yield the code of a module without its docstring; `__future__` comes first in the file alone."""
    start = ast.parse(text := _source(name)).body[0].end_lineno or 0
    lines = [re.sub(r"  # (noqa|fmt).*", "", line) for line in text.splitlines()[start:]]
    if name != "quantizers":
        lines = [line for line in lines if not line.startswith("from __future__")]
    yield from (f"{line}\n" for line in lines)


def _literal(value: Mapping[str, Any]) -> str:
    """Return a dictionary as a literal in ASCII, one entry a line."""
    rows = "".join(f"    {key!a}: {item!a},\n" for key, item in value.items())
    return f"{{\n{rows}}}"


class _Code:
    """The forward pass of a layout as lines of Python."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.names = {name: f"self.{key}" for key, name in layout.constants.items()}
        self.inline = {name for name in self.names if _is_inline(layout.array(name))}
        self.known = dict[str, str]()
        self.numbers = count(1)
        _check_operators(layout)

    def document(self) -> dict[str, Any]:
        """Return the identifiers of what the network holds."""
        layout = self.layout
        kept = {key for key, name in layout.constants.items() if name not in self.inline}
        return {
            "weights": {key: part.axis for key, part in layout.weights.items()},
            "activations": [*layout.activations],
            "trained": [*layout.trained],
            "constants": sorted(kept - layout.trained.keys()),
        }

    def layers(self) -> dict[str, Any]:
        """Return for each quantized node the parts that `attach` puts around a layer."""
        nodes, sources = self.layout.nodes, self.layout.sources
        return {n.name: self._row(n) for n in nodes if any(name in sources for name in n.input)}

    def _row(self, node: onnx.NodeProto) -> dict[str, Any]:
        sources = [self.layout.sources.get(name) for name in node.input]
        weights = (key for key in sources if key in self.layout.weights)
        inputs = (key for key in sources if key in self.layout.activations)
        constants = {name: key for key, name in self.layout.trained.items()}
        adds = (other for other in self.layout.nodes if node.output[0] in other.input)
        is_matrix = node.op_type in ("MatMul", "Gemm")
        behind = next(adds, node) if node.op_type == "MatMul" else node
        biases = [constants[name] for name in behind.input if name in constants]
        return {
            "weight": next(weights, None),
            "input": next(inputs, None),
            "bias": biases[0] if biases and behind.op_type in ("Add", node.op_type) else None,
            "transposed": is_matrix and not attribute_of(node, "transB", 0),
        }

    def lines(self) -> Iterator[str]:
        """Yield the method `forward`."""
        graph = self.layout.proto.graph
        self.known |= {value.name: f"in{number}" for number, value in enumerate(graph.input)}
        inputs = ", ".join(f"{name}: Tensor" for name in self.known.values())
        yield f"def forward(self, {inputs}) -> Any:"
        for node in graph.node:
            if node.op_type == DEQUANTIZE:  # a weight, or what its Q made already
                weight = f"self.{self.layout.sources[node.output[0]]}()"
                self.known[node.output[0]] = self.known.get(node.input[0], weight)
            else:
                line = self._rounded(node) if node.op_type == QUANTIZE else self._call(node)
                yield f"    {line}  # {node.name!a}"
        yield f"    return {', '.join(self._value(value.name) for value in graph.output)}"

    def _rounded(self, node: onnx.NodeProto) -> str:
        source, key = self._value(node.input[0]), self.layout.sources[node.output[0]]
        return f"{self._new(node.output[0])} = self.{key}({source})"

    def _call(self, node: onnx.NodeProto) -> str:
        function = function_name(node.op_type)
        words = [self._value(name) for name in node.input]
        attributes = {item.name: _python(item) for item in node.attribute}
        if "num_outputs" in operators()[function]:
            attributes["num_outputs"] = len(node.output)
        words += [f"{name}={value!a}" for name, value in attributes.items()]
        results = [self._new(name) for name in node.output]
        return f"{', '.join(results)} = {function}({', '.join(words)})"

    def _new(self, name: str) -> str:
        self.known[name] = f"x{next(self.numbers)}"
        return self.known[name]

    def _value(self, name: str) -> str:
        """Return the expression of a tensor, None of an input that is left out."""
        if not name:
            return "None"
        if name in self.inline:
            return f"torch.tensor({self.layout.array(name).tolist()!r})"
        if name in self.names:
            return self.names[name]
        return self.known[name]


def _is_inline(array: Array) -> bool:
    return array.dtype == np.int64 and array.ndim < 2 and 0 < array.size <= LARGEST_INLINE


def _python(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check_operators(layout: Layout) -> None:
    """`InputError` with every operator that has no function, or not with these attributes."""
    refused = Counter(filter(None, map(_refusal, layout.nodes)))
    if refused:
        every = [f"{what} ({number} node{'s'[: number > 1]})" for what, number in refused.items()]
        raise InputError(
            f"no PyTorch form here for {some(every)}",
            "docs/guides/qat.md lists the operators; train the part of the model that has no others",
        )


def _refusal(node: onnx.NodeProto) -> str | None:
    """Return what of a node is not known, None if all of it is."""
    known = operators().get(function_name(node.op_type))
    if known is None or node.domain not in STANDARD:
        return node.op_type
    for attribute in node.attribute:
        value = _python(attribute)
        parts = value if isinstance(value, list) else [value]
        is_plain = isinstance(value, str) or all(map(_is_finite, parts))
        if attribute.name not in known or not is_plain:
            return f"{node.op_type} with {attribute.name}"
        choices = known[attribute.name]
        if choices is not None and value not in choices:
            return f"{node.op_type} with {attribute.name}={value}"
    return None


def _arrays(layout: Layout, floats: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    """Yield what the network starts from, and where the float model has other values, those."""
    inputs = {node.name: list(node.input) for node in floats.graph.node}
    weights = {tensor.name: tensor for tensor in floats.graph.initializer}
    floating = dict[str, Array]()
    for node in layout.nodes:
        for name, other in zip(node.input, inputs.get(node.name, []), strict=False):
            if other in weights:
                floating.setdefault(name, array_of(weights[other]))
    for key, part in layout.activations.items():
        yield f"{key}.scale", layout.array(part.scale)
    readers = {key: name for name, key in layout.sources.items()}
    for key, part in layout.weights.items():
        values = floating.get(readers[key], dequantized(layout, part))
        yield f"{key}.scale", layout.array(part.scale)
        yield f"{key}.values", started(layout, part, values)
        yield f"{key}.values.float", values
    for key, name in layout.constants.items():
        array = layout.array(name)
        other = floating.get(name, np.zeros_like(array) if key in layout.trained else array)
        yield key, array
        if not np.array_equal(array, other):
            yield f"{key}.float", other


def dequantized(layout: Layout, part: Quantizer) -> Array:
    """Return the float values of a quantized weight."""
    values = layout.array(part.values).astype(np.float32)
    return np.asarray(values * along(layout.array(part.scale), values.ndim, part.axis))


def started(layout: Layout, part: Quantizer, values: Array) -> Array:
    """Return the floats nearest to `values` that round to the integers of a quantized weight."""
    steps = layout.array(part.values).astype(np.float32)
    scale = along(layout.array(part.scale), steps.ndim, part.axis)
    low, high = (steps - INSIDE) * scale, (steps + INSIDE) * scale
    return np.asarray(np.clip(values, low, high), np.float32)
