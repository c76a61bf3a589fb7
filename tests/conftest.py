from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: machines are shared, and the first call of a numba kernel compiles it.
settings.register_profile("trtcal", deadline=None, max_examples=50)
settings.load_profile("trtcal")

SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.fixture
def digits() -> Path:
    return SAMPLES / "digits"
