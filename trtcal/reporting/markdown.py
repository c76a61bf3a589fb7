"""The report as Markdown for a pull request: the verdict first, short enough for one comment.

Names and sentences are untrusted. What could be markup is written as a character reference, and what
a forge would make a mention, an issue or a link of gets a word joiner (U+2060) inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trtcal.documents import Document
from trtcal.reporting import finding_view, layer_view, sections, text, view
from trtcal.reporting import finding_view as optimization_view
from trtcal.reporting.versions import current

# The second and third would begin a list, a heading or a block of code at the start of a line.
MARKUP = re.compile(r"[\\`*_{}\[\]<>|~&$@#!^]|^[\s=+-]+|^\d+(?=[.)](?:\s|$))")
REFERENCES = re.compile(r"@|#|!(?=\d)|:(?=//)|\bwww(?=\.)|\bgh-(?=\d)", re.IGNORECASE)
JOINER = "\u2060"
NAME_SHOWN, SENTENCE_SHOWN = 80, 500
# Characters that a section may have, so that all of them stay under 60,000.
REASONS, CANDIDATES, FINDINGS, LAYERS, AGAINST, DIGESTS = 6000, 12000, 14000, 6000, 4000, 8000
REPAIRS = 3000
FINDINGS_SHOWN, LOST_SHOWN, NODES_SHOWN = 10, 5, 5


def to_markdown(document: Document) -> str:
    """Return a report document, of this version or before, as Markdown under 60,000 characters."""
    document = current(document)
    sections = (
        _verdict(document),
        _variants(document),
        _checks(document),
        _optimizations(document),
        _findings(document),
        _layers(document),
        _against(document),
        _digests(document),
    )
    return "\n".join(line for section in sections if section for line in (*section, ""))


def escaped(value: object, shown: int = SENTENCE_SHOWN) -> str:
    """Return any text so that it stands there as it is and is nothing else, on one line."""
    plain = text.shorten(text.visible(str(value)), shown)
    apart = REFERENCES.sub(lambda found: found[0] + JOINER, plain)
    return MARKUP.sub(lambda found: "".join(f"&#{ord(one)};" for one in found[0]), apart)


def code(value: object, shown: int = NAME_SHOWN) -> str:
    """Return a name as code."""
    return f"<code>{escaped(value, shown)}</code>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(heads), _row(["---"] * len(heads)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _within(lines: Sequence[str], most: int, more: str = "- … and {} more") -> list[str]:
    """Return the lines that `most` characters have room for, and how many more there are."""
    kept: list[str] = []
    for line in lines:
        most -= len(line) + 1
        if most < 0:
            return [*kept, more.format(len(lines) - len(kept))]
        kept.append(line)
    return kept


def _verdict(document: Document) -> list[str]:
    found = view.verdict(document)
    figures = [
        (escaped(name), escaped(value), escaped(told)) for name, value, told in found["figures"]
    ]
    names, values, told = zip(*figures, strict=True) if figures else ((), (), ())
    table = _table(names, [[f"**{value}**" for value in values], told]) if figures else []
    reasons = [f"- {escaped(reason)}" for reason in found["reasons"]]
    return [
        f"## INT8: {escaped(found['word'], NAME_SHOWN)}",
        "",
        f"**Verdict:** {escaped(found['sentence'], 2 * SENTENCE_SHOWN)}",
        "",
        *table,
        "",
        *_within(reasons, REASONS),
    ]


def _variants(document: Document) -> list[str]:
    costs = document["measured"].get("costs")
    heads = ["Variant", "Top-1, %", "Agreement, %", "SQNR, dB", "Latency, ms", "Speed-up", "Size"]
    rows = [_variant(row, costs) for row in view.variants(document)]
    if not rows:
        return ["Nothing was compared with FP32."]
    head = _table([*heads, *([_cost_head(costs)] if costs else []), "Limits"], [])
    table = [*head, *_within(list(map(_row, rows)), CANDIDATES, "| … and {} more |")]
    note = ["", escaped(costs["note"])] if costs else []
    return ["### Variants", "", *table, *note]


def _cost_head(costs: Document) -> str:
    price = costs["price"]
    return f"Cost of a million, {escaped(price['currency'])}" if price else "Cost, % of FP32's"


def _variant(row: view.View, costs: Document | None) -> list[str]:
    accuracy, latency = row["accuracy"], row["latency"]
    name = code(row["name"])
    return [
        f"**{name}**" if row["is_chosen"] else name,
        text.number(accuracy["top1"]),
        text.number(accuracy["agreement"]),
        text.number(accuracy["sqnr_db"], 1),
        text.milliseconds(latency["p50_ms"]),
        f"{text.number(latency['speedup'])} ({text.between(*latency['speedup_interval'])})",
        text.size(row["size_bytes"]),
        *([_cost(costs["variants"].get(row["name"]) or {})] if costs else []),
        "FP32" if row["is_reference"] else escaped(row["state"] or text.MISSING),
    ]


def _cost(found: Document) -> str:
    cost = found.get("cost") or found.get("relative")
    if not cost:
        return text.MISSING
    value, low, high = (f"{cost[key]:.4g}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _checks(document: Document) -> list[str]:
    found = view.verdict(document)
    keys = ("limit", "value", "interval", "margin", "state")
    rows = [
        [escaped(one["measure"]), *(escaped(one[key]) for key in keys)] for one in found["limits"]
    ]
    heads = ("Measure", "Limit", "Value", "95 % interval", "Margin", "State")
    table = _table(heads, rows) if rows else []
    return ["### Limits", "", *table, "", f"Rule: {escaped(found['rule'], 2 * SENTENCE_SHOWN)}"]


def _optimizations(document: Document) -> list[str]:
    """Return what each improvement brought, and each of its tries in a line, where there is one."""
    lines = []
    for one in optimization_view.optimizations(document):
        lines.append(f"- {code(one['title'])}: {escaped(one['sentence'])}")
        lines += [f"  - {_try(made)}" for made in one["tries"]]
    return ["### Optimizations", "", *_within(lines, REPAIRS)] if lines else []


def _try(made: view.View) -> str:
    before, after = (text.number(made[when]["sqnr"]) for when in ("before", "after"))
    result = "kept" if made["kept"] else "not kept"
    return f"{escaped(made['name'], NAME_SHOWN)}: SQNR {before} to {after} dB, {result}"


def _findings(document: Document) -> list[str]:
    found = finding_view.findings(document)
    lines = [_finding(one) for one in found["shown"][:FINDINGS_SHOWN]]
    rest = found["beyond"] + len(found["shown"]) - len(lines)
    if not lines:
        lines = ["None." if found["known"] else "No build was diagnosed."]
    more = ["", f"{text.count(rest, 'more finding')} in the report's page."] if rest else []
    return ["### Findings", "", *_within(lines, FINDINGS), *more]


def _finding(one: view.View) -> str:
    costs = f" ({escaped(', '.join(one['costs']))})" if one["costs"] else ""
    about = f"{code(one['subject'])}: " if one["subject"] else ""
    where = escaped(", ".join(one["builds"]), 2 * NAME_SHOWN)
    alike = f" And {len(one['alike'])} like it." if one["alike"] else ""
    return (
        f"- {about}{escaped(one['what'])}{alike}{costs} **Do:** {escaped(one['fix'])} In {where}."
    )


def _layers(document: Document) -> list[str]:
    """Return how much of INT8 each build got, and which layers of the verdict's variant did not."""
    lines = []
    chosen = [row["model"] for row in view.variants(document) if row["is_chosen"]]
    for build in layer_view.builds(document, chosen[0] if chosen else None):
        lines.append(f"- {code(build['model_name'])}: {escaped(build['summary'])}")
        unmet = [f"  - {_unmet(one)}" for one in build["unmet"] if build["is_chosen"]]
        rest = len(unmet) - LOST_SHOWN
        lines += unmet[:LOST_SHOWN] + [f"  - … and {rest} more"] * (rest > 0)
    lines = lines or ["No engine was built, so this is not known."]
    return ["### What got INT8", "", *_within(lines, LAYERS)]


