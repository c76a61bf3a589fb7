r"""Reader of the layers inside a TensorRT-RTX engine: no GPU, no TensorRT, nothing is run.

An engine that TensorRT-RTX 1.7 writes begins with `vtrt` and holds, behind the mark `NLYM`, 8
unread bytes and the length in 4 bytes (and 4 more), its program as text: `header {..} descriptors
{ tensor={..} .. } main { function={..} corrltn={..} .. }`. Names stand in quotes with `\` before a
quote or backslash. Seen in engines that were built without a GPU; the format is not documented.

An engine is untrusted: sizes, depth and counts are bounded, and whatever does not follow the form
is an `InputError`. The statements of `main` are the layers of the verbose listing. Behind a program
follows one more for each `runtime_fusion` in it: what the runtime will compile that from. What other
parts of TensorRT add to the listing around a program (copies of shapes) stands elsewhere.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NoReturn

from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer, TensorInfo, dtype_named
from trtcal.evidence.layers.listing import nodes_of
from trtcal.evidence.layers.roofline import count_operands

MAGIC = b"vtrt"
MARK = re.compile(rb"NLYM.{4}(.{4})\0{4}header \{\n", re.DOTALL)
BEGINNING = len(b"header {\n")

MAX_PROGRAMS, MAX_PROGRAM_BYTES, MAX_LAYERS = 1000, 1 << 26, 100_000
MAX_DEPTH, MAX_RANK = 16, 16

TOKEN = re.compile(r'\s+|"((?:[^"\\]|\\.)*)"|([{}=])|([^\s{}="]+)|(.)', re.DOTALL)
NUMBERED = re.compile(r"\.\d+$")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)

FUSION = "runtime_fusion"
LISTED_KINDS = {
    "function": "kgen",
    "corrltn": "correlation",
    "fully_connected": "gemm",
    "deconvolution": "deconv",
}
FORMATS = {
    "0 1": "(Transposed) Transposed format",
    "2 0 1": "(Transposed) Transposed format",
    "3 0 2 1": "(NHWC) Channel major format",
    "4 0 3 2 1": "(NDHWC) Channel major format with 3 spatial dimensions",
}
REBUILD_HINT = "build it again with `trtcal build`: its build.log lists the layers too"


@dataclass
class Group:
    """What stands between `{` and `}`: `key=value` pairs in order, and values without a key."""

    fields: list[tuple[str, Value]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    def text(self, key: str) -> str:
        """Return the first word or string with this key, or nothing."""
        return next((v for k, v in self.fields if k == key and isinstance(v, str)), "")

    def group(self, key: str) -> Group:
        """Return the first group with this key, or an empty one."""
        return next((v for k, v in self.fields if k == key and isinstance(v, Group)), Group())


Value = str | Group


def read_engine_layers(path: Path) -> tuple[Layer, ...]:
    """Read the layers inside an engine of TensorRT-RTX; `InputError` if there are none to read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(MAGIC)] != MAGIC:
                raise InputError(f"{path} is not an engine of TensorRT-RTX", REBUILD_HINT)
            layers = _read_programs(data)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", "check the path") from error
    if not layers:
        raise InputError(f"{path} has no program that trtcal can read", REBUILD_HINT)
    return tuple(layers)


def _read_programs(data: mmap.mmap) -> list[Layer]:
    """Read the engine's own programs, and pass over those of runtime fusions."""
    layers: list[Layer] = []
    number = fusions = 0
    for text in islice(_programs(data), MAX_PROGRAMS):
        if fusions:
            fusions -= 1
            continue
        read = list(_read_program(number, text))
        fusions = sum(layer.kind == FUSION for layer in read)
        layers += read
        number += 1
    return layers


def _programs(data: mmap.mmap) -> Iterator[str]:
    """Yield each program's text; one that stands inside another's names is none."""
    start = 0
    while mark := MARK.search(data, start):
        begin = mark.end() - BEGINNING
        start = begin + int.from_bytes(mark[1], "little")
        if start > len(data) or start - begin > MAX_PROGRAM_BYTES:
            _fail("its length is wrong")
        yield data[begin:start].decode("utf-8", "backslashreplace")


def _fail(what: str) -> NoReturn:
    raise InputError(f"the program inside the engine cannot be read: {what}", REBUILD_HINT)


def _read_program(number: int, text: str) -> Iterator[Layer]:
    blocks = _parse(text)
    header = blocks.group("header")
    # The program ends the names of the engine's own inputs and outputs in `.1`; of an output that it
    # has renamed altogether, only that other name is known here.
    names = (*header.group("inputs").items, *header.group("outputs").items)
    borders = {name: NUMBERED.sub("", name) for name in names}
    tensors = _Tensors(number, borders, blocks.group("descriptors"))
    fields = blocks.group("main").fields
    statements = [(word, value) for word, value in fields if isinstance(value, Group)]
    if len(statements) > MAX_LAYERS:
        _fail("it has too many layers")
    for index, (word, statement) in enumerate(statements):
        yield _layer(word, statement, f"_myl{number}_{index}", tensors)


