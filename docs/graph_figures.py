"""The figures that show graphs: Q/DQ, the compiler's kernels, fingerprints and checkpoints."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from matplotlib.figure import Figure
from onnx import numpy_helper

import trtcal
from docs.compiled import RECORD, TARGETS, residual_block, write
from docs.drawing import (
    BLUE,
    BROWN,
    GRAY,
    PALE_BLUE,
    PALE_BROWN,
    SMALL,
    WIDTH,
    arrow,
    beside,
    box,
    drawn,
    plain_axes,
)
from trtcal.config import read_config
from trtcal.model import load_model
from trtcal.model.passes import prepare_with_record
from trtcal.pipeline.own_passes import passes_of
from trtcal.reporting.svg import MUTED
from trtcal.wings.forensics.checkpoints import GraphTables, checkpoints_of
from trtcal.wings.forensics.merkle import table_of

REGRESSION = Path(__file__).parent.parent / "samples" / "regression"
STEP = 0.36  # inches from one node of a column to the next
Node = tuple[str, str, tuple[int, ...]]
"""A node's label, its fill, and the rows that it reads."""


@functools.cache
def record() -> Any:
    """Return what the compiler made, see docs/compiled.py."""
    return json.loads(RECORD.read_text())


@functools.cache
def block() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the residual block in float and quantized."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = write(residual_block(), Path(folder))
        quantized = trtcal.quantize(model, trtcal.calibrate(model, data, "minmax"))
    return residual_block().proto(), quantized.proto


LABELS = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}


def rows_of(proto: onnx.ModelProto) -> list[Node]:
    """Return the nodes that compute on activations, each with the rows that it reads; row 0 is x."""
    constants = {one.name for one in proto.graph.initializer}
    row_of, rows = {"x": 0}, [("x", GRAY, ())]
    for node in proto.graph.node:
        read = tuple(row_of[name] for name in node.input if name in row_of)
        if not read or node.input[0] in constants:
            continue  # Q/DQ of weights
        name = f" {node.name.partition('_')[0]}" if node.op_type == "Conv" else ""
        label = LABELS.get(node.op_type, node.op_type + name)
        rows.append((label, PALE_BLUE if label in LABELS.values() else GRAY, read))
        row_of |= dict.fromkeys(node.output, len(rows) - 1)
    return rows


def _draw_rows(axes: Any, rows: Sequence[Node], x: float, title: str) -> None:
    axes.text(x, 0.2, title, ha="center", fontweight="bold")
    for row, (label, fill, read) in enumerate(rows):
        y = 0.55 + row * STEP
        box(axes, (x, y), label, 0.45 if fill == PALE_BLUE else 0.95, fill)
        for source in read:
            is_int8 = rows[source][0] == "Q"
            if source == row - 1:
                arrow(axes, (x, y - STEP + 0.13), (x, y - 0.13), is_int8)
            else:
                half = 0.23 if rows[source][1] == PALE_BLUE else 0.48
                beside(axes, (x + half, x + 0.48), (y - (row - source) * STEP, y), is_int8)


def qdq_graph() -> str:
    """Draw a residual block before and after Q/DQ were put in."""
    before, after = (rows_of(one) for one in block())

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        _draw_rows(axes, before, 1.15, "float")
        _draw_rows(axes, after, 3.6, "with Q/DQ")

    return drawn(0.75 + STEP * len(after), draw)


def _kernel(layer: Mapping[str, Any]) -> tuple[str, str]:
    """Return a kernel's label and its fill, by what it reads first."""
    convolves = layer["kind"] == "correlation"
    nodes = [one.partition("_")[0] for one in layer["nodes"] if len(one) > 1 or convolves]
    names = " ".join(dict.fromkeys([*nodes, *([] if convolves else ["kernel"])]))
    flow = f"{'+'.join(sorted(set(layer['reads'])))} > {'+'.join(layer['writes'])}"
    fill = {"int8": PALE_BLUE, "fp16": GRAY}.get(layer["reads"][0], PALE_BROWN)
    return f"{'conv ' if convolves else ''}{names}\n{flow}", fill


def qdq_kernels() -> str:
    """Draw the kernels that the compiler made of the residual block under three plans."""
    plans = record()["block"]
    tallest = max(len(one["layers"]) for one in plans.values())

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        for column, (name, plan) in enumerate(plans.items()):
            x = WIDTH * (2 * column + 1) / 6
            title = name.replace(", ", ",\n")
            axes.text(x, 0.27, title, ha="center", va="center", fontweight="bold")
            for row, layer in enumerate(plan["layers"]):
                label, fill = _kernel(layer)
                box(axes, (x, 0.78 + 0.56 * row), label, 1.62, fill)
            total = f"{plan['bytes'] / 1e3:,.0f} kB"
            axes.text(x, 0.78 + 0.56 * tallest, total, ha="center", va="center")

    return drawn(1.0 + 0.56 * tallest, draw)


