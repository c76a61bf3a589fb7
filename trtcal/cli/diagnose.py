"""`trtcal diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.advice import advise, recall
from trtcal.cli.options import DataOptions, JudgingOptions, argument, option
from trtcal.cli.output import most, print_limits, remark, say, say_more, show_coverage, warning
from trtcal.documents.streams import command_line
from trtcal.errors import InputError, some

if TYPE_CHECKING:
    from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis
    from trtcal.evidence.findings import Evidence, Finding

FINDINGS_SHOWN = 10
EVIDENCE_SHOWN = 2
COUNTED_AS = {
    "asked": "convolutions and products",
    "met": "in the precision asked for",
    "lost": "in another precision",
    "unknown": "in an unknown precision",
    "left_in_float": "left in float",
}


class Diagnose(
    DataOptions, JudgingOptions, example="trtcal diagnose builds/sm89 --log replayed.log"
):
    """Show what is wrong with the build in FOLDER, the most severe first, with evidence and fix.

    --layers, --log and --model, in any combination, describe engines built by other tools. With
    --data, the values of a model in float16 are measured: which overflow, and the cure. The status
    is 1 if a limit, given here or in trtcal.toml, is broken.
    """

    folder: Path | None = argument()
    model: Path | None = option(
        "The ONNX that was built, to match lines, layers and nodes. Alone, its graph is checked."
    )
    logs: tuple[Path, ...] = option(
        "A build log, in addition to FOLDER or alone; may be repeated.", "--log"
    )
    layers: Path | None = option(
        "In place of FOLDER: an inspector's JSON, a folder or log, or a TensorRT-RTX engine."
    )
    profile: Path | None = option("Layer times for --layers, from which costs are computed.")

    def _run(self) -> None:
        from trtcal.evidence.diagnosis.build_diagnosis import hold

        diagnosis = _diagnose(self)
        if self.logs and not diagnosis.counts["log_events"]:
            remark("the logs have no message of a builder: are they build logs?")

        def show_all() -> None:
            show(diagnosis)
            say(*_details(self), head="details: ")

        self.present(diagnosis.to_document(), show_all)
        if self.folder:
            files, test = recall(self.folder), self.config.evaluation.data
            words = ("compare", files.get("model"), files.get("quantized"), "--data")
            why = "data that calibration did not see would be better, but none are known"
            advise(self, *words, test or files.get("data"), why="" if test else why)
        hold(diagnosis)


command = Diagnose.command()


def _details(options: Diagnose) -> Iterator[str]:
    """Yield the commands that show more of what was diagnosed: each line, each layer, each fusion."""
    from trtcal.evidence.manifest import LOG, MANIFEST

    folder, layers = options.folder, options.layers
    own = [folder / LOG] if folder and (folder / LOG).is_file() else []
    for log in (*own, *options.logs):
        yield command_line("log", log)
    if layers or (folder and (folder / MANIFEST).exists()):
        yield command_line("layers", "show", layers or folder, profile=options.profile)
        if options.model:
            yield command_line("layers", "fusions", options.model, layers or folder)
    elif options.model:
        yield command_line("layers", "fusions", options.model)


def _diagnose(options: Diagnose) -> Diagnosis:
    from trtcal.evidence.diagnosis.build_diagnosis import check_engine, check_folder
    from trtcal.evidence.layers.reading import Engine, read_engine
    from trtcal.model import load_model

    config = options.config_of_builds
    if options.data and not options.model:
        raise InputError("--data measures the values of a model", "give the model too: --model")
    others = options.layers or options.logs or options.model
    if options.layers if options.folder else not others:
        hint = "give a build's folder, or any of --layers, --log, --model"
        raise InputError("there is nothing to diagnose", hint)
    model = load_model(options.model) if options.model else None
    overflow: tuple[Finding, ...] = ()
    if model and options.data:
        from trtcal.evaluate.overflow import find_overflow

        overflow = find_overflow(model, options.open_data(model, options.config.evaluation))
    if options.folder:
        _warn_of_failure(options.folder)
        return check_folder(options.folder, config, options.logs, model, overflow)
    engine = Engine("no layers", ())
    if options.layers:
        engine = read_engine(options.layers, options.profile)
    remark(*engine.notes)
    return check_engine(engine, config, options.logs, model, overflow)


def _warn_of_failure(folder: Path) -> None:
    """Say that the last build failed, where the folder still has an older engine."""
    from trtcal.evidence.diagnosis.failure import failure_of
    from trtcal.evidence.manifest import LOG

    log = folder / f"failed-{LOG}"
    if log.is_file() and (cause := failure_of(log)):
        warning(f"the last build failed, this is an older engine: {cause.what}", cause.fix)


def show(diagnosis: Diagnosis, all_at: str = "") -> None:
    """Print findings, what was accepted, and what was counted; `all_at` as in `show_findings`."""
    from trtcal.evidence.diagnosis.build_diagnosis import summary_line

    if diagnosis.coverage is not None:
        show_coverage(diagnosis.coverage)
    show_findings(diagnosis.findings, most(FINDINGS_SHOWN), all_at)
    for finding, why in diagnosis.accepted:
        say(f"accepted: {finding.kind} {finding.subject or ''} ({why.reason})")
    print_limits(diagnosis.limits)
    remark(*(f"[[suppress]] accepts no finding: {entry}" for entry in diagnosis.unused))
    counts = (f"{many} {COUNTED_AS.get(name, name)}" for name, many in diagnosis.counts.items())
    notes = ", ".join(f"{many} x {name}" for name, many in [*diagnosis.notes.items()][: most(5)])
    warnings = f"; warnings: {notes}" if notes else ""
    say(f"{summary_line(diagnosis)}; counted: {', '.join(counts)}{warnings}")


def show_findings(findings: Sequence[Finding], count: int | None, all_at: str = "") -> None:
    """Print the first findings, and how many there are more.

    With `all_at`, the command that shows each one, those of one kind and remedy are printed once.
    """
    from trtcal.evidence.findings import count_findings

    groups: dict[object, list[Finding]] = {}
    for place, finding in enumerate(findings):
        groups.setdefault((finding.kind, finding.fix) if all_at else place, []).append(finding)
    for number, (first, *others) in enumerate([*groups.values()][:count], 1):
        what, alike = f"{first.what}{_cost(first)}", (first, *others)
        if others:
            names = some(finding.subject or finding.what for finding in alike)
            what = f"{count_findings(first.kind, len(alike))}: {names}"
        say(f"{number}. {first.kind}: {what}", f"   why: {first.why}", f"   fix: {first.fix}")
        for evidence in () if others else first.evidence[: most(EVIDENCE_SHOWN)]:
            _show_evidence(evidence)
    say_more(len(groups), count, "findings")
    if len(groups) < len(findings):
        say(f"each of the {len(findings)} findings: `{all_at}`")


def _show_evidence(evidence: Evidence) -> None:
    first, *others = evidence.text.splitlines() or [""]
    say(f"   {evidence.source} {evidence.place}{f': {first[:200]}' if first else ''}")
    say(*(line[:200] for line in others), head="       ")


def _cost(finding: Finding) -> str:
    cost = finding.cost
    parts = [] if cost.time_ms is None else [f"{cost.time_ms:.3g} ms"]
    parts += [] if cost.moved_bytes is None else [f"{cost.moved_bytes / 1e6:.3g} MB moved"]
    parts += [] if cost.risk == "none" else [f"{cost.risk} risk for accuracy"]
    return f" [{', '.join(parts)}]" if parts else ""
