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
    record = write_repairs(folder / REPAIRS, found.repairs)
    write_document(folder / RECORD, record)
    write_calibration(folder / RANGES, found.calibration)
    digests = (found.repairs.digest, str(record["digest"]), found.calibration.digest)
    return dict(zip((REPAIRS, RECORD, RANGES), digests, strict=True))
