"""What a mutation makes of a seed: bytes, text, JSON, ONNX and `.npz`, each by its own structure.

Every function takes a seed and a `random.Random`, and returns bytes; the same one gives the same.
"""

import copy
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from trtcal.documents import digest_document

Chooser = random.Random
Mutator = Callable[[bytes, Chooser], bytes]

NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 5e-324, 0.5, 3.4e38)
WORDS = ("", "\0", "\x1b[31m", "a" * 5000, "../../x", "/dev/zero", "\u202e", "%s%n{}", "nan", "-1")
VALUES = (None, True, False, *NUMBERS, *WORDS, [], {}, [[]], [None], {"": {}}, [0, 1], {"a": 1})
TOKENS = (
    *("[", "]", "{", "}", "=", ":", ",", '"', "'", "#", "\\", "\n", "\r\n", "\0", "[[", "}}", "-"),
    *("1e999", "nan", "inf", "-0", "9" * 25, "9" * 5000, "0x", "true", "null", "1979-05-27", "é"),
    *(
        "\x1b[2J",
        "[" * 3000,
        "{" * 3000,
        "a." * 400,
        "a" * 3000,
        "7fffffff",
        "ffffffff",
        "7fc00000",
    ),
)
WORD = re.compile(rb"[\w.+-]+|[^\w\s]")


def of_bytes(seed: bytes, chooser: Chooser) -> bytes:
    """Change, lose, add, repeat or exchange a few bytes, or cut the end off."""
    data = bytearray(seed)
    for _ in range(chooser.randrange(1, 8)):
        place, length = chooser.randrange(len(data) + 1), chooser.choice((0, 1, 1, 2, 4, 8, 64))
        piece = chooser.choice(
            (
                chooser.randbytes(length),
                struct.pack("<q", chooser.choice((0, -1, 2**31 - 1, 2**62, 255)))[:length],
                bytes(data[: chooser.randrange(64)]),
            )
        )
        data[place : place + chooser.choice((0, length, length))] = piece
    return bytes(data[: chooser.randrange(len(data) + 1)] if chooser.random() < 0.1 else data)


def of_text(seed: bytes, chooser: Chooser) -> bytes:
    """Exchange words for hostile ones, and lose, repeat or exchange lines."""
    if chooser.random() < 0.2:
        return of_bytes(seed, chooser)
    data = seed
    for _ in range(chooser.randrange(1, 5)):
        data = chooser.choice((_words, _words, _lines))(data, chooser)
    return data


def _words(data: bytes, chooser: Chooser) -> bytes:
    found = list(WORD.finditer(data)) or [re.match(b"", data)]
    match = chooser.choice(found)
    token = chooser.choice((*TOKENS, *WORDS)).encode()
    return data[: match.start()] + token + data[match.end() :] if match else token


def _lines(data: bytes, chooser: Chooser) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    start, stop = sorted(chooser.randrange(len(lines) + 1) for _ in range(2))
    stop = min(stop, start + 3)
    return b"".join([*lines[:start], *lines[start:stop] * chooser.choice((0, 2, 3)), *lines[stop:]])


def of_json(seed: bytes, chooser: Chooser) -> bytes:
    """Change, lose, add or exchange values anywhere; mostly sealed again, so that a digest holds."""
    if chooser.random() < 0.15:
        return of_text(seed, chooser)
    whole = {"": json.loads(seed)}
    for _ in range(chooser.choice((1, 1, 1, 2, 4))):
        _change(whole, chooser)
    value = whole.get("")
    if isinstance(value, dict) and "digest" in value and chooser.random() < 0.9:
        value = {**value, "digest": _digest(value)}
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _digest(value: Any) -> Any:
    try:
        return digest_document(value)
    except (ValueError, TypeError):
        return value["digest"]


