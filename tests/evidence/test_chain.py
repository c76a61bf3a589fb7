"""The chain of checkpoints: written, read, and refused where a line is not what was written."""

import json

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.wings.forensics.chain import FILE, Checkpoint, digest_options, read_chain, write_chain

CHAIN = [
    Checkpoint("prepare", "constants", "sha256:0", "sha256:1", version="1"),
    Checkpoint("prepare", "scales", "sha256:1", "sha256:2", options=digest_options({"a": 1})),
    Checkpoint("build", "layers", "sha256:2", "sha256:3", subject="int8 for sm89", artifact="x"),
]


@pytest.fixture
def path(tmp_path):
    write_chain(tmp_path / FILE, CHAIN)
    return tmp_path / FILE


def test_a_chain_is_read_as_it_was_written(path):
    assert list(read_chain(path)) == CHAIN


def test_an_empty_chain_is_a_chain(tmp_path):
    assert write_chain(tmp_path / FILE, []) == ""
    assert read_chain(tmp_path / FILE, "") == ()


@each("number", range(3))
@each("field", ["stage", "name", "before", "after", "version", "artifact"])
def test_a_changed_line_is_named(path, number, field):
    lines = path.read_text().splitlines()
    line = json.loads(lines[number])
    lines[number] = json.dumps({**line, field: "other"})
    changed = path.with_name("changed")
    changed.write_text("\n".join(lines) + "\n")
    with fails(InputError, f"line {number + 1}"):
        read_chain(changed)


def test_a_line_that_is_cut_out_moved_or_added_is_found(path):
    first, second, third = path.read_text().splitlines(keepends=True)
    for text in (first + third, second + third, first + third + second, first + first + second):
        path.write_text(text)
        with fails(InputError, FILE, hint="trtcal run"):
            read_chain(path)


def test_lines_cut_off_at_the_end_are_found_by_the_last_digest(path):
    last = write_chain(path, CHAIN)
    read_chain(path, last)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert len(read_chain(path)) == 2
    with fails(InputError, "line 2"):
        read_chain(path, last)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"[1]\n", b"{", b'{"number": 1}\n', b"[" * 9000 + b"\n", b"null\n"]
)
def test_what_is_no_chain_is_refused(path, text):
    path.write_bytes(text)
    with fails(InputError, FILE):
        read_chain(path)


def test_the_key_leaves_out_the_output_and_the_artifact():
    one, other = (Checkpoint("build", "layers", "sha256:2", out, artifact=out) for out in "ab")
    assert one.key == other.key
