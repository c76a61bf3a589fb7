"""What each build made of the plan, for the page: builds, and one build layer by layer.

A row goes from a node of the ONNX file over the tensor that it reads, its histogram and its range to
the engine's layer, its time and what was found. Every function takes plain JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trtcal.documents import Document
from trtcal.reporting import text

View = dict[str, Any]

ROOM = 190_000  # bytes of the one full table, so that the page stays light
ROW = 190  # bytes of a row without its names
LOST_SHOWN = 40  # reasons why layers of one build got something else
NODES_SHOWN = 12  # of each
NAME_SHOWN = 60  # of an engine layer's name, which may list hundreds of fused parts
HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
CPU = "cpu"  # the target that is no GPU


def builds(document: Document, chosen: str | None) -> list[View]:
    """Return what each build made of the plan, those of the verdict's variant first.

    `chosen` is that variant's model. Of its builds one for a GPU comes first.
    """
    measured = document["measured"]["builds"]
    found = [
        {
            **_build(build, measured[build["digest"]]),
            "is_chosen": build["model"] == chosen,
        }
        for build in document["builds"]
    ]
    return sorted(found, key=lambda build: (not build["is_chosen"], build["target"] == CPU))


def _build(build: View, measured: View) -> View:
    outcomes = build["outcomes"]
    asked, met = _counts(build)
    lost = [one for one in outcomes if one["got"] not in (one["asked"], "unknown")]
    unknown = [one for one in outcomes if one["got"] == "unknown"]
    unmet = _together([*lost, *unknown])
    heavy = Counter(layer["precision"] for layer in build["layers"] if layer["heavy"])
    return {
        **build,
        **measured,
        "title": title_of(build),
        "asked": asked,
        "met": met,
        "share": met / asked if asked else 0.0,
        "summary": summary_of(build),
        "lost": len(lost),
        "unknown": len(unknown),
        "unmet": unmet[:LOST_SHOWN],
        "groups": len(unmet),
        "heavy": ", ".join(f"{many} {name}" for name, many in sorted(heavy.items())),
    }


def _together(outcomes: Sequence[View]) -> list[View]:
    """Return a row for each precision and reason, with all nodes that have it."""
    groups: dict[tuple[Any, ...], View] = {}
    for one in outcomes:
        key = tuple(one[name] for name in ("asked", "got", "reason", "hint"))
        groups.setdefault(key, {**one, "nodes": []})["nodes"].append(one["node"])
    return list(groups.values())


def title_of(build: Mapping[str, Any]) -> str:
    """Return what a build is called on the page."""
    return f"{build['model_name']} on {build['target']}"


def _counts(build: View) -> tuple[int, int]:
    """Return how many nodes were asked in INT8, and how many of them got it."""
    got = [one["got"] for one in build["outcomes"] if one["asked"] == "int8"]
    return len(got), got.count("int8")


def summary_of(build: View) -> str:
    """Return how many layers a build runs in INT8, of those asked so."""
    asked, met = _counts(build)
    if not asked:
        return f"No layer was asked in INT8 on {build['target']}."
    verb = "runs" if asked == 1 else "run"
    layers = text.count(asked, "layer")
    return f"{met} of {layers} asked in INT8 {verb} in INT8 on {build['target']}."


def layer_table(document: Document, build: View | None, findings: Sequence[View]) -> View | None:
    """Return one build's nodes in the order of the graph, and what is beside each; None without one.

    `findings` are those of the page, in its order: a row names the numbers of those about it.
    """
    if build is None or not build["outcomes"]:
        return None
    facts = _Facts(document, build, findings)
    rows = list(_within(map(facts.row, build["outcomes"]), ROOM))
    return {
        "title": build["title"],
        "rows": rows,
        "all": len(build["outcomes"]),
        "is_timed": any(row["time"] is not None for row in rows),
        "estimated_on": build["estimated_on"],
    }


def _within(rows: Iterable[View], room: int) -> Iterator[View]:
    """Yield the first rows, up to about so many bytes on the page."""
    for row in rows:
        names = (row["node"], row["tensor"] or "", row["shown"])
        room -= ROW + sum(len(name.encode("utf-8", "replace")) for name in names)
        if room < 0:
            return
        yield row


class _Facts:
    """What is known of one build's model: by node, by tensor, by layer."""

    def __init__(self, document: Document, build: View, findings: Sequence[View]) -> None:
        rows = (document["comparison"] or {"rows": []})["rows"]
        compared = [row for row in rows if row["model"] == build["model"]]
        figures = (compared[0].get("layers") or {"figures": []})["figures"] if compared else []
        self.calibration = build["quantization"].get("calibration")
        self.wiring = build["wiring"] or {}
        self.tensors = {one["name"]: (number, one) for number, one in numbered_tensors(document)}
        self.figures = {one["tensor"]: one for one in figures if not one["is_weight"]}
        self.layers = {layer["name"]: layer for layer in build["layers"]}
        self.times = build["times_ms"]
        self.found = _mentions(findings, build["title"])

    def row(self, outcome: View) -> View:
        """Return one node's row."""
        wired = self.wiring.get(outcome["node"], {"op": None, "inputs": []})
        tensors = [one["tensor"] for one in wired["inputs"]]
        name = tensors[0] if tensors else None
        number, tensor = self.tensors.get(name, (None, None))
        layer = self.layers.get(outcome["layer"]) or {}
        figure = self.figures.get(name) or {}
        chosen = self._range(tensor)
        return {
            **outcome,
            "op": wired["op"],
            "tensor": name,
            "more": len(tensors) - 1,
            "number": number,
            "amax": next((one["amax"] for one in wired["inputs"][:1]), None),
            "clipped": 100 * chosen["clipped"] if chosen else figure.get("clipped"),
            "sqnr": figure.get("own_db"),
            "fused": len(layer.get("nodes", ())),
            "shown": text.shorten(text.visible(outcome["layer"] or ""), NAME_SHOWN),
            "time": self.times.get(outcome["layer"]),
            "estimate": _times(layer.get("estimated_ms"), 1e3),
            "kilobytes": _times(layer.get("bytes"), 1e-3),
            "findings": self._findings(outcome, name),
        }

    def _range(self, tensor: View | None) -> View | None:
        ranges = tensor["ranges"] if tensor else []
        return next((one for one in ranges if one["calibration"] == self.calibration), None)

    def _findings(self, outcome: View, tensor: str | None) -> list[int]:
        names = (outcome["node"], outcome["layer"], tensor)
        return sorted({number for name in names for number in self.found.get(name, ())})


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _mentions(findings: Sequence[View], title: str) -> dict[str | None, list[int]]:
    """Return name -> numbers of the findings of a build that are about it."""
    found: dict[str | None, list[int]] = {}
    for number, finding in enumerate(findings, 1):
        if title in finding["builds"]:
            for name in finding["names"]:
                found.setdefault(name, []).append(number)
    return found


