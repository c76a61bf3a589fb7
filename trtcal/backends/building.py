"""Builds an engine with a backend, all its files at once; where that fails, says what ended it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trtcal.backends.base import Backend, Made, record_engine
from trtcal.backends.bisection import bisect, names_node
from trtcal.backends.options import CACHE, BuildOptions, check_shapes, with_sizes
from trtcal.backends.unsupported import explain_refusal
from trtcal.backends.worker import ERROR
from trtcal.config import is_device
from trtcal.documents import Workplace, digest_file, removing, replacing, together, write_document
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.evidence.diagnosis.build_diagnosis import check_failure, write_diagnosis
from trtcal.evidence.diagnosis.failure import NO_KERNEL, ends_build, is_refused
from trtcal.evidence.diagnosis.reasons import Mentions, explain
from trtcal.evidence.findings import Finding, of_kind
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import Outcome, built_coverage, find_outcomes
from trtcal.evidence.log.reader import events_of_file
from trtcal.evidence.manifest import (
    DIAGNOSIS,
    INSPECTED,
    LAYER_TIMES,
    LOG,
    MANIFEST,
    RECORDS,
    Build,
    is_build_folder,
)
from trtcal.model import Model, uniquely_named
from trtcal.model.cut import metadata_of, tail_of, whole_outputs
from trtcal.quantization.coverage import asked_coverage
from trtcal.quantization.qdq import asked_precisions, provenance, quantization_record

REFUSAL_BYTES = 1 << 18  # bytes of a log that are searched for what the builder lacks
Search = Callable[[Finding], Finding]


def build(
    model: Model,
    backend: Backend,
    options: BuildOptions,
    folder: Path,
    examine: Callable[[Build], object] = lambda _build: None,
    bisect_s: float = 0.0,
) -> Build:
    """Build an engine for `model` into `folder`: engine, `build.log`, `build.jsonl`, `build.json`.

    Where a builder fails and names no node, parts are built to find it, if that takes `bisect_s` or
    less; where it crashes, only if that is infinite.
    `examine` gets the build in a temporary folder first; the diagnosis that it writes there goes along.
    `InputError` if the backend does not take an option or the folder has files of such names that no
    build wrote, `BackendError` if it is missing, refuses the model or crashes, `ResourceError` if it
    takes too long: the log so far is kept, and no engine.
    """
    available = backend.availability()
    if not available.works:
        where = "" if is_device(options.target) else f"backend {backend.name!r}: "
        raise BackendError(f"{where}{available.missing}", available.hint)
    backend.check_target(options.target)
    for name in options.named():
        if name not in backend.takes:
            raise InputError(f"backend {backend.name!r} has no option {name}", "leave it out")
    options = with_sizes(options, model)
    for profile in options.profiles:
        check_shapes(model.inputs, profile)
    options.route.check(backend.name, backend.routes, model)
    _check_folder(folder, backend.engine_file)
    model = uniquely_named(model)
    with Workplace() as name:
        workplace = Path(name)
        try:
            product = backend.build_in(model, options, workplace)
        except (BackendError, InputError, ResourceError) as error:
            if not (workplace / LOG).exists():
                raise
            has_crashed = not (workplace / ERROR).exists()
            limit_s = 0.0 if has_crashed and bisect_s < math.inf else bisect_s
            attempt = partial(backend.build_in, options=options)
            search = partial(bisect, model, attempt, folder=workplace, limit_s=limit_s)
            explained = _explained(error, model, backend, workplace, search)
            _keep_log(workplace, folder, backend.engine_file)
            raise explained from error
        result = _recorded(_describe(model, backend, options, product, workplace))
        examine(result)
        return _publish(result, folder)


def _explained(
    error: TrtcalError, model: Model, backend: Backend, workplace: Path, search: Search
) -> TrtcalError:
    """Return the error that says what ended a build, and record in the workplace all that is known.

    It is what the log and the graph say, or how the builder ended where neither says more; `search`
    finds the node where that names none.
    """
    log, ended_well = workplace / LOG, (workplace / ERROR).exists()
    end = log.read_bytes()[-REFUSAL_BYTES:].decode("utf-8", "replace")
    refusal = explain_refusal(model, backend.name, f"{error}\n{end}")
    ended = of_kind("build_error", None, error.message, fix=error.hint)
    own = [of_kind(NO_KERNEL, None, refusal[0], fix=refusal[1])] if refusal else []
    own += [] if refusal or ended_well else [ended]
    diagnosis = check_failure(log, model, backend.parses_qdq, own)
    if not any(map(ends_build, diagnosis.findings)):
        diagnosis = check_failure(log, model, False, [ended])
    cause = diagnosis.findings[0]
    is_known = is_refused(cause) or names_node(cause, model) or "killed" in error.message
    if isinstance(error, BackendError) and not is_known:
        cause = search(cause)
        diagnosis = check_failure(log, model, backend.parses_qdq, [cause])
    write_diagnosis(workplace, diagnosis)
    if cause.what in (error.message, refusal and refusal[0]):
        kind = BackendError if refusal else type(error)
        return kind(cause.what, cause.fix)
    how = error.message.partition(";")[0].partition(":")[0]
    return BackendError(f"{how}: {cause.what}", cause.fix)


def _check_folder(folder: Path, engine_file: str) -> None:
    """Refuse a folder in which a build would replace what no build of trtcal wrote."""
    names = (RECORDS, engine_file, LOG, *OPTIONAL, MANIFEST)  # records show that a folder is ours
    there = next((folder / name for name in names if (folder / name).exists()), None)
    if there is not None and not is_build_folder(folder):
        what = f"cannot build into {folder}: its {there.name} is not from a build of trtcal"
        raise InputError(what, "choose another --output, or move the file away")


def _keep_log(workplace: Path, folder: Path, engine_file: str) -> None:
    """Leave the log so far, beside an older build if there is one, which stays as it was."""
    older = (folder / MANIFEST).exists() or (folder / engine_file).exists()
    with together():
        for file in (LOG, RECORDS, DIAGNOSIS):
            if (workplace / file).exists():
                _move(workplace / file, folder / (f"failed-{file}" if older else file))


def _move(source: Path, destination: Path) -> None:
    with replacing(destination) as temporary:
        shutil.copyfile(source, temporary)


def _describe(
    model: Model, backend: Backend, options: BuildOptions, product: Made, workplace: Path
) -> Build:
    record, tail = quantization_record(model.proto), tail_of(metadata_of(model.proto))
    cache = options.timing_cache and Path(options.timing_cache.name)
    bare = replace(options, timing_cache=cache)  # a manifest holds no paths
    engine = workplace / backend.engine_file
    measured = {
        "engine_digest": digest_file(engine),
        "engine_bytes": engine.stat().st_size,
        "log_digest": digest_file(workplace / LOG),
        **json.loads((workplace / "measured.json").read_text()),
    }
    outcomes = _outcomes(model, backend, options, product.layers, workplace / LOG)
    result = Build(
        folder=workplace,
        backend=backend.name,
        backend_version=backend.availability().version or "unknown",
        target=options.target,
        model=model.fingerprint,
        model_name=model.name,
        layers=product.layers,
        outcomes=outcomes,
        skipped=record.get("skipped", {}),
        quantization={**provenance(record), **options.route.record()},
        engine_file=backend.engine_file,
        measured=measured,
        inputs=model.inputs,
        outputs=model.outputs,
        whole=() if tail is None else whole_outputs(model.outputs, tail),
        plugins=product.plugins,
        gpu=product.gpu,
        options=options.to_document(),
        command=backend.command(model, bare, model.path.name, backend.engine_file),
    )
    return _covered(result, model, options)


def _covered(build: Build, model: Model, options: BuildOptions) -> Build:
    """Return a build with how much of the compute is in INT8, for one sample of the usual shapes."""
    fixed = {spec.name for spec in model.inputs if any(isinstance(n, int) for n in spec.shape[:1])}
    usual = {name: shapes[1] for name, shapes in options.shapes.items()}
    sizes = {name: shape if name in fixed else (1, *shape[1:]) for name, shape in usual.items()}
    if build.is_for_cpu:  # what its kernels run in float says nothing of TensorRT
        return replace(build, coverage=asked_coverage(model, sizes))
    return replace(build, coverage=built_coverage(model, build.outcomes, sizes))


def _recorded(result: Build) -> Build:
    """Write down whose engine it is, and its manifest."""
    if unrecorded := record_engine(result.measured["engine_digest"], result.digest):
        result = replace(result, measured={**result.measured, "unrecorded": unrecorded})
    write_document(result.folder / MANIFEST, result.to_document())
    return result


FAILED = tuple(f"failed-{file}" for file in (LOG, RECORDS, DIAGNOSIS))
OPTIONAL = (DIAGNOSIS, INSPECTED, LAYER_TIMES, CACHE, *FAILED)
"""What only some builds leave in their folder."""


def _publish(result: Build, folder: Path) -> Build:
    """Put everything into its folder, all at once, in place of a build that was there."""
    with together():
        for name in OPTIONAL:
            removing(folder / name)
        for name in (result.engine_file, LOG, RECORDS, *OPTIONAL, MANIFEST):
            if (result.folder / name).exists():
                _move(result.folder / name, folder / name)
    return replace(result, folder=folder)


def _outcomes(
    model: Model, backend: Backend, options: BuildOptions, layers: tuple[Layer, ...], log: Path
) -> tuple[Outcome, ...]:
    """Return what every node got; the log explains first why one was lost, then its Q/DQ."""
    ops = {node.name: node.op_type for node in model.proto.graph.node}
    requests = options.route.asked(asked_precisions(model.proto))
    outcomes = find_outcomes(requests, layers, len(options.profiles))
    if not any(outcome.is_lost for outcome in outcomes):
        return outcomes
    known = tuple(
        backend.explain(outcome, ops[outcome.node], options.target) if outcome.is_lost else outcome
        for outcome in outcomes
    )
    events = ((log.name, event) for event in events_of_file(log))
    return explain(known, model.proto, Mentions(events))
