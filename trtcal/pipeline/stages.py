"""`trtcal run`, as functions in the order of the data flow: each takes values and gives values.

What a stage makes is written into the run's folder and recorded in its `Journal`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtcal.backends.base import build
from trtcal.backends.options import BuildOptions, parse_shapes, with_sizes, write_range
from trtcal.backends.registry import find_backend
from trtcal.backends.unsupported import PREPARE
from trtcal.calibration import (
    Observation,
    ObserveOptions,
    calibrate,
    observe,
    unfinished,
    write_observation,
)
from trtcal.calibration.extremes import TENSORS, find_tails
from trtcal.check.data_check import check_data
from trtcal.check.issues import DataIssue
from trtcal.config import (
    FILE,
    Config,
    script_in,
)
from trtcal.data import (
    size_ranges,
)
from trtcal.data.dataset import SizeRanges, batch_for
from trtcal.documents import (
    Document,
    digest_file,
    replacing_entries,
    to_fields,
    write_json,
    write_text,
)
from trtcal.errors import BackendError, TrtcalError
from trtcal.evaluate.comparison import compare, with_layers
from trtcal.evaluate.replay import Reporter, silent
from trtcal.evaluate.variants import open_variant
from trtcal.evidence.diagnosis.build_diagnosis import check_build, write_diagnosis
from trtcal.evidence.log.summary import log_document
from trtcal.evidence.manifest import DIAGNOSIS
from trtcal.limits import Judgement, judge_counts
from trtcal.metrics import SHARES
from trtcal.model import Model, load_model
from trtcal.model.loaders import source_of
from trtcal.pipeline.inputs import FP16_VARIANT, IMPROVED, Inputs, open_inputs
from trtcal.ptq.improver import Improved, improve, write_improved
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import (
    Plan,
    find_layers,
    quantize,
    tensors_to_observe,
    write_plan,
    write_quantized,
)
from trtcal.ranges import Calibration, most_stretched
from trtcal.reporting.document import assemble
from trtcal.reporting.render import write_page
from trtcal.runs.diff import against_last
from trtcal.runs.follower import Follower, Stage, completed, follower_kinds, followers_of
from trtcal.runs.history import History
from trtcal.runs.origin import Configuration, Measured, Origin, Step, check_replaceable
from trtcal.runs.settings import SCRIPTS, SETTINGS, write_settings

DATA_CHECK = "data_check.json"
OUTPUTS = (
    "builds",
    "calibrations",
    "comparison.json",
    DATA_CHECK,
    "histograms.npz",
    "models",
    "plans",
    "optimizations",
    SCRIPTS,
    "report.html",
    "report.json",
    "run.json",
    SETTINGS,
    "tails.json",
    FILE,
)
"""Everything that a run writes at the top of its folder, besides what its followers write."""

Say = Callable[[str], None]
"""Called with one line about the work."""
Warn = Callable[[Sequence[DataIssue]], None]
"""Called with what looks wrong in the calibration data, before they are observed."""


@dataclass(frozen=True)
class RunResult:
    """The folder of a run, its report, failed builds, and the judged limits on builds and data.

    `issues` are those of the calibration data.

    >>> result = run("samples/digits/trtcal.toml")  # doctest: +SKIP
    >>> result.report["measured"]["verdict"]["word"]  # doctest: +SKIP
    'SHIP WITH CARE'
    """

    folder: Path
    report: Document
    missing_builds: dict[str, str]
    limits: tuple[Judgement, ...] = ()
    issues: tuple[DataIssue, ...] = ()


@dataclass
class Journal:
    """Where a run writes, what it has written so far, and who follows it.

    `limits` are those on builds and data, judged.
    """

    folder: Path
    origin: Origin
    progress: Reporter = silent
    say: Say = lambda message: None
    limits: list[Judgement] = field(default_factory=list)
    followers: tuple[Follower, ...] = ()

    @contextlib.contextmanager
    def step(
        self, stage: str, output: str, inputs: Sequence[str] = (), options: object = None
    ) -> Iterator[Callable[[str], None]]:
        """Record one stage; the caller gives the digest of what it wrote to what this yields.

        `inputs` are the digests of what the stage works on: with them followers see it.
        """
        started, digests = time.perf_counter(), list[str]()
        yield digests.append
        seconds = time.perf_counter() - started
        self.origin.stages.append(Step(stage, output, digests[0], seconds))
        if inputs:
            for follower in self.followers:
                follower.see_stage(Stage(stage, output, inputs, options or {}, digests[0]))

    def digest_of(self, output: str) -> str | None:
        """Return the digest of an output that was recorded, the last one of its name."""
        digests = (step.digest for step in reversed(self.origin.stages) if step.output == output)
        return next(digests, None)


def run(
    config: Config,
    command: str = "trtcal run",
    reporter: Reporter = silent,
    say: Say = lambda message: None,
    history: History | None = None,
    warn: Warn = lambda issues: None,
    guessed: str | None = None,
) -> RunResult:
    """Do everything that `config` says, then put it into the run folder in place of an older run.

    The report is held against the last run of the same model in `history`, to which nothing is added.
    Files there that no run wrote are kept; `guessed`, the text of a `trtcal.toml` that nobody wrote, is
    put there too. `InputError` if the configuration lacks a model or data,
    or the folder holds something else than a run.
    """
    folder = config.run_folder
    check_replaceable(folder)
    followers = followers_of(config)
    with replacing_entries(folder, all_outputs()) as place:
        inputs = open_inputs(config, say, followers=followers)
        journal = Journal(
            place, _origin(inputs, guessed is None), reporter, say, followers=followers
        )
        if guessed is None and config.path.absolute() == (folder / FILE).absolute():
            guessed = config.path.read_text(encoding="utf-8")
        if guessed is not None:
            write_text(journal.folder / FILE, guessed)
        write_settings(place, config, folder)
        for follower in followers:
            follower.start(folder, place)
            follower.see_prepared(inputs.preparation)
        issues = checked_data(inputs, journal)
        warn(issues)
        counts = {"data_issues": len(issues)}
        journal.limits += judge_counts(config.limits, counts, "calibration data")
        report = run_stages(inputs, journal, command, history)
    return RunResult(folder, report, journal.origin.missing_builds, tuple(journal.limits), issues)


def run_stages(
    inputs: Inputs, journal: Journal, command: str, history: History | None = None
) -> Document:
    """Do all stages and return the report's document."""
    observation = observe_tensors(inputs, journal)
    calibrations = calibrate_all(observation, inputs.config, journal)
    record_tails(inputs, list(calibrations.values()), journal)
    variants = quantize_all(inputs, calibrations, journal)
    sizes = size_ranges(inputs.model, inputs.calibration_data)
    shapes = with_sizes(BuildOptions(""), inputs.model, sizes).shapes
    for name in set(shapes) - set(inputs.config.build.shapes):
        journal.say(f"shapes of {name}, taken from the data: {write_range(shapes[name])}")
    build_all([inputs.model, *map(load_model, variants)], inputs.config, journal, sizes)
    compare_all(inputs, variants, journal)
    write_followers(journal)
    journal.origin.data_reads = [to_fields(read) for read in inputs.calibration_data.summary()]
    journal.origin.write(journal.folder, command)
    with journal.step("report", "report.json") as record:
        document = report_document(journal, inputs.config, history)
        record(str(write_page(journal.folder / "report.html", document)["digest"]))
    journal.origin.write(journal.folder, command)
    return document


