"""The page docs/versions.md: what ran, what was compiled, what is read of, what was never tried.

python -m tests.docs.versions --write
"""

import re
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.reference.markdown import table
from tests.release.lock import LOCK, locked, version
from trtcal.config import tomllib
from trtcal.formats import FORMATS
from trtcal.model.graph import FP16_OPSET, MIN_OPSET

PAGE = ROOT / "docs" / "versions.md"
RESULTS = ROOT / "benchmarks" / "results"


def page() -> str:
    """Return the page, with what is known as data filled in."""
    values = facts()
    source = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    head = ["", "tried: ran, and where", "compiled only", "from documents only", "never tried"]
    names = ("what", "tried", "compiled", "documents", "never")
    cells = [[row[name].format_map(values) for name in names] for row in source["row"]]
    return str(source["page"]).format(matrix=table(head, cells), rtx_targets=values["rtx_targets"])


def facts() -> dict[str, str]:
    """Return what data say: versions, targets, opsets, Pythons."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    packages = re.findall(
        r"^tensorrt(_rtx)? (\d+)(\S+):", (RESULTS / "tensorrt_api.txt").read_text(), re.MULTILINE
    )
    ours = {major: major + rest for is_rtx, major, rest in packages if not is_rtx}
    targets = rtx_targets()
    capabilities = tomllib.loads((ROOT / "trtcal/evidence/gpus.toml").read_text())["capabilities"]
    others = {*capabilities} - {*targets, "sm87", "sm90", "sm110"}
    (least,) = (one for one in project["dependencies"] if one.startswith("onnxruntime>"))
    return {
        "trt8": ours["8"],
        "trt10": ours["10"],
        "trt11": ours["11"],
        "rtx": pins("tensorrt-rtx"),
        "ort": pins("onnxruntime"),
        "ort_least": least.rpartition("=")[2],
        "rtx_targets": ", ".join(targets[:-1]) + f" and {targets[-1]}",
        "named": ", ".join(
            f"{one} ({capabilities[one][0]})" for one in sorted(others, key=by_number)
        ),
        "least_opset": str(MIN_OPSET),
        "fp16_opset": str(FP16_OPSET),
        "int4_opset": str(FORMATS["int4"].opset),
        "nvfp4_opset": str(FORMATS["nvfp4"].opset),
        "top_opset": str(max(one.opset for one in FORMATS.values())),
        "pythons": f"{pythons[0]} to {pythons[-1]}",
    }


def pins(name: str) -> str:
    """Return the locked versions of a package."""
    found = [version(pin) for pin, _ in locked(LOCK.read_text()) if pin.name == name]
    return " and ".join(sorted({*found}, key=lambda one: [int(part) for part in one.split(".")]))


def rtx_targets() -> list[str]:
    """Return the targets of TensorRT-RTX that the record of what it was built for has."""
    (row,) = re.findall(
        r"^\| `tensorrt-rtx` \| ([^|]+) \|", (ROOT / "docs/backends.md").read_text(), re.M
    )
    return sorted({*re.findall(r"`(sm\d+)`", row)}, key=by_number)


def by_number(target: str) -> int:
    """Return the number of a compute capability, to sort by."""
    return int(target.removeprefix("sm"))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page())
