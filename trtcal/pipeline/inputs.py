"""What a run works on: model, data, question and plans, opened and checked before hours of work.

Everything that would fail late is tried here: targets, prices, names of variants, and the task on the
first samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx_graphsurgeon as gs

from trtcal.backends.capabilities import check_precisions
from trtcal.backends.registry import find_backend
from trtcal.check.evaluation_data import EvaluationCheck
from trtcal.config import CalibrationConfig, Config, EvaluationConfig, PlanConfig
from trtcal.data import CountedDataset, Dataset, counted, held_back, open_dataset
from trtcal.data.dataset import batch_for
from trtcal.errors import InputError
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import CompareSettings, checked_task
from trtcal.evaluate.latency import ROUNDS
from trtcal.evaluate.replay import Kept, carry
from trtcal.evaluate.variant_limits import is_compared
from trtcal.evaluate.variants import open_variant
from trtcal.limits import Limit
from trtcal.model import Model, load_model
from trtcal.model.metadata import redacted_model
from trtcal.model.passes import Pass, PassRecord, Prepared, prepare_with_record
from trtcal.pipeline.own_passes import passes_of
from trtcal.ptq.improver import split_samples
from trtcal.quantization import Plan, plan_of, resolve
from trtcal.runs.follower import Follower

FP16_VARIANT, IMPROVED, MIXED = "fp16", "improved", "int8-mixed"
HELD_BACK_SHARE = 0.3  # of the samples, where there are no others to judge by


@dataclass(frozen=True)
class Inputs:
    """What a run starts from: `preparation` made the model that is quantized.

    `question` is what the evaluation asks: the task, outputs, slices and own metric.
    """

    config: Config
    model: Model
    preparation: Prepared
    calibration_data: CountedDataset
    evaluation_data: Dataset
    question: CollectSettings
    plans: dict[str, Plan]

    @property
    def prepared(self) -> Model:
        """The model that is quantized."""
        return self.preparation.model

    @property
    def asks_fp16(self) -> bool:
        """Whether a variant has parts in float16."""
        build = self.config.build
        plans = (Plan(rest=build.rest_for(build.run_targets)), *self.plans.values())
        return build.compares_fp16 or any("fp16" in plan.asked for plan in plans)

    @cached_property
    def comparing(self) -> tuple[tuple[Limit, ...], CompareSettings]:
        """The limits of all comparisons, and how they are made: the data are checked once for all."""
        settings, config = self.config.evaluation, self.config
        is_priced = (config.report.price_per_hour or config.cost.instance) is not None
        rounds = settings.rounds or (ROUNDS if is_priced else None)
        limits = tuple(filter(is_compared, self.config.limits))
        other = FP16_VARIANT if self.config.build.compares_fp16 else None
        data = self.evaluation_data, self.calibration_data
        kept = Kept() if config.calibration.improve == "auto" else None
        wanted = replace(self.question, checker=EvaluationCheck(self.model, *data), kept=kept)
        return limits, CompareSettings(settings.batch, rounds, wanted, alternative=other)


def open_inputs(
    config: Config,
    say: Callable[[str], None] = lambda message: None,
    passes: Callable[[Config], Sequence[Pass]] = passes_of,
    followers: Sequence[Follower] = (),
) -> Inputs:
    """Open what a configuration names; `InputError` for whatever would fail later."""
    model, prepared = open_model(config, passes(config), say, followers)
    calibration_data, evaluation_data = open_datasets(config, model, say)
    if config.efforts:
        split_samples(prepared.model, calibration_data)
    for follower in followers:
        follower.check()
    question = read_question(config, evaluation_data)
    plans = read_plans(config, prepared.model)
    data = calibration_data, evaluation_data
    inputs = Inputs(config, model, prepared, *data, question, plans)
    checked_task(open_variant(model.path), evaluation_data, *inputs.comparing)
    return inputs


def open_model(
    config: Config,
    passes: Sequence[Pass],
    say: Callable[[str], None],
    followers: Sequence[Follower],
) -> tuple[Model, Prepared]:
    """Return the model and its preparation; `BackendError` if a target cannot be built for here."""
    model = load_model(_required(config.model, "model"))
    model = redacted_model(model) if config.report.redact else model
    check_parsed(model, config.in_use().build.targets)
    prepared = prepared_by(model, config, passes, followers)
    for line in prepared.notes:
        say(f"not changed: {line}")
    for name in config.in_use().build.targets:
        backend, target = find_backend(None, name)
        backend.check_target_here(target)
    return model, prepared


def check_parsed(model: Model, targets: Iterable[str]) -> None:
    """`InputError` with the first of what TensorRT's parser refuses, if it builds for a target."""
    from trtcal.evidence.diagnosis.build_diagnosis import find_misread
    from trtcal.evidence.diagnosis.failure import is_refused

    finding = next(filter(is_refused, find_misread(model)), None)
    if finding and any(find_backend(None, target)[0].parses_qdq for target in targets):
        raise InputError(f"TensorRT refuses model {model.path}: {finding.what}", finding.fix)


