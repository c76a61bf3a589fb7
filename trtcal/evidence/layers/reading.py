"""Reads whatever lists the layers of an engine: inspector JSON, a build, a log, an engine itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtcal.documents import Document, from_fields, parsing
from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.errors import InputError
from trtcal.evidence.diagnosis.failure import no_engine, recorded
from trtcal.evidence.gpus import Target
from trtcal.evidence.layers import inspector, roofline
from trtcal.evidence.layers.copies import examine
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.rtx_engine import MAGIC, read_engine_layers
from trtcal.evidence.log.reader import parse_file
from trtcal.evidence.manifest import BUILD_KIND, INSPECTED, LAYER_TIMES, LOG, MANIFEST, read_build
from trtcal.evidence.times import TENSORRT, TENSORRT_RTX, floor_ms, layer_ms, memory_ms

LISTS = (MANIFEST, "graph.json", INSPECTED)
TIMES = (LAYER_TIMES, "profile.json")
SOURCES_HINT = (
    "give an inspector's JSON (trtexec --exportLayerInfo), the folder of a build, a verbose log, "
    "or an engine of TensorRT-RTX"
)


@dataclass(frozen=True)
class Engine:
    """An engine as its layer list describes it.

    `total_ms` is all that its profile measured of one run, also what no layer could be found for;
    None without a profile. `notes` say where things came from and what did not fit. Of a build,
    `model` is the fingerprint of its model and `builder` says what built it.
    """

    source: str
    layers: tuple[Layer, ...]
    total_ms: float | None = None
    notes: tuple[str, ...] = ()
    model: str | None = None
    builder: str | None = None

    @property
    def compiler(self) -> str:
        """Which compiler made it; kernels that are only chosen on the device are TensorRT-RTX's."""
        has_stubs = any("CASK_STUB" in (layer.tactic or "") for layer in self.layers)
        is_rtx = has_stubs or (self.builder or "").startswith("tensorrt-rtx")
        return TENSORRT_RTX if is_rtx else TENSORRT

    @property
    def is_timed(self) -> bool:
        """Whether its layers have times."""
        return self.total_ms is not None


def read_engine(path: Path, profile: Path | None = None) -> Engine:
    """Read the layers at `path`, and their times: from `profile`, or beside them in a folder.

    Beside a single file no profile is searched. `InputError` if there is no layer list.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path")
    if path.is_dir():
        return _read_folder(path, profile)
    if not path.is_file():
        raise InputError(f"{path} is not a regular file", SOURCES_HINT)
    engine, times = _read_file(path)
    if not engine.layers:
        raise InputError(f"{path} lists no layers", "build with detailed profiling verbosity")
    if profile is not None:
        return _with_times(engine, inspector.read_profile(read_bytes(profile)), profile)
    if times is None:
        return engine
    try:
        return _with_times(engine, times, path)
    except InputError:
        return replace(engine, notes=("the table of times in the log lists other layers",))


def _read_folder(folder: Path, profile: Path | None) -> Engine:
    known = (*LISTS, LOG)
    listing = next((folder / name for name in known if (folder / name).is_file()), None)
    if listing is None:
        raise InputError(f"{folder} has none of {', '.join(known)}", SOURCES_HINT)
    engine = read_engine(listing)
    engine = replace(engine, source=str(folder), notes=(f"layers: {listing}", *engine.notes))
    times = profile or next((folder / name for name in TIMES if (folder / name).is_file()), None)
    if times is None:
        return engine
    return _with_times(engine, inspector.read_profile(read_bytes(times)), times)


def _read_file(path: Path) -> tuple[Engine, inspector.Profile | None]:
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(MAGIC):
        return Engine(str(path), read_engine_layers(path), builder="tensorrt-rtx"), None
    if b"\0" in start[:64]:
        raise InputError(f"{path} is neither text nor an engine of TensorRT-RTX", SOURCES_HINT)
    is_json = path.suffix == ".json"
    document = _as_json(path) if is_json or start.lstrip().startswith(b"{") else None
    if is_json and not isinstance(document, dict):
        fault = "is not JSON" if document is None else "holds no list of layers"
        raise InputError(f"{path} {fault}", SOURCES_HINT)
    if document is None:
        parsed = parse_file(path)
        if parsed.is_failed or recorded(path):
            raise no_engine(path, parsed.events)
        return Engine(str(path), parsed.layers), inspector.profile_in_log(parsed.events)
    if document.get("kind") == BUILD_KIND:
        build = read_build(path)
        builder = f"{build.backend} {build.backend_version} for {build.target}"
        return Engine(str(path), build.layers, model=build.model, builder=builder), None
    if isinstance(document.get("layers"), list):  # as `trtcal log --json` writes them
        items = document["layers"]
        layers = parsing(path, lambda: tuple(from_fields(Layer, item) for item in items))
        return Engine(str(path), layers), None
    return Engine(str(path), inspector.read_inspector(document)), None


def _as_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None: a log may begin with a bracket too."""
    try:
        document: dict[str, Any] = parse_json(read_bytes(path), strict=False)
    except ValueError:
        return None
    return document


