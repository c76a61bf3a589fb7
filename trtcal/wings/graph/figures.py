"""What is known of each node of a model: precision, loss, time, bytes, clipped values, findings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from trtcal.documents import Document, parsing, read_json
from trtcal.errors import InputError, some
from trtcal.evaluate.search.sensitivity import shares_in
from trtcal.evidence.gpus import DEFAULT_GPU, Target, datasheet_of, find_target
from trtcal.evidence.layers.layer import UNKNOWN, Layer, LayersByNode
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.layers.predicted import predict_layers
from trtcal.evidence.manifest import Build, is_build_folder, read_build
from trtcal.evidence.times import layer_ms
from trtcal.formats import BY_LISTED
from trtcal.model import Model, load_model
from trtcal.model.loaders import is_model
from trtcal.model.model import uniquely_named
from trtcal.model.ops import MULTIPLIES, QDQ
from trtcal.model.work import count_work
from trtcal.quantization.coverage import kept_out, usual_sizes
from trtcal.quantization.qdq import asked_precisions, quantization_record
from trtcal.reporting.collect import Findings, collect, files_in, models_in
from trtcal.reporting.document import assembled, compared
from trtcal.reporting.engines import TensorFacts, is_cpu
from trtcal.reporting.tensors import wire
from trtcal.reporting.views import gpu_targets
from trtcal.runs.origin import RUN_FILE

PREDICTED = "predicted for TensorRT on"


@dataclass(frozen=True)
class NodeFigures:
    """One node of the ONNX graph in one build or variant; None is "not known".

    `requested` is the precision that the plan or its Q/DQ request, `built` what the engine's layer
    computes in, `why` the reason that it differs or that the node was not quantized. `loss_db` is the
    lowest SQNR of a tensor that the node reads, by the rounding of that tensor alone; `share` its part
    of the loss at the outputs where sensitivities were measured, 0 to 1. `clipped` is the largest
    percentage of values that a range of its inputs cuts off. `ms` and `bytes` are those of its layer,
    of which one node alone has them, so that they add up; `ms` is an estimate unless `is_measured`.
    """

    node: str
    op: str
    requested: str | None
    built: str | None
    why: str | None
    loss_db: float | None
    share: float | None
    ms: float | None
    is_measured: bool
    bytes: int | None
    macs: int | None
    clipped: float | None
    layer: str | None
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Figured:
    """A model with the figures of its nodes, by name, and the layers of its engine.

    Without a `build` the layers are those that TensorRT is expected to make of the model. Every node
    of `model` has a name of its own. `document` is the report of a run, `others` are the titles of
    what else the source has.
    """

    title: str
    model: Model
    nodes: dict[str, NodeFigures]
    layers: tuple[Layer, ...]
    build: Build | None
    document: Document | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Variant:
    """A model of a source, and its build for a target if it has one."""

    name: str
    target: str
    model: Model
    build: Build | None = None
    document: Document | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        gpu = self.gpu.name if self.gpu else self.target
        return f"{self.name} for {self.target}" if self.build else f"{self.name}, {PREDICTED} {gpu}"

    @cached_property
    def gpu(self) -> Target | None:
        """The GPU that times are estimated for, None if it is not known."""
        name = datasheet_of(self.target)
        return find_target(name) if name else None


def figured(source: Path, variant: str | None = None, target: str | None = None) -> Figured:
    """Return a model of a run, of a build or of one ONNX file, with what is known of its nodes.

    Of several it is that of the run's verdict, rather built for a GPU than for a CPU. `InputError` if
    there is no model, or none of this name or for this target.
    """
    variants = list(_variants(source, target))
    chosen = [
        each
        for each in variants
        if variant in (None, each.name) and (target in (None, each.target) or not each.build)
    ]
    if not chosen:
        known = some(list(dict.fromkeys(each.title for each in variants)))
        name = " for ".join(filter(None, (variant, target)))
        raise InputError(f"{source} has no {name}", f"it has {known}")
    return _Reader(chosen[0]).figured(tuple(each.title for each in chosen[1:]))


def figured_run(folder: Path, document: Document) -> Figured | None:
    """Return the variant of a report's verdict, of the run in `folder`, with the figures of its nodes.

    Of the folder only the build and its model are read, or the model where nothing was built of it;
    None if it is not there.
    """
    name, measured = document["measured"]["verdict"]["variant"], document["measured"]["builds"]
    builds = [build for build in document["builds"] if name in (None, build["model_name"])]
    shares = _shares(folder)
    for known in sorted(builds, key=is_cpu):
        build = read_build(folder / measured[known["digest"]]["where"])
        if model := _model_beside(build):
            variant = _Variant(build.model_name, build.target, model, build, document, shares)
            return _Reader(variant).figured()
    rows = (document["comparison"] or {"rows": []})["rows"]
    target = _target_of(document)
    for model in models_in(folder, {row["model"] for row in rows if row["name"] == name}).values():
        variant = _Variant(name, target, model, None, document, shares)
        return _Reader(variant).figured()
    return None


def _target_of(document: Document) -> str:
    """Return what the layers of models without a build are predicted for: the run's first GPU."""
    return next(iter(gpu_targets(document)), DEFAULT_GPU)


