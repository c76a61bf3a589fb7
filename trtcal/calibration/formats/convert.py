"""Every format to and from a `Calibration`, and the check that a file belongs to a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtcal.calibration.cache_tensors import cache_tensors
from trtcal.calibration.formats import aimet, onnxruntime_table, tensorrt_cache
from trtcal.calibration.formats.qdq import read_qdq
from trtcal.calibration.formats.table import IMPORTED, UNKNOWN
from trtcal.documents import read_json, write_bytes
from trtcal.documents.bounds import read_bytes
from trtcal.documents.streams import command_line
from trtcal.errors import InputError, some
from trtcal.formats import FORMATS
from trtcal.model import Model, load_model
from trtcal.model.tensors import producers_of
from trtcal.quantization import find_layers, prepare, tensors_to_observe
from trtcal.ranges import CALIBRATION_KIND, Calibration, TensorRange, scales_of

READERS = {
    tensorrt_cache.FORM: tensorrt_cache.read_cache,
    **onnxruntime_table.READERS,
    **aimet.READERS,
}
WRITERS = {**onnxruntime_table.WRITERS, **aimet.WRITERS}
READABLE = ("calibration", *READERS, "qdq")
WRITABLE = tuple(READERS)
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Fit:
    """How a file's tensors and a model's agree: names the model has not, activations it lacks."""

    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    wanted: int

    def check(self, model: Path) -> None:
        """Raise `InputError` with what differs."""
        differences = []
        if self.unknown:
            names = f"tensors that the model does not have ({some(self.unknown, NAMES_SHOWN)})"
            differences.append(f"it has {len(self.unknown)} {names}")
        if self.missing:
            count = f"{len(self.missing)} of the {self.wanted}"
            what = f"activations to quantize ({some(self.missing, NAMES_SHOWN)})"
            differences.append(f"it has no range for {count} {what}")
        if differences:
            raise InputError(
                f"the ranges do not fit {model}: {', and '.join(differences)}",
                "give the model that the ranges were made for, or take the ranges that fit with "
                "--partial",
            )


def read_ranges(path: Path, form: str | None = None, known: Collection[str] = ()) -> Calibration:
    """Read a file of any format (found out if `form` is None) as a calibration.

    What a foreign file does not say is "unknown": model, dataset and histograms. Its entries that
    can be no range stand under `unranged`. `InputError` if the file is not of its format.
    """
    form = form or detect(path)
    if form == "calibration":
        return Calibration.read(path)
    if form not in READABLE:
        raise InputError(f"unknown format {form!r}", f"choose one of: {', '.join(READABLE)}")
    return read_qdq(load_model(path), known) if form == "qdq" else READERS[form](path)


def detect(path: Path) -> str:
    """Return the format that a file's ending and first bytes tell."""
    if path.suffix == ".onnx":
        return "qdq"
    head = read_bytes(path)[:4096]
    if head.startswith(b"TRT-"):
        return tensorrt_cache.FORM
    if head.lstrip().startswith(b"{"):
        document = read_json(path)
        other = aimet.AIMET if aimet.is_aimet(document) else "json"
        return "calibration" if document.get("kind") == CALIBRATION_KIND else other
    return "onnxruntime" if b"\0" in head else "text"


def import_calibration(
    path: Path, model: Model, form: str | None = None, dataset: str = UNKNOWN, partial: bool = False
) -> Calibration:
    """Read a file as the calibration of `model`, made from `dataset` (a fingerprint).

    `InputError` if it was made for another model or dataset, or does not fit the model. With
    `partial`, what fits is taken: foreign tensors are dropped, and missing ones stay without range.
    """
    calibration = read_ranges(path, form, tensor_names(model))
    _same(path, "model", calibration.model, model.fingerprint)
    _same(path, "dataset", calibration.dataset, dataset)
    if not calibration.method.startswith(IMPORTED):
        return calibration
    calibration = _followed(replace(calibration, model=model.fingerprint, dataset=dataset), model)
    fit = compare_names([*calibration.ranges, *calibration.unranged], model)
    if not partial or len(fit.missing) == fit.wanted:
        fit.check(model.path)
    return _fitting(calibration, fit, path)


def _followed(calibration: Calibration, model: Model) -> Calibration:
    """Return ranges with those of wanted tensors that follow from others."""
    prepared, ranges = prepare(model), dict(calibration.ranges)
    listed, makers = cache_tensors(prepared), producers_of(prepared.proto.graph)
    every = dict(listed.follow(calibration.ranges))
    for name, maker in makers.items():  # in the integer operators of ONNX Runtime the Relu is gone
        if maker.op_type == "Relu" and name not in every and maker.input[0] in every:
            every[name] = every[maker.input[0]]
    for name in tensors_to_observe(find_layers(prepared)):
        if name in every and name not in ranges:
            source = next(n for n, each in calibration.ranges.items() if each is every[name])
            notes = [every[name].note, f"it has the range of {source!r}"]
            ranges[name] = replace(every[name], note="; ".join(filter(None, notes)))
    unranged = {name: why for name, why in calibration.unranged.items() if name not in ranges}
    return replace(calibration, ranges=ranges, unranged=unranged)


