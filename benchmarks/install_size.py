"""What `pip install trtcal` puts on the disk, by package, and what each costs to leave out.

    python -m benchmarks.install_size [python3.12] [--page docs/install.md]

Makes a virtual environment with this Python, installs the sources there without extras, and prints a
table: for each package that trtcal names, its MB, what only it needs, the MB of all that, and what is
lost. With `--page` the table of that page is replaced. MB are 10^6 bytes of disk blocks, as `du`
counts them, with the modules that pip compiles.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.dist import tracked

START, END = "<!-- sizes -->\n", "<!-- end of sizes -->\n"
LOST = {
    "click": "the command line",
    "filelock": "several processes on one folder",
    "flatbuffers": "models of TensorFlow Lite",
    "google-re2": "patterns of users, without a bound of time",
    "jinja2": "reports",
    "matplotlib": "charts of reports",
    "ml-dtypes": "FP8, INT4, bfloat16",
    "numba": "values are counted by numpy, which is slower",
    "numpy": "everything",
    "onnx": "everything",
    "onnx-graphsurgeon": "preparation passes",
    "onnxruntime": "the reference in FP32, INT8 on the CPU",
    "pillow": "folders of images",
    "polygraphy": "builds with TensorRT",
    "rich": "tables and progress",
    "scipy": "intervals and tests, the search of plans",
    "threadpoolctl": "limits of threads",
    "tomli": "`trtcal.toml` on Python 3.10",
}


def main() -> None:
    """Install, measure, and print or write the table."""
    parser = ArgumentParser()
    parser.add_argument("python", nargs="?", default=sys.executable)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        table = table_of(*measured(options.python, Path(folder)))
    if options.page:
        before, _, rest = options.page.read_text().partition(START)
        options.page.write_text(before + START + "\n" + table + "\n" + END + rest.partition(END)[2])
    else:
        print(table, end="")


def measured(python: str, folder: Path) -> tuple[str, dict[str, int], dict[str, set[str]]]:
    """Return the Python's version, the bytes of each package, and the packages that each needs."""
    output(python, "-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    output(*pip, "install", "--quiet", tracked(folder / "tree"))
    inspected = json.loads(output(*pip, "inspect", "--local"))
    environment = {**inspected["environment"], "extra": ""}
    packages = {
        canonicalize_name(item["metadata"]["name"]): item for item in inspected["installed"]
    }
    sizes = {name: size_of(Path(item["metadata_location"])) for name, item in packages.items()}
    needs = {name: needed(item["metadata"], environment) for name, item in packages.items()}
    return environment["python_version"], sizes, needs


def output(*command: str | Path) -> bytes:
    """Return what a program prints."""
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603  # Python and pip
    return run.stdout


def size_of(metadata: Path) -> int:
    """Return the bytes on the disk of the files of a package, by its RECORD."""
    lines = (metadata / "RECORD").read_text().splitlines()
    files = {(metadata.parent / line.rsplit(",", 2)[0].strip('"')).resolve() for line in lines}
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


def needed(metadata: dict[str, Any], environment: dict[str, str]) -> set[str]:
    """Return the names of the packages that a package needs in an environment."""
    wanted = [Requirement(text) for text in metadata.get("requires_dist", [])]
    return {
        canonicalize_name(item.name)
        for item in wanted
        if not item.marker or item.marker.evaluate(environment)
    }


def closure(names: set[str], needs: dict[str, set[str]], without: str = "") -> set[str]:
    """Return names with all that they need, as it is without one package."""
    reached: set[str] = set()
    left = names - {without}
    while left:
        reached |= left
        left = set().union(*(needs[name] for name in left)) - reached - {without}
    return reached


def table_of(version: str, sizes: dict[str, int], needs: dict[str, set[str]]) -> str:
    """Return the table in Markdown, the largest first."""
    everything = closure({"trtcal"}, needs)
    rows = []
    for name in needs["trtcal"]:
        gone = everything - closure({"trtcal"}, needs, name)
        others = ", ".join(sorted(gone - {name})) or "-"
        rows.append((sum(sizes[other] for other in gone), name, others))
    total = mb(sum(sizes[name] for name in everything))
    head = "| package | MB | with it go | MB in total | without it |\n|---|---:|---|---:|---|\n"
    lines = [
        f"| {name} | {mb(sizes[name])} | {others} | {mb(gone)} | {LOST[name]} |\n"
        for gone, name, others in sorted(rows, reverse=True)
    ]
    own = f"| trtcal | {mb(sizes['trtcal'])} | - | - | - |\n"
    title = f"Python {version}, {len(everything)} packages, {total} MB:\n\n"
    return title + head + "".join(lines) + own


def mb(size: int) -> str:
    """Return bytes in MB, with a decimal below 10."""
    return f"{size / 1e6:.0f}" if size >= 1e7 else f"{size / 1e6:.1f}"


if __name__ == "__main__":
    main()
