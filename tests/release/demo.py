"""The demo from an installed wheel and from the sources: the same digests and the same verdict."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.release.lock import ROOT

SAMPLE = ROOT / "samples" / "classifier"
VERDICT = re.compile(r"^(SHIP|SHIP WITH CARE|DO NOT SHIP|INCONCLUSIVE): .*$", re.MULTILINE)
# What a run measures anew: times.
TIMED = ("build", "compare", "diagnose", "report")
DEMO = ["run", "trtcal.toml", "--target", "cpu"]


def differences(sources: Path, wheel: Path, folder: Path) -> list[str]:
    """Run the demo with two environments' commands; return what differs, or does not run."""
    loaded = trial(wheel / "python", ["-c", "import trtcal; print(trtcal.__file__)"], folder).stdout
    wrong = (
        [] if loaded.startswith(str(wheel.parent)) else [f"the wheel's trtcal is {loaded.strip()}"]
    )
    wrong += [
        broken for words in (["--help"], ["doctor"]) for broken in failing(wheel, words, folder)
    ]
    ours, theirs = demo(sources, folder / "sources"), demo(wheel, folder / "wheel")
    return wrong + [
        f"the demo's {name} is {theirs.get(name)} with the wheel, {value} with the sources"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]


def failing(programs: Path, words: list[str], folder: Path) -> list[str]:
    """Return a sentence if a command of trtcal does not end with 0."""
    run = trial(programs / "trtcal", words, folder)
    return [f"trtcal {words[0]} of the wheel: {run.stderr[-500:]}"] if run.returncode else []


def demo(programs: Path, folder: Path) -> dict[str, str]:
    """Run the sample where nothing of the tree is; return the verdict and the digest of each output."""
    place = folder / "samples" / "classifier"
    shutil.copytree(SAMPLE, place)
    run = trial(programs / "trtcal", DEMO, place)
    verdict = VERDICT.search(run.stdout)
    if not verdict:
        return {"verdict": f"missing, status {run.returncode}: {run.stderr[-500:]}"}
    stages = json.loads((folder / "reports" / "classifier" / "run.json").read_text())["stages"]
    digests = {one["output"]: one["digest"] for one in stages if one["stage"] not in TIMED}
    return {"verdict": verdict[1], **digests}


def trial(program: Path, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without the environment's own Python settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    environment["XDG_STATE_HOME"] = str(folder / "state")
    command = [str(program), *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
