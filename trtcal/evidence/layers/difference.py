"""What changed from one engine to another: layers, precision, copies, fusions, time by kind."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from trtcal.evidence.difference import Change, Difference
from trtcal.evidence.layers.copies import NARROW, Reformat, adds_residual, find_reformats
from trtcal.evidence.layers.flow import follow, nearest_heavy
from trtcal.evidence.layers.layer import Layer, TensorInfo, is_quantize_step
from trtcal.evidence.layers.matching import join_heavy, own_nodes
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.layers.roofline import KINDS, bytes_of, kind_of, listed, short, time_of

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
        sides = ((change.before, change.after, change.what) for change in self.changes)
        return tuple(LayerPair(old, new, by) for old, new, by in sides if old and new)

    def alone(self, kind: str) -> tuple[str, ...]:
        """Return the names of the layers that are `gone` or `new`."""
        return tuple(change.subject for change in self.changes if change.kind == kind)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        sides = {"before": self.before, "after": self.after}
        return {
            "unit": "ms" if self.is_timed else "bytes",
            **{k: {"source": e.source, "total_ms": e.total_ms} for k, e in sides.items()},
            "changes": [_change_document(change) for change in self.changes],
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


def _change_document(change: Change[Layer]) -> dict[str, Any]:
    return {
        "subject": change.subject,
        "what": change.what,
        "before": change.before and _side(change.before),
        "after": change.after and _side(change.after),
        "kind": change.kind,
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
    unchanged = sum(change.before == change.after for change in changes)
    copies = gone, new, (kept_before, kept_after)
    moved = _merged(here, there, partners), _merged(there, here, returns)
    kinds = _kinds(before, after)
    return EngineDifference(before, after, changes, unchanged, *copies, *moved, kinds)


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
        layers = self.flow.layers
        return frozenset(self.pairs.get(i, layers[i].name) for i in self.sources[index])


def _unmatched(these: _Places, those: _Places) -> tuple[tuple[Reformat, ...], tuple[Reformat, ...]]:
    """Part the copies of one engine into those that the other lacks at the place, and the rest."""
    there = Counter(key for key, _ in _copies(those))
    left, kept = list[Reformat](), list[Reformat]()
    for key, reformat in _copies(these):
        there[key] -= 1
        (left if there[key] < 0 else kept).append(reformat)
    return tuple(left), tuple(kept)


def _copies(places: _Places) -> list[tuple[Hashable, Reformat]]:
    layers = places.flow.layers
    indexes = [index for index, layer in enumerate(layers) if layer.is_reformat]
    return [
        ((places.behind(index), reformat.origin, _first(layers[index].outputs)), reformat)
        for index, reformat in zip(indexes, find_reformats(places.flow), strict=True)
        if not reformat.is_free
    ]


def _merged(these: _Places, those: _Places, partners: Mapping[int, Layer]) -> tuple[Moved, ...]:
    """Return the light layers of one engine whose work a neighbour's partner does in the other."""
    own = {(those.behind(i), stem) for i, layer in _working(those) for stem in _stems(layer)}
    lost = (
        (layer, _taker(layer, these, these.sources[index] | these.readers[index], partners))
        for index, layer in _working(these)
        if not any((these.behind(index), stem) in own for stem in _stems(layer))
    )
    return tuple(Moved(layer, into) for layer, into in lost if into is not None)


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
        sides = [[x for x in e.layers if kind_of(x) == kind] for e in (before, after)]
        if any(sides):
            counts = [(time_of(s) or 0.0) if is_timed else float(bytes_of(s)) for s in sides]
            sums[kind] = (counts[0], counts[1])
    return sums


MAX_LISTED, LEAST_SHARE = 3, 0.01


def describe(difference: EngineDifference) -> tuple[str, ...]:
    """Return the sentences, what matters most first."""
    parts = (_total, _residual, _written, _gone_and_new, _precisions, _moves, _by_kind, _layers)
    return tuple(sentence for part in parts for sentence in part(difference))


