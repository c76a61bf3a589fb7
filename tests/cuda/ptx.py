"""Runs kernels as nvcc compiles them: PTX's integer instructions, under a schedule that a test picks.

A thread stops before each access to memory that other threads see, and at barriers; the schedule names
the thread that goes on. Accesses happen in that order: caches and reordered stores of a GPU are not
shown. Shared memory begins as noise. An access outside of what there is, or not aligned, is an error.
"""

import random
import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*);")
OPERAND = re.compile(r"\{[^}]*\}|\[[^]]*\]|[^,\s][^,]*")
SYMBOL = re.compile(r"\.shared \.align \d+ \.(b8|u32) (\w+)(?:\[(\d+)\])?;")
ENTRY = r"\.entry {}\((.*?)\)\s*\{{(.*?)\n\}}"
VISIBLE = re.compile(r"(ld|st|atom)\.(?!param)|bar\.sync")
SHARED, STEPS = 1 << 24, 500_000  # where shared memory begins; steps until a kernel does not end
SPECIAL = {"%tid.x": "t.tid", "%ntid.x": "t.ntid", "%ctaid.x": "t.ctaid", "%nctaid.x": "t.nctaid"}
SIGNS = {
    "add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
# Opcodes without their types, and their Python: `d` is where the result goes, `a` to `c` what follows,
# `A` to `C` the same with the sign of the type, `all` the number of values of the type.
TABLE = {
    r"mov|cvta\.to\.global": "{d} = {a}",
    r"cvt\.[su](\d+)": "{d} = {A} % (1 << {op})",
    r"(add|sub|and|or|xor)": "{d} = ({A} {sign} {B}) % {all}",
    r"(min|max)": "{d} = {op}({A}, {B}) % {all}",
    r"shl": "{d} = ({a} << min({b}, 64)) % {all}",
    r"shr": "{d} = ({A} >> min({b}, 64)) % {all}",
    r"mul\.lo": "{d} = {A} * {B} % {all}",
    r"mul\.wide": "{d} = {A} * {B} % {all} ** 2",
    r"clz": "{d} = {bits} - {a}.bit_length()",
    r"setp\.(eq|ne|lt|le|gt|ge)": "{d} = {A} {sign} {B}",
    r"selp": "{d} = {a} if {c} else {b}",
    r"ld\.param": "{d} = t.parameters['{a}']",
    r"ld(?:\.volatile)?\.(?:global|shared)": "{d} = t.load({a}, {bits})",
    r"ld\.global\.v4": "{d} = t.vector({a}, {bits}, 4)",
    r"st\.(?:global|shared)": "t.store({d}, {bits}, {a})",
    r"atom\.(?:global|shared)\.cas": "{d} = t.atomic({a}, {bits}, lambda x: {c} if x == {b} else x)",
    r"atom\.(?:global|shared)\.add": "{d} = t.atomic({a}, {bits}, lambda x: (x + {b}) % {all})",
    r"atom\.(?:global|shared)\.(min|max)": (
        "{d} = t.atomic({a}, {bits}, lambda x: {op}({signed_x}, {B}) % {all})"
    ),
}
FORMS = [
    (re.compile(rf"(?:{opcode})\.([sub](?:8|16|32|64))"), code) for opcode, code in TABLE.items()
]
FLOW = {
    "bra": "return {label}",
    "bra.uni": "return {label}",
    "ret": "return None",
    "bar.sync": "pass",
}


class PtxError(Exception):
    """The text is not understood, or the kernel did what a GPU does not allow."""


def compiled(source, architecture, folder):
    """Return the PTX that nvcc makes of a CUDA source for `sm_` and a number."""
    (folder / "kernel.cu").write_text(source)
    command = ["nvcc", "-ptx", f"-arch=sm_{architecture}", "kernel.cu", "-o", "kernel.ptx"]
    subprocess.run(command, check=True, cwd=folder)
    return (folder / "kernel.ptx").read_text()


@dataclass
class Memory:
    """Bytes from an address on, little endian."""

    base: int
    data: bytearray


@dataclass
class Thread:
    """A thread's registers, and the instruction at which it stopped; None at its end."""

    ctaid: int
    tid: int
    ntid: int
    nctaid: int
    memories: list[Memory]
    parameters: dict[str, int]
    at: int | None = 0
    steps: int = 0
    registers: dict[str, int] = field(default_factory=dict)

    def place(self, address, size):
        """Return the bytes of an access, and where in them; `PtxError` if it is not allowed."""
        for memory in self.memories:
            start = address - memory.base
            if start >= 0 and start + size <= len(memory.data) and address % size == 0:
                return memory.data, slice(start, start + size)
        raise PtxError(f"access to {size} bytes at {address:#x}: outside or not aligned")

    def load(self, address, bits):
        data, where = self.place(address, bits // 8)
        return int.from_bytes(data[where], "little")

    def vector(self, address, bits, count):
        data, where = self.place(address, bits // 8 * count)
        return memoryview(data[where]).cast("I").tolist()

    def store(self, address, bits, value):
        data, where = self.place(address, bits // 8)
        data[where] = (value % (1 << bits)).to_bytes(bits // 8, "little")

    def atomic(self, address, bits, change):
        value = self.load(address, bits)
        self.store(address, bits, change(value))
        return value


class Line(dict):
    """What the table's Python is made of, for one instruction; made when it is asked for."""

    def __init__(self, operands, kind, symbols):
        bits = int(kind[1:])
        super().__init__(bits=bits, all=1 << bits, signed_x=_signed("x", kind))
        self.operands, self.kind, self.symbols = operands, kind, symbols

    def __missing__(self, key):
        operand = self.operands["dabc".index(key.lower())]
        value = self._value(operand, 1 << self["bits"])
        return _signed(value, self.kind) if key.isupper() else value

    def _value(self, operand, values):
        """Return the Python of a register, number, symbol, address or vector."""
        if operand[0] == "{":
            return ", ".join(self._value(part.strip(), values) for part in operand[1:-1].split(","))
        if operand[0] == "[":
            base, _, offset = operand[1:-1].partition("+")
            return (
                f"{self._value(base, 1 << 64)} + {int(offset)}" if offset else self._value(base, 0)
            )
        if re.fullmatch(r"-?(\d+|0x[0-9a-fA-F]+)", operand):
            return str(int(operand, 0) % values)
        known = {**SPECIAL, **self.symbols}
        return str(known.get(operand, f"R[{operand!r}]" if operand[0] == "%" else operand))


def _signed(value, kind):
    half = 1 << int(kind[1:]) - 1
    return f"(({value} ^ {half}) - {half})" if kind[0] == "s" else value


@cache
def _translated(opcode, operands, symbols):
    """Return the Python of an instruction; `PtxError` names what is not known."""
    for pattern, python in FORMS:
        if found := pattern.fullmatch(opcode):
            line = Line(operands, found[found.re.groups], dict(symbols))
            line.update(op=found[1], sign=SIGNS.get(found[1]))
            return python.format_map(line)
    raise PtxError(f"opcode {opcode} is not known")


class Kernel:
    """An entry of a PTX text, as one Python function for each way from a stop to the next."""

    def __init__(self, text, name):
        head, body = re.search(ENTRY.format(name), text, re.S).groups()
        self.parameters = re.findall(r"\.param \.\w+ (\w+)", head)
        self.symbols, self.shared_size, self.labels, self.lines = {}, 0, {}, []
        for kind, symbol, count in SYMBOL.findall(body):
            self.symbols[symbol] = SHARED + self.shared_size
            self.shared_size += int(count or 1) * (1 if kind == "b8" else 4)
        for line in body.splitlines():
            self._read(line.split("//")[0].strip())
        self.visible = {n for n, (_, opcode, _) in enumerate(self.lines) if VISIBLE.match(opcode)}
        self.barriers = {n for n in self.visible if self.lines[n][1] == "bar.sync"}
        after = {n + 1 for n, (_, opcode, _) in enumerate(self.lines) if opcode in FLOW}
        order = sorted({0, *self.labels.values(), *self.visible, *after, len(self.lines)})
        source, space = [], {}
        for begin, end in pairwise(order):
            body = [self._python(*line) for line in self.lines[begin:end]] + [f"return {end}"]
            source += [f"def from_{begin}(t):", " R = t.registers", *(f" {line}" for line in body)]
        exec("\n".join(source), space)  # noqa: S102  # what is run is made here
        self.stops = {begin: space[f"from_{begin}"] for begin in order[:-1]}

    def _read(self, line):
        if line.endswith(":"):
            self.labels[line[:-1]] = len(self.lines)
        elif line and line[0] not in ".{}":
            found = INSTRUCTION.fullmatch(line)
            if found is None:
                raise PtxError(f"not understood: {line}")
            negated, predicate, opcode, operands = found.groups()
            guard = f"if {'not ' * bool(negated)}R[{predicate!r}]: " if predicate else ""
            self.lines.append((guard, opcode, OPERAND.findall(operands)))

    def _python(self, guard, opcode, operands):
        if opcode in FLOW:
            return guard + FLOW[opcode].format(label=self.labels.get(" ".join(operands)))
        return guard + _translated(opcode, tuple(operands), tuple(self.symbols.items()))

    def run(self, blocks, threads, arguments, memories, schedule, seed=0):
        """Run the kernel on memories that it changes; `schedule(running, rng)` picks a thread."""
        rng, running = random.Random(seed), []  # noqa: S311
        values = dict(zip(self.parameters, arguments, strict=True))
        for block in range(blocks):
            seen = [*memories, Memory(SHARED, bytearray(rng.randbytes(self.shared_size)))]
            running += [Thread(block, n, threads, blocks, seen, values) for n in range(threads)]
        waiting = {block: [] for block in range(blocks)}
        for _ in range(STEPS):
            if not running:
                break
            thread = schedule(running, rng)
            self._advance(thread)
            if thread.at is None or thread.at in self.barriers:
                running.remove(thread)
                running = running + self._released(thread, waiting[thread.ctaid])
                running.sort(key=lambda t: (t.ctaid, t.tid))
        if left := len(running) + sum(map(len, waiting.values())):
            raise PtxError(f"{left} threads do not end")

    def _released(self, thread, waiting):
        """Return the threads that go on as this one comes to the barrier, or to its end."""
        if thread.at is None:
            return []
        waiting.append(thread)
        if len(waiting) < thread.ntid:
            return []
        released = waiting[:]
        waiting.clear()
        for one in released:
            one.at += 1
        return released

    def _advance(self, thread):
        """Run a thread to its next access that others see, or to a barrier, or its end."""
        thread.steps += 1
        for _ in range(STEPS):
            thread.at = self.stops[thread.at](thread)
            if thread.at is None or thread.at in self.visible:
                return
        raise PtxError("a thread does not end")
