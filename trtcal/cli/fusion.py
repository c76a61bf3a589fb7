"""`trtcal fusion`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.diagnose import show_findings
from trtcal.cli.equality import run_both
from trtcal.cli.output import (
    config_here,
    json_option,
    note,
    print_json,
    print_table,
    say,
    show_written,
)
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.evaluate.equality import Equality
    from trtcal.evidence.fusion.blockers import FixedModel
    from trtcal.evidence.fusion.check import Fusions, Seen
    from trtcal.evidence.fusion.matching import Match
    from trtcal.evidence.fusion.patterns import Patterns
    from trtcal.model import Model

SHOWN = 100
SLACK = 1.001  # of a step of Q/DQ, for the rounding of its own arithmetic


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
    help="Where to write the result as JSON, or with --fix the fixed ONNX.",
)
@json_option
def check(**given: Any) -> None:
    """Show which fusions MODEL's graph lets expect, what breaks them, and what LAYERS show.

    LAYERS is the folder of a build, the inspector's JSON or a verbose build log. The prediction and
    what was really built are shown separately: where they differ is a finding.
    """
    from trtcal.documents import write_document
    from trtcal.evidence.fusion.check import check_fusions
    from trtcal.evidence.fusion.patterns import read_patterns
    from trtcal.evidence.layers.reading import read_engine
    from trtcal.model import load_model

    asked = Asked(**given)
    if not asked.fix and (asked.add or asked.data or asked.random_samples):
        raise click.UsageError("--add, --data and --random go with --fix")
    patterns, model = read_patterns(asked.files), load_model(asked.model)
    found = check_fusions(model, patterns, read_engine(asked.layers) if asked.layers else None)
    if asked.fix:
        found = _write_fixed(asked, model, found, patterns)
    else:
        if asked.output:
            write_document(asked.output, found.to_document())
        show(found, asked.as_json)
    if asked.fail_on_broken and found.broken:
        raise GateFailed(
            f"{len(found.broken)} of {len(found.matches)} patterns are broken",
            "--fix fixes what passes can",
        )


@dataclass(frozen=True)
class Asked:
    """The command line of `check`."""

    model: Path
    layers: Path | None
    files: tuple[Path, ...]
    fix: bool
    add: tuple[str, ...]
    data: Path | None
    random_samples: int | None
    fail_on_broken: bool
    output: Path | None
    as_json: bool


def show(found: Fusions, as_json: bool) -> None:
    """Print every match, the findings, and counts."""
    _note(found)
    if as_json:
        print_json(found.to_document())
        return
    print_table(
        ("root node", "pattern", "prediction", "why", "engine"), _rows(found), found.model_name
    )
    _more(len(found.matches))
    show_findings(found.findings, SHOWN, "--json")
    whole = len(found.matches) - len(found.broken)
    say(f"prediction: {len(found.matches)} patterns, {whole} whole, {len(found.broken)} broken")
    if found.layers:
        counts = {word: found.verdicts.count(word) for word in ("agrees", "differs", "unknown")}
        listed = ", ".join(f"{count} {word}" for word, count in counts.items())
        say(f"evidence: {len(found.layers.layers)} engine layers: {listed}")


def _note(found: Fusions) -> None:
    if found.inner:
        note(f"note: {found.inner} nodes in subgraphs and functions were not checked")
    if found.is_of_other_model:
        note("note: the layers are of another model's build: nodes are found by their names")


def _rows(found: Fusions) -> list[tuple[str, ...]]:
    """Return a row for each match, what is broken or differs first, up to as many as are shown."""
    rows = zip(found.matches, found.seen, found.verdicts, strict=True)
    ordered = sorted(rows, key=lambda row: row[0].state == "whole" and row[2] != "differs")
    return [
        (match.root, match.pattern, match.state, _reasons(match), _shown(seen, verdict))
        for match, seen, verdict in ordered[:SHOWN]
    ]


def _more(count: int) -> None:
    if count > SHOWN:
        say(f"… and {count - SHOWN} more: use --json")


def _shown(seen: Seen | None, verdict: str) -> str:
    if seen is None:
        return "no layers given"
    if not seen.is_known:
        return seen.state
    kinds = " + ".join(kind for _, kind in seen.layers)
    return f"{verdict}: {len(seen.layers)} ({kinds})"


def _write_fixed(asked: Asked, model: Model, found: Fusions, patterns: Patterns) -> Fusions:
    """Write the fixed model and print what was fixed; return how the patterns stand now.

    `GateFailed` if the outputs differ by more than rounding, or one step of a pair that is gone.
    """
    from trtcal.evidence.fusion.blockers import fix_fusions
    from trtcal.evidence.fusion.check import check_fusions
    from trtcal.model.files import write_onnx

    if asked.output is None:
        raise InputError("--fix needs a place for the fixed ONNX", "give -o fixed.onnx")
    fixed = fix_fusions(model, found, asked.add)
    if fixed.step is not None and not asked.data:
        raise InputError(
            "without a Q/DQ pair values move: that has to be measured on real data", "give --data"
        )
    images = config_here().images
    equality = run_both(model, fixed.model, asked.data, asked.random_samples, images)
    if equality and not _holds(fixed, equality):
        raise GateFailed(
            f"the fixed model's outputs differ by {equality.largest:.2g} of the largest value, "
            f"more than {_bound(fixed, equality)}: nothing was written",
            "fix less: leave out --add" if asked.add else "report it: no pass should do that",
        )
    left = check_fusions(fixed.model, patterns)
    written = write_onnx(asked.output, fixed.model.proto)
    if asked.as_json:
        where = {"output": str(asked.output), "digest": written.digest, "weights": written.weights}
        print_json({**where, **_document(fixed, equality, found, left)})
        return left
    _show_fixed(fixed, equality, found, left)
    show_written(asked.output, written)
    return left


def _fixed(found: Fusions, left: Fusions) -> list[Match]:
    broken = {match.root for match in left.broken}
    return [match for match in found.broken if match.root not in broken]


def _document(
    fixed: FixedModel, equality: Equality | None, found: Fusions, left: Fusions
) -> dict[str, Any]:
    return {
        "passes": [vars(record) for record in fixed.records],
        "equality": equality and {**vars(equality), "largest": equality.largest},
        "fixed": [{**asdict(one), "root": one.root} for one in _fixed(found, left)],
        "left": left.to_document(),
    }


def _show_fixed(
    fixed: FixedModel, equality: Equality | None, found: Fusions, left: Fusions
) -> None:
    rows = [(one.name, one.changes, one.skipped or "") for one in fixed.records]
    print_table(("pass", "changes", "skipped"), rows)
    for match in _fixed(found, left):
        say(f"fixed: {match.pattern} at {match.root!r}: {_reasons(match)}")
    for match in left.broken:
        say(f"left: {match.pattern} at {match.root!r}: {_reasons(match)}")
    if equality is None:
        say("not run: give --data to check that it computes the same")
        return
    say(
        f"largest relative difference over {equality.samples} samples: {equality.largest:.3g} "
        f"(allowed: {_bound(fixed, equality)})"
    )


def _holds(fixed: FixedModel, equality: Equality) -> bool:
    """Return whether outputs differ by no more than rounding or, without a Q/DQ pair, one step."""
    if equality.holds or fixed.step is None:
        return equality.holds
    moved = [(name, part) for name, part in equality.differences.items() if part]
    step = SLACK * fixed.step
    return all(0 < part * equality.magnitudes[name] <= step for name, part in moved)


def _bound(fixed: FixedModel, equality: Equality) -> str:
    if fixed.step is None:
        return f"{equality.tolerance:g}, which rounding explains"
    return f"one step of Q/DQ, {fixed.step:g}, in every output"


def _reasons(match: Match) -> str:
    return "; ".join(one.why for one in match.breakers)


@command.command(epilog="Example: trtcal fusion diff before.json after.json")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@patterns_option
@json_option
def diff(a: Path, b: Path, files: tuple[Path, ...], as_json: bool) -> None:
    """Show which fusions were broken or made from A to B: each a model, or a check's JSON.

    `trtcal fusion MODEL LAYERS -o check.json` writes such a JSON, with what the layers showed.
    """
    from trtcal.evidence.fusion.diff import diff_fusions, read_standings
    from trtcal.evidence.fusion.patterns import read_patterns

    patterns = read_patterns(files)
    found = diff_fusions(*(read_standings(path, patterns) for path in (a, b)))
    if as_json:
        print_json(found.to_document())
        return
    rows = [(c.subject, c.what, c.kind, c.before or "-", c.after or "-") for c in found.changes]
    columns = ("root node", "in", "what", "before", "after")
    print_table(columns, rows[:SHOWN], f"{a} -> {b}")
    _more(len(rows))
    counts = ", ".join(f"{count} {kind}" for kind, count in found.counts().items())
    say(f"{counts}, {found.unchanged} unchanged")
