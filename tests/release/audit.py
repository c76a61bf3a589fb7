"""Known vulnerabilities of the locked packages, by pip-audit: `make audit`.

Every version in the lock file is asked for, also those that only another Python installs. The exit
status is 0 if none has a known vulnerability, 1 if one has, 2 if pip-audit failed, and 3 if the service
did not answer for all of them: the audit is not made then, and CI goes on.

    python -m tests.release.audit [OPTION OF PIP-AUDIT ...]    # such as --vulnerability-service osv
"""

import json
import subprocess
import sys
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.release.lock import LOCK, locked, version

QUIET = ["--progress-spinner", "off", "--timeout", "5", "--format", "json", "--desc", "off"]
# How pip-audit's errors begin when a service cannot be reached, or answers with an error.
NO_SERVICE = ("requests.exceptions.", "pip_audit._service.")


def main(lock: Path = LOCK, options: list[str] | None = None) -> int:
    """Ask for every version of a lock file, print what is known, and return the exit status."""
    packages: list[dict[str, Any]] = []
    for pins in rounds(lock):
        run = ask(pins, sys.argv[1:] if options is None else options)
        if not run.stdout.strip():
            return failed((run.stderr.strip().splitlines() or ["no output"])[-1])
        packages += json.loads(run.stdout)["dependencies"]
    return printed(packages)


def rounds(lock: Path) -> list[str]:
    """Return the versions of a lock file as requirements, with each package once in each text."""
    versions = defaultdict(list)
    for pin, _ in locked(lock.read_text()):
        versions[pin.name].append(f"{pin.name}=={version(pin)}\n")
    return ["".join(filter(None, one)) for one in zip_longest(*versions.values())]


def ask(pins: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on versions, without resolving anything."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "pins.txt")
        file.write_text(pins)
        files = ["--no-deps", "--disable-pip", "--requirement", str(file)]
        command = [sys.executable, "-m", "pip_audit", *files, *QUIET, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def failed(reason: str) -> int:
    """Say why pip-audit has no result; return the exit status."""
    if reason.startswith(NO_SERVICE):
        return not_made(reason.partition(":")[0])
    print(f"audit: pip-audit failed: {reason}")
    return 2


def printed(packages: list[dict[str, Any]]) -> int:
    """Print the vulnerabilities that pip-audit found; return the exit status."""
    found = [(one, hole) for one in packages for hole in one.get("vulns", [])]
    for one, hole in found:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"audit: {one['name']} {one['version']}: {hole['id']}, fixed in {fixed}")
    unanswered = [one["name"] for one in packages if "skip_reason" in one]
    if found:
        return 1
    if unanswered:
        return not_made(f"no answer for {len(unanswered)} of {len(packages)} packages")
    print(f"audit: {len(packages)} locked versions, no known vulnerability")
    return 0


def not_made(reason: str) -> int:
    """Say that nothing is known; return the exit status for it."""
    print(f"audit: not made, the service cannot be reached ({reason})")
    return 3


if __name__ == "__main__":
    sys.exit(main())
