"""Backends by name."""

from __future__ import annotations

from trtcal.backends.base import Backend
from trtcal.backends.onnxruntime import OnnxRuntime
from trtcal.backends.targets import PROVIDERS
from trtcal.backends.tensorrt import TensorRT, TensorRTRTX
from trtcal.errors import InputError

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (OnnxRuntime(), TensorRTRTX(), TensorRT())
}


def find_backend(name: str | None, target: str | None) -> tuple[Backend, str]:
    """Return the backend and target for what was given; either may be left out.

    `InputError` if there is no such backend or it has no such target.
    """
    backend = BACKENDS.get(name or _backend_for(target))
    if backend is None:
        raise InputError(f"unknown backend {name!r}", f"choose one of: {', '.join(BACKENDS)}")
    chosen = target or backend.default_target
    backend.check_target(chosen)
    return backend, chosen


def _backend_for(target: str | None) -> str:
    if target is None or target in PROVIDERS:
        return "onnxruntime"
    return "tensorrt" if target == "gpu" else "tensorrt-rtx"
