"""The table of operators: every trait that a part of trtcal asks of an ONNX operator.

An operator stands in one row, with its traits. To let trtcal treat another operator as one that only
moves values, or runs in INT8 between two layers, add the word to its row; each set below names the
operators of one trait and says what the trait promises. Names of other domains than ONNX's own stand
here too where they have no other meaning; where one could, a caller asks `trtcal.model.graph.is_op`.
"""

from __future__ import annotations

from collections.abc import Mapping

Operators = frozenset[str]

TABLE = """
Abs                               bounded pointwise
Add                               light epilogue quantizes elementwise commutes spelled
AffineGrid                        unparsed
Attention                         attends
AveragePool                       bounded pools scales untyped
BatchNormalization                factors light epilogue elementwise
Bernoulli                         random unparsed
BiasAdd                           unmultiplied
BiasDropout                       unmultiplied
BiasGelu                          unmultiplied
BiasSoftmax                       unmultiplied
BiasSplitGelu                     unmultiplied
BitCast                           unparsed
BitShift                          unparsed
BitwiseAnd                        unparsed
BitwiseNot                        unparsed
BitwiseOr                         unparsed
BitwiseXor                        unparsed
Cast                              typed spelled pointwise
CastLike                          typed
CenterCropPad                     unparsed
Clip                              light epilogue activates ort_fused spelled
Col2Im                            unparsed
Compress                          unparsed
Concat                            selects untyped picks
ConcatFromSequence                unparsed
Constant                          typed
ConstantOfShape                   typed
Conv                              multiplies convolves matrix
ConvInteger                       integer unparsed
ConvTranspose                     multiplies convolves rtx_floats
Cos                               unit sensitive pointwise
CumProd                           unparsed
CumSum                            sensitive
DecoderMaskedMultiHeadAttention   attends
DeformConv                        no_rtx plugs
DepthToSpace                      bounded picks
DequantizeLinear                  qdq
Det                               unparsed
DFT                               unparsed
Div                               quantizes elementwise spelled
Dropout                           free shifts scales
DynamicQuantizeLinear             unparsed
Einsum                            multiplies
Elu                               epilogue quantizes activates
EmbedLayerNormalization           unmultiplied
Equal                             pointwise
Erf                               unit activates pointwise
Exp                               sensitive pointwise
Expand                            bounded picks
EyeLike                           typed
FastGelu                          unmultiplied
Flatten                           moves free
Gather                            cuts bounded
GatherElements                    bounded
GatherND                          bounded
Gelu                              bounded quantizes activates
Gemm                              multiplies matrix
GlobalAveragePool                 bounded shifts scales untyped global
GlobalMaxPool                     bounded shifts scales picks global
Greater                           pointwise
GridSample                        sensitive
GroupNorm                         unmultiplied
GroupNormalization                sensitive
GroupQueryAttention               attends
GRU                               recurrent
HardSigmoid                       unit light epilogue quantizes activates ort_fused
HardSwish                         bounded light epilogue quantizes activates
Identity                          moves free scales elementwise spelled
ImageDecoder                      unparsed
InstanceNormalization             sensitive
LayerNormalization                factors quantizes sensitive
LeakyRelu                         scales light epilogue activates ort_fused
Less                              pointwise
Log                               sensitive pointwise
LogSoftmax                        sensitive
LpNormalization                   sensitive
LpPool                            sensitive
LRN                               sensitive
LSTM                              recurrent
MatMul                            multiplies matrix
MatMulInteger                     integer unparsed
MatMulIntegerToFloat              integer
Max                               selects spelled pointwise
MaxPool                           bounded pools shifts scales untyped picks
MaxRoiPool                        unparsed
MaxUnpool                         unparsed
MeanVarianceNormalization         sensitive
MelWeightMatrix                   unparsed
Min                               selects spelled pointwise
Mish                              bounded quantizes activates
Mul                               factors light epilogue quantizes elementwise commutes spelled
MultiHeadAttention                attends
Multinomial                       random unparsed
Neg                               bounded pointwise
NhwcMaxPool                       unmultiplied
NonMaxSuppression                 no_rtx
NonZero                           no_rtx
Not                               pointwise
Optional                          unparsed
OptionalGetElement                unparsed
OptionalHasElement                unparsed
PackedMultiHeadAttention          attends
Pad                               untyped picks
Pow                               elementwise sensitive
PRelu                             light epilogue activates
QAttention                        attends
QGemm                             integer
QLinearAdd                        unmultiplied
QLinearAveragePool                unmultiplied
QLinearConv                       integer unparsed
QLinearGlobalAveragePool          unmultiplied
QLinearLeakyRelu                  unmultiplied
QLinearMatMul                     integer unparsed
QLinearMul                        unmultiplied
QLinearSigmoid                    unmultiplied
QLinearSoftmax                    unmultiplied
QuantizeLinear                    qdq
QuickGelu                         unmultiplied
RandomNormal                      random
RandomNormalLike                  random
RandomUniform                     random
RandomUniformLike                 random
Reciprocal                        sensitive pointwise
ReduceL1                          sensitive
ReduceL2                          sensitive
ReduceLogSum                      sensitive
ReduceLogSumExp                   sensitive
ReduceMax                         bounded shifts
ReduceMean                        bounded shifts sensitive
ReduceMin                         bounded
ReduceProd                        sensitive
ReduceSum                         sensitive
ReduceSumSquare                   sensitive
RegexFullMatch                    unparsed
Relu                              bounded scales light epilogue activates ort_fused
Reshape                           moves free
RMSNormalization                  sensitive
RNN                               recurrent
RoiAlign                          sensitive no_rtx
RotaryEmbedding                   unmultiplied
Round                             pointwise
Selu                              quantizes
SequenceAt                        unparsed
SequenceConstruct                 unparsed
SequenceEmpty                     unparsed
SequenceErase                     unparsed
SequenceInsert                    unparsed
SequenceLength                    unparsed
SequenceMap                       unparsed
Shape                             shape_only
Sigmoid                           unit light epilogue quantizes activates ort_fused
Sign                              pointwise
SimplifiedLayerNormalization      unmultiplied
Sin                               unit sensitive pointwise
Size                              shape_only
SkipGroupNorm                     unmultiplied
SkipLayerNormalization            unmultiplied
SkipSimplifiedLayerNormalization  unmultiplied
Slice                             cuts bounded
Softmax                           unit sensitive
Softplus                          quantizes activates
Softsign                          unit
SpaceToDepth                      bounded picks
Split                             cuts bounded
SplitToSequence                   unparsed
Sqrt                              pointwise
Squeeze                           moves free
StringConcat                      unparsed
StringNormalizer                  unparsed
StringSplit                       unparsed
Sub                               epilogue quantizes elementwise spelled
Sum                               epilogue pointwise
Tan                               sensitive
Tanh                              unit epilogue quantizes activates ort_fused
TfIdfVectorizer                   unparsed
Tile                              bounded picks
Transpose                         moves untyped
Unique                            unparsed
Unsqueeze                         moves free
Where                             pointwise
"""

TRAITS: dict[str, Operators] = {}
"""The operators of each trait."""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


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
PICKS = MOVES | CUTS | _with("picks")
"""Their outputs hold values of their input, so that a Q or DQ can be moved over them."""
SELECTS = _with("selects")
"""Every value of their output is one of an input's, so that the largest range bounds it."""
BOUNDED = MOVES | _with("bounded")
"""Their outputs have no larger magnitudes than their first input."""
WITHIN_ONE = _with("unit")
"""Their outputs have magnitudes of 1 at most."""
POOLS = _with("pools")
"""They pool over a window."""
POOLINGS = POOLS | _with("global")
"""They pool, over a window or all places."""
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
