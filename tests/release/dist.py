"""Build a release into dist/ and check it: `make dist`.

The version must be the tag's, if the commit has one, and have a section in CHANGELOG.md then; both
archives carry the commit. The source distribution and the wheel are built twice from what git tracks,
and must be equal byte for byte; a wheel built without the source distribution must be equal too. The
wheel is installed with locked versions into a bare environment outside of the tree. There the demo has
to give the digests and the verdict that the sources give. The SBOM (CycloneDX) lists that environment.
dist/ is replaced only if all of it holds.

    python -m tests.release.dist
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.release.archives import files_of, repack, sdist_faults, unpacked, wheel_faults
from tests.release.demo import differences
from tests.release.lock import LOCK, ROOT
from tests.release.sbom import write_sbom
from tests.release.versions import version_faults
from trtcal.cli.revision import DESCRIBE
from trtcal.errors import __version__

DIST = ROOT / "dist"


def main() -> int:
    """Build, check and keep a release; return the exit status."""
    os.environ["SOURCE_DATE_EPOCH"] = output("git", "log", "-1", "--format=%ct").strip()
    with TemporaryDirectory() as name:
        folder = Path(name)
        files, wrong = made(folder)
        for fault in wrong:
            print(f"dist: {fault}")
        if not wrong:
            keep(files)
    return int(bool(wrong))


def made(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files of a release, made in a folder, and what is wrong with them."""
    tree = tracked(folder / "tree")
    (tree / "trtcal" / "commit.txt").write_text(output("git", *DESCRIBE))
    files = files_of(tree)  # before setuptools writes beside them
    sdist, wheel = built(tree, folder / "release")
    wrong = (
        version_faults(__version__, output("git", "tag", "--points-at", "HEAD").split(), ROOT)
        + sdist_faults(sdist, files)
        + wheel_faults(wheel, files)
        + unequal([sdist, wheel], built(tree, folder / "again"))
    )
    wrong += unequal([wheel], [wheel_of(tree, folder / "direct")])
    python("twine", "check", "--strict", str(sdist), str(wheel))
    bare = installed(wheel, folder / "bare")
    wrong += differences(Path(sys.executable).parent, bare.parent, folder)
    return [sdist, wheel, write_sbom(bare, tree / "pyproject.toml", wheel)], wrong


def tracked(folder: Path) -> Path:
    """Copy what git tracks, as it is now, into a folder."""
    for name in filter(None, output("git", "ls-files", "-z").split("\0")):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)
    return folder


def built(tree: Path, folder: Path) -> tuple[Path, Path]:
    """Build a source distribution, and the wheel from it."""
    python("build", "--no-isolation", "--sdist", "--outdir", str(folder), str(tree))
    (sdist,) = folder.glob("*.tar.gz")
    repack(sdist, int(os.environ["SOURCE_DATE_EPOCH"]))
    return sdist, wheel_of(unpacked(sdist, folder / "unpacked"), folder)


def wheel_of(tree: Path, folder: Path) -> Path:
    """Build a wheel from a tree of sources."""
    python("build", "--no-isolation", "--wheel", "--outdir", str(folder), str(tree))
    (wheel,) = folder.glob("*.whl")
    return wheel


def unequal(
    files: list[Path] | tuple[Path, ...], others: list[Path] | tuple[Path, ...]
) -> list[str]:
    """Return a sentence for each file that another build made otherwise."""
    pairs = zip(files, others, strict=True)
    return [
        f"{one.name} is not the same in {other.parent.name}/: the build does not repeat"
        for one, other in pairs
        if one.read_bytes() != other.read_bytes()
    ]


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel with locked versions into a new environment without pip; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{wheel} --hash=sha256:{digest(wheel)}\n")
    interpreter = folder / "bin" / "python"
    into = ["--python", str(interpreter), "--disable-pip-version-check", "install", "--quiet"]
    python(
        "pip", *into, "--require-hashes", "--constraint", str(LOCK), "--requirement", str(wanted)
    )
    return interpreter


def keep(files: list[Path]) -> None:
    """Replace dist/ with a release and its digests."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for file in files:
        shutil.copy(file, DIST)
    sums = [f"{digest(file)}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def python(module: str, *arguments: str) -> None:
    """Run a module of this environment; stop if it fails, with what it printed."""
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{run.stdout}{run.stderr}dist: python -m {module} failed")


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