def _variants(source: Path, target: str | None) -> Iterator[_Variant]:
    if is_model(source):
        model = load_model(source)
        yield _Variant(model.name, target or DEFAULT_GPU, model)
    elif source.is_dir():
        run = source.resolve().parent.parent
        is_of_run = is_build_folder(source) and (run / RUN_FILE).is_file()
        every = _of_folder(collect(run if is_of_run else source), target)
        here = source.resolve()
        for each in every:
            if not is_of_run or (each.build and each.build.folder.resolve() == here):
                yield each
    else:
        hint = "give an .onnx file, the folder of a build or that of a run"
        raise InputError(f"{source} is neither a model nor a folder", hint)


def _of_folder(findings: Findings, target: str | None) -> Iterator[_Variant]:
    """Yield a folder's builds, then the variants that nothing was built of; first the verdict's."""
    document = assembled(findings)
    models = _models(findings)
    if not models:
        hint = "keep the ONNX files of a run in its folder, and that of a build beside its folder"
        raise InputError(f"{findings.folder} has no model of what was built or compared", hint)
    first = document["measured"]["verdict"]["variant"]
    shares = _shares(findings.folder)
    variants = [
        _Variant(build.model_name, build.target, models[build.model], build, document, shares)
        for build in findings.builds
        if build.model in models
    ]
    with_engines = {variant.build.model for variant in variants if variant.build}
    for row in findings.comparison.rows if findings.comparison else ():
        if row.model in models and row.model not in with_engines:
            known = target or _target_of(document), models[row.model], None, document, shares
            variants.append(_Variant(row.name, *known))

    def order(variant: _Variant) -> tuple[bool, bool, bool, str]:
        build = variant.build
        is_for_cpu = build is not None and build.is_for_cpu
        return variant.name != first, build is None, is_for_cpu, variant.name

    yield from sorted(variants, key=order)


def _models(findings: Findings) -> dict[str, Model]:
    if findings.comparison:
        return compared(findings)[1]
    models = dict(findings.models)
    for build in findings.builds:
        if build.model not in models and (model := _model_beside(build)):
            models[build.model] = model
    return models


def _model_beside(build: Build) -> Model | None:
    """Return the model of a build from the folders above its own, where it has the same name."""
    name = f"{build.model_name}.onnx"
    for place in build.folder.resolve().parents[:2]:
        for path in files_in(place, name):
            with contextlib.suppress(InputError):
                if path.name == name and (model := load_model(path)).fingerprint == build.model:
                    return model
    return None


def _shares(folder: Path) -> dict[str, float]:
    """Return each layer's part of the loss of all INT8, from what was measured in a folder."""
    shares = dict[str, float]()
    for path in files_in(folder, ".json"):
        document = read_json(path)
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind in MEASURED:
            shares |= parsing(path, partial(shares_in, document, MEASURED[kind]))
    return shares


MEASURED = {"search": "sensitivities", "sensitivity": "layers"}


