"""What the page shows beside variants and layers: slices, tests, errors, fusions, ranges, changes.

All is worked out from the document's plain JSON; what a run does not have comes out empty.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from trtcal.documents import Document
from trtcal.evaluate.groups import Group
from trtcal.quantization.plan import Plan
from trtcal.reporting import text
from trtcal.reporting.layer_view import tail_words, title_of

View = dict[str, Any]

GROUPS_SHOWN = 20
WORST_SHOWN = 8
ERRORS_SHOWN = 5
GROWS_DB = 1.0
TENSORS_SHOWN = 40
CHARTS_SHOWN = 6
STEPS_SHOWN = 3
PLAIN = Plan().to_document()["digest"]  # of all in INT8, which needs no file
FUSIONS_SHOWN = 60
FIGURES_SHOWN = 8
MORE_FIGURES = 60
RAW_TIMES = (
    "latency_p50",
    "latency_p90",
    "latency_p99",
)  # the speed-up tells, whatever the machine
FIRST = ("top1", "agreement", "speedup")
SURE = {0: ("broken", "✕", "worse here"), 1: ("undecided", "◐", "perhaps worse")}


def slices(row: View | None) -> list[View]:
    """Return a variant's figures by slice and by class, the worst groups first."""
    found = []
    for one in (row or {}).get("breakdowns", ()):
        groups = [_group(group, one["unit"]) for group in one["groups"][:GROUPS_SHOWN]]
        worse = sum(group["sure"] is not None for group in groups)
        found.append(
            {**one, "groups": groups, "worse": worse, "all": len(one["groups"]) + one["rest"]}
        )
    return found


def _group(item: View, unit: str) -> View:
    group = Group(**{**item, "interval": tuple(item["interval"])})
    low, high = group.interval
    if unit == "points":
        low, high = max(low, -100.0), min(high, 100.0)
    return {**item, "interval": (low, high), "sure": SURE.get(group.rank), "few": group.p is None}


def tests(document: Document) -> list[View]:
    """Return every A/B test with its verdict and answers."""
    measured = document["measured"]["tests"]
    return [{**one, **measured[one["digest"]]} for one in document["tests"]]


def errors(row: View | None) -> View | None:
    """Return where a variant's error enters and grows, tensor by tensor, and the worst samples."""
    if row is None:
        return None
    layers = row.get("layers") or {"samples": 0, "figures": []}
    entering = [one for one in layers["figures"] if one["own_db"] is not None]
    growing = [one for one in layers["figures"] if (one["growth_db"] or 0.0) >= GROWS_DB]
    return {
        "samples": layers["samples"],
        "enters": sorted(entering, key=lambda one: one["own_db"])[:ERRORS_SHOWN],
        "grows": sorted(growing, key=lambda one: -one["growth_db"])[:ERRORS_SHOWN],
        "worst": row.get("worst", [])[:WORST_SHOWN],
    }


def fusions(document: Document, chosen: str | None) -> list[View]:
    """Return for each build how many patterns the graph allows and how many the engine fused.

    Those that are broken or came out otherwise are told of the verdict's variant, whose model is
    `chosen`.
    """
    found = []
    for build in document["builds"]:
        if build["fusions"]:
            told = [one for one in build["fusions"] if _is_worth_telling(one)]
            states = Counter(one["prediction"] for one in build["fusions"])
            seen = Counter(one["state"] for one in build["fusions"])
            own = build["model"] == chosen
            counts = {"whole": states["whole"], "broken": states["broken"]}
            counts |= {"one": seen["one layer"], "several": seen["several layers"]}
            found.append({"title": title_of(build), **counts, "told": told if own else []})
    return sorted(found, key=lambda one: not one["told"])


def _is_worth_telling(match: View) -> bool:
    return bool(match["prediction"] == "broken" or match["verdict"] == "differs")


def ranges(document: Document) -> View:
    """Return the tensors with ranges, those of which most is clipped or reaches farthest first."""
    methods = list(dict.fromkeys(one["method"] for one in document["calibrations"]))
    known = [one for one in document["tensors"] if one["ranges"]]
    ordered = sorted(known, key=_stretch)
    return {
        "methods": methods,
        "rows": [_range_row(one, methods) for one in ordered[:TENSORS_SHOWN]],
        "all": len(known),
        "drawn": [one for one in ordered if one["bars"]][:CHARTS_SHOWN],
    }


def notes(document: Document) -> list[View]:
    """Return what calibrations say of tensors, those of which the same is said together."""
    found = []
    for one in document["calibrations"]:
        groups: dict[str, list[str]] = {}
        for tensor, why in one["unranged"].items():
            groups.setdefault(f"no range: {why}", []).append(tensor)
        for tensor, note in one["notes"].items():
            groups.setdefault(note, []).append(tensor)
        counts = {"unranged": len(one["unranged"]), "notes": len(one["notes"])}
        if groups:
            found.append({"method": one["method"], **counts, "groups": groups})
    return found


def _stretch(tensor: View) -> tuple[float, float]:
    """Return a key that puts first what its ranges cut, as shares of the largest value."""
    least = min(one["amax"] for one in tensor["ranges"])
    clipped = max(one["clipped"] for one in tensor["ranges"])
    return least / tensor["observed"] if tensor["observed"] else 1.0, -clipped


