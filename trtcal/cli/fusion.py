"""`trtcal fusion`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import (
    config_here,
    json_option,
    note,
    print_json,
    print_table,
    progress,
    say,
)
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.compare.equality import Equality
    from trtcal.fusion import Fusions, Match, Mended, Patterns, Seen
    from trtcal.model import Model

BATCH = 32
FINDINGS = 40


class DefaultGroup(click.Group):
    """A group that takes what is no command of its own for arguments of `check`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `check` first, if nothing else stands there."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultGroup, epilog="Example: trtcal fusion model.onnx build/ --json")
def command() -> None:
    """Find what should be one kernel, what breaks it, and what a build made of it.

    `trtcal fusion MODEL [LAYERS]` is `trtcal fusion check`.
    """


patterns_option = click.option(
    "--patterns",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A TOML file with patterns of your own; may be repeated.",
)


@command.command(epilog="Example: trtcal fusion model.onnx build/ --fail-on-broken")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("layers", type=click.Path(path_type=Path), required=False)
@patterns_option
@click.option("--fix", is_flag=True, help="Take out what breaks a pattern; write the ONNX to -o.")
@click.option(
    "--add",
    multiple=True,
    metavar="NAME",
    help="With --fix: a pass that changes values, rounding-casts or inner-pairs; may be repeated.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="With --fix: run both models on these data, and write nothing if they differ.",
)
@click.option(
    "--random",
    "random_samples",
    type=click.IntRange(1),
    metavar="N",
    help="Do so on N random samples, from a fixed seed: weaker evidence than data.",
)
@click.option("--fail-on-broken", is_flag=True, help="Status 1 if a pattern is broken.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write the result as JSON, or with --fix the mended ONNX.",
)
@json_option
def check(
    model: Path,
    layers: Path | None,
    files: tuple[Path, ...],
    fix: bool,
    add: tuple[str, ...],
    data: Path | None,
    random_samples: int | None,
    fail_on_broken: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say which fusions MODEL's graph lets expect, what breaks them, and what LAYERS show.

    LAYERS is the folder of a build, the inspector's JSON or a verbose build log. The prediction and
    what was really built are kept apart: where they differ is a finding.
    """
    from trtcal.fusion import check_fusions, read_layers, read_patterns
    from trtcal.model import load_model
    from trtcal.storage import write_document

    if not fix and (add or data or random_samples):
        raise click.UsageError("--add, --data and --random go with --fix")
    patterns = read_patterns(files)
    loaded = load_model(model)
    found = check_fusions(loaded, patterns, read_layers(layers) if layers else None)
    if fix:
        found = _fix(loaded, found, patterns, add, data, random_samples, output, as_json)
    else:
        if output:
            write_document(output, found.to_document())
        if as_json:
            print_json(found.to_document())
        else:
            show(found)
    if fail_on_broken and found.broken:
        raise GateFailed(
            f"{len(found.broken)} of {len(found.matches)} patterns are broken",
            "--fix mends what passes can",
        )


def show(found: Fusions) -> None:
    """Print every match, the findings, and counts."""
    rows = [_row(match, seen) for match, seen in zip(found.matches, found.seen, strict=True)]
    print_table(("root node", "pattern", "prediction", "why", "engine"), rows, found.model_name)
    for finding in found.findings[:FINDINGS]:
        moved = finding.cost.moved_bytes
        cost = f" ({moved} bytes moved)" if moved else ""
        say(f"{finding.kind}: {finding.what}{cost}: {finding.fix}")
    if len(found.findings) > FINDINGS:
        say(f"… and {len(found.findings) - FINDINGS} more: use --json")
    whole = len(found.matches) - len(found.broken)
    say(f"prediction: {len(found.matches)} patterns, {whole} whole, {len(found.broken)} broken")
    if found.layers:
        counts = {word: found.verdicts.count(word) for word in ("agrees", "differs", "unknown")}
        said = ", ".join(f"{count} {word}" for word, count in counts.items())
        say(f"evidence: {len(found.layers.layers)} engine layers: {said}")
    _note(found)


def _note(found: Fusions) -> None:
    if found.inner:
        note(f"note: {found.inner} nodes in subgraphs and functions were not looked at")
    if found.is_of_other_model:
        note("note: the layers are of another model's build: nodes are found by their names")


def _row(match: Match, seen: Seen | None) -> tuple[str, ...]:
    why = "; ".join(f"{', '.join(one.nodes)}: {one.why}" for one in match.breakers)
    return (match.root, match.pattern, match.state, why, _shown(seen))


def _shown(seen: Seen | None) -> str:
    if seen is None:
        return "no layers given"
    if not seen.is_known:
        return seen.state
    kinds = " + ".join(kind for _, kind in seen.layers)
    return f"{len(seen.layers)}: {kinds}"


def _fix(
    model: Model,
    found: Fusions,
    patterns: Patterns,
    add: tuple[str, ...],
    data: Path | None,
    random_samples: int | None,
    output: Path | None,
    as_json: bool,
) -> Fusions:
    """Mend, check that it computes the same, write; return how the patterns then stand."""
    from trtcal.fusion import check_fusions, mend
    from trtcal.onnxfile import write_onnx

    if output is None:
        raise InputError("--fix needs a place for the mended ONNX", "give -o mended.onnx")
    if data and random_samples:
        raise click.UsageError("give --data or --random, not both")
    mended = mend(model, found, add)
    if mended.moves and not data:
        raise InputError(
            "without a Q/DQ pair values move: that has to be measured on real data", "give --data"
        )
    equality = None
    if data or random_samples:
        equality = _checked(model, mended, data, random_samples or 0)
    left = check_fusions(mended.model, patterns)
    written = write_onnx(output, mended.model.proto)
    if as_json:
        print_json(
            {
                "output": str(output),
                "digest": written.digest,
                "weights": written.weights,
                "passes": [vars(record) for record in mended.records],
                "equality": equality and {**vars(equality), "largest": equality.largest},
                "mended": _mended(found, left),
                "left": left.to_document(),
            }
        )
        return left
    _show_mended(found, left, mended, equality)
    say(f"wrote {output}  {written.digest[:19]}")
    if written.weights is not None:
        say(f"wrote its weights beside it, where they have to stay: {written.weights}")
    return left


def _mended(found: Fusions, left: Fusions) -> list[dict[str, Any]]:
    broken = {match.root for match in left.broken}
    return [
        {
            "pattern": match.pattern,
            "root": match.root,
            "breakers": [vars(b) for b in match.breakers],
        }
        for match in found.broken
        if match.root not in broken
    ]


def _show_mended(found: Fusions, left: Fusions, mended: Mended, equality: Equality | None) -> None:
    rows = [(one.name, one.changes, one.skipped or "") for one in mended.records]
    print_table(("pass", "changes", "skipped"), rows)
    for one in _mended(found, left):
        said = ", ".join(repr(name) for part in one["breakers"] for name in part["nodes"])
        say(f"mended: {one['pattern']} at {one['root']!r}, without {said}")
    for match in left.broken:
        reasons = "; ".join(part.why for part in match.breakers)
        say(f"left: {match.pattern} at {match.root!r}: {reasons}")
    if equality is None:
        say("not run: give --data to check that it computes the same")
        return
    bound = "one INT8 step of the largest value is" if mended.moves else "rounding explains"
    say(
        f"largest relative difference over {equality.samples} samples: {equality.largest:.3g} "
        f"({bound} {equality.tolerance:.3g})"
    )


def _checked(given: Model, mended: Mended, data: Path | None, random_samples: int) -> Equality:
    """Return how far apart the outputs are; `GateFailed` if further than rounding, or one step."""
    from dataclasses import replace

    from trtcal.compare.comparison import batch_for
    from trtcal.compare.equality import check_equal
    from trtcal.data import open_dataset
    from trtcal.data.drawn import draw_batches
    from trtcal.fusion.mending import STEP

    if data:
        dataset = open_dataset(data, given, config_here().images)
        batches, samples = dataset.batches(batch_for(given, BATCH)), len(dataset)
    else:
        note("note: random inputs show less than data: most of them no network ever sees")
        batches, samples = draw_batches(given, random_samples, BATCH), random_samples
    with progress("running both models", samples) as advance:
        equality = check_equal(given, mended.model, batches, advance)
    if mended.moves:
        equality = replace(equality, tolerance=max(equality.tolerance, STEP))
    if not equality.holds:
        raise GateFailed(
            f"the mended model's outputs differ by {equality.largest:.2g} of the largest value, "
            f"more than {equality.tolerance:.2g}: nothing was written",
            "mend less: leave out --add",
        )
    return equality


@command.command(epilog="Example: trtcal fusion diff before.json after.json")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@patterns_option
@json_option
def diff(a: Path, b: Path, files: tuple[Path, ...], as_json: bool) -> None:
    """Say which fusions were broken or made from A to B: each a model, or a check's JSON.

    `trtcal fusion MODEL LAYERS -o check.json` writes such a JSON, with what the layers showed.
    """
    from trtcal.fusion import diff_fusions, read_patterns, read_standings

    patterns = read_patterns(files)
    found = diff_fusions(*(read_standings(path, patterns) for path in (a, b)))
    if as_json:
        changes = [one.to_document() for one in found.changes]
        print_json({"changes": changes, "unchanged": found.unchanged})
        return
    rows = [(c.root, c.pattern, c.kind, c.question, c.before, c.after) for c in found.changes]
    columns = ("root node", "pattern", "what", "in", "before", "after")
    print_table(columns, rows, f"{a} -> {b}")
    counts = {kind: sum(one.kind == kind for one in found.changes) for kind in CHANGES}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    say(f"{said}, {found.unchanged} unchanged")


CHANGES = ("broken", "made", "gone", "new")