class _Reader:
    """Joins what is known of one variant, by node."""

    def __init__(self, variant: _Variant) -> None:
        self.variant, self.build, self.model = variant, variant.build, uniquely_named(variant.model)
        self.proto = self.model.proto
        self.operators = {node.name: node.op_type for node in self.proto.graph.node}
        record = quantization_record(self.proto)
        shapes = usual_sizes(record)
        work = count_work(self.model, shapes)
        has_tf32 = variant.gpu is None or variant.gpu.tf32_tflops is not None
        self.macs = work.by_root
        self.layers = (
            self.build.layers
            if self.build
            else predict_layers(self.model, tf32=has_tf32, shapes=shapes, counted=work)
        )
        self.index = LayersByNode(self.layers)
        self.wiring = wire(self.proto, self.operators)
        self.kept_out = kept_out(record)
        self.requested = asked_precisions(self.proto)
        self.outcomes = {each.node: each for each in self.build.outcomes} if self.build else {}
        self.main = dict(self._main_nodes())
        document = variant.document or {"comparison": None, "measured": {}}
        rows = (document["comparison"] or {"rows": []})["rows"]
        own = self.model.fingerprint, record.get("calibration")
        self.facts = TensorFacts(document, rows, *own) if variant.document else None
        self.findings = self._findings()

    def figured(self, others: tuple[str, ...] = ()) -> Figured:
        """Return the variant with the figures of all nodes of its graph."""
        variant, nodes = self.variant, {name: self._node(name) for name in self.operators}
        what = self.model, nodes, self.layers, self.build, variant.document, others
        return Figured(variant.title, *what)

    def _findings(self) -> dict[str, list[str]]:
        """Return the findings of the build by the name of what they are about."""
        findings, document = dict[str, list[str]](), self.variant.document
        if self.build is None or document is None:
            return findings
        diagnosis = document["measured"]["builds"][self.build.digest]["diagnosis"]
        for finding in (diagnosis or {"findings": []})["findings"]:
            places = {proof["place"] for proof in finding["evidence"] if proof["source"] != "log"}
            for name in filter(None, places | {finding["subject"]}):
                findings.setdefault(name, []).append(finding["what"])
        return findings

    def _main_nodes(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each layer with the node that its time and bytes are shown at.

        That is the product with the most multiply-accumulates, else a node that is no Q/DQ.
        """
        ops = self.operators
        for number, layer in enumerate(self.layers):
            nodes = [name for name in layer.nodes if name in ops]
            others = [name for name in nodes if ops[name] not in QDQ]
            if not layer.is_heavy:
                others = [name for name in others if ops[name] not in MULTIPLIES] or others
            if nodes:
                yield number, max(others or nodes, key=lambda name: self.macs.get(name) or 0)

    def _node(self, node: str) -> NodeFigures:
        listing = self.index.listing(node)
        outcome, facts, gpu = self.outcomes.get(node), self.facts, self.variant.gpu
        own = [self.layers[number] for number in listing if self.main.get(number) == node]
        inputs = self.wiring[node]["inputs"]
        tensors = [entry["tensor"] for entry in inputs if entry["amax"] is not None]
        measured = [layer.time_ms for layer in own]
        is_measured = any(time is not None for time in measured)
        estimates = [layer_ms(layer, gpu) for layer in own] if gpu else []
        layer = self._layer(listing, outcome)
        about = map(str, (node, layer and layer.name, *tensors))
        findings = (text for name in about for text in self.findings.get(name, ()))
        return NodeFigures(
            node=node,
            op=self.operators[node],
            requested=outcome.asked if outcome else self.requested.get(node),
            built=_built(outcome, layer),
            why=(outcome and outcome.reason) or self.kept_out.get(node),
            loss_db=_of_known(min, map(facts.sqnr, tensors)) if facts else None,
            share=self.variant.shares.get(node),
            ms=_of_known(sum, measured if is_measured else estimates),
            is_measured=is_measured,
            bytes=_of_known(sum, [layer.bytes_moved for layer in own]),
            macs=self.macs.get(node),
            clipped=_of_known(max, map(facts.clipped, tensors)) if facts else None,
            layer=layer.name if layer else None,
            findings=tuple(dict.fromkeys(findings)),
        )

    def _layer(self, listing: Sequence[int], outcome: Outcome | None) -> Layer | None:
        """Return the layer that decides a node's precision, else the first that computes it."""
        layers = [self.layers[number] for number in listing]
        decided = (layer for layer in layers if outcome and layer.name == outcome.layer)
        heavy = (layer for layer in layers if layer.is_heavy)
        return next(decided, None) or next(heavy, None) or next(iter(layers), None)


def _built(outcome: Outcome | None, layer: Layer | None) -> str | None:
    if outcome is not None:
        return None if outcome.got == UNKNOWN else outcome.got
    precision = layer.precision if layer else UNKNOWN
    return BY_LISTED[precision].name if precision in BY_LISTED else None


def _of_known(combine: Callable[[list[Any]], Any], values: Iterable[Any]) -> Any:
    """Return the sum, the least or the largest of the values that are known, None without any."""
    known = [value for value in values if value is not None]
    return combine(known) if known else None
