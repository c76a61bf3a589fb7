"""How ranges and precisions reach TensorRT: as Q/DQ in the model, or up to TensorRT 10 beside it.

| route | what TensorRT gets |
|---|---|
| `qdq` | a model with Q/DQ; every version takes it, TensorRT 11 and TensorRT-RTX nothing else |
| `cache` | a calibrator object that answers with our ranges as its cache, so that no inference is run |
| `dynamic-ranges` | our ranges, tensor by tensor |
| `calibrator` | a calibrator object that feeds our data to TensorRT's own algorithm |

All but `qdq` have not been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtcal.config import ImagesConfig
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec

CACHE = "calibration.cache"  # what TensorRT's own algorithm chose from our data
QDQ = "qdq"
ROUTES = (QDQ, "cache", "dynamic-ranges", "calibrator")
CONSTRAINTS = ("obey", "prefer")
KINDS = ("entropy2", "minmax", "entropy")
USE_QDQ = "quantize the model (`trtcal quantize`) and leave --route out"


@dataclass(frozen=True)
class Route:
    """One way to INT8, with what it needs.

    `ranges` are amaxes by tensor, `precisions` what the plan asks for each node; `constraints` hold
    TensorRT to it, which takes what is fastest without them. `kind` is the class of calibrator, `data`
    what it feeds, with `images` if that is a folder of pictures. `calibration` is the digest of where
    the ranges came from.
    """

    name: str = QDQ
    ranges: Mapping[str, float] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    constraints: str | None = None
    kind: str = "entropy2"
    data: Path | None = None
    images: ImagesConfig | None = None
    calibration: str | None = None

    def __post_init__(self) -> None:
        _one_of(self.name, ROUTES, "route")
        _one_of(self.constraints, (None, *CONSTRAINTS), "constraints")
        _one_of(self.kind, KINDS, "calibrator")
        fed, ranged = self.name == "calibrator", self.name in ("cache", "dynamic-ranges")
        if ranged != bool(self.ranges) or fed != (self.data is not None):
            needs = "data" if fed else "ranges" if ranged else "a model with Q/DQ"
            raise InputError(f"route {self.name!r} takes {needs}, and only that", "see --help")
        if self.name == QDQ and (self.precisions or self.constraints):
            raise InputError(
                "route 'qdq' takes its plan from the model's Q/DQ", "give it to `trtcal quantize`"
            )

    def check(self, backend: str, model: Model) -> None:
        """`InputError` if a backend does not have this way, or TensorRT would ignore it."""
        if self.name == QDQ:
            return
        if backend != "tensorrt":
            raise InputError(f"backend {backend!r} has no route {self.name!r}, only qdq", USE_QDQ)
        if any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node):
            raise InputError(
                f"{model.path} has Q/DQ, with which TensorRT ignores or refuses calibrators and ranges",
                "give the float model, or leave --route out",
            )

    def asked(self, found: Mapping[str, str]) -> dict[str, str]:
        """Return what is asked for each node of a model whose Q/DQ and types ask for `found`."""
        return {name: self.precisions.get(name, precision) for name, precision in found.items()}

    def record(self) -> dict[str, str]:
        """Return what a build's manifest says of it."""
        said = {"route": self.name, "calibration": self.calibration}
        return {} if self.name == QDQ else {key: text for key, text in said.items() if text}

    def to_request(
        self, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the worker gets, as JSON; `shapes` are the ranges of dynamic inputs."""
        body = {
            "route": self.name,
            "ranges": dict(self.ranges),
            "precisions": dict(self.precisions),
            "constraints": self.constraints,
            "kind": self.kind,
        }
        if self.data is None:
            return body
        return {
            **body,
            "data": str(self.data.absolute()),
            "images": asdict(self.images) if self.images else None,
            "feeds": {spec.name: _fed(spec, shapes) for spec in inputs},
            "types": {spec.name: _type(spec) for spec in inputs},
        }


def _fed(spec: TensorSpec, shapes: Mapping[str, Any]) -> list[int]:
    """Return the shape that the builder calibrates an input with: its optimum."""
    return list(shapes[spec.name][1] if spec.name in shapes else spec.shape)


def _type(spec: TensorSpec) -> str:
    """Return the type that the builder calibrates an input with: no float but float32."""
    return "float32" if spec.dtype.startswith("float") else spec.dtype


def _one_of(value: str | None, known: tuple[str | None, ...], what: str) -> None:
    if value not in known:
        raise InputError(
            f"unknown {what} {value!r}", f"choose one of: {', '.join(filter(None, known))}"
        )
