"""Plans on a device: the times of its layers feed the search, and what it finds is timed there.

Plans are timed in turns, in groups, the plan kept so far among them: another one takes its place only
where it is surely more than 1.02 times as fast (`trtcal.evidence.times.PAYS`). What was timed is
written into a file by the digests of models and hardware, so that a search resumes where it stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtcal.backends.base import Backend
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import check_engine
from trtcal.data import Feeds
from trtcal.documents import (
    Document,
    Workplace,
    append_line,
    canonical_json,
    digest_bytes,
    from_fields,
    to_fields,
)
from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.errors import BackendError
from trtcal.evaluate.latency import ROUNDS, Latency, measure_on_device
from trtcal.evaluate.search.exchange import Found, Search
from trtcal.evaluate.search.limits import Plan, Point, with_unit
from trtcal.evaluate.search.plan_loss import Plans
from trtcal.evaluate.search.plan_time import Times, measured_times
from trtcal.evidence.layers.reading import read_engine
from trtcal.evidence.times import INT8, SpeedupEstimate, pays

LAYER_TIMES = "--layer-times"
GROUP = 6  # plans that are timed in turns with the one kept
FP32 = "fp32"
Form = tuple[Plan, str | None]
"""A plan, and the precision of what it leaves in float; None for that of the search."""


@dataclass
class DeviceTrials:
    """What plans take on a device; `folder` keeps it. No new trial begins after `budget_s` seconds."""

    backend: Backend
    target: str
    folder: Path
    budget_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    timed: dict[Plan, tuple[Latency, SpeedupEstimate]] = field(default_factory=dict)
    final: dict[Form, Latency] = field(default_factory=dict)
    sessions: dict[str, Any] = field(default_factory=dict)
    kept: Point = field(init=False)
    is_complete: bool = True

    def __post_init__(self) -> None:
        """Read what an earlier search timed there."""
        self.known = dict(_read(self.path)) if self.path.exists() else {}

    @property
    def path(self) -> Path:
        """The file of trials."""
        return self.folder / "device.jsonl"

    def layer_times(self, plans: Plans, units: Collection[str], feeds: Feeds) -> Times:
        """Return the times of layers in engines all in INT8 and all in float; {} if it has none."""
        if LAYER_TIMES not in self.backend.takes:
            return {}
        engines = []
        for plan in (frozenset(plans.units), frozenset[Any]()):
            with Workplace() as folder:
                self._build(plans, (plan, None), Path(folder), feeds, layer_times=True)
                engines.append(read_engine(Path(folder)))
        is_timed = all(engine.is_timed for engine in engines)
        return measured_times(units, *engines) if is_timed else {}

    def settle(self, findings: Found, search: Search, plans: Plans, feeds: Feeds) -> Found:
        """Return what was found, with the plan that is fastest on the device recommended.

        It is one that holds the limits on losses: of the front, or another by one layer.
        """
        whole = search.point_of(frozenset(next(iter(search.wholes.values()))))
        kept = whole if _holds(search, whole) else findings.recommended
        if kept is None:
            return findings
        self.kept, stop = kept, self.clock() + self.budget_s
        for group in self._groups(findings, search, whole):
            if self.clock() >= stop:
                self.is_complete = False
                break
            self._try(group, whole, plans, feeds)
        rest = [(whole.plan, None), (frozenset[Any](), None), (frozenset[Any](), FP32)]
        self.final = self._time([(self.kept.plan, None), *rest], plans, feeds)
        return self._judged(findings, search.points[frozenset()])

    def measured(self, point: Point) -> Point:
        """Return a plan with the times of the device in place of estimates, where it has them."""
        latency, slow = self.final.get((point.plan, None)), self.final.get((frozenset(), FP32))
        if latency is None or slow is None:
            return point
        speed = _over(latency, slow)
        return replace(
            point,
            cost_ms=latency.p50_ms,
            cost_interval=latency.p50_interval_ms,
            speedup=speed.ratio,
            speedup_interval=(speed.low, speed.high),
        )

    def to_document(self, plans: Mapping[str, Plan]) -> Document:
        """Return the JSON form of what plans by name took, and whether all was tried in the time.

        `over_int8` is how many times as fast as all in INT8 they are.
        """
        timed = {name: self.timed[plan] for name, plan in plans.items() if plan in self.timed}
        latency = next(iter(self.final.values()), None)
        return {
            "on": self.target,
            "hardware": latency.hardware if latency else None,
            "warnings": list(latency.warnings) if latency else [],
            "complete": self.is_complete,
            "timed": len(self.timed),
            "plans": {
                name: {
                    "p50_ms": latency.p50_ms,
                    "p50_interval_ms": list(latency.p50_interval_ms),
                    "over_int8": speed.ratio,
                    "over_int8_interval": [speed.low, speed.high],
                }
                for name, (latency, speed) in timed.items()
            },
        }

    def _groups(self, findings: Found, search: Search, whole: Point) -> Iterator[list[Point]]:
        """Yield plans to time together: of the front, then those one layer from the plan kept."""
        seen = {whole.plan, frozenset[Any]()}
        plans = [point.plan for point in findings.front if point.plan not in seen]
        while plans := plans or self._near(search, seen):
            seen |= {*plans}
            for first in range(0, len(plans), GROUP):
                points = map(search.point_of, plans[first : first + GROUP])
                if group := [point for point in points if _holds(search, point)]:
                    yield group
            plans = []

    def _near(self, search: Search, seen: Collection[Plan]) -> list[Plan]:
        """Return the plans that differ from the one kept by a layer, the fastest by estimates first."""
        changed = {with_unit(self.kept.plan, unit) for unit in search.units}
        times = ((search.costs.plan_ms(plan), sorted(plan)) for plan in changed.difference(seen))
        return [frozenset(plan) for _, plan in sorted(times)]  # the same order in each process

    def _try(self, group: Sequence[Point], whole: Point, plans: Plans, feeds: Feeds) -> None:
        """Keep the fastest of a group if it is surely faster than the plan kept so far."""
        forms: list[Form] = [(point.plan, None) for point in (self.kept, whole, *group)]
        latencies = self._time(forms, plans, feeds)
        if slow := latencies.get((whole.plan, None)):
            self.timed |= {plan: (each, _over(each, slow)) for (plan, _), each in latencies.items()}
        known = [point for point in group if (point.plan, None) in latencies]
        best = max(known, key=lambda each: latencies[each.plan, None].speedup, default=self.kept)
        speed = latencies[best.plan, None]
        if pays(SpeedupEstimate(speed.speedup, *speed.speedup_interval)) == INT8:
            self.kept = best

    def _judged(self, findings: Found, plain: Point) -> Found:
        """Return what was found with the plan kept, or with none where INT8 does not pay there."""
        plain_ms = self.final.get((frozenset(), None))
        if plain_ms is None:
            return replace(findings, reason=f"{self.target} does not build it without INT8")
        speed = _over(self.final[self.kept.plan, None], plain_ms)
        is_float = not self.kept.plan or pays(speed) != INT8
        best = plain if is_float else self.kept
        ends = f"{speed.ratio:.3g} times ({speed.low:.3g} to {speed.high:.3g})"
        plan = "the fastest quantized plan is " * (is_float and bool(self.kept.plan))
        reason = f"measured on {self.target}: {plan}{ends} as fast as without quantized layers"
        reason += ", which is not worth it" * is_float
        front = findings.front if best in findings.front else (best, *findings.front)
        return replace(
            findings,
            front=front,
            recommended=best,
            reason=reason,
            over_float=speed,
            answer=pays(speed),
            int8_pays=not is_float,
        )

    def _time(self, forms: Sequence[Form], plans: Plans, feeds: Feeds) -> dict[Form, Latency]:
        """Time plans in turns on the device, the first being the reference; those not built are out.

        `BackendError` if the first is one of them.
        """
        digests = {form: self._digest(plans, form) for form in forms}
        arrays = {name: digest_bytes(array.tobytes()) for name, array in feeds.items()}
        where = self._open(plans, *next(iter(digests.items())), feeds)
        of = [[*digests.values()], arrays, where.device, where.hardware, ROUNDS]
        key = digest_bytes(canonical_json(of))
        if key not in self.known:
            opened = [self._opened(plans, *pair, feeds) for pair in digests.items()]
            sessions = [session for session in opened if session is not None]
            latencies = iter(measure_on_device(sessions, feeds))
            self.known[key] = [None if each is None else next(latencies) for each in opened]
            if None not in opened:  # else it is tried again: the device may have been away
                line = {"key": key, "latencies": [*map(to_fields, self.known[key])]}
                append_line(self.path, json.dumps(line))
        pairs = zip(digests, self.known[key], strict=True)
        return {form: latency for form, latency in pairs if latency is not None}

    def _digest(self, plans: Plans, form: Form) -> str:
        return digest_bytes(plans.quantized(*form).proto.SerializeToString(deterministic=True))

    def _open(self, plans: Plans, form: Form, digest: str, feeds: Feeds) -> Any:
        """Return a session of a plan's engine."""
        if digest not in self.sessions:
            with Workplace() as folder:
                self._build(plans, form, Path(folder), feeds)
                self.sessions[digest] = check_engine(Path(folder)).open()
        return self.sessions[digest]

    def _opened(self, plans: Plans, form: Form, digest: str, feeds: Feeds) -> Any:
        """Return a session of a plan's engine; None where the device does not build it."""
        with suppress(BackendError):
            return self._open(plans, form, digest, feeds)
        return None

    def _build(
        self, plans: Plans, form: Form, folder: Path, feeds: Feeds, layer_times: bool = False
    ) -> None:
        """Build a plan's engine for the one size that is timed."""
        model = replace(plans.model, proto=plans.quantized(*form).proto)
        shapes = {
            spec.name: (feeds[spec.name].shape,) * 3
            for spec in model.inputs
            if any(isinstance(size, str) for size in spec.shape)
            and feeds[spec.name].ndim == len(spec.shape)
        }
        options = BuildOptions(self.target, shapes, layer_times=layer_times)
        build(model, self.backend, options, folder)


def _holds(search: Search, point: Point) -> bool:
    return point.loss.is_fit and not search.limits.losses.broken(point)


def _over(fast: Latency, slow: Latency) -> SpeedupEstimate:
    """Return how many times as fast one is as another, both timed beside the same reference."""
    if fast is slow:
        return SpeedupEstimate(1.0, 1.0, 1.0)
    low, high = (fast.speedup_interval[end] / slow.speedup_interval[1 - end] for end in (0, 1))
    return SpeedupEstimate(fast.speedup / slow.speedup, low, high)


def _read(path: Path) -> Iterator[tuple[str, list[Latency | None]]]:
    """Yield keys and latencies; lines that are broken or of another kind are timed again."""
    for line in read_bytes(path).splitlines():
        with suppress(ValueError, LookupError, TypeError):
            item = parse_json(line)
            latencies = [each and from_fields(Latency, each) for each in item["latencies"]]
            yield str(item["key"]), latencies