def _same(path: Path, what: str, stored: str, expected: str) -> None:
    if UNKNOWN not in (stored, expected) and stored != expected:
        raise InputError(
            f"{path} was made for another {what} ({stored[:19]}…) than this one ({expected[:19]}…)",
            f"give the {what} that it was made for, or calibrate again",
        )


def compare_names(ranges: Iterable[str], model: Model) -> Fit:
    """Return how a file's tensors and a model's agree; names that TensorRT made up do not count."""
    names = list(ranges)
    known = tensor_names(model).union(cache_tensors(model).left_out)
    needed = tensors_to_observe(find_layers(prepare(model)))
    others = (name for name in names if name not in known and not tensorrt_cache.is_unnamed(name))
    layers = known.union(n.name or f"node_of_{n.output[0]}" for n in model.proto.graph.node)
    foreign = [
        name
        for name in others
        if name.removesuffix(" copy") not in known
        and layers.isdisjoint(tensorrt_cache.layers_of(name))
    ]
    there = set(names)
    missing = tuple(name for name in needed if name not in there)
    return Fit(tuple(foreign), missing, len(needed))


def tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors of a model, its subgraphs left out."""
    graph = model.proto.graph
    used = (name for node in graph.node for name in (*node.input, *node.output))
    return {*used, *(value.name for value in graph.input), *(t.name for t in graph.initializer)}


def _fitting(calibration: Calibration, fit: Fit, path: Path) -> Calibration:
    ranges = {name: item for name, item in calibration.ranges.items() if name not in fit.unknown}
    absent = dict.fromkeys(fit.missing, f"{path.name} has no range for it")
    kept = {name: why for name, why in calibration.unranged.items() if name not in fit.unknown}
    return replace(calibration, ranges=ranges, unranged={**kept, **absent})


def check_covers(calibration: Calibration, model: Model, path: Path, data: str = "DATA") -> None:
    """Raise `InputError` if TensorRT wants a range that a calibration, read from a file, lacks."""
    _same(path, "model", calibration.model, model.fingerprint)
    origins, known = cache_tensors(model).origins, {**calibration.ranges, **calibration.unranged}
    if missing := [name for name in origins if name not in known]:
        command = ("calibrate", str(model.path), "--data", data, "--all-tensors", "-o", str(path))
        raise InputError(
            f"{path} has no range for {len(missing)} of the {len(origins)} tensors that "
            f"TensorRT needs one for ({some(missing, NAMES_SHOWN)}): what reads them runs in float",
            f"`{command_line(*command)}` observes them; --partial writes the others",
        )


def export_calibration(
    path: Path,
    calibration: Calibration,
    form: str,
    tensors: Sequence[str] | None = None,
    tensorrt: str | None = None,
    algorithm: str = "EntropyCalibration2",
) -> None:
    """Write a calibration in a format of `WRITABLE`; `tensors` None means all that have a range.

    `tensorrt` (such as "8.6.1") and `algorithm` head a TensorRT cache. `InputError` if a tensor has
    no range, a range or name cannot be written, or the version is missing.
    """
    chosen = calibration if tensors is None else _only(calibration, tensors)
    if form in WRITERS:
        data = WRITERS[form](_amaxes(chosen, form))
    elif form != tensorrt_cache.FORM:
        raise InputError(f"cannot write {form!r}", f"choose one of: {', '.join(WRITABLE)}")
    elif tensorrt is None:
        raise InputError("the version of TensorRT is not given", "give it as in 8.6.1")
    else:
        _check_int8(chosen.ranges)
        data = tensorrt_cache.cache_of(chosen, tensorrt, algorithm)
    write_bytes(path, data)


def _amaxes(calibration: Calibration, form: str) -> dict[str, float]:
    """Return the ranges that a format wants; `InputError` if it wants INT8's and one is for FP8."""
    ranges = {name: calibration.ranges[name] for name in scales_of(calibration)}
    if form == aimet.AIMET_FP8:
        return {name: entry.scale_in("fp8") * FORMATS["fp8"].top for name, entry in ranges.items()}
    _check_int8(ranges)
    return {name: entry.amax for name, entry in ranges.items()}


def _check_int8(ranges: Mapping[str, TensorRange]) -> None:
    if alone := [name for name, entry in ranges.items() if not entry.is_for_int8]:
        hint = f"calibrate the model for INT8, or write --format {aimet.AIMET_FP8}"
        raise InputError(f"these ranges are for FP8 alone: {some(alone, NAMES_SHOWN)}", hint)


def _only(calibration: Calibration, tensors: Sequence[str]) -> Calibration:
    if absent := [name for name in tensors if name not in calibration.ranges]:
        reasons = [calibration.unranged.get(n, "the file has no entry for it") for n in absent]
        pairs = [f"{name!r}: {why}" for name, why in zip(absent, reasons, strict=True)]
        hint = "`trtcal ranges show` lists the reasons"
        raise InputError(f"tensors without a range: {some(pairs, NAMES_SHOWN)}", hint)
    return replace(calibration, ranges={name: calibration.ranges[name] for name in tensors})
