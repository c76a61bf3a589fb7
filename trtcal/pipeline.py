"""The whole job from `trtcal.toml`: observe, calibrate, quantize, build, log, compare, report."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.backends.base import build
from trtcal.backends.options import BuildOptions, parse_shapes
from trtcal.backends.registry import find_backend
from trtcal.calibration import Observation, observe, unfinished, write_observation
from trtcal.calibration.choose import calibrate
from trtcal.calibration.extremes import LOOKED_AT, find_tails, write_tails
from trtcal.check import DataIssue, check_data
from trtcal.config import CalibrationConfig, Config, EvaluationConfig, PlanConfig
from trtcal.data import Dataset, open_dataset
from trtcal.documents import Document, read_document, unwritable
from trtcal.errors import BackendError, InputError, TrtcalError
from trtcal.evaluate import Gates, compare, open_variant, write_comparison
from trtcal.evaluate.comparison import batch_for, with_layers
from trtcal.evaluate.placement_search import compiler, described, tune_placement
from trtcal.evaluate.replay import read_wanted
from trtcal.evidence.builds import check_build, write_diagnosis
from trtcal.evidence.log.summary import log_document, write_log
from trtcal.evidence.manifest import DIAGNOSIS
from trtcal.model import Model, load_model
from trtcal.model.passes import prepare_with_record
from trtcal.ptq import Wanted, improve, parted, write_improved
from trtcal.ptq.records import REPAIRS
from trtcal.quantization import (
    Plan,
    find_layers,
    plan_of,
    quantize,
    resolve,
    tensors_to_observe,
    write_plan,
    write_quantized,
)
from trtcal.ranges import Calibration, most_stretched
from trtcal.reporting import assemble, write_page
from trtcal.reporting.prices import named_price, with_costs
from trtcal.runs import History, against_last
from trtcal.runs.lineage import KIND as RUN
from trtcal.runs.lineage import Lineage, Step

OUTPUTS = (
    "builds",
    "calibrations",
    "comparison.json",
    "histograms.npz",
    "models",
    "plans",
    "optimizations",
    "report.html",
    "report.json",
    "run.json",
    "tails.json",
)
"""Everything that a run writes, at the top of its folder."""

Advance = Callable[[int], None]
Reporter = Callable[[str, int], contextlib.AbstractContextManager[Advance]]
"""Called with a stage's title and its number of steps; gives what to call as they are done."""


Warn = Callable[[Sequence[DataIssue]], None]
"""Called with what the calibration data are suspected of, before they are observed."""


@contextlib.contextmanager
def silent(title: str, total: int) -> Iterator[Advance]:
    """Report nothing."""
    yield lambda done: None


@dataclass(frozen=True)
class RunResult:
    """Where a run lies, its report document, builds that could not be made, and limits they break.

    `issues`: what the calibration data look wrong in.
    """

    folder: Path
    report: Document
    missing_builds: dict[str, str]
    breaches: tuple[str, ...] = ()
    issues: tuple[DataIssue, ...] = ()


def run(
    config: Config,
    command: str = "trtcal run",
    reporter: Reporter = silent,
    say: Callable[[str], None] = lambda message: None,
    history: History | None = None,
    warn: Warn = lambda issues: None,
) -> RunResult:
    """Do everything that `config` says, then put it into the run folder in place of an older run.

    The report is held against the last run of the same model in `history`, to which nothing is added.
    Files there that no run wrote are kept. `InputError` if the configuration lacks a model or data,
    or the folder holds something else than a run.
    """
    folder = config.run_folder
    _check_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise unwritable(folder, error) from error
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        job = _Job(config, Path(name), reporter, say, history)
        issues = check_data(job.model, job.calibration_data)
        warn(issues)
        report = job.run(command)
        _replace(folder, Path(name))
    return RunResult(folder, report, job.lineage.missing, tuple(job.breaches), issues)


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise InputError(
            f"{folder} holds something that is not a trtcal run",
            "set another `output` in trtcal.toml",
        )


def _is_ours(folder: Path) -> bool:
    if not any(folder.iterdir()):
        return True
    run_file = folder / "run.json"
    return run_file.is_file() and bool(read_document(run_file, RUN))


