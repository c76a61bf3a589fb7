"""What the report shows, worked out of its plain JSON: every value that the templates name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trtcal.config import CostConfig, is_device
from trtcal.documents import Document, from_fields
from trtcal.documents.streams import command_line
from trtcal.errors import some
from trtcal.evaluate.groups import Group
from trtcal.evaluate.latency import place
from trtcal.evaluate.layerwise import Layerwise
from trtcal.evidence.diagnosis.log_findings import FAILING
from trtcal.formats import spelled
from trtcal.limits import HOLDS
from trtcal.metrics import COSTS, METRICS, PERCENT, TIMES, labelled, metric_of
from trtcal.ptq.optimizations import NEAREST, OPTIMIZATIONS, RANGES
from trtcal.quantization.plan import Plan
from trtcal.quantization.qdq import NONE
from trtcal.reporting import advice, engines, text
from trtcal.reporting.charts import (
    ABOUT,
    LAYOUTS,
    P50,
    Chart,
    Point,
    accuracy_against_latency,
    accuracy_of_each,
)
from trtcal.reporting.engines import CPU, View, grouped, is_cpu, summary_of
from trtcal.reporting.tensors import tail_words
from trtcal.reporting.verdict import refused_targets
from trtcal.stats import LEVEL, Interval, Moments, proportion

MARKS = {"holds": "●", "undecided": "◐", "broken": "✕"}
CLASSES = {"SHIP": "ship", "SHIP WITH CARE": "care", "DO NOT SHIP": "stop", "INCONCLUSIVE": "open"}
LIMITED = {"top1": "top1", "agreement": "agreement", "sqnr_db": "sqnr"}
GROUPS_SHOWN, WORST_SHOWN, ERRORS_SHOWN, STEPS_SHOWN, LAYERS_SHOWN = 20, 8, 5, 3, 10
FIGURES_SHOWN, MORE_FIGURES = 8, 60
MEASURABLE = 0.005  # of a variant's time, below which a finding costs nothing that is measured
PLACE_SHOWN = 20  # characters of a target at an axis
TENSORS_SHOWN, CHARTS_SHOWN = 40, 6
UNFOLLOWED = {
    name
    for name, metric in METRICS.items()
    if (metric.of in (TIMES, COSTS) and name != "speedup") or metric.drop_of
}
"""What a slower machine changes, and losses of shares that are followed themselves."""
FIRST = ("top1", "agreement", "speedup")
RESTS = {Plan(rest=rest).to_document()["digest"]: rest or "" for rest in (None, "fp16", "fp32")}
"""By the digest of a plan of all in INT8, which needs no file: the precision of its rest."""
WORDS = {NEAREST: "no optimization"} | {each.name: each.what for each in OPTIMIZATIONS}
AGREEMENTS = {
    "classes": "Agreement",
    "labels": "Same labels",
    "pixels": "Same decisions",
    "boxes": "Boxes found again",
    "tokens": "Same tokens",
    "language": "Same next tokens",
}
"""Kind of output -> what the share of its decisions is called that are FP32's."""


