"""Which layer runs in which precision."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from trtcal.errors import InputError
from trtcal.storage import Document, read_document, read_json, seal, write_document

KIND = "plan"
PRECISIONS = ("int8", "fp32")


@dataclass(frozen=True)
class Plan:
    """A precision for every layer: `layers` by node name, `default` for all others."""

    default: str = "int8"
    layers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, precision in [("default", self.default), *self.layers.items()]:
            if precision not in PRECISIONS:
                raise InputError(
                    f"plan: {name!r} has precision {precision!r}",
                    f"choose one of: {', '.join(PRECISIONS)}",
                )

    def precision(self, layer: str) -> str:
        """Return what is asked for a layer."""
        return self.layers.get(layer, self.default)

    def check(self, known: Collection[str]) -> None:
        """`InputError` if the plan names a layer that is not among `known`."""
        for name in self.layers:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3) or sorted(known)[:5]
                raise InputError(
                    f"the plan names layer {name!r}, which the model has not, or cannot quantize",
                    f"did you mean: {', '.join(close)}",
                )

    def to_document(self) -> Document:
        """Return the plan as a sealed document."""
        body = {"default": self.default, "layers": self.layers}
        return seal({"kind": KIND, "schema_version": 1, **body})


def write_plan(path: Path, plan: Plan) -> Document:
    """Write `plan.json`."""
    return write_document(path, plan.to_document())


def read_plan(path: Path) -> Plan:
    """Read a plan that trtcal or a person wrote: `{"default": "int8", "layers": {"name": "fp32"}}`."""
    document = read_json(path)
    if isinstance(document, dict) and "digest" in document:
        document = read_document(path, KIND)
    hint = 'write {"default": "int8", "layers": {"layer name": "fp32"}}'
    if not isinstance(document, dict) or document.get("kind", KIND) != KIND:
        raise InputError(f"{path} is not a plan", hint)
    layers, default = document.get("layers", {}), document.get("default", "int8")
    strings = isinstance(layers, dict) and all(isinstance(item, str) for item in layers.values())
    if not strings or not isinstance(default, str):
        raise InputError(f"{path}: layers must map names to precisions", hint)
    unknown = set(document) - {"kind", "schema_version", "digest", "layers", "default"}
    if unknown:
        raise InputError(f"{path} has unknown fields: {', '.join(sorted(unknown))}", hint)
    return Plan(default, layers)
