"""Tables of ranges as other tools write and read them."""

from trtcal.calibration.formats.convert import (
    READABLE,
    WRITABLE,
    compare_names,
    export_calibration,
    import_calibration,
    read_ranges,
)
