"""What the report shows of engines: builds, findings, layers, fusions, logs, from its plain JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trtcal.calibration.formats.qdq import FP16
from trtcal.documents import Document, from_fields
from trtcal.errors import some
from trtcal.evidence.findings import RISKS
from trtcal.evidence.log.recognition import CATEGORIES
from trtcal.evidence.manifest import runs_on_cpu
from trtcal.formats import NARROW, RANGED, spelled
from trtcal.limits import BROKEN
from trtcal.quantization.coverage import Coverage
from trtcal.reporting import text

View = dict[str, Any]

CPU = "cpu"  # the target that is this machine's
FINDINGS_SHOWN = 40
TABLE_BYTES = 190_000  # bytes of the one full table, so that the page stays light
ROW_BYTES = 190  # bytes of a row without its names
LOST_SHOWN = 40  # reasons why layers of one build got something else
NODE, NODES = "convolution or matrix product", "convolutions and matrix products"
NONE_ASKED = "no convolution or matrix product was requested in a narrow format"
NAME_SHOWN = 60  # of an engine layer's name, which may list hundreds of fused parts


def is_cpu(build: View) -> bool:
    """Tell whether a build's engine runs on a CPU, here or on a device."""
    return runs_on_cpu(build["backend"], build["target"])


def grouped(items: Sequence[View], *keys: str) -> Iterator[list[View]]:
    """Yield the items that have the same values for some keys, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[View]] = {}
    for item in items:
        groups.setdefault(tuple(item[key] for key in keys), []).append(item)
    yield from groups.values()


def builds(document: Document, model: str | None) -> list[View]:
    """Return what each build made of the plan: those of `model` first, a GPU's before a CPU's."""
    measured = document["measured"]["builds"]
    ordered = sorted(
        ({**build, **measured[build["digest"]]} for build in document["builds"]),
        key=lambda build: (build["model"] != model, is_cpu(build)),
    )
    return [
        {**_build(build), "is_chosen": build["model"] == model, "number": number}
        for number, build in enumerate(ordered, 1)
    ]


def _build(build: View) -> View:
    requested, met = _counts(build)
    lost = [row for row in build["outcomes"] if row["got"] not in (row["asked"], "unknown")]
    unknown = [outcome for outcome in build["outcomes"] if outcome["got"] == "unknown"]
    unmet = [
        {**own[0], "nodes": [row["node"] for row in own]}
        for own in grouped([*lost, *unknown], "asked", "got", "reason", "hint")
    ]
    heavy = Counter(layer["precision"] for layer in build["layers"] if layer["heavy"])
    coverage = coverage_of(build)
    return {
        **build,
        "title": title_of(build),
        "asked": requested,
        "met": met,
        "share": coverage and coverage.narrow_share,
        "formats": list(coverage.formats) if coverage else [],
        "summary": summary_of(build),
        "rest": list(coverage.details()) if coverage else [],
        "is_explained": bool(unmet) or (coverage is not None and coverage.is_low),
        "lost": len(lost),
        "unknown": len(unknown),
        "unmet": unmet[:LOST_SHOWN],
        "groups": len(unmet),
        "heavy": ", ".join(f"{many} {name}" for name, many in sorted(heavy.items())),
    }


def formats_of(document: Document) -> set[str]:
    """Return the narrow formats of the variant of the verdict, else of all variants or builds."""
    comparison, chosen = document["comparison"], document["measured"]["verdict"]["variant"]
    rows = [] if comparison is None else comparison["rows"]
    rows = [row for row in rows if row["name"] == chosen] or rows
    if not rows:
        every = (row["asked"] for build in document["builds"] for row in build["outcomes"])
        return {*every} & {*NARROW}
    counted = (from_fields(Coverage, row["coverage"]) for row in rows if row["coverage"])
    return {name for coverage in counted for name in coverage.formats}


def title_of(build: Mapping[str, Any]) -> str:
    """Return what a build is called in the report."""
    return f"{build['model_name']} on {build['target']}"


def _counts(build: View) -> tuple[int, int]:
    got = [row["got"] == row["asked"] for row in build["outcomes"] if row["asked"] in NARROW]
    return len(got), sum(got)


def coverage_of(build: View) -> Coverage | None:
    """Return how much of a build's compute is in narrow formats, None where it was not counted."""
    counted = build.get("coverage")
    return from_fields(Coverage, counted) if counted else None