def _total(difference: EngineDifference) -> Iterator[str]:
    before, after = difference.before, difference.after
    if difference.is_timed:
        a, b = before.total_ms or 0.0, after.total_ms or 0.0
        yield f"The total went from {_ms(a)} to {_ms(b)}{_percent(a, b)}."
    else:
        c, d = bytes_of(before.layers), bytes_of(after.layers)
        moved = f"The bytes moved went from {_mb(c)} to {_mb(d)}{_percent(c, d)}."
        yield f"One engine has no layer times. {moved}"
    by_order = sum(pair.by != "name" for pair in difference.pairs)
    how = f" ({by_order} matched by arithmetic and order, because their names differ)"
    joined = f"{len(difference.pairs)} convolutions and matrix products are in both"
    numbers = f"{len(before.layers)} layers became {len(after.layers)}"
    yield f"{numbers}; {joined}{how if by_order else ''}."
    for side, kind in (("first", "gone"), ("second", "new")):
        if alone := difference.alone(kind):
            yield f"Only in the {side} engine: {listed(alone)}."


def _residual(difference: EngineDifference) -> Iterator[str]:
    """Yield in which type INT8 layers read what they add to their product, and what that does."""
    sides = [_adding(engine) for engine in (difference.before, difference.after)]
    types = [Counter(layer.inputs[1].dtype for layer in side) for side in sides]
    if types[0] == types[1]:
        return
    parts = [[f"{n} read it in {dtype}" for dtype, n in side.most_common()] for side in types]
    old, new = (", ".join(part) or "none" for part in parts)
    yield f"INT8 layers with a fused residual Add: before {old}; now {new}.{_effect(sides)}"


def _adding(engine: Engine) -> list[Layer]:
    return [
        layer
        for layer in engine.layers
        if layer.precision == "int8"
        and adds_residual(layer)
        and any("add" in node.lower() for node in own_nodes(layer))
    ]


def _effect(sides: Sequence[Sequence[Layer]]) -> str:
    reading, writing = (
        [sum(getattr(layer, group)[place].dtype in NARROW for layer in side) for side in sides]
        for group, place in (("inputs", 1), ("outputs", 0))
    )
    write, before = f"{writing[1]} of these layers write INT8", f"{writing[0]} did before."
    if reading[1] > reading[0]:
        what = "Their residual is quantized now, so the fused Add reads INT8."
        return f" {what} {write} for the next layer; {before}"
    if reading[1] < reading[0]:
        after = "The values after them must be quantized again."
        return f" Their residual is in float now. {write}; {before} {after}"
    return ""


def _written(difference: EngineDifference) -> Iterator[str]:
    """Yield which layers write another type, and which quantize steps that made needless or needed."""
    for (old, new), pairs in _changed(difference, lambda layer: _first(layer.outputs)):
        came = old in NARROW
        copies = difference.new if came else difference.gone
        names = {pair.after.name if came else pair.before.name for pair in pairs}
        attached = [copy for copy in copies if names & set(copy.before)]
        verb, those = "appeared" if came else "disappeared", "it" if len(pairs) == 1 else "them"
        with_it = f"; {_count(attached, 'copy')} {verb} after {those}{_cost(attached)}"
        write = "writes" if len(pairs) == 1 else "write"
        yield f"{_count(pairs, 'layer')} {write} {new} instead of {old}{with_it if attached else ''}."


def _gone_and_new(difference: EngineDifference) -> Iterator[str]:
    for word, copies in (("gone", difference.gone), ("new", difference.new)):
        groups: dict[str, list[Reformat]] = defaultdict(list)
        for copy in copies:
            groups[copy.origin or "of unknown origin"].append(copy)
        parts = [f"{len(group)} {origin}{_cost(group)}" for origin, group in groups.items()]
        verb = "is" if len(copies) == 1 else "are"
        if copies:
            yield f"{_count(copies, 'copy')} {verb} {word}{_cost(copies)}: {', '.join(parts)}."
    old, new = (math.fsum(copy.time_ms or 0.0 for copy in side) for side in difference.kept)
    least = LEAST_SHARE * (difference.before.total_ms or math.inf)
    if difference.is_timed and abs(new - old) > least:
        yield f"The copies in both engines took {_ms(old)} before and take {_ms(new)} now."


