"""The only room that writes files: atomically, sealed with a digest, and readable again.

A *document* is a JSON object with `kind`, `schema_version` and `digest`. The digest covers everything
except `digest` itself and `measured`: what stands under `measured` (times, sizes of logs) differs
from run to run, everything else must not.

A frozen dataclass becomes a document by its base class:

    @dataclass(frozen=True)
    class Pair(Sealed, kind="pair", command="trtcal pair"):
        name: str
        ranges: dict[str, TensorRange]          # TensorRange is a dataclass too

    pair.write(path); Pair.read(path) == pair
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from trtcal.documents.bounds import (
    ARRAYS_BYTES,
    check_file,
    check_growth,
    in_time,
    parse_json,
    read_bytes,
)
from trtcal.documents.digests import (
    FILES,
    Document,
    canonical_json,
    digest_blocks,
    digest_bytes,
    digest_document,
    digest_file,
    json_bytes,
    read_record,
    seal,
    to_json,
)
from trtcal.documents.overview import Shown
from trtcal.documents.schema import is_convertible
from trtcal.documents.staging import (
    Workplace,
    clear_places,
    files_in,
    is_staging,
    place_in_run,
    recover,
    removing,
    replacing,
    replacing_entries,
    resuming_entries,
    together,
    unfinished,
    unwritable,
)
from trtcal.documents.streams import command_line
from trtcal.errors import InputError, ResourceError, __version__

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")
Kind = TypeVar("Kind", bound="Sealed")
FILE_HINT = "give the file that the previous stage wrote"
CACHE_HINT = "import a calibration cache first: `trtcal ranges import FILE --model MODEL`"
LOCK_S = 10.0


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def state_path(name: str) -> Path:
    """Return where a file of the user's own lies: `$XDG_STATE_HOME/trtcal`, else `~/.local/state`."""
    return _home("XDG_STATE_HOME", "~/.local/state") / name


def cache_path(name: str) -> Path:
    """Return where lies what can be made again: in `$XDG_CACHE_HOME/trtcal`, else `~/.cache/trtcal`."""
    return _home("XDG_CACHE_HOME", "~/.cache") / name


def _home(variable: str, default: str) -> Path:
    home = os.environ.get(variable, "")
    return Path(home if os.path.isabs(home) else os.path.expanduser(default), "trtcal")


