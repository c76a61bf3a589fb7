"""Converts what an older trtcal wrote: `trtcal.toml`, documents, run folders and histories.

Where a document's digest changes, every other document of the folder that names it gets the new one.
Signed bundles are left as they are: their signature is about the files as they were.
"""

from __future__ import annotations

from pathlib import Path

from trtcal.config import parse_config
from trtcal.documents import (
    Document,
    digest_bytes,
    digest_document,
    files_in,
    read_json,
    recover,
    seal,
    together,
    write_json,
    write_text,
)
from trtcal.documents.bounds import read_bytes
from trtcal.documents.schema import convert, convert_config, replace_texts
from trtcal.errors import InputError
from trtcal.reporting.document import REPORT_KIND as REPORT
from trtcal.reporting.render import write_page
from trtcal.runs.bundle.verifying import SIGNATURE
from trtcal.runs.history import History

DATABASE = b"SQLite format 3\0"


def upgrade(path: Path) -> list[Path]:
    """Convert a file, or all files in a folder at once; return those that changed.

    `InputError` if there is nothing at the path, or a document was altered after it was written.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path")
    recover(path)
    files = [path / name for name in files_in(path) if not _is_signed(path, path / name)]
    with together():
        configs = {file: _converted_config(file) for file in files if file.suffix == ".toml"}
        changed = [file for file, (before, after) in configs.items() if after != before]
        for file in changed:
            write_text(file, configs[file][1])
        digests = {digest_bytes(b.encode()): digest_bytes(a.encode()) for b, a in configs.values()}
        changed += _upgrade_documents(files, digests)
    return changed + [file for file in files if _is_database(file) and History(file).convert()]


def _is_signed(folder: Path, file: Path) -> bool:
    """Tell whether a file in a folder belongs to a signed bundle."""
    inside = (place for place in file.parents if place.is_relative_to(folder))
    return any((place / SIGNATURE).is_file() for place in inside)


def _converted_config(file: Path) -> tuple[str, str]:
    """Return the text of a `trtcal.toml` and what becomes of it, which this trtcal can read."""
    text = read_bytes(file).decode("utf-8", "surrogateescape")
    converted = convert_config(text)
    if converted != text:
        parse_config(converted, file)
    return text, converted


def _upgrade_documents(files: list[Path], digests: dict[str, str]) -> list[Path]:
    """Convert documents, and the digests in them: `digests` are those of other files that changed."""
    read = {file: read_json(file) for file in files if file.suffix == ".json"}
    documents = {file: content for file, content in read.items() if _is_document(file, content)}
    converted: dict[Path, Document] = {}
    known: dict[str, str] = {}
    while known != (known := _renewed(documents, converted, digests)):
        digests |= known
    changed = [file for file, document in documents.items() if converted[file] != document]
    for file in changed:
        page = file.with_suffix(".html")
        if documents[file]["kind"] == REPORT and page.is_file():
            write_page(page, converted[file])
        else:
            write_json(file, converted[file])
    return changed


def _renewed(
    documents: dict[Path, Document], converted: dict[Path, Document], digests: dict[str, str]
) -> dict[str, str]:
    """Convert documents with the digests known so far; return their own, old -> new."""
    for file, document in documents.items():
        body = replace_texts(convert(document), lambda text: digests.get(text, text))
        converted[file] = seal(body)
    return {documents[file]["digest"]: converted[file]["digest"] for file in documents}


def _is_document(file: Path, content: object) -> bool:
    """Tell whether a file is a sealed document; `InputError` if it was altered."""
    if not isinstance(content, dict) or not {"kind", "digest"} <= content.keys():
        return False
    if content["digest"] != digest_document(content):
        what = f"{file} was changed after it was written (its digest does not match)"
        raise InputError(what, "restore the original file first")
    return True


def _is_database(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(DATABASE)) == DATABASE
