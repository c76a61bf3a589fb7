"""`trtcal trace`."""

from __future__ import annotations

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
)
from trtcal.cli.output import Columns, is_verbose, print_table, say, say_more
from trtcal.config import ALERT, FILE, RERUN, read_config
from trtcal.documents.streams import command_line
from trtcal.errors import GateFailed, InputError, TrtcalError
from trtcal.wings.forensics.cli.bisect import Bisect

if TYPE_CHECKING:
    from trtcal.config import Config
    from trtcal.evidence.fusion.fusions import Fusions
    from trtcal.runs.history import History
    from trtcal.wings.forensics.checkpoint_diff import ChainDifference, Delta
    from trtcal.wings.forensics.checkpoint_verify import Verification
    from trtcal.wings.forensics.checkpoints import Checkpoints

ROWS_SHOWN = 100


@click.group(epilog="Example: trtcal trace verify reports/ --baseline good/")
def command() -> None:
    """Show the output of each pass and stage of a run, and find the change that breaks a limit."""


class Show(JsonOptions, example="trtcal trace show reports/digits"):
    """Show the checkpoints of RUN: a line for each pass and stage, with its input and output digests.

    RUN is the folder of a run, or one that `trtcal prepare --checkpoints` wrote.
    """

    run: Path = argument()

    def _run(self) -> None:
        from trtcal.wings.forensics.chain import chained
        from trtcal.wings.forensics.checkpoints import Checkpoints

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
        self.present(chained(chain), lambda: print_table(rows, columns, shown=ROWS_SHOWN))


class Diff(PairOptions, example="trtcal trace diff good/ reports/"):
    """Show the passes and stages whose output differs between run A and run B, and why.

    The first one is the cause of those after it, if only their input changed.
    """

    def _run(self) -> None:
        from trtcal.wings.forensics.checkpoint_diff import compare_chains
        from trtcal.wings.forensics.checkpoints import Checkpoints

        difference = compare_chains(*map(Checkpoints.read, (self.a, self.b)))
        self.present(difference.to_document(), lambda: _show(difference))


def _show(difference: ChainDifference) -> None:
    columns: Columns = {
        "": "{number}",
        "stage": "{checkpoint.stage}",
        "pass or output": "{checkpoint.name}",
        "of": "{checkpoint.subject}",
        "changed": lambda delta: ", ".join(delta.changed),
        "in the graph": lambda delta: "" if delta.got_another else str(delta.graph or ""),
    }
    if difference.first is None:
        say("all passes and stages have the same outputs")
    else:
        say(f"first: {difference.first}")
        causes = [delta for delta in difference.deltas if not delta.got_another]
        rows = difference.deltas if is_verbose() else causes or difference.deltas[:1]
        print_table(rows, columns, shown=ROWS_SHOWN)
        say_more(len(difference.deltas), len(rows), "with another input")
    _show_same(difference.same_output)


def _show_same(same: Sequence[Delta]) -> None:
    """Print how many outputs are the same although something changed; each of them with -v."""
    kinds = Counter(" and ".join(delta.changed) for delta in same)
    for changed, count in kinds.items():
        say(f"{count} outputs are the same although the {changed} changed")
    for delta in same if is_verbose() else ():
        say(f"the same output: {delta.name} (number {delta.number})")


class Verify(AlertOptions, JsonOptions, TrustOptions, example="trtcal trace verify reports/digits"):
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
        verification, actions = self._of_run() if self.source.is_dir() else self._of_config()
        self.present(verification.to_document(), lambda: _show_verification(verification))
        if verification.finding is None or not (verification.is_repeated or self.source.is_dir()):
            return
        if ALERT in actions:
            self.send_alerts(verification.to_document())
        raise GateFailed(verification.sentence, _hint(self.source, verification.baseline))

    def _of_run(self) -> tuple[Verification, tuple[str, ...]]:
        from trtcal.runs.settings import read_settings
        from trtcal.wings.forensics.checkpoint_verify import baseline_of, verify_run

        actions = read_settings(self.source).checkpoint.on_delta
        baseline = self.baseline or baseline_of(self.source, self._history(), self.against)
        return verify_run(self.source, baseline, RERUN in actions, self.trust), actions

    def _of_config(self) -> tuple[Verification, tuple[str, ...]]:
        from trtcal.wings.forensics.checkpoint_verify import verify_passes

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


def _show_verification(verification: Verification) -> None:
    if verification.finding is None:
        say(verification.sentence)
        return
    _show(verification.difference)
    say(f"ran once more: {verification.rerun}")


def _hint(source: Path, baseline: str) -> str:
    if source.is_dir():
        command = command_line("trace", "bisect", good=baseline, bad=source, limit="LIMIT")
        return f"`{command}` finds the change that breaks a limit"
    return f"if the change is intended, run again: `{command_line('run', source)}`"


class Tvm(ModelOptions, example="trtcal trace tvm model.onnx -o tvm/"):
    """Run MODEL through TVM's default pipeline: checkpoints of all passes, and the fusion check.

    The checkpoints go to OUTPUT, where `trtcal trace show` and `diff` read them. Nothing is
    compiled and run but expressions of constants, by TVM's FoldConstant.
    """

    target: str = option("TVM's name for the target.", default="llvm")
    output: Path = option(
        "Folder for the checkpoints and the fusion check.", "-o", default=Path("tvm")
    )
    fail_on_broken: bool = option("End with status 1 if a pattern is broken.")

    def _run(self) -> None:
        from trtcal.wings.forensics.chain import chained
        from trtcal.wings.forensics.tvm.compiler import compile_in_tvm

        output = self.output
        checkpoints, fusions = compile_in_tvm(self.load_model(), output, self.target)
        document = {"checkpoints": chained(checkpoints.chain), "fusions": fusions.to_document()}
        self.present(document, lambda: _show_tvm(output, checkpoints, fusions))
        if self.fail_on_broken and fusions.broken:
            raise GateFailed(
                f"{len(fusions.broken)} of {len(fusions.matches)} patterns are broken in TVM",
                f"`trtcal trace diff GOOD {output}` names the pass; GOOD is such a folder "
                "without the fault",
            )


def _show_tvm(output: Path, checkpoints: Checkpoints, fusions: Fusions) -> None:
    from trtcal.cli.fusion import show

    changing = sum(checkpoint.before != checkpoint.after for checkpoint in checkpoints.chain)
    say(f"{len(checkpoints.chain)} passes, of which {changing} change the module: {output}")
    show(fusions)


add_commands(command, Show, Diff, Verify, Bisect, Tvm)