def _range_row(tensor: View, methods: Sequence[str]) -> View:
    by_method = {one["method"]: one for one in tensor["ranges"]}
    return {
        **tensor,
        "by_method": [by_method.get(method) for method in methods],
        "tail": [tail_words(reach) for reach in tensor["tail"]],
    }


def against(document: Document) -> View | None:
    """Return what changed since the last run of the same model, None where none is known."""
    found: View | None = document["measured"].get("against")
    if found is None:
        return None
    judged = [one for one in found["figures"] if one["better"] is not None and _is_seen(one)]
    told = sorted((one for one in judged if one["figure"] not in RAW_TIMES), key=_telling(document))
    now, before = document["measured"]["verdict"]["word"], found["run"]["verdict"]
    return {
        **found,
        "told": told[:FIGURES_SHOWN],
        "more": told[FIGURES_SHOWN:MORE_FIGURES],
        "verdict": f"The verdict was {before}, now it is {now}." if before != now else None,
    }


def _telling(document: Document) -> Callable[[View], tuple[bool, bool, float]]:
    """Return the order of changed figures: accuracy and speed-up, the verdict's variant, by size."""
    own = _followed(document)

    def place(one: View) -> tuple[bool, bool, float]:
        size = abs(one["change"]) if one["change"] is not None else math.inf
        return one["figure"] not in FIRST, one["variant"] not in own, -size

    return place


def _is_seen(figure: View) -> bool:
    """Whether a change is one of the digits that the page shows."""
    return text.figure(figure["before"]) != text.figure(figure["now"])


def _followed(document: Document) -> set[str]:
    """Return what the verdict's variant and its builds are called in the history."""
    chosen = document["measured"]["verdict"]["variant"]
    builds = (one for one in document["builds"] if one["model_name"] == chosen)
    return {str(chosen), *(f"{one['model_name']} for {one['target']}" for one in builds)}


def costs(document: Document, rows: Sequence[View]) -> View | None:
    """Return what every variant costs, in money if the price of the machine is known."""
    found = document["measured"].get("costs")
    if not (found and rows):
        return None
    kind = "cost" if found["price"] else "relative"
    told = [
        {
            **row,
            "rate": 1e3 * row["latency"]["batch"] / row["latency"]["p50_ms"],
            "cost": (found["variants"].get(row["name"]) or {}).get(kind),
        }
        for row in rows
    ]
    return {**found, "rows": told}


def first_steps(found: Sequence[View], row: View | None, fails: bool) -> list[View]:
    """Return where to look first: the costliest findings of different kinds, and the worst tensor.

    That comes first where the variant fails a limit.
    """
    seen: dict[tuple[str, str], View] = {}
    for number, one in enumerate(found, 1):
        step = {"what": one["what"], "do": one["fix"], "place": f"finding-{number}"}
        seen.setdefault((one["kind"], one["fix"]), {**step, "link": f"finding {number}"})
    steps = list(seen.values())[:STEPS_SHOWN]
    entering = (errors(row) or {"enters": []})["enters"]
    worst = [_worst_tensor(one, fails) for one in entering[:1]]
    return [*worst, *steps] if fails else [*steps, *worst]


def _worst_tensor(figure: View, fails: bool) -> View:
    readers = text.some(list(figure["nodes"])) or "a layer"
    kind = "the weights" if figure["is_weight"] else f"the tensor {figure['tensor']!r}"
    what = (
        f"Of all layers, INT8 costs {readers} most accuracy: {kind} that it reads has "
        f"{text.number(figure['own_db'], 1)} dB SQNR"
    )
    cut = figure["clipped"]
    what += f", with {text.figure(cut)} % of its values clipped." if cut else "."
    do = "leave it in float first, or give it another range."
    do = f"{do[0].upper()}{do[1:]}" if fails else f"If accuracy falls short, {do}"
    return {"what": what, "do": do, "place": "errors", "link": "where the error comes from"}


def made_by(document: Document) -> dict[str, str]:
    """Return model -> the command that made it, with the names that the run gave its files."""
    stages = (document["measured"]["run"] or {}).get("stages", ())
    outputs = {stage["digest"]: shlex.quote(stage["output"]) for stage in stages}
    optimizations = {
        name: one["optimizations"] for one in document["optimizations"] for name in one["variants"]
    }
    found = {}
    for row in (document["comparison"] or {"rows": []})["rows"]:
        made = row["quantization"]
        if "calibration" in made:
            table = outputs.get(made["calibration"], "CALIBRATION.json")
            given = made.get("plan")
            plan = outputs.get(given) or (None if given in (None, PLAIN) else "PLAN.json")
            output = outputs.get(row["model"], shlex.quote(f"{row['name']}.onnx"))
            parts = ["trtcal quantize MODEL.onnx --calibration", table]
            if row["name"] in optimizations:
                parts += ["--optimizations", outputs.get(optimizations[row["name"]], "REPAIRS.npz")]
            found[row["model"]] = " ".join(
                [*parts, *(["--plan", plan] if plan else []), "-o", output]
            )
    return found
