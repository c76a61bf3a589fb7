"""Placement by trial: build variants on a compiler, read the layers back, keep what is best.

Rules cannot know what a compiler makes of a light node (a residual Add, a pooling, the reader of a
Concat) with Q/DQ and without. So each kind of them is tried in the other precision, then each node
alone. Heavy layers stay as the plan has them, and so does every node that the plan decides on.

For what reads a pooling's result in INT8, a second Q/DQ pair is tried too, one step of the float
away: all integers stay, but TensorRT-RTX 1.7 does not know that, and rounds in a generated kernel.
That one can also fill a Concat, of which it otherwise moves the pooling's part, and then fills every
other part, with a kernel of its own; or pad the channels for a grouped convolution and give
another reader the values in float, which are two kernels otherwise. By NVIDIA's rules TensorRT 8 to
10 would copy the tensor for a second pair (not run), so it is no rule here.

Kept is what leaves fewer heavy layers in float, else moves fewer bytes, else needs fewer kernels, then
fewer layers. Bytes within 0.1 % of the fewest seen count as equal.

Not tried: Q before an activation, which TensorRT runs in float without a word.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trtcal.backends.base import Backend, build
from trtcal.backends.options import BuildOptions
from trtcal.documents import Document, Sealed, Workplace, digest_document, seal
from trtcal.errors import BackendError, InputError, __version__
from trtcal.model import Model
from trtcal.model.ops import POOLS
from trtcal.quantization import Plan, QuantizedModel, find_layers, quantize
from trtcal.quantization.weighted_ops import Layer as Placed
from trtcal.ranges import Calibration

SECOND_QDQ = "second_qdq"
EQUAL_BYTES = 0.001  # of the fewest: what a kernel's start costs outweighs that
KIND = "placement"


@dataclass(frozen=True)
class Measured(Sealed, kind="measured-placement", command="trtcal quantize --tune-placement"):
    """What a compiler made of one placement.

    `float_heavy` is the number of nodes asked in INT8 that did not get it, `bytes_moved` what all
    layers read and write, `layers` the list: name, kind, precision and bytes of each.
    """

    float_heavy: int
    bytes_moved: int
    layers: tuple[tuple[str, str, str, int], ...]

    @property
    def count(self) -> tuple[int, int]:
        """Kernels, which are the layers that move bytes, and all layers."""
        return sum(layer[3] > 0 for layer in self.layers), len(self.layers)

    def is_better(self, other: Measured, fewest_bytes: int) -> bool:
        """Tell whether it is to be kept instead of another, `fewest_bytes` being the best known."""
        if self.float_heavy != other.float_heavy:
            return self.float_heavy < other.float_heavy
        if abs(self.bytes_moved - fewest_bytes) > EQUAL_BYTES * fewest_bytes:
            return self.bytes_moved < fewest_bytes
        return (*self.count, self.bytes_moved) < (*other.count, other.bytes_moved)


@dataclass(frozen=True)
class Trial:
    """Some nodes of one kind, put into `precision` together, and what came of it.

    The precision is `second_qdq` where they were given a second pair.
    """

    op: str
    nodes: tuple[str, ...]
    precision: str
    kept: bool
    before: Measured
    after: Measured | None
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """The plan that won, and every trial on the way; `untried` are those there was no time for."""

    plan: Plan
    trials: tuple[Trial, ...]
    untried: int

    def to_document(self) -> Document:
        """Return the trials as a sealed document, with both layer lists of each."""
        body = {
            "trtcal": __version__,
            "plan": self.plan.to_document(),
            "trials": [asdict(trial) for trial in self.trials],
            "untried": self.untried,
        }
        return seal({"kind": KIND, "schema_version": 1, **body})


Measure = Callable[[QuantizedModel], Measured]


def tune_placement(
    model: Model,
    calibration: Calibration,
    plan: Plan,
    measure: Measure,
    time_limit_s: float = 120.0,
) -> Tuned:
    """Return the best plan found for a prepared model within a time, in seconds.

    `BackendError` if the placement by rules cannot be built; a variant that cannot is not kept.
    """
    tuner = _Tuner(model, calibration, plan, measure)
    until = time.monotonic() + time_limit_s
    groups = tuner.groups()
    alone = [(op, (name,), to) for op, nodes, to in groups for name in nodes if len(nodes) > 1]
    variants = [*groups, *alone]
    done = 0
    for op, nodes, precision in variants:
        if time.monotonic() > until:
            break
        tuner.attempt(op, nodes, precision)
        done += 1
    return Tuned(tuner.plan, tuple(tuner.trials), len(variants) - done)


class _Tuner:
    """The plan so far and what it costs."""

    def __init__(
        self, model: Model, calibration: Calibration, plan: Plan, measure: Measure
    ) -> None:
        self.model, self.calibration, self.plan, self.measure = model, calibration, plan, measure
        self.best = measure(quantize(model, calibration, plan))
        self.fewest_bytes = self.best.bytes_moved
        self.trials: list[Trial] = []

    def groups(self) -> list[tuple[str, tuple[str, ...], str]]:
        """Return the light nodes by kind, with the precision that they do not have yet."""
        placement = find_layers(self.model)
        light = [*placement.residual, *placement.light]
        found: dict[tuple[str, str], list[str]] = {}
        for layers, precision in ((light, "fp32"), (placement.optional, "int8")):
            for layer in layers:
                if self.plan.decide(layer.name, layer.op).is_default:
                    found.setdefault((layer.op, precision), []).append(layer.name)
        for layer in self._reading_pooled([*placement.layers, *placement.light]):
            found.setdefault((layer.op, SECOND_QDQ), []).append(layer.name)
        return [(op, tuple(nodes), precision) for (op, precision), nodes in found.items()]

    def _reading_pooled(self, layers: Iterable[Placed]) -> Iterator[Placed]:
        nodes = self.model.proto.graph.node
        pooled = {name for node in nodes if node.op_type in POOLS for name in node.output}
        for layer in layers:
            is_int8 = self.plan.decide(layer.name, layer.op).precision == "int8"
            if is_int8 and not pooled.isdisjoint(layer.activations.values()):
                yield layer

    def attempt(self, op: str, nodes: tuple[str, ...], precision: str) -> None:
        """Measure the plan with these nodes in another precision, and keep it if it is better."""
        variant, nodes = _changed(self.plan, nodes, precision)
        if not nodes:  # done with its group
            return
        before = self.best
        try:
            after = self.measure(quantize(self.model, self.calibration, variant))
        except (BackendError, InputError) as error:
            self.trials.append(Trial(op, nodes, precision, False, before, None, error.message))
            return
        kept = after.is_better(before, self.fewest_bytes)
        self.trials.append(Trial(op, nodes, precision, kept, before, after))
        if kept:
            self._keep(variant, after)

    def _keep(self, plan: Plan, measured: Measured) -> None:
        known = self.fewest_bytes
        if measured.float_heavy < self.best.float_heavy or measured.bytes_moved < known:
            known = measured.bytes_moved
        self.plan, self.best, self.fewest_bytes = plan, measured, known


def _changed(plan: Plan, nodes: tuple[str, ...], precision: str) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with these nodes changed, and those of them that were otherwise before."""
    if precision == SECOND_QDQ:
        nodes = tuple(name for name in nodes if name not in plan.second_qdq)
        return replace(plan, second_qdq=(*plan.second_qdq, *nodes)), nodes
    nodes = tuple(name for name in nodes if plan.layers.get(name) != precision)
    return replace(plan, layers={**plan.layers, **dict.fromkeys(nodes, precision)}), nodes


