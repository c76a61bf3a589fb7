"""`trtcal layers fusions`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.diagnose import show_findings
from trtcal.cli.equality import EqualityOptions, show_equality
from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import JsonOptions, PairOptions, add_commands, argument, config_here, option
from trtcal.cli.output import Columns, most, print_table, remark, say
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.evaluate.equality import Equality
    from trtcal.evidence.difference import Difference
    from trtcal.evidence.fusion.fusions import FixedModel, Fusions, Seen
    from trtcal.evidence.fusion.matching import Match
    from trtcal.evidence.fusion.patterns import Patterns
    from trtcal.model import Model

ROWS_SHOWN = 100
SLACK = 1.001  # of a step of Q/DQ, for the rounding of its own arithmetic


@click.group(
    "fusions",
    cls=ExtendedGroup,
    default="check",
    epilog="Example: trtcal layers fusions model.onnx build/ --json",
)
def command() -> None:
    """Show which fusions to expect, what breaks them, and what was built.

    `trtcal layers fusions MODEL [LAYERS]` is `trtcal layers fusions check`.
    """


class PatternOptions(JsonOptions):
    """The options of a command that looks for patterns."""

    files: tuple[Path, ...] = option(
        "A TOML file with patterns of your own; may be repeated.", "--patterns"
    )


class Check(
    PatternOptions,
    EqualityOptions,
    example="trtcal layers fusions model.onnx build/ --fail-on-broken",
):
    """Show which fusions MODEL's graph lets expect, what breaks them, and what LAYERS show.

    LAYERS is the folder of a build, the inspector's JSON or a verbose build log. The command shows
    the prediction and the built fusions separately: a difference is a finding.
    """

    model: Path = argument()
    layers: Path | None = argument()
    fix: bool = option("Remove what breaks a pattern; write the ONNX to -o.")
    add: tuple[str, ...] = option(
        "With --fix: also use a pass that changes values, rounding-casts or inner-pairs; may be "
        "repeated.",
        metavar="NAME",
    )
    data: Path | None = option(
        "With --fix: data to run both models on; if the outputs differ, nothing is written."
    )
    fail_on_broken: bool = option("End with status 1 if a pattern is broken.")
    output: Path | None = option(
        "JSON file for the result; with --fix the fixed ONNX.  [default with --fix: "
        "MODEL-fixed.onnx]",
        "-o",
    )

    def _run(self) -> None:
        from trtcal.documents import write_document
        from trtcal.evidence.fusion.fusions import check_fusions
        from trtcal.evidence.fusion.patterns import read_patterns
        from trtcal.evidence.layers.reading import read_engine
        from trtcal.model import load_model

        if not self.fix and (self.add or self.data or self.random_samples):
            raise click.UsageError("--add, --data and --random go with --fix")
        patterns, model = read_patterns(self.files), load_model(self.model)
        fusions = check_fusions(model, patterns, read_engine(self.layers) if self.layers else None)
        if self.fix:
            fusions = _write_fixed(self, model, fusions, patterns)
        else:
            if self.output:
                write_document(self.output, fusions.to_document())
            if fusions.inner:
                remark(f"{fusions.inner} nodes in subgraphs and functions were not checked")
            if fusions.layers and fusions.layers.model not in (None, fusions.model):
                remark("the layers are from a build of another model: nodes are matched by name")
            self.present(fusions.to_document(), lambda: show(fusions))
        if self.fail_on_broken and fusions.broken:
            what = f"{len(fusions.broken)} of {len(fusions.matches)} patterns are broken"
            raise GateFailed(what, "--fix removes what preparation passes can remove")


def show(fusions: Fusions) -> None:
    """Print every match, what is broken or differs first, the findings, and counts."""
    rows = zip(fusions.matches, fusions.seen, fusions.verdicts, strict=True)
    ordered = sorted(rows, key=lambda row: row[0].state == "whole" and row[2] != "differs")
    columns: Columns = {
        "root node": "{0.root}",
        "pattern": "{0.pattern}",
        "prediction": "{0.state}",
        "why": lambda row: _reasons(row[0]),
        "engine": lambda row: _shown(row[1], row[2]),
    }
    print_table(ordered, columns, fusions.model_name, shown=ROWS_SHOWN)
    show_findings(fusions.findings, most(ROWS_SHOWN))
    total, broken = len(fusions.matches), len(fusions.broken)
    say(f"prediction: {total} patterns, {total - broken} complete, {broken} broken")
    if fusions.layers:
        words = ("agrees", "differs", "unknown")
        listed = ", ".join(f"{fusions.verdicts.count(word)} {word}" for word in words)
        say(f"evidence: {len(fusions.layers.layers)} engine layers: {listed}")


def _shown(seen: Seen | None, verdict: str) -> str:
    if seen is None:
        return "no layers given"
    if not seen.is_known:
        return seen.state
    kinds = " + ".join(kind for _, kind in seen.layers)
    return f"{verdict}: {len(seen.layers)} ({kinds})"


def _write_fixed(options: Check, model: Model, fusions: Fusions, patterns: Patterns) -> Fusions:
    """Write the fixed model and print what was fixed; return how the patterns stand now.

    `GateFailed` if the outputs differ by more than rounding, or one step of a pair that is gone.
    """
    from trtcal.evidence.fusion.fusions import check_fusions, fix_fusions
    from trtcal.model.files import write_onnx

    output = options.output or Path(f"{options.model.stem}-fixed.onnx")
    fixed = fix_fusions(model, fusions, options.add)
    if fixed.step is not None and not options.data:
        what = "removing a Q/DQ pair changes values, and only data can measure by how much"
        raise InputError(what, "give --data")
    equality = options.run_both(model, fixed.model, config_here())
    if equality and not _holds(fixed, equality):
        fix = "fix fewer patterns: leave out --add"
        raise GateFailed(
            f"the fixed model's outputs differ by {equality.largest:.2g} of the largest value, "
            f"more than {_bound(fixed, equality)}: nothing was written",
            fix if options.add else "report this as a defect: no pass may change outputs",
        )
    left = check_fusions(fixed.model, patterns)
    written = write_onnx(output, fixed.model.proto)
    document = {
        "passes": [vars(record) for record in fixed.records],
        "equality": equality and {**vars(equality), "largest": equality.largest},
        "fixed": [{**asdict(match), "root": match.root} for match in _fixed(fusions, left)],
        "left": left.to_document(),
    }
    show = partial(_show_fixed, fixed, equality, fusions, left)
    options.present_onnx(output, written, document, show)
    return left


def _fixed(fusions: Fusions, left: Fusions) -> list[Match]:
    broken = {match.root for match in left.broken}
    return [match for match in fusions.broken if match.root not in broken]


def _show_fixed(
    fixed: FixedModel, equality: Equality | None, fusions: Fusions, left: Fusions
) -> None:
    print_table(fixed.records, {"pass": "{name}", "changes": "{changes}", "skipped": "{skipped}"})
    for word, matches in (("fixed", _fixed(fusions, left)), ("not fixed", left.broken)):
        say(*(f"{word}: {each.pattern} at {each.root!r}: {_reasons(each)}" for each in matches))
    show_equality(equality, f"allowed: {_bound(fixed, equality)}" if equality else "")


def _holds(fixed: FixedModel, equality: Equality) -> bool:
    """Return whether outputs differ by no more than rounding or, without a Q/DQ pair, one step."""
    if equality.holds or fixed.step is None:
        return equality.holds
    moved = [(name, part) for name, part in equality.differences.items() if part]
    return all(0 < part * equality.magnitudes[name] <= SLACK * fixed.step for name, part in moved)


def _bound(fixed: FixedModel, equality: Equality) -> str:
    if fixed.step is None:
        return f"{equality.tolerance:g}, which rounding explains"
    return f"one step of Q/DQ, {fixed.step:g}, in every output"


def _reasons(match: Match) -> str:
    return "; ".join(breaker.why for breaker in match.breakers)


class Diff(
    PairOptions, PatternOptions, example="trtcal layers fusions diff before.json after.json"
):
    """Show the fusions that were broken or restored from A to B: each a model, or a check's JSON.

    `trtcal layers fusions MODEL LAYERS -o check.json` writes such a JSON, with the fusions seen in the
    layers.
    """

    def _run(self) -> None:
        from trtcal.evidence.fusion.fusions import diff_fusions, read_standings
        from trtcal.evidence.fusion.patterns import read_patterns

        patterns = read_patterns(self.files)
        difference = diff_fusions(*(read_standings(path, patterns) for path in (self.a, self.b)))
        self.present(difference.to_document(), lambda: _show_diff(difference, self))


def _show_diff(difference: Difference[None, str], options: Diff) -> None:
    columns = {"root node": "{subject}", "in": "{what}", "what": "{kind}"}
    columns |= {"before": "{before}", "after": "{after}"}
    print_table(difference.changes, columns, options.title, "-", ROWS_SHOWN)
    counts = ", ".join(f"{count} {kind}" for kind, count in difference.counts().items())
    say(f"{counts}, {difference.unchanged} unchanged")


add_commands(command, Check, Diff)
