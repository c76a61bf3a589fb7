"""Mutants of the compiled kernels, and what notices them: `python -m tests.cuda.ptx_mutants [sm]`."""

import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.gpu.kernel import KERNELS, expected
from calibrators.cuda_histogram import _nothing, kernel_source
from tests.cuda.ptx import Kernel, Memory, PtxError, compiled

BLOCKS, THREADS, FEW = 2, 18, 8  # more threads than slots, and fewer: both bounds are met
VALUES, COUNTS = 1 << 40, 1 << 41  # addresses
WARP = 6
SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    np.inf,
    -np.inf,
    1,
    -1,
    6e-8,
    -6e-8,
    6.0976e-5,
    6.1035e-5,
    65504,
    2,
    -3,
]
SCHEDULES = {
    "in lockstep": lambda threads, rng: min(threads, key=lambda one: one.steps),
    "the first to its end": lambda threads, rng: threads[0],
    "the last to its end": lambda threads, rng: threads[-1],
    "at random": lambda threads, rng: rng.choice(threads),
    "warps at random": lambda threads, rng: _of_warp(threads, rng.choice(threads)),
}


def few_slots(source):
    """Let a block have 16 slots of its own, so that few values make threads meet."""
    return source.replace("#define SLOT_BITS 12", "#define SLOT_BITS 4")