def summary_of(build: View) -> str:
    """Return how much of a build's compute is in narrow formats, the largest rest, what was asked."""
    (requested, met), coverage = _counts(build), coverage_of(build)
    formats = {outcome["asked"] for outcome in build["outcomes"]}.intersection(NARROW)
    nodes, named = text.count(requested, NODE, NODES), spelled(formats)
    run = f"run in {named}" if len(formats) == 1 and formats <= {*RANGED} else "run as requested"
    plan = f"{met} of {nodes} requested in {named} {run}" if requested else NONE_ASKED
    shown = plan if coverage is None else f"{coverage.headline} ({plan})"
    return f"On {build['target']}: {shown}."


def logs(document: Document) -> list[View]:
    """Return each build's log and diagnosis; those of failed builds first."""
    measured = document["measured"]
    entries = [
        {"title": f"failed build {failed_log['where']}", "failed": True, **failed_log}
        for failed_log in measured["failed_logs"]
    ]
    for build in document["builds"]:
        own = measured["builds"][build["digest"]]
        entries.append({"title": title_of(build), "failed": False, **own})
    for entry in entries:
        counts = sorted((entry["log"] or {"counts": {}})["counts"].items())
        entry["counts"] = [f"{many} {name}" for name, many in counts]
    return entries


def log_events(logs: Sequence[View]) -> list[View]:
    """Return the findings of all logs, each with its builds; equal ones once, with their count."""
    every = [
        {**event, "row_id": line_id(number, event["line"]), "title": log["title"]}
        for number, log in enumerate(logs)
        for event in (log["log"] or {"events": []})["events"]
    ]
    return [
        {
            **own[0],
            "meaning": getattr(CATEGORIES.get(own[0]["category"]), "meaning", ""),
            "more": len(own) - 1,
            "titles": some(list(dict.fromkeys(event["title"] for event in own))),
        }
        for own in grouped(every, "severity", "category", "message")
    ]


def line_id(log: int, number: object) -> str:
    """Return the id on the page of a line of a log."""
    return f"line-{log}-{number}"


def findings(logs: Sequence[View]) -> View:
    """Return the findings of all builds, those of one kind, reason and remedy together.

    Each has `what` of its costliest, `alike` for the others, `names` of all that they are about, the
    `builds` that have them, and in `lines` the ids of the log lines of its evidence. `accepted` are
    those that a configuration accepts, `beyond` counts what is not shown here.
    """
    known = [log.get("diagnosis") or {} for log in logs]
    groups = grouped(_with_builds(logs, "findings"), "kind", "why", "fix")
    shown = sorted(map(_group, groups), key=_weight)[:FINDINGS_SHOWN]
    accepted = map(_group, grouped(_with_builds(logs, "accepted"), "kind", "subject", "fix"))
    total = sum(sum(diagnosis.get("kinds", {}).values()) for diagnosis in known)
    return {
        "shown": [
            {**finding, "number": number, "row_id": f"finding-{number}"}
            for number, finding in enumerate(shown, 1)
        ],
        "accepted": list(accepted)[:FINDINGS_SHOWN],
        "beyond": total - sum(finding["count"] for finding in shown),
        "broken": [
            (log["title"], limit)
            for log, diagnosis in zip(logs, known, strict=True)
            for limit in diagnosis.get("limits", [])
            if limit["state"] == BROKEN
        ],
        "known": any(known),
    }


