"""`nncf.quantize_with_accuracy_control` on the samples of a search, in a Python that has NNCF."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import json, sys, time
import numpy as np, nncf, openvino as ov
model, calibration, test, count, drop, out = sys.argv[1:]
given = ov.convert_model(model)
name = given.inputs[0].get_any_name()
data = np.load(calibration)[name]
with np.load(test) as held:
    count = int(count)
    images, labels = held[name][:count], held["labels"][:count]
calls = []
def judge(compiled, items):
    calls.append(time.time())
    right = []
    for x, y in items:
        right.append(float(np.argmax(next(iter(compiled(x).values())), -1)[0] == y))
    return float(np.mean(right)), right
rows = [data[i:i + 1] for i in range(len(data))]
items = [(images[i:i + 1], int(labels[i])) for i in range(count)]
start = time.time()
made = nncf.quantize_with_accuracy_control(
    given, nncf.Dataset(rows), nncf.Dataset(items, lambda item: item[0]),
    validation_fn=lambda compiled, found: judge(compiled, items),
    max_drop=float(drop) / 100, drop_type=nncf.DropType.ABSOLUTE, subset_size=len(rows),
    fast_bias_correction=True,
)
seconds = time.time() - start
plain, control = (judge(ov.compile_model(one), items)[0] for one in (given, made))
layers = ("Convolution", "GroupConvolution", "MatMul", "Add")
floats = []
for op in made.get_ordered_ops():
    if op.get_type_name() in layers:
        before = [one.get_source_output().get_node() for one in op.inputs()]
        if any(one.get_friendly_name().endswith("/WithoutBiases") for one in before):
            continue  # the addition of a bias
        read = before[:2 if op.get_type_name() == "Add" else 1]
        if all(one.get_type_name() != "FakeQuantize" for one in read):
            floats.append(op.get_friendly_name().removesuffix("/WithoutBiases"))
json.dump({"seconds": seconds, "evaluations": len(calls) - 2, "float": floats,
           "drop": 100 * (plain - control)}, open(out, "w"))
"""


@dataclass(frozen=True)
class Controlled:
    """What NNCF made: layers left in float, points of top-1 lost, and what that took."""

    float_layers: tuple[str, ...]
    drop: float
    evaluations: int
    seconds: float


def control(
    python: str, model: Path, calibration: Path, test: Path, samples: int, max_drop: float
) -> Controlled | str:
    """Let NNCF keep a drop (points of top-1) on the first samples; a sentence where it cannot."""
    known = _run(python, "import nncf, openvino, onnx")
    if known.returncode:
        return f"NNCF is skipped: {python} has not all of nncf, openvino and onnx"
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out.json"
        done = _run(python, PROGRAM, model, calibration, test, samples, max_drop, out)
        if done.returncode:
            last = [f"status {done.returncode}", *done.stderr.strip().splitlines()][-1]
            return f"NNCF did not finish: {last[:300]}"
        found = json.loads(out.read_text())
    return Controlled(tuple(found["float"]), found["drop"], found["evaluations"], found["seconds"])


def _run(python: str, program: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # the user names the Python
        [python, "-c", program, *map(str, words)], capture_output=True, text=True, check=False
    )