def optimizations_file(variant: str) -> str:
    """Return where the optimizations of a variant lie in the folder of a run."""
    return f"optimizations/{variant}.npz"


def _origin(inputs: Inputs, is_configured: bool) -> Origin:
    """Return what a run starts from; `is_configured` says that somebody wrote its `trtcal.toml`."""
    config, model = inputs.config, inputs.model
    paths = {"model": model.path, "config": config.path, "folder": config.run_folder}
    if model.source is not None:
        paths["source"] = model.source
    files = {name: Path(os.path.relpath(path)).as_posix() for name, path in paths.items()}
    scripts = {key: script_in(path) or (path,) for key, path in config.scripts.items()}
    return Origin(
        model.fingerprint,
        inputs.calibration_data.fingerprint,
        inputs.evaluation_data.fingerprint,
        scripts={key: digest_file(file) for key, (file, *_) in scripts.items()},
        cost=config.cost.to_document(),
        source=source_of(model.proto),
        measured=Measured(
            files, Configuration.of(config.path) if is_configured else Configuration()
        ),
    )


def checked_data(inputs: Inputs, journal: Journal) -> tuple[DataIssue, ...]:
    """Return what looks wrong in the calibration data, and record it."""
    data = inputs.calibration_data
    digests = (inputs.model.fingerprint, data.fingerprint)
    with (
        journal.step("check-data", DATA_CHECK, digests) as record,
        data.reading_for("data check"),
    ):
        check = check_data(inputs.model, data)
        record(str(check.write(journal.folder / DATA_CHECK)["digest"]))
    journal.origin.data_issues = [to_fields(issue) for issue in check.issues]
    return check.issues


