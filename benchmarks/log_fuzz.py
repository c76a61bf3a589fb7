"""Whether any bytes make the reader of build logs raise, and whether any make it slow.

    python -m benchmarks.log_fuzz [--inputs 10000] [--seed 0]

Inputs are random bytes, splices and mutations of the examples that the rules carry, in UTF-8 and
UTF-16, cut anywhere, lines made to be nearly what a pattern asks for, and some lines of 10 MB. Prints
how many raised, which must be none, and the slowest input by its time per MB.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

from benchmarks.int8_speed import describe_machine
from trtcal.evidence.log.lines import portions
from trtcal.evidence.log.recognition import RULES
from trtcal.evidence.log.summary import LogWriter

PREFIXES = ("", "[E] ", "[W] [TRT] ", "[V] ", "[03/04/2031-05:06:07] [I] [TRT] ", "ERROR: [TRT]: ")
STRUCTURE = (
    "[V] Layers:",
    "[I] [DlaLayer] {x}",
    "[I] Time(ms) Avg.(ms) Time(%) Layer",
    "Name: a",
    "",
)
RUNS = (
    " ",
    "(",
    "a: ",
    "[",
    "::",
    " + ",
    ", ",
    "1",
    "\x1b[",
    "PWN(",
    "Layer(",
    "Name: a, LayerType: k",
)
LONG_LINES = 6
LONG_BYTES = 10**7
TAKEN_BYTES = 20_000
SLOW_S = 0.005


def lines(chooser: random.Random) -> bytes:
    """Return known lines in any order, with every kind of prefix."""
    kinds = [
        *(chooser.choice(PREFIXES) + one for rule in RULES for one in rule.example),
        *STRUCTURE,
    ]
    text = "\n".join(chooser.choices(kinds, k=chooser.randrange(1, 40)))
    return text.encode(chooser.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig")))


def mutated(chooser: random.Random) -> bytes:
    """Return known lines of which some bytes are changed, lost or added, and the end is cut off."""
    data = bytearray(lines(chooser))
    for _ in range(chooser.randrange(40)):
        place = chooser.randrange(len(data) + 1)
        data[place : place + chooser.randrange(3)] = chooser.randbytes(chooser.randrange(3))
    return bytes(data[: chooser.randrange(len(data) + 1)])


def nearly(chooser: random.Random) -> bytes:
    """Return a long line that a pattern can nearly match in very many ways."""
    rule = chooser.choice(RULES)
    example = chooser.choice(rule.example)
    words = example.split(" ")
    some = " ".join(chooser.choices(words, k=chooser.randrange(1, 4)))
    head = example[: chooser.randrange(len(example))]
    run = chooser.choice((*RUNS, f" {some} ", rule.needles[0]))
    line = chooser.choice(PREFIXES) + head + run * (TAKEN_BYTES // len(run))
    return line.encode()


def noise(chooser: random.Random) -> bytes:
    """Return random bytes."""
    return chooser.randbytes(chooser.randrange(TAKEN_BYTES))


def inputs(count: int, chooser: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield that many inputs and what kind they are."""
    kinds = (lines, mutated, nearly, noise)
    for number in range(count - LONG_LINES):
        make = kinds[number % len(kinds)]
        yield make.__name__, make(chooser)
    for run in RUNS[:LONG_LINES]:
        yield "10 MB", f"[E] {run * (LONG_BYTES // len(run))}\n[W] End".encode()


def seconds(data: bytes) -> float:
    """Return how long reading takes, from the bytes to the JSON."""
    started = time.perf_counter()
    LogWriter("fuzz", lambda text: None).write(portions([data]))
    return time.perf_counter() - started


def main() -> None:
    """Read every input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(describe_machine())
    raised, read = 0, 0
    worst: dict[str, tuple[float, bytes]] = {}
    for kind, data in inputs(given.inputs, random.Random(given.seed)):  # noqa: S311
        read += len(data)
        try:
            took = seconds(data)
            if took > SLOW_S:  # it or the machine: once more
                took = min(took, seconds(data))
        except Exception as error:
            raised += 1
            print(f"raised {error!r} on {data[:200]!r}")
            continue
        pace = took / max(len(data), 1 << 14) * 1e6
        worst[kind] = max(worst.get(kind, (0.0, b"")), (pace, data[:60]))
    print(f"{given.inputs} inputs, {read / 1e6:.0f} MB: {raised} raised")
    for kind, (pace, data) in sorted(worst.items()):
        print(f"  {kind:8s} slowest {pace:6.2f} s/MB  {data!r}")


if __name__ == "__main__":
    main()
