"""What each node got of what it was asked, over all optimization profiles of an engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trtcal.documents.overview import Shown
from trtcal.evidence.layers.layer import FLOATS, UNKNOWN, Layer, LayersByNode, is_quantize_step
from trtcal.formats import BY_LISTED, FORMATS, NARROW, PLANNED, RANGED, WEIGHTS_ONLY
from trtcal.model import Model
from trtcal.model.shapes import Shape
from trtcal.model.work import NodeWork, Work, count_work
from trtcal.quantization.coverage import Coverage, cover, kept_out, usual_sizes
from trtcal.quantization.qdq import quantization_record


@dataclass(frozen=True)
class Outcome(Shown):
    """What became of one ONNX node: `got` is what its kernel reads, one of `PLANNED`, or unknown.

    `reason` is None if the node got what was asked; `hint` says what to try if it did not; `cause` is
    the reason in one stable word (`wrong_axis`, `no_kernel`, ...) where it is known.
    """

    node: str
    asked: str
    got: str
    layer: str | None
    reason: str | None = None
    hint: str | None = None
    cause: str | None = None

    @property
    def is_met(self) -> bool:
        """Whether the node computes in the precision asked for."""
        return self.got == self.asked

    @property
    def is_lost(self) -> bool:
        """Whether it certainly computes in another one (`unknown` is neither met nor lost)."""
        return self.got not in (self.asked, UNKNOWN)


def check(precisions: Mapping[str, str], layers: Sequence[Layer]) -> tuple[Outcome, ...]:
    """Compare the precision that a plan asked for each ONNX node with what the layer list shows.

    A layer that computes (a convolution, a matrix product, a pooling) decides; of several that list
    the node, one in the precision asked, if any. What only copies, scales or rounds decides
    nothing. Nodes keep the order of `asked`.
    """
    index = LayersByNode(layers)
    return tuple(_outcome(node, precision, index) for node, precision in precisions.items())


def _outcome(node: str, precision: str, index: LayersByNode) -> Outcome:
    listing = [index.layers[number] for number in index.listing(node)]
    heavy = [layer for layer in listing if layer.is_heavy]
    computing = heavy or [layer for layer in listing if layer.is_pooling]
    deciding = [layer for layer in computing if layer.nodes[:1] == (node,)] or computing
    if not deciding:
        return _undecided(node, precision, listing, index.layers)
    layer = next((layer for layer in deciding if _answer(layer) == precision), deciding[0])
    return _decided(node, precision, layer, index.layers)


def _answer(layer: Layer) -> str:
    """Return a layer's precision by the name that plans have for it."""
    return BY_LISTED[layer.precision].name if layer.precision in BY_LISTED else layer.precision


def _decided(node: str, expected: str, layer: Layer, layers: Sequence[Layer]) -> Outcome:
    precision = _answer(layer)
    if precision == expected:
        return Outcome(node, expected, precision, layer.name)
    if precision not in PLANNED:
        reason = f"{layer.kind} layer, precision {precision}"
        return Outcome(node, expected, UNKNOWN, layer.name, reason, DETAILED)
    return Outcome(node, expected, precision, layer.name, *loss_of(expected, layer, layers))


DETAILED = "build with detailed profiling verbosity, so that the list has the type of every tensor"


def _undecided(
    node: str, precision: str, listing: Sequence[Layer], layers: Sequence[Layer]
) -> Outcome:
    opaque, hint = next((layer for layer in layers if layer.is_opaque), None), DETAILED
    layer = listing[0] if listing else opaque
    if listing and listing[0].is_opaque:
        reason = "inside a compiled subgraph whose kernels are not listed"
    elif listing:
        reason = f"only {listing[0].kind} layers list it, which do not multiply, convolve or pool"
        hint = "element-wise operations run inside fused kernels and have no precision of their own"
    elif opaque is not None:
        reason = "not in the layer list; it may be inside a compiled subgraph"
    elif not layers:
        reason = "there is no layer list"
    else:
        reason = "not found in the layer list: merged into another layer, or removed"
        rest = "one that affects no output is removed, which is fine"
        hint = f"find the layer that absorbed it; {rest}"
    return Outcome(node, precision, UNKNOWN, layer.name if layer else None, reason, hint)


PROFILE = re.compile(r" \[profile (\d+)\]")


def find_outcomes(
    precisions: Mapping[str, str], layers: Sequence[Layer], profiles: int
) -> tuple[Outcome, ...]:
    """Return each node's outcome, of several profiles that of the first in which it was lost.

    A list of several profiles has every layer once for each, with ` [profile 1]` in its name from
    the second on.
    """
    every = range(profiles)
    lists = ([x for x in layers if not x.is_heavy or _profile(x) == number] for number in every)
    outcomes_by_profile = (check(precisions, each) for each in lists)
    return tuple(map(_worst, zip(*outcomes_by_profile, strict=True)))


def _profile(layer: Layer) -> int:
    tag = PROFILE.search(layer.name)
    return int(tag[1]) if tag else 0


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    for number, outcome in enumerate(outcomes):
        if outcome.is_lost:
            where = f"in profile {number}, " if number else ""
            return dataclasses.replace(outcome, reason=f"{where}{outcome.reason}")
    return outcomes[0]


