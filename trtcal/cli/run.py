"""`trtcal run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtcal.cli import options
from trtcal.cli.advice import advise
from trtcal.cli.check_data import warn
from trtcal.cli.compare import show
from trtcal.cli.options import argument, config_here, option, tags_of
from trtcal.cli.output import note, print_limits, progress, remark, say
from trtcal.config import FILE, are_annotations, read_config, read_tags
from trtcal.documents.streams import command_line
from trtcal.errors import TrtcalError

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtcal.config import Config
    from trtcal.documents import Document
    from trtcal.pipeline.job import RunResult
    from trtcal.runs.history import History


class Run(
    options.VerdictOptions,
    options.GivenOptions,
    options.PassOptions,
    options.TrustOptions,
    example="trtcal run model.onnx --data images/ --target sm89",
):
    """Do everything for MODEL.onnx, or as CONFIG says: calibrate, quantize, build, compare, report.

    Given a model, trtcal reads what the options leave open from the model and its data, and prints
    each guess; `trtcal init` writes the guesses into a file. Where INT8 misses a limit or loses more
    than noise, it tries `--improve fast` and shows both. The status is 1 if the verdict is DO NOT
    SHIP or INCONCLUSIVE, or if a limit on builds or data is broken.
    """

    source: Path = argument(default=Path(FILE), metavar="[MODEL|CONFIG]")
    output: Path | None = option("Folder for all results.  [default: MODEL-run]", "-o")
    tags: tuple[str, ...] = option(
        "Tag of the run, which replaces one with the same key in CONFIG; may be repeated.",
        "--tag",
        metavar="KEY=VALUE",
    )
    improve: Literal["auto", "fast", "best", "off"] | None = option(
        "Optimize INT8 without training: where it falls short (auto), always (fast, best), or never "
        "(off).  [default: improve of [calibration] in trtcal.toml, else auto]"
    )
    no_history: bool = option("Do not record the run in the history.")
    redact: bool = option(options.REDACT)

    @property
    def model(self) -> Path | None:
        """The model that the configuration names."""
        return self.source if self._is_model else read_config(self.source).model

    @property
    def _is_model(self) -> bool:
        from trtcal.model.loaders import is_model

        return is_model(self.source)

    def _settings(self) -> tuple[Config, str | None]:
        """Return the configuration: of trtcal.toml, with options first; or guessed, with its text."""
        if self._is_model:
            folder = self.output or Path(f"{self.source.absolute().stem}-run")
            config, draft = self.guess(self.source, folder, folder)
            return replace(config, devices=config_here().devices), draft.text
        config = self.choices(read_config(self.source))
        config = config.trusting(self.trust, self.data, self.test, self.metric_file)
        calibration = replace(config.calibration, data=self.data or config.calibration.data)
        evaluation = replace(config.evaluation, data=self.test or config.evaluation.data)
        if self.labels and evaluation.data is not None and are_annotations(self.labels):
            evaluation = replace(evaluation, labels=self.labels)
        elif self.labels:
            calibration = replace(calibration, labels=self.labels)
        build = replace(config.build, targets=self.targets or config.build.targets)
        config = replace(config, output=self.output or config.output, build=build)
        return replace(config, calibration=calibration, evaluation=evaluation), None

    @property
    def _command_line(self) -> str:
        """The command as the report shows it, without folders."""
        places = {name: getattr(self, name) for name in ("data", "test", "labels", "metric_file")}
        files = {name: path and Path(path).name for name, path in places.items()}
        judged = {"task": self.task, "outputs": self.outputs, "limit": self.limits}
        more = {"target": self.targets, "improve": self.improve, "tag": self.tags}
        return command_line("run", self.source.name, **files, **judged, batch=self.batch, **more)

    def _run(self) -> None:
        from trtcal.evaluate.comparison import Comparison, warnings
        from trtcal.limits import require
        from trtcal.pipeline.job import run
        from trtcal.reporting.advice import next_step
        from trtcal.reporting.views import gpu_targets

        settings, guessed = self._settings()
        tags = read_tags({**settings.cost.tags, **tags_of(self.tags)})
        settings = self.with_passes(replace(settings, cost=replace(settings.cost, tags=tags)))
        improve = self.improve or settings.calibration.improve
        settings = replace(settings, calibration=replace(settings.calibration, improve=improve))
        redact = self.redact or settings.report.redact
        settings = replace(settings, report=replace(settings.report, redact=redact))
        history = None if self.no_history else _history(settings)
        result = run(settings, self._command_line, progress, remark, history, warn, guessed)
        if history is not None:
            _record(history, result, settings.project)
        verdict = result.report["measured"]["verdict"]
        for target, reason in result.missing_builds.items():
            note(f"note: no engine: {target}: {reason}")

        def show_all() -> None:
            comparison = Comparison.read(result.folder / "comparison.json")
            is_rough = comparison.is_rough and gpu_targets(result.report)
            show(comparison, with_times=not is_rough)
            print_limits(result.limits, "limits on builds, data and costs")
            say(f"{verdict['word']}: {verdict['sentence']}")
            printed = {text for each in warnings(comparison) for text in (each, f"{each}.")}
            _say_why(verdict, printed)
            say(f"report: {result.folder / 'report.html'}")
            if step := next_step(result.report):
                advise(self, *step.words, why=step.why)

        self.present(result.report, show_all)
        self.refuse(verdict["word"], verdict["sentence"], "the report lists what to change")
        require(result.limits, "see diagnosis.json beside each build, or `trtcal diagnose FOLDER`")


command = Run.command()


def _say_why(verdict: Document, printed: Collection[str]) -> None:
    """Print the estimated speed of the verdict's variant, and its reasons that are not printed yet."""
    by_target: dict[tuple[str, str], list[str]] = {}
    for speed in verdict["estimates"]:
        by_target.setdefault((speed["target"], speed["source"]), []).append(speed["sentence"])
    for (target, source), sentences in by_target.items():
        say(f"{target}: {' and '.join(dict.fromkeys(sentences))} ({source})")
    say(*(each for each in verdict["reasons"] if each not in printed), head="warning: ")


def _history(config: Config) -> History | None:
    """Open the history; one that cannot be had fails no run."""
    from trtcal.runs.history import History, default_path

    try:
        return History(config.history or default_path())
    except TrtcalError as error:
        note(f"note: not recorded in the history: {error.message}")
        return None


def _record(history: History, result: RunResult, project: str | None) -> None:
    try:
        number = history.record(result.report, project, str(result.folder.absolute()))
    except TrtcalError as error:
        note(f"note: not recorded in the history: {error.message}")
    else:
        note(f"note: run {number} of {history.path}")
