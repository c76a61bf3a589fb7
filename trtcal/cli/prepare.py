"""`trtcal prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.equality import EqualityOptions
from trtcal.cli.options import ModelOptions, PassOptions, TrustOptions, option, required
from trtcal.cli.output import Columns, print_table, say
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.evaluate.equality import Equality
    from trtcal.model.cut import Tail
    from trtcal.model.passes import Prepared


class Prepare(
    ModelOptions,
    EqualityOptions,
    PassOptions,
    TrustOptions,
    example="trtcal prepare model.onnx --data images.npz --skip scales -o prepared.onnx",
):
    """Write MODEL made ready for Q/DQ by passes that do not change what it computes.

    calibrate, quantize and run do the same first, by themselves. The status is 1, and nothing is
    written, if the outputs differ by more than float rounding.
    """

    listed: bool = option("Only say which passes there are.", "--list")
    skip: tuple[str, ...] = option("A pass to skip; may be repeated.", metavar="NAME")
    add: tuple[str, ...] = option(
        "A pass that runs on request only; may be repeated.", metavar="NAME"
    )
    outputs: str | None = option(
        "Cut the graph at these tensors: keep what they need. ONNX Runtime computes the rest where "
        "the model's own outputs are judged.",
        metavar="NAME,NAME",
    )
    output: Path | None = option("Where to write the ONNX.", "-o")
    checkpoints: Path | None = option(
        "Folder for what each pass did: checkpoints.jsonl and graphs.npz, as a run has them.",
        metavar="FOLDER",
    )

    def _run(self) -> None:
        if self.listed:
            _list_passes(self)
            return
        from trtcal.model.cut import cut, metadata_of, tail_of
        from trtcal.model.files import write_onnx
        from trtcal.model.passes import prepare_with_record
        from trtcal.pipeline.own_passes import passes_of
        from trtcal.runs.checkpoints import checkpoints_of, write_checkpoints

        config = self.with_passes(self.config.trusting(self.trust))
        settings, passes = config.prepare, passes_of(config)
        path, with_graphs = required(self.output, "the output", "-o"), self.checkpoints is not None
        loaded = self.load_model()
        body = cut(loaded, self.outputs.split(",")) if self.outputs else loaded
        prepared = prepare_with_record(
            body, [*settings.skip, *self.skip], [*settings.add, *self.add], passes, with_graphs
        )
        tail = tail_of(metadata_of(prepared.model.proto))
        equality = self.run_both(loaded, prepared.model, self.config)
        if equality:
            _check(equality)
        written = write_onnx(path, prepared.model.proto)
        if self.checkpoints is not None:
            write_checkpoints(self.checkpoints, checkpoints_of(prepared), prepared.graphs)
        document = {
            "model": loaded.fingerprint,
            "passes": [vars(record) for record in prepared.records],
            "notes": list(prepared.notes),
            "equality": equality and {**vars(equality), "largest": equality.largest},
            "cut": tail and {"at": tail.cut, "outputs": tail.outputs, "operators": tail.operators},
        }
        kind = "random" if self.random_samples else ""
        self.present_onnx(path, written, document, lambda: _show(prepared, equality, kind))
        if tail and not self.as_json:
            _show_cut(path, tail)


command = Prepare.command()


def _list_passes(options: Prepare) -> None:
    """Print which passes there are, in their order."""
    from trtcal.model.passes import PASSES

    passes = [
        {
            "name": one.name,
            "purpose": one.purpose,
            "runs": "on request" if one.on_request else "always",
        }
        for one in dict.fromkeys(PASSES)
    ]
    columns = {"pass": "{name}", "what it is for": "{purpose}", "runs": "{runs}"}
    options.present({"passes": passes}, lambda: print_table(passes, columns))


def _show_cut(path: Path, tail: Tail) -> None:
    """Print what the cut part is, and who computes it."""
    counted = ", ".join(f"{count} {op}" for op, count in tail.operators.items())
    say(f"{path} ends at {', '.join(tail.cut)}; cut off: {counted}")
    say(f"ONNX Runtime computes {', '.join(tail.outputs)} from them in compare, ab, search and run")


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


def _show(prepared: Prepared, equality: Equality | None, kind: str) -> None:
    columns: Columns = {
        "pass": "{name}",
        "changes": "{changes}",
        "before": lambda one: one.before[7:19],
        "after": lambda one: one.after[7:19],
        "skipped": "{skipped}",
    }
    print_table(prepared.records, columns)
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