def _with_builds(logs: Sequence[View], key: str) -> list[View]:
    return [
        {**entry, "title": log["title"], "log": number}
        for number, log in enumerate(logs)
        for entry in (log.get("diagnosis") or {}).get(key, [])
    ]


def _group(own: Sequence[View]) -> View:
    """Return findings as one: what all of it costs, each counted once, and what is like the first."""
    costs = {finding["what"]: finding["cost"] for finding in reversed(own)}
    cost = {key: _sum([part[key] for part in costs.values()]) for key in ("time_ms", "moved_bytes")}
    cost["risk"] = max((amount["risk"] for amount in costs.values()), key=RISKS.index)
    proofs = [(finding["log"], proof) for finding in own for proof in finding["evidence"]]
    names = {proof["place"] for _, proof in proofs if proof["source"] != "log"}
    return {
        **own[0],
        "alike": list(dict.fromkeys(finding["what"] for finding in own))[1:],
        "count": len(own),
        "builds": list(dict.fromkeys(finding["title"] for finding in own)),
        "names": (names | {finding["subject"] for finding in own}) - {None},
        "lines": {
            proof["place"]: line_id(log, proof["place"].rpartition(":")[2])
            for log, proof in reversed(proofs)
            if proof["source"] == "log"
        },
        "cost": cost,
        "costs": _costs(cost),
    }


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _costs(cost: View) -> list[str]:
    parts = [] if cost["time_ms"] is None else [f"{text.milliseconds(cost['time_ms'])} ms"]
    if cost["moved_bytes"] is not None:
        parts.append(f"{text.size(cost['moved_bytes'])} moved")
    return parts if cost["risk"] == "none" else [*parts, f"{cost['risk']} risk for accuracy"]


def _weight(finding: View) -> tuple[bool, float, float]:
    cost = finding["cost"]
    return cost["risk"] != "high", -(cost["time_ms"] or 0.0), -(cost["moved_bytes"] or 0)


def layer_table(
    document: Document, builds: Sequence[View], rows: Sequence[View], findings: Sequence[View]
) -> View | None:
    """Return the first build's nodes in the order of the graph, and what is beside each, if any.

    A row goes from a node of the ONNX file over the tensor that it reads, its histogram and its range
    to the engine's layer, its time and the numbers of the findings about it. `rows` are the variants.
    """
    build = next(iter(builds), {"outcomes": ()})
    if not build["outcomes"]:
        return None
    facts = _Facts(document, build, rows, findings)
    shown = list(_within(map(facts.row, build["outcomes"]), TABLE_BYTES))
    return {
        "title": build["title"],
        "rows": shown,
        "all": len(build["outcomes"]),
        "is_timed": any(row["time"] is not None for row in shown),
        "estimated_on": build["estimated_on"],
    }


def _within(rows: Iterable[View], room: int) -> Iterator[View]:
    """Yield the first rows, up to about so many bytes on the page."""
    for row in rows:
        names = (row["node"], row["tensor"] or "", row["shown"])
        room -= ROW_BYTES + sum(len(name.encode("utf-8", "replace")) for name in names)
        if room < 0:
            return
        yield row


class TensorFacts:
    """What is known of the tensors of one model: by the report's figures and by its own ranges."""

    def __init__(
        self, document: Document, rows: Sequence[View], model: str, calibration: str | None
    ) -> None:
        compared = next((row for row in rows if row["model"] == model), {})
        figures = (compared.get("layers") or {"figures": []})["figures"]
        self.calibration = calibration
        self.numbered = numbered_tensors(document)
        self.figures = {figure["tensor"]: figure for figure in figures if not figure["is_weight"]}

    def clipped(self, name: str | None) -> float | None:
        """Return the percentage of a tensor's values that its range cuts off."""
        observed = (name or "").removesuffix(FP16)
        ranges = self.numbered[observed][1]["ranges"] if observed in self.numbered else ()
        chosen = next((entry for entry in ranges if entry["calibration"] == self.calibration), None)
        return 100 * chosen["clipped"] if chosen else self._figure(name, "clipped")

    def sqnr(self, name: str | None) -> float | None:
        """Return the SQNR in dB of quantizing a tensor of the reference alone."""
        return self._figure(name, "own_db")

    def _figure(self, name: str | None, key: str) -> float | None:
        figure: float | None = self.figures.get(name, {}).get(key)
        return figure


