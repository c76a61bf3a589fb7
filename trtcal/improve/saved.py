"""What an improvement leaves in a run's folder."""

from __future__ import annotations

from pathlib import Path

from trtcal.calibration import write_calibration
from trtcal.improve.repairs import write_repairs
from trtcal.improve.state import Improved
from trtcal.storage import write_document

REPAIRS = "repairs/improved.npz"
RECORD = "repairs/improved.json"
RANGES = "calibrations/improved.json"


def write_improved(folder: Path, found: Improved) -> dict[str, str]:
    """Write repairs, the record of them and the ranges; return the digest of each by its path."""
    write_files(found, *(folder / name for name in (REPAIRS, RECORD, RANGES)))
    record = str(found.repairs.document["digest"])
    digests = (found.repairs.digest, record, found.calibration.digest)
    return dict(zip((REPAIRS, RECORD, RANGES), digests, strict=True))


def write_files(found: Improved, repairs: Path, record: Path, ranges: Path) -> None:
    """Write repairs, the record of them and the ranges to these places."""
    write_document(record, write_repairs(repairs, found.repairs))
    write_calibration(ranges, found.calibration)
