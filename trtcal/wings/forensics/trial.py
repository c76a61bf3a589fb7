"""One limit held against mixes of two runs: only what the limit needs is executed, each mix once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtcal.config import Config
from trtcal.data import size_ranges
from trtcal.documents import Workplace, canonical_json, digest_bytes
from trtcal.errors import InputError
from trtcal.evaluate.comparison import compare
from trtcal.evaluate.replay import silent
from trtcal.evaluate.variant_limits import is_compared, judge_variants
from trtcal.evaluate.variants import open_variant
from trtcal.evidence.diagnosis.build_diagnosis import check_engine
from trtcal.evidence.layers.reading import Engine
from trtcal.limits import HOLDS, Judgement, Limit
from trtcal.model import load_model
from trtcal.model.passes import Pass
from trtcal.pipeline.inputs import Inputs, open_inputs
from trtcal.pipeline.journal import Journal
from trtcal.pipeline.stages import build_one, calibrate_all, observe_tensors, write_variant
from trtcal.quantization import Plan
from trtcal.ranges import Calibration, TensorRange
from trtcal.runs.follower import Follower
from trtcal.runs.origin import Origin
from trtcal.wings.forensics.follower import CheckpointFollower
from trtcal.wings.forensics.merkle import GraphTable

INT8 = "int8-"
Ranges = Mapping[str, TensorRange]


@dataclass(frozen=True)
class Mix:
    """What one execution is made of: a configuration, its passes, and ranges in place of its own."""

    config: Config
    passes: tuple[Pass, ...]
    ranges: Ranges = field(default_factory=dict)


def open_mix(mix: Mix, *followers: Follower) -> Inputs:
    """Return what a mix starts from."""
    return open_inputs(mix.config, passes=lambda _: mix.passes, followers=followers)


@dataclass(frozen=True)
class Outcome:
    """A limit held against one mix: what was measured, in words, and whether the limit holds."""

    holds: bool
    shown: str


class Trial:
    """Executes mixes for one limit on one variant, equal ones once; `executions` counts them.

    A limit is held against the figure itself, not its interval: the question is what changed it. With
    `predicted` one on findings is held against what the graph lets expect, and nothing is built.
    """

    def __init__(
        self, limit: Limit, variant: str, say: Callable[[str], None], predicted: bool = False
    ) -> None:
        self.limit, self.variant, self.say = limit, variant, say
        self.predicted, self.executions = predicted, 0
        self.known: dict[str, Outcome] = {}

    def __call__(self, mix: Mix) -> Outcome:
        """Return what comes of a mix; `InputError` if the variant or the figure is not in it."""
        inputs = self.open(mix)
        key = self._key(inputs, mix)
        if key not in self.known:
            self.executions += 1
            with Workplace() as place:
                self.known[key] = self._outcome(self._execute(inputs, mix.ranges, Path(place)))
        return self.known[key]

    def open(self, mix: Mix, *followers: Follower) -> Inputs:
        """Return what a mix starts from."""
        config = replace(mix.config, limits=(replace(self.limit, variant=None),))
        return open_mix(replace(mix, config=config), *followers)

    def graph(self, mix: Mix) -> GraphTable:
        """Return the graph that the passes of a mix make."""
        follower = CheckpointFollower(mix.config)
        self.open(mix, follower)
        return follower.graphs.tables[-1]

    def ranges(self, mix: Mix) -> Ranges:
        """Return the ranges that a mix gives the variant."""
        inputs = self.open(mix)
        with Workplace() as place:
            return self._calibration(inputs, self._journal(inputs, Path(place))).ranges

    def _key(self, inputs: Inputs, mix: Mix) -> str:
        config = inputs.config
        data = inputs.calibration_data.fingerprint, inputs.evaluation_data.fingerprint
        options = (config.calibration, config.evaluation, config.build, config.task, config.outputs)
        read_as = (config.data, config.images)
        made_of = [
            inputs.model.fingerprint,
            inputs.preparation.graph,
            *data,
            *map(str, (*options, *read_as)),
        ]
        made_of += [str(inputs.plans.get(self.variant)), str(sorted(mix.ranges.items()))]
        return digest_bytes(canonical_json(made_of))

    def _journal(self, inputs: Inputs, place: Path) -> Journal:
        data = inputs.calibration_data.fingerprint, inputs.evaluation_data.fingerprint
        return Journal(place, Origin(inputs.model.fingerprint, *data), silent, self.say)

    def _calibration(self, inputs: Inputs, journal: Journal) -> Calibration:
        """Return the ranges of the variant's method."""
        settings, plan = inputs.config.calibration, inputs.config.plans.get(self.variant)
        method = (plan.method or settings.method) if plan else self.variant.removeprefix(INT8)
        if plan is None and not self.variant.startswith(INT8):
            text = f"variant {self.variant!r} is neither a plan nor {INT8}METHOD"
            raise InputError(text, "give another --variant")
        alone = replace(settings, methods=(method,), method=method)
        only = replace(inputs, config=replace(inputs.config, calibration=alone, plans={}))
        return calibrate_all(observe_tensors(inputs, journal), only, journal)[method]

    def _execute(self, inputs: Inputs, ranges: Ranges, place: Path) -> Sequence[Judgement]:
        journal = self._journal(inputs, place)
        calibration = self._calibration(inputs, journal)
        known = {name: range_ for name, range_ in ranges.items() if name in calibration.ranges}
        calibration = replace(calibration, ranges={**calibration.ranges, **known})
        plan = inputs.plans.get(self.variant, Plan())
        path = write_variant(inputs, inputs.prepared, self.variant, calibration, plan, journal)
        if self.predicted:
            return check_engine(Engine("", ()), inputs.config, (), load_model(path)).limits
        if not is_compared(self.limit):
            return self._of_builds(inputs, path, journal)
        reference, data = open_variant(inputs.model.path), inputs.evaluation_data
        comparison = compare(reference, [open_variant(path)], data, *inputs.comparing)
        return judge_variants(comparison)[self.variant]

    def _of_builds(self, inputs: Inputs, path: Path, journal: Journal) -> Sequence[Judgement]:
        sizes = size_ranges(inputs.model, inputs.calibration_data)
        for target in inputs.config.build.run_targets:
            if target != "cpu":
                build_one(load_model(path), target, inputs.config, journal, sizes)
        for what, why in journal.origin.missing_builds.items():
            raise InputError(
                f"no engine of {what}: {why}", "a limit on builds needs the builder of its target"
            )
        return journal.limits

    def _outcome(self, judged: Sequence[Judgement]) -> Outcome:
        about = [
            judgement
            for judgement in judged
            if judgement.limit.name == self.limit.name and judgement.figure
        ]
        figures = [judgement.figure for judgement in about if judgement.figure is not None]
        if not figures:
            text = f"no result of {self.variant!r} has a figure for {self.limit}"
            raise InputError(
                text, "give a limit on a figure of `trtcal compare`, or on findings of builds"
            )
        holds = [
            self.limit.state(judgement.value, judgement.value) == HOLDS for judgement in figures
        ]
        return Outcome(
            all(holds), ", ".join(f"{self.limit.name} {judgement.measured}" for judgement in about)
        )
