"""What changed from one engine to another: layers, precision, copies, fusions, time by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from trtcal.evidence.diff import Change, Difference
from trtcal.evidence.layers.costs import KINDS, bytes_of, kind_of, time_of
from trtcal.evidence.layers.findings import Reformat, find_reformats
from trtcal.evidence.layers.flow import follow, nearest_heavy
from trtcal.evidence.layers.layer import UNKNOWN, Layer, TensorInfo, is_quantize_step
from trtcal.evidence.layers.matching import join_heavy, own_nodes
from trtcal.evidence.layers.reading import Engine

NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Moved:
    """A layer of its own in one engine that is part of layer `into` in the other."""

    layer: Layer
    into: Layer


@dataclass(frozen=True)
class EngineDifference(Difference[Engine, Layer]):
    """Two engines. Changes are their convolutions and products, `what` says how a pair was joined.

    Copies that cost nothing are left out of `gone`, `new` and `kept`. A copy is kept if the other
    engine has one of the same origin to the same type behind the same convolutions or products;
    `kept` holds those of each engine. `kinds` gives for each kind of layer the milliseconds (or
    bytes, if an engine has no times) in both engines. `merged` layers of the first are parts of
    others in the second, `split` the other way round.
    """

    gone: tuple[Reformat, ...]
    new: tuple[Reformat, ...]
    kept: tuple[tuple[Reformat, ...], tuple[Reformat, ...]]
    merged: tuple[Moved, ...]
    split: tuple[Moved, ...]
    kinds: Mapping[str, tuple[float, float]]

    @property
    def is_timed(self) -> bool:
        """Whether both engines have times."""
        return self.before.is_timed and self.after.is_timed

    @property
    def pairs(self) -> tuple[LayerPair, ...]:
        """The layers that are in both engines."""
        return tuple(
            LayerPair(one.before, one.after, one.what)
            for one in self.changes
            if one.before and one.after
        )

    def alone(self, kind: str) -> tuple[str, ...]:
        """Return the names of the layers that are `gone` or `new`."""
        return tuple(one.subject for one in self.changes if one.kind == kind)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        sides = {"before": self.before, "after": self.after}
        return {
            "unit": "ms" if self.is_timed else "bytes",
            **{
                name: {"source": engine.source, "total_ms": engine.total_ms}
                for name, engine in sides.items()
            },
            "changes": [_change_document(one) for one in self.changes],
            "unchanged": self.unchanged,
            "reformats_gone": list(map(asdict, self.gone)),
            "reformats_new": list(map(asdict, self.new)),
            "reformats_kept": [list(map(asdict, side)) for side in self.kept],
            "merged": [{"layer": m.layer.name, "into": m.into.name} for m in self.merged],
            "split": [{"layer": m.layer.name, "from": m.into.name} for m in self.split],
            "kinds": {kind: list(sides) for kind, sides in self.kinds.items()},
        }


class LayerPair(NamedTuple):
    """A convolution or product that is in both engines, and by what it was joined."""

    before: Layer
    after: Layer
    by: str

    @property
    def change_ms(self) -> float | None:
        """The milliseconds that it takes more in the second engine."""
        if self.before.time_ms is None or self.after.time_ms is None:
            return None
        return self.after.time_ms - self.before.time_ms


def _change_document(one: Change[Layer]) -> dict[str, Any]:
    return {
        "subject": one.subject,
        "what": one.what,
        "before": one.before and _side(one.before),
        "after": one.after and _side(one.after),
        "kind": one.kind,
    }


def _side(layer: Layer) -> dict[str, Any]:
    types = {"inputs": layer.inputs, "outputs": layer.outputs}
    return {
        "layer": layer.name,
        "nodes": list(layer.nodes),
        "precision": layer.precision,
        **{side: [tensor.dtype for tensor in tensors] for side, tensors in types.items()},
        "time_ms": layer.time_ms,
        "moved_bytes": layer.bytes_moved,
    }


def compare_engines(before: Engine, after: Engine) -> EngineDifference:
    """Return what changed from one engine to the other."""
    pairs = join_heavy(before.layers, after.layers)
    here = _Places(before, {pair.before: number for number, pair in enumerate(pairs)})
    there = _Places(after, {pair.after: number for number, pair in enumerate(pairs)})
    gone, kept_before = _unmatched(here, there)
    new, kept_after = _unmatched(there, here)
    partners = {pair.before: after.layers[pair.after] for pair in pairs}
    returns = {pair.after: before.layers[pair.before] for pair in pairs}
    changes = (
        *(_paired(before.layers[p.before], after.layers[p.after], p.by) for p in pairs),
        *(Change(layer.name, "layer", layer, None) for layer in _alone(before, set(partners))),
        *(Change(layer.name, "layer", None, layer) for layer in _alone(after, set(returns))),
    )
    return EngineDifference(
        before,
        after,
        changes,
        sum(one.before is not None and one.before == one.after for one in changes),
        gone,
        new,
        (kept_before, kept_after),
        _merged(here, there, partners),
        _merged(there, here, returns),
        _kinds(before, after),
    )


def _paired(before: Layer, after: Layer, by: str) -> Change[Layer]:
    took, takes = before.time_ms or 0.0, after.time_ms or 0.0
    return Change(after.name, by, before, after, None if took == takes else takes < took)


def _alone(engine: Engine, joined: set[int]) -> list[Layer]:
    layers = enumerate(engine.layers)
    return [layer for index, layer in layers if layer.is_heavy and index not in joined]


class _Places:
    """An engine's flow, the pair that each joined layer is in, and the heavy layers near each."""

    def __init__(self, engine: Engine, pairs: Mapping[int, int]) -> None:
        self.flow = follow(engine.layers)
        self.pairs = pairs
        self.sources = nearest_heavy(self.flow, backwards=True)
        self.readers = nearest_heavy(self.flow, backwards=False)

    def behind(self, index: int) -> frozenset[Hashable]:
        """Return the pairs whose results reach a layer through light layers only."""
        near = self.sources[index]
        return frozenset(self.pairs.get(i, self.flow.layers[i].name) for i in near)

    def neighbours(self, index: int) -> frozenset[int]:
        """Return the heavy layers nearest before and after a layer."""
        return self.sources[index] | self.readers[index]