def observe_tensors(inputs: Inputs, journal: Journal) -> Observation:
    """Return the histograms of all tensors that a plan can give a range to."""
    settings, data = inputs.config.calibration, inputs.calibration_data
    tensors = tensors_to_observe(find_layers(inputs.prepared))
    title = f"observing {len(tensors)} tensors"
    digests = (inputs.graph, data.fingerprint)
    with (
        journal.step("observe", "histograms.npz", digests) as record,
        data.reading_for("histograms"),
        journal.progress(title, len(data)) as advance,
    ):
        observation = observe(
            inputs.prepared,
            data,
            tensors,
            ObserveOptions(
                batch=batch_for(inputs.model, settings.batch),
                workers=settings.workers,
                checkpoint=unfinished(inputs.config.run_folder),
            ),
            advance,
            say=journal.say,
        )
        write_observation(journal.folder / "histograms.npz", observation)
        record(observation.digest)
    return observation


def calibrate_all(
    observation: Observation, config: Config, journal: Journal
) -> dict[str, Calibration]:
    """Return the ranges that each method chooses from the histograms."""
    settings = config.calibration
    methods = [
        *settings.methods,
        *(plan.method or settings.method for plan in config.plans.values()),
    ]
    calibrations = {}
    for method in dict.fromkeys(methods):
        output = f"calibrations/{method}.json"
        parameters = settings.parameters.get(method)
        with journal.step("calibrate", output, (observation.digest,), parameters) as record:
            calibrations[method] = calibrate(observation, method, parameters)
            calibrations[method].write(journal.folder / output)
            record(calibrations[method].digest)
    return calibrations


def record_tails(inputs: Inputs, calibrations: Sequence[Calibration], journal: Journal) -> None:
    """Find the samples that stretch the ranges of which most is cut off."""
    tensors = most_stretched(calibrations, TENSORS)
    if not tensors:
        return
    data, title = (
        inputs.calibration_data,
        f"finding the samples with the largest values of {len(tensors)} tensors",
    )
    with (
        journal.step("tails", "tails.json") as record,
        data.reading_for("samples with the largest values"),
        journal.progress(title, len(data)) as advance,
    ):
        tails = find_tails(inputs.prepared, data, tensors, advance)
        record(str(tails.write(journal.folder / "tails.json")["digest"]))


def quantize_all(
    inputs: Inputs, calibrations: dict[str, Calibration], journal: Journal
) -> list[Path]:
    """Write the variants: one a method, one a plan, and the optimized one if it is asked for."""
    settings = inputs.config.calibration
    requests = [(f"int8-{method}", calibrations[method], Plan()) for method in settings.methods]
    for name, plan in inputs.config.plans.items():
        requests.append((name, calibrations[plan.method or settings.method], inputs.plans[name]))
    if inputs.config.build.compares_fp16:
        requests.append((FP16_VARIANT, calibrations[settings.method], Plan(default="fp16")))
    files = [write_variant(inputs, inputs.prepared, *request, journal) for request in requests]
    for name, effort in inputs.config.efforts:
        base = inputs.plans.get(name, Plan())
        improved = optimize(inputs, name, effort, base, journal)
        variant = improved.optimized, f"{name}-{IMPROVED}", improved.calibration, base
        files.append(write_variant(inputs, *variant, journal))
    return files


def optimize(inputs: Inputs, name: str, effort: str, plan: Plan, journal: Journal) -> Improved:
    """Return the optimizations of INT8 or of a plan, by its name, that help on samples held back."""
    options = ImproveOptions(effort, inputs.config.calibration.improve_time_limit_s, plan=plan)
    data = inputs.calibration_data
    origins = (inputs.graph, data.fingerprint)
    file = optimizations_file(f"{name}-{IMPROVED}")
    with (
        journal.step("improve", file, origins, to_fields(options)) as record,
        data.reading_for("optimizations"),
    ):
        improved = improve(inputs.prepared, data, options, journal.progress)
        digests = write_improved(journal.folder, file, improved)
        record(digests.pop(file))
    journal.origin.stages += [Step("improve", *item) for item in digests.items()]
    for line in improved.warnings:
        journal.say(f"improvement of {name}: {line}")
    return improved


def write_variant(
    inputs: Inputs, model: Model, name: str, calibration: Calibration, plan: Plan, journal: Journal
) -> Path:
    """Write `model`, prepared and perhaps optimized, with Q/DQ; return the file."""
    settings = inputs.config.build
    plan = plan.with_rest(settings.rest_for(settings.run_targets))
    if name in inputs.plans or replace(plan, rest=None) != Plan():
        output = f"plans/{name}.json"
        with journal.step("plan", output) as record:
            record(str(write_plan(journal.folder / output, plan)["digest"]))
    output = f"models/{name}.onnx"
    optimized = None if model is inputs.prepared else journal.digest_of(optimizations_file(name))
    digests = (inputs.graph, calibration.digest, optimized or "")
    with journal.step("quantize", output, digests, plan.to_document()) as record:
        quantized = quantize(model, calibration, plan)
        record(write_quantized(journal.folder / output, quantized).digest)
    return journal.folder / output