def append_line(path: Path, line: str) -> None:
    """Add one line to a file of the user's own, to which other processes may be adding lines too.

    A line that an interrupted writer left incomplete is ended first.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{path}.lock", mode=0o600, timeout=LOCK_S), path.open("ab+") as file:
            path.chmod(0o600)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            broken = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * broken + line.encode() + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error


def checked_digest(path: Path) -> str:
    """Return a file's digest; `InputError` if it is in a run's folder, and not as trtcal wrote it."""
    digest = digest_file(path)
    if run := place_in_run(path):
        folder, name = run
        if (read_record(folder) or {}).get(name.as_posix(), digest) != digest:
            again = command_line("verify", folder)
            raise InputError(
                f"{path} was changed after trtcal wrote it (its digest does not match {FILES})",
                f"restore the original file, or run again; `{again}` names all changed files",
            )
    return digest


def write_document(path: Path, document: Document) -> Document:
    """Seal a document, write it to `path` and return it sealed."""
    sealed = seal(document)
    write_json(path, sealed)
    return sealed


def write_json(path: Path, value: object) -> None:
    """Write a JSON value to `path`, whole or not at all."""
    write_bytes(path, json_bytes(value))


def write_npz(
    path: Path, arrays: Iterable[tuple[str, npt.NDArray[Any]]], compressed: bool = True
) -> None:
    """Write named arrays to an `.npz`, whole or not at all, holding one at a time."""
    import numpy as np

    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", method) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of an `.npz` without unpickling; `InputError` if it can't be."""
    import numpy as np

    recover(path.parent)
    size = check_file(path, ARRAYS_BYTES)
    with unpacking(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with zipfile.ZipFile(file) as members:
            check_growth(path, size, sum(member.file_size for member in members.infolist()))
        return {name: _member(archive, name) for name in archive.files}


def _member(archive: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """Return an array; `ValueError` if it is none, whatever numpy's parser raises."""
    import numpy as np

    try:
        array = archive[name]
    except (OSError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        raise ValueError(str(error)) from error
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds other values than arrays")
    return array


UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise about a damaged file."""


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Turn errors of numpy and zipfile about the arrays in a file into errors that name it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "check the path") from None
    except MemoryError:
        raise ResourceError(f"{path} does not fit into memory", "give fewer samples") from None
    except UNREADABLE as error:
        is_pickle = "pickle" in str(error)
        text = "it holds Python objects, or is not an .npz" if is_pickle else str(error)
        hint = "write plain arrays, with numpy.save or numpy.savez"
        raise InputError(f"{path} cannot be read: {text}", hint) from error


def read_json(path: Path) -> Any:
    """Read JSON from `path`; `InputError` if it is missing, not JSON, or beyond `bounds`."""
    recover(path.parent)
    data = read_bytes(path)
    try:
        with in_time(path, len(data)):
            return parse_json(data)
    except UnicodeError:
        raise InputError(f"{path} is not JSON: it is not text", FILE_HINT) from None
    except ValueError as error:
        hint = CACHE_HINT if data.startswith(b"TRT-") else FILE_HINT
        raise InputError(f"{path} is not JSON: {error}", hint) from error


def read_document(path: Path, kind: str, version: int = 1, command: str = "") -> Document:
    """Read a sealed document; `InputError` if it is of another kind or version, or altered.

    `command` is the one that writes such a document, which the hint names.
    """
    if command and not path.exists():
        raise InputError(f"{path} does not exist", f"check the path, or write it: `{command}`")
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != kind:
        other = document.get("kind") if isinstance(document, dict) else type(document).__name__
        hint = f"give a {kind} that trtcal wrote"
        raise InputError(f"{path} is not a trtcal {kind} (its kind is {other!r})", hint)
    again = f"write it again: `{command}`" if command else "write it again with this trtcal"
    written = document.get("schema_version")
    if written != version:
        upgrade = f"convert it: `{command_line('upgrade', path)}`"
        what = f"{path} has schema version {written!r}, this trtcal reads {version}"
        raise InputError(what, upgrade if is_convertible(kind, written) else again)
    if document.get("digest") != digest_document(document):
        what = f"{path} was changed after it was written (its digest does not match)"
        raise InputError(what, f"restore the original file, or {again}")
    return document


def parsing(path: Path, build: Callable[[], T]) -> T:
    """Run `build()` on a document's fields; a missing or ill-typed field is an `InputError`."""
    try:
        return build()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        hint = "write it again with trtcal"
        raise InputError(f"{path} has a missing or wrong field: {error!r}", hint) from error


class Sealed(Shown):
    """Base of a frozen dataclass whose fields are a document's.

    `class Thing(Sealed, kind="thing", command="trtcal make", version=1, measured=("times",))`:
    `command` writes such documents, fields named in `measured` are outside the digest.
    """

    kind: ClassVar[str]
    schema_version: ClassVar[int]
    command: ClassVar[str]
    outside: ClassVar[tuple[str, ...]]

    def __init_subclass__(
        cls, *, kind: str, command: str, version: int = 1, measured: tuple[str, ...] = ()
    ) -> None:
        super().__init_subclass__()
        cls.kind, cls.command, cls.schema_version, cls.outside = kind, command, version, measured

    def to_document(self) -> Document:
        """Return the sealed document."""
        body = to_fields(self)
        measured = {"measured": {name: body.pop(name) for name in self.outside}}
        head = {"kind": self.kind, "schema_version": self.schema_version, "trtcal": __version__}
        return seal({**head, **body, **(measured if self.outside else {})})

    @classmethod
    def from_document(cls: type[Kind], document: Document) -> Kind:
        """Return a document's object; `LookupError` or `TypeError` if a field does not fit."""
        return from_fields(cls, {**document, **document.get("measured", {})})

    @property
    def digest(self) -> str:
        """The document's digest."""
        return str(self.to_document()["digest"])

    def write(self, path: str | os.PathLike[str]) -> Document:
        """Write the document to `path` and return it."""
        return write_document(Path(path), self.to_document())

    @classmethod
    def read(cls: type[Kind], path: str | os.PathLike[str]) -> Kind:
        """Read a file of `write`; `InputError` if it is missing, altered, older or malformed."""
        document = read_document(Path(path), cls.kind, cls.schema_version, cls.command)
        return parsing(Path(path), lambda: cls.from_document(document))


def to_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as JSON values, nested dataclasses as objects."""
    return {name: _plain(item) for name, item in asdict(value).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_fields(kind: type[T], value: object) -> T:
    """Return a dataclass from the JSON object that `to_fields` made of it.

    Keys that are no fields are left out. `LookupError` for a missing field without a default,
    `TypeError` for a value of another type than its field's annotation.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{kind.__name__} is an object, not {value!r}")
    types = _types_of(kind)  # type: ignore[arg-type]  # classes are hashable
    present = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]  # it is a dataclass
        if field.name in value or field.default is field.default_factory  # both are MISSING
    ]
    return kind(**{name: _typed(types[name], value[name]) for name in present})


_types_of = cache(get_type_hints)


def _typed(kind: Any, value: Any) -> Any:
    """Return a JSON value as what an annotation says; `TypeError` if it is something else."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _first_of(arguments, value)
    if origin is Literal and value in arguments:
        return value
    if origin in (tuple, list, Sequence) and isinstance(value, list):
        is_fixed = origin is tuple and arguments[-1] is not Ellipsis
        kinds = arguments if is_fixed else [arguments[0]] * len(value)
        items = [_typed(kind, item) for kind, item in zip(kinds, value, strict=True)]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _typed(arguments[1], item) for key, item in value.items()}
    if is_dataclass(kind):
        return from_fields(kind, value)  # type: ignore[arg-type]  # it is a class, no instance
    if origin is None and _fits(kind, value):
        return Path(value) if kind is Path else value
    raise TypeError(f"{value!r} is not a {kind}")


def _fits(kind: Any, value: object) -> bool:
    plain = str if kind is Path else (int, float) if kind is float else kind
    is_same = isinstance(value, bool) == (kind is bool)
    return kind in (Any, object) or (is_same and isinstance(value, plain))


def _first_of(kinds: Iterable[Any], value: Any) -> Any:
    """Return a value as the first alternative of a union that it fits."""
    for kind in kinds:
        with suppress(TypeError, LookupError, ValueError):
            return _typed(kind, value)
    raise TypeError(f"{value!r} is not one of {kinds}")