def shown(document: Document) -> View:
    """Return what the sections show, by the names that the templates know."""
    rows = variants(document)
    chosen = next((row for row in rows if row["is_chosen"]), None)
    builds = engines.builds(document, chosen["model"] if chosen else None)
    logs = engines.logs(document)
    findings, events = engines.findings(logs), engines.log_events(logs)
    verdict, run = document["measured"]["verdict"], document["measured"]["run"] or {}
    estimates = (each for each in verdict.get("estimates", ()) if "low" in each)  # not of old runs
    speeds = grouped([*estimates], "target")
    names = [*(row["name"] for row in rows), *(build["model_name"] for build in document["builds"])]
    return {
        "report": document,
        "comparison": document["comparison"],
        "measured": document["measured"],
        "the_imports": document["measured"].get("imports"),
        "data_check": document["data_check"],
        "subject": str(next(iter(names), document["measured"]["folder"] or "A build")),
        "formats": spelled(engines.formats_of(document) or {"int8"}),
        "rows": rows,
        "the_task": (document["comparison"] or {"task": None})["task"],
        "agreement_name": agreement_name(document),
        "has_top1": any(row["accuracy"]["top1"] is not None for row in rows),
        "by_output": _by_output(rows),
        "chosen": chosen,
        "the_verdict": verdict,
        "verdict_class": CLASSES.get(verdict["word"], "open"),
        "share": _share_of_labels(chosen),
        "speeds": sorted(speeds, key=lambda several: not several[0]["is_measured"]),
        "engine_summaries": [
            summary_of(build)
            for build in document["builds"]
            if build["model_name"] == verdict["variant"] and not is_cpu(build)
        ],
        "gpu_targets": gpu_targets(document),
        "shows_times": shows_times(document),
        "targets": _targets(rows),
        "run_files": advice.run_files(document),
        "next_step": advice.next_step(document),
        "first_steps": first_steps(document, findings["shown"], chosen),
        "the_costs": document["measured"].get("costs"),
        "cost_rows": cost_rows(document, rows),
        "tags": CostConfig.from_document(document).tags,
        "changes": changes(document),
        "the_tests": tests(document),
        "breakdowns": [*slices(chosen)],
        "entering": layerwise(chosen).enters(ERRORS_SHOWN),
        "growing": layerwise(chosen).grows(ERRORS_SHOWN),
        "worst": (chosen or {}).get("worst", [])[:WORST_SHOWN],
        "the_optimizations": optimizations(document),
        "found": findings,
        "builds": builds,
        "layers_shown": engines.layer_table(document, builds, rows, findings["shown"]),
        "the_ranges": ranges(document),
        "the_fusions": engines.fusions(builds),
        "the_skipped": engines.skipped(document),
        "logs": logs,
        "events": events,
        "lines_shown": {event["row_id"] for event in events},
        "known_tensors": [*known_tensors(document)],
        "run_command": run.get("command"),
        "commands": [*commands(document)],
        "made_by": [*made_by(document, rows)],
        "digests": [*digests(document)],
        "marks": MARKS,
        "warnings_shown": 3,
        "nodes_shown": 12,
        "alike_shown": 40,
        "fusions_shown": 60,
    }


def variants(document: Document) -> list[View]:
    """Return every row of the comparison with its measured side, the reference first."""
    measured = document["measured"]
    sizes: dict[str, list[str]] = {}
    for build in document["builds"]:
        size = text.size(measured["builds"][build["digest"]].get("engine_bytes"))
        sizes.setdefault(build["model"], []).append(f"{size} {build['target']}")
    rows = (document["comparison"] or {"rows": []})["rows"]
    return [
        {
            **row,
            **_timed(measured["variants"][row["name"]]),
            "number": index,
            "is_reference": index == 0,
            "is_chosen": row["name"] == measured["verdict"]["variant"],
            "engines": sizes.get(row["model"], []),
            "state": measured["judgements"].get(row["name"]),
        }
        for index, row in enumerate(rows)
    ]


def _timed(measured: View) -> View:
    """Return what was measured of a variant, each time with its place as people read it."""
    latency, times = measured["latency"], measured.get("times", ())  # an older run has none
    return {
        **measured,
        "where": _place(latency),
        "times": [
            {**time, "latency": known, "where": _place(known) if known else time["target"]}
            for time in times
            for known in [time.get("latency")]
        ],
    }


def _place(latency: View) -> str:
    return place(latency.get("on", ""), latency.get("is_gpu", False))


def agreement_name(document: Document) -> str:
    """Return what agreement is called: of several kinds of outputs by its own name."""
    comparison = document["comparison"] or {"task": {"outputs": {}}}
    names = {AGREEMENTS.get(kind) for kind in comparison["task"]["outputs"].values()} - {None}
    return str(names.pop()) if len(names) == 1 else "Agreement"


