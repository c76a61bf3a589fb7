"""A second, plain reading of TensorRT-RTX's layer listing, to hold trtcal's own against."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

LAYER = re.compile(
    r"Name: (.*?), LayerType: (\w+), Inputs: (.*?), Constants: (.*?), Outputs: .*Metadata: (.*)"
)
KINDS = {"correlation", "deconv", "gemm", "fully_connected", "runtime_fusion"}
ATTENTION = "_gemm_mha"  # a generated kernel of both products; its source takes int8 operands


def precisions(log: Path) -> dict[str, set[str]]:
    """Return ONNX node -> types of the heavy kernels that list it: both operands Int8, or float.

    A `runtime_fusion` is one of float wherever it was seen: it expands what is narrow.
    """
    found = defaultdict(set)
    for line in log.read_text(errors="replace").splitlines():
        match = LAYER.search(line)
        if match and (match[2] in KINDS or match[1].startswith(ATTENTION)):
            operands = re.findall(r"Datatype: (\w+)", match[3] + match[4])[:2]
            narrow = operands == ["Int8", "Int8"] and match[2] != "runtime_fusion"
            for node in re.findall(r"\[ONNX Layer: ([^\]]+)\]", match[5]):
                found[node].add("int8" if narrow else "float")
    return dict(found)