def build_all(models: Sequence[Model], config: Config, journal: Journal, sizes: SizeRanges) -> None:
    """Build every model for every target; what could not be built is recorded with the reason.

    No limit on narrow formats is about the first, which is the reference, and FP16.
    """
    jobs = [(model, target) for model in models for target in config.build.run_targets]
    of_floats = tuple(limit for limit in config.limits if limit.metric not in SHARES)
    plain = replace(config, limits=of_floats)
    with journal.progress("building engines", len(jobs)) as advance:
        for model, target in jobs:
            settings = plain if model is models[0] or model.name == FP16_VARIANT else config
            build_one(model, target, settings, journal, sizes)
            advance(1)


def _why(error: BackendError, model: Model) -> str:
    """Return why a build failed, and the command that helps where it is a cut, without folders."""
    if f"{PREPARE} " not in (error.hint or ""):
        return error.message
    return f"{error.message}; {error.hint}".replace(f"{model.path.parent}/", "")


def build_one(
    model: Model, target: str, config: Config, journal: Journal, sizes: SizeRanges
) -> None:
    """Build one engine, for samples of these sizes, parse its log, and diagnose it."""
    backend, target = find_backend(None, target)
    available = backend.availability()
    if not available.works:
        journal.origin.missing_builds[target] = f"{available.missing}; {available.hint}"
        return
    output = f"builds/{model.name}-{target}"
    options = BuildOptions(target, parse_shapes(config.build.shapes), config.build.time_limit_s)
    options = with_sizes(options, model, sizes)
    try:
        with journal.step("build", f"{output}/build.json") as record:
            built = build(model, backend, options, journal.folder / output)
            record(built.digest)
        digest = journal.digest_of(f"models/{model.name}.onnx") or model.fingerprint
        for follower in journal.followers:
            follower.see_build(built, digest)
    except BackendError as error:
        journal.origin.missing_builds[f"{model.name} for {target}"] = _why(error, model)
        return
    with journal.step("log", f"{output}/events.json") as record:
        document = log_document(journal.folder / output / "build.log")
        write_json(journal.folder / output / "events.json", document)
        record(document["digest"])
    with journal.step("diagnose", f"{output}/{DIAGNOSIS}") as record:
        diagnosis = check_build(built, config, model)
        write_diagnosis(journal.folder / output, diagnosis)
        record(diagnosis.to_document()["digest"])
        name = f"{model.name} for {target}"
        journal.limits += [replace(judgement, subject=name) for judgement in diagnosis.limits]


def compare_all(inputs: Inputs, variants: Sequence[Path], journal: Journal) -> None:
    """Compare all variants with the model as it was given, and tensor by tensor."""
    settings, data = inputs.config.evaluation, inputs.evaluation_data
    reference = open_variant(inputs.model.path)
    others = [open_variant(path) for path in variants]
    digests = [inputs.model.fingerprint, *map(digest_file, variants), data.fingerprint]
    with journal.step("compare", "comparison.json", digests) as record:
        with journal.progress("comparing", len(data)) as advance:
            comparison = compare(reference, others, data, *inputs.comparing, advance)
        samples = min(settings.layer_samples, len(data))
        with journal.progress("layer by layer", samples * len(others)) as advance:
            comparison = with_layers(comparison, inputs.model, others, data, advance, samples)
        comparison.write(journal.folder / "comparison.json")
        record(comparison.digest)


def all_outputs() -> tuple[str, ...]:
    """Return everything that a run writes at the top of its folder."""
    return (*OUTPUTS, *(name for kind in follower_kinds() for name in kind.outputs))


def write_followers(journal: Journal) -> None:
    """Let the followers that write files write them."""
    for follower in journal.followers:
        if follower.outputs:
            with journal.step(follower.name, follower.outputs[0]) as record:
                record(follower.write(journal.folder))


def report_document(journal: Journal, config: Config, history: History | None) -> Document:
    """Return the report with what the folder does not know: its name, costs, and the last run."""
    document = completed(assemble(journal.folder), journal.followers)
    for follower in journal.followers:
        journal.limits += follower.judge(config.limits, document)
    document["measured"]["folder"] = config.run_folder.name
    if history is not None:
        try:
            document["measured"]["against"] = against_last(history, document, config.project)
        except TrtcalError as error:
            journal.say(f"not compared with the last run: {error.message}")
    return document
