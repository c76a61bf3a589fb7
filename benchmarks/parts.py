"""Where the wall clock of a trtcal command goes, in parts that add up.

    python -m benchmarks.parts [--python PYTHON] [--least 0.02] -- COMMAND ...

`{out}` in a word of COMMAND stands for a new folder. The command runs as a process. A thread of it
notes every 5 ms in which functions of trtcal, or in which import, its main thread is, and adds the
time since its last look to them. Prints a tree: the seconds of each function that took more than
`--least` of the wall clock, and below it those of what it called. A function is left out where a call
is nearly all of it; `itself` is the rest of a function. Start and end of the process are parts too.

The last lines compare the sum of all parts with the wall clock that the caller measured, and with that
of the same command without the thread; and name the limit of what runs the network: bare inference of
the samples of each .npz that the command reads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.costs import BARE

WATCHED = """
import sys, threading, time
started = time.perf_counter()
import json
out, before, main = sys.argv[1], float(sys.argv[2]), threading.main_thread().ident
parts, over = {}, threading.Event()

def name(frame):
    module = frame.f_globals.get("__name__", "")
    if module == "importlib._bootstrap" and frame.f_code.co_name == "_find_and_load":
        return "import " + str(frame.f_locals["name"]).split(".")[0]
    if module.partition(".")[0] in ("trtcal", "calibrators"):
        function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        return module + "." + function

def watch():
    last = started
    while True:
        ended = over.wait(0.005)
        frame, names = sys._current_frames()[main], []
        while frame:
            if known := name(frame):
                names.append(known)
            frame = frame.f_back
        names.reverse()
        imports = [i for i, one in enumerate(names) if one.startswith("import ")]
        if imports:
            libraries = dict.fromkeys(one for one in names if one.startswith("import "))
            names = [*names[:imports[0]], *libraries]
        now = time.perf_counter()
        key = "\\n".join(names)
        parts[key] = parts.get(key, 0) + now - last
        last = now
        if ended:
            break
    parts["start of Python"] = started - before
    json.dump({"parts": parts, "ended": last}, open(out, "w"))

thread = threading.Thread(target=watch)
thread.start()
sys.argv[:] = ["trtcal", *sys.argv[3:]]
try:
    from trtcal.cli.main import main as run_main
    status = run_main()
except SystemExit as end:
    status = end.code
over.set()
thread.join()
sys.exit(status)
"""


def run(command: list[str], words: list[str]) -> tuple[float, float]:
    """Run a command with a folder of its own; return its start and its end in seconds."""
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        filled = [word.replace("{out}", out) for word in words]
        done = subprocess.run([*command, *filled], check=False, stdout=subprocess.DEVNULL)  # noqa: S603
        ended = time.perf_counter()
    if done.returncode not in (0, 1):  # 1 is an answer: a limit is broken
        raise SystemExit(f"trtcal ended with status {done.returncode}")
    return started, ended


def watch(python: Path, words: list[str]) -> tuple[float, dict[tuple[str, ...], float]]:
    """Run a command; return its seconds and those of each chain of functions."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "parts.json"
        code = ["-c", WATCHED, str(out), str(time.perf_counter())]
        started, ended = run([str(python), *code], words)
        read = json.loads(out.read_text())
    parts = {tuple(key.split("\n")): seconds for key, seconds in read["parts"].items()}
    return ended - started, parts | {("end of the process",): ended - read["ended"]}


def tree(
    parts: dict[tuple[str, ...], float], least: float, depth: int = 0
) -> Iterator[tuple[int, str, float]]:
    """Yield depth, name and seconds of each function of at least `least` seconds, callers first."""
    groups: dict[str, dict[tuple[str, ...], float]] = {}
    for chain, seconds in parts.items():
        group = groups.setdefault(chain[0] if chain else "itself", {})
        group[chain[1:]] = group.get(chain[1:], 0.0) + seconds
    sums = {name: sum(group.values()) for name, group in groups.items()}
    small = sum(seconds for seconds in sums.values() if seconds < least)
    for name in sorted(sums, key=lambda name: -sums[name]):
        if sums[name] >= least:
            inner = list(tree(groups[name], least, depth + 1)) if set(groups[name]) != {()} else []
            if inner and inner[0][2] > 0.97 * sums[name]:
                yield from ((level - 1, text, seconds) for level, text, seconds in inner)
            else:
                yield from [(depth, name, sums[name]), *inner]
    if small and small < sum(sums.values()):
        yield depth, "less each", small


def main() -> None:
    """Print the tree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--least", type=float, default=0.02)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    started, ended = run([str(options.python.parent / "trtcal")], options.words)
    wall, parts = watch(options.python, options.words)
    for depth, name, seconds in tree(parts, options.least * wall):
        print(f"{seconds:8.2f} s {seconds / wall:6.1%}  {'  ' * depth}{name}")
    whole = sum(parts.values())
    print(f"{whole:8.2f} s {whole / wall:6.1%}  of {wall:.2f} s")
    print(f"{ended - started:8.2f} s without the thread")
    model = next((word for word in options.words if word.endswith(".onnx")), None)
    for data in (word for word in options.words if model and word.endswith(".npz")):
        bare = [sys.executable, "-c", BARE, model, data]
        print(f"{data}: {subprocess.check_output(bare, text=True).strip()}")  # noqa: S603


if __name__ == "__main__":
    main()
