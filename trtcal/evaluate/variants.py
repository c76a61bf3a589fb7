"""What is compared: ONNX models and builds, opened to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import onnx

from trtcal.backends.kernel_forms import adapted, is_literal
from trtcal.backends.lowering import lower_with_reasons
from trtcal.backends.narrow_floats import is_narrow
from trtcal.backends.registry import check_engine
from trtcal.backends.sessions import Session, open_session
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data.overlap import Numbers, Overlap, overlap
from trtcal.errors import BackendError, InputError, NativeCrash, some
from trtcal.evaluate.clues import GraphFacts
from trtcal.evaluate.replay import Run, carried_tail, runner
from trtcal.model import Model, TensorSpec, load_model, uniquely_named
from trtcal.model.cut import whole_outputs
from trtcal.model.files import bytes_of
from trtcal.model.graph import import_graph
from trtcal.model.loaders import loader_of
from trtcal.model.ops import QDQ
from trtcal.model.shapes import Shape
from trtcal.quantization.coverage import Coverage, asked_coverage
from trtcal.quantization.qdq import provenance, quantization_record, record_in


@dataclass(frozen=True)
class Variant:
    """Something that runs: an ONNX model, or the engine of an `onnxruntime` build.

    `model` is the fingerprint of the ONNX file that it comes from, `source` that file's model, without
    its weights where it has no Q/DQ; None of an engine. Of a model that was cut, `outputs` are those
    of the whole, and `cut` says who computes them. `floats` says which layers this CPU computes in
    float, because its kernels do not take the form of their Q/DQ. `built` is what an engine is known to
    have in INT8. `narrow_model` is the model where it computes in float16. `timed` is what is timed in
    place of `session`: the engine on a device, where the outputs are computed here.
    """

    name: str
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    session: Session
    quantization: dict[str, Any]
    size_bytes: int
    cut: str | None = None
    floats: str | None = None
    source: Model | None = None
    built: Coverage | None = None
    narrow_model: Model | None = None
    timed: Session | None = None

    @property
    def graph(self) -> GraphFacts:
        """What is known of the graph of its outputs."""
        return GraphFacts.of(self.outputs, self.source.proto if self.source else None)

    @property
    def literal(self) -> Model | None:
        """The model, if it has Q/DQ, which can be executed in float."""
        return self.source if self.source and has_qdq(self.source) else None

    def coverage(self, sizes: Mapping[str, Shape]) -> Coverage | None:
        """Return how much of the compute is in INT8 for inputs of these shapes, None if unknown."""
        if self.built or self.source is None:
            return self.built
        return asked_coverage(self.source, sizes)

    def runner(self, names: Sequence[str]) -> Run:
        """Return what runs it for the outputs named."""
        return runner(self.session, names)

    def simulation(self, names: Sequence[str]) -> Run | None:
        """Return what runs the Q/DQ in float, one by one; None if no kernel computes in integers.

        FP8 and weights in four bits are executed so in any case.
        """
        if self.literal is None:
            return None
        proto = self.literal.proto
        quantizers = [node for node in import_graph(proto).nodes if node.op == "QuantizeLinear"]
        if all(map(is_literal, quantizers)):
            return None
        with crashes_as_warnings():
            return runner(open_session(adapted(proto), as_it_is=True, shares_arena=True), names)
        return None

    def shared_with(self, numbers: Numbers) -> Overlap | None:
        """Return how many samples, by their numbers, it was calibrated on; None for none known."""
        record = record_in(self.session.get_modelmeta().custom_metadata_map)
        return overlap(str(record.get("samples", "")), numbers)


Crashes = tuple[tuple[str, NativeCrash], ...]
"""Variants with which the runtime ends its process, and how: they are not compared, and never ship."""


def open_candidates(
    paths: Sequence[Path],
    trust: bool = False,
    reference: Model | None = None,
    names: Sequence[str | None] = (),
) -> tuple[list[Variant], Crashes]:
    """Open variants as `open_variant` does, and return those beside which crash."""
    variants, crashes = list[Variant](), list[tuple[str, NativeCrash]]()
    for path, name in zip_longest(paths, names):
        try:
            variants.append(open_variant(path, name, trust, reference))
        except NativeCrash as crash:
            crashes.append((name or path.stem, crash))
    return variants, tuple(crashes)


def open_variant(
    path: Path, name: str | None = None, trust: bool = False, reference: Model | None = None
) -> Variant:
    """Open an ONNX file or a build folder; `InputError` if it can't be run on this machine.

    An engine is loaded only after `check_engine`, which `trust` and `reference` are for.
    """
    if path.is_dir() and loader_of(path) is None:
        return _open_build(path, name, trust, reference)
    model = uniquely_named(load_model(path))
    lowered, reasons = lower_with_reasons(model.proto)
    session = open_session(lowered, name=name or model.name, shares_arena=True)
    outputs, cut = _outputs(session, model.outputs)
    named = (f"{layer!r} ({reason})" for layer, reason in reasons.items())
    return Variant(
        name or model.name,
        model.fingerprint,
        model.inputs,
        outputs,
        session,
        provenance(quantization_record(model.proto)),
        bytes_of(model.path, model.proto),
        cut,
        source=model if has_qdq(model) else model.weightless(),
        floats=f"this CPU computes in float {some(named)}" if reasons else None,
        narrow_model=model if is_narrow(model.proto) else None,
    )


def has_qdq(model: Model) -> bool:
    """Tell whether a model is quantized by Q/DQ."""
    return any(node.op_type in QDQ for node in model.proto.graph.node)


def _outputs(
    session: Session, own: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], str | None]:
    """Return what is judged: a model's outputs, or after a cut the whole's and who computes them."""
    tail = carried_tail(session)
    if tail is None:
        return own, None
    last = ", ".join(tail.cut)
    try:
        open_session(tail.proto)
    except BackendError as error:
        return (
            own,
            f"judged at {last}, because the part after the cut does not run here ({error.message})",
        )
    rest = ", ".join(name for name in tail.outputs if name not in tail.cut)
    note = f"ONNX Runtime computes {rest} after the cut; latencies are without that part"
    return whole_outputs(own, tail), note


def _open_build(folder: Path, name: str | None, trust: bool, reference: Model | None) -> Variant:
    engine = check_engine(folder, trust, reference)
    build = engine.build
    session = engine.open()
    outputs, cut = _outputs(session, build.outputs)
    is_onnx = build.backend == "onnxruntime"
    proto = onnx.ModelProto.FromString(engine.data) if is_onnx else None
    return Variant(
        name or build.model_name,
        build.model,
        build.inputs,
        outputs,
        session,
        build.quantization,
        len(engine.data),
        cut,
        built=build.coverage,
        narrow_model=load_model(proto) if proto is not None and is_narrow(proto) else None,
    )


def open_engine(folder: Path, path: Path, name: str | None = None) -> Variant:
    """Open the engine of a build of an ONNX file, with what is known of that model and its size."""
    model = uniquely_named(load_model(path))
    return replace(
        _open_build(folder, name or path.stem, False, model),
        size_bytes=path.stat().st_size,
        source=model if has_qdq(model) else model.weightless(),
        narrow_model=model if is_narrow(model.proto) else None,
    )


def timed_as(engine: Variant, path: Path) -> Variant:
    """Return a model that is computed here, and timed as its engine on a device."""
    return replace(open_variant(path, engine.name), timed=engine.session)


def check_variants(everyone: Sequence[Variant]) -> None:
    """`InputError` if two bear one name, or one has other inputs or outputs than the first."""
    names = [variant.name for variant in everyone]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InputError(
            f"two variants have the name {sorted(repeated)[0]!r}",
            "rename a file (variants have the names of their files), or give a dict of names in Python",
        )
    for variant in everyone[1:]:
        for side in ("inputs", "outputs"):
            if _signature(variant, side) != _signature(everyone[0], side):
                what = f"variant {variant.name!r} does not have the same {side} as the reference"
                raise InputError(what, "compare models made from the same original")


def check_places(timed: Sequence[Variant]) -> str:
    """Return the device that variants are timed on; `InputError` if on different machines."""
    places = {(variant.timed or variant.session).device: variant.name for variant in timed}
    if len(places) > 1:
        where = "; ".join(f"{name} on {place or 'this machine'}" for place, name in places.items())
        name = next(filter(None, places)).removeprefix("@")
        hint = f"give `--on {name}`, with a build of each for @{name}"
        raise InputError(f"the variants would be timed on different machines: {where}", hint)
    return next(iter(places))


def _signature(variant: Variant, side: str) -> list[tuple[str, int]]:
    specs: tuple[TensorSpec, ...] = getattr(variant, side)
    return sorted((spec.name, len(spec.shape)) for spec in specs)
