"""What a release must hold and must not, and that it repeats."""

import io
import json
import tarfile
import zipfile

import pytest

from tests.release.archives import repack, sdist_faults, wheel_faults
from tests.release.sbom import uplot, valid

FILES = {"LICENSE", "README.md", "trtcal/py.typed", "trtcal/x/LICENSE", "tests/test_a.py"}
INFO = "trtcal-1.dist-info"
WHEEL = {
    "trtcal/py.typed",
    "trtcal/x/LICENSE",
    *(f"{INFO}/{one}" for one in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")),
    f"{INFO}/top_level.txt",
    f"{INFO}/licenses/LICENSE",
    f"{INFO}/licenses/trtcal/x/LICENSE",
}


def wheel(path, names, text="x"):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, text)
    return path


def sdist(path, names, mtime=0):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"trtcal-1/{name}")
            member.size, member.mtime, member.uid = 1, mtime, mtime
            archive.addfile(member, io.BytesIO(b"x"))
    return path


def test_a_wheel_holds_the_packages_the_licences_and_nothing_else(tmp_path):
    path = tmp_path / "a.whl"
    assert wheel_faults(wheel(path, WHEEL), FILES) == []
    assert wheel_faults(wheel(path, WHEEL | {"tests/test_a.py"}), FILES) == [
        "a.whl must not hold tests/test_a.py"
    ]
    lacking = {"trtcal/py.typed", f"{INFO}/licenses/LICENSE"}
    assert wheel_faults(wheel(path, WHEEL - lacking), FILES) == [
        f"a.whl lacks {INFO}/licenses/LICENSE",
        "a.whl lacks trtcal/py.typed",
    ]


def test_a_source_distribution_holds_what_git_tracks_and_nothing_else(tmp_path):
    path = tmp_path / "a.tar.gz"
    assert sdist_faults(sdist(path, FILES | {"PKG-INFO", "trtcal.egg-info/x"}), FILES) == []
    assert sdist_faults(sdist(path, FILES - {"README.md"} | {"junk"}), FILES) == [
        "a.tar.gz lacks README.md",
        "a.tar.gz must not hold junk",
    ]


def test_a_repacked_source_distribution_says_nothing_of_when_and_by_whom(tmp_path):
    one = sdist(tmp_path / "one.tar.gz", sorted(FILES), mtime=7)
    two = sdist(tmp_path / "two.tar.gz", sorted(FILES, reverse=True), mtime=9)
    repack(one, 5)
    repack(two, 5)
    assert one.read_bytes() == two.read_bytes()
    assert sdist_faults(one, FILES) == []


def test_the_sbom_names_the_chart_library_that_the_wheel_carries(tmp_path):
    source = "/*! https://example.org (v1.2.3) */\nlet x"
    component = uplot(wheel(tmp_path / "a.whl", ["trtcal/wings/fleet/templates/uplot.js"], source))
    assert component["purl"] == "pkg:npm/uplot@1.2.3"
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [component]}
    assert json.loads(valid(json.dumps(document))) == document


def test_an_sbom_that_is_not_cyclonedx_is_refused():
    with pytest.raises(ValueError, match="not CycloneDX"):
        valid('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": 1}]}')