def _unmatched(these: _Places, those: _Places) -> tuple[tuple[Reformat, ...], tuple[Reformat, ...]]:
    """Part the copies of one engine into those that the other lacks at the place, and the rest."""
    there = Counter(key for key, _ in _copies(those))
    left: list[Reformat] = []
    kept: list[Reformat] = []
    for key, reformat in _copies(these):
        there[key] -= 1
        (left if there[key] < 0 else kept).append(reformat)
    return tuple(left), tuple(kept)


def _copies(places: _Places) -> list[tuple[Hashable, Reformat]]:
    layers = places.flow.layers
    indexes = [index for index, layer in enumerate(layers) if layer.is_reformat]
    found = zip(indexes, find_reformats(places.flow), strict=True)
    return [
        ((places.behind(index), one.origin, _first_type(layers[index].outputs)), one)
        for index, one in found
        if not one.is_free
    ]


def _merged(these: _Places, those: _Places, partners: Mapping[int, Layer]) -> tuple[Moved, ...]:
    """Return the light layers of one engine whose work a neighbour's partner does in the other."""
    own = {(those.behind(i), stem) for i, layer in _working(those) for stem in _stems(layer)}
    moved = []
    for index, layer in _working(these):
        stems = _stems(layer)
        if any((these.behind(index), stem) in own for stem in stems):
            continue
        into = _taker(layer, these, these.neighbours(index), partners)
        if into is not None:
            moved.append(Moved(layer, into))
    return tuple(moved)


def _first_type(tensors: Sequence[TensorInfo]) -> str:
    return tensors[0].dtype if tensors else UNKNOWN


def _taker(
    layer: Layer, places: _Places, neighbours: frozenset[int], partners: Mapping[int, Layer]
) -> Layer | None:
    """Return the neighbour's partner that lists the layer's nodes, most of them by full name."""
    nodes, stems = set(own_nodes(layer)), _stems(layer)
    near = [(partners[i], places.flow.layers[i]) for i in sorted(neighbours) if i in partners]
    takers = [there for there, here in near if stems & (_stems(there) - _stems(here))]
    return max(takers, key=lambda there: len(nodes & set(there.nodes)), default=None)


def _working(places: _Places) -> list[tuple[int, Layer]]:
    return [
        (index, layer)
        for index, layer in enumerate(places.flow.layers)
        if not (layer.is_heavy or layer.is_idle or layer.is_reformat or is_quantize_step(layer))
    ]


def _stems(layer: Layer) -> set[str]:
    """Return the nodes' names without the exporter's numbers: `MaxPool_12` is `MaxPool`."""
    return {NUMBER.sub("", node) for node in own_nodes(layer)}


def _kinds(before: Engine, after: Engine) -> dict[str, tuple[float, float]]:
    is_timed = before.is_timed and after.is_timed
    sums = {}
    for kind in KINDS:
        sides = [
            [layer for layer in engine.layers if kind_of(layer) == kind]
            for engine in (before, after)
        ]
        if any(sides):
            counts = [(time_of(s) or 0.0) if is_timed else float(bytes_of(s)) for s in sides]
            sums[kind] = (counts[0], counts[1])
    return sums