def _replace(folder: Path, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.old.") as old:
        folder.mkdir(exist_ok=True)
        for name in OUTPUTS:
            if (folder / name).exists():
                (folder / name).rename(Path(old) / name)
        for item in made.iterdir():
            shutil.move(item, folder / item.name)


class _Job:
    """One pass through the pipeline in one folder."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        reporter: Reporter,
        say: Callable[[str], None],
        history: History | None,
    ) -> None:
        self.config, self.folder, self.reporter, self.say = config, folder, reporter, say
        self.history = history
        self.breaches: list[str] = []
        self.model = load_model(_required(config.model, "model"))
        prepared = prepare_with_record(self.model, config.prepare.skip, config.prepare.add)
        self.prepared = prepared.model
        for line in prepared.notes:
            say(f"left alone: {line}")
        if config.build.tune_placement is not None:
            find_backend(None, config.build.tune_placement)  # a wrong name is said before the work
        self.calibration_data = self._data(config.calibration, "calibration.data")
        self.evaluation_data = self._data(config.evaluation, "evaluation.data")
        if config.calibration.improve is not None:
            parted(self.prepared, self.calibration_data)  # too few: said at once
        settings = config.evaluation
        self.wanted = read_wanted(self.evaluation_data, settings.slices, settings.metric)
        self.plans = {name: self._plan(name, plan) for name, plan in config.plans.items()}
        self.lineage = Lineage(
            self.model.fingerprint,
            self.calibration_data.fingerprint,
            self.evaluation_data.fingerprint,
        )

    def _data(self, settings: CalibrationConfig | EvaluationConfig, key: str) -> Dataset:
        path = _required(settings.data, key)
        return open_dataset(path, self.model, self.config.images, settings.labels)

    def _plan(self, name: str, plan: PlanConfig) -> Plan:
        """Return a plan, checked before the data are looked at."""
        fields = ("default", "layers", "rules", "apart")
        table = {field: getattr(plan, field) for field in fields}
        made = plan_of(table, f"{self.config.path}: plans.{name}")
        resolve(made, self.prepared)
        return made

    def run(self, command: str) -> Document:
        """Do all stages and return the report document."""
        calibrations = self.calibrate(self.observe())
        self.find_tails(list(calibrations.values()))
        variants = self.quantize(calibrations)
        self.build([self.model, *map(load_model, variants)])
        self.compare(variants)
        self.lineage.write(self.folder, command)
        with self._step("report", "report.json") as record:
            document = write_page(self.folder / "report.html", self._document())
            record(str(document["digest"]))
        self.lineage.write(self.folder, command)
        return document

    def _document(self) -> Document:
        """Return the report with what the folder does not know: its name, costs, and the last run."""
        document = assemble(self.folder)
        settings = self.config.report
        price = None
        if settings.price_per_hour is not None:
            price = named_price(settings.price_per_hour, settings.currency)
        document = with_costs(document, price=price)
        document["measured"]["folder"] = self.config.run_folder.name
        if self.history is not None:
            try:
                document["measured"]["against"] = against_last(self.history, document)
            except TrtcalError as error:
                self.say(f"not held against the last run: {error.message}")
        return document

    def observe(self) -> Observation:
        tensors = tensors_to_observe(find_layers(self.prepared))
        batch = batch_for(self.model, self.config.calibration.batch)
        with self._step("observe", "histograms.npz") as record:
            title = f"observing {len(tensors)} tensors"
            with self.reporter(title, len(self.calibration_data)) as advance:
                seen = observe(
                    self.prepared,
                    self.calibration_data,
                    tensors,
                    batch,
                    advance,
                    workers=self.config.calibration.workers,
                    checkpoint=unfinished(self.config.run_folder),
                    say=self.say,
                )
            write_observation(self.folder / "histograms.npz", seen)
            record(seen.digest)
        return seen

    def calibrate(self, observation: Observation) -> dict[str, Calibration]:
        methods = dict.fromkeys([*self.config.calibration.methods, *self._plan_methods()])
        return {method: self._calibrate(observation, method) for method in methods}

    def find_tails(self, calibrations: Sequence[Calibration]) -> None:
        """Find the samples that stretch the ranges of which most is cut off."""
        tensors = most_stretched(calibrations, LOOKED_AT)
        if not tensors:
            return
        with self._step("tails", "tails.json") as record:
            title = f"looking for what stretches {len(tensors)} ranges"
            with self.reporter(title, len(self.calibration_data)) as advance:
                tails = find_tails(self.prepared, self.calibration_data, tensors, advance)
            record(str(write_tails(self.folder / "tails.json", tails)["digest"]))

    def _plan_methods(self) -> list[str]:
        return [
            plan.method or self.config.calibration.method for plan in self.config.plans.values()
        ]

    def _calibrate(self, observation: Observation, method: str) -> Calibration:
        output = f"calibrations/{method}.json"
        with self._step("calibrate", output) as record:
            parameters = self.config.calibration.parameters.get(method)
            calibration = calibrate(observation, method, parameters)
            calibration.write(self.folder / output)
            record(calibration.digest)
        return calibration

    def quantize(self, calibrations: dict[str, Calibration]) -> list[Path]:
        made = [
            self._quantize(f"int8-{method}", calibrations[method], Plan())
            for method in self.config.calibration.methods
        ]
        for name, plan in self.config.plans.items():
            calibration = calibrations[plan.method or self.config.calibration.method]
            made.append(self._quantize(name, calibration, self.plans[name]))
        if self.config.calibration.improve is not None:
            made.append(self._improved(self.config.calibration.improve))
        return made

    def _improved(self, effort: str) -> Path:
        """Return the variant with the optimizations that help on samples held back."""
        wanted = Wanted(effort, self.config.calibration.improve_time_limit_s)
        with self._step("improve", REPAIRS) as record:
            found = improve(self.prepared, self.calibration_data, wanted, self.model, self.reporter)
            digests = write_improved(self.folder, found)
            record(digests.pop(REPAIRS))
        self.lineage.steps += [Step("improve", *item) for item in digests.items()]
        for line in found.warnings:
            self.say(f"improvement: {line}")
        return self._quantize("int8-improved", found.calibration, Plan(), found.optimized)

    def _quantize(
        self, name: str, calibration: Calibration, plan: Plan, model: Model | None = None
    ) -> Path:
        """Write a variant of the prepared model, or of `model`, which has optimizations too."""
        model = model or self.prepared
        plan = self._tune(name, model, calibration, plan)
        if name in self.plans or plan != Plan():
            output = f"plans/{name}.json"
            with self._step("plan", output) as record:
                record(str(write_plan(self.folder / output, plan)["digest"]))
        path = self.folder / "models" / f"{name}.onnx"
        with self._step("quantize", f"models/{name}.onnx") as record:
            quantized = quantize(model, calibration, plan)
            record(write_quantized(path, quantized).digest)
        return path

    def _tune(self, name: str, model: Model, calibration: Calibration, plan: Plan) -> Plan:
        """Return the plan with what trials on the compiler kept, if `build.tune_placement` asks."""
        settings = self.config.build
        if settings.tune_placement is None:
            return plan
        backend, target = find_backend(None, settings.tune_placement)
        options = BuildOptions(target, parse_shapes(settings.shapes), settings.time_limit_s)
        try:
            measure = compiler(backend, options, model)
            tuned = tune_placement(model, calibration, plan, measure)
        except BackendError as error:
            self.lineage.missing[f"placement of {name} for {target}"] = error.message
            return plan
        kept = [described(trial) for trial in tuned.trials if trial.kept]
        late = [f"{tuned.untried} trials not made for lack of time"] if tuned.untried else []
        self.say(f"placement of {name} for {target}: {'; '.join([*kept, *late]) or 'as by rule'}")
        return tuned.plan

    def build(self, models: list[Model]) -> None:
        jobs = [(model, target) for model in models for target in self.config.build.targets]
        with self.reporter("building engines", len(jobs)) as advance:
            for model, target in jobs:
                self._build(model, target)
                advance(1)

    def _build(self, model: Model, target: str) -> None:
        backend, target = find_backend(None, target)
        available = backend.availability()
        if not available.works:
            self.lineage.missing[target] = f"{available.missing}; {available.hint}"
            return
        output = f"builds/{model.name}-{target}"
        shapes = parse_shapes(self.config.build.shapes)
        options = BuildOptions(target, shapes, self.config.build.time_limit_s)
        try:
            with self._step("build", f"{output}/build.json") as record:
                built = build(model, backend, options, self.folder / output)
                record(built.digest)
        except BackendError as error:
            self.lineage.missing[f"{model.name} for {target}"] = error.message
            return
        with self._step("log", f"{output}/events.json") as record:
            document = log_document(self.folder / output / "build.log")
            write_log(self.folder / output / "events.json", document)
            record(document["digest"])
        with self._step("diagnose", f"{output}/{DIAGNOSIS}") as record:
            diagnosis = check_build(built, self.config, model)
            write_diagnosis(self.folder / output, diagnosis)
            record(diagnosis.to_document()["digest"])
            self.breaches += [f"{model.name} for {target}: {one}" for one in diagnosis.breaches]

    def compare(self, variants: list[Path]) -> None:
        gates = Gates(self.config.gates.max_top1_drop, self.config.gates.min_speedup)
        settings = self.config.evaluation
        batch = batch_for(self.model, settings.batch)
        with self._step("compare", "comparison.json") as record:
            reference = open_variant(self.model.path)
            others = [open_variant(path) for path in variants]
            with self.reporter("comparing", len(self.evaluation_data)) as advance:
                comparison = compare(
                    reference,
                    others,
                    self.evaluation_data,
                    gates,
                    batch,
                    settings.rounds,
                    advance,
                    self.wanted,
                )
            samples = min(settings.layer_samples, len(self.evaluation_data))
            with self.reporter("layer by layer", samples * len(others)) as advance:
                comparison = with_layers(
                    comparison, self.model, others, self.evaluation_data, advance, samples
                )
            write_comparison(self.folder / "comparison.json", comparison)
            record(comparison.digest)

    @contextlib.contextmanager
    def _step(self, stage: str, output: str) -> Iterator[Callable[[str], None]]:
        started, digests = time.perf_counter(), list[str]()
        yield digests.append
        seconds = time.perf_counter() - started
        self.lineage.steps.append(Step(stage, output, digests[0], seconds))


def _required(value: Any, key: str) -> Any:
    if value is None:
        raise InputError(f"trtcal.toml does not say `{key}`", "see samples/digits/trtcal.toml")
    return value