def _by_output(rows: Sequence[View]) -> list[View]:
    every = ((row["name"], each) for row in rows[1:] for each in row.get("outputs", ()))
    outputs = [{**each, "variant": name} for name, each in every]
    is_plain = len(outputs) <= len(rows[1:]) and all(row["kind"] != "boxes" for row in outputs)
    return [] if is_plain else outputs


def _share_of_labels(row: View | None) -> View | None:
    """Return the share that a task with labels is judged by, beside top-1, if it has one."""
    names = PERCENT & {*(row or {}).get("means", ())}
    name = next((name for name in labelled().values() if name in names), None)
    return None if name is None else {"name": name, "label": metric_of(name).title}


def gpu_targets(document: Document) -> list[str]:
    """Return the targets that are no CPU: those that were built for, else those that could not be."""
    measured = document["measured"]
    built = {build["target"] for build in document["builds"] if not is_cpu(build)}
    estimates = measured["verdict"].get("estimates", [])
    estimated = {speed["target"] for speed in estimates if not speed["gpu"].startswith("CPU @")}
    return sorted(built) or refused_targets(measured["failed_builds"]) or sorted(estimated)


def shows_times(document: Document) -> bool:
    """Tell whether the times of this machine are shown: a CPU's only where that is a target."""
    measured = document["measured"]
    built = (build["target"] for build in document["builds"])
    tried = (name.rpartition(" for ")[2] for name in measured["failed_builds"])
    is_gpu = measured["machine"].get("timed_on") != "CPU"
    return is_gpu or not gpu_targets(document) or CPU in (*built, *tried)


def interval_of(judgement: View) -> str:
    """Return a judgement's interval with its level, or why there is none; a count has but one value."""
    low, high = judgement["low"], judgement["high"]
    if judgement["value"] is None or low is None or high is None:
        return str(judgement["reason"])
    level = "" if low == high else f" ({100 * judgement['level']:.4g} %)"
    return text.between(low, high) + level


def first_steps(document: Document, findings: Sequence[View], row: View | None) -> list[View]:
    """Return what to improve first: the layer that loses most, and the costliest findings.

    They are about the variant of `row`, if it was built. The layer comes first if a limit is not held,
    else after the findings that cost more than nothing.
    """
    limits = document["measured"]["verdict"]["limits"]
    if document["measured"]["failed_builds"]:  # the verdict says why there is no engine
        findings = [finding for finding in findings if finding["kind"] not in FAILING]
    model = row["model"] if row else None
    own = {engines.title_of(build) for build in document["builds"] if build["model"] == model}
    findings = [finding for finding in findings if not own or own.intersection(finding["builds"])]
    steps = [{"finding": group[0]} for group in grouped(findings, "kind", "fix")]
    costly = [step for step in steps if _is_costly(step["finding"]["cost"], row)][:STEPS_SHOWN]
    cheap = [step for step in steps if step not in costly][: STEPS_SHOWN - len(costly)]
    holds = bool(limits) and all(limit["state"] == HOLDS for limit in limits)
    worst = [{"layer": layer} for layer in [worst_layer(document, row)] if layer]
    return [*costly, *worst, *cheap] if holds else [*worst, *costly, *cheap]


def _is_costly(cost: View, row: View | None) -> bool:
    """Tell whether a finding may cost accuracy, or time that can be measured."""
    whole = max((time["ms"] for time in (row or {"times": ()})["times"]), default=0.0)
    return cost["risk"] == "high" or cost["time_ms"] is None or cost["time_ms"] > MEASURABLE * whole


