"""What float16 is too small for: the peaks of tensors, and what their overflow does to the outputs.

A model is run with its float16 parts in float32. From 65,520 on, a value rounds to infinity in float16.
Whether that matters is measured too: by a run in which such values are infinite, and nothing else is
rounded. A mask of -1e9 before a Softmax changes no output, and is no finding.

Not known are sums inside of a product or a mean, which a kernel adds in float16 or float32, and whether
a fused kernel keeps a value between two nodes in float32: a tensor counts as float16 if it is one.
bfloat16 has the range of float32 and does not overflow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from itertools import compress

import numpy as np
import onnx
from onnx import TensorProto, helper

from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.backends.taps import Inside, showing
from trtcal.data import Dataset, Feeds, batch_for
from trtcal.errors import TrtcalError, some
from trtcal.evidence.findings import Cost, Evidence, Finding, of_kind
from trtcal.limits import Figure, Judgement, parse_limit
from trtcal.model import Model, uniquely_named
from trtcal.model.ops import QDQ
from trtcal.model.passes.bfloat16 import in_float32
from trtcal.model.tensors import producers_of, readers_of, value_types
from trtcal.quantization.fp16_subgraphs import CLIPPED
from trtcal.quantization.qdq import quantization_record

OVERFLOW = "fp16_overflow"
INFINITE = 65520.0  # from here on the nearest float16 is infinity
MARGIN = 2.0  # below which other samples may reach it
TRIED_ALONE = 8  # tensors of which each is known to matter
TOLERANCE = 1e-3
SEPARATOR = ". "
BATCH = 16
BEFORE = " before"


def tensor_peaks(
    model: Model, dataset: Dataset, progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """Return the largest finite magnitude of every float32 tensor of a float model."""
    names = [value.name for value in model.proto.graph.input] + [*producers_of(model.proto.graph)]
    types = _types(model.proto)
    names = [name for name in names if types.get(name) == TensorProto.FLOAT]
    rows = _Run(model.proto, names).peaks(dataset.batches(batch_for(model, BATCH)), progress)
    return _largest(names, rows)


def _largest(tensors: Collection[str], rows: Iterable[Array]) -> dict[str, float]:
    """Return the largest of the peaks of all batches."""
    largest = reduce(np.maximum, rows, np.zeros(len(tensors)))
    return dict(zip(tensors, largest.tolist(), strict=True))


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    types = value_types(proto).items()
    return {name: value.type.tensor_type.elem_type for name, value in types}


class _Run:
    """A model in float32, run for its outputs and for the peaks of some tensors."""

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str]) -> None:
        self.outputs = [value.name for value in proto.graph.output]
        self.proto, self.tensors = proto, tensors
        self.figures = [f"{name} {end}" for name in tensors for end in ENDS]
        reduced = showing(proto, self.figures)
        _follow(reduced.graph, tensors, _ends)
        self.session = open_session(reduced, as_it_is=True)
        self.inside: Inside | None = None  # for tensors with values that are not finite

    def read(self, feeds: Feeds, names: Sequence[str]) -> list[Array]:
        return run_session(self.session, names, _widened(feeds))

    def peaks(
        self, batches: Iterable[Feeds], progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Array]:
        """Yield the peaks of each batch, shape (tensors,)."""
        for feeds in batches:
            yield self._peaks(feeds)
            progress(len(next(iter(feeds.values()))))

    def _peaks(self, feeds: Feeds) -> Array:
        """Return the peaks of one batch: from the ends, unless a value is not finite."""
        ends = np.array([np.abs(each).max() for each in self.read(feeds, self.figures)])
        ends = ends.reshape(len(self.tensors), len(ENDS))
        ends[np.isfinite(ends[:, -1:]) & np.isinf(ends)] = 0.0  # ends of no value at all
        peaks, is_finite = ends[:, :2].max(axis=1), np.isfinite(ends).all(axis=1)
        if not is_finite.all():
            names = [*compress(self.tensors, ~is_finite)]
            if self.inside is None or self.inside.tensors != names:
                self.inside = Inside(self.proto, names)
            whole = self.inside.read(_widened(feeds)).values()
            peaks[~is_finite] = [np.abs(x).max(initial=0, where=np.isfinite(x)) for x in whole]
        return np.asarray(peaks)


def _widened(feeds: Feeds) -> Feeds:
    return {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in feeds.items()}


def _follow(
    graph: onnx.GraphProto, tensors: Iterable[str], nodes: Callable[[str], Iterable[onnx.NodeProto]]
) -> None:
    """Put nodes right behind what makes each tensor, which is not kept for them then."""
    behind, makers = {name: [*nodes(name)] for name in tensors}, list(graph.node)
    del graph.node[:]
    graph.node.extend(node for value in graph.input for node in behind.get(value.name, ()))
    for maker in makers:
        graph.node.append(maker)
        graph.node.extend(node for name in maker.output for node in behind.get(name, ()))


ENDS = ("min", "max", "sum")
"""Figures of a tensor that take no copy of it; the sum is not finite where a value is not."""


def _ends(tensor: str) -> Iterable[onnx.NodeProto]:
    for end in ENDS:
        yield helper.make_node(f"Reduce{end.title()}", [tensor], [f"{tensor} {end}"], keepdims=0)


def _overflown(proto: onnx.ModelProto, limits: Mapping[str, float]) -> onnx.ModelProto:
    """Return the model with infinity in place of what reaches the limits of tensors."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for name, value in {**limits, "": math.inf}.items():
        constant = helper.make_tensor(f"{name} limit", TensorProto.FLOAT, (), [value])
        changed.graph.initializer.append(constant)
    for node in changed.graph.node:
        node.output[:] = [f"{n}{BEFORE}" if n in limits else n for n in node.output]
    _follow(changed.graph, [f"{name}{BEFORE}" for name in limits], _infinite)
    return changed