def built_coverage(
    model: Model, outcomes: Sequence[Outcome], sizes: Mapping[str, Shape] | None = None
) -> Coverage:
    """Return how much of a model's compute an engine runs in narrow formats, by what its nodes got.

    `sizes` are the shapes of inputs that the model leaves open.
    """
    record = quantization_record(model.proto)
    got = {outcome.node: outcome.got for outcome in outcomes}
    lost = {outcome.node: outcome.reason for outcome in outcomes if outcome.reason}
    work = count_work(model, {**usual_sizes(record), **(sizes or {})})
    return cover(work, got, kept_out(record) | lost, is_built=True)


LAYERS_COUNTED = (
    "kernels of the layer list are counted, those of a loop once; give the model to count nodes"
)


def layer_coverage(layers: Sequence[Layer]) -> Coverage:
    """Return how much of an engine's compute is in narrow formats, by its layer list alone.

    Layers that multiply and whose operands are not all listed are not counted, and named.
    """
    rows = ((layer, layer.macs if layer.is_heavy else 0) for layer in layers)
    nodes = tuple(NodeWork(x.name, x.kind, n, x.bytes_moved or 0, x.name) for x, n in rows)
    got = {layer.name: _answer(layer) for layer in layers}
    reasons = {layer.name: f"its {layer.kind} layer runs in {layer.precision}" for layer in layers}
    return cover(Work(nodes, {}, (LAYERS_COUNTED,)), got, reasons, is_built=True)


def narrow_formats(layers: Sequence[Layer]) -> set[str]:
    """Return the narrow formats that layers compute in which do more than copy, quantize or wait."""
    computing = (x for x in layers if not (x.is_reformat or x.is_idle or is_quantize_step(x)))
    return {_answer(layer) for layer in computing}.intersection(NARROW)


EXPANDED, EXPANDS = "weights_expanded", "a kernel of its own expands its {} weights first"


class Loss(NamedTuple):
    """Why a precision was lost, what to try, and the reason in one stable word where it has one."""

    reason: str
    hint: str
    cause: str | None = None


def loss_of(precision: str, layer: Layer, layers: Sequence[Layer]) -> Loss:
    """Return why a layer among `layers` computes a node in another precision than `asked`."""
    reason = f"its {layer.kind} layer runs in {layer.precision}"
    if layer.precision not in FLOATS:
        return Loss(reason, "remove the Q/DQ from the inputs of the node and build again")
    if precision in FLOATS:
        hint = f"cast the inputs of the node to {precision}, or allow {precision} in the build"
        return Loss(reason, hint)
    expander = None if precision == "int8" else expander_of(precision, layer, layers)
    if precision in WEIGHTS_ONLY:
        return _of_weights(reason, precision, layer, expander)
    if expander is None:
        return _of_operands(reason, precision, layer)
    what = f"{EXPANDS.format(precision.upper())}, and the Q/DQ of its input only round"
    hint = f"leave the node in float: this builder has no {precision.upper()} kernel for it"
    return Loss(f"{reason}: {what}", hint, EXPANDED)


def expander_of(precision: str, layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    """Return the layer that reads weights in the format asked and writes them in float for `layer`."""
    stored = FORMATS[precision].listed
    read = {tensor.name for tensor in layer.inputs if tensor.name}
    for other in layers:
        reads = any(constant.dtype == stored for constant in other.constants)
        floats = {output.name for output in other.outputs if output.dtype in FLOATS}
        if reads and read & floats and not other.is_heavy:
            return other
    return None


def _of_weights(reason: str, precision: str, layer: Layer, expander: Layer | None) -> Loss:
    if expander is None:
        hint = "check in the layer list that the weights have Q/DQ: `trtcal layers show`"
        return Loss(f"{reason}: no kernel before it reads {precision.upper()} weights", hint)
    what = (
        f"{reason}: {EXPANDS.format(precision.upper())}. They are stored in 4 bits: the file is "
        "smaller and needs less memory at rest, the product is no faster"
    )
    scales = (tensor.shape for tensor in expander.constants if tensor.dtype in FLOATS)
    is_one_block = any(1 in shape and max(shape) > 1 for shape in scales)
    if FORMATS[precision].named_by_weights and is_one_block:
        hint = "give the matrix two blocks or more: a block size below its summed axis"
        return Loss(f"{what}. The matrix has one block a column", hint, EXPANDED)
    faster = " or ".join(reversed(RANGED))
    hint = f"for a faster product ask for {faster}; keep it where the size of the file counts"
    return Loss(what, hint, EXPANDED)


def _of_operands(reason: str, precision: str, layer: Layer) -> Loss:
    first = layer.inputs[0].dtype if layer.inputs else UNKNOWN
    said = precision.upper()
    if first == precision:
        what = f"it converts the {said} operands to float first"
        hint = "put the weight scales on the output channel axis, or use one scale for all weights"
    elif any(operand.dtype == precision for operand in (*layer.inputs[1:], *layer.constants)):
        what = f"only its weights are {said}"
        hint = "quantize the input too: put Q/DQ on both operands, directly before the node"
    else:
        what = f"its input arrives as {first}"
        hint = (
            "check that Q/DQ comes directly before both operands and that weight scales are on the "
            f"axis of the output channels; this backend may have no {said} kernel for the node"
        )
    return Loss(f"{reason}: {what}", hint)
