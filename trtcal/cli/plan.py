"""`trtcal plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtcal.cli.advice import advise
from trtcal.cli.options import (
    CalibratedOptions,
    JsonOptions,
    PairOptions,
    add_commands,
    argument,
    option,
)
from trtcal.cli.output import Columns, print_table, say

if TYPE_CHECKING:
    from trtcal.quantization import Plan, Planned


@click.group(epilog="Example: trtcal plan show mixed.json --model model.onnx")
def command() -> None:
    """Show, compare and suggest plans of precisions: which layer runs in which."""


class ModelOptions(JsonOptions):
    """The option of a command that can say what plans mean for a model."""

    model: Path | None = option("Model whose nodes the plan is applied to.")


class Show(ModelOptions, example="trtcal plan show mixed.json --model model.onnx"):
    """List the entries of PLAN, or with --model every node that it decides, and the deciding entry."""

    plan: Path = argument()

    def _run(self) -> None:
        from trtcal.quantization import read_plan

        plan, title = read_plan(self.plan), str(self.plan)
        if self.model is None:
            columns = {"entry": "{0}", "precision": "{1}"}
            rows = [*_entries(plan).items()]
            self.present({"plan": plan.to_document()}, lambda: print_table(rows, columns, title))
            return
        nodes = _nodes(plan, self.model)
        document = {"plan": plan.to_document(), "nodes": list(map(asdict, nodes))}
        self.present(document, lambda: _show_nodes(nodes, title))


def _nodes(plan: Plan, path: Path) -> tuple[Planned, ...]:
    from trtcal.model import load_model
    from trtcal.quantization import prepare, resolve

    return resolve(plan, prepare(load_model(path)))


def _show_nodes(nodes: Sequence[Planned], title: str) -> None:
    listed = [node for node in nodes if not node.follows]
    columns: Columns = {
        "node": "{node}",
        "op": "{op}",
        "precision": "{precision}",
        "decided by": lambda node: ": ".join(filter(None, (node.by, node.reason))),
    }
    print_table(listed, columns, title)
    for precision in ("int8", "fp16", "fp32"):
        own = [node for node in listed if node.precision == precision]
        say(f"{precision}: {len(own)} of {len(listed)} nodes{_share(own, nodes)}")
    say(f"{len(nodes) - len(listed)} other nodes follow their neighbours")


def _share(own: Sequence[Planned], nodes: Sequence[Planned]) -> str:
    parts = [("weights", [node.weights for node in nodes], [node.weights for node in own])]
    if all(node.macs is not None for node in nodes):
        every, mine = ([n.macs or 0 for n in each] for each in (nodes, own))
        parts.append(("multiply-accumulates", every, mine))
    known = ((what, sum(of), sum(all_)) for what, all_, of in parts if sum(all_))
    shares = [f"{100 * part / total:.3g} % of {what}" for what, part, total in known]
    return f", {' and '.join(shares)}" if shares else ""


class Diff(
    PairOptions, ModelOptions, example="trtcal plan diff int8.json mixed.json --model model.onnx"
):
    """List the differences from A to B: entries, or with --model the nodes that change precision."""

    def _run(self) -> None:
        from trtcal.quantization import read_plan

        plans = [read_plan(path) for path in (self.a, self.b)]
        if model := self.model:
            before, after = ({n.node: n.precision for n in _nodes(plan, model)} for plan in plans)
        else:
            before, after = map(_entries, plans)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        changes: list[dict[str, Any]] = [
            {"what": name, "before": before.get(name), "after": after.get(name)} for name in names
        ]
        columns = {"node" if model else "entry": "{what}", "before": "{before}", "after": "{after}"}

        def show_changes() -> None:
            print_table(changes, columns, self.title, "-")
            say(f"{len(changes)} differences")

        self.present({"changes": changes}, show_changes)


def _entries(plan: Plan) -> dict[str, str]:
    rules = {
        f"rule {number}: {rule}": f"{rule.precision}{f' ({rule.reason})' if rule.reason else ''}"
        for number, rule in enumerate(plan.rules, 1)
    }
    pairs = dict.fromkeys((f"second Q/DQ pair: {name}" for name in plan.second_qdq), "int8")
    return {**plan.layers, **rules, **pairs, "default": plan.default}


class Suggest(
    CalibratedOptions,
    example="trtcal plan suggest model.onnx --calibration calibration.json --data test.npz",
):
    """Write a plan that leaves in float the layers of MODEL that must not be quantized, if any.

    Groups of layers are tried in float on up to 16 samples: what leads to logarithms, divisions,
    roots and recurrent cells, the first and last layers, and each half of the network. A group stays
    in float if it brings 6 dB more at the outputs than as many other layers, beyond chance. Use data
    that the ranges were not chosen from.
    """

    precision: Literal["int8", "fp8"] = option("Precision of the other layers.", default="int8")
    gpu: str = option("GPU to estimate times for.", default="t4", metavar="NAME|FILE")
    output: Path = option("JSON file for the plan.", "-o", default=Path("plan.json"))

    def _run(self) -> None:
        from trtcal.evaluate.fragile import find_fragile
        from trtcal.quantization import Plan, write_plan
        from trtcal.ranges import Calibration

        _, prepared, dataset = self.open_all()
        table, plan = Calibration.read(self.ranges), Plan(self.precision)
        result = find_fragile(prepared, table, dataset, plan, self.gpu)
        document = write_plan(self.output, result.plan)
        self.present(document, lambda: say(result.sentence), self.output)
        model = self.model or self.config.model
        advise(self, "quantize", model, "--calibration", self.ranges, "--plan", self.output)


add_commands(command, Show, Diff, Suggest)
