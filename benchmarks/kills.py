"""Commands killed at random times, eight at once, and on a full disk: what they leave is old or new.

    python -m benchmarks.kills [--kills 500] [--seed 0] [--seconds 600]

Each command replaces what it wrote of other data, in a process killed after a random share of its time.
Then another command runs in the same folder: from there on all files are the old ones or all the new
ones, and nothing hidden or temporary is left. Then the killed command runs again: its digests are those
of a run that nothing killed. Ends early after `--seconds`. Eight processes write one run folder and one
history. The disk is a tmpfs with some pages left, from none to enough (by `unshare`; without it, no
file may be longer than some pages).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.int8_speed import describe_machine
from tests.fixtures.kinds import KINDS
from trtcal.cli.main import run_command
from trtcal.documents import read_npz
from trtcal.runs.history import History

ROOT = Path(__file__).parent.parent  # this process works elsewhere
NET, SAMPLES, PAGE, PROCESSES = "classifier", 24, 4096, 8
CONFIG = """\
model = "net.onnx"
output = "run"
history = "{history}.sqlite"
[calibration]
data = "{data}.npz"
methods = ["minmax"]
[evaluation]
data = "{data}.npz"
[build]
targets = ["cpu"]
"""
State = dict[str, str]


@dataclass(frozen=True)
class Killed:
    """A command on the data `{data}`, the entry that it writes, and what follows, with its status."""

    words: str
    writes: str
    following: str
    status: int = 0


COMMANDS = {
    "run": Killed("run {data}.toml --no-history", "run", "verify run"),
    "calibrate": Killed(
        "calibrate net.onnx --data {data}.npz -o ranges/calibration.json",
        "ranges",
        "ranges show ranges/calibration.json",
    ),
    "search": Killed(
        "search net.onnx --calibration calibration.json --data {data}.npz --samples 8 --evaluate 16 "
        "--plans 3 -o search",
        "search",
        "plan show search/plan-1.json --model net.onnx",
    ),
    "improve": Killed(
        "quantize net.onnx --improve fast --data {data}.npz -o improved/net.onnx",
        "improved",
        "ranges show improved/net.calibration.json",
    ),
    "build": Killed("build {data}.onnx --target cpu -o built", "built", "layers show built"),
    "history": Killed(
        "history dashboard --db {data}.sqlite -o pages", "pages", "verify pages/index.html", 2
    ),
}


def silent(words: str) -> int:
    """Run a command that prints nothing; return its exit status."""
    with Path(os.devnull).open("w") as null, contextlib.ExitStack() as stack:
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(redirect(null))
        return run_command(words.split())


def started(work: Callable[[], int]) -> int:
    """Start work in a forked process; return its number."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.setpgid(0, 0)
        status = work()
    finally:
        os._exit(status)


def ended(child: int) -> int:
    """Wait for a process; return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state(path: Path) -> State:
    """Return what stands for each file: of documents the digests, as times are not in them."""
    found = {}
    for file in sorted(path.rglob("*") if path.is_dir() else []):
        if file.is_file() and file.suffix not in (".log", ".jsonl", ".ort"):
            found[file.relative_to(path).as_posix()] = _digest(file)
    return found


def _digest(path: Path) -> str:
    if path.suffix == ".npz":
        arrays = read_npz(path)
        plain = [one.tobytes() for one in arrays.values() if one.dtype.kind not in "US"]
        texts = " ".join(str(one) for one in arrays.values() if one.dtype.kind in "US")
        data = b"".join(plain) + str(re.findall(r"sha256:[0-9a-f]{64}", texts)).encode()
    else:
        data = path.read_bytes()
    beside = path.with_suffix(".json")
    if path.suffix == ".html" and beside.exists():
        return f"with {beside.name}: {_digest(beside).encode() in data}"
    document = json.loads(data) if path.suffix == ".json" else None
    if isinstance(document, dict) and "digest" in document:
        return str(document["digest"])
    return hashlib.sha256(data).hexdigest()


def leftovers(place: Path) -> list[str]:
    """Return hidden and temporary files and folders."""
    found = [path.relative_to(place).as_posix() for path in place.rglob("*")]
    hidden = [name for name in found if re.search(r"(^|/)\.(?!ses)", name) or "-wal" in name]
    return hidden + [name for name in found if name.startswith("temporary/") and ".ses" not in name]


def prepare(place: Path) -> None:
    """Write a network, two sets of data, and all that the commands read, into the current folder."""
    (place / "temporary").mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(place / "temporary")
    os.environ["XDG_STATE_HOME"] = str(place / "state")
    KINDS[NET].save(place / "net.onnx")
    write_data(place, "old", 0)
    write_data(place, "new", 1)
    silent("calibrate net.onnx --data old.npz -o calibration.json")
    for data, method in (("old", "minmax"), ("new", "entropy")):
        silent(f"calibrate net.onnx --data old.npz --method {method} -o {data}-ranges.json")
        silent(f"quantize net.onnx --calibration {data}-ranges.json -o {data}.onnx")
        silent(f"run {data}.toml")
        silent(f"history add run/report.json --db {data}.sqlite")


def write_data(place: Path, name: str, seed: int) -> None:
    """Write data, and a configuration that names them."""
    np.savez(place / f"{name}.npz", **KINDS[NET].make(np.random.default_rng(seed), SAMPLES))
    (place / f"{name}.toml").write_text(CONFIG.format(data=name, history=name))


@dataclass
class Ends:
    """The two states of a command's files, and how long it takes."""

    command: Killed
    kept: Path
    old: State
    new: State
    seconds: float

    def work(self) -> int:
        """Run the command on the new data."""
        return silent(self.command.words.format(data="new"))

    def restore(self) -> None:
        """Put the old files back."""
        shutil.rmtree(self.command.writes, ignore_errors=True)
        shutil.copytree(self.kept, self.command.writes)


