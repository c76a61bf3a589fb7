"""`trtcal checkpoint`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.alerts import AlertOptions
from trtcal.cli.options import (
    DB,
    JsonOptions,
    ModelOptions,
    PairOptions,
    TrustOptions,
    add_commands,
    argument,
    history_path,
    option,
    required,
)
from trtcal.cli.output import Columns, is_verbose, print_table, say, say_more
from trtcal.config import ALERT, FILE, RERUN, read_config
from trtcal.errors import GateFailed, InputError, TrtcalError

if TYPE_CHECKING:
    from trtcal.config import Config
    from trtcal.evidence.fusion.fusions import Fusions
    from trtcal.pipeline.checkpoint_verify import Verification
    from trtcal.runs.checkpoint_diff import ChainDifference, Delta
    from trtcal.runs.checkpoints import Checkpoints
    from trtcal.runs.history import History

SHOWN = 100


@click.group(epilog="Example: trtcal checkpoint verify reports/ --baseline good/")
def command() -> None:
    """Show the output of each pass and stage of a run, and find the first one that differs."""


class Show(JsonOptions, example="trtcal checkpoint show reports/digits"):
    """Show the checkpoints of RUN: a line for each pass and stage, with its input and output digests.

    RUN is the folder of a run, or one that `trtcal prepare --checkpoints` wrote.
    """

    run: Path = argument()

    def _run(self) -> None:
        from trtcal.evidence.chain import chained
        from trtcal.runs.checkpoints import Checkpoints

        chain = Checkpoints.read(self.run).chain
        columns: Columns = {
            "": "{0}",
            "stage": "{1.stage}",
            "pass or output": "{1.name}",
            "of": "{1.subject}",
            "before": lambda row: row[1].before[7:19],
            "after": lambda row: (
                "unchanged" if row[1].before == row[1].after else row[1].after[7:19]
            ),
            "tool": "{1.tool} {1.tool_version}",
        }
        rows = [*enumerate(chain, 1)]
        self.present(chained(chain), lambda: print_table(rows, columns, shown=SHOWN))


class Diff(PairOptions, example="trtcal checkpoint diff good/ reports/"):
    """Show the passes and stages whose output differs between run A and run B, and why.

    The first one is the cause of those after it, if only their input changed.
    """

    def _run(self) -> None:
        from trtcal.runs.checkpoint_diff import compare_chains
        from trtcal.runs.checkpoints import Checkpoints

        found = compare_chains(*map(Checkpoints.read, (self.a, self.b)))
        self.present(found.to_document(), lambda: _show(found))


def _show(found: ChainDifference) -> None:
    columns: Columns = {
        "": "{number}",
        "stage": "{checkpoint.stage}",
        "pass or output": "{checkpoint.name}",
        "of": "{checkpoint.subject}",
        "changed": lambda one: ", ".join(one.changed),
        "in the graph": lambda one: "" if one.got_another else str(one.graph or ""),
    }
    if found.first is None:
        say("all passes and stages have the same outputs")
    else:
        say(f"first: {found.first}")
        causes = [one for one in found.deltas if not one.got_another]
        rows = found.deltas if is_verbose() else causes or found.deltas[:1]
        print_table(rows, columns, shown=SHOWN)
        say_more(len(found.deltas), len(rows), "with another input")
    _show_same(found.same_output)


def _show_same(same: Sequence[Delta]) -> None:
    """Print how many outputs are the same although something changed; each of them with -v."""
    kinds = Counter(" and ".join(one.changed) for one in same)
    for changed, count in kinds.items():
        say(f"{count} outputs are the same although the {changed} changed")
    for one in same if is_verbose() else ():
        say(f"the same output: {one.name} (number {one.number})")


class Verify(
    AlertOptions, JsonOptions, TrustOptions, example="trtcal checkpoint verify reports/digits"
):
    """Compare RUN's checkpoints with those of a baseline; the status is 1 if an output differs.

    The pass or stage of the first delta runs once more. Given CONFIG, trtcal runs its preparation
    passes now, and the baseline is the run in its output folder; a delta that does not repeat is then
    no failure. Given RUN, the baseline is the last run before it in the history whose folder still
    exists, or the run that RUN replaced.
    """

    source: Path = argument(default=Path(FILE), metavar="[RUN|CONFIG]")
    baseline: Path | None = option("Folder of the baseline run.")
    against: int | None = option("Number of the baseline run in the history.")
    db: Path | None = option(DB)

    def _run(self) -> None:
        found, actions = self._of_run() if self.source.is_dir() else self._of_config()
        self.present(found.to_document(), lambda: _show_verification(found))
        if found.finding is None or not (found.is_repeated or self.source.is_dir()):
            return
        if ALERT in actions:
            self.send_alerts(found.to_document())
        raise GateFailed(found.sentence, _hint(self.source, found.baseline))

    def _of_run(self) -> tuple[Verification, tuple[str, ...]]:
        from trtcal.pipeline.checkpoint_verify import baseline_of, verify_run
        from trtcal.pipeline.origin import read_origin

        actions = read_origin(self.source).checkpoint.on_delta
        baseline = self.baseline or baseline_of(self.source, self._history(), self.against)
        return verify_run(self.source, baseline, RERUN in actions, self.trust), actions

    def _of_config(self) -> tuple[Verification, tuple[str, ...]]:
        from trtcal.pipeline.checkpoint_verify import verify_passes

        config: Config = read_config(self.source).trusting(self.trust)
        baseline = self.baseline or config.run_folder
        if self.against is not None:
            raise InputError(
                "--against works for the folder of a run, not for a trtcal.toml",
                "give the folder of a run, or --baseline FOLDER",
            )
        actions = config.checkpoint.on_delta
        return verify_passes(config, baseline, RERUN in actions), actions

    def _history(self) -> History | None:
        from trtcal.runs.history import History

        path = history_path(self.db)
        try:
            return History(path) if path.exists() or self.db else None
        except TrtcalError:
            if self.db or self.against is not None:
                raise
            return None


def _show_verification(found: Verification) -> None:
    if found.finding is None:
        say(found.sentence)
        return
    _show(found.difference)
    say(f"ran once more: {found.rerun}")


def _hint(source: Path, baseline: str) -> str:
    bad, good = shlex.quote(str(source)), shlex.quote(baseline)
    if source.is_dir():
        return (
            f"`trtcal bisect --good {good} --bad {bad} --limit LIMIT` finds the change that "
            "breaks a limit"
        )
    return f"if the change is intended, run again: `trtcal run {bad}`"


class Tvm(ModelOptions, example="trtcal checkpoint tvm model.onnx -o tvm/"):
    """Run MODEL through TVM's default pipeline: checkpoints of all passes, and the fusion check.

    The checkpoints go to OUTPUT, where `trtcal checkpoint show` and `diff` read them. Nothing is
    compiled and run but expressions of constants, by TVM's FoldConstant.
    """

    target: str = option("TVM's name for the target.", default="llvm")
    output: Path | None = option("Folder for the checkpoints and the fusion check.", "-o")
    fail_on_broken: bool = option("End with status 1 if a pattern is broken.")

    def _run(self) -> None:
        from trtcal.evidence.chain import chained
        from trtcal.runs.tvm.compiler import compile_in_tvm

        output = required(self.output, "the output", "-o")
        made, fusions = compile_in_tvm(self.load_model(), output, self.target)
        document = {"checkpoints": chained(made.chain), "fusions": fusions.to_document()}
        self.present(document, lambda: _show_tvm(output, made, fusions))
        if self.fail_on_broken and fusions.broken:
            raise GateFailed(
                f"{len(fusions.broken)} of {len(fusions.matches)} patterns are broken in TVM",
                f"`trtcal checkpoint diff GOOD {output}` names the pass; GOOD is such a folder "
                "without the fault",
            )


def _show_tvm(output: Path, made: Checkpoints, fusions: Fusions) -> None:
    from trtcal.cli.fusion import show

    changing = sum(one.before != one.after for one in made.chain)
    say(f"{len(made.chain)} passes, of which {changing} change the module: {output}")
    show(fusions)


add_commands(command, Show, Diff, Verify, Tvm)
