"""Where the wall clock of a trtcal command goes, in parts that add up.

    python -m benchmarks.parts [--python PYTHON] [--least 0.02] -- COMMAND ...

The command runs as a process. A thread of it notes every 5 ms in which functions of trtcal, or in which
import, its main thread is, and adds the time since its last look to them. Prints a tree: the seconds of
each function that took more than `--least` of the wall clock, and below it those of what it called. A
function is left out where a call is nearly all of it; `itself` is the rest of a function. The start of
the interpreter and the end of the process are parts as well.

The last line compares the sum of all parts with the wall clock that the caller measured, and with that
of the same command without the thread, run before: give it an output that may be written twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

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


def watch(python: Path, words: list[str]) -> tuple[float, dict[tuple[str, ...], float]]:
    """Run a command; return its seconds and those of each chain of functions."""
    with tempfile.TemporaryDirectory() as folder:
        out, before = Path(folder) / "parts.json", time.perf_counter()
        code = ["-c", WATCHED, str(out), str(before)]
        subprocess.run([python, *code, *words], check=False, env=os.environ)  # noqa: S603
        after = time.perf_counter()
        read = json.loads(out.read_text())
    parts = {tuple(key.split("\n")): seconds for key, seconds in read["parts"].items()}
    return after - before, parts | {("end of the process",): after - read["ended"]}


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
    if small and len(sums) > 1:
        yield depth, "less each", small


def main() -> None:
    """Print the tree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--least", type=float, default=0.02)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    started = time.perf_counter()
    command = [options.python.parent / "trtcal", *options.words]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)  # noqa: S603
    plain = time.perf_counter() - started
    wall, parts = watch(options.python, options.words)
    for depth, name, seconds in tree(parts, options.least * wall):
        print(f"{seconds:8.2f} s {seconds / wall:6.1%}  {'  ' * depth}{name}")
    whole = sum(parts.values())
    print(f"{whole:8.2f} s {whole / wall:6.1%}  of {wall:.2f} s; without the thread {plain:.2f} s")


if __name__ == "__main__":
    main()
