"""Calibration inside TensorRT's builder, up to TensorRT 10; run on a GPU with 8.6.0.

TensorRT 11 and TensorRT-RTX have no such calibration, and for a network with Q/DQ it is ignored. Where
there is a choice, prefer ranges from `calibrators` and Q/DQ. Here TensorRT runs its own closed
algorithms on the GPU, on the batches that it is given:

    batches = dataset.batches(32)                      # dicts of arrays by input name
    calibrator = calibrator_object("entropy2", batches, {"image": (32, 3, 224, 224)})
    with calibrator:                                   # raises what went wrong in a callback
        config.set_flag(trt.BuilderFlag.INT8)
        config.int8_calibrator = calibrator
        engine = builder.build_serialized_network(network, config)
    served = calibrator.finish()                       # what TensorRT took; its cache is served.cache

With ranges chosen already, `cache_object("entropy2", amaxes)` instead makes TensorRT take those.

TensorRT swallows exceptions of a calibrator and goes on with the data so far. This one keeps them; the
end of `with`, or `finish`, raises them, or says that TensorRT did not take all batches. An engine
must not be used before. Without `with`, Ctrl-C may be swallowed, though never an end of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from calibrators.device_memory import Memory, PyCudaMemory
from calibrators.feeder import Failures, Feeder, Feeds, NoData, Shapes, never_raises
from calibrators.range import problem
from calibrators.tensorrt_cache import cache_of_ranges

KINDS = {
    "entropy": "IInt8EntropyCalibrator",
    "entropy2": "IInt8EntropyCalibrator2",
    "legacy": "IInt8LegacyCalibrator",
    "minmax": "IInt8MinMaxCalibrator",
}


class NotCalibratedError(RuntimeError):
    """TensorRT did not take the batches, or not all of them."""


@dataclass(frozen=True)
class Served:
    """What TensorRT took of the data, and the cache that it made of them.

    `left_out` counts the samples of a last batch that was not full, `unused` names the inputs that
    TensorRT did not ask for. `from_cache` says that it took the ranges of the cache given,
    `cache_refused` that it did not and calibrated from the data.
    """

    batches: int
    samples: int
    left_out: int
    unused: tuple[str, ...]
    from_cache: bool
    cache_refused: bool
    cache: bytes | None


@dataclass(frozen=True)
class Legacy:
    """Parameters of TensorRT's legacy calibrator, shares from 0 to 1.

    `quantile` chooses the largest value that counts, `regression_cutoff` the share of it at which
    the regression is cut off. The formulas are not published: `calibrators.methods` is something
    else, and reaches TensorRT as Q/DQ or in an exported cache.
    """

    quantile: float
    regression_cutoff: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isinstance(value, (int, float)) and 0 <= value <= 1):
                raise ValueError(f"{name} must be from 0 to 1, not {value!r}")


def calibrator_object(
    kind: str,
    batches: Iterable[Feeds],
    shapes: Shapes,
    *,
    types: Mapping[str, str] | None = None,
    cache: bytes | None = None,
    leave_out_rest: bool = False,
    legacy: Legacy | None = None,
    memory: Memory | None = None,
    trt: Any = None,
) -> Any:
    """Return a `BuilderCalibrator` that is also what `IBuilderConfig.int8_calibrator` wants.

    `kind` is one of `KINDS`. `shapes` are those that the builder calibrates with, batch first: the
    network's, or the optimum of the calibration profile; `types` are those of inputs that are no
    floats, such as `{"ids": "int32"}`. `cache` must be of this very network: that is for the caller
    to know. `legacy` is for the kind "legacy". `memory` is `PyCudaMemory()` and `trt` the
    module `tensorrt` if not given. One object is for one build. `ImportError` if PyCUDA is missing,
    or a TensorRT that has calibrators; `DeviceError` if no GPU can be opened; `ValueError` for
    parameters that do not fit.
    """
    if (legacy is not None) != (kind == "legacy"):
        raise ValueError("`legacy` is needed by the kind 'legacy', and by no other")
    if cache is not None and not (isinstance(cache, bytes) and cache):
        raise ValueError("the cache must be bytes, and not empty")
    base = _base(kind, trt or _tensorrt())
    device = memory if memory is not None else PyCudaMemory()
    feeder = Feeder(batches, shapes, device, types, leave_out_rest)
    return _class_on(base)(feeder, cache, legacy)


def cache_object(kind: str, amaxes: Mapping[str, float], *, trt: Any = None) -> Any:
    """Return a `BuilderCalibrator` that answers with ranges, so that TensorRT runs no inference.

    `amaxes` are the ranges by tensor; the cache has the header of this version and kind. It needs no
    data and no GPU memory: should TensorRT refuse the cache and ask for data, `finish` says so. Prefer
    another kind than "legacy", whose caches have a header of their own that is not written here.
    `ImportError` as for `calibrator_object`; `ValueError` for a range that is none, or no range.
    """
    trt = trt or _tensorrt()
    base = _base(kind, trt)
    wrong = [f"{name!r}: {why}" for name, amax in amaxes.items() if (why := problem(amax))]
    if wrong or not amaxes:
        raise ValueError("; ".join(wrong) or "no range is given")
    cache = cache_of_ranges(str(trt.__version__), kind, amaxes)
    return _class_on(base)(NoData(), cache, None)


def _base(kind: str, trt: Any) -> Any:
    """Return TensorRT's class for a kind of calibrator."""
    if kind not in KINDS:
        raise ValueError(f"TensorRT has no calibrator {kind!r}; choose one of: {', '.join(KINDS)}")
    if not hasattr(trt, KINDS[kind]):
        raise ImportError(
            f"TensorRT {trt.__version__} has no calibrators (10 is the last version with them): "
            "quantize the network with Q/DQ instead"
        )
    return getattr(trt, KINDS[kind])


