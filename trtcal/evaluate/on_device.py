"""Models built on a device for one command, which needs no build folder of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trtcal.backends.base import Backend
from trtcal.backends.options import BuildOptions, with_sizes
from trtcal.backends.registry import find_backend
from trtcal.data import Dataset, size_ranges
from trtcal.documents import Workplace
from trtcal.errors import BackendError
from trtcal.evaluate.variants import (
    Crashes,
    Variant,
    open_candidates,
    open_engine,
    open_variant,
    timed_as,
)
from trtcal.model import Model, load_model
from trtcal.model.loaders import is_model

Source = tuple[Path, str | None]
"""The path of a model or a build, and its name; None for that of the file."""


def backend_on(name: str) -> tuple[Backend, str]:
    """Return the backend and target of a device, `NAME` or `@NAME`; `BackendError` if it lacks all."""
    backend, target = find_backend(None, f"@{name.removeprefix('@')}")
    if not (available := backend.availability()).works:
        raise BackendError(available.missing or "", available.hint)
    return backend, target


def open_on(
    name: str | None, sources: Sequence[Source], first: Model, data: Dataset, trust: bool = False
) -> Iterator[Variant]:
    """Build models on a device, for samples of these data, and open their engines.

    Without a device, and a build folder that fits the first model, all is opened as it is. What the
    device has built before is found there by its digest.
    """
    from trtcal.backends.building import build

    backend, target = backend_on(name) if name else (None, "")
    for path, known_as in sources:
        if backend is None or not is_model(path):
            yield open_variant(path, known_as, trust, first)
            continue
        model = load_model(path)
        options = with_sizes(BuildOptions(target), model, size_ranges(model, data))
        with Workplace() as folder:
            build(model, backend, options, Path(folder))
            yield open_engine(Path(folder), path, known_as)


def open_compared(
    sources: Sequence[Source], first: Model, data: Dataset, on: str | None, trust: bool = False
) -> tuple[Variant, list[Variant], Crashes]:
    """Return a reference, variants, and those that crash; on a device, where one is named.

    The reference is computed here in any case, in FP32.
    """
    if on:
        engine, *others = open_on(on, sources, first, data, trust)
        return timed_as(engine, sources[0][0]), others, ()
    paths, names = [path for path, _ in sources[1:]], [name for _, name in sources[1:]]
    reference = open_variant(*sources[0], trust, first)
    return reference, *open_candidates(paths, trust, first, names)