def fallbacks_operators() -> str:
    """Draw what operators that are asked in INT8 get from the compiler, by target."""
    fills = {
        "int8": (PALE_BLUE, "INT8"),
        "fp32": (PALE_BROWN, "float"),
        "float": (PALE_BROWN, "float"),
    }

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        for column, target in enumerate(TARGETS):
            axes.text(2.05 + 0.85 * column, 0.2, target, ha="center", fontweight="bold")
        for row, (name, got) in enumerate(record()["operators"].items()):
            y = 0.52 + 0.34 * row
            axes.text(0.05, y, name, va="center")
            for column, target in enumerate(TARGETS):
                fill, word = fills.get(got[target], (GRAY, "no engine"))
                box(axes, (2.05 + 0.85 * column, y), word, 0.8, fill)

    return drawn(0.5 + 0.34 * len(record()["operators"]), draw)


def fallbacks_bytes() -> str:
    """Draw the bytes that the kernels of the residual block move under three plans."""
    plans = record()["block"]

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.3, 0.25, 0.66, 0.72))
        for row, plan in enumerate(plans.values()):
            size, count = plan["bytes"] / 1e6, len(plan["layers"])
            axes.barh(row, size, color=(MUTED, BLUE, BROWN)[row], height=0.55)
            axes.text(
                size + 0.02, row, f"{size:.2f} MB, {count} kernels", va="center", fontsize=SMALL
            )
        axes.set_yticks(range(len(plans)), [one.replace(", ", ",\n") for one in plans])
        axes.set(xlim=(0, 2.1), ylim=(2.5, -0.5), xlabel="MB that the kernels read and write")

    return drawn(2.2, draw)


def _with_other_weight(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the block with one bit changed in a weight of convolution b."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    weight = next(node for node in changed.graph.node if node.name == "b").input[1]
    tensor = next(one for one in changed.graph.initializer if one.name == weight)
    values = numpy_helper.to_array(tensor).copy()
    values.reshape(-1).view(np.int32)[0] ^= 1
    tensor.CopyFrom(numpy_helper.from_array(values, weight))
    return changed


def fingerprints_merkle() -> str:
    """Draw each node's fingerprint before and after one bit of one weight changed."""
    before = residual_block().proto()
    tables = [table_of(before), table_of(_with_other_weight(before))]
    rows = list(zip(tables[0].names, *[one.column("content") for one in tables], strict=True))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        for x, title in ((2.2, "before"), (4.2, "one bit of b changed")):
            axes.text(x, 0.2, title, ha="center", fontweight="bold")
        reads = [one[2] for one in rows_of(before)][1:]
        for row, (name, old, new) in enumerate(rows):
            y = 0.55 + 0.42 * row
            axes.text(0.85, y, name.partition("_")[0], ha="right", va="center")
            for x, digest, fill in (
                (2.2, old, GRAY),
                (4.2, new, GRAY if old == new else PALE_BROWN),
            ):
                box(axes, (x, y), digest[:8] + ("" if fill == GRAY else " *"), 1.1, fill)
                _edges(axes, x, y, row, reads[row])

    return drawn(0.6 + 0.42 * len(rows), draw)


def _edges(axes: Any, x: float, y: float, row: int, reads: Sequence[int]) -> None:
    """Draw what a node of the fingerprint figure reads; row 0 of `reads` is the input."""
    for source in reads:
        if source == row and row:
            arrow(axes, (x, y - 0.29), (x, y - 0.13), False)
        elif source:
            beside(axes, (x + 0.55, x + 0.55), (y - 0.42 * (row - source + 1), y), False)


@functools.cache
def chains() -> list[list[tuple[str, str]]]:
    """Return pass and digest of every checkpoint, with both versions of the sample's passes."""
    model = load_model(REGRESSION / "regression.onnx")
    found = []
    for name in ("good.toml", "bad.toml"):
        config = read_config(REGRESSION / name).trusting(True)
        graphs = GraphTables()
        made = prepare_with_record(model, passes=passes_of(config), see=graphs.see)
        found.append([(one.name, one.after) for one in checkpoints_of(made, graphs.tables)])
    return found


def fingerprints_chain() -> str:
    """Draw two chains of checkpoints around the first pass that gave another output."""
    good, bad = chains()
    first = next(row for row in range(len(good)) if good[row] != bad[row])

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        for x, title in ((2.75, "version 1"), (4.45, "version 2")):
            axes.text(x, 0.2, title, ha="center", fontweight="bold")
        for place, row in enumerate(range(first - 2, first + 4)):
            y = 0.55 + 0.45 * place
            axes.text(0.03, y, f"{row + 1} {_short(good[row][0])}", va="center", fontsize=SMALL)
            for x, chain in ((2.75, good), (4.45, bad)):
                fill = GRAY if good[row] == bad[row] else PALE_BROWN
                is_other = chain is bad and fill != GRAY
                text = chain[row][1].removeprefix("sha256:")[:8] + (" *" if is_other else "")
                box(axes, (x, y), text, 1.15, fill if is_other else GRAY)
                if place:
                    arrow(axes, (x, y - 0.32), (x, y - 0.13), False)

    return drawn(0.6 + 0.45 * 6, draw)


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:24]}..."


GRAPHS: dict[str, Callable[[], str]] = {
    "qdq-graph": qdq_graph,
    "qdq-kernels": qdq_kernels,
    "fallbacks-operators": fallbacks_operators,
    "fallbacks-bytes": fallbacks_bytes,
    "fingerprints-merkle": fingerprints_merkle,
    "fingerprints-chain": fingerprints_chain,
}
