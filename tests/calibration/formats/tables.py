"""Calibrations and hypothesis strategies that the tests of formats share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from trtcal.calibration.formats.table import imported
from trtcal.ranges import Calibration

NAMES = st.one_of(
    st.sampled_from(
        ["x", "Output:0", "a: b", "ends:", " a ", "é/ü", "(Unnamed Layer* 64) [Shuffle]_output"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1),
)
AMAXES = st.floats(2.0**-100, 2.0**100)
FLOAT32 = st.floats(2.0**-100, 2.0**100, width=32)
TABLES = st.dictionaries(NAMES, AMAXES, min_size=1, max_size=8)


def calibration(amaxes: dict[str, float], **fields: object) -> Calibration:
    ranges = {name: imported(float(amax)) for name, amax in amaxes.items()}
    values = {
        "method": "minmax",
        "parameters": {},
        "model": "sha256:model",
        "dataset": "sha256:dataset",
        "samples": 4,
        "histograms": "sha256:histograms",
        "ranges": ranges,
        "unranged": {},
        **fields,
    }
    return Calibration(**values)


def float32_of(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)