def worst_layer(document: Document, row: View | None) -> View | None:
    """Return the layer that loses most at the outputs: as measured, else estimated; None if unknown.

    Its `tried` are plans of the run that leave layers in float, with their SQNR before and after.
    """
    if row is None or row["accuracy"]["sqnr_db"] is None:
        return None
    known = (table for table in document.get("sensitivities", ()) if table["layers"])
    ranges = row["quantization"].get("calibration")
    measured = next((table for table in known if table["calibration"] == ranges), None)
    facts = {"tried": [*_tried(document)], "search": advice.finding_layers(document)}
    if measured:
        return {**facts, **measured["layers"][0], "is_measured": True}
    shares: dict[str, float] = {}
    for figure in layerwise(row).figures:
        node = next(iter(figure.nodes), figure.tensor)
        shares[node] = shares.get(node, 0.0) + (figure.share or 0.0)
    layer = max(shares, key=lambda node: shares[node], default="")
    if shares and shares[layer]:
        return {**facts, "layer": layer, "share": shares[layer], "is_measured": False}
    command = advice.measuring_layers(document)
    return {**facts, "layer": None, "measure": command} if command else None


def _tried(document: Document) -> Iterator[View]:
    """Yield the plans of a run beside the same ranges with all layers quantized."""
    rows = (document["comparison"] or {"rows": []})["rows"]
    plans = {plan["digest"]: plan for plan in document["plans"] if plan.get("layers")}
    for row in (row for row in rows if row["quantization"].get("plan") in plans):
        same = {"calibration": row["quantization"].get("calibration")}
        others = [other for other in rows if same.items() <= other["quantization"].items()]
        whole = next((each for each in others if each["quantization"].get("plan") in RESTS), None)
        if whole and whole["accuracy"]["sqnr_db"] and row["accuracy"]["sqnr_db"]:
            layers = plans[row["quantization"]["plan"]]["layers"]
            before, after = (each["accuracy"]["sqnr_db"] for each in (whole, row))
            yield {"name": row["name"], "layers": [*layers], "before": before, "after": after}


def layerwise(row: View | None) -> Layerwise:
    """Return the figures of a variant's tensors, none if they are not known."""
    return from_fields(Layerwise, (row or {}).get("layers") or {"samples": 0, "figures": []})


def cost_rows(document: Document, rows: Sequence[View]) -> list[View]:
    """Return the variants with their cost, in money if the price of the machine is known."""
    costs = document["measured"].get("costs")
    if not costs:
        return []
    kind = "cost" if costs["price"] else "relative"
    return [
        {
            **row,
            "rate": 1e3 * row["latency"]["batch"] / row["latency"]["p50_ms"],
            "cost": (costs["variants"].get(row["name"]) or {}).get(kind),
        }
        for row in rows
        if row["where"] == rows[0]["where"]
    ]


def changes(document: Document) -> View | None:
    """Return what changed since the run that this one is compared with, None where none is known.

    `since` says which of all runs that is, `worse` are sentences on watched figures.
    """
    difference: View | None = document["measured"].get("against")
    if difference is None:
        return None
    difference = {"since": "the last run", "worse": [], **difference}  # of older runs too
    verdict, before = document["measured"]["verdict"], difference["run"]["verdict"]
    name = verdict["variant"]
    builds = (build for build in document["builds"] if build["model_name"] == name)
    own = {name, *(f"{build['model_name']} for {build['target']}" for build in builds)}

    def place(figure: View) -> tuple[bool, bool, float]:
        size = abs(figure["change"]) if figure["change"] is not None else math.inf
        return figure["figure"] not in FIRST, figure["variant"] not in own, -size

    figures = [
        figure
        for figure in difference["figures"]
        if figure["better"] is not None
        and figure["figure"] not in UNFOLLOWED
        and text.figure(figure["before"]) != text.figure(figure["now"])
    ]
    figures.sort(key=place)
    now = verdict["word"]
    return {
        **difference,
        "first": figures[:FIGURES_SHOWN],
        "more": figures[FIGURES_SHOWN:MORE_FIGURES],
        "verdict": f"The verdict changed from {before} to {now}." if before != now else None,
    }


