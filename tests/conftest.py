import gc
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cuda.stand_in import cuda  # noqa: F401  # a fixture
from tests.fixtures.examples import EXAMPLES

# No deadline: machines are shared, and the first call of a numba kernel compiles it.
settings.register_profile(
    "trtcal", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trtcal")

# What tests build and run is not to be written down among the user's own engines and runs.
STATE = tempfile.TemporaryDirectory(prefix="trtcal-tests-")
os.environ["XDG_STATE_HOME"] = os.environ["XDG_DATA_HOME"] = STATE.name
# Devices of the tests are this machine, and others on it wait for no test.
os.environ["TRTCAL_DEVICE_LOCK"] = str(Path(STATE.name, "device.lock"))
# pytest-xdist gives its workers a terminal of 80 columns, to which tables would be wrapped.
os.environ.pop("COLUMNS", None)
# On a busy machine any command may take long enough for a line of progress.
os.environ["TRTCAL_NO_PROGRESS"] = "1"


SAMPLES = Path(__file__).parent.parent / "samples"


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run tests in a random order")


def pytest_collection_modifyitems(config, items):
    """Shuffle modules, and the tests of each, so that what they share is made once."""
    if (seed := config.getoption("--shuffle")) is not None:
        chooser = random.Random(seed)  # noqa: S311
        places = {item.path: chooser.random() for item in items}
        items.sort(key=lambda item: (places[item.path], chooser.random()))


def pytest_collection_finish():
    """Let the garbage collector pass over ten thousand tests and all modules."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    STATE.cleanup()


@pytest.fixture
def digits() -> Path:
    return SAMPLES / "digits"
