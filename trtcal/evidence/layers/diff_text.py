"""The difference of two engines in sentences, each counted from the layers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from trtcal.evidence.layers.costs import bytes_of, listed, short
from trtcal.evidence.layers.diff import EngineDifference, LayerPair
from trtcal.evidence.layers.findings import NARROW, Reformat, adds_residual
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.matching import own_nodes
from trtcal.evidence.layers.reading import Engine

SHOWN = 3
WORTH = 0.01


def describe(difference: EngineDifference) -> tuple[str, ...]:
    """Return the sentences, what matters most first."""
    return tuple(
        sentence
        for part in (_total, _residual, _written, _copies, _precisions, _moves, _kinds, _layers)
        for sentence in part(difference)
    )


def _total(difference: EngineDifference) -> Iterator[str]:
    before, after = difference.before, difference.after
    if difference.is_timed:
        a, b = before.total_ms or 0.0, after.total_ms or 0.0
        yield f"The total went from {_ms(a)} to {_ms(b)}{_percent(a, b)}."
    else:
        c, d = bytes_of(before.layers), bytes_of(after.layers)
        yield (
            f"One engine has no layer times. The bytes moved went from {_mb(c)} to {_mb(d)}"
            f"{_percent(c, d)}."
        )
    joined = len(difference.pairs)
    by_order = sum(pair.by != "name" for pair in difference.pairs)
    guessed = (
        f" ({by_order} matched by arithmetic and order, because their names differ)"
        if by_order
        else ""
    )
    yield (
        f"{len(before.layers)} layers became {len(after.layers)}; {joined} convolutions and matrix "
        f"products are in both{guessed}."
    )
    for side, kind in (("first", "gone"), ("second", "new")):
        if alone := difference.alone(kind):
            yield f"Only in the {side} engine: {listed(alone)}."


def _residual(difference: EngineDifference) -> Iterator[str]:
    """Yield in which type INT8 layers read what they add to their product, and what that does."""
    sides = [_adding(engine) for engine in (difference.before, difference.after)]
    types = [Counter(layer.inputs[1].dtype for layer in side) for side in sides]
    if types[0] == types[1]:
        return
    old, new = (_list_types(counts) for counts in types)
    yield f"INT8 layers with a fused residual Add: before {old}; now {new}.{_effect(sides)}"


def _adding(engine: Engine) -> list[Layer]:
    return [
        layer
        for layer in engine.layers
        if layer.precision == "int8"
        and adds_residual(layer)
        and any("add" in node.lower() for node in own_nodes(layer))
    ]


def _list_types(counts: Counter[str]) -> str:
    parts = [f"{count} read it in {dtype}" for dtype, count in counts.most_common()]
    return ", ".join(parts) or "none"


def _effect(sides: Sequence[Sequence[Layer]]) -> str:
    reading, writing = (
        [sum(getattr(layer, group)[place].dtype in NARROW for layer in side) for side in sides]
        for group, place in (("inputs", 1), ("outputs", 0))
    )
    if reading[1] > reading[0]:
        return (
            f" Their residual is quantized now, so the fused Add reads INT8. {writing[1]} of these "
            "layers "
            f"write INT8 for the next layer; {writing[0]} did before."
        )
    if reading[1] < reading[0]:
        return (
            f" Their residual is in float now. {writing[1]} of these layers write INT8; "
            f"{writing[0]} did "
            f"before. The values after them must be quantized again."
        )
    return ""


def _written(difference: EngineDifference) -> Iterator[str]:
    """Yield which layers write another type, and which quantize steps that made needless or needed."""
    for (old, new), pairs in _changed(difference, lambda layer: _first(layer.outputs)):
        came = old in NARROW
        copies = difference.new if came else difference.gone
        names = {pair.after.name if came else pair.before.name for pair in pairs}
        found = [copy for copy in copies if names & set(copy.before)]
        verb, those = "appeared" if came else "disappeared", "it" if len(pairs) == 1 else "them"
        with_it = f"; {_count(found, 'copy')} {verb} after {those}{_cost(found)}" if found else ""
        write = "writes" if len(pairs) == 1 else "write"
        yield f"{_count(pairs, 'layer')} {write} {new} instead of {old}{with_it}."


def _copies(difference: EngineDifference) -> Iterator[str]:
    for word, copies in (("gone", difference.gone), ("new", difference.new)):
        groups: dict[str, list[Reformat]] = defaultdict(list)
        for copy in copies:
            groups[copy.origin or "of unknown origin"].append(copy)
        parts = [f"{len(group)} {origin}{_cost(group)}" for origin, group in groups.items()]
        verb = "is" if len(copies) == 1 else "are"
        if copies:
            yield f"{_count(copies, 'copy')} {verb} {word}{_cost(copies)}: {', '.join(parts)}."
    old, new = (math.fsum(copy.time_ms or 0.0 for copy in side) for side in difference.kept)
    if difference.is_timed and abs(new - old) > WORTH * (difference.before.total_ms or math.inf):
        yield f"The copies in both engines took {_ms(old)} before and take {_ms(new)} now."


def _precisions(difference: EngineDifference) -> Iterator[str]:
    for (old, new), pairs in _changed(difference, lambda layer: layer.precision):
        changes = [pair.change_ms for pair in pairs]
        took = math.fsum(ms for ms in changes if ms is not None)
        cost = f", {_ms(abs(took))} {'less' if took < 0 else 'more'}" if difference.is_timed else ""
        names = listed(_name(pair) for pair in pairs)
        yield f"{_count(pairs, 'layer')} went from {old} to {new}{cost}: {names}."


def _moves(difference: EngineDifference) -> Iterator[str]:
    """Yield what was fused and what was split, in a sentence each or in one for many."""
    for moves, was, now in (
        (difference.merged, "was a layer of its own", "is part of"),
        (difference.split, "is a layer of its own", "was part of"),
    ):
        if len(moves) > SHOWN:
            parts = [f"{short(m.layer.name)} {now} {short(m.into.name)}" for m in moves[:SHOWN]]
            each = was.replace("is a layer of its", "are layers of their")
            each = each.replace("was a layer of its", "were layers of their")
            took = _sum_ms([moved.layer for moved in moves])
            yield f"{len(moves)} layers {each}{took}; the first: {'; '.join(parts)}."
        else:
            for m in moves:
                own = f"{short(m.layer.name)} {was}{_sum_ms([m.layer])}"
                yield f"{own} and {now} {short(m.into.name)}."


def _kinds(difference: EngineDifference) -> Iterator[str]:
    unit = _ms if difference.is_timed else _mb
    parts = [
        f"{kind} {unit(a)} to {unit(b)}" for kind, (a, b) in difference.kinds.items() if a or b
    ]
    yield f"{'Time' if difference.is_timed else 'Bytes'} by kind: {'; '.join(parts)}."


def _layers(difference: EngineDifference) -> Iterator[str]:
    """Yield the layers whose time changed most."""
    changes = [(pair.change_ms or 0.0, pair) for pair in difference.pairs]
    least = WORTH * (difference.before.total_ms or 0.0)
    most = sorted(changes, key=lambda one: -abs(one[0]))[:SHOWN]
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
    times = [one.time_ms for one in timed if one.time_ms is not None]
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