def _of_warp(threads, drawn):
    warp = drawn.ctaid, drawn.tid // WARP
    return min((t for t in threads if (t.ctaid, t.tid // WARP) == warp), key=lambda one: one.steps)


def counted(kernel, array, schedule, seed=0, blocks=BLOCKS, threads=THREADS, offset=0):
    """Return the words that a kernel leaves, of values so many elements behind 16 bytes."""
    values = Memory(VALUES + offset * array.itemsize, bytearray(array.tobytes()))
    words = Memory(COUNTS, bytearray(_nothing().tobytes()))
    arguments = values.base, array.size, int(array.dtype == np.float16), words.base
    kernel.run(blocks, threads, arguments, [values, words], SCHEDULES[schedule], seed)
    return np.frombuffer(words.data, np.uint32)


def cases():
    """Yield arrays, offsets and threads: special values everywhere, then in one place of a vector."""
    rng = np.random.default_rng(3)
    for dtype, lanes in ((np.float16, 8), (np.float32, 4)):
        special = np.array([SPECIAL[(i + i // lanes) % len(SPECIAL)] for i in range(317)], dtype)
        yield special, 0, THREADS
        yield special, 1, FEW
        same = rng.standard_normal(lanes * 6).astype(dtype)  # the same in all threads, by turns
        yield np.concatenate([np.tile(row, BLOCKS * FEW) for row in same.reshape(6, lanes)]), 0, FEW
        yield np.repeat(same, BLOCKS * THREADS), 1, THREADS
        for lane in range(lanes):
            alone = np.zeros((BLOCKS * THREADS, lanes), dtype)
            alone[:, lane] = np.resize(np.array(SPECIAL, dtype), BLOCKS * THREADS)
            yield alone.ravel(), 0, (THREADS, FEW)[lane % 2]
        yield np.full(lanes + 1, np.inf, dtype), 0, FEW
    low, high = np.split(np.array([1, np.nextafter(np.float32(1), 2)], np.float32), 2)
    for pair in (low, high), (high, low):  # of one bin: the blocks differ in their extrema alone
        yield np.repeat(pair, 4 * FEW), 0, FEW


@cache
def cases_of(name):
    """Return the cases, each with the words of a kernel that are not 0."""
    return [(*case, sparse(expected(name, case[0]))) for case in cases()]


def sparse(words):
    """Return the words that are not 0, by their places."""
    places = words.nonzero()[0]
    return dict(zip(places.tolist(), words[places].tolist(), strict=True))


def runs(every=5):
    """Return numbers of cases and schedules: each case under so many of the 5 schedules, by turns."""
    names, count = list(SCHEDULES), len(cases_of(KERNELS[0]))
    return [(n, names[(n + turn) % len(names)]) for turn in range(every) for n in range(count)]


def difference(text, name, order):
    """Return what notices a text's fault: the schedule and case, or an error; None if nothing does.

    The run that does moves to the front of `order`: it likely notices the next mutant too.
    """
    try:
        kernel = Kernel(text, name)
        for number, schedule in order:
            array, offset, threads, words = cases_of(name)[number]
            found = counted(kernel, array, schedule, number, threads=threads, offset=offset)
            if sparse(found) != words:
                order.remove((number, schedule))
                order.insert(0, (number, schedule))
                return f"{schedule}, case {number}"
    except PtxError as error:
        return str(error)
    return None


ATOMIC = re.compile(r"atom\.(\w+)\.(\w+)\.(\w+)\s+(\S+), (\[.*\]), (.*);")


def plain(found):
    """Return a load, the operation and a store in place of an atomic instruction."""
    space, what, kind, old, place, values = ATOMIC.fullmatch(found[0]).groups()
    first, *other = values.split(", ")
    middle = f"{what}.{kind} %new, {old}, {first};"
    if what == "cas":
        middle = f"setp.eq.u32 %same, {old}, {first};\nselp.b32 %new, {other[0]}, {old}, %same;"
    word = kind.replace("b", "u")
    return f"ld.{space}.{word} {old}, {place};\n{middle}\nst.{space}.{word} {place}, %new;"


NEAR = {"lt": "le", "ge": "gt", "gt": "ge", "le": "lt"}
# Of each kind of mutant: the lines that it changes, and what it makes of one.
KINDS = {
    "barrier removed": (r"bar\.sync.*;", lambda found: ""),
    "plain atomic": (ATOMIC.pattern, plain),
    "first value not stored": (r"st\.shared.*;", lambda found: ""),
    "bound off by 1": (
        r"setp\.(lt|ge|gt|le)\.(\w+.*;)",
        lambda found: f"setp.{NEAR[found[1]]}.{found[2]}",
    ),
    "stride doubled": (r"(add\.s\d+\s+(%\w+), \2, %\w+;)", lambda found: f"{found[1]}\n{found[1]}"),
    "address halved": (
        r"(shl\.b64.*), ([24]|1);",
        lambda found: f"{found[1]}, {int(found[2]) - 1};",
    ),
}
# What such a mutant changes is not in the result. A slot without its first owner is never used by
# its bin, which is then counted in the device's memory; a 0 is counted before signs are looked at; a
# denormal widened as if it were none is another number, but no 0.
EQUIVALENT = (
    (
        "count_values",
        "first value not stored",
        r"(?s).*mov\.u32\s+(%r\d+), -1;\s+st\.shared\.u32\s+\[%r\d+\], \1;",
    ),
    ("count_values", "bound off by 1", r"(?s).*setp\.lt\.s32\s+%p\d+, %r\d+, 0;"),
    ("count_nonzero", "bound off by 1", r"(?s).*setp\.gt\.u32\s+%p\d+, %r\d+, 1023;"),
)


def mutants(text, name):
    """Yield the kind, the line and the text of every mutant of a kernel; None if it is equivalent."""
    begin = text.index(f".entry {name}(")
    body = text[begin : text.index("\n}", begin)]
    for kind, (pattern, change) in KINDS.items():
        for found in re.finditer(pattern, body):
            mutant = body[: found.start()] + change(found) + body[found.end() :]
            before = body[max(0, found.start() - 40) : found.end()]
            known = any(
                (name, kind) == (*same,) and re.fullmatch(p, before) for *same, p in EQUIVALENT
            )
            line = f"{name}: {kind}: {' '.join(found[0].split())}"
            yield kind, line, None if known else text[:begin] + mutant + text[begin + len(body) :]


def summary(text):
    """Return a line for each kind of mutant, and the mutants that nothing notices."""
    tried, noticed, equivalent, missed = Counter(), Counter(), Counter(), []
    for name in KERNELS:
        order = runs()
        for kind, line, mutant in mutants(text, name):
            tried[kind] += mutant is not None
            equivalent[kind] += mutant is None
            if mutant is not None and difference(mutant, name, order):
                noticed[kind] += 1
            elif mutant is not None:
                missed.append(line)
    lines = [
        f"{kind:22} {noticed[kind]:2} of {tried[kind]:2} noticed; {equivalent[kind]} equivalent"
        for kind in KINDS
    ]
    return lines, missed


def main():
    """Print how many of how many mutants are noticed, and those that are not."""
    with TemporaryDirectory() as folder:
        text = compiled(few_slots(kernel_source()), (sys.argv[1:] or ["90"])[0], Path(folder))
    lines, missed = summary(text)
    print("\n".join([*lines, *(f"not noticed: {line}" for line in missed)]))


if __name__ == "__main__":
    main()
