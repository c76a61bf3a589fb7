"""A run's folder: the files that make it one, and which folders a run may replace."""

from __future__ import annotations

from pathlib import Path

from trtcal.documents import is_staging, read_document, recover
from trtcal.errors import InputError

KIND = "run"
RUN_FILE, REPORT_FILE = "run.json", "report.json"


def check_replaceable(folder: Path) -> None:
    """`InputError` if a folder holds something else than a run that another one may replace."""
    recover(folder)
    if folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise InputError(
            f"{folder} contains files that are not a trtcal run",
            "choose another folder: `output` in trtcal.toml, or -o",
        )


def _is_ours(folder: Path) -> bool:
    if all(is_staging(entry.name) for entry in folder.iterdir()):
        return True
    run_file = folder / RUN_FILE
    return run_file.is_file() and bool(read_document(run_file, KIND))
