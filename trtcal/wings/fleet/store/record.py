"""A run in a store: its Statement, and what is read from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from trtcal.documents import Document, from_fields
from trtcal.errors import InputError
from trtcal.runs.history import Entry
from trtcal.runs.origin import Configuration
from trtcal.runs.statement import ALGORITHM, RUN, STATEMENT
from trtcal.wings.fleet.store.objects import DIGEST

IDENTITY_DIGITS = 12  # digits of a digest that people see
SHORTEST_DIGEST = 6  # digits that stand for one
MOST_FILES = 20_000
LONGEST_NAME, LONGEST_PART, DEEPEST = 1000, 255, 8
KEY = r"[A-Za-z0-9][\w.-]{0,63}"
TAG = re.compile(rf"{KEY}=[\w.+@-]{{1,128}}", re.ASCII)
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')
DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


@dataclass(frozen=True)
class BuiltEngine:
    """An engine of a run: its file, what built it, and what it was built of.

    `model` is the digest of the quantized model; `method`, `calibration` and `plan` are those in its
    Q/DQ, None for a float model.
    """

    engine: str
    target: str
    backend: str
    backend_version: str
    model_name: str
    model: str
    gpu: str | None = None
    method: str | None = None
    calibration: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Record:
    """A run in a store: its Statement and the digest of that, what it says, and the tags of users.

    `subjects` are the run's files and `materials` what it was made of, by digest. `run` has its
    verdict, its figures, and the versions of all that took part. `model_name` is the FP32 model's.
    """

    run: Entry
    model_name: str
    subjects: dict[str, str]
    materials: dict[str, str]
    builds: tuple[BuiltEngine, ...]
    configuration: Configuration
    statement: Document
    digest: str
    tags: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The first digits of the digest."""
        return self.digest.removeprefix(ALGORITHM)[:IDENTITY_DIGITS]

    @property
    def all_tags(self) -> tuple[str, ...]:
        """The tags of the run itself (`[cost.tags]`), and those that it was given in the store."""
        own = (f"{name}={value}" for name, value in self.run.tags.items())
        return tuple(dict.fromkeys([*own, *self.tags]))

    @property
    def targets(self) -> tuple[str, ...]:
        """What its engines were built for."""
        return tuple(dict.fromkeys(build.target for build in self.builds))

    @property
    def model(self) -> str:
        """The digest of the FP32 model."""
        return self.materials["model"]

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {"digest": self.digest, "tags": list(self.tags), "statement": self.statement}


def record_of(document: Any, digest: str) -> Record:
    """Return what a Statement says; `LookupError`, `TypeError` or `ValueError` if a field does not fit.

    Names are contained: those of files inside of the run's folder.
    """
    if document["_type"] != STATEMENT or document["predicateType"] != RUN:
        raise ValueError("it is not an in-toto Statement about a run")
    predicate = document["predicate"]
    plain = {
        **predicate,
        "run": {**predicate["run"], "figures": {}},
        "subjects": _resources(document["subject"]),
        "materials": _resources(predicate["materials"]),
        "statement": document,
        "digest": digest,
        "tags": [],
    }
    record = from_fields(Record, plain)
    check_names(record.subjects)
    time_of(record.run.made_at)
    if "model" not in record.materials:
        raise ValueError("it does not name its model")
    figures = _figures(predicate["run"]["figures"])
    return replace(record, run=replace(record.run, figures=figures))


def _figures(value: Any) -> dict[tuple[str, str], float]:
    """Return figures by variant and name from the JSON of an `Entry`."""
    return {
        (str(variant), str(name)): float(figure)
        for variant, figures in value.items()
        for name, figure in figures.items()
    }


def _resources(value: Any) -> dict[str, str]:
    """Return name -> digest of in-toto ResourceDescriptors; `ValueError` if a name stands twice."""
    if not isinstance(value, list) or len(value) > MOST_FILES:
        raise ValueError(f"it has no list of up to {MOST_FILES} resources")
    resources: dict[str, str] = {}
    for resource in value:
        name, digest = resource["name"], ALGORITHM + str(resource["digest"]["sha256"])
        if not isinstance(name, str) or name in resources or not DIGEST.fullmatch(digest):
            raise ValueError(f"{name!r} is not a name, occurs twice, or has no SHA-256 digest")
        resources[name] = digest
    return resources


def check_names(names: Iterable[str]) -> None:
    """`ValueError` if a name is not that of a file in a folder, or two would be one file.

    A name must mean the same file on every system: no `..`, no root, drive or stream, no device, no
    second spelling in other letters, and no file that is another one's folder.
    """
    seen: set[str] = set()
    for name in names:
        parts = name.split("/")
        if len(name) > LONGEST_NAME or len(parts) > DEEPEST or not all(map(_is_plain, parts)):
            raise ValueError(f"{name!r} is not a plain file name")
        if name.casefold() in seen:
            raise ValueError(f"{name!r} occurs twice")
        seen.add(name.casefold())
    for name in seen:
        if parent := next(
            (str(parent) for parent in PurePosixPath(name).parents if str(parent) in seen), None
        ):
            raise ValueError(f"{parent!r} is both a file and a folder")


def _is_plain(part: str) -> bool:
    return (
        part not in ("", ".", "..")
        and len(part.encode("utf-8", "surrogatepass")) <= LONGEST_PART
        and part.isprintable()
        and not part.startswith(".")
        and not part.endswith((".", " "))
        and not FORBIDDEN.search(part)
        and not DEVICES.fullmatch(part)
    )


def time_of(made_at: str) -> datetime:
    """Return when a run was made, in UTC; `ValueError` if it does not say."""
    moment = datetime.fromisoformat(made_at)
    if moment.tzinfo is None:
        raise ValueError(f"{made_at!r} has no time zone")
    return moment.astimezone(timezone.utc)


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return tags, each once; `InputError` if one is not `key=value`."""
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise InputError(
                f"{tag!r} is not a tag",
                "use the form team=vision, with letters and digits, and ._+@- in the value",
            )
    return tuple(dict.fromkeys(tags))


@dataclass(frozen=True)
class Filter:
    """What runs of a store must have to be listed; None and nothing stand for all of them.

    `model` is a name or the first digits of a digest, `commit` the first digits of one.
    """

    name: str | None = None
    model: str | None = None
    target: str | None = None
    verdict: str | None = None
    commit: str | None = None
    tags: tuple[str, ...] = ()

    def fits(self, record: Record) -> bool:
        """Tell whether a run passes the filter."""
        run, configuration = record.run, record.configuration
        return (
            self.name in (None, run.name)
            and (self.model is None or self._is_model(record))
            and (self.target is None or self.target in record.targets)
            and (self.verdict is None or self.verdict.casefold() == run.verdict.casefold())
            and (self.commit is None or (configuration.commit or "").startswith(self.commit))
            and set(self.tags) <= set(record.all_tags)
        )

    def _is_model(self, record: Record) -> bool:
        digits = str(self.model).removeprefix(ALGORITHM)
        is_digest = len(digits) >= SHORTEST_DIGEST and record.model.removeprefix(
            ALGORITHM
        ).startswith(digits)
        return is_digest or self.model == record.model_name
