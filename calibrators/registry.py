"""Calibrators by name: those of this package, those registered in code, those of other packages.

A package adds its own with an entry point in the group `trtcal.calibrators`, whose value is a class
or function that takes the calibrator's parameters as keywords and returns a calibrator.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from calibrators.range import Calibrator

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "trtcal.calibrators"
BUILT_IN = {kind.lower(): kind for kind in ("Auto", "Entropy", "MinMax", "MSE", "Percentile")}

Factory = Callable[..., Calibrator]
_registered: dict[str, Factory] = {}


class UnknownCalibratorError(LookupError):
    """No calibrator has this name."""


def register(name: str, factory: Factory) -> None:
    """Make `create(name, **parameters)` call `factory(**parameters)` in this process."""
    _registered[name] = factory


def names() -> list[str]:
    """Return the names of all calibrators that `create` knows, sorted."""
    return sorted({*_registered, *BUILT_IN, *_entry_points()})


def create(name: str, **parameters: object) -> Calibrator:
    """Return the calibrator `name`; `UnknownCalibratorError`, or `ValueError` for its parameters."""
    try:
        return _factory(name)(**parameters)
    except TypeError as error:
        raise ValueError(f"calibrator {name!r} does not take these parameters: {error}") from error


def _factory(name: str) -> Factory:
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        factory: Factory = getattr(import_module("calibrators.methods"), BUILT_IN[name])
        return factory
    if (entry := _entry_points().get(name)) is None:
        raise UnknownCalibratorError(f"unknown calibrator {name!r}")
    loaded: Factory = entry.load()
    return loaded


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # it takes as long as a small calibration

    return {point.name: point for point in entry_points(group=GROUP)}
