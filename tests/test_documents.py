import json
import os

import pytest

from trtcal.documents import digest_document, read_document, replacing, seal, write_document
from trtcal.errors import InputError, ResourceError

DOCUMENT = {"kind": "thing", "schema_version": 1, "value": [1, 2.5, "ü"], "measured": {"s": 1}}


def test_a_document_comes_back(tmp_path):
    written = write_document(tmp_path / "deep" / "thing.json", DOCUMENT)
    assert read_document(tmp_path / "deep" / "thing.json", "thing") == written


def test_what_was_measured_is_outside_the_digest():
    other = {**DOCUMENT, "measured": {"s": 2}}
    assert digest_document(DOCUMENT) == digest_document(other)
    assert digest_document(DOCUMENT) != digest_document({**DOCUMENT, "value": []})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a trtcal thing"),
        ('{"kind": "other"}', "not a trtcal thing"),
        ('{"kind": "thing", "schema_version": 99}', "schema version 99"),
        ('{"kind": "thing", "schema_version": 1, "digest": "sha256:0"}', "was changed"),
        ('{"kind": "thing", "schema_version": 1, "x": NaN}', "no JSON number"),
        ("[" * 100_000, "not JSON"),
        ("\ud800", "not text"),
    ],
)
def test_foreign_files_are_refused(tmp_path, text, says):
    path = tmp_path / "thing.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if text != "\ud800" else b"\xff\xfe")
    with pytest.raises(InputError, match=says):
        read_document(path, "thing")


def test_a_change_of_one_value_is_noticed(tmp_path):
    path = tmp_path / "thing.json"
    document = seal(DOCUMENT)
    path.write_text(json.dumps({**document, "value": [1, 2.5, "u"]}))
    with pytest.raises(InputError, match="changed after it was written"):
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
    with pytest.raises(ResourceError, match="cannot write"):
        write_document(tmp_path / "file" / "thing.json", DOCUMENT)


def test_what_is_not_a_regular_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        write_document(tmp_path / "pipe", DOCUMENT)
    assert not (tmp_path / "pipe").is_file()
