"""`trtcal trace bisect`: which one of the things in which two runs differ breaks a limit.

As LLVM's -opt-bisect-limit numbers the executions of its passes, what two runs differ in is numbered
here: the model, the executions of preparation passes, the data, options, and the entries of the plan.
The first n of them are taken from the good run and the rest from the bad one; with none the limit is
broken, with all it holds, and where it turns from one to the other is the cause. If that is the data or
an option of the calibration, the ranges that it moved are searched in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path as File
from typing import Any

from trtcal.config import Config, PlanConfig, read_toml
from trtcal.documents import Document
from trtcal.errors import InputError
from trtcal.limits import Limit
from trtcal.model.passes import Pass
from trtcal.pipeline.own_passes import passes_of
from trtcal.wings.forensics.checkpoint_diff import merged, placed
from trtcal.wings.forensics.delta import difference
from trtcal.wings.forensics.trial import INT8, Mix, Outcome, Trial, open_mix

Say = Callable[[str], None]
PASS, MODEL, DATA, OPTION, PLAN = "pass", "model", "data", "option", "plan"
TABLE = read_toml(File(__file__).with_suffix(".toml"))
STAGES: dict[str, str] = TABLE["stages"]
"""What a component is -> the stage that it goes into."""


@dataclass(frozen=True)
class Component:
    """One thing in which two runs differ: what it is, its name, and what it is in each of them.

    `number` is that of a pass among all executions of passes, else its place among the components.
    """

    kind: str
    name: str
    good: Any
    bad: Any
    number: int = 0
    path: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """The stage that it goes into."""
        return STAGES[self.kind]

    def __str__(self) -> str:
        if self.kind == PASS:
            sides = " -> ".join(_version(side) for side in (self.good, self.bad))
            return f"pass {self.number} {self.name!r} ({sides})"
        return f"{self.kind} {self.name!r} ({self.good} -> {self.bad})"


def _version(execution: Pass | None) -> str:
    if execution is None or execution.on_request:
        return "none" if execution is None else "skipped"
    return _short(execution.version)


@dataclass(frozen=True)
class Bisection:
    """The one component that breaks a limit.

    `number` counts executions of passes where it is one. `steps` are the mixes that the search asked
    for, `executions` those that were run, both ends among them: equal mixes are run once.
    """

    limit: str
    variant: str
    stage: str
    subsystem: str
    name: str
    number: int
    debug_info: str
    candidates: int
    steps: int
    executions: int
    good: str
    bad: str
    within: str | None = None

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        inside = f", by {self.within}" if self.within else ""
        return f"{self.limit} is broken by {self.debug_info}{inside}"

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "sentence": self.sentence}


@dataclass
class Sides:
    """The two runs and the components in which they differ, in the order of the data flow."""

    good: Mix
    bad: Mix
    variant: str
    components: list[Component] = field(default_factory=list)

    def mix(self, count: int) -> Mix:
        """Return the bad run with the first components from the good one."""
        taken, left = self.components[:count], self.components[count:]
        config = self.bad.config
        for component in taken:
            config = _with(config, component, self.good.config)
        return Mix(config, self._passes(left))

    def _passes(self, left: Sequence[Component]) -> tuple[Pass, ...]:
        bad = {component.number for component in left if component.kind == PASS}
        paired = enumerate(_paired(self.good.passes, self.bad.passes), 1)
        chosen = (pair[1] if number in bad else pair[0] for number, pair in paired)
        return tuple(component for component in chosen if component is not None)


def bisect(
    good: Config,
    bad: Config,
    limit: Limit,
    variant: str | None = None,
    say: Say = lambda line: None,
    predicted: bool = False,
) -> Bisection:
    """Return what of two runs' differences breaks a limit that the good one holds.

    With `predicted` the limit is on findings that the graph alone lets expect. `InputError` if the
    good run breaks it too, the bad one holds it, or they do not differ.
    """
    first = next(iter(bad.plans), f"{INT8}{bad.calibration.method}")
    name = variant or limit.variant or first
    sides = Sides(_side(good), _side(bad), name)
    sides.components = list(_components(sides))
    trial = Trial(limit, name, say, predicted)
    ends = _checked_ends(trial, sides, say)
    place, steps = _search(len(sides.components), lambda n: _step(trial, sides, n, say))
    cause = sides.components[place - 1]
    mixes = sides.mix(place), sides.mix(place - 1)
    within, more = _within(trial, cause, mixes, say)
    return Bisection(
        limit=str(limit),
        variant=name,
        stage=cause.stage,
        subsystem=cause.kind,
        name=cause.name,
        number=cause.number or place,
        debug_info=_described(trial, cause, mixes),
        candidates=len(sides.components),
        steps=steps + more,
        executions=trial.executions,
        good=ends[0].shown,
        bad=ends[1].shown,
        within=within,
    )


def _side(config: Config) -> Mix:
    """Return a run's configuration and passes; those that it skips are marked as on request."""
    settings = config.prepare
    passes = [
        replace(execution, on_request=not _is_asked(execution, config))
        for execution in passes_of(config)
    ]
    return Mix(replace(config, prepare=replace(settings, skip=(), add=())), tuple(passes))


