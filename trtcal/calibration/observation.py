"""The histograms of a model's tensors over a dataset, their file, and the ranges chosen from them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import calibrators
from calibrators import EmptyHistogramError, Histogram, UnknownCalibratorError
from calibrators.floating import floating_amax
from calibrators.range import FLOOR, Range
from calibrators.registry import BUILT_IN
from trtcal.data import Dataset
from trtcal.data.dataset import SizeRanges
from trtcal.documents import canonical_json, digest_bytes, from_fields, parsing, read_npz, write_npz
from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError, TrtcalError
from trtcal.formats import FORMATS
from trtcal.model import Model
from trtcal.ranges import Calibration, Parameters, TensorRange

if TYPE_CHECKING:
    from trtcal.calibration.profile import Profile

KEYS = ("bins", "counts", "scalars", "extent")
Farthest = list[tuple[float, int]]
"""Largest magnitude, negated so that they sort, and place of the samples that reach farthest."""
Reaches = dict[str, Farthest]


@dataclass(frozen=True)
class Observation:
    """The histograms of one model's tensors over one dataset; sizes and digests of its samples."""

    model: str
    dataset: str
    samples: int
    histograms: dict[str, Histogram]
    profile: Profile | None = field(default=None, compare=False)  # if it was run here
    sizes: SizeRanges = field(default_factory=dict, compare=False)
    sample_digests: str = ""  # `trtcal.data.overlap.keep`
    reaches: Reaches | None = field(default=None, compare=False)  # none in files of older versions

    @property
    def digest(self) -> str:
        """Digest of all of it: equal observations, equal digests."""
        parts = {name: histogram.digest() for name, histogram in self.histograms.items()}
        return digest_bytes(canonical_json([self.model, self.dataset, self.samples, parts]))


@dataclass(frozen=True)
class _Texts:
    sizes: SizeRanges
    reaches: Reaches | None


def pack(histograms: Mapping[str, Histogram]) -> Iterator[tuple[str, Any]]:
    """Yield histograms as named arrays without objects, which `unpack` takes back."""
    yield "names", np.array(list(histograms))
    for number, histogram in enumerate(histograms.values()):
        for key, array in histogram.to_arrays().items():
            yield f"{number}/{key}", array