def chart(values: View) -> View:
    """Return the chart of a report's rows, what it shows upwards, and the names that it cannot show.

    Its latencies are those on the first target of which any are known, else those of this machine if
    that is a target; without either it shows the accuracy of each variant alone.
    """
    rows = values["rows"]
    measure, unit, key = _chart_measure(rows, values["agreement_name"])
    target = target_of(rows)
    is_here = not target and not any(row["latency"].get("on") for row in rows)
    times = [{time["target"]: time for time in row["times"]}.get(target) for row in rows]
    is_timed = bool(target) or (is_here and values["shows_times"])
    known = [
        (row, time)
        for row, time in zip(rows, times, strict=True)
        if time or is_here or not is_timed
    ]
    points = [_point(row, key, time) for row, time in known]
    shown = [point for point in points if point.accuracy is not None or point.is_reference]
    across = _across([time for _, time in known if time])
    plot = Chart(shown, measure, unit, across, limit_of(values["the_verdict"], rows[0], key))
    draw = accuracy_against_latency if is_timed else accuracy_of_each
    drawings = [draw(plot, layout) for layout in LAYOUTS]
    has_numbers = any(drawing.is_numbered for drawing in drawings)
    return {
        "target": target,
        "is_timed": is_timed,
        "too_small": any(time["too_small"] for row in rows for time in row["times"]),
        "drawings": drawings,
        "is_broken": any(drawing.is_broken for drawing in drawings),
        "measure": measure,
        "missing": [point.name for point in points if point not in shown],
        "untimed": [row["name"] for row in rows if row["name"] not in {p.name for p in points}],
        "measured": [row["name"] for row, time in known if time and time["is_measured"]],
        "estimated": [row["name"] for row, time in known if time and not time["is_measured"]],
        "source": next((time["gpu"] for _, time in known if time and time["is_measured"]), ""),
        "numbers": [f"{point.number} {point.name}" for point in shown if has_numbers],
    }


def limit_of(verdict: View, reference: View, key: str) -> tuple[float, str] | None:
    """Return the accuracy that the verdict's limit on it holds, in words too, None without one."""
    value = reference["accuracy"][key]
    for limit in verdict["limits"]:
        bound, is_change = limit["bound"], limit["unit"] == "points"
        if limit["metric"] == LIMITED[key] and limit["relation"] == ">=":
            suggested = "suggested limit" if "is_suggested" in limit else "limit"
            if not is_change:
                return bound, f"{suggested}: {bound:g} {limit['unit']}"
            change = text.count(abs(bound), "point").replace(".0", "")
            sign = "+" if bound > 0 else "\u2212"
            return value + bound, f"{suggested}: FP32 {sign} {change}"
    return None


def _across(times: Sequence[View]) -> str:
    """Return what the latencies of a chart are, as its axis says it."""
    if not times:
        return P50
    measured = [time["is_measured"] for time in times]
    what = "p50" if all(time["latency"] for time in times) else "latency"
    estimated = "" if any(measured) else "estimated "
    part = ", in part estimated" if any(measured) and not all(measured) else ""
    where = text.visible(text.shorten(times[0]["where"], PLACE_SHOWN))
    return f"{estimated}{what} on {where}{part}"


def _targets(rows: Sequence[View]) -> list[View]:
    """Return the targets that times are known of, as people read them, and what was measured there."""
    return [
        {
            "name": several[0]["target"],
            "where": max(several, key=lambda time: bool(time["latency"]))["where"],
            "latencies": [time["latency"] for time in several if time["latency"]],
        }
        for several in grouped([time for row in rows for time in row["times"]], "target")
    ]


