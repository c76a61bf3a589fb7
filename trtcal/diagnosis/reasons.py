"""Why nodes lost the precision that was asked: first what the log says, then what the graph shows."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import onnx

from trtcal.buildlog import RULES, Outcome
from trtcal.buildlog.layers import nodes_in_name
from trtcal.diagnosis.from_log import Placed
from trtcal.diagnosis.structure import Fault, find_faults

MISSING_RANGE = "missing_range"
# What a log's event means for the node that it names; tensors are named by `uncalibrated` ones.
CAUSES = {
    "uncalibrated": MISSING_RANGE,
    "tactic_failed": "tactic_failed",
    "no_implementation": "no_kernel",
    "precision_constraint": "constraint",
    "fallback": "announced",
}
SLOWER = frozenset({"qdq_not_fused", "non_conforming_chosen"})  # the builder timed both
FIXES = {rule.name: rule.fix for rule in RULES}
KEPT = 5  # events for each name


class Mentions:
    """Which events of a log speak about a node: by its name, or by that of a tensor of its."""

    def __init__(self, events: Iterable[Placed]) -> None:
        self.by_name: dict[str, list[Placed]] = defaultdict(list)
        self.slower: list[Placed] = []
        for placed in events:
            self._note(placed)

    def _note(self, placed: Placed) -> None:
        event = placed[1]
        if event.fields.get("rule") in SLOWER and event.subject is None:
            self.slower.append(placed)
        if event.category not in CAUSES or event.subject is None:
            return
        for name in dict.fromkeys((event.subject, *nodes_in_name(event.subject))):
            if len(self.by_name[name]) < KEPT:
                self.by_name[name].append(placed)

    def of(self, node: str, tensors: Iterable[str] = ()) -> list[Placed]:
        """Return the events about a node, those about its tensors first."""
        about = [
            placed
            for name in tensors
            for placed in self.by_name.get(name, ())
            if placed[1].category == "uncalibrated"
        ]
        return about + [placed for placed in self.by_name.get(node, ()) if placed not in about]


def explain(
    outcomes: Sequence[Outcome], proto: onnx.ModelProto, mentions: Mentions
) -> tuple[Outcome, ...]:
    """Return the outcomes with reason, hint and cause for those lost, as far as these are known.

    A line of the log that names the node or a tensor of its counts most, then the structure of its
    Q/DQ. What a backend said before stays where neither knows anything.
    """
    faults = find_faults(proto)
    tensors = tensors_of(proto)
    return tuple(
        _explained(outcome, mentions.of(outcome.node, tensors.get(outcome.node, ())), faults)
        if outcome.is_lost
        else outcome
        for outcome in _with_slower(outcomes, mentions)
    )


def tensors_of(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Return node -> the tensors that it reads and writes."""
    return {node.name: (*node.input, *node.output) for node in proto.graph.node}


def _explained(outcome: Outcome, events: list[Placed], faults: Mapping[str, Fault]) -> Outcome:
    if events:
        return _told(outcome, events[0])
    fault = faults.get(outcome.node)
    if fault is None or outcome.asked != "int8":
        return outcome
    reason = f"{_layer_part(outcome)}{fault.what}"
    return dataclasses.replace(outcome, reason=reason, hint=fault.fix, cause=fault.cause)


def _told(outcome: Outcome, placed: Placed) -> Outcome:
    source, event = placed
    message = event.message.partition("\n")[0][:300]
    rule = str(event.fields.get("rule"))
    return dataclasses.replace(
        outcome,
        reason=f"{_layer_part(outcome)}{source}, line {event.line}, says: {message}",
        hint=FIXES.get(rule, outcome.hint),
        cause="slower" if rule in SLOWER else CAUSES[event.category],
    )


def _with_slower(outcomes: Sequence[Outcome], mentions: Mentions) -> Iterable[Outcome]:
    """Say of INT8 that was lost without another cause that the builder found it slower, if it did."""
    for outcome in outcomes:
        if outcome.is_lost and outcome.asked == "int8" and mentions.slower and not outcome.cause:
            yield _told(outcome, mentions.slower[0])
        else:
            yield outcome


def _layer_part(outcome: Outcome) -> str:
    return f"it computes in {outcome.got}: "
