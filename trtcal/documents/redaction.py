"""What names persons, machines and places, taken out of what leaves this machine: `--redact`.

Position decides before spelling: names of tensors, nodes and variants stay, whatever they look like. So
do users and hosts called by an ordinary word: "data" names nobody, and much else has that name.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from trtcal.documents.digests import Document, digest_document, seal
from trtcal.documents.schema import replace_texts

REDACTED = "[redacted]"
FLAG = "redacted"
PRIVATE = ("user", "host", "dataset_name")
FILES_OF_DATA = ("data", "labels", "slices")
PLACES_OF_LABELS = ("csv", "folders")
NAMING = {"name", "names", "model_name", "root", "subject"}
NAMING |= {
    word + end for word in ("node", "tensor", "layer", "input", "output") for end in ("", "s")
}
"""Keys of names in a graph, of variants and of engines."""
FLAGGED = ("report", "run")
"""Kinds of documents that say that they are redacted."""
ROOTS = (
    *("home", "Users", "root", "tmp", "var", "usr", "opt", "mnt", "media", "srv", "etc", "run"),
    *("private", "Volumes", "workspace", "scratch", "proc", "dev", "nix", "snap", "lib", "bin"),
)
TOKEN = re.compile(r"[^\s\"'`,;()<>|]+")
LOGIN = re.compile(r"ssh://\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<=ssh )\S*@[^\s\"'`]+")
FILE_OPTION = re.compile(r"(?<= --)(data|test|labels|metric-file|slices) ('[^']*'|\S+)")
SAMPLE = re.compile(r"(?i)\S*\.(?:png|jpe?g|bmp|gif|tiff?|webp|ppm|npy|npz|wav|dcm)")
PLAIN_FILE = re.compile(r"\w[^\\/]*\.\w{1,12}")
EDGE = ".:[]{}"


def names_here() -> set[str]:
    """Return the names of this machine and of its user, as the system and the environment say."""
    variables = ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")
    names = {os.environ.get(name, "") for name in variables} | {Path.home().name}
    with suppress(KeyError, OSError, ImportError):  # a container without a name for its user
        names.add(getpass.getuser())
    host = socket.gethostname()
    return {*names, host, host.partition(".")[0]}


@cache
def ordinary_words() -> frozenset[str]:
    """Return words that trtcal itself uses, in its tables of messages, keys and operators."""
    tables = Path(__file__).parents[1].rglob("*.toml")
    texts = (table.read_text(encoding="utf-8").lower() for table in tables)
    words = {word for text in texts for word in re.findall(r"[^\W\d_]+", text)}
    return frozenset(words | set(map(str.lower, ROOTS)))


class Redaction:
    """Takes names and places out of documents, and of texts that belong to them.

    All documents of one run are given at once: a sample or slice is called the same in each.

    >>> Redaction([]).text("cannot read /home/zelda/secret/model.onnx: no such file")
    'cannot read [redacted]/model.onnx: no such file'
    """

    def __init__(self, documents: Iterable[object]) -> None:
        every = [*documents]
        self.known = {old: new for value in every for old, new in _samples(value)}
        slices = dict.fromkeys(name for value in every for name in _slices(value))
        self.known |= {old: f"{old.partition('=')[0]}={n}" for n, old in enumerate(slices, 1)}
        self.names = {name for value in every for name in _names(value)} - self.known.keys()
        folders = [f for f in (str(Path.home()), str(Path.cwd())) if f.count("/") > 1]
        roots = "|".join(map(re.escape, {*ROOTS, *os.listdir("/")}))
        self._folders = re.compile(rf"(?<![\w.~])(?:{_any(folders)})(?![\w.-])")
        start = rf"/(?:{roots})(?![^/\\])|[A-Za-z]:\\|\\\\(?=\w)|~[\w.-]*/|(?:\.\./)+(?=[^/]+/)"
        self._place = re.compile(rf"(?<![\w./])(?:file://|{start}|\[redacted\]/)[^\s:]*")
        people = {*names_here(), *(part for value in every for part in _hosts(value))}
        self._people = re.compile(rf"(?i)(?<!\w)(?:{_any(filter(self._is_telling, people))})(?!\w)")
        telling = filter(self._is_telling, self.known)
        self._known = re.compile(rf"(?<![\w/.-])(?:{_any(telling)})(?![\w/-])")

    def _is_telling(self, name: str) -> bool:
        """Whether a name tells something where it stands in a text: it is no ordinary word."""
        return len(name) > 2 and name.lower() not in ordinary_words() and name not in self.names

    def text(self, text: str) -> str:
        """Return a text without names and places; of a file its name stays."""
        text = self._known.sub(lambda match: self.known[match[0]], text)
        if text not in self.names:
            text = LOGIN.sub(REDACTED, self._folders.sub(REDACTED, text))
        return TOKEN.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: str) -> str:
        plain = word.rstrip(EDGE)
        if word in self.names or plain.lstrip(EDGE) in self.names:
            return word
        if SAMPLE.fullmatch(plain):
            return REDACTED + word[len(plain) :]
        return self._people.sub(REDACTED, self._place.sub(lambda match: _file_of(match[0]), word))

    def value(self, value: Any, key: str = "") -> Any:
        """Return a JSON value without names and places; `key` is the key that it stands under."""
        if isinstance(value, list):
            return [self.value(item, key) for item in value if not _is_value_of_sample(item)]
        if isinstance(value, dict):
            new = {name: self.value(item, name) for name, item in value.items()}
            return {**new, "name": _numbered(value)} if _is_sample(value) else new
        if not isinstance(value, str):
            return value
        is_file = key in FILES_OF_DATA and value not in PLACES_OF_LABELS
        if key in PRIVATE or is_file:
            return REDACTED
        return self.text(FILE_OPTION.sub(rf"\1 {REDACTED}", value) if key == "command" else value)

    def documents(self, documents: Mapping[Any, Any], changed: Mapping[str, str]) -> dict[Any, Any]:
        """Return documents, sealed again if they were, whose digests of each other are the new ones.

        `changed` are the digests of other files before and after.
        """
        plain = {place: self.value(document) for place, document in documents.items()}
        before, digests = None, dict(changed)
        while digests != before:
            before, new_of = digests, partial(_new_of, digests)
            done = {
                place: _sealed(replace_texts(plain[place], new_of), old)
                for place, old in documents.items()
            }
            pairs = ((_digest(old), _digest(done[place])) for place, old in documents.items())
            digests = {**changed, **{old: new for old, new in pairs if old != new}}
        return done


def redacted(document: Document) -> Document:
    """Return a document that is redacted alone; digests of others in it stay those of the originals."""
    done: Document = Redaction([document]).documents({"": document}, {})[""]
    return done


def _new_of(digests: Mapping[str, str], text: str) -> str:
    return digests.get(text, text)


def _any(names: Iterable[str]) -> str:
    """Return a pattern of any of the names, the longest first; of nothing if there is none."""
    ordered = sorted(filter(None, names), key=len, reverse=True)
    return "|".join(map(re.escape, ordered)) or "(?!)"


def _file_of(place: str) -> str:
    """Return a path without its folders: what ends it, if that is the name of a file."""
    *folders, last = re.split(r"[\\/]", place)
    is_inside = len(folders) > 2 or folders[0].startswith(("~", "..", REDACTED))  # of a home folder
    is_file = is_inside and PLAIN_FILE.fullmatch(last) and not SAMPLE.fullmatch(last)
    return f"{REDACTED}/{last}" if is_file else REDACTED


def _is_sample(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("name"), str) and isinstance(value.get("index"), int)


def _is_value_of_sample(value: object) -> bool:
    """Whether it is one of a tensor's largest values, with the sample that it is of."""
    return isinstance(value, dict) and {"index", "value"} <= value.keys()


