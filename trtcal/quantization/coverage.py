"""How much of a network's compute is in narrow formats, and what the rest is and why, by MACs.

MACs are multiply-accumulates. A count of layers says little: one convolution in INT8 beside an LSTM is
all layers that a plan decides, and hardly any of the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trtcal.documents import to_fields
from trtcal.documents.overview import Shown
from trtcal.formats import NARROW, WEIGHTS_ONLY, spelled
from trtcal.limits import Figure, Judgement, Limit, judge_figures
from trtcal.metrics import INT8_MACS, NARROW_MACS, SHARES
from trtcal.model import Model, uniquely_named
from trtcal.model.macs import FORMULAS
from trtcal.model.ops import MULTIPLIES, NOT_QUANTIZED, QDQ
from trtcal.model.shapes import CONTRIB, Shape
from trtcal.model.work import NodeWork, Work, count_work
from trtcal.quantization.qdq import asked_precisions, quantization_record

INT8, UNKNOWN = "int8", "unknown"
BY_NAME = "name"  # how a plan names a layer: `Decision.by`
REST_KEPT, REST_SHOWN = 50, 3
LOW_SHARE = 50.0  # percent of multiply-accumulates in INT8 under which it is a warning
UNITS = ((1e12, "TMAC"), (1e9, "GMAC"), (1e6, "MMAC"), (1e3, "kMAC"), (1.0, "MAC"))


@dataclass(frozen=True)
class Uncovered:
    """A node that multiplies and is in float, or whose precision is not known, with the reason.

    `macs` is None where what it multiplies is not known; `share` is its percent of all that is.
    """

    node: str
    op: str
    macs: int | None
    moved_bytes: int
    share: float | None
    reason: str


@dataclass(frozen=True)
class Coverage(Shown):
    """The multiply-accumulates and bytes of a network, and those of its nodes in narrow formats.

    `is_built` is what an engine was built with; else it is what Q/DQ ask for, if kernels are there.
    Bytes are those of float tensors, without Q/DQ. `unknown_macs` are those of nodes whose precision
    is not known. `rest` has the nodes in no narrow format, the largest first, at most 50, `uncounted`
    those that nothing is known of, as plug-ins. `inputs` gives the shapes that it was counted for,
    `assumed` what nothing decided.
    """

    is_built: bool
    macs: int
    int8_macs: int
    unknown_macs: int
    moved_bytes: int
    int8_bytes: int
    nodes: int
    int8_nodes: int
    rest: tuple[Uncovered, ...]
    uncounted: tuple[Uncovered, ...]
    inputs: dict[str, tuple[int, ...]]
    assumed: tuple[str, ...]
    narrow_macs: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The percent of multiply-accumulates in INT8; None where none are known."""
        return 100 * self.int8_macs / self.macs if self.macs else None

    @property
    def formats(self) -> dict[str, int]:
        """The multiply-accumulates of each narrow format that has any, INT8 first."""
        return ({INT8: self.int8_macs} if self.int8_macs else {}) | self.narrow_macs

    @property
    def narrow_share(self) -> float | None:
        """The percent of multiply-accumulates in narrow formats; None where none are known."""
        return 100 * sum(self.formats.values()) / self.macs if self.macs else None

    @property
    def shares(self) -> dict[str, float]:
        """The percent of multiply-accumulates in each narrow format that has any."""
        return {name: 100 * macs / self.macs for name, macs in self.formats.items()}

    @property
    def is_low(self) -> bool:
        """Whether less than half of what is known runs in INT8 or another narrow precision."""
        return self.narrow_share is not None and self.narrow_share < LOW_SHARE

    @property
    def figures(self) -> dict[str, Figure | None]:
        """The shares by limit: exact, unless some nodes' precision is not known."""
        unknown = 100 * self.unknown_macs / self.macs if self.macs else 0.0
        shares = {INT8_MACS: self.share, NARROW_MACS: self.narrow_share}
        return {
            name: None if share is None else Figure(share, share, share + unknown)
            for name, share in shares.items()
        }

    @property
    def proportion(self) -> str:
        """The share as words: `3 % of 2.1 GMAC run in INT8`."""
        if self.share is None:
            return "the multiply-accumulates of this network are not known"
        verb = "run" if self.is_built else "can run"
        parts = [("0 %", f"{verb} in {spelled(())}")] if not self.shares else []
        for name, share in self.shares.items():
            does = "have weights" if name in WEIGHTS_ONLY else verb
            parts.append((percent(share), f"{does} in {name.upper()}"))
        (first, does), *others = parts
        sentence = f"{first} of {amount(self.macs)} {does}"
        sentence += "".join(f", {share} {does}" for share, does in others)
        if self.unknown_macs:
            sentence += f", of {percent(100 * self.unknown_macs / self.macs)} it is not known"
        return sentence

    @property
    def headline(self) -> str:
        """The share and the largest node that is in no narrow format, with the reason."""
        first = (self.rest or self.uncounted)[:1]
        return self.proportion + "".join(f"; {node.node}: {node.reason}" for node in first)

    def details(self) -> Iterator[str]:
        """Yield further sentences: nodes and bytes, the next nodes, what was not counted, sizes."""
        formats = spelled(self.formats, "or")
        if self.nodes and not self.narrow_macs:  # the nodes and bytes of INT8 alone are counted
            share = percent(100 * self.int8_bytes / max(self.moved_bytes, 1))
            moved = f"{share} of the {self.moved_bytes / 1e6:.3g} MB that all nodes move in float"
            yield f"that is {self.int8_nodes} of {self.nodes} nodes that multiply, and {moved}"
        for node in self.rest[1 : REST_SHOWN + 1]:
            share = percent(node.share or 0.0)
            yield f"{share} not in {formats}: {node.node} ({node.op}): {node.reason}"
        if more := self.rest[REST_SHOWN + 1 :]:
            share = percent(math.fsum(node.share or 0.0 for node in more))
            yield f"{share} not in {formats}: {len(more)} further nodes"
        for node in self.uncounted[:REST_SHOWN]:
            moved = f"{node.moved_bytes / 1e6:.3g} MB moved"
            yield f"not counted: {node.node} ({node.op}, {moved}): {node.reason}"
        if more := self.uncounted[REST_SHOWN:]:
            yield f"not counted: {len(more)} further nodes"
        if self.assumed:
            sizes = ", ".join(f"{n} {'x'.join(map(str, at))}" for n, at in self.inputs.items())
            others = len(self.assumed) - 1
            more_of = f" (and {others} more such sizes)" if others else ""
            yield f"counted for {sizes}: {self.assumed[0]}{more_of}" if sizes else self.assumed[0]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, with the share in percent."""
        return {"share": self.share, **to_fields(self)}


def percent(share: float) -> str:
    """Return a share with three digits, never rounded up to all or down to nothing.

    >>> percent(2.96), percent(99.99), percent(0.0)
    ('2.96 %', '99.9 %', '0 %')
    """
    if 99.9 < share < 100:
        share = 99.9
    return f"{share:.3g} %"


def amount(macs: int) -> str:
    """Return multiply-accumulates in the unit that suits them.

    >>> amount(2_100_000_000)
    '2.1 GMAC'
    """
    factor, unit = next((unit_row for unit_row in UNITS if macs >= unit_row[0]), UNITS[-1])
    return f"{macs / factor:.3g} {unit}"


def judge_coverage(limits: Iterable[Limit], coverage: Coverage | None) -> tuple[Judgement, ...]:
    """Hold the shares of multiply-accumulates to their limits; without a count none holds."""
    why = "nothing was counted: give the model"
    if coverage is not None:
        why = "no node's multiply-accumulates are known"
    figures = dict.fromkeys(SHARES) if coverage is None else coverage.figures
    return judge_figures(limits, figures, reason=why)


def asked_coverage(
    model: Model,
    sizes: Mapping[str, Shape] | None = None,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> Coverage:
    """Return what of a model can run in narrow formats, by its Q/DQ: of `quantize` or another tool.

    `lost` says of nodes why their Q/DQ give no kernel in them, `sizes` are the shapes of inputs, else
    those that `quantize` recorded of the data; see `trtcal.model.work.count_work`.
    """
    model = uniquely_named(model)
    record = quantization_record(model.proto)
    work = count_work(model, {**usual_sizes(record), **(sizes or {})})
    asked = asked_precisions(model.proto)
    got = {node: precision for node, precision in asked.items() if node not in lost}
    return cover(work, got, {**kept_out(record), **lost})


def usual_sizes(record: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the median shapes of a sample that `quantize` recorded, without those that are empty."""
    sizes = recorded_sizes(record)
    return {name: usual for name, (_, usual, _) in sizes.items() if 0 not in usual}


