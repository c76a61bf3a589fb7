"""Documents of the graph page for trials: two engines of a small network, and networks of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PRECISIONS = ("int8", "int8", "int8", "fp16", "fp32")
LAYER = ("LayerNorm", "MatMul", "Add", "Softmax", "MatMul", "Add", "Gelu", "Add")
LAYERS_OF_STAGE = 10

Json = dict[str, Any]


def overlays() -> list[Json]:
    """Return the overlays of a document: categories, a figure that is bad when low, and a sum."""
    return [
        {"key": "built", "title": "Precision built", "kind": "category"},
        {"key": "loss_db", "title": "SQNR", "kind": "number", "unit": "dB", "bad": "low"},
        {"key": "ms", "title": "Time", "kind": "number", "unit": "ms"},
        {"key": "missed", "title": "Missed", "kind": "number", "unit": ""},
    ]  # fmt: skip


def card(name: str, built: str) -> Json:
    """Return the card of a node, with a histogram and two ranges."""
    return {
        "facts": [["Tensor", name]],
        "why": f"{name} is built as {built}: its kernel has no INT8 tactic.",
        "command": f"trtcal layers show build --node '{name}'",
        "histogram": {
            "tensor": name,
            "bars": "zyxwvutsrqponmlkjihgfedcba9876543210",
            "top": 6.5,
            "ranges": [["minmax", 6.5], ["entropy", 2.75]],
        },
    }  # fmt: skip


def engine(title: str, names: Sequence[str], ops: Sequence[str], shift: int = 0) -> Json:
    """Return an engine that computes each node in a precision by its place; `shift` makes another."""
    count = len(names)
    built = [PRECISIONS[(at + shift * (at % 11 == 3)) % len(PRECISIONS)] for at in range(count)]
    built = [
        None if op in ("Input", "Output") else word for op, word in zip(ops, built, strict=True)
    ]
    return {
        "title": title,
        "estimated": True,
        "values": {
            "built": built,
            "requested": ["int8" if word else None for word in built],
            "missed": [int(word == "fp32") for word in built],
            "loss_db": [18.0 + at % 23 if word == "int8" else None for at, word in enumerate(built)],
            "share": [None] * count,
            "ms": [0.01 * (1 + at % 7) if word else None for at, word in enumerate(built)],
            "bytes": [1024 * (1 + at % 9) for at in range(count)],
            "clipped": [None] * count,
            "findings": [0] * count,
        },
        "layers": [],
        "copies": [],
        "islands": [],
        "cards": [card(name, word) if word else None for name, word in zip(names, built, strict=True)],
    }  # fmt: skip


def two_engines(names: Sequence[str] = ()) -> Json:
    """Return a small network with a branch, of which two engines differ; `names` replace its own."""
    ops = ["Input", "Conv", "Relu", "Conv", "Sigmoid", "Mul", "Add", "Gemm", "Output"]
    own = [f"/layer1/{op.lower()}{at}/{op}" for at, op in enumerate(ops)]
    own = [names[at] if at < len(names) else name for at, name in enumerate(own)]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5), (5, 6), (1, 6), (6, 7), (7, 8)]
    engines = [engine(f"{title} for sm86", own, ops) for title in ("int8-entropy", "int8-minmax")]
    for shown in engines:
        shown["layers"] = [
            {"title": "conv + relu", "kind": "conv", "precision": "int8", "nodes": [1, 2]}
        ]
        shown["copies"] = [{"title": "reformat", "from": 6, "to": 7, "ms": 0.004, "bytes": 2048}]
        shown["islands"] = [[4, 5]]
    engines[1]["values"]["built"][7] = "fp32"
    engines[1]["values"]["missed"][7] = 1
    return {
        "title": names[0] if names else "classifier",
        "subtitle": "Two engines of one network",
        "report": "report.html",
        "nodes": {
            "name": own, "op": ops, "block": [-1, 0, 0, 1, 1, 1, 0, -1, -1],
            "shape": ["1x64x56x56"] * len(ops),
        },
        "blocks": [
            {"title": names[-1] if names else "layer1", "parent": -1, "repeat": 1},
            {"title": "gate", "parent": 0, "repeat": 1},
        ],
        "edges": [[a, b, "1x64x56x56", "fp32" if b in (5, 8) else "int8"] for a, b in pairs],
        "engines": engines,
        "changes": {"7": ["The precision changes from INT8 to FP32."]},
        "overlays": overlays(),
    }  # fmt: skip


def nested(count: int) -> Json:
    """Return a network of about `count` nodes: stages of 10 layers of 8 nodes with skip edges."""
    names, ops, places, edges, blocks = ["image"], ["Input"], [-1], [], []
    stages = max(1, round(count / (len(LAYER) * LAYERS_OF_STAGE)))
    for stage in range(stages):
        blocks.append({"title": f"stage {stage}", "parent": -1, "repeat": LAYERS_OF_STAGE})
        above = len(blocks) - 1
        for layer in range(LAYERS_OF_STAGE):
            blocks.append({"title": f"layer {layer}", "parent": above, "repeat": 1})
            first = len(names)
            edges.append([first - 1, first + 2, "1x197x768", "fp16"])
            for at, op in enumerate(LAYER):
                edges.append(
                    [first + at - 1, first + at, "1x197x768", "int8" if at % 3 else "fp32"]
                )
                names.append(f"/encoder/stage{stage}/layer{layer}/{op.lower()}{at}/{op}")
            ops += LAYER
            places += [len(blocks) - 1] * len(LAYER)
            edges.append([first + 2, first + 7, "1x197x768", "fp16"])
    shown = engine("int8 for sm86", names, ops)
    shown["layers"] = [
        {"title": f"fused {at}", "kind": "fused", "precision": "int8", "nodes": [at, at + 1]}
        for at in range(4, len(names) - 1, len(LAYER))
    ]
    return {
        "title": f"{len(names)} nodes",
        "subtitle": "Nested blocks",
        "report": None,
        "nodes": {"name": names, "op": ops, "block": places, "shape": ["1x197x768"] * len(names)},
        "blocks": blocks,
        "edges": edges,
        "engines": [shown],
        "changes": {},
        "overlays": overlays(),
    }
