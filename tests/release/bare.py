"""Install trtcal in each way on each Python, in new folders, and run it there.

    python -m tests.release.bare [--python python3.12 ...] [--way "pip wheel" ...] [--no-run]
    python -m tests.release.bare --extras [--python python3.12 ...]

Prints a row of a table for each: seconds of the installation, MB on the disk (10^6 bytes, as `du`
counts them), and how `trtcal --version`, `trtcal doctor` and the demo ended. Packages come from the
index, or from the caches of pip and uv. The exit status is 0 if all of it works. `--extras` resolves
each extra alone.
"""

import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.release.demo import demo, trial
from tests.release.dist import built, output, tracked
from tests.release.lock import ROOT
from tests.release.versions import project
from trtcal.cli.revision import DESCRIBE

UV = [sys.executable, "-m", "uv", "--quiet"]
PIPX = [*UV, "tool", "run", "pipx"]
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")


@dataclass(frozen=True)
class Place:
    """Where an installation goes: a new folder, with a Python and what is installed."""

    folder: Path
    python: str
    tree: Path
    sdist: Path
    wheel: Path

    @property
    def programs(self) -> Path:
        """The folder of the programs."""
        return self.folder / "bin"

    def pip(self, what: Path) -> None:
        """Install with the pip of a new environment."""
        self.run(self.python, "-m", "venv", self.folder)
        self.run(self.programs / "python", "-m", "pip", "--quiet", "install", what)

    def uv(self, what: Path) -> None:
        """Install with uv into a new environment."""
        self.run(*UV, "venv", "--python", self.python, self.folder)
        self.run(*UV, "pip", "install", "--python", self.programs / "python", what)

    def uv_tool(self, what: Path) -> None:
        """Install as a tool of uv."""
        self.run(*UV, "tool", "install", "--python", self.python, what)

    def pipx(self, what: Path) -> None:
        """Install with pipx."""
        self.run(*PIPX, "install", "--quiet", "--python", self.python, what)

    def pipx_run(self, what: Path) -> None:
        """Run by pipx without an installation; later calls take the environment that it keeps."""
        self.programs.mkdir(parents=True)
        line = f'exec {" ".join(PIPX)} run --python {self.python} --spec {what} trtcal "$@"\n'
        (self.programs / "trtcal").write_text(f"#!/bin/sh\n{self.exports()}{line}")
        (self.programs / "trtcal").chmod(0o755)
        self.run(self.programs / "trtcal", "--help")

    def exports(self) -> str:
        """Return the lines of a shell that set where tools install."""
        return "".join(f"export {name}={value}\n" for name, value in self.settings().items())

    def settings(self) -> dict[str, str]:
        """Return the variables that have uv and pipx install into the folder."""
        names = {"UV_TOOL_DIR": "tools", "PIPX_HOME": "tools", "PIPX_SHARED_LIBS": "shared"}
        bins = dict.fromkeys(("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR"), str(self.programs))
        return {name: str(self.folder / place) for name, place in names.items()} | bins

    def run(self, *command: str | Path) -> None:
        """Run a program of the installation; `CalledProcessError` if it fails."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        own.pop("VIRTUAL_ENV", None)
        subprocess.run(command, check=True, capture_output=True, env=own | self.settings())


WAYS = {
    "pip install .": lambda place: place.pip(place.tree),
    "pip install trtcal.whl": lambda place: place.pip(place.wheel),
    "pip install trtcal.tar.gz": lambda place: place.pip(place.sdist),
    "uv pip install trtcal.whl": lambda place: place.uv(place.wheel),
    "uv tool install trtcal.whl": lambda place: place.uv_tool(place.wheel),
    "pipx install trtcal.whl": lambda place: place.pipx(place.wheel),
    "pipx run --spec trtcal.whl trtcal": lambda place: place.pipx_run(place.wheel),
}


def main() -> int:
    """Print the table; return the exit status."""
    parser = ArgumentParser()
    parser.add_argument("--python", action="append")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--extras", action="store_true")
    options = parser.parse_args()
    pythons = options.python or [name for name in PYTHONS if shutil.which(name)]
    if options.extras:
        return extras(pythons)
    works = True
    print("| Python | installed by | s | MB | --version | doctor | demo |")
    print("|---|---|---:|---:|---|---|---|")
    with archives() as (tree, sdist, wheel):
        for python in pythons:
            for way in options.way or WAYS:
                row = tried(python, way, (tree, sdist, wheel), not options.no_run)
                print("|", " | ".join(row), "|", flush=True)
                works = works and "fails" not in " ".join(row)
    return int(not works)


@contextmanager
def archives() -> Iterator[tuple[Path, Path, Path]]:
    """Make a tree of what git tracks, a source distribution and a wheel."""
    os.environ["SOURCE_DATE_EPOCH"] = output("git", "log", "-1", "--format=%ct").strip()
    with TemporaryDirectory() as name:
        tree = tracked(Path(name, "tree"))
        (tree / "trtcal" / "commit.txt").write_text(output("git", *DESCRIBE))
        yield tree, *built(tree, Path(name, "dist"))


def tried(python: str, way: str, sources: tuple[Path, Path, Path], runs: bool) -> list[str]:
    """Install in one way in a new folder; return the cells of its row."""
    with TemporaryDirectory() as name:
        place = Place(Path(name, "place"), shutil.which(python) or python, *sources)
        begin = perf_counter()
        try:
            WAYS[way](place)
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
            return [version_of(python), way, "-", "-", f"fails: {lines[-1]}", "-", "-"]
        cells = f"{perf_counter() - begin:.0f}", f"{disk(place.folder) / 1e6:.0f}"
        checks = [ended(place, Path(name), word) for word in ("--version", "doctor")]
        verdict = demo(place.programs, Path(name, "demo"))["verdict"] if runs else "-"
        return [version_of(python), way, *cells, *checks, verdict.replace("missing", "fails")]


def ended(place: Place, folder: Path, word: str) -> str:
    """Return how a command ended: what it printed, or why it fails."""
    run = trial(place.programs / "trtcal", [word], folder)
    if run.returncode:
        return f"fails: {run.stderr[-200:].strip()}"
    return run.stdout.strip() if word == "--version" else "works"


def disk(folder: Path) -> int:
    """Return the bytes on the disk of all below a folder."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def version_of(python: str) -> str:
    """Return the version of a Python, such as 3.12."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return output(shutil.which(python) or python, "-c", code).strip()


def extras(pythons: list[str]) -> int:
    """Print for each extra on each Python how many packages it resolves to, alone."""
    names = [name for name in project()["optional-dependencies"] if name != "dev"]
    versions = [version_of(python) for python in pythons]
    print(f"| extra | {' | '.join(versions)} |\n|---|{'---|' * len(versions)}")
    for name in names:
        print(
            f"| {name} | {' | '.join(resolved(name, version) for version in versions)} |",
            flush=True,
        )
    return 0


def resolved(extra: str, version: str) -> str:
    """Return the number of packages of an extra on a Python, or why they cannot be resolved."""
    words = ["pip", "compile", "--python-version", version, "--no-header", "--no-annotate"]
    command = [*UV, *words, "--extra", extra, str(ROOT / "pyproject.toml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if run.returncode:
        return "fails: " + " ".join(run.stderr.split())[:200]
    return str(sum("==" in line for line in run.stdout.splitlines()))


if __name__ == "__main__":
    sys.exit(main())
