"""The engines of a run that are on devices: compared on the first device, timed on the others too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trtcal.config import Config, is_device
from trtcal.data import Dataset
from trtcal.evaluate.comparison import Comparison
from trtcal.evaluate.latency import measure_on_device
from trtcal.evaluate.target_times import of_latency
from trtcal.evaluate.variants import (
    Crashes,
    Variant,
    open_candidates,
    open_engine,
    open_variant,
    timed_as,
)
from trtcal.evidence.manifest import MANIFEST

Group = tuple[Variant, Sequence[Variant], Crashes]
"""A reference, the variants that are compared with it, and those that crash."""


@dataclass(frozen=True)
class Engines:
    """The engines in a run's folder; `model` is the file of the reference."""

    folder: Path
    config: Config
    model: Path

    @cached_property
    def references(self) -> dict[str, Variant]:
        """The engines of the reference, by their devices."""
        targets = filter(is_device, self.config.build.run_targets)
        opened = {device: self.open(self.model, device) for device in targets}
        return {device: engine for device, engine in opened.items() if engine}

    def open(self, path: Path, device: str) -> Variant | None:
        """Open a model's engine on a device, None where it has none."""
        folder = self.folder / "builds" / f"{path.stem}-{device}"
        return open_engine(folder, path) if (folder / MANIFEST).is_file() else None

    def groups(self, variants: Sequence[Path]) -> Iterator[Group]:
        """Yield variants with what they are compared by: an engine on the first device, else ONNX.

        The reference is computed here in any case, and timed where its variants are.
        """
        device, reference = next(iter(self.references.items()), (None, None))
        engines = {path: device and self.open(path, device) for path in variants}
        on_device = [engine for engine in engines.values() if engine]
        if reference and on_device:
            yield timed_as(reference, self.model), on_device, ()
        rest = [path for path, engine in engines.items() if not engine]
        if rest or not on_device:
            others, crashes = open_candidates(rest)
            missing = device or next(filter(is_device, self.config.build.run_targets), None)
            yield open_variant(self.model), [_without(each, missing) for each in others], crashes

    def timed(self, comparison: Comparison, variants: Sequence[Path], data: Dataset) -> Comparison:
        """Return the comparison with times on the devices after the first one."""
        paths = {path.stem: path for path in (self.model, *variants)}
        for device in [*self.references][1:]:
            opened = (self.open(paths[row.name], device) for row in comparison.rows)
            engines, feeds = [*filter(None, opened)], next(data.batches(comparison.batch))
            sessions = [engine.session for engine in engines]
            latencies = measure_on_device(sessions, feeds, self.config.evaluation.rounds)
            timed = zip(engines, map(of_latency, latencies), strict=True)
            comparison = comparison.with_times({engine.model: (time,) for engine, time in timed})
        return comparison


def _without(variant: Variant, device: str | None) -> Variant:
    """Return a variant that says that it has no engine on the device, where there is one."""
    if device is None:
        return variant
    note = f"it has no engine on {device}: its ONNX model is compared and timed on this CPU"
    return replace(variant, floats="; ".join(filter(None, (note, variant.floats))))