def described(trial: Trial) -> str:
    """Return a trial in words."""
    which = trial.nodes[0] if len(trial.nodes) == 1 else f"{len(trial.nodes)} {trial.op}"
    how = "with a second Q/DQ pair" if trial.precision == SECOND_QDQ else f"in {trial.precision}"
    if trial.after is None:
        return f"{which} {how}: {trial.reason}"
    moved = f"{trial.before.bytes_moved:,} to {trial.after.bytes_moved:,} bytes"
    layers = f"{len(trial.before.layers)} to {len(trial.after.layers)} layers"
    return f"{which} {how}: {moved}, {layers}"


def compiler(backend: Backend, options: BuildOptions, model: Model) -> Measure:
    """Return what measures a quantized model by building it; the same one is built only once.

    What was measured is remembered by fingerprint of model, backend, version and target.
    """
    version = backend.availability().version

    def measure(quantized: QuantizedModel) -> Measured:
        key = {
            "model": quantized.digest,
            "backend": backend.name,
            "version": version,
            "target": options.target,
            "shapes": {name: list(map(list, sizes)) for name, sizes in options.shapes.items()},
        }
        path = cache_folder() / f"{digest_document(key).removeprefix('sha256:')}.json"
        known = _remembered(path)
        if known is None:
            known = _built(replace(model, proto=quantized.proto), backend, options)
            known.write(path)
        return known

    return measure


def cache_folder() -> Path:
    """Return where measured placements are remembered: under `$XDG_CACHE_HOME`, else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "trtcal" / "placement"


def _remembered(path: Path) -> Measured | None:
    if not path.exists():
        return None
    with suppress(InputError):  # damaged: measure again
        return Measured.read(path)
    return None


def _built(model: Model, backend: Backend, options: BuildOptions) -> Measured:
    with Workplace() as folder:
        made = build(model, backend, options, Path(folder))
    lost = sum(outcome.asked == "int8" and outcome.is_lost for outcome in made.outcomes)
    lines = tuple((one.name, one.kind, one.precision, one.bytes_moved or 0) for one in made.layers)
    return Measured(lost, sum(line[3] for line in lines), lines)