def _is_asked(execution: Pass, config: Config) -> bool:
    settings = config.prepare
    return execution.name not in settings.skip and (
        execution.name in settings.add or not execution.on_request
    )


def _checked_ends(trial: Trial, sides: Sides, say: Say) -> tuple[Outcome, Outcome]:
    if not sides.components:
        raise InputError(
            "the two runs have the same inputs",
            "if their figures differ, compare the versions in run.json and use `trtcal trace diff`",
        )
    good, bad = trial(sides.mix(len(sides.components))), trial(sides.mix(0))
    say(f"good: {good.shown}; bad: {bad.shown}; {len(sides.components)} differences")
    hint = "compare the versions in run.json with those of this machine, or give another --limit"
    if not good.holds:
        raise InputError(f"the good run breaks {trial.limit} as well: {good.shown}", hint)
    if bad.holds:
        raise InputError(f"the bad run holds {trial.limit}: {bad.shown}", hint)
    return good, bad


def _step(trial: Trial, sides: Sides, count: int, say: Say) -> bool:
    outcome = trial(sides.mix(count))
    state = "holds" if outcome.holds else "is broken"
    number = f"differences 1 to {count} of {len(sides.components)}"
    say(f"with {number} from the good run: {outcome.shown}: {state}")
    return outcome.holds


def _search(count: int, holds: Callable[[int], bool]) -> tuple[int, int]:
    """Return the least number from 1 to `count` with which the limit holds, and the steps taken."""
    low, high, steps = 0, count, 0
    while high - low > 1:
        middle, steps = (low + high) // 2, steps + 1
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high, steps


def _within(
    trial: Trial, cause: Component, mixes: tuple[Mix, Mix], say: Say
) -> tuple[str | None, int]:
    """Return the one range by which data or an option break the limit, None if it is none alone."""
    if cause.kind not in (DATA, OPTION):
        return None, 0
    good, bad = (trial.ranges(mix) for mix in mixes)
    moved = [name for name, range_ in good.items() if name in bad and bad[name] != range_]

    def holds(count: int) -> bool:
        outcome = trial(replace(mixes[1], ranges={name: good[name] for name in moved[:count]}))
        say(f"with ranges 1 to {count} of {len(moved)} from the good run: {outcome.shown}")
        return outcome.holds

    if not moved or not holds(len(moved)):
        return None, 1
    place, steps = _search(len(moved), holds)
    name = moved[place - 1]
    ends = f"{good[name].amax:.6g} -> {bad[name].amax:.6g}"
    return f"the range of tensor {name!r} ({ends})", steps + 1


