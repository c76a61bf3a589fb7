"""Whether any bytes make the reader of build logs raise, and whether any make it slow.

    python -m benchmarks.log_fuzz [--inputs 10000] [--seed 0]

Inputs are random bytes, splices and mutations of the examples that the rules carry, in UTF-8 and
UTF-16 and in the forms of containers and schedulers, cut anywhere, lines made to be nearly what a
pattern asks for, and some lines of 10 MB. Prints how many raised, how many lost an event (the events
of the document are those that the summary counts, and what stands behind a mutation is found), and
which took a line over 50 ms: all must be none. Data that is no text may be refused; that is counted.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.int8_speed import describe_machine
from trtcal.errors import InputError
from trtcal.evidence.log.files import portions, text_blocks
from trtcal.evidence.log.reader import Live
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
MAX_LINE_S = 0.05
LAST = "The very last line"
FORMS = (
    *("{}", "{}", "{}\r", "builder-1  | {}", "[rank0]: {}", "0: {}", "\x1b[32m{}\x1b[0m"),
    *("2031-03-04T05:06:07.123456789Z stdout F {}", "2031-03-04T05:06:07.123456Z 00O {}"),
    "Mar 04 05:06:07 host trtexec[12]: {}",
)


def some_lines(chooser: random.Random) -> list[str]:
    """Return known lines in any order, with every kind of prefix."""
    known = (chooser.choice(PREFIXES) + one for rule in RULES for one in rule.example)
    kinds = [*known, *STRUCTURE]
    return chooser.choices(kinds, k=chooser.randrange(1, 40))


def lines(chooser: random.Random) -> bytes:
    """Return known lines in any encoding."""
    text = "\n".join(some_lines(chooser))
    return text.encode(chooser.choice(("utf-8", "utf-16", "utf-16-le", "utf-8-sig", "latin-1")))


def wrapped(chooser: random.Random) -> bytes:
    """Return known lines in up to two forms, one around the other."""
    text = some_lines(chooser)
    for form in chooser.choices(FORMS, k=2):
        text = [form.format(line) for line in "\n".join(text).split("\n")]
    if chooser.random() < 0.2:
        text = [json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in text]
    return "\n".join(text).encode()


def mutated(chooser: random.Random) -> bytes:
    """Return lines of which some bytes are changed, lost or added, and the end is cut off."""
    data = bytearray(chooser.choice((lines, wrapped))(chooser))
    for _ in range(chooser.randrange(40)):
        place = chooser.randrange(len(data) + 1)
        data[place : place + chooser.randrange(3)] = chooser.randbytes(chooser.randrange(3))
    return bytes(data[: chooser.randrange(len(data) + 1)])


def spliced(chooser: random.Random) -> bytes:
    """Return mutated lines in UTF-8 with a whole line behind them."""
    data = bytearray("\n".join(some_lines(chooser)).encode())
    for _ in range(chooser.randrange(20)):
        place = chooser.randrange(len(data) + 1)
        data[place : place + chooser.randrange(3)] = bytes(chooser.choices(range(32, 127), k=2))
    return bytes(data) + f"\n[E] {LAST}".encode()


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
    kinds = (mutated, spliced, wrapped, mutated, nearly, mutated, lines, noise)
    for number in range(count - LONG_LINES):
        make = kinds[number % len(kinds)]
        yield make.__name__, make(chooser)
    for run in RUNS[:LONG_LINES]:
        yield "10 MB", f"[E] {run * (LONG_BYTES // len(run))}\n[W] End".encode()


def document_of(data: bytes) -> dict[str, Any]:
    """Return the document of a log's bytes; `InputError` if they are no text."""
    pieces = io.BytesIO()
    LogWriter("fuzz", pieces.write).write(portions(text_blocks([data], "fuzz")))
    document: dict[str, Any] = json.loads(pieces.getvalue())
    return document


def has_lost(kind: str, document: dict[str, Any]) -> bool:
    """Whether an event of a document is not counted, or the last line was not found."""
    events = [event for event in document["events"] if "repeats" not in event]
    summary = document["summary"]
    counted = [sum(summary[name].values()) for name in ("counts", "severities")]
    if counted != [len(events)] * 2:
        return True
    return kind == spliced.__name__ and LAST not in events[-1]["message"]


def slowest_line(data: bytes) -> float:
    """Return the longest time that one line took, in seconds."""
    live = Live()
    return max((_seconds(live, line) for line in portions_by_line(data)), default=0.0)


def portions_by_line(data: bytes) -> Iterable[bytes]:
    """Yield the lines of a log's bytes one by one."""
    for portion in portions(text_blocks([data], "fuzz")):
        yield from portion.splitlines(keepends=True)


def _seconds(live: Live, line: bytes) -> float:
    started = time.perf_counter()
    live.read(line)
    return time.perf_counter() - started


def check(kind: str, data: bytes) -> str:
    """Return how reading went: `fine`, `refused`, or what was wrong."""
    started = time.perf_counter()
    try:
        document = document_of(data)
        took = time.perf_counter() - started
    except InputError:
        return "refused"
    except Exception as error:
        return f"raised {error!r}"
    if has_lost(kind, document):
        return "lost an event"
    # It or the machine: each line for itself, twice.
    if took > MAX_LINE_S and min(slowest_line(data), slowest_line(data)) > MAX_LINE_S:
        return "a line took over 50 ms"
    return "fine"


def main() -> None:
    """Read every input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(describe_machine())
    ends: Counter[str] = Counter()
    read = 0
    for kind, data in inputs(given.inputs, random.Random(given.seed)):  # noqa: S311
        read += len(data)
        end = check(kind, data)
        ends[end] += 1
        if end not in ("fine", "refused"):
            print(f"{kind}: {end}: {data[:200]!r}")
    print(f"{given.inputs} inputs, {read / 1e6:.0f} MB: {dict(ends)}")


if __name__ == "__main__":
    main()
