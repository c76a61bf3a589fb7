"""The stages of `trtcal run`: each takes values and gives values.

What a stage makes is written into the run's folder and recorded in its `Journal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trtcal.backends.bisection import BISECT_S
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions, parse_shapes, with_sizes
from trtcal.backends.registry import find_backend, floated
from trtcal.calibration import Observation, ObserveOptions, cached, observe
from trtcal.calibration.extremes import TENSORS, tails_of
from trtcal.check.data_check import check_data
from trtcal.config import BuildConfig, Config
from trtcal.data.dataset import SizeRanges
from trtcal.data.issues import DataCheck
from trtcal.documents import Document, digest_file, to_fields, unfinished, write_json
from trtcal.errors import BackendError, ResourceError, TrtcalError
from trtcal.evaluate.comparison import Comparison, compare, with_layers
from trtcal.evaluate.fragile import find_fragile
from trtcal.evaluate.overflow import tensor_peaks
from trtcal.evaluate.per_sample import class_labels
from trtcal.evaluate.range_choice import MOST_TRIALS, ranges_by
from trtcal.evaluate.target_times import TargetTime, estimate_model, sizes_of
from trtcal.evaluate.variant_limits import Contest, falls_short
from trtcal.evaluate.variants import has_qdq
from trtcal.evidence.diagnosis.build_diagnosis import check_build, write_diagnosis
from trtcal.evidence.gpus import DEFAULT_GPU, datasheet_of
from trtcal.evidence.log.summary import log_document
from trtcal.evidence.manifest import DIAGNOSIS, read_build
from trtcal.metrics import SHARES
from trtcal.model import Model, uniquely_named
from trtcal.pipeline.engines import Engines, Group
from trtcal.pipeline.improving import where_short
from trtcal.pipeline.inputs import FP16_VARIANT, IMPROVED, MIXED, Inputs
from trtcal.pipeline.journal import Journal, Say
from trtcal.ptq.improver import (
    Improved,
    improve,
    improved_digests,
    read_improved,
    split_samples,
    write_improved,
)
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import Plan, find_layers, quantize, tensors_to_observe, write_quantized
from trtcal.quantization.plan import read_plan, write_plan
from trtcal.ranges import Calibration, most_stretched
from trtcal.reporting.document import assemble
from trtcal.reporting.verdict import lowered
from trtcal.runs.diff import against_last
from trtcal.runs.follower import completed
from trtcal.runs.history import History
from trtcal.runs.origin import Step

DATA_CHECK = "data_check.json"
COMPARISON = "comparison.json"


def checked_data(inputs: Inputs, journal: Journal) -> DataCheck:
    """Check the calibration data, and record what is wrong with them."""
    data = inputs.calibration_data
    digests = (inputs.model.fingerprint, data.fingerprint)
    with journal.step("check-data", DATA_CHECK, digests) as record, data.reading_for("data check"):
        path = journal.folder / DATA_CHECK
        if DATA_CHECK in journal.done:
            check = DataCheck.read(path)
        else:
            check = _settled(inputs, check_data(inputs.model, data))
        record(str(check.write(path)["digest"]))
    journal.origin.data_issues = [to_fields(issue) for issue in check.issues]
    return check


def _settled(inputs: Inputs, check: DataCheck) -> DataCheck:
    """Return a check of images without labels as labelled images, prepared alike, settle it."""
    data, test = inputs.calibration_data, inputs.evaluation_data
    is_alike = inputs.config.images is not None and data.labels is None
    if not is_alike or class_labels(test.labels) is None:
        return check
    other = check_data(inputs.model, test)
    issues = tuple(issue for issue in other.issues if issue.settings)
    questions = check.questions if other.questions else ()
    return replace(check, issues=check.issues + issues, questions=questions)


def observe_tensors(inputs: Inputs, journal: Journal) -> Observation:
    """Return the histograms of all tensors that a plan can give a range to."""
    settings, data = inputs.config.calibration, inputs.calibration_data
    tensors = tensors_to_observe(find_layers(inputs.prepared))
    title = f"observing {len(tensors)} tensors"
    digests = (inputs.preparation.graph, data.fingerprint)
    with (
        journal.step("observe", "histograms.npz", digests) as record,
        data.reading_for("histograms"),
        journal.progress(title, len(data)) as advance,
    ):
        path = journal.folder / "histograms.npz"
        batch, workers = settings.batch, settings.workers
        options = ObserveOptions(batch, workers=workers, checkpoint=unfinished(path))

        def make() -> Observation:
            return observe(inputs.prepared, data, tensors, options, advance, journal.say)

        observation = cached(path, inputs.model, data, tensors, make)
        record(observation.digest)
    return observation


def calibrate_all(
    observation: Observation,
    inputs: Inputs,
    journal: Journal,
    peaks: dict[str, float] | None = None,
) -> dict[str, Calibration]:
    """Return the ranges that each method chooses from the histograms, with the peaks of tensors."""
    settings, data = inputs.config.calibration, inputs.calibration_data
    own = [plan.method or settings.method for plan in inputs.config.plans.values()]
    calibrations = {}
    for method in dict.fromkeys([*settings.methods, *own]):
        output = f"calibrations/{method}.json"
        parameters = settings.parameters.get(method)
        with journal.step("calibrate", output, (observation.digest,), parameters) as record:
            with (
                data.reading_for("ranges"),
                journal.progress("judging ranges", MOST_TRIALS) as done,
            ):
                model = inputs.prepared
                ranges = ranges_by(method, parameters, model, data, observation, advance=done)
            calibrations[method] = replace(ranges, peaks=peaks or {})
            calibrations[method].write(journal.folder / output)
            record(calibrations[method].digest)
    return calibrations


def find_peaks(inputs: Inputs, model: Model, journal: Journal) -> dict[str, float]:
    """Return the largest magnitudes that float16 would have to hold."""
    data = inputs.calibration_data
    title = "finding the values that float16 is too small for"
    with data.reading_for("peaks for float16"), journal.progress(title, len(data)) as advance:
        return tensor_peaks(model, data, advance)


def record_tails(
    inputs: Inputs, calibrations: Sequence[Calibration], seen: Observation, journal: Journal
) -> None:
    """Find the samples that stretch the ranges of which most is cut off."""
    tensors = most_stretched(calibrations, TENSORS)
    if not tensors:
        return
    with journal.step("tails", "tails.json") as record:
        tails = tails_of(seen, inputs.calibration_data.files, tensors)
        record(str(tails.write(journal.folder / "tails.json")["digest"]))


def find_mixed(inputs: Inputs, ranges: Calibration, journal: Journal) -> Plan | None:
    """Return INT8 with the layers in float that pay, None where none do; no failure ends the run."""
    file = f"plans/{MIXED}.json"
    if file in journal.done:
        return read_plan(journal.folder / file)
    targets, data = inputs.config.build.run_targets, inputs.calibration_data
    gpu = next(filter(None, map(datasheet_of, targets)), DEFAULT_GPU)
    plan = Plan(without=floated(targets))
    try:
        with data.reading_for("layers to leave in float"):
            _, judged = split_samples(inputs.prepared, data)
            mixed = find_fragile(inputs.prepared, ranges, judged, plan, gpu)
    except TrtcalError as error:
        journal.say(f"no layers to leave in float were looked for: {error.message}")
        return None
    if mixed.groups:
        journal.say(mixed.sentence)
    return mixed.plan if mixed.groups else None


def quantize_all(
    inputs: Inputs, calibrations: dict[str, Calibration], journal: Journal
) -> list[Path]:
    """Write the variants: one a method, one a plan, and the mixed and optimized ones where asked."""
    settings = inputs.config.calibration
    requests = [(f"int8-{method}", calibrations[method], Plan()) for method in settings.methods]
    for name, plan in inputs.config.plans.items():
        requests.append((name, calibrations[plan.method or settings.method], inputs.plans[name]))
    ranges = calibrations.get(settings.method, calibrations[settings.methods[0]])
    if inputs.config.finds_mixed and (mixed := find_mixed(inputs, ranges, journal)):
        requests.append((MIXED, ranges, mixed))
    if inputs.config.build.compares_fp16:
        requests.append((FP16_VARIANT, ranges, Plan(default="fp16")))
    files = [write_variant(inputs, inputs.prepared, *request, journal) for request in requests]
    files += [write_improved_variant(inputs, *each, journal) for each in inputs.config.efforts]
    return files


def write_improved_variant(inputs: Inputs, name: str, effort: str, journal: Journal) -> Path:
    """Optimize INT8 or a plan, by its name, and write the variant; return its file."""
    base = inputs.plans.get(name, Plan())
    improved = optimize(inputs, name, effort, base, journal)
    variant = improved.optimized, f"{name}-{IMPROVED}", improved.calibration, improved.plan
    return write_variant(inputs, *variant, journal)


def improve_short(inputs: Inputs, comparison: Comparison, journal: Journal) -> list[Path]:
    """Write INT8 with optimizations if every variant falls short; an attempt that fails ends no run."""
    file = where_short(
        lambda: inputs.config.calibration.improve == "auto" and falls_short(comparison),
        lambda: write_improved_variant(inputs, "int8", "fast", journal),
        journal.say,
    )
    if file is None:
        return []
    seconds = max(step.seconds for step in journal.origin.of_stage("improve"))
    journal.say(f"the optimizations took {seconds:.0f} s")
    return [file]


def optimize(inputs: Inputs, name: str, effort: str, plan: Plan, journal: Journal) -> Improved:
    """Return the optimizations of INT8 or of a plan, by its name, that help on samples held back."""
    options = ImproveOptions(effort, inputs.config.calibration.improve_time_limit_s, plan=plan)
    data = inputs.calibration_data
    origins = (inputs.preparation.graph, data.fingerprint)
    file = f"optimizations/{name}-{IMPROVED}.npz"
    with (
        journal.step("improve", file, origins, to_fields(options)) as record,
        data.reading_for("optimizations"),
    ):
        if file in journal.done:
            improved = read_improved(journal.folder, file, inputs.prepared, plan)
        else:
            improved = improve(inputs.prepared, data, options, journal.progress)
            write_improved(journal.folder, file, improved)
        digests = improved_digests(file, improved)
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
    targets = settings.run_targets
    plan = plan.suited(settings.rest_for(targets), floated(targets)).of(model.proto)
    if name in inputs.plans or replace(plan, rest=None, without=()) != Plan():
        output = f"plans/{name}.json"
        with journal.step("plan", output) as record:
            record(str(write_plan(journal.folder / output, plan)["digest"]))
    output = f"models/{name}.onnx"
    file = f"optimizations/{name}.npz"
    optimized = None if model is inputs.prepared else journal.digest_of(file)
    digests = (inputs.preparation.graph, calibration.digest, optimized or "")
    with journal.step("quantize", output, digests, plan.to_document()) as record:
        if "fp16" in plan.asked and not calibration.peaks:
            calibration = replace(calibration, peaks=find_peaks(inputs, model, journal))
        quantized = quantize(model, calibration, plan)
        record(write_quantized(journal.folder / output, quantized).digest)
    return journal.folder / output


def build_all(models: Sequence[Model], inputs: Inputs, journal: Journal, sizes: SizeRanges) -> None:
    """Build every model for every target; what could not be built is recorded with the reason.

    No limit on narrow formats is about the reference and FP16.
    """
    config = inputs.config
    jobs = [(model, target) for model in models for target in config.build.run_targets]
    of_floats = tuple(limit for limit in config.limits if limit.metric not in SHARES)
    plain = replace(config, limits=of_floats)
    with journal.progress("building engines", len(jobs)) as advance:
        for model, target in jobs:
            is_float = model is inputs.model or model.name == FP16_VARIANT
            build_one(model, target, plain if is_float else config, journal, sizes)
            advance(1)


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
    folder = journal.folder / output
    options = BuildOptions(target, parse_shapes(config.build.shapes), config.build.time_limit_s)
    options = with_sizes(options, model, sizes)
    own = journal.digest_of(f"models/{model.name}.onnx")  # the reference has none
    try:
        with journal.step("build", f"{output}/build.json") as record:
            bisect_s = 0.0 if own else BISECT_S
            if f"{output}/build.json" in journal.done:
                built = read_build(folder)
            else:
                built = build(model, backend, options, folder, bisect_s=bisect_s)
            record(built.digest)
        digest = own or model.fingerprint
        for follower in journal.followers:
            follower.see_build(built, digest)
    except (BackendError, ResourceError) as error:
        why = "; ".join(filter(None, (error.message, error.hint))).rstrip(".")
        why = why.replace(f"{model.path.parent}/", "")  # it names no folders
        journal.origin.missing_builds[f"{model.name} for {target}"] = why
        return
    with journal.step("log", f"{output}/events.json") as record:
        document = log_document(folder / "build.log")
        write_json(folder / "events.json", document)
        record(document["digest"])
    with journal.step("diagnose", f"{output}/{DIAGNOSIS}") as record:
        diagnosis = check_build(built, config, model)
        write_diagnosis(folder, diagnosis)
        record(diagnosis.to_document()["digest"])
        name = f"{model.name} for {target}"
        journal.limits += [replace(judgement, subject=name) for judgement in diagnosis.limits]


def compare_all(
    inputs: Inputs,
    variants: Sequence[Path],
    models: Sequence[Model],
    journal: Journal,
    sizes: SizeRanges,
) -> Comparison:
    """Compare all variants with the model as it was given."""
    path = journal.folder / COMPARISON
    if COMPARISON in journal.done:
        return Comparison.read(path).of({variant.stem for variant in variants})
    engines = Engines(journal.folder, inputs.config, inputs.model.path)
    with journal.timing("compare"):
        groups = list(engines.groups(variants))
        with inputs.calibration_data.reading_for("comparison with the evaluation data"):
            comparison, *more = (_compare(inputs, group, journal) for group in groups)
        for later in more:
            comparison = comparison.joined(later)
        comparison = engines.timed(comparison, variants, inputs.evaluation_data)
    models = [inputs.model, *models]
    return with_times(comparison, models, inputs.config.build, sizes, journal.say)


def _compare(inputs: Inputs, group: Group, journal: Journal) -> Comparison:
    reference, others, crashes = group
    (limits, how), data = inputs.comparing, inputs.evaluation_data
    can_stop = inputs.config.evaluation.stop_early and limits == tuple(inputs.config.limits)
    of = ((n, v.name) for n, v in enumerate(others, 1) if can_stop and v.name != how.alternative)
    wanted = replace(how.wanted, contest=Contest(limits, of))
    how = replace(how, crashes=crashes, wanted=wanted)
    with journal.progress("comparing", len(data)) as advance:
        return compare(reference, others, data, limits, how, advance)


def with_times(
    comparison: Comparison, models: Sequence[Model], build: BuildConfig, data: SizeRanges, say: Say
) -> Comparison:
    """Add to each row the estimates of what its model takes on the targets, in the usual size."""
    times = dict[str, tuple[TargetTime, ...]]()
    for model in models:
        try:
            ranges = sizes_of(model, parse_shapes(build.shapes), data)
            times[model.fingerprint] = estimate_model(model, build.run_targets, ranges)
        except TrtcalError as error:
            say(f"no time of {model.name} is estimated: {error.message}")
    return comparison.with_times(times)


def compare_tensors(
    inputs: Inputs, models: Sequence[Model], comparison: Comparison, journal: Journal
) -> Comparison:
    """Compare all variants with the model tensor by tensor, in one pass."""
    if COMPARISON in journal.done:
        return comparison
    data = inputs.evaluation_data
    names = {row.name for row in comparison.rows if not row.stopped}
    quantized = {each.name: uniquely_named(each) for each in models if has_qdq(each)}
    quantized = {name: quantized[name] for name in quantized if name in names}
    samples = min(inputs.config.evaluation.layer_samples, len(data))
    title, total = "layer by layer", samples * len(quantized)
    with journal.timing("compare"), journal.progress(title, total) as advance:
        return with_layers(comparison, inputs.model, quantized, data, advance, samples)


def record_comparison(
    inputs: Inputs, variants: Sequence[Path], comparison: Comparison, journal: Journal
) -> None:
    """Write the comparison of all variants, and record it."""
    digests = (inputs.model.fingerprint, *map(digest_file, variants))
    with journal.step("compare", COMPARISON, (*digests, comparison.dataset)) as record:
        comparison.write(journal.folder / COMPARISON)
        record(comparison.digest)


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
            measured = document["measured"]
            measured["against"] = against_last(history, document, config.project)
            measured["verdict"] = lowered(measured["verdict"], measured["against"])
        except TrtcalError as error:
            journal.say(f"not compared with the last run: {error.message}")
    return document