def prepared_by(
    model: Model, config: Config, passes: Sequence[Pass], followers: Sequence[Follower] = ()
) -> Prepared:
    """Return a model prepared as a configuration says; followers see the graph after each pass."""
    settings = config.prepare

    def see(graph: gs.Graph, record: PassRecord | None) -> None:
        for follower in followers:
            follower.see_graph(graph, record)

    return prepare_with_record(model, settings.skip, settings.add, passes, see)


def open_datasets(
    config: Config, model: Model, say: Callable[[str], None]
) -> tuple[CountedDataset, Dataset]:
    """Return the samples to calibrate on and those to judge by, held back where none are given."""
    data = open_section(model, config, config.calibration, "calibration.data")
    if data.about:
        say(data.about)
    if config.evaluation.data is not None:
        test = open_section(model, config, config.evaluation, "evaluation.data")
        return counted(data), test
    data, test = split(model, data)
    say(f"no test data are given: {len(test)} samples are held back to judge by")
    return counted(data), test


def split(model: Model, data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the samples to calibrate on and those held back, from all over the data."""
    unit = batch_for(model, 1)
    samples = int(HELD_BACK_SHARE * len(data)) // unit * unit
    if not 0 < samples < len(data):
        raise InputError(
            f"data {data.name} have {len(data)} samples, too few to hold some back for evaluation",
            "give more samples, or give test data with --test or `data` under [evaluation]",
        )
    return held_back(data, samples, unit)


def open_section(
    model: Model, config: Config, settings: CalibrationConfig | EvaluationConfig, key: str
) -> Dataset:
    """Open the data of a section of `trtcal.toml`; `key` names it where there are none."""
    source = _required(settings.data, key)
    config.check_trusted(source)
    dataset = open_dataset(source, model, config.images, settings.labels, config.data)
    return carry(model, dataset, config.data)


def read_question(config: Config, data: Dataset) -> CollectSettings:
    """Return what the evaluation asks of the variants; `InputError` if the data cannot answer it."""
    metric = config.evaluation.metric
    config.check_trusted(metric)
    slices = config.evaluation.slices
    settings = CollectSettings(task=config.task, outputs=config.outputs)
    return settings.reading(data, slices, metric)


def read_plans(config: Config, prepared: Model) -> dict[str, Plan]:
    """Return the plans; `InputError` if one fits no node, or another variant has its name."""
    plans = {name: _plan(config, name, plan, prepared) for name, plan in config.plans.items()}
    names = [f"int8-{method}" for method in dict.fromkeys(config.calibration.methods)]
    names += [FP16_VARIANT] if config.build.compares_fp16 else []
    names += [*config.plans, *(f"{name}-{IMPROVED}" for name, _ in config.efforts)]
    names += [f"int8-{IMPROVED}"] if config.calibration.improve == "auto" else []
    names += [MIXED] if config.finds_mixed else []
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{config.path}: two variants would have the name {name!r}", "rename a plan"
            )
    for plan in plans.values():
        check_precisions(plan.asked, config.build.run_targets)
    return plans


def _plan(config: Config, name: str, settings: PlanConfig, prepared: Model) -> Plan:
    keys = {key: value for key, value in vars(settings).items() if value is not None}
    table = {key: value for key, value in keys.items() if key not in ("method", "improve")}
    plan = plan_of(table, f"{config.path}: plans.{name}")
    resolve(plan, prepared)
    return plan


def _required(value: Path | None, key: str) -> Path:
    if value is None:
        raise InputError(
            f"trtcal.toml has no `{key}`", "`trtcal init MODEL.onnx --data DATA` writes one"
        )
    return value
