"""`checkpoints.jsonl`: what each pass and stage got and made, by digest, one JSON object a line.

    {"number": 3, "stage": "prepare", "name": "constants", "version": "1", "options": "sha256:...",
     "before": "sha256:...", "after": "sha256:...", "subject": "", "tool": "trtcal",
     "tool_version": "0.1.0", "previous": "sha256:...", "measured": {"artifact": null},
     "digest": "sha256:..."}

`digest` is that of the line without `digest` and `measured`, and `previous` is the `digest` of the
line before: a line that was changed, cut out, added or moved is found. Lines cut off at the end are
found by whoever knows the last digest, as `run.json` does.

    write_chain(folder / FILE, checkpoints)        # returns the digest of the last line
    read_chain(folder / FILE) == tuple(checkpoints)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtcal.documents import (
    Document,
    canonical_json,
    digest_bytes,
    digest_document,
    from_fields,
    in_time,
    parsing,
    recover,
    to_fields,
    write_bytes,
)
from trtcal.documents.bounds import MB, parse_json, read_bytes
from trtcal.errors import InputError, __version__

FILE = "checkpoints.jsonl"
MOST_BYTES = 64 * MB
RESTORE = "restore the original file, or run again: `trtcal run`"


def digest_options(options: object) -> str:
    """Return the digest of a pass's or stage's options, any JSON value."""
    return digest_bytes(canonical_json(options))


NO_OPTIONS = digest_options({})


@dataclass(frozen=True)
class Checkpoint:
    """One execution of a pass or stage.

    `name` is the pass, or what a stage without passes made; `subject` the model, variant or build that
    it worked on, "" if a run has one only. `before` and `after` are digests of what it got and made,
    `options` the digest of its options, `version` the pass's own ("1", or the digest of a script).
    `artifact` is the digest of a file in which equal results differ, as an engine's identity does: it
    is recorded and not compared.
    """

    stage: str
    name: str
    before: str
    after: str
    version: str = ""
    options: str = NO_OPTIONS
    subject: str = ""
    tool: str = "trtcal"
    tool_version: str = __version__
    artifact: str | None = None

    @property
    def place(self) -> tuple[str, ...]:
        """What executions of one pass or stage on one subject have in common."""
        return self.stage, self.subject, self.name

    @property
    def key(self) -> tuple[str, ...]:
        """All that decides on the output: an equal key with another output is a defect."""
        made_by = (self.version, self.options, self.before, self.tool, self.tool_version)
        return (*self.place, *made_by)


def chained(checkpoints: Iterable[Checkpoint]) -> list[Document]:
    """Return the lines of a chain as JSON objects."""
    lines, previous = list[Document](), None
    for number, checkpoint in enumerate(checkpoints, 1):
        fields = to_fields(checkpoint)
        measured = {"artifact": fields.pop("artifact")}
        line = {"number": number, **fields, "previous": previous, "measured": measured}
        previous = digest_document(line)
        lines.append({**line, "digest": previous})
    return lines


def write_chain(path: Path, checkpoints: Iterable[Checkpoint]) -> str:
    """Write a chain, whole or not at all; return the digest of its last line ("" of an empty one)."""
    lines = chained(checkpoints)
    write_bytes(path, b"".join(canonical_json(line) + b"\n" for line in lines))
    return str(lines[-1]["digest"]) if lines else ""


def read_chain(path: Path, last: str | None = None) -> tuple[Checkpoint, ...]:
    """Read a chain; `InputError` if a line was changed, added, moved or cut out, or it is too large.

    `last` is the digest that its last line must have, which finds lines that were cut off at the end.
    """
    recover(path.parent)
    data = read_bytes(path, MOST_BYTES)
    with in_time(path, len(data)):
        lines = [_parsed(path, *numbered) for numbered in enumerate(data.splitlines(), 1)]
        end = str(_checked(path, lines))
        if last is not None and end != last:
            raise _broken(path, len(lines), "lines after it are missing")
        flat = ({**line, **line["measured"]} for line in lines)
        return parsing(path, lambda: tuple(from_fields(Checkpoint, line) for line in flat))


def _parsed(path: Path, number: int, text: bytes) -> Document:
    try:
        line = parse_json(text)
    except (UnicodeError, ValueError) as error:
        raise _broken(path, number, f"it is not JSON: {error}") from None
    if not isinstance(line, dict):
        raise _broken(path, number, "it is not a JSON object")
    return line


def _checked(path: Path, lines: Sequence[Document]) -> str:
    """Return the last digest of lines that follow each other; `InputError` names one that does not."""
    previous = None
    for number, line in enumerate(lines, 1):
        if line.get("digest") != digest_document(line):
            raise _broken(path, number, "its digest does not match")
        if line.get("previous") != previous or line.get("number") != number:
            raise _broken(path, number, "it does not follow the line before")
        previous = line["digest"]
    return previous or ""


def _broken(path: Path, number: int, why: str) -> InputError:
    return InputError(f"{path} was changed after it was written: line {number}: {why}", RESTORE)
