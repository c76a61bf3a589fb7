"""The lock file: which versions, for which Pythons, with which hashes."""

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
LOCK = ROOT / "requirements.lock"


def locked(text: str) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of a lock file with its hashes, `sha256:...`."""
    lines = text.replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [
        (Requirement(pin.split(" --hash=")[0]), re.findall(r"--hash=(\S+)", pin)) for pin in pins
    ]


def version(pin: Requirement) -> str:
    """Return the one version that a requirement of a lock file allows."""
    (only,) = pin.specifier
    return only.version