def _precisions(difference: EngineDifference) -> Iterator[str]:
    for (old, new), pairs in _changed(difference, lambda layer: layer.precision):
        took = math.fsum(pair.change_ms or 0.0 for pair in pairs)
        cost = f", {_ms(abs(took))} {'less' if took < 0 else 'more'}" if difference.is_timed else ""
        names = listed(_name(pair) for pair in pairs)
        yield f"{_count(pairs, 'layer')} went from {old} to {new}{cost}: {names}."


def _moves(difference: EngineDifference) -> Iterator[str]:
    """Yield what was fused and what was split, in a sentence each or in one for many."""
    for moves, was, those, now in (
        (difference.merged, "was a layer", "were layers", "is part of"),
        (difference.split, "is a layer", "are layers", "was part of"),
    ):
        names = [(short(m.layer.name), short(m.into.name)) for m in moves]
        if len(moves) > MAX_LISTED:
            parts = [f"{own} {now} {into}" for own, into in names[:MAX_LISTED]]
            took = _sum_ms([moved.layer for moved in moves])
            yield f"{len(moves)} layers {those} of their own{took}; the first: {'; '.join(parts)}."
        else:
            for m, (own, into) in zip(moves, names, strict=True):
                yield f"{own} {was} of its own{_sum_ms([m.layer])} and {now} {into}."


def _by_kind(difference: EngineDifference) -> Iterator[str]:
    unit = _ms if difference.is_timed else _mb
    kinds = difference.kinds.items()
    parts = [f"{kind} {unit(old)} to {unit(new)}" for kind, (old, new) in kinds if old or new]
    yield f"{'Time' if difference.is_timed else 'Bytes'} by kind: {'; '.join(parts)}."


def _layers(difference: EngineDifference) -> Iterator[str]:
    changes = [(pair.change_ms or 0.0, pair) for pair in difference.pairs]
    least = LEAST_SHARE * (difference.before.total_ms or 0.0)
    most = sorted(changes, key=lambda change: -abs(change[0]))[:MAX_LISTED]
    parts = [f"{_name(pair)} {change:+.3f} ms" for change, pair in most if abs(change) > least]
    if difference.is_timed and parts:
        yield f"The layers whose time changed most: {'; '.join(parts)}."


def _changed(
    difference: EngineDifference, of: Callable[[Layer], str]
) -> Iterable[tuple[tuple[str, str], list[LayerPair]]]:
    """Return the pairs of which something known of a layer changed, by what it was and is."""
    groups: dict[tuple[str, str], list[LayerPair]] = defaultdict(list)
    for pair in difference.pairs:
        old, new = of(pair.before), of(pair.after)
        if old and new and old != new:
            groups[old, new].append(pair)
    return groups.items()


def _first(tensors: Sequence[TensorInfo]) -> str:
    return tensors[0].dtype if tensors else ""


def _name(pair: LayerPair) -> str:
    nodes = own_nodes(pair.after) or own_nodes(pair.before)
    return short(nodes[0] if nodes else pair.after.name)


def _count(items: Sequence[object], word: str) -> str:
    if len(items) == 1:
        return f"1 {word}"
    return f"{len(items)} {word.removesuffix('y') + 'ies' if word.endswith('y') else word + 's'}"


def _cost(copies: Sequence[Reformat]) -> str:
    moved = sum(copy.moved_bytes or 0 for copy in copies)
    return _sum_ms(copies) or (f" ({_mb(moved)})" if moved else "")


def _sum_ms(timed: Iterable[Reformat | Layer]) -> str:
    times = [kernel.time_ms for kernel in timed if kernel.time_ms is not None]
    return f" ({_ms(math.fsum(times))})" if times else ""


def _ms(value: float) -> str:
    return f"{value:.3f} ms"


def _mb(value: float) -> str:
    return f"{value / 1e6:.3f} MB"


def _percent(before: float, after: float) -> str:
    if not before or before == after:
        return ""
    change = 100 * (after - before) / before
    return f", {abs(change):.1f} % {'less' if change < 0 else 'more'}"
