"""What docs/stability.md calls stable is what the record says, and each kind of break is noticed."""

import copy
import json

import pytest

from tests.fixtures.tables import each
from tests.release.lock import ROOT
from tests.release.notes import notes
from tests.release.surface import (
    COMMAND,
    EVOLVING_COMMANDS,
    RECORD,
    breaks,
    differences,
    is_raised,
    last_release,
    surface,
)
from trtcal.config import tomllib
from trtcal.errors import __version__

PAGE = (ROOT / "docs" / "stability.md").read_text()


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text())


def test_the_sources_have_the_surface_that_is_recorded(recorded):
    found = surface()
    wrong = breaks(recorded, found, last_release((ROOT / "CHANGELOG.md").read_text()))
    assert [str(one) for one in wrong] == [], "raise the version: docs/stability.md says which"
    assert [str(one) for one in differences(recorded, found)] == [], (
        f"write the record: `{COMMAND}`"
    )
    assert recorded == json.loads(json.dumps(found)), f"write the record: `{COMMAND}`"


def changed(record, *path, to=None, rename=None):
    """Return a record in which what is at a path is another value, gone, or has another name."""
    other = copy.deepcopy(record)
    *parents, last = path
    place = other["stable"]
    for name in parents:
        place = place[name]
    value = place.pop(last) if isinstance(place, dict) else place.remove(last)
    if rename is not None:
        place[rename] = value
    elif to is not None:
        place[last] = to
    return other


CALIBRATE = ("python", "calibrate", "call", "parameters")
ROUNDS = ("commands", "compare", "options", "--rounds")
BREAKS = {
    "a name of Python is gone": {"path": ("python", "calibrate")},
    "a parameter is renamed": {"path": (*CALIBRATE, "data"), "rename": "samples"},
    "a parameter has another type": {"path": (*CALIBRATE, "data", "type"), "to": "int"},
    "a default of Python differs": {"path": (*CALIBRATE, "method", "default"), "to": "'median'"},
    "a result has another type": {"path": ("python", "calibrate", "call", "returns"), "to": "int"},
    "a method is gone": {"path": ("python", "Calibration", "members", "write")},
    "a command is gone": {"path": ("commands", "compare")},
    "a command is renamed": {"path": ("commands", "compare"), "rename": "versus"},
    "an option is gone": {"path": ROUNDS},
    "an option is renamed": {"path": ROUNDS, "rename": "--repeats"},
    "an option has another type": {"path": (*ROUNDS, "type"), "to": "text"},
    "an option has another default": {"path": (*ROUNDS, "default"), "to": 3},
    "a key of trtcal.toml is renamed": {"path": ("configuration", "limits"), "rename": "bounds"},
    "a key has another default": {"path": ("configuration", "output", "default"), "to": "`runs`"},
    "a field of a document is gone": {"path": ("documents", "calibration", "fields", "method")},
    "a field has another type": {
        "path": ("documents", "calibration", "fields", "samples"),
        "to": "string",
    },
    "an exit status differs": {"path": ("exit statuses", "GateFailed"), "to": 7},
    "a message is gone": {"path": ("messages", "int32_dequantized")},
    "a finding is gone": {"path": ("findings", "silent_fallback")},
    "a metric is gone": {"path": ("metrics", "top1")},
    "a metric has another unit": {"path": ("metrics", "speedup"), "to": "%"},
    "a calibrator is gone": {"path": ("entry points", "trtcal.calibrators", "mse")},
}


@each("what", sorted(BREAKS))
def test_each_kind_of_break_is_refused_until_the_version_is_raised(recorded, what):
    change = dict(BREAKS[what])
    other = changed(recorded, *change.pop("path"), **change)
    assert breaks(recorded, other, released="0.2.0"), what
    other["version"] = "0.2.1"
    assert breaks(recorded, other, released="0.2.0"), "a PATCH is not enough"
    other["version"] = "0.3.0"
    assert breaks(recorded, other, released="0.2.0") == []
    assert differences(recorded, other), "the record has to be written again"


def test_parameters_in_another_order_break_calls_by_place(recorded):
    parameters = recorded["stable"]["python"]["compare"]["call"]["parameters"]
    names = [name for name, one in parameters.items() if not one["by name"]]
    assert len(names) > 1
    turned = {name: parameters[name] for name in [*reversed(names), *parameters]}
    other = changed(recorded, "python", "compare", "call", "parameters", to=turned)
    assert [one.what for one in breaks(recorded, other, "0.2.0")] == ["are in another order"]
    first = {"new": {**parameters[names[0]], "required": False}, **parameters}
    other = changed(recorded, "python", "compare", "call", "parameters", to=first)
    assert [one.what for one in breaks(recorded, other, "0.2.0")] == ["are in another order"]


