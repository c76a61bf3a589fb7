"""Run the passes over a model, in their order, and hold each to what it declares."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from trtcal.errors import InputError, some
from trtcal.model.graph import MIN_OPSET, STANDARD, export_model, fingerprint, in_order, is_op
from trtcal.model.model import Model, checked
from trtcal.model.ops import CONVOLUTIONS
from trtcal.model.passes import base
from trtcal.model.passes.base import NAMED, BrokenPassError, NotApplicable, Pass, PassRecord, State
from trtcal.model.passes.batchnorm import SCALES, why_kept
from trtcal.model.passes.bfloat16 import FLOAT32
from trtcal.model.passes.codes import CODES, SYMMETRIC
from trtcal.model.passes.constants import BRANCHES, CONSTANTS, is_constant
from trtcal.model.passes.functions import FUNCTIONS
from trtcal.model.passes.reading import read_graph
from trtcal.model.passes.redundant import CASTS, IDENTITIES, NEUTRALS, ROUNDING_CASTS, TRANSPOSES
from trtcal.model.passes.rounding import ROUNDING, find_chains
from trtcal.model.passes.scalars import SCALARS
from trtcal.model.passes.upgrade import FP16, OPSET, TYPES

PASSES = (
    *(FUNCTIONS, FLOAT32, OPSET, TYPES, FP16, ROUNDING, CONSTANTS, BRANCHES, TYPES),
    *(IDENTITIES, NEUTRALS, CASTS, ROUNDING_CASTS, TRANSPOSES, SCALES, SCALARS, CODES, SYMMETRIC),
)
"""All passes, in the order in which they run; of computed shapes more types follow."""


@dataclass(frozen=True)
class Prepared:
    """A prepared model, what each pass did to it, and notes on what they left alone."""

    model: Model
    records: tuple[PassRecord, ...]
    notes: tuple[str, ...]

    @property
    def graph(self) -> str:
        """Digest of the graph that the passes made."""
        return self.records[-1].after


See = Callable[[gs.Graph, PassRecord | None], None]
"""Called with the graph before the first pass, without record, and after each pass."""


def prepare(model: Model, skip: Collection[str] = (), add: Collection[str] = ()) -> Model:
    """Return the model made ready for Q/DQ: see `prepare_with_record`."""
    return prepare_with_record(model, skip, add).model


def prepare_with_record(
    model: Model,
    skip: Collection[str] = (),
    add: Collection[str] = (),
    passes: Collection[Pass] = PASSES,
    see: See = lambda graph, record: None,
) -> Prepared:
    """Run the passes without those in `skip`, with those in `add` that run on request only.

    Tensors keep their names, so that ranges observed on the prepared model belong to the given one
    too; its fingerprint stays that of the given model, which calibrations are tied to. `InputError` if
    a name is unknown or a node can't be kept; `BrokenPassError`, a defect, if a pass breaks its word.
    """
    _check_names([*skip, *add], passes)
    graph = read_graph(model)
    records, before, state = [], fingerprint(graph), base.state_of(graph)
    see(graph, None)
    for stage in passes:
        is_wanted = stage.name not in skip and (stage.name in add or not stage.on_request)
        record = replace(_run(stage, graph, before, state, is_wanted), version=stage.version)
        records.append(record)
        see(graph, record)
        if record.after != before:
            before, state = record.after, base.state_of(graph)
    if not graph.nodes:
        hint = "give a model that uses its inputs"
        raise InputError(f"the outputs of model {model.path} do not depend on its inputs", hint)
    notes = notes_on(graph, model)
    proto = export_model(graph, model.proto)
    with _blaming(passes, records):
        prepared = checked(replace(model, proto=proto))
    return Prepared(prepared, tuple(records), notes)


@contextmanager
def _blaming(passes: Iterable[Pass], records: Sequence[PassRecord]) -> Iterator[None]:
    """Name the scripts whose passes changed a model that no longer holds: their input did."""
    changed = {record.name for record in records if record.changes}
    scripts = {stage.script for stage in passes if stage.script and stage.name in changed}
    try:
        yield
    except InputError as error:
        if not scripts:
            raise
        names = ", ".join(sorted(scripts))
        hint = "correct these passes, or leave them out"
        raise InputError(f"{names}: after these passes {error.message}", hint) from error


def _check_names(names: Collection[str], passes: Collection[Pass]) -> None:
    known = [stage.name for stage in passes]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise InputError(f"{name!r} is not a preparation pass", hint)


def _run(stage: Pass, graph: gs.Graph, before: str, state: State, is_wanted: bool) -> PassRecord:
    why = stage.before(graph) if is_wanted else ON_REQUEST if stage.on_request else AS_ASKED
    if why is not None:
        return PassRecord(stage.name, before, before, 0, why)
    seen = base.interface(graph)
    try:
        changes = stage.apply(graph)
    except NotApplicable as reason:
        if fingerprint(graph) != before:
            raise _broken(stage, "it reported a skip and changed the graph") from reason
        return PassRecord(stage.name, before, before, 0, str(reason))
    # those of a script may change arrays in place
    is_same = not stage.script and base.state_of(graph)[0] == state[0]
    after = before if is_same else fingerprint(in_order(graph))
    if base.interface(graph) != seen and not stage.retypes:
        raise _broken(stage, "an input or output of the graph changed")
    if after != before and not changes:
        raise _broken(stage, "it changed the graph and counted no change")
    if why := (None if is_same else base.sound(graph)) or stage.after(graph):
        raise _broken(stage, why)
    return PassRecord(stage.name, before, after, changes)


ON_REQUEST, AS_ASKED = "only on request", "skipped on request"
"""Why a pass was skipped that nobody asked for, or that somebody asked to skip."""


def _broken(stage: Pass, how: str) -> Exception:
    if stage.script:
        return InputError(f"pass {stage.name!r} of {stage.script}: {how}", "correct the pass")
    return BrokenPassError(f"pass {stage.name!r} broke its contract: {how}")


def notes_on(graph: gs.Graph, source: Model) -> tuple[str, ...]:
    """Return one sentence for each kind of thing in a prepared graph that was left alone."""
    called = {(function.domain, function.name) for function in source.proto.functions}
    nodes: dict[str, list[str]] = {}
    for node in graph.nodes:
        if why := _why_kept(node, called):
            nodes.setdefault(why, []).append(node.name)
    for chain in find_chains(graph):
        why = f"no Q/DQ take the place of its fake quantization: {chain.why_kept}"
        nodes.setdefault(why, []).append(chain.node)
    notes = [_sentence("node", names, why) for why, names in nodes.items()]
    if source.defaults:
        notes.append(_sentence("input", source.defaults, "its default value is used as a constant"))
    if graph.opset < MIN_OPSET:
        notes.append(f"opset {graph.opset} stays as it is, and Q/DQ need {MIN_OPSET}")
    return tuple(notes)


def _why_kept(node: gs.Node, called: set[tuple[str, str]]) -> str | None:
    if next(node.subgraphs(), None) is not None:
        return "the nodes in its subgraphs are not changed"
    if (node.domain or "", node.op) in called:
        return "the nodes in the function that it calls are not changed"
    if node.domain not in STANDARD:
        return "it is not an operator of ONNX, and is not changed"
    if is_op(node, "BatchNormalization"):
        makers = node.inputs[0].inputs
        why = why_kept(node) if any(is_op(maker, *CONVOLUTIONS) for maker in makers) else None
        return why and f"it is not folded: {why}"
    return "it does not depend on an input and could not be computed" if is_constant(node) else None


def _sentence(what: str, names: Iterable[str], said: str) -> str:
    return f"{what} {some(map(repr, names), NAMED)}: {said}"
