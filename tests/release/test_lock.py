"""The lock file covers what pyproject.toml asks for, for every supported Python."""

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures.tables import each
from tests.release.lock import LOCK, ROOT, locked, version
from trtcal.config import tomllib

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [Requirement(one) for one in [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["rtx"]]]
PINS = locked(LOCK.read_text())


def on(python):
    return {
        "python_version": python,
        "python_full_version": f"{python}.20",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }


def installed(python):
    """Return the versions that a Python on Linux on x86-64 gets, by name."""
    pins = [pin for pin, _ in PINS if not pin.marker or pin.marker.evaluate(on(python))]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(set(names)) == len(names)
    return dict(zip(names, map(version, pins), strict=True))


@each("python", PYTHONS)
def test_the_lock_has_a_fitting_version_of_every_dependency(python):
    versions = installed(python)
    wanted = [one for one in WANTED if not one.marker or one.marker.evaluate(on(python))]
    found = {str(one): versions.get(canonicalize_name(one.name)) for one in wanted}
    unfit = [one for one in wanted if not (found[str(one)] and found[str(one)] in one.specifier)]
    assert unfit == [], "`make lock` writes the lock file anew"


def test_every_locked_version_has_hashes():
    assert PINS
    assert [str(pin) for pin, hashes in PINS if not hashes] == []
    assert {one.partition(":")[0] for _, hashes in PINS for one in hashes} == {"sha256"}


def test_the_lock_names_no_index_and_no_file():
    text = LOCK.read_text()
    assert "://" not in text
    assert not [line for line in text.splitlines() if line.startswith(("-", "/", "."))]
