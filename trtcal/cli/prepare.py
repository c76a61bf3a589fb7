"""`trtcal prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.equality import EqualityOptions, show_equality
from trtcal.cli.options import ModelOptions, PassOptions, SkipOptions, TrustOptions, option
from trtcal.cli.output import Columns, print_table, say
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.evaluate.equality import Equality
    from trtcal.model.passes import Prepared


class Prepare(
    ModelOptions,
    EqualityOptions,
    PassOptions,
    SkipOptions,
    TrustOptions,
    example="trtcal prepare model.onnx --data images.npz --skip-pass scales -o prepared.onnx",
):
    """Prepare MODEL for Q/DQ by passes that do not change its outputs, and write the result.

    calibrate, quantize and run start with the same passes. The status is 1, and nothing is
    written, if the outputs differ by more than float rounding.
    """

    listed: bool = option("List the passes, and do nothing else.", "--list")
    add: tuple[str, ...] = option(
        "Pass that runs only on request; may be repeated.", metavar="NAME"
    )
    outputs: str | None = option(
        "Tensors at which the graph is cut: what they need is kept. ONNX Runtime computes the "
        "rest wherever the model's own outputs are judged.",
        metavar="NAME,NAME",
    )
    output: Path | None = option(
        "ONNX file for the prepared model.  [default: MODEL-prepared.onnx]", "-o"
    )
    checkpoints: Path | None = option(
        "Folder for the record of each pass: checkpoints.jsonl and graphs.npz, as in a run's "
        "folder.",
        metavar="FOLDER",
    )

    def _run(self) -> None:
        if self.listed:
            _list_passes(self)
            return
        from trtcal.model.cut import cut, metadata_of, tail_of
        from trtcal.model.files import write_onnx
        from trtcal.model.passes import prepare_with_record
        from trtcal.model.passes.bfloat16 import FLOAT32
        from trtcal.pipeline.own_passes import passes_of
        from trtcal.runs.follower import Follower, find

        config = self.with_passes(self.config.trusting(self.trust))
        settings, passes = config.prepare, passes_of(config)
        folder = self.checkpoints
        follower = (Follower if folder is None else find("checkpoints", "checkpoints"))(config)
        loaded = self.load_model()
        path = self.output or Path(f"{Path(str(loaded.path)).stem}-prepared.onnx")
        body = cut(loaded, self.outputs.split(",")) if self.outputs else loaded
        skip, add = [*settings.skip, *self.skipped], [*settings.add, *self.add]
        prepared = prepare_with_record(body, skip, add, passes, follower.see_graph)
        tail = tail_of(metadata_of(prepared.model.proto))
        before = loaded
        if FLOAT32.name in add:  # nothing here runs what it was before
            others = [stage.name for stage in passes if stage.name != FLOAT32.name]
            before = prepare_with_record(loaded, others, [FLOAT32.name], passes).model
        equality = self.run_both(before, prepared.model, self.config)
        if equality and not equality.holds:
            worst = max(equality.differences, key=equality.differences.__getitem__)
            moved = f"{worst!r} by {equality.largest:.2g} of its largest value"
            what = f"({moved}, where rounding explains {equality.tolerance:g}): nothing was written"
            hint = "find the pass with --skip-pass, and report it as a defect"
            raise GateFailed(f"the outputs of the prepared model differ {what}", hint)
        written = write_onnx(path, prepared.model.proto)
        if folder is not None:
            follower.see_prepared(prepared)
            follower.write(folder)
        document = {
            "model": loaded.fingerprint,
            "passes": [vars(record) for record in prepared.records],
            "notes": list(prepared.notes),
            "equality": equality and {**vars(equality), "largest": equality.largest},
            "cut": tail and {"at": tail.cut, "outputs": tail.outputs, "operators": tail.operators},
        }
        kind = "random " if self.random_samples else ""
        self.present_onnx(path, written, document, lambda: _show(prepared, equality, kind))
        if tail and not self.as_json:
            cut_off = ", ".join(f"{count} {op}" for op, count in tail.operators.items())
            say(f"{path} ends at {', '.join(tail.cut)}; cut off: {cut_off}")
            names = ", ".join(tail.outputs)
            say(f"ONNX Runtime computes {names} from them in compare, ab, search and run")


command = Prepare.command()


def _list_passes(options: Prepare) -> None:
    from trtcal.model.passes import PASSES

    passes = [
        {"name": x.name, "purpose": x.purpose, "runs": "on request" if x.on_request else "always"}
        for x in dict.fromkeys(PASSES)
    ]
    columns = {"pass": "{name}", "what it is for": "{purpose}", "runs": "{runs}"}
    options.present({"passes": passes}, lambda: print_table(passes, columns))


def _show(prepared: Prepared, equality: Equality | None, kind: str) -> None:
    columns: Columns = {
        "pass": "{name}",
        "changes": "{changes}",
        "before": lambda record: record.before[7:19],
        "after": lambda record: record.after[7:19],
        "skipped": "{skipped}",
    }
    print_table(prepared.records, columns)
    say(*prepared.notes, head="not changed: ")
    show_equality(equality, f"rounding explains {equality.tolerance:g}" if equality else "", kind)
