"""Redacts a run: its documents, logs and models, and its pages, which are rendered again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from trtcal import documents
from trtcal.config import FILE
from trtcal.documents import FILES, Document, digest_bytes, digest_file, write_bytes, write_json
from trtcal.documents.bounds import parse_json
from trtcal.documents.redaction import FLAG, Redaction
from trtcal.documents.staging import STEPS
from trtcal.errors import TrtcalError
from trtcal.evidence.manifest import LOG, RECORDS
from trtcal.model.metadata import redact_proto
from trtcal.model.model import combined, external_files
from trtcal.reporting.render import write_page
from trtcal.runs.origin import REPORT_FILE, RUN, RUN_FILE
from trtcal.runs.settings import SCRIPTS
from trtcal.runs.verify import check_whole

LEFT_OUT = (FILE, SCRIPTS)
"""What holds code and paths of the user's own."""


@contextmanager
def redacted_copy(folder: Path, redact: bool = True) -> Iterator[Path]:
    """Yield a temporary copy of a run's folder that is redacted; the folder itself if not `redact`.

    `InputError` if anything in the folder is not as it was written.
    """
    if not redact:
        yield folder
        return
    check_whole(folder)
    record = documents.read_record(folder)
    with documents.Workplace() as place:
        copy = Path(place, folder.resolve().name)
        for name in documents.files_in(folder) if record is None else (FILES, *record):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, copy / name)
        redact_run(copy)
        try:
            yield copy
        except TrtcalError as error:
            error.message = error.message.replace(str(copy), str(folder))
            raise


def redact_run(folder: Path) -> Document:
    """Redact the files of a run in its folder, and return its report.

    What is left out of it: `trtcal.toml`, and scripts of preparation passes. Histograms, engines and
    checkpoints have no names but those of the graph, and stay as they are.
    """
    names = [name for name in documents.files_in(folder) if name != FILES]
    every = {name: documents.read_json(folder / name) for name in names if name.endswith(".json")}
    redaction, digests = Redaction(every.values()), dict[str, str]()
    with documents.together():
        for name in names:
            if Path(name).parts[0] in LEFT_OUT:
                documents.removing(folder / name)
            else:
                digests |= _redact_file(folder / name, redaction)
        done = redaction.documents(every, digests)
        for name in (name for name in every if done[name] != every[name]):
            write_json(folder / name, done[name])
        if (folder / STEPS).exists():  # what it names is not what is there any more
            write_bytes(folder / STEPS, b"")
    return write_page(folder / "report.html", done[REPORT_FILE], folder)


def is_redacted(run: Path) -> bool:
    """Tell whether a run's folder was redacted."""
    path = run / RUN_FILE
    return path.is_file() and FLAG in documents.read_document(path, RUN)


def _redact_file(path: Path, redaction: Redaction) -> dict[str, str]:
    """Redact a log or a model; return its digests before and after, nothing if it has no names."""
    if path.suffix == ".onnx":
        return _redact_model(path, redaction)
    if path.name not in (LOG, RECORDS):
        return {}
    lines = path.read_text("utf-8", "surrogateescape").split("\n")
    redacted = map(
        redaction.text if path.name == LOG else lambda line: _record(line, redaction), lines
    )
    return _replace(path, "\n".join(redacted).encode("utf-8", "surrogateescape"))


def _record(line: str, redaction: Redaction) -> str:
    return json.dumps(redaction.value(parse_json(line))) if line else line


def _replace(path: Path, data: bytes) -> dict[str, str]:
    before, after = digest_file(path), digest_bytes(data)
    if before != after:
        write_bytes(path, data)
    return {} if before == after else {before: after}


def _redact_model(path: Path, redaction: Redaction) -> dict[str, str]:
    """Redact a model; its fingerprint, which covers its external data, is another one too."""
    proto = onnx.load(path, format="protobuf", load_external_data=False)
    if not redact_proto(proto, redaction):
        return {}
    digests = _replace(path, proto.SerializeToString(deterministic=True))
    external = [digest_file(file) for file in external_files(path, proto)]
    pairs = digests.items()
    return digests | {combined([old, *external]): combined([new, *external]) for old, new in pairs}
