"""Recomputes the digests of a report, a document, a run or a bundle, and says which do not hold.

Three parts are checked, and none in the place of another: the content (what lasts of documents and
models, by the digests that documents have of it), the files (every byte that trtcal wrote, by the
record beside them or a bundle's manifest), and the signature (who made a bundle).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtcal import documents
from trtcal.documents import FILES, Document
from trtcal.documents.bounds import read_bytes
from trtcal.documents.streams import command_line
from trtcal.errors import InputError
from trtcal.reporting.render import changed_parts
from trtcal.runs.bundle.verifying import MANIFEST, REFUSED, SIGNATURE, UNCHECKED, Options
from trtcal.runs.bundle.verifying import verify as verify_bundle
from trtcal.runs.follower import follower_kinds
from trtcal.runs.origin import RUN, RUN_FILE

BUILD, LOG = "build", "build.log"
OF_CONTENT, OF_FILES, OF_SIGNATURE = "content", "files", "signature"
CHANGED = "changed: its digest differs"
STATES = REFUSED, UNCHECKED


@dataclass(frozen=True)
class Check:
    """One digest: what it is of, why it does not hold (None if it does), or why it is not checked."""

    what: str
    problem: str | None = None
    part: str = OF_CONTENT
    unchecked: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it is as it was."""
        return self.problem is None


def verify(path: Path, public_key: Path | None = None) -> list[Check]:
    """Return every check of a page, a document, a run or a bundle; `InputError` if there is nothing.

    `public_key` is for the signature of a bundle.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path")
    if (path / SIGNATURE).is_file():
        return [*_of_documents(path, documents.files_in(path)), *_of_bundle(path, public_key)]
    files, present = list(_of_record(path)), [*documents.files_in(path)]
    recorded = {check.what for check in files if check.unchecked is None} - {FILES}
    others = {check.what for check in files} | {n for n in present if "/." in f"/{n}"}
    names = (name for name in present if name in recorded or name not in others)
    content = list(_of_documents(path, names, True) if path.is_dir() else _of_file(path))
    if not content and not recorded:
        hint = "give a report, a JSON document of trtcal or the folder of a run"
        raise InputError(f"{path} has no digest of trtcal", hint)
    name = Path(os.path.abspath(path)).name
    return [*content, *files, Check(name, None, OF_SIGNATURE, "only bundles are signed")]


def check_whole(run: Path) -> None:
    """`InputError` if anything in the folder of a run is not as it was written."""
    for check in verify(run):
        if not check.holds:
            hint = f"run again; `{command_line('verify', run)}` names all changed files"
            raise InputError(f"{run}: {check.what}: {check.problem}", hint)


def _of_bundle(path: Path, public_key: Path | None) -> Iterator[Check]:
    """Yield the checks of a bundle's signature and files; `trtcal bundle verify` checks more."""
    result = verify_bundle(path, Options(public_key, public_key is None, self_test=False))
    part = OF_SIGNATURE
    for check in result.checks:
        problem, why = (check.found if check.state == state else None for state in STATES)
        is_of_files = check.what == "files"
        files = (MANIFEST, *result.manifest.get("sizes", ())) if is_of_files else (path.name,)
        if problem or check.what in ("signature", "files"):
            yield from (Check(name, problem, part, why) for name in files)
        part = OF_FILES


def _of_record(path: Path, base: Path | None = None) -> Iterator[Check]:
    """Yield a check of each file of a run, of a part of it, or of all runs in a folder.

    Files of others are not checked. Names begin at `base`, or else at the path.
    """
    if (run := documents.place_in_run(path)) is None:
        runs = [Path(name).parent for name in documents.files_in(path) if Path(name).name == FILES]
        for inner in runs:
            yield from _of_record(path / inner, Path(os.path.realpath(path)))
        if not runs:
            yield Check(path.name, None, OF_FILES, "its files were not recorded")
        return
    folder, place = run[0], run[0] / run[1]
    base = base or (place if place.is_dir() else place.parent)
    try:
        record = documents.read_record(folder) or {}
    except InputError as error:
        yield Check(FILES, error.message, OF_FILES)
        return
    present = set(documents.files_in(folder))
    for name in sorted({*record, *present} - {FILES}):
        file = folder / name
        if place in (file, *file.parents):
            shown = file.relative_to(base).as_posix()
            if name in record:
                yield Check(shown, _problem(file, record[name], name in present), OF_FILES)
            else:
                yield Check(shown, None, OF_FILES, "trtcal did not write it")


