"""What a search gains from FP8, INT4 and NVFP4 beside INT8 and FP16, on the network of samples/vit.

    python -m benchmarks.precision_fronts

Two runs of `trtcal search` for each target and goal: among INT8 and FP16 alone, and among all that the
target has. Times are estimates from the datasheet, losses are measured on the test images. A plan of
the first front is beaten where one of the second costs less and loses no more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.int8_speed import describe_machine

ROOT = Path(__file__).parent.parent
VIT, IMAGES = ROOT / "samples" / "vit" / "vit.onnx", ROOT / "samples" / "classifier"
TARGETS = {"sm89": ("l4", "int8,fp8,int4"), "sm120": ("rtx-5090", "int8,fp8,int4,nvfp4")}
COSTS = {"fastest": ("cost_ms", 1e3, "us"), "smallest": ("size_mb", 1e3, "kB")}
RESULT = ROOT / "benchmarks" / "results" / "precision_fronts.txt"


def trtcal(*words: object) -> None:
    """Run a command of the user's, which may end with a verdict."""
    command = [Path(sys.executable).with_name("trtcal"), *map(str, words)]
    done = subprocess.run(command, capture_output=True)  # noqa: S603
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.decode())


def search(folder: Path, ranges: Path, gpu: str, precisions: str, goal: str) -> dict[str, Any]:
    """Return the document of one search."""
    out = folder / f"{gpu}-{precisions}-{goal}"
    data = IMAGES / "test.npz"
    given = ["--calibration", ranges, "--data", data, "--limit", "top1 >= -0.5", "-o", out]
    trtcal("search", VIT, *given, "--gpu", gpu, "--precisions", precisions, "--goal", goal)
    document: dict[str, Any] = json.loads((out / "search.json").read_text())
    return document


def rows(document: dict[str, Any], goal: str) -> list[tuple[float, float, float, str]]:
    """Return cost, loss, change of top-1 and what is in it, for every plan of a front."""
    name, factor, _ = COSTS[goal]
    found = []
    for one in document["front"]:
        kinds = Counter(one["narrow_layers"].values())
        kinds["fp16"] = len(one["float_layers"])
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()) if count)
        top1 = 0.0 - one["loss"]["top1_drop"]
        found.append((one[name] * factor, one["loss"]["kl"], top1, what or "all INT8"))
    return found


def main() -> None:
    """Search, and print both fronts of each target and goal."""
    lines = [describe_machine(), ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranges = folder / "calibration.json"
        trtcal("calibrate", VIT, "--data", IMAGES / "calibration.npz", "-o", ranges)
        for target, (gpu, every) in TARGETS.items():
            for goal, (_, _, unit) in COSTS.items():
                fronts = {
                    one: rows(search(folder, ranges, gpu, one, goal), goal)
                    for one in ("int8", every)
                }
                for precisions, front in fronts.items():
                    lines.append(f"{target} ({gpu}), {goal}, {precisions} and fp16:")
                    lines += [
                        f"  {cost:9.3f} {unit}  KL {kl:.2e}  top-1 {top1:+.2f}  {what}"
                        for cost, kl, top1, what in front
                    ]
                beaten = sum(
                    any(other[0] < cost and other[1] <= kl for other in fronts[every])
                    for cost, kl, *_ in fronts["int8"]
                )
                lines += [f"  beaten: {beaten} of {len(fronts['int8'])}", ""]
    RESULT.write_text("\n".join(lines))
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