def _chart_measure(rows: Sequence[View], agreement: str) -> tuple[str, str, str]:
    for measure, unit, key in (
        ("Top-1 accuracy", "%", "top1"),
        (f"{agreement} with FP32" if agreement == "Agreement" else agreement, "%", "agreement"),
    ):
        if all(row["accuracy"][key] is not None for row in rows):
            return measure, unit, key
    return "SQNR", "dB", "sqnr_db"


def target_of(rows: Sequence[View]) -> str | None:
    """Return the first target that times of two variants are known of, unless launches decide there."""
    times = [time for row in rows for time in row["times"]]
    for target in dict.fromkeys(str(time["target"]) for time in times):
        there = [time for time in times if time["target"] == target]
        if len(there) > 1 and not all(time["too_small"] for time in there):
            return target
    return None


def _point(row: View, key: str, time: View | None) -> Point:
    ms, (low, high) = row["latency"]["p50_ms"], row["latency"]["p50_interval_ms"]
    evidence = "p50"
    if time:
        ms, low, high = (time[name] for name in ("ms", "low_ms", "high_ms"))
        evidence = "p50" if time["latency"] else "takes" if time["is_measured"] else ABOUT
    return Point(
        row["number"],
        row["name"],
        ms,
        (low, high),
        row["accuracy"][key],
        None if row["is_reference"] else _accuracy_interval(row, key),
        row["is_reference"],
        evidence,
    )


def _accuracy_interval(row: View, key: str) -> tuple[float, float] | None:
    accuracy = row["accuracy"]
    if key == "top1" and accuracy["top1_drop_interval"]:
        base = accuracy["top1"] + accuracy["top1_drop"]  # of the samples that it saw
        ends = [base - drop for drop in accuracy["top1_drop_interval"]]
    elif key == "agreement":
        alike = _agreeing(row)
        ends = [100.0 * alike.high, 100.0 * alike.low]
    else:
        return None
    low, high = (min(max(end, 0.0), 100.0) for end in reversed(ends))
    return low, high


def _agreeing(row: View) -> Interval:
    """Return the share of the same decisions with its interval, the exact one of whole samples."""
    accuracy = row["accuracy"]
    mean = row.get("means", {}).get("agreement")
    if mean is None or mean["lost"] is not None:
        samples = accuracy["samples"]
        return proportion(round(accuracy["agreement"] * samples / 100), samples)
    return Moments(**mean["value"]).interval(LEVEL, METRICS["agreement"].reach or 1.0)


def tests(document: Document) -> list[View]:
    """Return every A/B test with its verdict and answers."""
    return [{**test, **document["measured"]["tests"][test["digest"]]} for test in document["tests"]]


def slices(row: View | None) -> Iterator[View]:
    """Yield a variant's figures by slice and by class, the worst groups first."""
    for breakdown in (row or {}).get("breakdowns", ()):
        groups = [_group(group, breakdown["unit"]) for group in breakdown["groups"][:GROUPS_SHOWN]]
        worse = sum(group["rank"] < 2 for group in groups)
        total = len(breakdown["groups"]) + breakdown["rest"]
        yield {**breakdown, "groups": groups, "worse": worse, "all": total}


def _group(item: View, unit: str) -> View:
    group = Group(**{**item, "interval": tuple(item["interval"])})
    low, high = group.interval
    if unit == "points":
        low, high = max(low, -100.0), min(high, 100.0)
    return {**item, "interval": (low, high), "rank": group.rank}


def optimizations(document: Document) -> list[View]:
    """Return each improvement with its sentence, its tries before and after, and its layers."""
    return [
        {
            **optimization,
            "title": some(optimization["variants"]) or "no variant",
            "gain": _gain(optimization),
            "tries": [*_tries(optimization)],
            "is_sqnr": optimization["objective"] == "sqnr",
            "layers": [
                {**layer, "share": 100 * layer["rounded"] / layer["weights"]}
                if layer["rounded"] is not None and layer["weights"]
                else {**layer, "share": None}
                for layer in optimization["layers"][:LAYERS_SHOWN]
            ],
        }
        for optimization in document["optimizations"]
    ]


