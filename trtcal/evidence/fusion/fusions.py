"""The fusion check: what the graph predicts, what a build shows, findings, how two checks differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs

from trtcal.documents import Document, parsing, read_document, seal
from trtcal.documents.overview import Shown
from trtcal.errors import GateFailed, __version__, check_choice
from trtcal.evidence.difference import Difference, changes_of
from trtcal.evidence.findings import KINDS, Cost, Evidence, Finding, rank
from trtcal.evidence.fusion.matching import BROKEN, PAIRS, WHOLE, Match, find_matches
from trtcal.evidence.fusion.patterns import Patterns, read_patterns
from trtcal.evidence.layers.layer import Layer, LayersByNode, sum_bytes
from trtcal.evidence.layers.reading import Engine
from trtcal.model import Model, load_model
from trtcal.model.graph import is_op
from trtcal.model.passes import Pass, PassRecord, prepare_with_record
from trtcal.model.passes.redundant import CASTS, IDENTITIES, ROUNDING_CASTS, TRANSPOSES, removal
from trtcal.model.passes.upgrade import TYPES
from trtcal.model.tensors import View

ONE, SEVERAL, UNLISTED, OPAQUE = "one layer", "several layers", "not listed", "opaque"


@dataclass(frozen=True)
class Seen:
    """What the layer list shows of one match.

    `state` is `one layer`, `several layers`, `not listed` (no layer names a node of it) or `opaque`
    (one lists it that stands for a whole compiled subgraph). `layers` are names and kinds;
    `unlisted` the nodes that none names: folded away, or merged where no name is kept.
    """

    state: str
    layers: tuple[tuple[str, str], ...] = ()
    unlisted: tuple[str, ...] = ()
    moved_bytes: int | None = None
    """Bytes of what one of the layers writes and another reads, counted twice."""

    @property
    def is_known(self) -> bool:
        """Whether it says how many kernels there are."""
        return self.state in (ONE, SEVERAL)


def match_layers(matches: Sequence[Match], layers: Sequence[Layer]) -> tuple[Seen, ...]:
    """Return what a layer list shows of each match.

    Layers that neither read nor write (they synchronize) don't count, if the list describes others.
    """
    described = any(layer.inputs or layer.outputs for layer in layers)
    working = [layer for layer in layers if layer.inputs or layer.outputs or not described]
    index = LayersByNode(working)
    return tuple(_seen(match, index) for match in matches)


def _seen(match: Match, index: LayersByNode) -> Seen:
    listing = {node: index.listing(node) for node in match.nodes}
    unlisted = tuple(node for node, numbers in listing.items() if not numbers)
    layers = [index.layers[number] for number in sorted(set().union(*listing.values()))]
    named = tuple((layer.name, layer.kind) for layer in layers)
    if not layers:
        return Seen(UNLISTED, (), unlisted)
    if any(layer.is_opaque for layer in layers):
        return Seen(OPAQUE, named, unlisted)
    return Seen(ONE if len(layers) == 1 else SEVERAL, named, unlisted, _moved_in_build(layers))


def _moved_in_build(layers: Sequence[Layer]) -> int | None:
    written = {output.name: output for layer in layers for output in layer.outputs}
    passed = {tensor.name for layer in layers for tensor in layer.inputs} & set(written)
    moved = sum_bytes(written[name] for name in passed)
    return None if moved is None else 2 * moved


FUSION_KIND = "fusion"
BROKEN_FUSION = "broken_fusion"
SPLIT_FUSION = "fusion_differs"
AGREES, DIFFERS, UNKNOWN = "agrees", "differs", "unknown"
SHARED = ("second_reader", "output", "subgraph")
"""Kinds of breakers with which the value is written out anyway, and is only read once more."""


@dataclass(frozen=True)
class Fusions(Shown):
    """Every match in a model, with what a layer list shows of it (None where there is none).

    `inner` counts nodes in subgraphs and functions, which were not checked.
    """

    model: str
    model_name: str
    nodes: int
    inner: int
    matches: tuple[Match, ...]
    seen: tuple[Seen | None, ...]
    layers: Engine | None = None
    findings: tuple[Finding, ...] = field(default=())

    @property
    def broken(self) -> tuple[Match, ...]:
        """The matches that are broken, by prediction."""
        return tuple(match for match in self.matches if match.state == BROKEN)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """For each match whether the layer list agrees with the prediction; see `verdict`."""
        return tuple(map(verdict, self.matches, self.seen))

    def to_document(self) -> Document:
        """Return the JSON form, sealed; it holds no paths."""
        rows = zip(self.matches, self.seen, self.verdicts, strict=True)
        built = self.layers
        facts = {"model": built.model, "builder": built.builder} if built else {}
        body = {
            "trtcal": __version__,
            "model": self.model,
            "model_name": self.model_name,
            "nodes": self.nodes,
            "inner_nodes": self.inner,
            "layers": built and {"count": len(built.layers), **facts},
            "matches": [_match_document(*row) for row in rows],
            "findings": list(map(asdict, self.findings)),
        }
        return seal({"kind": FUSION_KIND, "schema_version": 1, **body})


def _match_document(match: Match, seen: Seen | None, agreement: str) -> dict[str, Any]:
    return {
        **asdict(match),
        "root": match.root,
        "roles": [{"role": role, "nodes": list(nodes)} for role, nodes in match.roles],
        "prediction": match.state,
        "evidence": seen and asdict(seen),
        "verdict": agreement,
    }


def verdict(match: Match, seen: Seen | None) -> str:
    """Return whether a layer list `agrees` with the prediction or `differs`; `unknown` without one."""
    if seen is None or not seen.is_known:
        return UNKNOWN
    return AGREES if (match.state == WHOLE) == (seen.state == ONE) else DIFFERS


def check_fusions(
    model: Model, patterns: Patterns | None = None, layers: Engine | None = None
) -> Fusions:
    """Find the patterns in a model's graph and, if `layers` are given, in what was built of it."""
    view = View(model)
    matches = find_matches(view, patterns or read_patterns())
    seen = match_layers(matches, layers.layers) if layers else (None,) * len(matches)
    rows = zip(matches, seen, strict=True)
    findings = rank(finding for row in rows for finding in _findings(view, *row))
    sizes = (len(view.nodes), view.inner)
    return Fusions(model.fingerprint, model.name, *sizes, matches, seen, layers, findings)


