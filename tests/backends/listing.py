"""A second, plain reading of TensorRT-RTX's layer listing, to hold trtcal's own against."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

KERNEL = re.compile(
    r"LayerType: (correlation|deconv|gemm|fully_connected|runtime_fusion|fmha\w*), Inputs: (.*?), "
    r"Constants: (.*?), Outputs: .*Metadata: (.*)"
)


def precisions(log: Path) -> dict[str, set[str]]:
    """Return ONNX node -> types of the heavy kernels that list it: both operands Int8, or float.

    A `runtime_fusion` is one of float wherever it was seen: it expands what is narrow.
    """
    found = defaultdict(set)
    for line in log.read_text(errors="replace").splitlines():
        if match := KERNEL.search(line):
            operands = re.findall(r"Datatype: (\w+)", match[2] + match[3])[:2]
            narrow = operands == ["Int8", "Int8"] and match[1] != "runtime_fusion"
            for node in re.findall(r"\[ONNX Layer: ([^\]]+)\]", match[4]):
                found[node].add("int8" if narrow else "float")
    return dict(found)
