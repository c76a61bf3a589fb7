"""Tables of ranges as other tools write and read them."""

from trtcal.calibration.formats.convert import (
    READABLE,
    WRITABLE,
    check_fits,
    export_calibration,
    import_calibration,
    read_ranges,
)
from trtcal.calibration.formats.diff import Difference, Movement, diff

__all__ = [
    "READABLE",
    "WRITABLE",
    "Difference",
    "Movement",
    "check_fits",
    "diff",
    "export_calibration",
    "import_calibration",
    "read_ranges",
]
