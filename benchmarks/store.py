"""1,000 engines pushed to a store by four processes, some of them killed: what is there in the end.

    python -m benchmarks.store [--runs 125] [--kills 12] [--seed 0]

Each run has 8 engines, so 125 runs have 1,000. Every run is pushed by two of four processes, which go
through the runs in different orders; a random one is killed after a random time and started again, and
after each kill every run that is visible has all of its objects. Then every run is pulled and compared
byte by byte, and every engine is traced. A garbage collection takes the files of a run that never
became visible. One bit of an object is flipped: the verification names that object alone, and no pull
hands it out. A folder, then S3 (moto's server, in a process of its own on the loopback).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import obstore

from benchmarks.int8_speed import describe_machine
from tests.fixtures.killing import tree
from tests.runs.stored import (
    BUCKET,
    digest,
    pull,
    push,
    s3_environment,
    s3_server,
    write_run,
)
from trtcal.documents import digest_file
from trtcal.errors import TrtcalError
from trtcal.wings.fleet.store.objects import CorruptedError, path_of
from trtcal.wings.fleet.store.origin import find_origin, origin_of
from trtcal.wings.fleet.store.store import ArtifactStore
from trtcal.wings.fleet.store.upkeep import collect_garbage, verify_store

PROCESSES, ENGINES = 4, 8
LONGEST_S = 2.0  # from a process's first push to its end by a kill, at most
TRACED = 5  # engines for which the runs are read again
ORDERS = ((0, 2, 1), (1, 2, 1), (0, 2, -1), (1, 2, -1))
"""For each process: the first run, the step, and the direction."""


def work(url: str, folder: Path, number: int) -> None:
    """Push a process's runs."""
    first, step, direction = ORDERS[number]
    store = ArtifactStore.make(url)
    for run in sorted(folder.iterdir())[first::step][::direction]:
        push(store, run)
        print(run.name, flush=True)