def _tensorrt() -> Any:
    try:
        return import_module("tensorrt")
    except ImportError as error:
        raise ImportError(
            f"TensorRT cannot be imported here ({error}); a version up to 10 can calibrate: "
            "`pip install 'tensorrt<11'`"
        ) from error


def _class_on(base: Any) -> Any:
    def initialize(self: Any, *arguments: Any) -> None:
        base.__init__(self)  # pybind11 insists on it
        BuilderCalibrator.__init__(self, *arguments)

    return type("BuilderCalibrator", (BuilderCalibrator, base), {"__init__": initialize})


class BuilderCalibrator:
    """The callbacks of TensorRT's calibrators, over a `Feeder`."""

    def __init__(self, feeder: Feeder | NoData, cache: bytes | None, legacy: Legacy | None) -> None:
        self.failures = Failures()
        self._feeder, self._legacy = feeder, legacy
        self._given, self._made = cache, b""
        self._read = False
        self._watching = ExitStack()

    def get_batch_size(self) -> int:
        """Return the number of samples in each batch."""
        return self._feeder.batch_size

    @never_raises
    def get_batch(self, names: list[str]) -> list[int] | None:
        """Return the addresses of the inputs' next arrays, None if there are no more."""
        if self._made:
            raise NotCalibratedError(
                "TensorRT asks for the batches a second time: make a calibrator for each build"
            )
        return self._feeder.next(names)

    @never_raises
    def read_calibration_cache(self) -> bytes | None:
        """Return the cache given, None if there is none."""
        self._read = True
        return self._given

    @never_raises
    def write_calibration_cache(self, cache: memoryview) -> None:
        """Keep a copy of the cache: the memory is TensorRT's."""
        self._made = bytes(cache)

    def get_quantile(self) -> float:
        """Return the legacy calibrator's first parameter."""
        return self._legacy.quantile if self._legacy else 0.0

    def get_regression_cutoff(self) -> float:
        """Return the legacy calibrator's second parameter."""
        return self._legacy.regression_cutoff if self._legacy else 0.0

    def read_histogram_cache(self, length: int) -> None:
        """Return None: the bindings have no way to say how long a histogram cache is."""

    def write_histogram_cache(self, pointer: object, length: int) -> None:
        """Drop the histograms, which could not be read again."""

    def finish(self) -> Served:
        """Free the device's memory and return what TensorRT took.

        Raises the first exception of a callback, whatever it was (`KeyboardInterrupt` too), or
        `NotCalibratedError`.
        """
        try:
            self._feeder.close()
        finally:
            if self.failures.first is not None:
                raise self.failures.first
        return self._served()

    def _served(self) -> Served:
        feeder = self._feeder
        was_asked = feeder.ended or feeder.given > 0
        from_cache = self._read and self._given is not None and not was_asked
        if not (was_asked or from_cache):
            raise NotCalibratedError(
                "TensorRT asked for no batch: the build failed before calibration, the INT8 flag "
                "is not set, or the network has its own Q/DQ or ranges"
            )
        if was_asked and not feeder.ended:
            raise NotCalibratedError(
                f"TensorRT stopped after batch {feeder.given}, before the end of the data"
            )
        return Served(
            batches=feeder.given,
            samples=feeder.given * feeder.batch_size,
            left_out=feeder.left_out,
            unused=feeder.unused,
            from_cache=from_cache,
            cache_refused=self._given is not None and not from_cache,
            cache=self._made or None,
        )

    def __enter__(self) -> Any:
        self._watching.enter_context(self.failures.of_signals())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._watching.close()
        # A builder that failed may have failed because of a callback, which then says why.
        because = self.failures.first is not None and isinstance(error, Exception)
        if error is None or because:
            self.finish()
        else:
            with suppress(Exception):  # what ended the block comes first
                self._feeder.close()