def recorded_sizes(record: Mapping[str, Any]) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return the least, median and most sizes of a sample that `quantize` recorded, by input."""
    sizes, known = record.get("sizes"), {}
    for name, shapes in sizes.items() if isinstance(sizes, dict) else ():
        if isinstance(shapes, list) and len(shapes) == 3 and all(map(_is_shape, shapes)):
            least, usual, most = map(tuple, shapes)
            known[name] = least, usual, most
    return known


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**31 for n in value)


def kept_out(record: Mapping[str, Any]) -> dict[str, str]:
    """Return why nodes have no Q/DQ, as `quantize` recorded it."""
    reasons = {
        node: f"left in float by the plan, {'which names it' if why == BY_NAME else why}"
        for node, why in record.get("excluded", {}).items()
    }
    return {**reasons, **record.get("skipped", {})}


def cover(
    work: Work, got: Mapping[str, str], reasons: Mapping[str, str], is_built: bool = False
) -> Coverage:
    """Return the coverage of a network whose nodes of the main graph run in the precisions `got`."""
    multiplying = [node for node in work.nodes if node.macs]
    total = _sum_macs(multiplying)
    by_precision = dict[str, list[NodeWork]]()
    for node in multiplying:  # Q/DQ stand in the main graph alone
        precision = "float" if node.body else got.get(node.node, "float")
        by_precision.setdefault(precision, []).append(node)
    own = by_precision.get(INT8, [])
    narrow = {id(node) for name in NARROW for node in by_precision.get(name, ())}
    rest = [node for node in multiplying if id(node) not in narrow]
    rest.sort(key=lambda node: -(node.macs or 0))
    unknown = [node for node in work.nodes if node.macs is None]
    others = [name for name in NARROW if name != INT8 and name in by_precision]
    return Coverage(
        is_built=is_built,
        macs=total,
        int8_macs=_sum_macs(own),
        unknown_macs=_sum_macs(by_precision.get(UNKNOWN, [])),
        moved_bytes=sum(node.moved_bytes for node in work.nodes if node.op not in QDQ),
        int8_bytes=sum(node.moved_bytes for node in own),
        nodes=sum(node.macs != 0 for node in work.nodes),
        int8_nodes=len(own),
        rest=tuple(_uncovered(node, total, _reason(node, reasons)) for node in rest[:REST_KEPT]),
        uncounted=tuple(_uncovered(node, total, _unknown_reason(node)) for node in unknown),
        inputs=dict(work.inputs),
        assumed=work.assumed,
        narrow_macs={name: _sum_macs(by_precision[name]) for name in others},
    )


def _sum_macs(nodes: Iterable[NodeWork]) -> int:
    return sum(node.macs or 0 for node in nodes)


def _uncovered(node: NodeWork, total: int, reason: str) -> Uncovered:
    share = None if node.macs is None else 100 * node.macs / total
    return Uncovered(node.node, node.op, node.macs, node.moved_bytes, share, reason)


def _reason(node: NodeWork, reasons: Mapping[str, str]) -> str:
    domain, _, op = node.op.rpartition("::")
    if op in NOT_QUANTIZED:
        return NOT_QUANTIZED[op]
    if node.body:
        return f"it is in {node.body}, and trtcal places Q/DQ in the main graph only"
    if node.node in reasons:
        return reasons[node.node]
    if domain == CONTRIB:
        return "it is an operator of ONNX Runtime, which TensorRT does not have"
    return "it has no Q/DQ" if op in MULTIPLIES else "this operator cannot have Q/DQ"


def _unknown_reason(node: NodeWork) -> str:
    if node.op in FORMULAS:
        return "the shapes of its inputs or outputs are not known"
    why = "it is a plug-in, its body was not counted, or its weights are not listed"
    return f"its multiply-accumulates are not known: {why}"