def _parse(text: str) -> Group:
    """Parse `word {..}` and `key={..}` alike; words that belong to no key are items."""
    parser = _Parser()
    for match in TOKEN.finditer(text):
        string, mark, word, odd = match.groups()
        if odd is not None:
            _fail(f"a quote without its end at character {match.start()}")
        if mark == "=":
            parser.is_value = True
        elif mark:
            parser.turn(mark)
        elif word is not None:
            parser.take(word)
        elif string is not None:
            parser.take(ESCAPED.sub(r"\1", string))
    if len(parser.stack) != 1:
        _fail("it ends too early")
    return parser.stack[0]


class _Parser:
    """The groups that are open, and the last word: a key if `=` or `{` follows it."""

    def __init__(self) -> None:
        self.stack = [Group()]
        self.word = ""
        self.is_value = False

    def turn(self, mark: str) -> None:
        if mark == "{":
            group = Group()
            self.stack[-1].fields.append((self.word, group))
            self.stack.append(group)
        else:
            self._keep()
            self.stack.pop()
        if not 0 < len(self.stack) <= MAX_DEPTH:
            _fail("its brackets do not fit together")
        self.word, self.is_value = "", False

    def take(self, word: str) -> None:
        """Take a word or string: a value behind `=`, else perhaps the next key."""
        if self.is_value:
            self.stack[-1].fields.append((self.word, word))
            self.word, self.is_value = "", False
        else:
            self._keep()
            self.word = word

    def _keep(self) -> None:
        if self.word:
            self.stack[-1].items.append(self.word)


class _Tensors:
    """The tensors of a program by name, as the listing gives them."""

    def __init__(self, number: int, borders: dict[str, str], descriptors: Group) -> None:
        self.suffix = f"_myl{number}"
        self.borders = borders
        groups = [value for _, value in descriptors.fields if isinstance(value, Group)]
        self.known = {group.text("name"): group for group in groups}
        dims = (item for group in groups for item in group.group("dims").items[:MAX_RANK])
        self.sizes = {item for item in dims if not item.isdigit()}
        self.found: dict[str, tuple[TensorInfo, bool]] = {}

    def find(self, name: str) -> tuple[TensorInfo, bool]:
        """Return a tensor, and whether its values stand in the engine."""
        if name not in self.found:
            self.found[name] = self._describe(name)
        return self.found[name]

    def _describe(self, name: str) -> tuple[TensorInfo, bool]:
        """Read a tensor; a part of another one goes by the other's name."""
        group = self.known.get(name, Group())
        whole = group.text("base") or name
        shown = self.borders.get(whole) or whole + self.suffix
        shape = tuple(_size(item) for item in group.group("dims").items[:MAX_RANK])
        order = " ".join(group.group("stride_order").items[:MAX_RANK])
        tensor = TensorInfo(shown, dtype_named(group.text("type")), shape, _format(order))
        return tensor, bool(group.text("const_payload_size"))


def _size(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else -1


def _format(order: str) -> str:
    """Return the words that the listing has for an order of strides."""
    axes = order.split()
    if axes == [str(axis) for axis in reversed(range(len(axes)))]:
        return "(Linear) Row major linear format"
    return FORMATS.get(order) or f"(Arbitrary) Format with stride order = [{','.join(axes)}]"


def _layer(word: str, statement: Group, suffix: str, tensors: _Tensors) -> Layer:
    read, written = _operands(word, statement)
    operands = [tensors.find(name) for name in read if name not in tensors.sizes]
    inputs = tuple(tensor for tensor, is_constant in operands if not is_constant)
    constants = tuple(tensor for tensor, is_constant in operands if is_constant)
    outputs = tuple(tensors.find(name)[0] for name in written)
    name, kind = statement.text("name") + suffix, LISTED_KINDS.get(word, word)
    tactic = statement.text("fqn") or statement.text("kernel") or None
    nodes = nodes_of(name, statement.text("layers"))
    macs = count_operands(kind, inputs, constants, outputs)
    return Layer(name, kind, inputs, outputs, constants, tactic, nodes, macs=macs)


def _operands(word: str, statement: Group) -> tuple[list[str], list[str]]:
    """Return what it reads and writes, without the sizes that a generated kernel takes last."""
    if word not in ("function", FUSION):
        return statement.group("input").items, statement.group("output").items
    read = statement.group("input_args").items
    sizes = _size(statement.text("shape_args_count"))
    return read[: len(read) - sizes] if sizes > 0 else read, statement.group("output_args").items
