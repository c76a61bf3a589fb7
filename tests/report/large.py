"""A run of a network with hundreds of layers, with something of everything that a report shows."""

from __future__ import annotations

from pathlib import Path

from tests.report.samples import LOG, accuracy, build, comparison, latency, row, write_build
from tests.report.samples import write_run as write_small_run
from trtcal.backends.manifest import Build
from trtcal.checkup import write_diagnosis
from trtcal.compare.comparison import Gates
from trtcal.diagnosis import Diagnosis
from trtcal.findings import Cost, Evidence, Finding

CANDIDATES = ("int8-percentile", "int8-entropy", "int8-minmax")
FINDINGS = 60


def write_large_run(folder: Path, layers: int = 500) -> Path:
    """Write a run of three candidates, each with a build of so many layers; return `folder`."""
    rows = (
        row(CANDIDATES[0], accuracy(0.2, -0.3, 0.7), latency(1.0, 2.0)),
        row(CANDIDATES[1], accuracy(0.9, 0.1, 1.7), latency(1.1, 1.8)),
        row(CANDIDATES[2], accuracy(8.4, 6.0, 10.8), latency(0.9, 2.2)),
    )
    write_small_run(folder, comparison(*rows, gates=Gates(1.0, None), reference="backbone"))
    for number, name in enumerate(CANDIDATES):
        made = build(name, _outcomes(layers, number))
        place = folder / "builds" / f"{name}-sm89"
        write_build(place, made, LOG * 10)
        write_diagnosis(place, Diagnosis(_findings(made)))
    return folder


def _outcomes(layers: int, lost: int) -> dict[str, str]:
    """Return what each node got; every twelfth or so lost INT8, and every fortieth is not known."""
    nodes = [_node(number) for number in range(layers)]
    got = ["fp32" if number % (12 - 3 * lost) == 5 else "int8" for number in range(layers)]
    got[::40] = ["unknown"] * len(got[::40])
    return dict(zip(nodes, got, strict=True))


def _node(number: int) -> str:
    return f"backbone/stage{number // 100}/block{number // 10 % 10}/conv{number % 10}/Conv"


def _findings(made: Build) -> tuple[Finding, ...]:
    lost = [outcome.node for outcome in made.outcomes if outcome.is_lost][:FINDINGS]
    return tuple(
        Finding(
            *("silent_fallback", node, f"{node} was asked in INT8 and runs in FP32"),
            "its input has no range, so that TensorRT found no INT8 kernel for it",
            "observe its input tensor, or name the node in the plan as fp32",
            (
                Evidence("node", node, "asked int8, got fp32"),
                Evidence("log", f"build.log:{number + 1}", LOG),
            ),
            Cost(moved_bytes=1_000_000 // (number + 1), risk="low"),
        )
        for number, node in enumerate(lost)
    )