def _findings(view: View, match: Match, seen: Seen | None) -> Iterator[Finding]:
    if match.state == BROKEN:
        fused = seen is not None and seen.state == ONE
        yield _broken(match, Cost(None, None if fused else _moved(view, match)))
    if seen is not None and verdict(match, seen) == DIFFERS:
        yield _differing(match, seen)


def _moved(view: View, match: Match) -> int | None:
    """Return the bytes that a break costs: each value is written and read, or only read again."""
    times = {each.tensor: 2 - (each.kind in SHARED) for each in reversed(match.breakers)}
    sizes = [(view.size_bytes(tensor), count) for tensor, count in times.items()]
    known = [size * count for size, count in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _broken(match: Match, cost: Cost) -> Finding:
    reasons = "; ".join(breaker.why for breaker in match.breakers)
    what = f"{match.pattern} at {match.root!r} is broken: {reasons}"
    kernels = "several kernels, with the values between them in memory"
    why = f"the pattern is expected to run as {kernels}"
    fixes = KINDS[BROKEN_FUSION].fixes
    known = (fixes.get(each.fix or each.kind) or fixes["pass"] for each in match.breakers)
    fix = "; ".join(dict.fromkeys(known))
    evidence = tuple(Evidence("node", each.subject, each.why) for each in match.breakers)
    return Finding(BROKEN_FUSION, match.breakers[0].subject, what, why, fix, evidence, cost)


def _differing(match: Match, seen: Seen) -> Finding:
    evidence = tuple(Evidence("layer", name, kind) for name, kind in seen.layers)
    place, moved = f"{match.pattern} at {match.root!r}", None
    if seen.state == SEVERAL:
        kernels = ", ".join(name for name, _ in seen.layers)
        what = f"{place} could be one layer, but the engine has {len(seen.layers)}: {kernels}"
        why = "this compiler does not fuse it, although the graph allows it"
        roles = {role for role, _ in match.roles}
        fix = NORMED if {"conv", "BatchNormalization"} <= roles else PLAIN
        moved = seen.moved_bytes
    else:
        what = f"{place} is broken in the graph, but one layer in the engine"
        why = "this compiler fuses it anyway, so it costs nothing here"
        fix = "fix it only if you build with other compilers"
    return Finding(SPLIT_FUSION, match.root, what, why, fix, evidence, Cost(None, moved))


NORMED = "run `trtcal prepare`, which folds BatchNormalization into the weights of the convolution"
PLAIN = "the graph does not prevent the fusion: another version or target may fuse it"


PREDICTION, EVIDENCE = "prediction", "evidence"
Standings = dict[tuple[str, str], str]
"""How each match stands, by its root: the prediction with why, and if known its number of layers."""


def read_standings(path: Path, patterns: Patterns) -> Standings:
    """Read a saved check (`.json`), or check a model."""
    if path.suffix == ".json":
        document = read_document(path, FUSION_KIND, command="trtcal layers fusions MODEL -o FILE")
    else:
        document = check_fusions(load_model(path), patterns).to_document()
    return parsing(path, lambda: dict(_standings(document)))


def _standings(document: Document) -> Iterator[tuple[tuple[str, str], str]]:
    for match in document["matches"]:
        if match["prediction"] not in (WHOLE, BROKEN):
            raise ValueError(match["prediction"])
        root, evidence = str(match["root"]), match["evidence"]
        why = "; ".join(str(breaker["why"]) for breaker in match["breakers"])
        state = f"{match['pattern']} {match['prediction']}"
        yield (root, PREDICTION), f"{state}: {why}" if why else state
        if evidence is not None and Seen(evidence["state"]).is_known:
            count = len(evidence["layers"])
            yield (root, EVIDENCE), f"{count} layer{'s' * (count > 1)}"


def diff_fusions(before: Standings, after: Standings) -> Difference[None, str]:
    """Compare two checks, match by match as their roots are named."""
    unknown = {key for key in before.keys() ^ after.keys() if key[1] == EVIDENCE}
    a, b = ({key: side[key] for key in side if key not in unknown} for side in (before, after))
    changes = changes_of(a, b, _is_better)
    roots = {root for root, _ in (*before, *after)}
    return Difference(None, None, changes, len(roots - {change.subject for change in changes}))


def _is_better(what: str, before: str, after: str) -> bool | None:
    if what == EVIDENCE:
        return int(after.split()[0]) < int(before.split()[0])
    was, now = (text.endswith(WHOLE) for text in (before, after))
    return None if was == now else now


PASSES = (IDENTITIES, CASTS, ROUNDING_CASTS, TRANSPOSES)
ON_REQUEST = (ROUNDING_CASTS.name, PAIRS)


@dataclass(frozen=True)
class FixedModel:
    """A fixed model and what each pass did.

    If Q/DQ pairs are gone, `step` is the largest step of a Q/DQ pair on a computed value: what a value
    may move by, being rounded no more. Else it is None.
    """

    model: Model
    records: tuple[PassRecord, ...]
    step: float | None


def fix_fusions(model: Model, fusions: Fusions, add: Collection[str] = ()) -> FixedModel:
    """Return the model without what breaks its patterns, as far as passes can take it out.

    Passes that change values (`rounding-casts`, `inner-pairs`) run only if they are in `add`.
    `InputError` if a name in it is unknown, `GateFailed` if nothing can be fixed.
    """
    for name in add:
        check_choice(name, ON_REQUEST, f"{name!r} is not a pass of --add")
    fixes = {breaker.fix for match in fusions.broken for breaker in match.breakers} - {None}
    fixes -= set(ON_REQUEST) - set(add)
    chosen = [chosen_pass for chosen_pass in PASSES if chosen_pass.name in fixes]
    if CASTS in chosen or ROUNDING_CASTS in chosen:
        chosen.insert(0, TYPES)
    if PAIRS in fixes:
        chosen.append(without_pairs(_pairs(fusions)))
    names = [chosen_pass.name for chosen_pass in chosen if chosen_pass.on_request]
    prepared = prepare_with_record(model, (), names, chosen)
    if not any(record.changes for record in prepared.records if record.name != TYPES.name):
        raise GateFailed("no pattern can be fixed, so no model was written", _hint(fusions, add))
    moves = any(record.changes for record in prepared.records if record.name == PAIRS)
    return FixedModel(prepared.model, prepared.records, _largest_step(model) if moves else None)


def _largest_step(model: Model) -> float:
    view = View(model)
    places = (view.nodes[i] for i, op in enumerate(view.operators) if op == "QuantizeLinear")
    scales = (view.number(node.input[1]) for node in places if not view.is_constant(node.input[0]))
    return max((scale for scale in scales if scale is not None), default=0.0)


def _pairs(fusions: Fusions) -> set[str]:
    breakers = (breaker for match in fusions.broken for breaker in match.breakers)
    return {name for breaker in breakers if breaker.fix == PAIRS for name in breaker.nodes}


def _hint(fusions: Fusions, add: Collection[str]) -> str:
    fixes = {breaker.fix for match in fusions.broken for breaker in match.breakers}
    left = [name for name in ON_REQUEST if name in fixes and name not in add]
    if left:
        return f"--add {left[0]} removes a node that breaks a pattern; it changes values"
    why = "no pass can remove the nodes that break the patterns"
    return why if fusions.broken else "no pattern is broken"


def without_pairs(nodes: Collection[str]) -> Pass:
    """Return the pass that takes out the Q/DQ pairs of which both nodes are named.

    It changes values: they are no longer rounded to a step of the pair, nor cut at its range.
    """

    def before_the_pair(node: gs.Node) -> gs.Tensor | None:
        if node.name not in nodes or not is_op(node, "DequantizeLinear"):
            return None
        makers = node.inputs[0].inputs
        if not makers or makers[0].name not in nodes or not is_op(makers[0], "QuantizeLinear"):
            return None
        return makers[0].inputs[0]

    purpose = "Remove Q/DQ pairs that break a fusion; the values are no longer rounded there."
    return removal(PAIRS, purpose, before_the_pair, on_request=True)
