"""Fix what is broken: only the passes that take out what breaks a pattern."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from trtcal.errors import GateFailed, InputError
from trtcal.evidence.fusion.blockers import PAIRS
from trtcal.evidence.fusion.check import Fusions
from trtcal.model import Model
from trtcal.model.graph import is_op
from trtcal.model.passes import Pass, PassRecord, prepare_with_record
from trtcal.model.passes.redundant import CASTS, IDENTITIES, ROUNDING_CASTS, TRANSPOSES, removal
from trtcal.model.passes.upgrade import TYPES
from trtcal.model.tensors import View

PASSES = (IDENTITIES, CASTS, ROUNDING_CASTS, TRANSPOSES)
ON_REQUEST = (ROUNDING_CASTS.name, PAIRS)


@dataclass(frozen=True)
class FixedModel:
    """A fixed model and what each pass did.

    If Q/DQ pairs are gone, `step` is the largest step of a Q/DQ pair on a computed value: what a value
    may move by, being rounded no more. Else it is None.
    """

    model: Model
    records: tuple[PassRecord, ...]
    step: float | None


def fix_fusions(model: Model, fusions: Fusions, add: Collection[str] = ()) -> FixedModel:
    """Return the model without what breaks its patterns, as far as passes can take it out.

    Passes that change values (`rounding-casts`, `inner-pairs`) run only if they are in `add`.
    `InputError` if a name in it is unknown, `GateFailed` if nothing can be fixed.
    """
    for name in add:
        if name not in ON_REQUEST:
            raise InputError(
                f"{name!r} fixes nothing on request", f"known: {', '.join(ON_REQUEST)}"
            )
    wanted = {one.fix for match in fusions.broken for one in match.breakers} - {None}
    wanted -= set(ON_REQUEST) - set(add)
    chosen = [one for one in PASSES if one.name in wanted]
    if CASTS in chosen or ROUNDING_CASTS in chosen:
        chosen.insert(0, TYPES)
    if PAIRS in wanted:
        chosen.append(without_pairs(_pairs(fusions)))
    names = [one.name for one in chosen if one.on_request]
    prepared = prepare_with_record(model, (), names, chosen)
    if not any(one.changes for one in prepared.records if one.name != TYPES.name):
        raise GateFailed("nothing can be fixed: nothing was written", _hint(fusions, add))
    moves = any(one.changes for one in prepared.records if one.name == PAIRS)
    return FixedModel(prepared.model, prepared.records, _largest_step(model) if moves else None)


def _largest_step(model: Model) -> float:
    view = View(model)
    places = (view.nodes[i] for i, op in enumerate(view.operators) if op == "QuantizeLinear")
    scales = (view.number(node.input[1]) for node in places if not view.is_constant(node.input[0]))
    return max((scale for scale in scales if scale is not None), default=0.0)


def _pairs(fusions: Fusions) -> set[str]:
    breakers = (one for match in fusions.broken for one in match.breakers)
    return {name for one in breakers if one.fix == PAIRS for name in one.nodes}


def _hint(fusions: Fusions, add: Collection[str]) -> str:
    fixes = {one.fix for match in fusions.broken for one in match.breakers}
    left = [name for name in ON_REQUEST if name in fixes and name not in add]
    if left:
        return f"what breaks a pattern goes with --add {left[0]}, which changes values"
    return "no pass takes out what breaks the patterns" if fusions.broken else "none is broken"


def without_pairs(nodes: Collection[str]) -> Pass:
    """Return the pass that takes out the Q/DQ pairs of which both nodes are named.

    It changes values: they are no longer rounded to a step of the pair, nor cut at its range.
    """

    def before_the_pair(node: gs.Node) -> gs.Tensor | None:
        if node.name not in nodes or not is_op(node, "DequantizeLinear"):
            return None
        makers = node.inputs[0].inputs
        if not makers or makers[0].name not in nodes or not is_op(makers[0], "QuantizeLinear"):
            return None
        return makers[0].inputs[0]

    purpose = "Take out Q/DQ pairs between parts that would be fused; values are rounded no more."
    return removal(PAIRS, purpose, before_the_pair, on_request=True)
