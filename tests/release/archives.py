"""What is in a source distribution and in a wheel, and what must not be."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGES = ("trtcal", "calibrators")
# Beside the packages, a wheel has its metadata alone.
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
# What building adds to a source distribution.
ADDED = ("PKG-INFO", "setup.cfg", "trtcal.egg-info/")


def files_of(tree: Path) -> set[str]:
    """Return the files below a folder, by their paths in it."""
    return {str(one.relative_to(tree)) for one in tree.rglob("*") if one.is_file()}


def sdist_faults(sdist: Path, files: set[str]) -> list[str]:
    """Return what a source distribution lacks of files, and what it has beside them."""
    with tarfile.open(sdist) as archive:
        held = {one.name.partition("/")[2] for one in archive if one.isfile()}
    return compared(sdist.name, {one for one in held if not one.startswith(ADDED)}, files)


def wheel_faults(wheel: Path, files: set[str]) -> list[str]:
    """Return what a wheel lacks of the packages and licences among files, and what it has too much."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    info = next(one for one in held if ".dist-info/" in one).partition("/")[0]
    licences = {one for one in files if PurePosixPath(one).name.endswith("LICENSE")}
    wanted = {one for one in files if PurePosixPath(one).parts[0] in PACKAGES}
    wanted |= {f"{info}/{one}" for one in METADATA} | {f"{info}/licenses/{one}" for one in licences}
    return compared(wheel.name, held, wanted)


def compared(name: str, held: set[str], wanted: set[str]) -> list[str]:
    """Return a sentence for each file that an archive lacks, or has too much."""
    lacking = [f"{name} lacks {one}" for one in sorted(wanted - held)]
    return lacking + [f"{name} must not hold {one}" for one in sorted(held - wanted)]


def repack(sdist: Path, epoch: int) -> None:
    """Write a source distribution anew, sorted, with one time and no owner, so that it repeats.

    setuptools takes times and owners from the files (reproducible-builds.org, "Archive metadata").
    """
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as archive,
        gzip.GzipFile("", "wb", 9, packed, epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        members = [one for one in archive if one.isfile()]
        for member in sorted(members, key=lambda one: one.name):
            out.addfile(plain(member, epoch), archive.extractfile(member))
    sdist.write_bytes(packed.getvalue())


def plain(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    """Return an entry with its name, its size and whether it runs, without owner and time."""
    entry = tarfile.TarInfo(member.name)
    entry.size, entry.mtime = member.size, epoch
    entry.mode = 0o755 if member.mode & 0o100 else 0o644
    return entry


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution; return the one folder in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree
