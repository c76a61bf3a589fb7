"""Reads mutated inputs through the program, and says what went wrong with each.

    python -m tests.fuzz.worker SEEDS RESULTS FORMAT[,FORMAT] FIRST STOP [timed]

One line of JSON an input is added to RESULTS: first its number, so that a death of this process is
known to be its fault, then how it went. `timed` makes a command that takes long a problem.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.formats import FORMATS, KEPT, WHOLE, cases_of
from trtcal.cli.main import run_command

MOST_S, MOST_MB, WAITED_S, DEAD_S = 2.0, 1024, 60.0, 30
STATE, VARIABLE = "state", "XDG_STATE_HOME"
ADDRESSES = 16 << 30  # bytes that this process may map: a machine is not to be filled


def case_of(form: str, number: int, seeds: Path) -> Case:
    """Return a format's input of this number: always the same one."""
    if form in (WHOLE, KEPT):
        return cases_of(form, seeds)[number]
    return FORMATS[form](seeds, random.Random(f"{form}:{number}"))  # noqa: S311


def run_case(case: Case, folder: Path, timed: bool) -> dict[str, Any]:
    """Write a case's files into an empty folder, run its command there, and say how it went."""
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    before = _files(folder)
    with open(folder.parent / "out", "w+b") as out, open(folder.parent / "err", "w+b") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(folder)
        _forget_peak()
        with _state_in(folder):
            started, worked, childs = time.perf_counter(), _worked(), _childs_peak()
            _end_after(DEAD_S if timed else 20 * DEAD_S)
            status = run_command(list(case.command))
            _end_after(0)
            took, work = time.perf_counter() - started, _worked() - worked
        sys.stdout.flush()
        sys.stderr.flush()
        err.seek(0)
        text = err.read().decode("utf-8", "replace")
    most = max(_peak(), _childs_peak() * (_childs_peak() > childs))
    found = {"status": status, "seconds": round(took, 3), "cpu_s": round(work, 3), "mb": most}
    problem = problem_of(status, text, _files(folder) - before)
    return {**found, "problem": problem or _waste_of(found, timed)}


def problem_of(status: int, text: str, made: set[str]) -> str | None:
    """Return what must not be about the end of a command, None if all is well."""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    hints = [line for line in text.splitlines() if line.startswith("hint: ")]
    if status not in (0, 1, 2, 3, 4):
        return f"status {status}: {errors[:1]}"
    if "Traceback" in text:
        return f"a traceback: {text[-300:]}"
    if status >= 2 and (len(errors) != 1 or len(hints) != 1):
        return f"{len(errors)} errors and {len(hints)} hints: {text[-300:]}"
    if left := [name for name in made if name.endswith(".part") or status >= 2]:
        return f"left {left}"
    return None


def _waste_of(found: dict[str, Any], timed: bool) -> str | None:
    if timed and min(found["seconds"], found["cpu_s"]) > MOST_S:
        return f"took over {MOST_S} s"
    if timed and found["seconds"] > WAITED_S:
        return f"took over {WAITED_S} s, and did nothing in them"
    return f"took over {MOST_MB} MB" if found["mb"] > MOST_MB else None


def _files(folder: Path) -> set[str]:
    found = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    return {name for name in found if not name.startswith(STATE)}


@contextlib.contextmanager
def _state_in(folder: Path) -> Iterator[None]:
    """Let a case that has files of the user's state have them in its own folder."""
    before = os.environ.get(VARIABLE, "")
    if (folder / STATE).exists():
        os.environ[VARIABLE] = str(folder / STATE)
    yield
    os.environ[VARIABLE] = before


def _end_after(seconds: int) -> None:
    """Let this process die after so much time of the processor, or ten times as much by the clock."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)


def _worked() -> float:
    """Return the processor's seconds of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _childs_peak() -> int:
    """Return the most memory of any process that this one waited for, in MB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def run_cases(form: str, numbers: Sequence[int], seeds: Path, results: Path, timed: bool) -> None:
    """Run cases one by one, and add how each went to a file."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    sys.stdout.flush()
    place = Path(tempfile.mkdtemp(prefix="trtcal-fuzz-", dir=seeds.parent))
    with results.open("a") as lines:
        for number in numbers:
            print(json.dumps({"form": form, "number": number}), file=lines, flush=True)
            folder = place / "folder"
            folder.mkdir()
            found = run_case(case_of(form, number, seeds), folder, timed)
            if str(found["problem"]).startswith("took"):  # it or the machine: once more
                again = Path(tempfile.mkdtemp(dir=place))
                (again / "folder").mkdir()
                found = run_case(case_of(form, number, seeds), again / "folder", timed)
            os.chdir(place)
            shutil.rmtree(folder)
            print(json.dumps({"form": form, "number": number, **found}), file=lines, flush=True)
    shutil.rmtree(place)


if __name__ == "__main__":
    for chosen in sys.argv[3].split(","):
        files = map(Path, sys.argv[1:3])
        run_cases(chosen, range(*map(int, sys.argv[4:6])), *files, sys.argv[6:] == ["timed"])
