"""The SBOM of a release, in CycloneDX 1.6: what a bare environment with the wheel holds."""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

# The one file in the wheel that others wrote; its first line has the version.
UPLOT = "trtcal/wings/fleet/templates/uplot.js"


def write_sbom(interpreter: Path, pyproject: Path, wheel: Path) -> Path:
    """Write what an environment holds beside a wheel, whose digest it has; return the file."""
    name, version = wheel.name.split("-")[:2]
    document = environment(interpreter, pyproject)
    root = document["metadata"]["component"]
    root |= {"version": version, "purl": f"pkg:pypi/{name}@{version}"}
    root["hashes"] = digests(wheel.read_bytes())
    document["components"].append(uplot(wheel))
    linked = next(one for one in document["dependencies"] if one["ref"] == root["bom-ref"])
    linked["dependsOn"].append("uplot")
    file = wheel.with_name(f"{name}-{version}.cdx.json")
    file.write_text(valid(json.dumps(document, indent=2) + "\n"))
    return file


def environment(interpreter: Path, pyproject: Path) -> dict[str, Any]:
    """Return cyclonedx-py's document of an environment, without what changes from run to run."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    command += ["--mc-type", "library", "--spec-version", "1.6", "--pyproject", str(pyproject)]
    run = subprocess.run([*command, str(interpreter)], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def uplot(wheel: Path) -> dict[str, Any]:
    """Return the component that the wheel carries with it."""
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(UPLOT)
    (version,) = re.findall(rb"\(v([\d.]+)\)", source.partition(b"\n")[0])
    return {
        "type": "library",
        "bom-ref": "uplot",
        "name": "uplot",
        "version": version.decode(),
        "purl": f"pkg:npm/uplot@{version.decode()}",
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": digests(source),
    }


def digests(data: bytes) -> list[dict[str, str]]:
    """Return CycloneDX's list of hashes of some bytes."""
    return [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]


def valid(text: str) -> str:
    """Return an SBOM unchanged; raise ValueError if CycloneDX's schema refuses it."""
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault:
        raise ValueError(f"the SBOM is not CycloneDX 1.6: {fault}")
    return text
