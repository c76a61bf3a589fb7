"""Which node runs in which precision: by exact name, by the first rule that matches, or by default."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from trtcal.config import (
    COUNT,
    FLAG,
    NAMES,
    TEXT,
    WrongKeyError,
    by_name,
    key,
    read_section,
    read_sections,
)
from trtcal.documents import Document, read_document, read_json, seal, write_document
from trtcal.documents.overview import Shown
from trtcal.errors import InputError, check_choice
from trtcal.formats import FLOATS, FORMATS, NARROW, PLANNED, RANGED
from trtcal.model import Model
from trtcal.model.graph import FP16_OPSET, MIN_OPSET, import_graph
from trtcal.model.ops import HEAVY, MULTIPLIES, NOT_QUANTIZED, SENSITIVE
from trtcal.model.work import count_work
from trtcal.quantization.placement import Placement, find_layers
from trtcal.quantization.weighted_ops import weight_count

PLAN_KIND, VERSION = "plan", 4
BLOCK_SIZES = FORMATS["int4"].blocks
MATCHES = ("glob", "name", "regex")
LONGEST_PATTERN = 1000  # characters of a pattern
WRITE_PLAN = (
    'write {"default": "int8", "layers": {"layer name": "fp32"}, '
    '"rules": [{"match": "glob", "pattern": "head/*", "precision": "fp16"}]}'
)


@dataclass(frozen=True)
class Rule(Shown):
    """A precision for the nodes whose whole name matches `pattern` and whose operator is `op`.

    One of the two may be left out. `optional` rules may match nothing.
    """

    precision: str = key(TEXT)
    pattern: str | None = key(TEXT, None)
    match: str = key(TEXT, "glob")
    op: str | None = key(TEXT, None)
    reason: str = key(TEXT, "")
    optional: bool = key(FLAG, False)

    def __post_init__(self) -> None:
        check_choice(self.precision, PLANNED, f"plan: {self} has precision {self.precision!r}")
        check_choice(self.match, MATCHES, f"plan: {self} matches by {self.match!r}")
        if self.pattern is None and self.op is None:
            raise InputError("plan: a rule has neither a pattern nor an op", WRITE_PLAN)
        if len(self.pattern or "") > LONGEST_PATTERN:
            what = f"plan: a pattern is longer than {LONGEST_PATTERN} characters"
            raise InputError(what, WRITE_PLAN)
        _matcher(self.match, self.pattern or "")

    def matches(self, name: str, op: str) -> bool:
        """Tell whether the rule is about a node; the time is bounded for any pattern and name."""
        if self.op is not None and op != self.op:
            return False
        return self.pattern is None or _matcher(self.match, self.pattern)(name)

    def __str__(self) -> str:
        parts = [] if self.pattern is None else [f"{self.match} '{self.pattern}'"]
        return " and ".join(parts + ([] if self.op is None else [f"op '{self.op}'"]))


@cache
def _matcher(match: str, pattern: str) -> Callable[[str], bool]:
    if match == "name":
        return lambda name: name == pattern
    if match == "glob":
        return lambda name: fnmatch.fnmatchcase(name, pattern)
    import re2  # linear time, whatever the pattern: it may come with the model

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        raise InputError(
            f"plan: {pattern!r} is not a regular expression: {error}",
            "use the syntax of RE2, without look-around and back-references",
        ) from error
    return lambda name: compiled.fullmatch(name) is not None


@dataclass(frozen=True)
class Decision:
    """What a plan asks of one node, and which part of it decided.

    `named` is true if the plan means this very node or its operator, not just a group that it is in.
    """

    precision: str
    by: str
    reason: str = ""
    named: bool = False

    @property
    def is_default(self) -> bool:
        """Whether neither a name nor a rule decided."""
        return self.by == "default"

    def __str__(self) -> str:
        return f"{self.by}: {self.reason}" if self.reason else self.by


@dataclass(frozen=True)
class Plan(Shown):
    """A precision for every layer: `layers` by node name, then `rules` in order, then `default`.

    Nodes without weights or products follow their neighbours unless a name or a rule decides.
    If the default is a narrow precision (`trtcal.formats`), what cannot have it runs in `rest`: fp32
    if None, or fp16 where no known value overflows it. `block_size` is the number of weights along
    the summed axis that share a scale in int4. What a node in `second_qdq` reads in INT8 goes through
    a second Q/DQ pair, whose scale is the next larger float. Operators in `without` have no INT8
    kernel on the targets, and stay in float unless a name or rule decides.

    >>> plan = Plan("int8", {"head/gemm": "fp32"})
    >>> plan.decide("head/gemm").precision, plan.decide("stem/conv").precision
    ('fp32', 'int8')
    """

    default: str = key(TEXT, "int8")
    layers: dict[str, str] = key(partial(by_name, TEXT), dict)
    rules: tuple[Rule, ...] = key(partial(read_sections, Rule, WRITE_PLAN), ())
    second_qdq: tuple[str, ...] = key(NAMES, ())
    rest: str | None = key(TEXT, None)
    block_size: int = key(COUNT, BLOCK_SIZES[0])
    without: tuple[str, ...] = key(NAMES, ())

    def __post_init__(self) -> None:
        for name, precision in [("default", self.default), *self.layers.items()]:
            check_choice(precision, PLANNED, f"plan: {name!r} has precision {precision!r}")
        check_choice(self.rest, (None, *FLOATS), f"plan: 'rest' has precision {self.rest!r}")
        if self.block_size not in BLOCK_SIZES:
            known = " or ".join(map(str, sorted(BLOCK_SIZES)))
            what = f"plan: the block size is {self.block_size}"
            raise InputError(what, f"TensorRT takes {known}")

    @property
    def floats(self) -> str:
        """What runs that is not quantized, and that no name or rule decides on."""
        return (self.rest or "fp32") if self.default in NARROW else self.default

    def suited(self, rest: str, without: tuple[str, ...] = ()) -> Plan:
        """Return the plan with `rest` and `without` of targets, where it says none and leaves any."""
        is_open = self.rest is None and self.default in NARROW
        without = self.without or (without if self.default == "int8" else ())
        return dataclasses.replace(self, rest=rest if is_open else self.rest, without=without)

    def of(self, proto: onnx.ModelProto) -> Plan:
        """Return the plan without what it says of operators that a model does not have."""
        known = {node.op_type for node in proto.graph.node}
        return dataclasses.replace(self, without=tuple(op for op in self.without if op in known))

    @property
    def asked(self) -> frozenset[str]:
        """Every precision that the plan asks for anywhere."""
        rules = (rule.precision for rule in self.rules)
        return frozenset((self.default, self.floats, *self.layers.values(), *rules))

    @property
    def ranged(self) -> tuple[str, ...]:
        """What the plan asks for that quantizes activations too, and so needs their ranges."""
        return tuple(name for name in RANGED if name in self.asked)

    @property
    def is_int8(self) -> bool:
        """Whether INT8 is the one narrow precision that the plan asks for."""
        return self.asked.intersection(NARROW) == {"int8"}

    @property
    def without_fp16(self) -> Plan:
        """The plan with fp32 where it asks for fp16: what quantization loses, and nothing else."""
        raised = {name: "fp32" if name == "fp16" else name for name in PLANNED}
        layers = {name: raised[precision] for name, precision in self.layers.items()}
        rules = tuple(dataclasses.replace(r, precision=raised[r.precision]) for r in self.rules)
        return dataclasses.replace(
            self, default=raised[self.default], layers=layers, rules=rules, rest=None
        )

    @property
    def opset(self) -> int:
        """The lowest ONNX opset that has all that the plan asks for."""
        least = FP16_OPSET if "fp16" in self.asked else MIN_OPSET
        return max([least, *(FORMATS[name].opset for name in self.asked.intersection(NARROW))])

    def decide(self, name: str, op: str = "") -> Decision:
        """Return what is asked of a node, and why."""
        if name in self.layers:
            return Decision(self.layers[name], "name", named=True)
        for number, rule in enumerate(self.rules, 1):
            if rule.matches(name, op):
                named = rule.op is not None or rule.match == "name"
                return Decision(rule.precision, f"rule {number} ({rule})", rule.reason, named)
        return Decision(self.default, "default")

    def check(self, ops: Mapping[str, str], quantizable: Collection[str]) -> None:
        """`InputError` if a name or rule is about no node, or wants one quantized that can't be.

        `ops` gives the operator of every node of the model.
        """
        named = [*self.layers.items(), *((name, "int8") for name in self.second_qdq)]
        for name, precision in named:
            known = quantizable if precision in NARROW else ops
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3) or sorted(known)[:5]
                what = "which the model does not have, or which cannot be quantized"
                hint = f"did you mean: {', '.join(close)}"
                raise InputError(f"the plan names layer {name!r}, {what}", hint)
        for number, rule in enumerate(self.rules, 1):
            known = quantizable if rule.precision in NARROW else ops
            if not (rule.optional or any(rule.matches(name, ops[name]) for name in known)):
                what = f"rule {number} of the plan ({rule} in {rule.precision}) matches no node"
                raise InputError(what, 'correct the rule, or add "optional": true to it')

    def to_document(self) -> Document:
        """Return the plan as a sealed document."""
        body: Document = {"default": self.default, "layers": self.layers}
        body |= {"rules": list(map(_fields, self.rules)), "second_qdq": list(self.second_qdq)}
        body |= {} if self.rest is None else {"rest": self.rest}
        body |= {"without": list(self.without)} if self.without else {}
        body |= {} if self.block_size == BLOCK_SIZES[0] else {"block_size": self.block_size}
        return seal({"kind": PLAN_KIND, "schema_version": VERSION, **body})


FIELDS = tuple(item.name for item in dataclasses.fields(Plan))


def _fields(rule: Rule) -> dict[str, Any]:
    """Return what a rule says, without what it leaves open."""
    stated = dataclasses.asdict(rule)
    if rule.pattern is None:
        del stated["match"]
    return {name: value for name, value in stated.items() if value not in (None, "", False)}


def write_plan(path: Path, plan: Plan) -> Document:
    """Write `plan.json`."""
    return write_document(path, plan.to_document())


def read_plan(path: Path) -> Plan:
    """Read a plan that trtcal or a person wrote; `InputError` if it is none."""
    document = read_json(path)
    if isinstance(document, dict) and "digest" in document:
        document = read_document(path, PLAN_KIND, VERSION)
    if not isinstance(document, dict) or document.get("kind", PLAN_KIND) != PLAN_KIND:
        raise InputError(f"{path} is not a plan", WRITE_PLAN)
    head = ("kind", "schema_version", "digest")
    return plan_of({name: value for name, value in document.items() if name not in head}, str(path))


def plan_of(table: Mapping[str, Any], where: str) -> Plan:
    """Return the plan that a JSON or TOML table describes; `InputError` names `where` it does not."""
    try:
        return read_section(Plan, dict(table))
    except WrongKeyError as error:
        raise InputError(f"{where}: {error.message}", WRITE_PLAN) from None


FOLLOWS = "follows"
SENSITIVE_REASON = "it stays in float32 unless a plan names it or its operator"


@dataclass(frozen=True)
class Planned:
    """A node and its precision, or `follows` where its neighbours decide; `by` says what decided.

    `weights` counts constants, `macs` multiply-accumulates for one sample, None if they are not known.
    """

    node: str
    op: str
    precision: str
    by: str
    reason: str
    weights: int
    macs: int | None

    @property
    def follows(self) -> bool:
        """Whether its neighbours decide."""
        return self.precision == FOLLOWS


def decide(plan: Plan, graph: gs.Graph, placement: Placement) -> dict[str, Decision]:
    """Return what a plan asks of every node; `InputError` if a part of it is about none."""
    ops = {node.name: node.op for node in graph.nodes}
    plan.check(ops, placement.names)
    return {name: plan.decide(name, op) for name, op in ops.items()}


def resolve(plan: Plan, model: Model) -> tuple[Planned, ...]:
    """Return every node of a prepared model, in the order of its graph.

    Ranges play no part: what overflows float16 is found when the model is quantized.
    """
    placement = find_layers(model)
    graph = import_graph(model.proto)
    decisions = decide(plan, graph, placement)
    layers = {layer.name for layer in (*placement.layers, *placement.light)}
    named = {name for name in placement.names if not decisions[name].is_default}
    macs = count_work(model).by_root
    return tuple(
        _planned(
            node,
            decisions[node.name],
            node.name in layers | named,
            placement.refused.get(node.name, NOT_QUANTIZED.get(node.op, "nothing to quantize")),
            macs.get(node.name),
        )
        for node in graph.nodes
    )


def _planned(
    node: gs.Node, decision: Decision, is_layer: bool, refusal: str, macs: int | None
) -> Planned:
    precision, reason = decision.precision, decision.reason
    if precision in NARROW and not is_layer:
        heavy = node.op in HEAVY
        precision = "fp32" if heavy else FOLLOWS
        reason = f"not {decision.precision.upper()}: {refusal}" if heavy else reason
    elif decision.is_default and precision != "int8" and node.op not in MULTIPLIES:
        precision = FOLLOWS
    if precision == "fp16" and node.op in SENSITIVE and not decision.named:
        precision, reason = "fp32", SENSITIVE_REASON
    return Planned(node.name, node.op, precision, decision.by, reason, weight_count(node), macs)