def _described(trial: Trial, cause: Component, mixes: tuple[Mix, Mix]) -> str:
    """Return the cause in words, with what it changed in the graph if it is a pass or the model."""
    if cause.kind not in (PASS, MODEL):
        return str(cause)
    delta = difference(*map(trial.graph, mixes))
    return f"{cause}: {delta}" if delta else str(cause)


def _components(sides: Sides) -> Iterator[Component]:
    """Yield what the runs differ in, in the order of the data flow."""
    inputs = [open_mix(side) for side in (sides.good, sides.bad)]
    models = [side.model for side in inputs]
    if models[0].fingerprint != models[1].fingerprint:
        was, now = (_short(side.fingerprint) for side in models)
        yield Component(MODEL, models[1].name, was, now)
    for number, pair in enumerate(_paired(sides.good.passes, sides.bad.passes), 1):
        if len({side and (side.version, side.on_request) for side in pair}) > 1:
            name = next(side.name for side in pair if side is not None)
            yield Component(PASS, name, *pair, number)
    for key, attribute in DATA_KEYS.items():
        was, now = (_short(getattr(side, attribute).fingerprint) for side in inputs)
        if was != now:
            yield Component(DATA, key, was, now)
    yield from _entries(OPTION, sides, OPTIONS)
    yield from _entries(PLAN, sides, [("plans", sides.variant)])


Paired = tuple[Pass | None, Pass | None]


def _paired(good: Sequence[Pass], bad: Sequence[Pass]) -> list[Paired]:
    """Return the executions of both runs' passes, those of one name paired in order.

    The order is that of the bad run, with those of the good one alone behind the pass before them.
    """
    left, right = (dict(placed(side, attrgetter("name"))) for side in (good, bad))
    return [(left.get(place), right.get(place)) for place in merged(list(left), list(right))]


DATA_KEYS = {"calibration.data": "calibration_data", "evaluation.data": "evaluation_data"}
Path = tuple[str, ...]
OPTIONS: Sequence[Path] = [tuple(key.split(".")) for key in TABLE["options"]]
"""The keys of `trtcal.toml` that decide on a variant, besides models, passes, data and plans."""
MISSING = "missing"


def _entries(kind: str, sides: Sides, paths: Sequence[Path]) -> Iterator[Component]:
    """Yield the entries of tables, and plain values, in which the configurations differ."""
    both = sides.good.config, sides.bad.config
    for path in paths:
        leaves = dict.fromkeys(
            leaf for config in both for leaf in _leaves(_get(config, path), path)
        )
        for leaf in leaves:
            was, now = (_get(config, leaf) for config in both)
            if was != now:
                yield Component(kind, ".".join(leaf), was, now, path=leaf)


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, PlanConfig):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if not isinstance(value, dict):
        yield from () if value is MISSING else [path]
        return
    for name, inner in value.items():
        yield from _leaves(inner, (*path, name))


def _get(value: Any, path: Path) -> Any:
    for name in path:
        value = (
            value.get(name, MISSING) if isinstance(value, dict) else getattr(value, name, MISSING)
        )
    return value


def _set(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    name, rest = path[0], path[1:]
    if not isinstance(value, dict):
        return replace(value, **{name: _set(getattr(value, name), rest, new)})
    table = dict(value)
    if not rest and new is MISSING:
        table.pop(name, None)
    else:
        table[name] = _set(table.get(name, {} if rest else None), rest, new)
    return table


def _with(config: Config, component: Component, good: Config) -> Config:
    """Return a configuration with one component of the good run's."""
    if component.kind == MODEL:
        return replace(config, model=good.model)
    if component.kind == DATA:
        section = component.name.partition(".")[0]
        source = getattr(good, section)
        changed = replace(getattr(config, section), data=source.data, labels=source.labels)
        return replace(config, **{section: changed})
    return _set(config, component.path, component.good) if component.path else config


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