def _unmet(outcome: view.View) -> str:
    why = f": {escaped(outcome['reason'], 2 * NAME_SHOWN)}" if outcome.get("reason") else ""
    asked, got = escaped(outcome["asked"]), escaped(outcome["got"])
    more = len(outcome["nodes"]) - NODES_SHOWN
    names = ", ".join(map(code, outcome["nodes"][:NODES_SHOWN])) + f" and {more} more" * (more > 0)
    return f"{names} asked {asked}, got {got}{why}"


def _against(document: Document) -> list[str]:
    """Return what changed since the last run, where the document tells it."""
    found = sections.against(document)
    if found is None:
        return []
    lines = [
        f"- {escaped(one['name'])}: {one['before']:.5g} to {one['now']:.5g} {escaped(one['unit'])} "
        f"({'better' if one['better'] else 'worse'})"
        for one in [*found["told"], *found["more"]]
    ]
    lines += [f"- changed: {escaped(one['what'])}" for one in found["changed"]]
    label = code(found["run"]["label"])
    return [f"### Since {label}", "", *(_within(lines, AGAINST) or ["Nothing changed."])]


def _digests(document: Document) -> list[str]:
    rows = [_row([escaped(what, NAME_SHOWN), code(one)]) for what, one in view.digests(document)]
    head = ["<details><summary>Digests</summary>", "", *_table(("Of", "Digest"), [])]
    return [*head, *_within(rows, DIGESTS, "| … and {} more | |"), "", "</details>"]
