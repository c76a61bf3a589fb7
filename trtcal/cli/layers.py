"""`trtcal layers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from trtcal.cli.diagnose import show_findings
from trtcal.cli.output import json_option, note, print_json, print_table, say

Row = Mapping[str, Any]


@click.group(epilog="Example: trtcal layers show builds/sm89 --top 20")
def command() -> None:
    """Show what an engine spends its time on, and explain how two engines differ."""


@command.command(epilog="Example: trtcal layers show graph.json --profile profile.json --target t4")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="Layer times: trtexec --exportProfile.  [default: in a folder, the one that lies there]",
)
@click.option(
    "--target",
    metavar="NAME|FILE",
    help="Estimate limits for a GPU: a name such as t4 or l4, or a TOML file of datasheet numbers.",
)
@click.option("--top", type=click.IntRange(0), default=15, show_default=True, help="Rows to show.")
@json_option
def show(file: Path, profile: Path | None, target: str | None, top: int, as_json: bool) -> None:
    """Show shares by precision, copies, left-over Q/DQ and the costliest layers of an engine.

    FILE is an inspector's JSON, the folder of a build, a verbose log or a TensorRT-RTX engine.
    """
    from trtcal.evidence.layers.costs import find_target
    from trtcal.evidence.layers.findings import examine
    from trtcal.evidence.layers.reading import engine_document, read_engine

    gpu = find_target(target) if target else None
    engine = read_engine(file, profile)
    document = engine_document(engine, gpu)
    if as_json:
        print_json(document)
        return
    for line in document["notes"]:
        note(f"note: {line}")
    _show_shares(document)
    _show_layers(document, top)
    show_findings(examine(engine.layers).findings, top, "--json")
    _say_totals(document)


def _show_shares(document: Row) -> None:
    unit = document["shares_of"]
    for title, key in (("precision", "by_precision"), ("kind", "by_kind")):
        rows = [
            (one["name"], one["layers"], _ms(one["time_ms"]), _mb(one["moved_bytes"]), _share(one))
            for one in document[key]
        ]
        print_table((title, "layers", "ms", "MB", f"share of {unit}"), rows)


def _show_layers(document: Row, top: int) -> None:
    layers = sorted(document["layers"], key=_weight)[:top]
    columns = ["layer", "kind", "precision", "ms", "MB", "GMAC"]
    if document["target"]:
        columns += ["estimate ms", "bound", "efficiency"]
    rows = [_layer_row(layer) for layer in layers]
    title = f"costliest layers of {document['source']}"
    if document["target"]:
        title += f"; limits are estimates for {document['target']}"
    print_table(columns, rows, title)


def _weight(layer: Row) -> tuple[float, int]:
    return -(layer["time_ms"] or 0.0), -((layer["bytes_read"] or 0) + (layer["bytes_written"] or 0))


def _layer_row(layer: Row) -> list[str]:
    from trtcal.evidence.layers.costs import short

    known = None not in (layer["bytes_read"], layer["bytes_written"])
    moved = layer["bytes_read"] + layer["bytes_written"] if known else None
    macs = "" if layer["macs"] is None else f"{layer['macs'] / 1e9:.4g}"
    row = [short(layer["name"]), layer["kind"], layer["counted_precision"]]
    row += [_ms(layer["time_ms"]), _mb(moved), macs]
    if limit := layer["estimate"]:
        efficiency = limit["efficiency"]
        row += [_ms(limit["estimated_ms"]), limit["bound"]]
        row.append("" if efficiency is None else f"{100 * efficiency:.0f} %")
    return row


def _say_totals(document: Row) -> None:
    origins: dict[str, list[Row]] = defaultdict(list)
    for one in document["reformats"]:
        origins["free" if one["is_free"] else one["origin"] or "unknown"].append(one)
    for origin, found in origins.items():
        times = [one["time_ms"] for one in found if one["time_ms"] is not None]
        cost = (
            f"{sum(times):.4g} ms"
            if times
            else f"{_mb(sum(o['moved_bytes'] or 0 for o in found))} MB"
        )
        say(f"copies, origin {origin}: {len(found)}, {cost}")
    total = "no times" if document["total_ms"] is None else f"{document['total_ms']:.4g} ms"
    say(
        f"{len(document['layers'])} layers, {total}, {_mb(document['moved_bytes'])} MB moved, "
        f"{len(document['unfused_qdq'])} Q/DQ steps left over, {len(document['findings'])} findings"
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _mb(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.4g}"


def _share(one: Row) -> str:
    return "" if one["share"] is None else f"{100 * one['share']:.1f} %"


@command.command(
    epilog="Example: trtcal layers diff a/graph.json b/graph.json --profile-a a/profile.json "
    "--profile-b b/profile.json"
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--profile-a", type=click.Path(path_type=Path), help="Layer times of A.")
@click.option("--profile-b", type=click.Path(path_type=Path), help="Layer times of B.")
@json_option
def diff(a: Path, b: Path, profile_a: Path | None, profile_b: Path | None, as_json: bool) -> None:
    """Explain what changed from engine A to B: precision, fusions, copies, time."""
    from trtcal.evidence.layers.diff import compare_engines
    from trtcal.evidence.layers.diff_text import describe
    from trtcal.evidence.layers.reading import read_engine

    difference = compare_engines(read_engine(a, profile_a), read_engine(b, profile_b))
    sentences = describe(difference)
    if as_json:
        print_json({**difference.to_document(), "in_words": list(sentences)})
        return
    for line in (*difference.before.notes, *difference.after.notes):
        note(f"note: {line}")
    for sentence in sentences:
        say(sentence)