def ends_of(name: str) -> Ends:
    """Run a command on both data; the new files twice, which are to be the same."""
    command = COMMANDS[name]
    path, kept = Path(command.writes), Path("kept", name)
    ended(started(lambda: silent(command.words.format(data="old"))))
    old = state(path)
    shutil.copytree(path, kept)
    found = Ends(command, kept, old, {}, 0.0)
    for _ in range(2):
        before = found.new
        found.restore()
        began = time.monotonic()
        ended(started(found.work))
        found.seconds, found.new = time.monotonic() - began, state(path)
    if not found.new == before != old:
        raise SystemExit(f"{name}: its digests are not of the data alone")
    return found


def kill(ends: Ends, after: float, place: Path) -> list[str]:
    """Kill a command after some seconds; return what it left, and what was wrong with that."""
    ends.restore()
    path = Path(ends.command.writes)
    child = started(ends.work)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    words = ["killed" if ended(child) == -signal.SIGKILL else "over"]
    _wait_for_group(child)
    if silent(ends.command.following) != ends.command.status:
        words.append("WRONG: the next command fails")
    left = state(path)
    words.append("old" if left == ends.old else "new" if left == ends.new else "WRONG: a mixture")
    kept = re.compile(r"unfinished|sqlite-wal$")  # for the same command, which goes on from there
    words += [f"WRONG: left {name}" for name in leftovers(place) if not kept.search(name)]
    if ended(started(ends.work)) > 1 or state(path) != ends.new:
        words.append("WRONG: other digests when run again")
    words += [f"WRONG: left {name} at the end" for name in leftovers(place)]
    return words


