"""Recomputes every digest of a report, a document or a run folder, and says which does not hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.documents import digest_document, digest_file, read_json
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError
from trtcal.reporting.render import changed_parts
from trtcal.runs.bundle.verifying import SIGNATURE, Options
from trtcal.runs.bundle.verifying import verify as verify_bundle
from trtcal.runs.follower import follower_kinds

RUN, BUILD = "run", "build"
LOG = "build.log"


@dataclass(frozen=True)
class Check:
    """One digest: what it is of, and why it does not hold (None if it does)."""

    what: str
    problem: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it is as it was."""
        return self.problem is None


def verify(path: Path) -> list[Check]:
    """Return every check of a page, a JSON document or a folder; `InputError` if there is nothing."""
    if (path / SIGNATURE).is_file():
        checks = [_of_bundle(path)]
    elif path.is_dir():
        checks = list(_of_folder(path))
    elif path.suffix == ".html":
        checks = [_of_page(path)]
    else:
        checks = _of_document(path, path.name) or []
    if not checks:
        raise InputError(
            f"{path} has no digest of trtcal",
            "give a report, a JSON document of trtcal or the folder of a run",
        )
    return checks


def _of_bundle(path: Path) -> Check:
    """Return the check of a bundle's files; `trtcal bundle verify` checks who signed it, and more."""
    result = verify_bundle(path, Options(allow_unsigned=True, self_test=False))
    return Check(path.name, result.verdict if result.status else None)


def _of_page(path: Path) -> Check:
    parts = changed_parts(read_bytes(path), str(path))
    return Check(path.name, f"changed: {', '.join(parts)}" if parts else None)


def _of_folder(folder: Path) -> Iterator[Check]:
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        for file in sorted(files):
            path = Path(name) / file
            if path.suffix == ".html":
                yield _of_page(path)
            elif path.suffix == ".json":
                yield from _of_document(path, path.relative_to(folder).as_posix()) or []
            elif "run.json" not in files:
                yield from _of_follower(path, path.relative_to(folder).as_posix())


def _of_document(path: Path, name: str) -> list[Check] | None:
    """Return the checks of a sealed document; None if it is none."""
    document = read_json(path)
    if not isinstance(document, dict) or not {"kind", "digest"} <= set(document):
        return None
    wrong = document["digest"] != digest_document(document)
    checks = [Check(name, "changed: its digest differs" if wrong else None)]
    if document["kind"] == BUILD:
        checks += _of_build(document, path.parent, name)
    if document["kind"] == RUN:
        checks += _of_run(document, path.parent)
    return checks


def _of_build(document: dict[str, Any], folder: Path, name: str) -> Iterator[Check]:
    """Yield checks of the files that a manifest gives digests of."""
    measured = document.get("measured") or {}
    files = {str(document.get("engine_file")): "engine_digest", LOG: "log_digest"}
    for file, key in files.items():
        if key in measured:
            yield _of_file(folder / Path(file).name, measured[key], f"{name}: {file}")


def _of_file(path: Path, sealed: object, what: str) -> Check:
    if not path.is_file():
        return Check(what, "missing")
    return Check(what, None if digest_file(path) == sealed else "changed: its digest differs")


def _of_follower(path: Path, what: str, digest: str | None = None) -> Iterator[Check]:
    """Yield the check of a file that a follower of runs writes and can check."""
    for kind in follower_kinds():
        if path.name in kind.outputs[:1]:
            yield Check(what, kind.problem(path.parent, digest))


def _of_run(document: dict[str, Any], folder: Path) -> Iterator[Check]:
    """Yield a check of every output that is a document: whether it is the one that the run made."""
    stages = document.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        output = str(stage.get("output")) if isinstance(stage, dict) else ""
        path = folder / output
        yield from _of_follower(path, f"run: {output}", str(stage.get("digest")))
        inside = not output.startswith("/") and ".." not in Path(output).parts
        if output.endswith(".json") and inside:
            what = f"run: {output}"
            if not path.is_file():
                yield Check(what, "missing")
                continue
            content = read_json(path)
            same = isinstance(content, dict) and content.get("digest") == stage.get("digest")
            yield Check(what, None if same else "not the file that the run wrote")
