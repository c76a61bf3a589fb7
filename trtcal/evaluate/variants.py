"""What is compared: ONNX models and builds, opened to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.narrow import adapted, is_literal
from trtcal.backends.registry import check_engine
from trtcal.backends.sessions import Session, open_session
from trtcal.data.overlap import Numbers, Overlap, overlap
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.replay import Run, carried_tail, runner
from trtcal.model import Model, TensorSpec, load_model, uniquely_named
from trtcal.model.cut import whole_outputs
from trtcal.model.graph import import_graph, sigmoid_outputs
from trtcal.model.loaders import loader_of
from trtcal.model.ops import QDQ
from trtcal.model.shapes import Shape
from trtcal.model.work import weightless
from trtcal.quantization.coverage import Coverage, asked_coverage
from trtcal.quantization.qdq import provenance, quantization_record, record_in


@dataclass(frozen=True)
class Variant:
    """Something that runs: an ONNX model, or the engine of an `onnxruntime` build.

    `model` is the fingerprint of the ONNX file that it comes from; `literal` is that file where its
    Q/DQ can be executed in float, None where there are none or it is an engine. Of a model that was
    cut, `outputs` are those of the whole, and `cut` says who computes them. `graph` is the model
    without its weights, `built` what an engine is known to have in INT8.
    """

    name: str
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    session: Session
    quantization: dict[str, Any]
    size_bytes: int
    literal: Path | None = None
    cut: str | None = None
    graph: Model | None = None
    built: Coverage | None = None

    @property
    def sigmoids(self) -> frozenset[str]:
        """The outputs that a Sigmoid makes, as far as the graph is known."""
        return frozenset() if self.graph is None else sigmoid_outputs(self.graph.proto)

    def coverage(self, sizes: Mapping[str, Shape]) -> Coverage | None:
        """Return how much of the compute is in INT8 for inputs of these shapes, None if unknown."""
        return self.built if self.graph is None else asked_coverage(self.graph, sizes)

    def runner(self, names: Sequence[str]) -> Run:
        """Return what runs it for the outputs named."""
        return runner(self.session, names)

    def shared_with(self, numbers: Numbers) -> Overlap | None:
        """Return how many samples, by their numbers, it was calibrated on; None for none known."""
        record = record_in(self.session.get_modelmeta().custom_metadata_map)
        return overlap(str(record.get("samples", "")), numbers)


def open_variant(
    path: Path, name: str | None = None, trust: bool = False, reference: Model | None = None
) -> Variant:
    """Open an ONNX file or a build folder; `InputError` if it can't be run on this machine.

    An engine is loaded only after `check_engine`, which `trust` and `reference` are for.
    """
    if path.is_dir() and loader_of(path) is None:
        return _open_build(path, name, trust, reference)
    model = uniquely_named(load_model(path))
    session = open_session(lower(model.proto))
    record = quantization_record(model.proto)
    outputs, cut = _outputs(session, model.outputs)
    return Variant(
        name or model.name,
        model.fingerprint,
        model.inputs,
        outputs,
        session,
        provenance(record),
        model.path.stat().st_size,
        model.path if any(node.op_type in QDQ for node in model.proto.graph.node) else None,
        cut,
        weightless(model),
    )


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
    made = ", ".join(name for name in tail.outputs if name not in tail.cut)
    note = f"ONNX Runtime computes {made} after the cut; latencies are without that part"
    return whole_outputs(own, tail), note


def _open_build(folder: Path, name: str | None, trust: bool, reference: Model | None) -> Variant:
    engine = check_engine(folder, trust, reference)
    made = engine.build
    session = engine.open()
    outputs, cut = _outputs(session, made.outputs)
    return Variant(
        name or made.model_name,
        made.model,
        made.inputs,
        outputs,
        session,
        made.quantization,
        len(engine.data),
        cut=cut,
        built=made.coverage,
    )


def open_simulation(variant: Variant, names: Sequence[str]) -> Run | None:
    """Open a variant's Q/DQ to be executed in float, one by one; None if it has none of integers.

    `InputError` if its file was changed since it was opened.
    """
    model = literal_model(variant)
    proto = None if model is None else _literal(model.proto)
    return None if proto is None else runner(open_session(proto, as_it_is=True), names)


def _literal(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return what executes a model's Q/DQ one by one; None if no kernel computes in integers.

    FP8 and weights in four bits are executed so in any case.
    """
    quantizers = [node for node in import_graph(proto).nodes if node.op == "QuantizeLinear"]
    return None if all(map(is_literal, quantizers)) else adapted(proto)


def literal_model(variant: Variant) -> Model | None:
    """Load the file whose Q/DQ a variant executes; `InputError` if it was changed since."""
    if variant.literal is None:
        return None
    model = load_model(variant.literal)
    if model.fingerprint != variant.model:
        raise InputError(f"{variant.literal} was changed while it was compared", "run it again")
    return uniquely_named(model)


def check_variants(everyone: Sequence[Variant]) -> None:
    """`InputError` if two bear one name, or one has other inputs or outputs than the first."""
    names = [one.name for one in everyone]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InputError(
            f"two variants have the name {sorted(repeated)[0]!r}",
            "rename a file (variants have the names of their files), or give a dict of names in Python",
        )
    for one in everyone[1:]:
        for side in ("inputs", "outputs"):
            if _signature(one, side) != _signature(everyone[0], side):
                raise InputError(
                    f"variant {one.name!r} does not have the same {side} as the reference",
                    "compare models made from the same original",
                )


def _signature(one: Variant, side: str) -> list[tuple[str, int]]:
    specs: tuple[TensorSpec, ...] = getattr(one, side)
    return sorted((spec.name, len(spec.shape)) for spec in specs)