def _problem(file: Path, digest: object, is_present: bool) -> str | None:
    """Return why a file does not have a digest; only what `is_present` is opened."""
    if not is_present:
        return "not a regular file any more" if os.path.lexists(file) else "missing"
    return None if documents.digest_file(file) == digest else CHANGED


def _of_documents(folder: Path, names: Iterable[str], beside: bool = False) -> Iterator[Check]:
    """Yield the checks of documents; `beside` is for what lies where those of a run say."""
    for name in names:
        try:
            yield from _of_file(folder / name, name, beside)
        except InputError as error:
            yield Check(name, error.message)


def _of_file(path: Path, name: str = "", beside: bool = True) -> Iterator[Check]:
    """Yield the checks of a file by digests in it, or that a follower of runs has."""
    name = name or path.name
    if path.suffix == ".html":
        parts = changed_parts(read_bytes(path), str(path))
        yield Check(name, f"changed: {', '.join(parts)}" if parts else None)
    elif path.suffix == ".json":
        yield from _of_document(path, name, beside)
    elif not (path.parent / RUN_FILE).is_file():
        yield from _of_follower(path, name)


def _of_document(path: Path, name: str, beside: bool) -> Iterator[Check]:
    """Yield the checks of a sealed document, none of another one."""
    document = documents.read_json(path)
    if not isinstance(document, dict) or not {"kind", "digest"} <= set(document):
        return
    is_sealed = document["digest"] == documents.digest_document(document)
    yield Check(name, None if is_sealed else CHANGED)
    if beside and document["kind"] == BUILD:
        yield from _of_build(document, path.parent, name)
    if beside and document["kind"] == RUN:
        yield from _of_run(document, path.parent)


def _of_build(document: Document, folder: Path, name: str) -> Iterator[Check]:
    """Yield checks of the files that a manifest gives digests of."""
    measured = _measured(document)
    for file, key in {str(document.get("engine_file")): "engine_digest", LOG: "log_digest"}.items():
        if key in measured:
            place = folder / Path(file).name
            yield Check(f"{name}: {file}", _problem(place, measured[key], place.is_file()))


def _of_follower(path: Path, what: str, digest: str | None = None) -> Iterator[Check]:
    for kind in follower_kinds():
        if path.name in kind.outputs[:1]:
            yield Check(what, kind.problem(path.parent, digest))


def _of_run(document: Document, folder: Path) -> Iterator[Check]:
    """Yield a check of every document and model: whether it is the one that the run made."""
    if "record" in _measured(document) and not (folder / FILES).is_file():
        yield Check(FILES, "missing", OF_FILES)
    stages = document.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        fields = stage if isinstance(stage, dict) else {}
        output, digest = str(fields.get("output")), fields.get("digest")
        path, what = folder / output, f"run: {output}"
        yield from _of_follower(path, what, str(digest))
        inside = not output.startswith("/") and ".." not in Path(output).parts
        if path.suffix in (".json", ".onnx") and inside:
            problem = None if _digest_of(path) == digest else "not the file that the run wrote"
            yield Check(what, problem if path.is_file() else "missing")


def _digest_of(path: Path) -> object:
    """Return the digest by which a run names a document or a model, None of a damaged one."""
    if path.suffix == ".onnx" and path.is_file():
        return documents.digest_file(path)
    with suppress(InputError):
        document = documents.read_json(path)
        return document.get("digest") if isinstance(document, dict) else None
    return None


def _measured(document: Document) -> Document:
    measured = document.get("measured")
    return measured if isinstance(measured, dict) else {}