def _wait_for_group(leader: int) -> None:
    """Wait until the killed processes of a group are gone: until then their locks are held."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(1000):
            os.killpg(leader, 0)
            time.sleep(0.005)


def kills(count: int, seconds: float, place: Path, rng: np.random.Generator) -> bool:
    """Kill each command its part of `count` times; print a table, and tell whether all is right."""
    every = {name: ends_of(name) for name in COMMANDS}
    found = {name: Counter[str]() for name in COMMANDS}
    began = time.monotonic()
    for number in range(count):
        if time.monotonic() - began > seconds:
            break
        name = list(COMMANDS)[number % len(COMMANDS)]
        words = kill(every[name], rng.uniform(0, 1.05) * every[name].seconds, place)
        found[name].update(words)
    print(f"{sum(one['killed'] for one in found.values())} kills, {time.monotonic() - began:.0f} s")
    print("command      seconds   killed was over      old      new    wrong")
    for name, one in found.items():
        wrong = {word: times for word, times in one.items() if word.startswith("WRONG")}
        figures = "".join(f"{one[word]:9}" for word in ("killed", "over", "old", "new"))
        print(f"{name:11}{every[name].seconds:9.1f}{figures}{sum(wrong.values()):9}", wrong or "")
    return not any(word.startswith("WRONG") for one in found.values() for word in one)


def _own(found: State) -> State:
    """Leave out what a run keeps of the one that it replaced, which is any of the eight."""
    return {name: one for name, one in found.items() if not name.startswith("previous/")}


def at_once(place: Path) -> bool:
    """Let eight processes write one run folder and one history; tell whether all is there."""
    states, began = [], time.monotonic()
    names = [f"data{number}" for number in range(PROCESSES)]
    for number, name in enumerate(names):
        write_data(place, name, 10 + number)
        (place / f"{name}.toml").write_text(CONFIG.format(data=name, history="shared"))
        ended(started(lambda name=name: silent(f"run {name}.toml --no-history")))
        states.append(_own(state(Path("run"))))
    alone, began = time.monotonic() - began, time.monotonic()
    children = [started(lambda name=name: silent(f"run {name}.toml")) for name in names]
    statuses = [ended(child) for child in children]
    entries = sum(len(History(Path("shared.sqlite")).entries(name)) for name in _projects())
    is_right = (
        _own(state(Path("run"))) in states and not silent("verify run") and entries == PROCESSES
    )
    wrong = [status for status in statuses if status > 1] + leftovers(place)
    print(
        f"{PROCESSES} runs at once, one folder and one history: {entries} of {PROCESSES} recorded, "
        f"the folder is {'one of them' if is_right else 'A MIXTURE'}, wrong: {wrong or 'nothing'}; "
        f"{time.monotonic() - began:.1f} s, one after the other {alone:.1f} s"
    )
    return is_right and not wrong


def _projects() -> list[str]:
    return History(Path("shared.sqlite")).names()


def full_disk(place: Path, has_mount: bool) -> bool:
    """Run with ever more room, from none to enough; tell whether the old run stays until the last."""
    silent("run old.toml --no-history")
    old, statuses = state(Path("run")), Counter[int]()
    wrong, pages = list[str](), 0
    while not statuses[0] + statuses[1]:
        with filled(place, pages * PAGE) if has_mount else contextlib.nullcontext():
            status = ended(started(lambda pages=pages: run_within(None if has_mount else pages)))
        statuses[status] += 1
        if status not in (0, 1, 4):
            wrong.append(f"status {status} with {pages} pages")
        if status == 4 and state(Path("run")) != old:
            wrong.append(f"changed with {pages} pages")
        wrong += [f"left {name} with {pages} pages" for name in leftovers(place)]
        pages += 1 + pages // 12
    how = "a tmpfs with" if has_mount else "no file longer than"
    print(
        f"disk full, {how} 0 to {pages * PAGE // 1024} KB: {statuses[4]} runs failed with status 4 "
        f"and left the old run, the last one wrote the new; wrong: {wrong or 'nothing'}"
    )
    return not wrong


def run_within(pages: int | None) -> int:
    """Run where no file may be longer than some pages, or as it is."""
    if pages is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (pages * PAGE, pages * PAGE))
    return silent("run new.toml --no-history")


@contextlib.contextmanager
def filled(place: Path, left: int) -> Iterator[None]:
    """Fill the disk but for some bytes."""
    room = os.statvfs(place)
    ballast = place / "ballast"
    ballast.write_bytes(b"x" * max(room.f_bavail * room.f_frsize - left, 0))
    yield
    ballast.unlink()


def mounted(place: Path) -> bool:
    """Run the part on the full disk on a tmpfs in a process of its own; False if that can't be."""
    command = ["unshare", "-Urm", sys.executable, "-m", "benchmarks.kills", "--mount", str(place)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0  # noqa: S603


def main() -> None:
    """Print everything; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mount", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mount:
        words = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(options.mount)]
        subprocess.run(words, check=True)  # noqa: S603
    else:
        print(f"# {describe_machine()}")
    with tempfile.TemporaryDirectory() as folder:
        place = options.mount or Path(folder).resolve()
        os.chdir(place)
        prepare(place)
        if options.mount:
            sys.exit(not full_disk(place, has_mount=True))
        is_right = kills(options.kills, options.seconds, place, np.random.default_rng(options.seed))
        is_right &= at_once(place)
        (place / "mount").mkdir()
        is_right &= mounted(place / "mount") or full_disk(place, has_mount=False)
        os.chdir("/")
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
