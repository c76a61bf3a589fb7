"""Batches on their way to a device: each one checked, in one buffer for each input.

TensorRT gets bare addresses, and reads from them as many bytes as the network's input has, whatever
lies there. So every array must have exactly the shape that the builder calibrates with, and be float32
(also where the network's input is of half precision or INT8) unless the input is no float at all.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from calibrators.device_memory import Array, Memory

Method = TypeVar("Method", bound=Callable[..., Any])


class Failures:
    """The first exception of those that were kept, None while there is none."""

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Remember an exception, unless there was one before."""
        if self.first is None:
            self.first = error

    @contextmanager
    def of_signals(self) -> Iterator[None]:
        """Keep what signal handlers raise (Ctrl-C's `KeyboardInterrupt`), and let it pass.

        The bindings run handlers before they enter a callback, where no callback can catch what
        they raise. Python runs them in its main thread; in others there is nothing to keep.
        """
        before = _handlers() if threading.current_thread() is threading.main_thread() else {}
        for number, handler in before.items():
            signal.signal(number, self._keeping(handler))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _keeping(self, handler: Callable[..., Any]) -> Callable[[int, FrameType | None], Any]:
        def handle(number: int, frame: FrameType | None) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                self.keep(error)
                raise

        return handle


def _handlers() -> dict[int, Callable[..., Any]]:
    handlers = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in handlers.items() if callable(handler)}


