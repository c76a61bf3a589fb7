"""The GPU of this machine as a device of trtcal: checked, then networks built, run and timed on it.

    python -m benchmarks.gpu.device FOLDER local|ssh|run|routes|precisions|bundle

`local` starts the worker here, `ssh` by Debian's sshd on the loopback; the others go on with `local`.
`run` is a whole run beside the estimate for the same GPU, `routes` has engines without Q/DQ,
`precisions` FP8, INT4 and NVFP4, `bundle` a bundle made and verified here. Prints what trtcal prints.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpu.stages import CLI, PYTHON, gpu

SAMPLES = Path("samples").absolute()
CONFIG = """model = "{samples}/digits/digits.onnx"
output = "run"
history = "history.sqlite"
[calibration]
data = "{samples}/digits/calibration.npz"
methods = ["percentile"]
[evaluation]
data = "{samples}/digits/test.npz"
[build]
targets = [{targets}]
"""
DIGITS = "calibrate {samples}/digits/digits.onnx --data {samples}/digits/calibration.npz"
VIT = "calibrate {samples}/vit/vit.onnx --data {samples}/classifier/calibration.npz"
QUANTIZE = "quantize {samples}/vit/vit.onnx"
ON_GPU = "--on gpu --rounds 200 --data {samples}"
COMMANDS = {
    "local": ["device check gpu", "device check gpu --json", "device clean gpu"],
    "ssh": ["device check gpu", "device check gpu --json", "device clean gpu"],
    "run": ["run"],
    "routes": [
        f"{DIGITS} --all-tensors -o all.json",
        *(
            f"build {{samples}}/digits/digits.onnx --target @gpu --route {route} --calibration all.json"
            f" -o {route}"
            for route in ("dynamic-ranges", "cache")
        ),
        f"compare {{samples}}/digits/digits.onnx dynamic-ranges cache {ON_GPU}/digits/test.npz",
    ],
    "precisions": [
        f"{VIT} -o vit.json",
        f"{QUANTIZE} --calibration vit.json --precision fp8 --rest fp16 -o fp8.onnx",
        f"{QUANTIZE} --precision int4 -o int4.onnx",
        f"{QUANTIZE} --precision nvfp4 -o nvfp4.onnx",
        *(
            f"compare {{samples}}/vit/vit.onnx {name}.onnx {ON_GPU}/classifier/test.npz"
            for name in ("fp8", "int4", "nvfp4")
        ),
    ],
    "bundle": ["run", "bundle run --variant int8-percentile -o bundle", "bundle verify bundle"],
}
VERDICT = 1  # of `run` and `compare`: a limit is broken, which is a result too


@contextlib.contextmanager
def reached(kind: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield how the device is reached, and the environment for it."""
    if kind != "ssh":
        yield "local:", {}
        return
    from tests.fixtures.sshd import a_device

    with a_device() as device:
        yield device.host, device.environment


def trtcal(folder: Path, environment: Mapping[str, str], words: list[str]) -> int:
    """Run a command of trtcal in a folder; return its status."""
    paths = os.pathsep.join(filter(None, [str(SAMPLES.parent), os.environ.get("PYTHONPATH")]))
    everything = {**os.environ, **environment, "PYTHONPATH": paths, "COLUMNS": "120"}
    print(f"$ trtcal {' '.join(words)}", flush=True)
    command, json = [PYTHON, "-c", CLI, *words], "--json" in words
    output = subprocess.PIPE if json else None
    done = subprocess.run(command, cwd=folder, env=everything, stdout=output, text=True)  # noqa: S603
    status = done.returncode
    if json and not status and '"GPU"' not in done.stdout:
        print("error: the device's hardware is not the GPU")
        return 3
    return 0 if status == VERDICT and words[0] in ("run", "compare") else status


def main() -> int:
    """Run the commands of a kind; return the first status that is not 0."""
    folder, kind = Path(sys.argv[1]).absolute() / f"device-{sys.argv[2]}", sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    here = (gpu() or {}).get("capability", "sm89")
    targets = {"run": f'"@gpu", "{here}"', "bundle": '"gpu"'}
    if kind in targets:
        (folder / "trtcal.toml").write_text(CONFIG.format(targets=targets[kind], samples=SAMPLES))
    result = 0
    with reached(kind) as (host, environment):
        add = f"device add gpu {host} --python {PYTHON} --folder {folder}/worker"
        for command in (add, *COMMANDS[kind]):
            words = command.format(samples=SAMPLES).split()
            result = result or trtcal(folder, {**environment, "XDG_STATE_HOME": str(folder)}, words)
    return result


if __name__ == "__main__":
    sys.exit(main())