def _infinite(source: str) -> Iterable[onnx.NodeProto]:
    result = source.removesuffix(BEFORE)
    magnitude, below, huge = (f"{result} {part}" for part in ("magnitude", "below", "huge"))
    yield helper.make_node("Abs", [source], [magnitude])
    yield helper.make_node("Less", [magnitude, f"{result} limit"], [below])
    yield helper.make_node("Mul", [source, " limit"], [huge])
    yield helper.make_node("Where", [below, source, huge], [result])


class _Float16Parts:
    """A model with float16 parts, on a dataset; `makers` are the nodes of its float16 tensors.

    `high` has the places and the peaks of the tensors that come near the end of float16 in each batch.
    A batch of which none reaches a limit has the outputs of the plain run.
    """

    def __init__(self, proto: onnx.ModelProto, dataset: Dataset, size: int) -> None:
        types, self.wide = _types(proto), in_float32(proto)
        makers = producers_of(self.wide.graph)
        self.makers = {n: node for n, node in makers.items() if types.get(n) == TensorProto.FLOAT16}
        self.readers = readers_of(self.wide.graph)
        self.dataset, self.size, self.high = dataset, size, list[tuple[Array, Array]]()
        self.last: tuple[Feeds, list[Array]] = {}, []

    @cached_property
    def plain(self) -> _Run:
        """The model without any overflow."""
        return _Run(self.wide, ())

    def shown(
        self, limits: Mapping[str, float], batches: Iterable[Feeds] | None = None
    ) -> tuple[int, Feeds | None]:
        """Return on how many samples an overflow shows in outputs, and the first batch with one."""
        run = _Run(_overflown(self.wide, limits), ())
        count, first = 0, None
        ends = np.array([limits.get(name, math.inf) for name in self.makers], np.float32)
        reaching = ((peaks >= ends[places]).any() for places, peaks in self.high)
        for feeds in batches or compress(self.dataset.batches(self.size), reaching):
            size = len(next(iter(feeds.values())))
            pairs = zip(self._plain_outputs(feeds), run.read(feeds, run.outputs), strict=True)
            differing = np.any([_differing(a, b, size) for a, b in pairs], axis=0)
            count += int(differing.sum())
            first = feeds if first is None and differing.any() else first
        return count, first

    def _plain_outputs(self, feeds: Feeds) -> list[Array]:
        """Return the outputs without any overflow, which are kept of the last batch."""
        if feeds is not self.last[0]:
            self.last = feeds, self.plain.read(feeds, self.plain.outputs)
        return self.last[1]

    def _peaks(self) -> dict[str, float]:
        """Return the peaks of all tensors, and keep of each batch those that come near the end."""
        near = np.array([self._end_of(n, INFINITE / MARGIN) for n in self.makers], np.float32)
        rows = list(_Run(self.wide, [*self.makers]).peaks(self.dataset.batches(self.size)))
        self.high = [(places := np.flatnonzero(row >= near), row[places]) for row in rows]
        return _largest(self.makers, rows)

    def findings(self, is_ours: bool) -> Iterable[Finding]:
        """Yield the overflow that outputs show; without one, that which twice the values would have."""
        peaks = self._peaks()
        for limit, risk in ((INFINITE, "high"), (INFINITE / MARGIN, "low")):
            limits = {name: self._end_of(name, limit) for name in peaks}
            beyond = {name: end for name, end in limits.items() if peaks[name] >= end}
            count, feeds = self.shown(beyond) if beyond else (0, None)
            if feeds is not None:
                tried = [*beyond][:TRIED_ALONE]
                alone = [name for name in tried if self.shown({name: beyond[name]}, [feeds])[0]]
                others = {name: end for name, end in beyond.items() if name not in alone}
                harmful = [*alone, *(others if others and self.shown(others)[0] else ())]
                yield self._finding(harmful or [*beyond], peaks, count, is_ours, risk)
                return

    def _end_of(self, tensor: str, limit: float) -> float:
        """Return where a tensor overflows: TensorRT squares and adds up before it takes a root."""
        return math.sqrt(limit) if self.makers[tensor].op_type == "ReduceL2" else limit

    def _finding(
        self, tensors: Sequence[str], peaks: dict[str, float], count: int, is_ours: bool, risk: str
    ) -> Finding:
        first = tensors[0]
        node, peak = self.makers[first], peaks[first]
        has_squares = self._end_of(first, INFINITE) < INFINITE
        peak, part = (peak**2, "the squares under") if has_squares else (peak, "tensor")
        around = [item for n in tensors for item in (self.makers[n], *self.readers.get(n, ()))]
        named = {item.name: item.op_type for item in around if not item.name.endswith(CLIPPED)}
        others = [name for name, op in named.items() if op not in {"Cast", *QDQ}]
        casts = [name for name, op in named.items() if op == "Cast"]
        is_ours = is_ours and all("/fp16" in name for name in tensors)
        verb = "overflows" if risk == "high" else "comes near the end of"
        what = (
            f"{node.name!r} ({node.op_type}) {verb} float16, which ends at 65504: {part} "
            f"{first.removesuffix('/fp16')!r} reach{'es' * (not has_squares)} {peak:.6g}"
        )
        share = 100 * count / len(self.dataset)
        what += f", and the outputs change on {share:.4g} % of the samples" * (risk == "high")
        evidence = [Evidence("node", self.makers[n].name, f"{n}: {peaks[n]:.6g}") for n in tensors]
        cure = _cure(others, is_ours) if others else _without_casts(casts)
        return of_kind(OVERFLOW, node.name, what, evidence, cure, Cost(risk=risk))


