"""Converts a `.pt2` file, what `torch.export.save` writes; runs in a child process.

Loading one is to run it: `torch.export.load` unpickles parts of the archive where plain tensors do not
do, and evaluates the sizes in it as expressions of Python. So only a file that is trusted is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtcal.wings.frameworks.conversion import UnsafeError, work
from trtcal.wings.frameworks.pytorch import export


def convert(request: dict[str, Any], output: Path) -> dict[str, str]:
    """Write the ONNX of an exported program; its inputs and outputs keep their names."""
    if not request["trust"]:
        raise UnsafeError("torch.export.load unpickles parts of it and evaluates expressions in it")
    import torch

    export(torch.export.load(request["path"])).save(str(output))
    return {}


if __name__ == "__main__":
    work(convert)
