"""The table of operators: every trait that a part of trtcal asks of an ONNX operator.

`ops.toml` has them in rows with their traits. To let trtcal treat another operator as one that only
moves values, or runs in INT8 between two layers, put it into a row with that word; each set below names
the operators of one trait and says what the trait promises.
Names of other domains than ONNX's own stand here too where they have no other meaning; where one
could, a caller asks `trtcal.model.graph.is_op`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtcal.config import read_toml

Operators = frozenset[str]

TABLE: Mapping[str, str] = read_toml(Path(__file__).with_suffix(".toml"))
"""Names of operators -> their traits, of both several with spaces between."""
TRAITS: dict[str, Operators] = {}
"""The operators of each trait."""
ROWS = [(name, *traits.split()) for names, traits in TABLE.items() for name in names.split()]


def _with(trait: str) -> Operators:
    TRAITS[trait] = frozenset(name for name, *traits in ROWS if trait in traits)
    return TRAITS[trait]


# What happens to values

MOVES = _with("moves")
"""Their output has all values of their input, in another shape or order."""
CARRIES = MOVES | {"Cast"}
FREE = _with("free")
"""At inference they give the same bytes under another shape or name, so that they cost nothing."""
CUTS = _with("cuts")
"""Their outputs are parts of their input."""
SELECTS = _with("selects")
"""Every value of their output is one of an input's, so that the largest range bounds it."""
PICKS = MOVES | CUTS | SELECTS | _with("picks")
"""Every value of their output is one of an input's, perhaps with another sign, a limit, or 0."""
POOLS = _with("pools")
"""They pool over a window."""
POOLINGS = POOLS | _with("global")
"""They pool, over a window or all places."""
MOVES_Q = MOVES | CUTS | _with("moves_q")
"""Their outputs hold values of their input, so that a Q or DQ can be moved over them."""
SHIFTS = MOVES | _with("shifts")
"""What is added to all values of their input's channel is added to their output's: f(x+c) = f(x)+c."""
SCALES = _with("scales")
"""What a channel is multiplied with, their output's is: f(s*x) = s*f(x) for s > 0."""
ACTIVATIONS = _with("activates")
"""They treat each value by itself, and not linearly."""
ELEMENTWISE = ACTIVATIONS | _with("elementwise")
"""They treat each value by itself, or with a constant of its channel."""
POINTWISE = ELEMENTWISE | _with("pointwise")
"""They treat each value by itself, or with others in its place."""
SPELLED = _with("spelled")
"""Around a Round they spell fake quantization out: they scale, shift or limit a value, or keep it."""
COMMUTES = _with("commutes")
"""Their two inputs can change places."""
RANDOM = _with("random")
"""Their outputs differ from run to run."""
SHAPE_ONLY = _with("shape_only")
"""They read no value, only a shape."""

# Weights and products

MULTIPLIES = _with("multiplies")
"""They multiply matrices or convolve: the layers for which INT8 pays and a plan decides."""
UNMULTIPLIED = _with("unmultiplied")
"""ONNX Runtime's own, of `com.microsoft`, that multiply no matrices: their work is their bytes."""
CONVOLUTIONS = _with("convolves")
"""They convolve."""
AFFINE = MULTIPLIES - {"Einsum"}
"""They multiply with a weight as second operand, whose axis of output channels is `output_axis`."""
AS_MATRIX = _with("matrix")
"""Their work is one product of a matrix a group: rows of the input times the weight's."""
FACTORS = _with("factors")
"""They can multiply each channel with a constant of its own."""
RECURRENT = _with("recurrent")
"""They run a cell over the steps of a sequence."""
ATTENDS = _with("attends")
"""They are attention as one operator."""
HEAVY = MULTIPLIES | RECURRENT
"""They do most of a network's work: a plan's default precision is theirs, others follow them."""

# Types

QDQ = _with("qdq")
"""They carry a quantization."""
INTEGER = _with("integer")
"""They compute on integers: ONNX Runtime has kernels for them, TensorRT does not take them."""
TYPED = QDQ | RANDOM | _with("typed")
"""An attribute or a scale says the type of their output, or it holds their values."""
SENSITIVE = _with("sensitive")
"""They add up many values, grow fast, or index by their values: float16 loses what matters."""

AMPLIFIES = _with("amplifies")
"""A small error of a small value, or of many steps, can become a large one: logs, divisions, roots."""

# What compilers make of them

INT8_LIGHT = _with("light")
"""TensorRT has INT8 kernels for them, which pay where the layers around them are INT8."""
EPILOGUE = _with("epilogue")
"""TensorRT computes them in the kernel of the layer before."""
QUANTIZES = _with("quantizes")
"""TensorRT-RTX computes them in kernels that quantize what they make, but in no product's."""
UNTYPED = FREE | _with("untyped")
"""Their kernels give what they read, in whatever type that is."""
ORT_FUSED = _with("ort_fused")
"""ONNX Runtime computes them in the blocked convolution before."""
UNPARSED = _with("unparsed")
"""The parser of TensorRT 8 to 11 and RTX refuses them (asked of RTX 1.7: `supports_operator`)."""
LACKED: Mapping[str, Operators] = {
    "onnxruntime": frozenset(),
    "tensorrt-rtx": UNPARSED | _with("no_rtx"),
    "tensorrt": UNPARSED,
}
"""What a backend has nothing for; of `no_rtx` RTX 1.7 has a parser, and no kernel or plug-in."""
FLOATED: Mapping[str, Operators] = {"tensorrt-rtx": _with("rtx_floats")}
"""What a backend computes in float with Q/DQ too (seen in layer lists of TensorRT-RTX 1.7.1)."""
NOT_QUANTIZED = {
    **dict.fromkeys(RECURRENT, "TensorRT computes it in float"),
    **dict.fromkeys(ATTENDS, "its products are within one operator, where no Q/DQ fit"),
    **dict.fromkeys(INTEGER, "TensorRT takes Q/DQ, but no integer operators"),
    **dict.fromkeys(_with("plugs"), "TensorRT runs it as a plug-in, in float"),
}
"""Why an operator that multiplies stays in float whatever a plan asks (seen in TensorRT-RTX's layer
lists: an LSTM's kernels read INT8 and compute in float)."""


def output_axis(op: str, transposed: bool = False) -> int:
    """Return the axis of output channels in the weight of a convolution, Gemm or MatMul.

    `transposed` is a Gemm's `transB`. A MatMul's is the last one: -1.
    """
    if op == "Gemm":
        return 0 if transposed else 1
    return {"Conv": 0, "ConvTranspose": 1, "MatMul": -1}[op]