def _change(whole: dict[str, Any], chooser: Chooser) -> None:
    places = list(_places(whole)) or [({"": 0}, "")]
    holder, key = chooser.choice(places)
    act = chooser.randrange(8)
    if act < 4:
        holder[key] = copy.deepcopy(chooser.choice(VALUES))
    elif act == 4:
        del holder[key]
    elif act == 5:
        other, place = chooser.choice(places)
        holder[key] = (
            copy.deepcopy(other[place]) if place in other or isinstance(other, list) else 0
        )
    elif act == 6:
        holder[key] = _bent(holder[key], chooser)
    else:
        holder[key] = _nested(chooser.choice((3, 90, 2000)), chooser.random() < 0.5)


def _places(value: Any) -> Any:
    pending = [value]
    while pending:
        holder = pending.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], (dict, list)) and holder[key]:
                pending.append(holder[key])


def _bent(value: Any, chooser: Chooser) -> Any:
    """Return a value of the same type, and another."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return chooser.choice((*NUMBERS, -value, value + 1, value / 2 if abs(value) < 1e300 else 0))
    if isinstance(value, str):
        return chooser.choice((*WORDS, value[1:], value + "x", value.upper(), value[::-1]))
    if isinstance(value, list):
        return chooser.choice((value[1:], value * 2, value[::-1], [value]))
    return {chooser.choice((key, key, key + "x")): one for key, one in value.items()}


def _nested(depth: int, as_list: bool) -> Any:
    value: Any = 0
    for _ in range(min(depth, 900)):
        value = [value] if as_list else {"a": value}
    return value


def of_toml(seed: bytes, chooser: Chooser) -> bytes:
    """Exchange the value of a key, or its name; else as text."""
    if chooser.random() < 0.4:
        return of_text(seed, chooser)
    lines = seed.decode().splitlines()
    places = [number for number, line in enumerate(lines) if "=" in line and line[0] != "#"]
    for place in chooser.choices(places, k=chooser.randrange(1, 3)):
        key, _, value = lines[place].partition("=")
        like = NUMBERS if value.strip()[0] in "0123456789" else WORDS
        made = chooser.choice(
            (
                *map(_toml, VALUES),
                *map(_toml, like * 3),
                "[" * 200 + "]" * 200,
                "{}",
                value * 2,
                "0x" + "f" * 3000,
                "nan",
            )
        )
        lines[place] = f"{key}= {made}" if chooser.random() < 0.8 else f"{key[:-2]}x = {value}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


TOML = ("[" * 200 + "]" * 200, "{}", "0x" + "f" * 3000, "nan")


def _toml(value: Any) -> str:
    text = json.dumps(value) if value is not None else "inf"
    return re.sub(r'(?<=[{,])("[^"]*"):', r"\1 = ", text)


def of_onnx(seed: bytes, chooser: Chooser) -> bytes:
    """Change fields anywhere in a model's protobuf message; else its bytes."""
    if chooser.random() < 0.25:
        return of_bytes(seed, chooser)
    proto = onnx.load_from_string(seed)
    for _ in range(chooser.choice((1, 1, 2, 4))):
        messages = list(_messages(proto))
        _change_field(chooser.choice(messages), chooser, [node.name for node in proto.graph.node])
    return bytes(proto.SerializeToString())


def _messages(message: Any) -> Any:
    pending = [message]
    while pending:
        one = pending.pop()
        yield one
        for field, value in one.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend(value if hasattr(value, "extend") else [value])


def _change_field(message: Any, chooser: Chooser, names: list[str]) -> None:
    present = [field for field, _ in message.ListFields()]
    field = chooser.choice(present or list(message.DESCRIPTOR.fields))
    value = getattr(message, field.name)
    if hasattr(value, "extend"):
        _change_list(field, value, chooser)
    elif field.type == field.TYPE_MESSAGE or chooser.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, value, chooser))


def _change_list(field: Any, value: Any, chooser: Chooser) -> None:
    if not len(value):
        return
    place = chooser.randrange(len(value))
    if field.type == field.TYPE_MESSAGE:
        if chooser.random() < 0.5:
            del value[place]
        else:
            value.add().CopyFrom(
                value[chooser.randrange(len(value) - 1)] if len(value) > 1 else value[0]
            )
    elif chooser.random() < 0.3:
        del value[place]
    elif chooser.random() < 0.3:
        value.append(value[0])
    else:
        value[place] = _scalar(field, value[place], chooser)