def _cure(nodes: Sequence[str], is_ours: bool) -> str:
    if is_ours:
        layers = {"layers": dict.fromkeys(nodes, "fp32")}
        return f"Put into the plan: {json.dumps(layers, ensure_ascii=False)[1:-1]}"
    names = json.dumps(nodes, ensure_ascii=False)
    return f"Convert the model again from float32 and keep these nodes in float32: {names}"


def _without_casts(casts: Sequence[str]) -> str:
    text = "Remove these Cast nodes, which round to float16 between float32 nodes: "
    text += json.dumps(casts, ensure_ascii=False)
    return f'{text}, or quantize the float model with a plan "default": "fp16"'


def _differing(expected: Array, actual: Array, samples: int) -> Array:
    """Return which samples differ, all if an output does not say which is whose."""
    if expected.shape != actual.shape or expected.dtype.kind not in "fiub":
        return np.full(samples, not np.array_equal(expected, actual))
    largest = np.abs(expected.astype(float)).max(initial=0, where=np.isfinite(expected))
    same = np.isclose(actual, expected, TOLERANCE, TOLERANCE * largest, equal_nan=True)
    if same.shape[:1] == (samples,):
        return np.asarray(~same.reshape(samples, -1).all(1))
    return np.full(samples, not same.all())


def of_outputs(count: int, samples: int) -> tuple[Finding, ...]:
    """Return what to say of a variant that gives NaN or infinity for some samples."""
    which = f"{count} of {samples} samples"
    what = f"its outputs are NaN or infinite on {which}, those of the reference are not"
    return (of_kind("infinite_output", None, what, cost=Cost(risk="high")),) if count else ()


def joined(overflow: Sequence[Finding], outputs: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return both; what overflows need not be searched for if it is known."""
    is_known = any(finding.cost.risk == "high" for finding in overflow)
    return (*overflow, *(replace(each, fix="") if is_known else each for each in outputs))


def judge_findings(findings: Iterable[Finding], subject: str = "") -> tuple[Judgement, ...]:
    """Return a broken limit for each finding with which a variant must not ship."""
    return tuple(
        Judgement(parse_limit(f"{finding.kind} == 0"), subject, Figure.exact(1), as_text(finding))
        for finding in findings
        if finding.cost.risk == "high"
    )


def low_risks(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return what to know before shipping."""
    return tuple(as_text(finding) for finding in findings if finding.cost.risk == "low")


def as_text(finding: Finding) -> str:
    """Return a finding and its cure."""
    return SEPARATOR.join(filter(None, (finding.what, finding.fix.rstrip("."))))


def cure_in(judgements: Iterable[Judgement]) -> str:
    """Return the cure of the first overflow among broken limits, if any."""
    texts = (each.reason for each in judgements if each.limit.metric == OVERFLOW)
    return next(texts, "").partition(SEPARATOR)[2]


def find_overflow(model: Model | None, dataset: Dataset, batch: int = BATCH) -> tuple[Finding, ...]:
    """Return what float16 is too small for in a model, if any, with the nodes to keep in float32.

    They are the line of a plan if `quantize` made the model. What cannot be run in float32 is a finding
    too, since nothing is known of it.
    """
    if model is None:
        return ()
    model = uniquely_named(model)
    parts = _Float16Parts(model.proto, dataset, batch_for(model, batch))
    try:
        return tuple(parts.findings(bool(quantization_record(model.proto)))) if parts.makers else ()
    except TrtcalError as error:
        what = f"the values of {some(parts.makers)} in float16 are not known: {error.message}"
        return (of_kind(OVERFLOW, None, what, cost=Cost(risk="low")),)