def test_additions_are_allowed_and_what_must_be_given_is_not(recorded):
    free = {"type": "int", "default": None, "required": False, "repeats": False}
    for place in (("commands", "compare", "options", "--new"), ("configuration", "new")):
        assert breaks(recorded, with_new(recorded, place, free), "0.2.0") == []
        assert [str(one) for one in differences(recorded, with_new(recorded, place, free))]
        assert breaks(recorded, with_new(recorded, place, {**free, "required": True}), "0.2.0")
    for place in (("documents", "calibration", "fields", "new"), ("metrics", "new")):
        assert breaks(recorded, with_new(recorded, place, "number"), "0.2.0") == []
    last = {"type": "int", "default": "3", "required": False, "by name": False}
    assert breaks(recorded, with_new(recorded, (*CALIBRATE, "new"), last), "0.2.0") == []
    assert breaks(
        recorded, with_new(recorded, (*CALIBRATE, "new"), {**last, "required": True}), "0.2.0"
    )


def with_new(record, path, value):
    other = copy.deepcopy(record)
    place = other["stable"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return other


def test_a_document_may_differ_under_a_new_schema_version(recorded):
    other = changed(recorded, "documents", "calibration", "fields", "method")
    version = other["stable"]["documents"]["calibration"]["schema_version"]
    other["stable"]["documents"]["calibration"]["schema_version"] = version + 1
    assert breaks(recorded, other, "0.2.0") == []
    other["stable"]["documents"]["calibration"]["schema_version"] = version - 1
    assert len(breaks(recorded, other, "0.2.0")) == 2


def test_what_is_evolving_is_not_held(recorded):
    other = copy.deepcopy(recorded)
    assert other["evolving"]["commands"]
    other["evolving"] = {}
    assert differences(recorded, other) == []
    stable = {*recorded["stable"]["commands"]}
    assert not {name for name in stable if name.startswith(EVOLVING_COMMANDS)}


def test_the_page_names_what_is_evolving(recorded):
    evolving = PAGE.split("## Evolving", 1)[1].split("\n## ", 1)[0]
    for name in (*EVOLVING_COMMANDS, *recorded["evolving"]["entry points"]):
        assert f"`{name}`" in evolving or f"`trtcal {name}`" in evolving, name


@each(
    "before, after, raised",
    [
        ("0.2.0", "0.2.1", False),
        ("0.2.0", "0.3.0", True),
        ("0.9.0", "1.0.0", True),
        ("1.2.0", "1.3.0", False),
        ("1.2.0", "2.0.0", True),
        ("0.3.0", "0.2.9", False),
    ],
)
def test_before_1_a_minor_may_break_and_then_a_major(before, after, raised):
    assert is_raised(before, after) is raised


def test_before_the_first_release_nothing_is_held(recorded):
    assert breaks(recorded, changed(recorded, "python", "calibrate"), released=None) == []
    assert last_release("## Unreleased\n\n## 0.2.0 - not yet released\n") is None
    assert last_release("## 0.3.0 - not yet released\n\n## 0.2.0 - 2027-01-02\n") == "0.2.0"


LOG = "# Changelog\n\n## Unreleased\n\n### Added\n{more}\n## 0.2.0{date}\n\nThe first.\n"


@each(
    "tag, more, date, wrong",
    [
        ("v0.2.0", "", " - 2027-01-31", ""),
        ("v0.2.1", "", " - 2027-01-31", "the tag is v0.2.1, the version 0.2.0"),
        ("0.2.0", "", " - 2027-01-31", "the tag is 0.2.0"),
        ("v0.2.0", "- a line\n", " - 2027-01-31", "entries under Unreleased"),
        ("v0.2.0", "", " - not yet released", "has no date"),
        ("v0.2.0", "", "", "has no date"),
    ],
)
def test_a_release_needs_its_tag_its_version_and_its_section(tag, more, date, wrong):
    faults, section = notes(tag, "0.2.0", LOG.format(more=more, date=date))
    assert section == "The first."
    assert bool(faults) == bool(wrong)
    assert wrong in " ".join(faults)


def test_a_version_without_a_section_is_no_release():
    assert notes("v0.9.0", "0.9.0", LOG.format(more="", date=""))[0] == [
        "CHANGELOG.md has no section 0.9.0"
    ]


def test_the_version_of_the_sources_has_a_section():
    faults, section = notes(f"v{__version__}", __version__, (ROOT / "CHANGELOG.md").read_text())
    assert section
    assert not [one for one in faults if "no section" in one]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
