"""Why a layer runs in another precision than a node was asked in, as far as the layer list shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtcal.evidence.layers.layer import FLOATS, UNKNOWN, Layer, TensorInfo
from trtcal.formats import FORMATS, RANGED, WEIGHTS_ONLY

EXPANDED = "weights_expanded"


@dataclass(frozen=True)
class Loss:
    """Why a precision was lost, what to try, and the reason in one stable word where it has one."""

    reason: str
    hint: str
    cause: str | None = None


def loss_of(asked: str, layer: Layer, layers: Sequence[Layer]) -> Loss:
    """Return why a layer among `layers` computes a node in another precision than `asked`."""
    reason = f"its {layer.kind} layer runs in {layer.precision}"
    if layer.precision not in FLOATS:
        return Loss(reason, "remove the Q/DQ from the inputs of the node and build again")
    if asked in FLOATS:
        hint = f"cast the inputs of the node to {asked}, or allow {asked} in the build"
        return Loss(reason, hint)
    expander = None if asked == "int8" else expander_of(asked, layer, layers)
    if asked in WEIGHTS_ONLY:
        return _of_weights(reason, asked, layer, expander)
    if expander is not None:
        return _of_expanded(reason, asked)
    return _of_operands(reason, asked, layer)


def expander_of(asked: str, layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    """Return the layer that reads weights in the format asked and writes them in float for `layer`."""
    stored, read = FORMATS[asked].listed, {one.name for one in layer.inputs if one.name}
    return next((one for one in layers if _writes_float(one, read) and _reads(one, stored)), None)


def _writes_float(layer: Layer, wanted: set[str]) -> bool:
    written = any(one.name in wanted and one.dtype in FLOATS for one in layer.outputs)
    return written and not layer.is_heavy


def _reads(layer: Layer, dtype: str) -> bool:
    return any(one.dtype == dtype for one in layer.constants)


def _of_weights(reason: str, asked: str, layer: Layer, expander: Layer | None) -> Loss:
    """Say why a product does not read weights of four bits itself."""
    if expander is None:
        hint = "check in the layer list that the weights have Q/DQ: `trtcal layers show`"
        return Loss(f"{reason}: no kernel before it reads {asked.upper()} weights", hint)
    what = (
        f"{reason}: a kernel of its own expands its {asked.upper()} weights first. They are stored in "
        "4 bits: the file is smaller and needs less memory at rest, the product is no faster"
    )
    if FORMATS[asked].named_by_weights and any(map(_is_one_block, expander.constants)):
        hint = "give the matrix two blocks or more: a block size below its summed axis"
        return Loss(f"{what}. The matrix has one block a column", hint, EXPANDED)
    faster = " or ".join(reversed(RANGED))
    hint = f"for a faster product ask for {faster}; keep it where the size of the file counts"
    return Loss(what, hint, EXPANDED)


def _is_one_block(tensor: TensorInfo) -> bool:
    return tensor.dtype in FLOATS and 1 in tensor.shape and max(tensor.shape) > 1


def _of_expanded(reason: str, asked: str) -> Loss:
    return Loss(
        f"{reason}: a kernel of its own expands its {asked.upper()} weights first, and the Q/DQ of its "
        "input only round",
        f"leave the node in float: this builder has no {asked.upper()} kernel for it",
        EXPANDED,
    )


def _of_operands(reason: str, asked: str, layer: Layer) -> Loss:
    """Say why a product whose both operands should be narrow is one of floats."""
    first = layer.inputs[0].dtype if layer.inputs else UNKNOWN
    said = asked.upper()
    if first == asked:
        return Loss(
            f"{reason}: it converts the {said} operands to float first",
            "put the weight scales on the output channel axis, or use one scale for all weights",
        )
    if any(one.dtype == asked for one in (*layer.inputs[1:], *layer.constants)):
        return Loss(
            f"{reason}: only its weights are {said}",
            "quantize the input too: put Q/DQ on both operands, directly before the node",
        )
    return Loss(
        f"{reason}: its input arrives as {first}",
        "check that Q/DQ comes directly before both operands and that weight scales are on the axis "
        f"of the output channels; this backend may have no {said} kernel for the node",
    )