def _gain(record: Document) -> View | None:
    """Return the SQNR before and after optimizations; None where none reduced the loss."""
    kept = [attempt for attempt in record["tries"] if attempt["kept"]]
    plain = [attempt for attempt in kept if attempt["name"].startswith((RANGES, NEAREST))]
    if not plain or kept[-1] is plain[-1]:
        return None
    before, after = (_sqnr_db(attempt, record["objective"]) for attempt in (plain[-1], kept[-1]))
    return {"before": before, "after": after}


def _sqnr_db(attempt: Document, objective: str) -> float | None:
    """Return the SQNR of a try: the mean over samples if that is the objective, else over all."""
    if objective == "sqnr":
        return None if attempt["value"] is None else -attempt["value"]
    return -10 * math.log10(attempt["noise"]) if attempt["noise"] else None


def _tries(record: Document) -> Iterator[View]:
    best = None
    for attempt in record["tries"]:
        figures = {key: attempt[key] for key in ("disagreement", "value")}
        figures["sqnr"] = _sqnr_db(attempt, record["objective"])
        ranges = "ranges of the tensors, chosen by this method"
        words = ranges if attempt["name"].startswith(RANGES) else WORDS.get(attempt["name"], "")
        before = best or dict.fromkeys(figures)
        yield {**attempt, "words": words, "before": before, "after": figures}
        best = figures if attempt["kept"] else best


def ranges(document: Document) -> View:
    """Return the tensors with ranges, those of which most is clipped or reaches farthest first."""
    methods = list(dict.fromkeys(calibration["method"] for calibration in document["calibrations"]))
    known = sorted((tensor for tensor in document["tensors"] if tensor["ranges"]), key=_reach)
    rows = []
    for tensor in known[:TENSORS_SHOWN]:
        method_rows = {each["method"]: each for each in tensor["ranges"]}
        by_method = [method_rows.get(method) for method in methods]
        tail = list(map(tail_words, tensor["tail"]))
        rows.append({**tensor, "by_method": by_method, "tail": tail})
    return {
        "methods": methods,
        "heads": [(method, "n") for method in methods],
        "rows": rows,
        "all": len(known),
        "drawn": [tensor for tensor in known if tensor["bars"]][:CHARTS_SHOWN],
    }


def _reach(tensor: View) -> tuple[float, float]:
    """Return a key that puts first what its ranges cut, as shares of the largest value."""
    least = min(entry["amax"] for entry in tensor["ranges"])
    clipped = max(entry["clipped"] for entry in tensor["ranges"])
    return least / tensor["observed"] if tensor["observed"] else 1.0, -clipped


def known_tensors(document: Document) -> Iterator[View]:
    """Yield the tensors without range or with a note of each calibration, by what is known of them."""
    for calibration in document["calibrations"]:
        groups: dict[str, list[str]] = {}
        unranged = {name: f"no range: {why}" for name, why in calibration["unranged"].items()}
        for tensor, note in (*unranged.items(), *calibration["notes"].items()):
            groups.setdefault(note, []).append(tensor)
        counts = {"unranged": len(calibration["unranged"]), "notes": len(calibration["notes"])}
        if groups:
            yield {"method": calibration["method"], **counts, "groups": [*groups.items()]}