INTEGERS = (0, -1, 1, 2, 3, 7, 16, 100, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63))


def _scalar(field: Any, value: Any, chooser: Chooser) -> Any:
    if isinstance(value, str):
        return chooser.choice((*WORDS[:7], value[1:], value + "x", "Conv", "If", "Loop", "Reshape"))
    if isinstance(value, bytes):
        return chooser.choice((b"", value[1:], value * 2, of_bytes(value, chooser), b"x"))
    if isinstance(value, float):
        return chooser.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    if field.enum_type is not None:
        return chooser.choice([one.number for one in field.enum_type.values])
    narrow = field.type in (field.TYPE_INT32, field.TYPE_ENUM)
    unsigned = field.type in (field.TYPE_UINT32, field.TYPE_UINT64)
    made = chooser.choice((*INTEGERS, value + 1, value - 1))
    return abs(made) % 2**31 if narrow or unsigned else max(-(2**63), min(made, 2**63 - 1))


def of_external(seed: bytes, chooser: Chooser) -> bytes:
    """Change where a model's constants lie in the file beside it; of that file, its bytes."""
    try:
        proto = onnx.load_from_string(seed)
    except DecodeError:
        return of_bytes(seed, chooser)
    tensors = [one for one in proto.graph.initializer if one.external_data]
    for tensor in chooser.choices(tensors, k=chooser.choice((1, 1, 2))):
        entry = chooser.choice(tensor.external_data)
        entry.value = chooser.choice((*PLACES, *map(str, INTEGERS), entry.value))
        if chooser.random() < 0.3:
            _change_field(tensor, chooser, [])
    return bytes(proto.SerializeToString())


PLACES = (
    "../external.bin",
    "/etc/passwd",
    "/dev/zero",
    ".",
    "",
    "external.onnx",
    "x\0y",
    "a" * 300,
)
HEADER = re.compile(rb"\{'descr':.*?\}", re.DOTALL)


def of_npy(seed: bytes, chooser: Chooser) -> bytes:
    """Change the header of a `.npy`, or its bytes."""
    if chooser.random() < 0.3:
        return of_bytes(seed, chooser)
    end = 10 + int.from_bytes(seed[8:10], "little")
    header, values = seed[10:end], seed[end:]
    descr = chooser.choice(
        (b"'<f4'", b"'<f8'", b"'|O'", b"'<U9'", b"'|V3'", b"'>f4'", b"'<c8'", b"[]")
    )
    shape = chooser.choice((b"()", b"(-1,)", b"(1,)", b"(99999999999,)", b"(0, 4)", b"(1, 1, 8)"))
    if chooser.random() < 0.5:
        header = re.sub(rb"'[<|>][^']*'|\[\]", descr, header, count=1)
    if chooser.random() < 0.5:
        header = re.sub(rb"\([^)]*\)", shape, header)
    if chooser.random() < 0.3:
        values = of_bytes(values, chooser)
    return seed[:8] + struct.pack("<H", len(header)) + header + values


def of_npz(seed: bytes, chooser: Chooser) -> bytes:
    """Change members of an `.npz`, their names, or its bytes; rarely add one that expands a lot."""
    if chooser.random() < 0.25:
        return of_bytes(seed, chooser)
    source, target = zipfile.ZipFile(io.BytesIO(seed)), io.BytesIO()
    names = source.namelist()
    chosen = chooser.choice(names)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            data = source.read(name)
            if name == chosen:
                if chooser.random() < 0.1:
                    continue
                data = of_npy(data, chooser)
                name = chooser.choice(
                    (name, name, name, "x.npy", "../y.npy", "a" * 300, "labels.npy")
                )
            archive.writestr(name, data)
        if chooser.random() < 0.05:
            archive.writestr("bomb.npy", _bomb(chooser.choice((1 << 20, 1 << 26))))
    return target.getvalue()


def _bomb(size: int) -> bytes:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (size // 4)
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(size)