def _numbered(value: Mapping[str, Any]) -> str:
    return f"sample {value['index']}"


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield every JSON object in a value."""
    if isinstance(value, dict):
        yield value
    items = value.values() if isinstance(value, dict) else value
    for item in items if isinstance(value, (dict, list)) else ():  # type: ignore[attr-defined]
        yield from _objects(item)


def _samples(value: object) -> Iterator[tuple[str, str]]:
    for each in _objects(value):
        if _is_sample(each):
            yield each["name"], _numbered(each)
        if isinstance(each.get("dataset_name"), str):
            yield each["dataset_name"], REDACTED


def _slices(value: object) -> Iterator[str]:
    for each in _objects(value):
        if each.get("by") == "slices":
            yield from (group["name"] for group in each.get("groups", ()))


def _hosts(value: object) -> Iterator[str]:
    for each in _objects(value):
        if isinstance(host := each.get("host"), str):
            yield from re.split(r"ssh://|[@:/]", host)


def _names(value: object) -> Iterator[str]:
    """Yield the keys of all objects, and the names of what is in a graph, without those of samples."""
    for each in _objects(value):
        yield from each
        for key, item in each.items():
            if key.lower() in NAMING and not (key == "name" and _is_sample(each)):
                items = item if isinstance(item, list) else [item]
                yield from (name for name in items if isinstance(name, str))


def _digest(document: Any) -> str:
    return str(document.get("digest")) if isinstance(document, dict) else ""


def _sealed(new: Any, old: Any) -> Any:
    """Return a document sealed if the old one was; the digests of logs are of another kind."""
    if isinstance(old, dict) and old.get("kind") in FLAGGED:
        return seal({**new, FLAG: True})
    is_sealed = isinstance(old, dict) and old.get("digest") == digest_document(old)
    return seal(new) if is_sealed else new
