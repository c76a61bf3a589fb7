"""Models built on a device for one command, which needs no build folder of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trtcal.backends.base import Backend, build
from trtcal.backends.options import BuildOptions, with_sizes
from trtcal.backends.registry import find_backend
from trtcal.data import Dataset, size_ranges
from trtcal.documents import Workplace
from trtcal.errors import BackendError
from trtcal.evaluate.variants import Variant, open_engine, open_variant, timed_as
from trtcal.model import load_model
from trtcal.model.loaders import is_model


def backend_on(name: str) -> tuple[Backend, str]:
    """Return the backend and target of a device, `NAME` or `@NAME`; `BackendError` if it lacks all."""
    backend, target = find_backend(None, f"@{name.removeprefix('@')}")
    if not (available := backend.availability()).works:
        raise BackendError(f"device {target}: {available.missing}", available.hint)
    return backend, target


def open_on(
    name: str, sources: Sequence[tuple[Path, str | None]], data: Dataset, trust: bool = False
) -> Iterator[Variant]:
    """Build models on a device, for samples of these data, and open their engines.

    `sources` are paths with names; the first is a model. A build folder is opened as it is. What the
    device has built before is found there by its digest.
    """
    backend, target = backend_on(name)
    first = load_model(sources[0][0])
    for path, known_as in sources:
        if not is_model(path):
            yield open_variant(path, known_as, trust, first)
            continue
        model = load_model(path)
        options = with_sizes(BuildOptions(target), model, size_ranges(model, data))
        with Workplace() as folder:
            build(model, backend, options, Path(folder))
            yield open_engine(Path(folder), path, known_as)


def compared_on(
    name: str, sources: Sequence[tuple[Path, str | None]], data: Dataset, trust: bool = False
) -> list[Variant]:
    """Return a reference, computed in FP32 here and timed on a device, and variants opened there."""
    engine, *others = open_on(name, sources, data, trust)
    return [timed_as(engine, sources[0][0]), *others]
