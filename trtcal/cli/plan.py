"""`trtcal plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from trtcal.quantization import Plan, Planned

model_option = click.option(
    "--model", type=click.Path(path_type=Path), help="Say what it means for this model's nodes."
)


@click.group(epilog="Example: trtcal plan show mixed.json --model model.onnx")
def command() -> None:
    """Show what a plan decides, and diff two of them."""


@command.command(epilog="Example: trtcal plan show mixed.json --model model.onnx")
@click.argument("plan", type=click.Path(path_type=Path))
@model_option
@json_option
def show(plan: Path, model: Path | None, as_json: bool) -> None:
    """List what PLAN says, or with --model every node that it decides, and what decided."""
    from trtcal.quantization import read_plan

    found = read_plan(plan)
    nodes = _nodes(found, model) if model else ()
    if as_json:
        listed = {"nodes": [node.to_document() for node in nodes]} if model else {}
        print_json({"plan": found.to_document(), **listed})
    elif model:
        _show_nodes(nodes, str(plan))
    else:
        rows = [(what, precision) for what, precision in _entries(found).items()]
        print_table(("entry", "precision"), rows, str(plan))


def _nodes(plan: Plan, path: Path) -> tuple[Planned, ...]:
    from trtcal.model import load_model
    from trtcal.quantization import prepare, resolve

    return resolve(plan, prepare(load_model(path)))


def _show_nodes(nodes: Sequence[Planned], title: str) -> None:
    listed = [node for node in nodes if not node.follows]
    rows = [
        (node.node, node.op, node.precision, ": ".join(filter(None, (node.by, node.reason))))
        for node in listed
    ]
    print_table(("node", "op", "precision", "decided by"), rows, title)
    for precision in ("int8", "fp16", "fp32"):
        own = [node for node in listed if node.precision == precision]
        say(f"{precision}: {len(own)} of {len(listed)} nodes{_share(own, nodes)}")
    say(f"{len(nodes) - len(listed)} other nodes follow their neighbours")


def _share(own: Sequence[Planned], nodes: Sequence[Planned]) -> str:
    parts = [("weights", [node.weights for node in nodes], [node.weights for node in own])]
    if all(node.macs is not None for node in nodes):
        parts.append(("multiplications", [n.macs or 0 for n in nodes], [n.macs or 0 for n in own]))
    shares = [
        f"{100 * sum(of) / sum(all_):.3g} % of {what}" for what, all_, of in parts if sum(all_)
    ]
    return f", {' and '.join(shares)}" if shares else ""


@command.command(epilog="Example: trtcal plan diff int8.json mixed.json --model model.onnx")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@model_option
@json_option
def diff(a: Path, b: Path, model: Path | None, as_json: bool) -> None:
    """Say what differs from A to B: entries, or with --model the nodes that change precision."""
    from trtcal.quantization import read_plan

    plans = [read_plan(path) for path in (a, b)]
    if model:
        before, after = ({n.node: n.precision for n in _nodes(plan, model)} for plan in plans)
    else:
        before, after = map(_entries, plans)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changes: list[dict[str, Any]] = [
        {"what": name, "before": before.get(name), "after": after.get(name)} for name in names
    ]
    if as_json:
        print_json({"changes": changes})
        return
    rows = [(one["what"], one["before"] or "-", one["after"] or "-") for one in changes]
    print_table(("node" if model else "entry", "before", "after"), rows, f"{a} -> {b}")
    say(f"{len(changes)} differ")


def _entries(plan: Plan) -> dict[str, str]:
    rules = {
        f"rule {number}: {rule}": f"{rule.precision}{f' ({rule.reason})' if rule.reason else ''}"
        for number, rule in enumerate(plan.rules, 1)
    }
    pairs = dict.fromkeys((f"second Q/DQ pair: {name}" for name in plan.second_qdq), "int8")
    return {**plan.layers, **rules, **pairs, "default": plan.default}
