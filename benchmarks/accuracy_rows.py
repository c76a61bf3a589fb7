"""The methods of `accuracy_table`, and the file of what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from benchmarks.peers import MODELOPT, NNCF, ORT

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "accuracy_table.json"
SINGLES = ("minmax", "percentile", "entropy", "mse")
DEFAULT = "auto"
IMPROVED = ("fast", "best")
OURS = {method: f"--method {method}" for method in (*SINGLES, DEFAULT)}
OURS |= {effort: f"--improve {effort}" for effort in IMPROVED}
"""Our methods, each with its option of `calibrate` or of `quantize`."""


@dataclass(frozen=True)
class Peer:
    """A method of another tool: its package, its program, and the settings of it."""

    package: str
    code: str
    settings: tuple[str, ...] = ()


PEERS = {
    "NNCF": Peer("nncf", NNCF),
    "NNCF mixed": Peer("nncf", NNCF, ("mixed",)),
    "NNCF transformer": Peer("nncf", NNCF, ("transformer",)),
    "ORT MinMax": Peer("onnxruntime", ORT, ("MinMax",)),
    "ORT Entropy": Peer("onnxruntime", ORT, ("Entropy",)),
    "ORT Percentile": Peer("onnxruntime", ORT, ("Percentile",)),
    "ModelOpt max": Peer("modelopt", MODELOPT, ("int8", "max")),
    "ModelOpt entropy": Peer("modelopt", MODELOPT, ("int8", "entropy")),
}


@dataclass(frozen=True)
class Row:
    """What a method made of a network; `refusal` is why TensorRT does not take the file.

    `db` has the SQNR of each output, None of one that is not finite. `metric` is the task's metric in
    %, and `float_metric` that of the float model.
    """

    network: str
    method: str
    source: str
    digest: str
    tool: str
    db: tuple[float | None, ...] = ()
    metric: float | None = None
    float_metric: float | None = None
    cpu_s: float | None = None
    peak_mb: float | None = None
    refusal: str = ""
    failed: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes a measurement another one: model, data, method and version of the tool."""
        return self.network, self.method, self.digest, " ".join(self.tool.split()[:2])


def read_results() -> list[Row]:
    """Return what was measured."""
    if not RESULTS.exists():
        return []
    rows: list[Mapping[str, object]] = json.loads(RESULTS.read_text())
    return [Row(**{**row, "db": tuple(row["db"])}) for row in rows]  # type: ignore[arg-type]


def is_known(row: Row, again: bool) -> bool:
    """Tell whether this was measured; with `again`, what failed or is of another commit was not."""
    same = [each for each in read_results() if each.key == row.key]
    return any(not again or (each.tool == row.tool and not each.failed) for each in same)


def keep(row: Row) -> None:
    """Write a row in place of the one of its network and method; several processes may do so."""
    with FileLock(ROOT / ".venv-networks" / "accuracy.lock"):
        rows = {(each.network, each.method): each for each in read_results()}
        rows[row.network, row.method] = row
        lines = [json.dumps(asdict(rows[key])) for key in sorted(rows)]
        RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
