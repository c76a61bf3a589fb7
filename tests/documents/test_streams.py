"""The guard of standard output and error by itself."""

import csv
import doctest
import io
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.hostile_inputs import in_json, unseen
from trtcal.documents import bounds, streams, to_json
from trtcal.documents.streams import IN_JSON, Guarded, guarded, shell_word, visible, visible_cell

TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from("\0\x1b\x7f\x85\u2028\u202e\ud800=+-@,;\t\r\n\"' "))
)


class Gone(io.StringIO):
    """A stream whose reader left."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")


def test_the_examples_are_right():
    found = doctest.testmod(streams)
    assert (found.failed, found.attempted > 0) == (0, True)


@given(TEXT)
def test_json_with_hidden_characters_as_escapes_says_the_same(text):
    shown = to_json({text: [text]}).translate(IN_JSON)
    assert not unseen(shown)
    assert bounds.parse_json(shown) == {in_json(text): [in_json(text)]}


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_a_row_of_csv_is_one_row_of_its_cells(texts):
    shown = io.StringIO()
    csv.writer(shown, quoting=csv.QUOTE_NONNUMERIC).writerow(map(visible_cell, texts))
    assert next(csv.reader(io.StringIO(shown.getvalue()))) == [visible_cell(one) for one in texts]


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_a_plain_word_of_a_command_is_read_back_by_any_shell(word):
    assert shlex.split(shell_word(word)) == [word]


@given(st.lists(TEXT.map(lambda text: text.replace("\0", "").encode("utf-8", "replace").decode())))
def test_bash_reads_every_word_back(words):
    typed = " ".join(map(shell_word, words))
    assert not unseen(typed)
    line = f"printf '%s\\0' x {typed}"
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == ["x", *words, ""]


@given(TEXT)
def test_whatever_is_printed_in_a_guarded_block_is_visible(text):
    shown = io.StringIO()
    before = sys.stdout
    sys.stdout = shown
    try:
        with guarded():
            print(text, end="")
            sys.stdout.writelines([text])
            with guarded():
                print(text)
    finally:
        sys.stdout = before
    assert not unseen(shown.getvalue())
    assert visible(text.replace("\n", "")) in shown.getvalue().replace("\n", "")


def test_a_reader_that_left_raises_nothing_and_is_remembered():
    gone = Guarded(Gone())
    assert not gone.is_dropped
    gone.write("text")
    gone.utf8()("text")
    gone.flush()
    assert gone.is_dropped
    outer = Guarded(Gone())
    Guarded(Guarded(outer)).write("text")
    assert outer.is_dropped
    assert Guarded(outer).is_dropped


def test_a_full_disk_is_an_error_of_a_result_and_none_of_a_note():
    with pytest.raises(OSError, match="No space left"):
        Guarded(Full()).write("text")
    Guarded(Full(), is_result=False).write("text")


def test_a_stream_that_somebody_closed_takes_everything():
    closed = io.StringIO()
    closed.close()
    guard = Guarded(closed)
    guard.write("text")
    guard.flush()
    assert guard.is_dropped