def numbered_tensors(document: Document) -> Iterator[tuple[int, View]]:
    """Yield the tensors that a histogram is known of, with their numbers on the page."""
    known = (one for one in document["tensors"] if one["bars"])
    yield from enumerate(known, 1)


def heights(bars: Sequence[int]) -> str:
    """Return a histogram as one character a bar, its height on a logarithmic scale."""
    top = math.log1p(max(bars, default=0)) or 1.0
    return "".join(HEIGHTS[round((len(HEIGHTS) - 1) * math.log1p(bar) / top)] for bar in bars)


def drawn_tensors(document: Document, wanted: Iterable[int]) -> View:
    """Return what the page's script subsets of tensors, by number: bars, largest value, ranges, tail.

    Ranges stand in the order of `methods`.
    """
    numbers = set(wanted)
    methods = list(dict.fromkeys(one["method"] for one in document["calibrations"]))
    drawn = {
        str(number): [
            heights(one["bars"]),
            _short(one["observed"]),
            [_amax(one["ranges"], method) for method in methods],
            [tail_words(reach) for reach in one["tail"]],
        ]
        for number, one in numbered_tensors(document)
        if number in numbers
    }
    return {"methods": [text.visible(method) for method in methods], "tensors": drawn}


def _amax(ranges: Iterable[View], method: str) -> float | None:
    return next((_short(one["amax"]) for one in ranges if one["method"] == method), None)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def tail_words(reach: View) -> str:
    """Return which sample reaches how far."""
    name = text.visible(reach["name"]) if reach["name"] else f"sample {reach['index']:,}"
    return f"{name}: {text.figure(reach['value'])}"
