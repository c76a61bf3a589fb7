import importlib.util
import os
import subprocess
import sys

import pytest


def needs(*packages):
    """Return the mark of tests that are skipped, and listed as such, where a package is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of small networks of TensorFlow and Keras."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-m", "tests.frameworks.networks", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
    return folder


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """A cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
