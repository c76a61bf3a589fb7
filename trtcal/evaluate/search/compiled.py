"""What a compiler makes of a plan: the quantized model is built, and its layers are read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trtcal.backends.base import Backend, build
from trtcal.backends.options import BuildOptions
from trtcal.documents import Workplace
from trtcal.model import Model
from trtcal.quantization import QuantizedModel


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of one quantized model, or why it failed.

    `float_heavy` is the number of nodes asked in INT8 that did not get it. `layers` are in order: the
    nodes that each comes from, and the bytes that it reads and writes.
    """

    float_heavy: int | None = None
    layers: tuple[tuple[tuple[str, ...], int], ...] = ()
    failed: str | None = None

    @property
    def bytes_moved(self) -> int | None:
        """What all layers read and write, None where it failed."""
        return None if self.failed else sum(size_bytes for _, size_bytes in self.layers)


Compile = Callable[[QuantizedModel], Compiled]


def compiler(backend: Backend, options: BuildOptions, model: Model) -> Compile:
    """Return what builds a quantized form of a model and lists its layers."""

    def compile_(quantized: QuantizedModel) -> Compiled:
        with Workplace() as folder:
            variant = replace(model, proto=quantized.proto)
            engine = build(variant, backend, options, Path(folder))
        lost = sum(outcome.asked == "int8" and outcome.is_lost for outcome in engine.outcomes)
        return Compiled(lost, tuple((row.nodes, row.bytes_moved or 0) for row in engine.layers))

    return compile_