def commands(document: Document) -> Iterator[str]:
    """Yield the stages' commands, each on what the one before wrote: with the run's files, if known.

    What is quantized, built and compared is the variant of the verdict.
    """
    files = advice.run_files(document)
    folder, model = (files["folder"], files["model"]) if files else ("RUN_FOLDER", "MODEL.onnx")
    calibration = advice.config_of(files) if files else ("--data", "CALIBRATION_DATA")
    test = advice.config_of(files) if files else ("--data", "TEST_DATA")
    quantization, optimized = advice.origin_of(document)
    methods = {ranges["method"]: ranges["digest"] for ranges in document["calibrations"]}
    chosen = ""
    for method in methods or ["percentile"]:
        output = f"calibration-{method}.json"
        yield command_line("calibrate", model, *calibration, method=method, o=output)
        if not chosen or methods[method] == quantization.get("calibration"):
            chosen = output
    ranges = None if quantization.get("calibration") == NONE else chosen  # None: weights alone
    plan = advice.plan_of(document, folder) if files else ()
    words = (*(calibration if files or optimized else ()), *plan)
    options = {"improve": optimized["effort"]} if optimized else {"calibration": ranges}
    output = "int8.onnx" if engines.formats_of(document) <= {"int8"} else "quantized.onnx"
    line = command_line("quantize", model, *words, **options, o=output)
    yield line if files else f"{line} [--plan PLAN.json]"
    targets = {(build["backend"], build["target"]) for build in document["builds"]}
    for backend, target in sorted(targets) or [("onnxruntime", "cpu")]:
        place = f"builds/{target}"
        named = None if is_device(target) else backend
        yield command_line("build", output, backend=named, target=target, o=place)
        yield command_line("log", f"{place}/build.log")
    yield command_line("compare", model, output, *test, on=advice.device_of(document)[1:])
    yield command_line("report", folder, o="report.html")


def made_by(document: Document, rows: Sequence[View]) -> Iterator[View]:
    """Yield the command that made each variant, with the names that the run gave its files."""
    stages = (document["measured"]["run"] or {}).get("stages", ())
    outputs = {stage["digest"]: stage["output"] for stage in stages}
    optimized = {
        name: optimization["optimizations"]
        for optimization in document["optimizations"]
        for name in optimization["variants"]
    }
    for row in rows:
        quantization, name = row["quantization"], row["name"]
        if "calibration" in quantization:
            options, ranges = dict[str, str](), quantization["calibration"]
            if ranges != NONE:
                options["calibration"] = outputs.get(ranges, "CALIBRATION.json")
            if name in optimized:
                options["optimizations"] = outputs.get(optimized[name], "OPTIMIZATIONS.npz")
            plan = quantization.get("plan")
            if plan in outputs or plan not in (None, *RESTS):
                options["plan"] = outputs.get(plan, "PLAN.json")
            elif plan in RESTS:
                options["rest"] = RESTS[plan]
            options["o"] = outputs.get(row["model"], f"{name}.onnx")
            command = command_line("quantize", "MODEL.onnx", **options)
            yield {"name": name, "command": command, "point": row["number"]}


def digests(document: Document) -> Iterator[tuple[str, str]]:
    """Yield every digest and fingerprint that the report rests on, after what it is of."""
    yield "this report", document["digest"]
    if comparison := document["comparison"]:
        yield "comparison", comparison["digest"]
        yield f"test data {comparison['dataset_name']}", comparison["dataset"]
        for row in comparison["rows"]:
            yield f"fingerprint of model {row['name']}", row["model"]
    for row in document["tests"]:
        yield f"A/B test of {row['candidate']} against {row['baseline']}", row["digest"]
    for row in document["calibrations"]:
        yield f"calibration {row['method']}", row["digest"]
        yield f"calibration data of {row['method']}", row["dataset"]
        yield f"histograms of {row['method']}", row["histograms"]
    for row in document["optimizations"]:
        names = ", ".join(row["variants"]) or "no variant"
        yield f"optimizations of {names}", row["optimizations"]
        yield f"record of optimizations of {names}", row["digest"]
        yield from ((f"ranges of {names}", ranges["digest"]) for ranges in row["calibrations"])
    if document["data_check"]:
        yield "data check", document["data_check"]["digest"]
    yield from ((f"plan, default {plan['default']}", plan["digest"]) for plan in document["plans"])
    for row in document["builds"]:
        yield f"build of {row['model_name']} for {row['target']}", row["digest"]