def unpack(arrays: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return the histograms in arrays; `KeyError` or `ValueError` if they are not there."""
    names = arrays["names"].tolist()
    return {
        name: Histogram.from_arrays({key: arrays[f"{number}/{key}"] for key in KEYS})
        for number, name in enumerate(names)
    }


def unpack_texts(arrays: Mapping[str, Any], sizes: str = "{}") -> _Texts:
    """Return what is kept as JSON."""
    texts = {"sizes": sizes, "reaches": str(arrays.get("reaches", "null"))}
    return from_fields(_Texts, {name: parse_json(text) for name, text in texts.items()})


def write_observation(path: Path, observation: Observation) -> None:
    """Write histograms to an `.npz` without pickled objects."""
    header = [observation.model, observation.dataset, str(observation.samples)]
    header += [json.dumps(observation.sizes), observation.sample_digests]
    more = {"header": np.array(header), "reaches": np.array(json.dumps(observation.reaches))}
    write_npz(path, chain(more.items(), pack(observation.histograms)))


def is_observation(path: Path) -> bool:
    """Whether a file is an `.npz` that has the names under which `write_observation` writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"header.npy", "names.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read_observation(path: Path) -> Observation:
    """Read histograms; `InputError` if the file is not what `write_observation` wrote."""
    arrays = read_npz(path)

    def build() -> Observation:
        model, dataset, samples, sizes, *more = arrays["header"].tolist()
        texts = unpack_texts(arrays, sizes)
        observation = Observation(model, dataset, int(samples), unpack(arrays))
        return replace(observation, sample_digests="".join(more), **vars(texts))

    return parsing(path, build)


def cached(
    path: Path | None,
    model: Model,
    dataset: Dataset,
    tensors: Sequence[str],
    make: Callable[[], Observation],
) -> Observation:
    """Return the observation kept at `path` if it is of this model, data and tensors, else a new one.

    What `make` gives is then kept there; a `path` of None keeps nothing.
    """
    if path is not None and path.exists():
        kept = read_observation(path)
        same_model = (kept.model, list(kept.histograms)) == (model.fingerprint, list(tensors))
        same_model &= kept.reaches is not None
        if same_model and kept.dataset == dataset.fingerprint:  # which may have to be read for it
            return kept
    observation = make()
    if path is not None:
        write_observation(path, observation)
    return observation


def calibrate(
    observation: Observation, method: str, parameters: Parameters | None = None
) -> Calibration:
    """Choose a range for every observed tensor; no network is run.

    `InputError` for an unknown method or parameters that it does not take.
    """
    chosen = dict(parameters or {})
    calibrator = create_calibrator(method, chosen)

    def choose(name: str, histogram: Histogram) -> Range:
        with _naming(method, f" on tensor {name!r}", EmptyHistogramError):
            return calibrator(histogram)

    if dataclasses.is_dataclass(calibrator) and not isinstance(calibrator, type):
        chosen = dataclasses.asdict(calibrator)  # with the defaults
    return ranged(observation, method, chosen, choose)


def ranged(
    observation: Observation,
    method: str,
    parameters: dict[str, Any],
    choose: Callable[[str, Histogram], Range],
    method_of: Callable[[str], str] | None = None,
) -> Calibration:
    """Return the table of what is chosen for each tensor; `choose` may raise EmptyHistogramError.

    `method_of` gives the method of a tensor where not all have the same.
    """
    ranges: dict[str, TensorRange] = {}
    unranged: dict[str, str] = {}
    for name, histogram in observation.histograms.items():
        try:
            chosen = choose(name, histogram)
            own = method_of(name) if method_of else method
            ranges[name] = _with_facts(own, chosen, histogram)
        except EmptyHistogramError as error:
            unranged[name] = str(error)
    facts = observation.model, observation.dataset, observation.samples, observation.digest
    of_samples = observation.sizes, observation.sample_digests
    return Calibration(method, parameters, *facts, ranges, unranged, *of_samples)


def create_calibrator(method: str, parameters: Parameters) -> calibrators.Calibrator:
    """Return the calibrator of this name; `InputError` if none has it or takes these parameters."""
    try:
        with _naming(method, "", UnknownCalibratorError, ValueError):
            return calibrators.create(method, **parameters)
    except UnknownCalibratorError:
        known = ", ".join(calibrators.names())
        raise InputError(f"unknown method {method!r}", f"choose one of: {known}") from None
    except ValueError as error:
        raise InputError(str(error), "see `trtcal calibrate --help`") from error


@contextlib.contextmanager
def _naming(method: str, where: str, *known: type[Exception]) -> Iterator[None]:
    """Name the calibrator of another package in whatever it raises, SystemExit too, unless known."""
    plain: tuple[type[BaseException], ...] = (TrtcalError, KeyboardInterrupt, MemoryError, *known)
    try:
        yield
    except plain:
        raise
    except BaseException as error:
        if method in BUILT_IN:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        hint = "correct that calibrator, or choose another method"
        raise InputError(f"calibrator {method!r} failed{where}: {text}", hint) from error


AS_INT8 = frozenset(("minmax", "percentile"))  # methods that choose without a look at the grid


def _with_facts(method: str, chosen: Range, histogram: Histogram) -> TensorRange:
    notes = [chosen.note] if chosen.note else []
    if infinite := histogram.positive_inf + histogram.negative_inf:
        notes.append(f"{infinite} infinite values were not counted")
    low, high, counts = histogram.magnitudes()
    outside = int(counts[(low >= chosen.amax) & (high > chosen.amax)].sum())
    amax = chosen.amax if method in AS_INT8 else floating_amax(histogram, FORMATS["fp8"])
    note, share = "; ".join(notes) or None, outside / histogram.count
    return TensorRange(chosen.amax, histogram.amax, share, note, max(amax, FLOOR))