class _Facts:
    """What is known of one build's model: by node, by tensor, by layer."""

    def __init__(
        self, document: Document, build: View, rows: Sequence[View], findings: Sequence[View]
    ) -> None:
        calibration = build["quantization"].get("calibration")
        self.tensors = TensorFacts(document, rows, build["model"], calibration)
        self.wiring = build["wiring"] or {}
        self.layers = {layer["name"]: layer for layer in build["layers"]}
        self.times = build["times_ms"]
        self.found: dict[str | None, list[int]] = {}
        for finding in findings:
            if build["title"] in finding["builds"]:
                for name in finding["names"]:
                    self.found.setdefault(name, []).append(finding["number"])

    def row(self, outcome: View) -> View:
        """Return one node's row."""
        wired = self.wiring.get(outcome["node"], {"op": None, "inputs": []})
        inputs = [tensor["tensor"] for tensor in wired["inputs"]]
        name = inputs[0] if inputs else None
        layer = self.layers.get(outcome["layer"]) or {}
        about = (outcome["node"], outcome["layer"], name)
        return {
            **outcome,
            "op": wired["op"],
            "tensor": name,
            "more": len(inputs) - 1,
            "number": self.tensors.numbered.get(str(name).removesuffix(FP16), (None,))[0],
            "amax": next((tensor["amax"] for tensor in wired["inputs"][:1]), None),
            "clipped": self.tensors.clipped(name),
            "sqnr": self.tensors.sqnr(name),
            "fused": len(layer.get("nodes", ())),
            "shown": text.shorten(text.visible(outcome["layer"] or ""), NAME_SHOWN),
            "time": self.times.get(outcome["layer"]),
            "estimate": _times(layer.get("estimated_ms"), 1e3),
            "kilobytes": _times(layer.get("bytes"), 1e-3),
            "findings": sorted({number for name in about for number in self.found.get(name, ())}),
        }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def numbered_tensors(document: Document) -> dict[str, tuple[int, View]]:
    """Return the tensors of which a histogram is known, with their numbers on the page, by name."""
    known = (tensor for tensor in document["tensors"] if tensor["bars"])
    return {tensor["name"]: (number, tensor) for number, tensor in enumerate(known, 1)}


def fusions(builds: Sequence[View]) -> list[View]:
    """Return for each build how many patterns the graph allows and how many the engine fused.

    Those that are broken or came out otherwise are listed for the verdict's variant.
    """
    tables = []
    for build in builds:
        every = build["fusions"] or ()
        states = Counter(fusion["prediction"] for fusion in every)
        seen = Counter(fusion["state"] for fusion in every)
        listed = [
            fusion
            for fusion in (every if build["is_chosen"] else ())
            if fusion["prediction"] == "broken" or fusion["verdict"] == "differs"
        ]
        counts = {"whole": states["whole"], "broken": states["broken"]}
        counts |= {"one": seen["one layer"], "several": seen["several layers"]}
        if every:
            tables.append({"title": build["title"], **counts, "listed": listed})
    return sorted(tables, key=lambda table: not table["listed"])


def skipped(document: Document) -> list[View]:
    """Return each layer that was not quantized, with the reason and its models."""
    every = [
        {"node": node, "reason": reason, "model": build["model_name"]}
        for build in document["builds"]
        for node, reason in build["skipped"].items()
    ]
    return [
        {**own[0], "models": list(dict.fromkeys(row["model"] for row in own))}
        for own in grouped(every, "node", "reason")
    ]