def started(url: str, folder: Path, number: int) -> subprocess.Popen[bytes]:
    """Start a process that pushes."""
    command = [sys.executable, "-m", "benchmarks.store", "--work", url, str(folder), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603


def push_all(url: str, folder: Path, kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """Push all runs by four processes with kills between; return the kills, and what was wrong."""
    processes = [started(url, folder, number) for number in range(PROCESSES)]
    done, wrong = 0, list[str]()
    while done < kills and (alive := [n for n, one in enumerate(processes) if one.poll() is None]):
        number = rng.choice(alive)
        processes[number].stdout.readline()  # type: ignore[union-attr]
        time.sleep(rng.uniform(0, LONGEST_S))
        processes[number].send_signal(signal.SIGKILL)
        if processes[number].wait() == -signal.SIGKILL:
            done += 1
            wrong += half_there(ArtifactStore.make(url))
            processes[number] = started(url, folder, number)
    for process in processes:
        process.communicate()
        wrong += [f"status {process.returncode}"] if process.returncode else []
    return done, wrong


def half_there(store: ArtifactStore) -> list[str]:
    """Return which visible runs lack an object or cannot be read."""
    records, damaged = store.records()
    stored = {one.digest for one in store.objects.listed()}
    lacking = [one.identity for one in records if not set(one.subjects.values()) <= stored]
    return [f"half there: {one}" for one in [*lacking, *damaged]]


def abandoned(store: ArtifactStore, run: Path) -> None:
    """Store the files of a run that never becomes visible, as a push that is killed leaves them."""
    for path in run.rglob("*"):
        if path.is_file():
            store.objects.add(path, digest_file(path), timedelta(days=1))


def pulled_whole(store: ArtifactStore, folder: Path, place: Path) -> int:
    """Return how many runs come back as they were."""
    by_files = {frozenset(one.subjects.values()): one for one in store.records()[0]}
    same = 0
    for run in folder.iterdir():
        digests = frozenset(digest_file(path) for path in run.rglob("*") if path.is_file())
        pull(store, by_files[digests], place / run.name)
        same += tree(place / run.name) == tree(run)
    return same


def traced(store: ArtifactStore, folder: Path) -> tuple[int, int]:
    """Return how many engines there are, and how many lead to all that they were made of."""
    found = store.records()
    engines = [digest_file(path) for path in sorted(folder.rglob("engine.onnx"))]
    origins = [origin_of(one, *found, "the store") for one in engines]
    origins += [find_origin(store, one) for one in engines[:: len(engines) // TRACED]]
    for origin in origins:
        record, build = origin.record, origin.build
        is_right = (
            build is not None
            and record.subjects[build.engine] == origin.digest
            and record.model == digest("sha256 of a model")
            and record.materials["calibration data"] == digest("data")
            and record.materials["evaluation data"] == digest("evaluation")
            and record.materials["plan of int8"] == digest("plan")
            and (build.calibration, build.backend_version) == (digest("ranges"), "1.32.0")
            and record.configuration.commit is not None
            and record.run.verdict == "SHIP"
        )
        if not is_right:
            return len(engines), 0
    goods = sum(one.last_good is not None for one in origins[: len(engines)])
    return len(engines), len(engines) if goods >= len(engines) - ENGINES else goods


def flipped(store: ArtifactStore, place: Path, rng: random.Random) -> str:
    """Flip a bit of an engine in the store; say what the verification and a pull make of it."""
    record = rng.choice(store.records()[0])
    wanted = record.subjects[rng.choice(record.builds).engine]
    objects, path = store.location.objects, path_of(wanted)
    data = bytearray(bytes(obstore.get(objects, path).bytes()))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    obstore.put(objects, path, bytes(data))
    problems = verify_store(store).problems
    is_named = [(one.what, one.problem) for one in problems] == [(wanted, "corrupted")]
    try:
        pull(store, record, place / "flipped")
        is_refused = False
    except CorruptedError:
        is_refused = not (place / "flipped").exists()
    return (
        f"{'found alone' if is_named else 'NOT FOUND'}, {'refused' if is_refused else 'GIVEN OUT'}"
    )


def measure(name: str, url: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Do everything with one store; print its line, and tell whether all is right."""
    rng, began = random.Random(arguments.seed), time.monotonic()  # noqa: S311
    kills, wrong = push_all(url, folder, arguments.kills, rng)
    seconds, store = time.monotonic() - began, ArtifactStore.make(url)
    abandoned(store, folder.parent / "abandoned")
    found = verify_store(store)
    wrong += [one.sentence for one in found.problems]
    with tempfile.TemporaryDirectory() as place:
        same = pulled_whole(store, folder, Path(place))
        engines, right = traced(store, folder)
        time.sleep(1.1)  # S3 counts in seconds
        taken = collect_garbage(store, timedelta(0))
        left = verify_store(store)
        flip = flipped(store, Path(place), rng)
    print(
        f"{name:8}{found.runs:6}{found.objects:9}{kills:7}{len(wrong):7}{same:8}"
        f"{right:8} of {engines}{len(found.orphans):9}{len(taken.objects):8}"
        f"{taken.unfinished:12}   {flip}   {seconds:.0f} s",
        *wrong,
    )
    is_clean = not left.problems and not left.orphans and flip == "found alone, refused"
    runs = len(list(folder.iterdir()))
    return not wrong and is_clean and same == found.runs == runs and right == engines


@contextmanager
def stores(place: Path) -> Iterator[dict[str, str]]:
    """Yield the address of a store of each kind."""
    with s3_server() as address:
        os.environ.update(s3_environment(address))
        yield {"folder": str(place / "store"), "S3": f"s3://{BUCKET}/benchmark"}


def main() -> None:
    """Print everything; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=125)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        url, folder, number = arguments.work
        work(url, Path(folder), int(number))
        return
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "runs")
        for number in range(arguments.runs):
            commit = f"{number:040x}"
            write_run(folder / f"{number:04}", number, ENGINES, commit=commit, p50=1 + number / 100)
        write_run(Path(name, "abandoned"), -1, ENGINES)
        print(f"{arguments.runs * ENGINES} engines in {arguments.runs} runs, {PROCESSES} processes")
        print(
            "store     runs  objects  kills  wrong  pulled  traced        orphans    gone  unfinished"
        )
        try:
            with stores(Path(name)) as urls:
                right = [measure(kind, url, folder, arguments) for kind, url in urls.items()]
        except TrtcalError as error:
            raise SystemExit(f"{error.message}\n{error.hint}") from error
    raise SystemExit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
