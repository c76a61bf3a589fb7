"""All that waits for a GPU, in stages of at most 8 minutes: `make test-gpu`.

    python -m benchmarks.gpu [--dry] [--wheels FOLDER] [--only STAGE]... [--results FOLDER]
    python -m benchmarks.gpu --pack FOLDER [--python 3.12] [--without NAME...]

A stage's output goes, as it comes, to a file of its own in `benchmarks/results/gpu/`; one that has its
result for these sources and this GPU is not run again. The status is 0 if every stage has its result,
1 if one failed, 4 if one lacks something. Needs the standard library alone: wheels carried along are
unpacked into `.venv-gpu`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.stages import MARKED, Stage, gpu, lacks, stages

RESULTS, WORK = Path("benchmarks/results/gpu"), Path(".venv-gpu/work")
SOURCES = ("benchmarks/*.py", "benchmarks/gpu/*.py", "calibrators/*", "trtcal/**/*.py")
TRACE = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*")
READ = ("docs/**/*.md", "trtcal/**/*.py", "calibrators/*.py")
NEVER = re.compile(
    r"never (yet )?run (on|yet)|not yet (run|tried)|untested on a GPU|never on a GPU|been run yet",
    re.I,
)


def sources() -> str:
    """Return a digest of all that the results depend on."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in Path().glob(pattern)):
        if path.is_file():
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def commit() -> str:
    """Return the commit, as far as git tells it."""
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"  # noqa: S603
    except OSError:
        return "unknown"


def key() -> str:
    """Return the line by which a result is known again."""
    about = gpu() or {}
    parts = about.get("name", "no GPU"), f"driver {about.get('driver')}", f"sources {sources()}"
    return ", ".join(parts)


def missing(stage: Stage) -> list[str]:
    """Return what a stage lacks here."""
    return [lack for need in ("gpu", *stage.needs) if (lack := lacks(need))]


def is_done(path: Path, known: str) -> bool:
    """Tell whether a result is there, of these sources and this GPU."""
    lines = path.read_text().splitlines() if path.exists() else []
    return len(lines) > 2 and lines[1] == f"# {known}" and lines[-1].startswith("# status 0")


def run(stage: Stage, path: Path, known: str) -> int:
    """Run a stage's commands, write their output as it comes, without tracebacks; return the status."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begin, status = time.monotonic(), 0
    head = f"# {stage.name}: {stage.settles}\n# {known}\n"
    head += f"# commit {commit()}, Python {sys.version.split()[0]}\n"
    path.write_text(head)
    with path.open("a") as file:
        for command in stage.commands:
            left = 60 * stage.minutes - (time.monotonic() - begin)
            status = status or limited(command, file.fileno(), left)
    text = TRACE.sub("", path.read_text(errors="replace"))
    seconds = time.monotonic() - begin
    path.write_text(f"{text.rstrip()}\n# status {status}, {seconds:.0f} s\n")
    return status


def limited(command: tuple[str, ...], output: int, seconds: float) -> int:
    """Run a command and all that it starts; return its status, 124 if it took too long."""
    try:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)  # noqa: S603
    except OSError as error:
        os.write(output, f"error: {error}\n".encode())
        return 3
    try:
        return process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return 124
    finally:
        with suppress(ProcessLookupError):  # what it leaves running too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(options: argparse.Namespace) -> int:
    """Run what can be run and has no result yet; return the status."""
    known, statuses = key(), {0}
    for stage in chosen(options):
        path, lack = options.results / f"{stage.name}.txt", missing(stage)
        if is_done(path, known):
            print(f"{stage.name}: has its result: {path}")
        elif lack:
            print(f"{stage.name}: not run: {'; '.join(lack)}")
            statuses.add(4)
        else:
            status = run(stage, path, known)
            statuses.add(1 if status else 0)
            result = f"failed, status {status}" if status else "done"
            print(f"{stage.name}: {result}: {path}", flush=True)
    return 1 if 1 in statuses else max(statuses)


def show(options: argparse.Namespace) -> int:
    """Print what would be done, and what is still marked as never run on a GPU."""
    known = key()
    print(f"{known}\n\n{'stage':23} {'minutes':>7} {'MiB':>5}  needs")
    for stage in chosen(options):
        lack = missing(stage)
        state = "would run" if not lack else f"cannot run here: {'; '.join(lack)}"
        if is_done(options.results / f"{stage.name}.txt", known):
            state = "has its result"
        print(
            f"{stage.name:23} {stage.minutes:7g} {stage.size_mib:5}  gpu, {', '.join(stage.needs)}"
        )
        print(f"    {stage.settles}\n    {state}")
    print("\nMarked as never run on a GPU:")
    for line in marked():
        print(f"  {line}")
    return 0


def marked() -> list[str]:
    """Return the lines of sources and documents that say so, with the stages that run it."""
    files = [Path("README.md"), *(path for at in READ for path in sorted(Path().glob(at)))]
    return [
        f"{path}:{number}: {line.strip()[:100]}\n    -> {stage_for(str(path))}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NEVER.search(line)
    ]


def stage_for(path: str) -> str:
    """Return the stages that run what a file marks."""
    return next((stage for start, stage in MARKED.items() if path.startswith(start)), "no stage")


def chosen(options: argparse.Namespace) -> list[Stage]:
    """Return the stages that are asked for; a name that is none ends the program with status 2."""
    everything = stages(WORK.absolute() / sources(), options.wheels, options.elements)
    names = [stage.name for stage in everything]
    if unknown := [name for name in options.only if name not in names]:
        print(f"error: no stage {', '.join(unknown)}\nhint: there are {', '.join(names)}")
        sys.exit(2)
    return [stage for stage in everything if not options.only or stage.name in options.only]


def packed(options: argparse.Namespace) -> int:
    """Make the parts to carry along; return the status."""
    from benchmarks.gpu.pack import pack

    if options.pack.exists() and any(options.pack.iterdir()):
        print(f"error: {options.pack} is not empty\nhint: name a new folder")
        return 2
    try:
        pack(options.pack, options.python, options.without)
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"error: the wheels were not downloaded: {error}\nhint: --pack needs pip and a network"
        )
        return 4
    return 0


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--dry", action="store_true", help="print what would be done")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels to unpack, of --pack")
    parser.add_argument(
        "--only", action="append", default=[], metavar="STAGE", help="may be repeated"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument(
        "--elements", type=int, default=1 << 26, help="counted by the stage `kernel`"
    )
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make the parts to carry along")
    parser.add_argument("--python", default="3.12", help="of the machine that --pack is for")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="packages that it has already"
    )
    return parser.parse_args()


def main() -> int:
    """Run what can be run here; return the status."""
    options = parse()
    if options.pack:
        return packed(options)
    if options.wheels:
        from benchmarks.gpu.pack import unpack

        site = str(unpack(options.wheels))
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [site, os.environ.get("PYTHONPATH")])
        )
    return show(options) if options.dry else run_all(options)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
