"""What `trtcal search` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtcal.cli.output import note, print_table, say

SHOWN = 4


def show(document: dict[str, Any], folder: Path) -> None:
    """Print the front, the recommended plan and why."""
    rows = [
        (
            f"{row['plan']}{' *' if row['recommended'] else ''}",
            _named(row["float_layers"]),
            f"{row['cost_ms']:.4g}",
            f"{row['speedup']:.3g}",
            "inf" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}",
            _number(row["loss"]["kl"]),
            _number(row["loss"]["top1_drop"], row["loss"]["disagreement"]),
            *_built(row["built"]),
        )
        for row in document["front"]
    ]
    columns = (
        "plan",
        "left in float",
        "ms",
        "speed-up",
        "SQNR dB",
        "KL",
        "drop",
        "MB moved",
        "lost",
    )
    print_table(columns, rows, f"plans worth having; ms: {document['costs']}")
    say(
        f"{len(document['measured_plans'])} plans measured on {document['samples']['plans']} samples"
    )
    _show_unfit(document)
    if not document["complete"]:
        cut = "; ".join(document["missing"])
        note(f"note: stopped by a limit: {cut}; the same command with more time or --plans goes on")
    for one in document["front"]:
        if one["recommended"]:
            say(f"recommended: {one['plan']}: {document['reason']}")
            say(f"the same by hand: {one['command']}")
    if document["held_back"] is not None or document["complete"]:
        _show_held_back(document)
    say(f"wrote {folder / 'search.json'}  {document['digest'][:19]}")


def _show_unfit(document: dict[str, Any]) -> None:
    """Name the layers that float16 is too small for, and the plans that are out for that."""
    if document["beyond_float16"]:
        names = _named(document["beyond_float16"])
        note(f"warning: float16 is too small for values in layers, which stay in INT8: {names}")
        note("hint: --float fp32 can leave them out")
    unfit = [row["float_layers"] for row in document["measured_plans"] if not row["finite"]]
    for layers in unfit[:SHOWN]:
        where = f"with {document['float_precision']} for {_named(layers)}"
        note(f"warning: values are infinite or NaN {where}; that plan is out")
    if len(unfit) > SHOWN:
        note(f"warning: and those of {len(unfit) - SHOWN} more plans")


def _show_held_back(document: dict[str, Any]) -> None:
    """Print what INT8 and the recommended plan lose on samples that had no part in the search."""
    held = document["held_back"]
    if held is None:
        note(
            "note: no plan was checked on other samples than it was chosen on: a smaller "
            "--evaluate, or more data, leaves some for that"
        )
        return
    columns = ("left in float", "judged on", "SQNR dB", "KL", "drop")
    print_table(columns, list(_checks(held)), f"checked on {held['samples']} samples held back")
    for row in held["plans"]:
        name = _named(row["float_layers"])
        if row["differs"]:
            note(f"warning: float {name}: held-back samples differ by more than chance")
        if row["broken_limits"] and row is held["plans"][-1] and document["recommended"]:
            note(f"warning: float {name}: breaks {', '.join(row['broken_limits'])} on them")


def _checks(held: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in held["plans"]:
        for name, key in (
            ("the search's samples", "chosen_on"),
            ("held-back samples", "held_back"),
        ):
            loss, sqnr = row[key]["loss"], row[key]["sqnr_db"]
            drop = _number(loss["top1_drop"], loss["disagreement"])
            yield _named(row["float_layers"]), name, _number(sqnr), _number(loss["kl"]), drop


def _named(layers: list[str]) -> str:
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return f"{len(layers)}: {', '.join(layers[:SHOWN])}{more}" if layers else "none"


def _number(*values: float | None) -> str:
    return next((f"{value:.3g}" for value in values if value is not None), "")


def _built(built: dict[str, Any] | None) -> tuple[str, str]:
    if built is None or built["failed"]:
        return "" if built is None else "failed", ""
    return f"{built['bytes_moved'] / 1e6:.4g}", str(built["float_heavy"])