def _with_times(engine: Engine, profile: inspector.Profile, path: Path) -> Engine:
    timed = inspector.join_times(engine.layers, profile)
    if all(layer.time_ms is None for layer in timed.layers):
        what = f"{path} is not a profile of {engine.source}: they have no layer name in common"
        raise InputError(what, "give the profile of the same engine")
    notes = (*engine.notes, f"times: {path}", *_misfits(timed))
    return replace(engine, layers=timed.layers, total_ms=profile.total_ms, notes=notes)


def _misfits(timed: inspector.Timed) -> Iterator[str]:
    if layers := timed.without_time:
        yield f"{len(layers)} layers have no time, such as {layers[0]}"
    if times := timed.without_layer:
        ms = sum(time.average_ms or 0.0 for time in times)
        yield f"{len(times)} times ({ms:.4g} ms) belong to no layer, such as {times[0].name}"


def engine_document(engine: Engine, target: Target | None = None) -> Document:
    """Return layers, shares, copies, left-over Q/DQ, chains and findings of an engine.

    With a target every layer has an `estimate`, which is no measurement.
    """
    report = examine(engine.layers)
    return {
        "schema_version": 1,
        "source": engine.source,
        "notes": list(engine.notes),
        "total_ms": engine.total_ms,
        "layers_ms": roofline.time_of(engine.layers),
        "moved_bytes": roofline.bytes_of(engine.layers),
        "shares_of": "time" if engine.is_timed else "bytes",
        "by_precision": list(map(asdict, roofline.share_by(roofline.counted_precision, engine))),
        "by_kind": list(map(asdict, roofline.share_by(roofline.kind_of, engine))),
        "reformats": list(map(asdict, report.reformats)),
        "unfused_qdq": list(map(asdict, report.unfused)),
        "chains": [{**asdict(chain), "saved_bytes": chain.saved_bytes} for chain in report.chains],
        "findings": list(map(asdict, report.findings)),
        "target": target.name if target else None,
        "layers": [_layer(layer, target) for layer in engine.layers],
    }


def _layer(layer: Layer, target: Target | None) -> dict[str, Any]:
    return {
        **layer.to_document(),
        "counted_precision": roofline.counted_precision(layer),
        "bytes_read": layer.bytes_read,
        "bytes_written": layer.bytes_written,
        "estimate": _estimate(layer, target) if target else None,
    }


def _estimate(layer: Layer, target: Target) -> Document:
    """Return what a layer is estimated to take, and what of it takes longest: `bound`.

    `efficiency` is the estimate over the measured time, None without one.
    """
    ms, moved, floor = layer_ms(layer, target), layer.bytes_moved, floor_ms(target)
    memory = None if moved is None else memory_ms(moved, target)
    if ms is None or memory is None:
        bound = "unknown"
    elif layer.is_idle:
        bound = "none"
    elif ms < 2 * floor:
        bound = "launch"
    else:
        bound = "compute" if ms > floor + memory else "memory"
    efficiency = ms / layer.time_ms if ms is not None and layer.time_ms else None
    return {"estimated_ms": ms, "memory_ms": memory, "bound": bound, "efficiency": efficiency}
