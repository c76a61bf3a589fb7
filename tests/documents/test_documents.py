import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.documents import (
    Sealed,
    digest_document,
    read_document,
    replacing,
    seal,
    write_document,
)
from trtcal.errors import InputError, ResourceError

DOCUMENT = {"kind": "thing", "schema_version": 1, "value": [1, 2.5, "ü"], "measured": {"s": 1}}


def test_a_document_comes_back(tmp_path):
    written = write_document(tmp_path / "deep" / "thing.json", DOCUMENT)
    assert read_document(tmp_path / "deep" / "thing.json", "thing") == written


def test_what_was_measured_is_outside_the_digest():
    other = {**DOCUMENT, "measured": {"s": 2}}
    assert digest_document(DOCUMENT) == digest_document(other)
    assert digest_document(DOCUMENT) != digest_document({**DOCUMENT, "value": []})


@each(
    "text, says",
    [
        ("{", "not JSON"),
        ("[]", "not a trtcal thing"),
        ('{"kind": "other"}', "not a trtcal thing"),
        ('{"kind": "thing", "schema_version": 99}', "version 99"),
        ('{"kind": "thing", "schema_version": 1, "digest": "sha256:0"}', "was changed"),
        ('{"kind": "thing", "schema_version": 1, "x": NaN}', "not a JSON number"),
        ("[" * 100_000, "not JSON"),
        ("\ud800", "not text"),
    ],
)
def test_foreign_files_are_refused(tmp_path, text, says):
    path = tmp_path / "thing.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if text != "\ud800" else b"\xff\xfe")
    with fails(InputError, says):
        read_document(path, "thing")


def test_a_change_of_one_value_is_noticed(tmp_path):
    path = tmp_path / "thing.json"
    document = seal(DOCUMENT)
    path.write_text(json.dumps({**document, "value": [1, 2.5, "u"]}))
    with fails(InputError, "thing.json"):
        read_document(path, "thing")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_place_is_a_resource_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with fails(ResourceError, "thing.json"):
        write_document(tmp_path / "file" / "thing.json", DOCUMENT)


def test_what_is_not_a_regular_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with fails(InputError, "pipe"):
        write_document(tmp_path / "pipe", DOCUMENT)
    assert not (tmp_path / "pipe").is_file()


@dataclass(frozen=True)
class Inner:
    name: str
    pair: tuple[float, int] = (1.0, 2)

    def __post_init__(self):
        if not self.name:
            raise ValueError("a name is not empty")


@dataclass(frozen=True)
class Thing(Sealed, kind="thing", command="trtcal make", version=2, measured=("seconds",)):
    inner: Inner
    several: tuple[Inner, ...]
    named: dict[str, Inner]
    where: Path | None
    side: Literal["left", "right"]
    seconds: float
    sizes: list[int] = field(default_factory=list)
    options: Mapping[str, int | str | None] = field(default_factory=dict)
    rest: Any = None
    sure: bool = False


THING = Thing(
    Inner("a"),
    (Inner("b", (3, 4)), Inner("ü")),
    {"x": Inner("c")},
    Path("/some/where"),
    "left",
    1.5,
    [1, 2],
    {"n": 1, "t": "u", "none": None},
    {"free": [1.5]},
    True,
)


def test_a_dataclass_comes_back_from_its_document(tmp_path):
    written = THING.write(tmp_path / "thing.json")
    assert Thing.read(tmp_path / "thing.json") == THING
    assert written["measured"] == {"seconds": 1.5}
    assert "seconds" not in written
    assert written["digest"] == THING.digest


@each(
    "change, says",
    [
        ({"inner": None}, "Inner"),
        ({"inner": {"name": 3}}, "str"),
        ({"inner": {"name": ""}}, "a name is not empty"),
        ({"inner": {"name": "a", "pair": [1, 2, 3]}}, "zip"),
        ({"several": {}}, "{}"),
        ({"side": "up"}, "'up'"),
        ({"sizes": [1, True]}, "True"),
        ({"sizes": [1.0]}, "1.0"),
        ({"sure": 1}, "bool"),
        ({"where": 3}, "NoneType"),
        ({"options": {"n": []}}, "[]"),
    ],
)
def test_a_field_of_another_type_is_refused(tmp_path, change, says):
    write_document(tmp_path / "thing.json", {**THING.to_document(), **change})
    with fails(InputError, says):
        Thing.read(tmp_path / "thing.json")


def test_a_missing_field_takes_its_default_or_is_refused(tmp_path):
    document = THING.to_document()
    write_document(tmp_path / "a.json", {k: v for k, v in document.items() if k != "sizes"})
    assert Thing.read(tmp_path / "a.json").sizes == []
    write_document(tmp_path / "b.json", {k: v for k, v in document.items() if k != "inner"})
    with fails(InputError, "b.json", "inner"):
        Thing.read(tmp_path / "b.json")


def test_an_older_document_is_refused_with_the_command_that_makes_it_anew(tmp_path):
    write_document(tmp_path / "old.json", {**THING.to_document(), "schema_version": 1})
    with fails(InputError, "version 1", hint="`trtcal make`"):
        Thing.read(tmp_path / "old.json")
