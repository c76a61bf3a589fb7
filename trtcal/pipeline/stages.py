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
from trtcal.backends.capabilities import check_precisions
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
    CalibrationConfig,
    Config,
    EvaluationConfig,
    PlanConfig,
    script_in,
)
from trtcal.data import (
    CountedDataset,
    Dataset,
    counted,
    held_back,
    open_dataset,
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
from trtcal.errors import BackendError, InputError, TrtcalError
from trtcal.evaluate.collectors import Wanted as EvaluationWanted
from trtcal.evaluate.collectors import read_wanted
from trtcal.evaluate.comparison import CompareSettings, checked_task, compare, with_layers
from trtcal.evaluate.latency import ROUNDS
from trtcal.evaluate.replay import Reporter, carry, silent
from trtcal.evaluate.variant_limits import is_compared
from trtcal.evaluate.variants import open_variant
from trtcal.evidence.chain import FILE as CHECKPOINTS
from trtcal.evidence.chain import Checkpoint, digest_options
from trtcal.evidence.diagnosis.build_diagnosis import check_build, write_diagnosis
from trtcal.evidence.log.summary import log_document
from trtcal.evidence.manifest import DIAGNOSIS
from trtcal.limits import SHARES, Judgement, Limit, judge_counts
from trtcal.model import Model, load_model
from trtcal.model.frameworks.source import source_of
from trtcal.model.passes import Pass, Prepared, prepare_with_record
from trtcal.pipeline.origin import SCRIPTS, SETTINGS, write_origin
from trtcal.pipeline.own_passes import passes_of
from trtcal.ptq.improver import Improved, improve, split_samples, write_improved
from trtcal.ptq.optimizations import ImproveOptions
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
from trtcal.reporting.document import assemble
from trtcal.reporting.prices import PriceTable, judge_costs, load_prices, named_price, with_costs
from trtcal.reporting.render import write_page
from trtcal.runs.checkpoints import (
    GRAPHS,
    PREVIOUS,
    build_checkpoints,
    checkpoints_of,
    keep_previous,
    write_checkpoints,
)
from trtcal.runs.configuration import configuration_of
from trtcal.runs.diff import against_last
from trtcal.runs.folder import check_replaceable
from trtcal.runs.history import History
from trtcal.runs.lineage import Lineage, Step

ALTERNATIVE, IMPROVED = "fp16", "improved"
DATA_CHECK = "data_check.json"
OUTPUTS = (
    "builds",
    "calibrations",
    CHECKPOINTS,
    "comparison.json",
    DATA_CHECK,
    GRAPHS,
    "histograms.npz",
    "models",
    "plans",
    "optimizations",
    SCRIPTS,
    PREVIOUS,
    "report.html",
    "report.json",
    "run.json",
    SETTINGS,
    "tails.json",
    FILE,
)
"""Everything that a run writes, at the top of its folder."""

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


@dataclass(frozen=True)
class Inputs:
    """What a run starts from, opened and checked: `preparation` made the model that is quantized."""

    config: Config
    model: Model
    preparation: Prepared
    calibration_data: CountedDataset
    evaluation_data: Dataset
    wanted: EvaluationWanted
    plans: dict[str, Plan]

    @property
    def prepared(self) -> Model:
        """The model that is quantized."""
        return self.preparation.model

    @property
    def graph(self) -> str:
        """Digest of the graph that the preparation passes made."""
        return self.preparation.graphs[-1].digest

    @property
    def comparing(self) -> tuple[tuple[Limit, ...], CompareSettings]:
        """The limits of the comparison, and how it is made."""
        settings, config = self.config.evaluation, self.config
        is_priced = (config.report.price_per_hour or config.cost.instance) is not None
        rounds = settings.rounds or (ROUNDS if is_priced else None)
        batch = batch_for(self.model, settings.batch)
        limits = tuple(filter(is_compared, self.config.limits))
        other = ALTERNATIVE if self.config.build.compares_fp16 else None
        return limits, CompareSettings(batch, rounds, self.wanted, alternative=other)


@dataclass
class Journal:
    """Where a run writes, what it has written so far, and whom it tells.

    `limits` are those on builds and data, judged.
    """

    folder: Path
    lineage: Lineage
    progress: Reporter = silent
    say: Say = lambda message: None
    limits: list[Judgement] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @contextlib.contextmanager
    def step(
        self, stage: str, output: str, given: Sequence[str] = (), options: object = None
    ) -> Iterator[Callable[[str], None]]:
        """Record one stage; the caller gives the digest of what it wrote to what this yields.

        `given` are the digests of what the stage works on: with them it is a checkpoint too.
        """
        started, digests = time.perf_counter(), list[str]()
        yield digests.append
        seconds = time.perf_counter() - started
        self.lineage.steps.append(Step(stage, output, digests[0], seconds))
        if given:
            made = Checkpoint(stage, output, digest_options(given), digests[0])
            self.checkpoints.append(replace(made, options=digest_options(options or {})))

    def digest_of(self, output: str) -> str | None:
        """Return the digest of an output that was recorded, the last one of its name."""
        found = (step.digest for step in reversed(self.lineage.steps) if step.output == output)
        return next(found, None)


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
    with replacing_entries(folder, OUTPUTS) as place:
        inputs = open_inputs(config, say)
        journal = Journal(place, _lineage(inputs), reporter, say)
        if guessed is None:
            journal.lineage.configuration = configuration_of(config.path)
        if guessed is None and config.path.absolute() == (folder / FILE).absolute():
            guessed = config.path.read_text(encoding="utf-8")
        if guessed is not None:
            write_text(journal.folder / FILE, guessed)
        journal.checkpoints += checkpoints_of(inputs.preparation)
        write_origin(place, config, folder)
        keep_previous(folder, place)
        issues = checked_data(inputs, journal)
        warn(issues)
        counts = {"data_issues": len(issues)}
        journal.limits += judge_counts(config.limits, counts, "calibration data")
        report = run_stages(inputs, journal, command, history)
    return RunResult(folder, report, journal.lineage.missing, tuple(journal.limits), issues)


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
    record_checkpoints(inputs, journal)
    journal.lineage.data_reads = [to_fields(read) for read in inputs.calibration_data.summary()]
    journal.lineage.write(journal.folder, command)
    with journal.step("report", "report.json") as record:
        document = report_document(journal, inputs.config, history)
        record(str(write_page(journal.folder / "report.html", document)["digest"]))
    journal.lineage.write(journal.folder, command)
    return document


def open_inputs(
    config: Config,
    say: Say = lambda message: None,
    passes: Callable[[Config], Sequence[Pass]] = passes_of,
) -> Inputs:
    """Open the model and the data, and check what would otherwise fail only after hours."""
    model = load_model(_required(config.model, "model"))
    prepared = prepared_by(model, config, passes(config))
    for line in prepared.notes:
        say(f"not changed: {line}")
    for target in config.build.targets:
        backend, chosen = find_backend(None, target)
        backend.check_target_here(chosen)
    calibration, evaluation = config.calibration, config.evaluation
    data = open_section(model, config, calibration, "calibration.data")
    if evaluation.data is None:
        data, evaluation_data = split(model, data)
        say(f"no test data are given: {len(evaluation_data)} samples are held back to judge by")
    else:
        evaluation_data = open_section(model, config, evaluation, "evaluation.data")
    calibration_data = counted(data)
    if config.efforts:
        split_samples(prepared.model, calibration_data)
    prices_of(config)
    metric, task = evaluation.metric, config.task
    config.check_trusted(metric)
    wanted = read_wanted(
        evaluation_data, evaluation.slices, metric, task=task, outputs=config.outputs
    )
    plans = {
        name: _checked_plan(config, name, plan, prepared.model)
        for name, plan in config.plans.items()
    }
    _check_names(config)
    for plan in plans.values():
        check_precisions(plan.asked, config.build.run_targets)
    both = calibration_data, evaluation_data
    inputs = Inputs(config, model, prepared, *both, wanted, plans)
    checked_task(open_variant(model.path), evaluation_data, *inputs.comparing)
    return inputs


def prepared_by(model: Model, config: Config, passes: Sequence[Pass]) -> Prepared:
    """Return a model prepared as a configuration says, with the graph after each pass."""
    settings = config.prepare
    return prepare_with_record(model, settings.skip, settings.add, passes, with_graphs=True)


HELD_BACK = 0.3  # of the samples, where there are no others to judge by


def split(model: Model, data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the samples to calibrate on and those held back, from all over the data."""
    unit = batch_for(model, 1)
    held = int(HELD_BACK * len(data)) // unit * unit
    if not 0 < held < len(data):
        raise InputError(
            f"data {data.name} have {len(data)} samples, too few to hold some back for evaluation",
            "give more samples, or give test data with --test or `data` under [evaluation]",
        )
    return held_back(data, held, unit)


def open_section(
    model: Model, config: Config, settings: CalibrationConfig | EvaluationConfig, key: str
) -> Dataset:
    """Open the data of a section of `trtcal.toml`; `key` names it where there are none."""
    source = _required(settings.data, key)
    config.check_trusted(source)
    dataset = open_dataset(source, model, config.images, settings.labels, config.data)
    return carry(model, dataset, config.data.states)


def _checked_plan(config: Config, name: str, plan: PlanConfig, prepared: Model) -> Plan:
    said = {key: value for key, value in vars(plan).items() if value is not None}
    table = {key: value for key, value in said.items() if key not in ("method", "improve")}
    made = plan_of(table, f"{config.path}: plans.{name}")
    resolve(made, prepared)
    return made


def _check_names(config: Config) -> None:
    """`InputError` if a plan has the name of another variant."""
    names = [f"int8-{one}" for one in dict.fromkeys(config.calibration.methods)]
    names += [ALTERNATIVE] if config.build.compares_fp16 else []
    names += [*config.plans, *(f"{one}-{IMPROVED}" for one, _ in config.efforts)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{config.path}: two variants would have the name {name!r}", "rename a plan"
            )


def optimizations_file(variant: str) -> str:
    """Return where the optimizations of a variant lie in the folder of a run."""
    return f"optimizations/{variant}.npz"


def _required(value: Path | None, key: str) -> Path:
    if value is None:
        raise InputError(
            f"trtcal.toml has no `{key}`", "`trtcal init MODEL.onnx --data DATA` writes one"
        )
    return value


def _lineage(inputs: Inputs) -> Lineage:
    data = inputs.calibration_data.fingerprint, inputs.evaluation_data.fingerprint
    config = inputs.config
    files = {"model": inputs.model.path, "config": config.path, "folder": config.run_folder}
    if inputs.model.source is not None:
        files["source"] = inputs.model.source
    typed = {name: Path(os.path.relpath(path)).as_posix() for name, path in files.items()}
    scripts = {key: script_in(path) or (path,) for key, path in config.scripts.items()}
    digests = {key: digest_file(file) for key, (file, *_) in scripts.items()}
    cost, source = config.cost.to_document(), source_of(inputs.model.proto)
    given = inputs.model.fingerprint, *data
    return Lineage(*given, files=typed, scripts=digests, cost=cost, source=source)


def checked_data(inputs: Inputs, journal: Journal) -> tuple[DataIssue, ...]:
    """Return what looks wrong in the calibration data, and record it."""
    data = inputs.calibration_data
    given = (inputs.model.fingerprint, data.fingerprint)
    with (
        journal.step("check-data", DATA_CHECK, given) as record,
        data.reading_for("data check"),
    ):
        found = check_data(inputs.model, data)
        record(str(found.write(journal.folder / DATA_CHECK)["digest"]))
    journal.lineage.data_issues = [to_fields(issue) for issue in found.issues]
    return found.issues


def observe_tensors(inputs: Inputs, journal: Journal) -> Observation:
    """Return the histograms of all tensors that a plan can give a range to."""
    settings, data = inputs.config.calibration, inputs.calibration_data
    tensors = tensors_to_observe(find_layers(inputs.prepared))
    title = f"observing {len(tensors)} tensors"
    given = (inputs.graph, data.fingerprint)
    with (
        journal.step("observe", "histograms.npz", given) as record,
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
    found = {}
    for method in dict.fromkeys(methods):
        output = f"calibrations/{method}.json"
        parameters = settings.parameters.get(method)
        with journal.step("calibrate", output, (observation.digest,), parameters) as record:
            found[method] = calibrate(observation, method, parameters)
            found[method].write(journal.folder / output)
            record(found[method].digest)
    return found


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
    asked = [(f"int8-{method}", calibrations[method], Plan()) for method in settings.methods]
    for name, plan in inputs.config.plans.items():
        asked.append((name, calibrations[plan.method or settings.method], inputs.plans[name]))
    if inputs.config.build.compares_fp16:
        asked.append((ALTERNATIVE, calibrations[settings.method], Plan(default="fp16")))
    made = [write_variant(inputs, inputs.prepared, *one, journal) for one in asked]
    for name, effort in inputs.config.efforts:
        wanted = inputs.plans.get(name, Plan())
        found = optimize(inputs, name, effort, wanted, journal)
        variant = found.optimized, f"{name}-{IMPROVED}", found.calibration, wanted
        made.append(write_variant(inputs, *variant, journal))
    return made


def optimize(inputs: Inputs, name: str, effort: str, plan: Plan, journal: Journal) -> Improved:
    """Return the optimizations of INT8 or of a plan, by its name, that help on samples held back."""
    options = ImproveOptions(effort, inputs.config.calibration.improve_time_limit_s, plan=plan)
    data = inputs.calibration_data
    given = (inputs.graph, data.fingerprint)
    file = optimizations_file(f"{name}-{IMPROVED}")
    with (
        journal.step("improve", file, given, to_fields(options)) as record,
        data.reading_for("optimizations"),
    ):
        found = improve(inputs.prepared, data, options, journal.progress)
        digests = write_improved(journal.folder, file, found)
        record(digests.pop(file))
    journal.lineage.steps += [Step("improve", *item) for item in digests.items()]
    for line in found.warnings:
        journal.say(f"improvement of {name}: {line}")
    return found


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
    given = (inputs.graph, calibration.digest, optimized or "")
    with journal.step("quantize", output, given, plan.to_document()) as record:
        quantized = quantize(model, calibration, plan)
        record(write_quantized(journal.folder / output, quantized).digest)
    return journal.folder / output


def build_all(models: Sequence[Model], config: Config, journal: Journal, sizes: SizeRanges) -> None:
    """Build every model for every target; what could not be built is recorded with the reason.

    No limit on narrow formats is about the first, which is the reference, and FP16.
    """
    jobs = [(model, target) for model in models for target in config.build.run_targets]
    of_floats = tuple(one for one in config.limits if one.metric not in SHARES)
    plain = replace(config, limits=of_floats)
    with journal.progress("building engines", len(jobs)) as advance:
        for model, target in jobs:
            settings = plain if model is models[0] or model.name == ALTERNATIVE else config
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
        journal.lineage.missing[target] = f"{available.missing}; {available.hint}"
        return
    output = f"builds/{model.name}-{target}"
    options = BuildOptions(target, parse_shapes(config.build.shapes), config.build.time_limit_s)
    options = with_sizes(options, model, sizes)
    try:
        with journal.step("build", f"{output}/build.json") as record:
            built = build(model, backend, options, journal.folder / output)
            record(built.digest)
        given = journal.digest_of(f"models/{model.name}.onnx") or model.fingerprint
        journal.checkpoints += build_checkpoints(built, given)
    except BackendError as error:
        journal.lineage.missing[f"{model.name} for {target}"] = _why(error, model)
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
        journal.limits += [replace(one, subject=name) for one in diagnosis.limits]


def compare_all(inputs: Inputs, variants: Sequence[Path], journal: Journal) -> None:
    """Compare all variants with the model as it was given, and tensor by tensor."""
    settings, data = inputs.config.evaluation, inputs.evaluation_data
    reference = open_variant(inputs.model.path)
    others = [open_variant(path) for path in variants]
    given = [inputs.model.fingerprint, *map(digest_file, variants), data.fingerprint]
    with journal.step("compare", "comparison.json", given) as record:
        with journal.progress("comparing", len(data)) as advance:
            comparison = compare(reference, others, data, *inputs.comparing, advance)
        samples = min(settings.layer_samples, len(data))
        with journal.progress("layer by layer", samples * len(others)) as advance:
            comparison = with_layers(comparison, inputs.model, others, data, advance, samples)
        comparison.write(journal.folder / "comparison.json")
        record(comparison.digest)


def prices_of(config: Config) -> PriceTable | None:
    """Return the table of prices that the configuration names; `InputError` if it is none."""
    return load_prices(config.cost.prices) if config.cost.prices else None


def record_checkpoints(inputs: Inputs, journal: Journal) -> None:
    """Write the chain of checkpoints, and the graphs that the preparation passes made."""
    with journal.step("checkpoints", CHECKPOINTS) as record:
        graphs = inputs.preparation.graphs
        record(write_checkpoints(journal.folder, journal.checkpoints, graphs))


def report_document(journal: Journal, config: Config, history: History | None) -> Document:
    """Return the report with what the folder does not know: its name, costs, and the last run."""
    document = assemble(journal.folder)
    settings, price = config.report, None
    if settings.price_per_hour is not None:
        price = named_price(settings.price_per_hour, settings.currency)
    document = with_costs(document, prices_of(config), price)
    journal.limits += judge_costs(config.limits, document)
    document["measured"]["folder"] = config.run_folder.name
    if history is not None:
        try:
            document["measured"]["against"] = against_last(history, document, config.project)
        except TrtcalError as error:
            journal.say(f"not compared with the last run: {error.message}")
    return document