def never_raises(method: Method) -> Method:
    """Make a method keep its exceptions in `self.failures` and return None; after one, do nothing."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments) if self.failures.first is None else None
        except BaseException as error:  # the caller would swallow Ctrl-C too
            self.failures.keep(error)
            return None

    return call  # type: ignore[return-value]  # of the same signature


Feeds = Mapping[str, Array]
Shapes = Mapping[str, Sequence[int]]

FLOAT = "float32"
OTHERS = ("bool", "int32", "int64")


class FeedError(ValueError):
    """A batch is not what the network is calibrated with."""


class Feeder:
    """Copies one batch after the other to the device, and counts what it gave and what it did not.

    `shapes` are those that the builder calibrates with, the samples along the first axis; `types`
    names the type of each input that is not float. A last batch of fewer samples is a `FeedError`,
    or counted in `left_out` if that is wanted.
    """

    def __init__(
        self,
        batches: Iterable[Feeds],
        shapes: Shapes,
        memory: Memory,
        types: Mapping[str, str] | None = None,
        leave_out_rest: bool = False,
    ) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.types = dict.fromkeys(self.shapes, FLOAT) | dict(types or {})
        self.batch_size = _common_size(self.shapes)
        _check_types(self.types, self.shapes)
        self.given, self.left_out = 0, 0
        self.ended = False
        self.unused: tuple[str, ...] = ()
        self._batches = iter(batches)
        self._memory, self._leave_out_rest = memory, leave_out_rest
        self._addresses: dict[str, int] = {}

    def next(self, names: Sequence[str]) -> list[int] | None:
        """Return the addresses of the next batch's arrays in the order of `names`, None at the end.

        `FeedError` if the batch does not fit, or there never was one.
        """
        if (feeds := self._next_full()) is None:
            return None
        arrays = [self._fitting(name, feeds) for name in names]
        self.unused = tuple(sorted(set(feeds) - set(names)))
        addresses = [self._put(name, array) for name, array in zip(names, arrays, strict=True)]
        self.given += 1
        return addresses

    def _next_full(self) -> Feeds | None:
        """Return the next full batch; None, and `ended` set, if there is no more."""
        for feeds in self._batches:
            rest = self._rest(feeds)
            if not rest:
                return feeds
            self._leave_out(rest)
        if not self.given:
            raise FeedError(f"the data do not fill a batch of {self.batch_size} samples")
        self.ended = True
        return None

    def _rest(self, feeds: Feeds) -> int:
        """Return the number of samples of a batch that has fewer than the others, else 0."""
        if not isinstance(feeds, Mapping):
            raise FeedError(f"{self._where()} is {type(feeds).__name__}, not arrays by input name")
        if self.left_out:
            raise FeedError(f"{self._where()} comes after a batch of {self.left_out} samples only")
        sizes = {len(array) if np.ndim(array) else 0 for array in feeds.values()}
        size = sizes.pop() if len(sizes) == 1 else 0
        return size if size < self.batch_size else 0

    def _leave_out(self, rest: int) -> None:
        if not self._leave_out_rest:
            raise FeedError(
                f"{self._where()} has {rest} samples, the others {self.batch_size}: TensorRT "
                "takes full batches only; choose a batch size that divides the number of "
                "samples, or leave_out_rest=True"
            )
        self.left_out = rest

    def _fitting(self, name: str, feeds: Feeds) -> Array:
        if name not in feeds or name not in self.shapes:
            has = ", ".join(sorted(set(feeds) & set(self.shapes))) or "nothing"
            raise FeedError(f"{self._where()}: TensorRT asks for {name!r}; the batch has {has}")
        array = np.asarray(feeds[name])
        if array.shape != self.shapes[name]:
            raise FeedError(
                f"{self._where()}: {name!r} has shape {list(array.shape)}, "
                f"the builder calibrates with {list(self.shapes[name])}"
            )
        self._check_values(name, array)
        return array

    def _check_values(self, name: str, array: Array) -> None:
        if array.dtype != np.dtype(self.types[name]):
            raise FeedError(
                f"{self._where()}: {name!r} is {array.dtype}, "
                f"the builder calibrates with {self.types[name]}"
            )
        if not np.isfinite(array).all():
            raise FeedError(f"{self._where()}: {name!r} has NaN or infinite values")

    def _put(self, name: str, array: Array) -> int:
        if name not in self._addresses:
            self._addresses[name] = self._memory.allocate(array.nbytes)
        self._memory.copy(self._addresses[name], array)
        return self._addresses[name]

    def _where(self) -> str:
        return f"batch {self.given + bool(self.left_out) + 1}"

    def close(self) -> None:
        """Give the buffers back, the others also where one cannot be."""
        with ExitStack() as freeing:
            while self._addresses:
                freeing.callback(self._memory.free, self._addresses.popitem()[1])


class NoData:
    """Stands where a `Feeder` would for a calibrator that has a cache with all ranges, and no data."""

    batch_size = 1
    given = left_out = 0
    ended = False
    unused: tuple[str, ...] = ()

    def next(self, names: Sequence[str]) -> list[int] | None:
        """Raise `FeedError`: TensorRT asks only if it does not take the cache."""
        raise FeedError(
            f"TensorRT asks for batches of {', '.join(names)}: it did not accept the ranges of "
            "its cache; the build log says why"
        )

    def close(self) -> None:
        """Do nothing: there are no buffers."""


def _common_size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the first axis that all shapes share; `ValueError` if they do not, or one has no size."""
    if not shapes or any(not shape or min(shape) < 1 for shape in shapes.values()):
        raise ValueError(f"calibration needs sizes above 0 for every input: {shapes}")
    sizes = {shape[0] for shape in shapes.values()}
    if len(sizes) > 1:
        raise ValueError(f"the inputs have different numbers of samples: {shapes}")
    return sizes.pop()


def _check_types(types: Mapping[str, str], shapes: Mapping[str, object]) -> None:
    """Let pass what TensorRT can calibrate with; `ValueError` for others and for unknown inputs."""
    for name, dtype in types.items():
        if name not in shapes:
            raise ValueError(f"{name!r} has a type and no shape")
        if dtype not in (FLOAT, *OTHERS):
            raise ValueError(f"{name!r} cannot be {dtype}: inputs are {FLOAT}, {', '.join(OTHERS)}")
