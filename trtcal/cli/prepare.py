"""`trtcal prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.equality import run_both
from trtcal.cli.output import (
    config_here,
    config_option,
    json_option,
    print_json,
    print_table,
    required,
    say,
    show_written,
)
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.evaluate.equality import Equality
    from trtcal.model.passes import Prepared


@dataclass(frozen=True)
class Options:
    """What the options say, each by its name."""

    model: Path | None
    listed: bool
    skip: tuple[str, ...]
    add: tuple[str, ...]
    data: Path | None
    random_samples: int | None
    output: Path | None
    config_path: Path | None
    as_json: bool


@click.command(
    epilog="Example: trtcal prepare model.onnx --data images.npz --skip scales -o prepared.onnx"
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--list", "listed", is_flag=True, help="Only say which passes there are.")
@click.option("--skip", multiple=True, metavar="NAME", help="A pass to skip; may be repeated.")
@click.option(
    "--add",
    multiple=True,
    metavar="NAME",
    help="A pass that runs on request only; may be repeated.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Run both models on these data, and write nothing if they differ.",
)
@click.option(
    "--random",
    "random_samples",
    type=click.IntRange(1),
    metavar="N",
    help="Do so on N random samples, from a fixed seed: weaker evidence than data.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the ONNX.")
@config_option
@json_option
def command(**options: Any) -> None:
    """Write MODEL made ready for Q/DQ by passes that do not change what it computes.

    calibrate, quantize and run do the same first, by themselves. The status is 1, and nothing is
    written, if the outputs differ by more than float rounding.
    """
    asked = Options(**options)
    if asked.listed:
        _list_passes(asked.as_json)
        return
    from trtcal.model import load_model
    from trtcal.model.files import write_onnx
    from trtcal.model.passes import prepare_with_record

    config = config_here(asked.config_path)
    path = required(asked.output, "the output", "-o")
    loaded = load_model(required(asked.model or config.model, "the model", "MODEL"))
    settings = config.prepare
    prepared = prepare_with_record(
        loaded, [*settings.skip, *asked.skip], [*settings.add, *asked.add]
    )
    equality = run_both(loaded, prepared.model, asked.data, asked.random_samples, config.images)
    if equality:
        _check(equality)
    written = write_onnx(path, prepared.model.proto)
    if asked.as_json:
        where = {"output": str(path), "digest": written.digest, "weights": written.weights}
        print_json({"model": loaded.fingerprint, **where, **_document(prepared, equality)})
        return
    _show(prepared, equality, "random" if asked.random_samples else "")
    show_written(path, written)


def _list_passes(as_json: bool) -> None:
    """Print which passes there are, in their order."""
    from trtcal.model.passes import PASSES

    rows = [
        (one.name, one.purpose, "on request" if one.on_request else "always")
        for one in dict.fromkeys(PASSES)
    ]
    if as_json:
        keys = ("name", "purpose", "runs")
        print_json({"passes": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(("pass", "what it is for", "runs"), rows)


def _check(equality: Equality) -> None:
    if not equality.holds:
        raise GateFailed(
            f"the prepared model gives other outputs ({_difference(equality)}): nothing was written",
            "--skip passes one by one to find out which, and report it",
        )


def _difference(equality: Equality) -> str:
    worst = max(equality.differences, key=equality.differences.__getitem__)
    return (
        f"{worst!r} by {equality.largest:.2g} of its largest value, "
        f"where rounding explains {equality.tolerance:g}"
    )


def _document(prepared: Prepared, equality: Equality | None) -> dict[str, Any]:
    return {
        "passes": [vars(record) for record in prepared.records],
        "notes": list(prepared.notes),
        "equality": equality and {**vars(equality), "largest": equality.largest},
    }


def _show(prepared: Prepared, equality: Equality | None, kind: str) -> None:
    rows = [
        (one.name, one.changes, one.before[7:19], one.after[7:19], one.skipped or "")
        for one in prepared.records
    ]
    print_table(("pass", "changes", "before", "after", "skipped"), rows)
    for line in prepared.notes:
        say(f"left alone: {line}")
    if equality:
        samples = f"{equality.samples} {kind} samples".replace("  ", " ")
        say(
            f"largest relative difference over {samples}: {equality.largest:.3g} "
            f"(rounding explains {equality.tolerance:g})"
        )
    else:
        say("not run: give --data to check that it computes the same")
