"""Arrays in files: any rows of any container are numpy's, and what a file lacks is never believed."""

import io
import os
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED
from tests.fixtures.tables import each
from trtcal.data.arrays import PlainRows, direct, open_npy, open_npz
from trtcal.errors import InputError

CONTAINERS = ["npy", "stored", "deflated", "fortran", "fortran npz"]
ARRAY = np.random.default_rng(5).standard_normal((300, 5, 7)).astype(np.float32)


def written(path, array, container):
    """Write an array and return its rows."""
    if container.startswith("fortran"):
        array = np.asfortranarray(array)
    if container in ("npy", "fortran"):
        np.save(path / "x.npy", array)
        return open_npy(path / "x.npy")
    (np.savez if container == "stored" else np.savez_compressed)(path / "x.npz", x=array)
    return direct(open_npz(path / "x.npz")["x"])


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    folders = {container: tmp_path_factory.mktemp("rows") for container in CONTAINERS}
    return {container: written(folder, ARRAY, container) for container, folder in folders.items()}


@given(st.lists(st.tuples(st.integers(0, 310), st.integers(0, 310)), max_size=8))
def test_any_rows_in_any_order_are_those_of_the_array(everywhere, places):
    for rows in everywhere.values():
        assert (len(rows), rows.shape, rows.dtype) == (300, ARRAY.shape, ARRAY.dtype)
        for start, stop in places:
            np.testing.assert_array_equal(rows[start:stop], ARRAY[start:stop])


@each("container", CONTAINERS)
@each("kind", ["f2", ">f8", "u1", "i8", "?", "c16", "U3"])
def test_every_plain_type_is_read(tmp_path, container, kind):
    array = np.arange(24).reshape(4, 3, 2).astype(kind)
    rows = written(tmp_path, array, container)
    assert rows.dtype == array.dtype
    np.testing.assert_array_equal(rows[1:3], array[1:3])


@pytest.mark.parametrize("container", CONTAINERS)
def test_rows_are_pickled_without_their_values_and_read_on(tmp_path, container):
    rows = written(tmp_path, ARRAY, container)
    np.testing.assert_array_equal(rows[:5], ARRAY[:5])
    packed = pickle.dumps(rows)
    assert len(packed) < 2000
    np.testing.assert_array_equal(pickle.loads(packed)[5:9], ARRAY[5:9])  # noqa: S301
    np.testing.assert_array_equal(rows[5:9], ARRAY[5:9])


def test_a_member_that_is_not_compressed_is_read_where_it_lies(tmp_path):
    assert isinstance(written(tmp_path, ARRAY, "stored"), PlainRows)
    before = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(b"#!/bin/sh\n" + before)  # as in a self-extracting archive
    np.testing.assert_array_equal(direct(open_npz(tmp_path / "x.npz")["x"])[7:9], ARRAY[7:9])


def test_rising_rows_go_on_with_one_stream_that_is_dropped_at_the_end(tmp_path):
    rows = written(tmp_path, ARRAY, "deflated")
    rows[0:3]
    stream = rows._stream
    for start in (3, 10, 250):
        rows[start : start + 10]
        assert rows._stream is stream
    rows[290:300]
    assert rows._stream is None


@each("container", ["npy", "stored", "deflated"])
@each("change", ["touch", "longer", "gone"])
def test_a_file_that_is_changed_after_it_was_opened_is_noticed(tmp_path, container, change):
    rows = written(tmp_path, ARRAY, container)
    rows[:3]
    (path,) = tmp_path.iterdir()
    if change == "touch":
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    elif change == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        path.unlink()
    with fails(InputError, CHANGED):
        rows[3:6]


def header(text, version=b"\x01\x00"):
    text = text.encode().ljust(118) + b"\n"
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text


def described(shape, kind="<f4", fortran=False):
    return header(f"{{'descr': {kind!r}, 'fortran_order': {fortran}, 'shape': {shape}}}")


def packed(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


HOSTILE = [
    (b"", "header"),
    (b"\x93NUMPY", "header"),
    (b"plain text, no array", "header"),
    (header("__import__('os').abort()"), "header"),
    (header("{'descr': ("), "header"),
    (header("(" * 100), "header"),
    (described("(2,)", kind="f999999999"), "header"),
    (described("(2,)")[:60], "header"),
    (described("(2,)").replace(b"Y\x01", b"Y\x07"), "header"),
    (described("(-1, 4)") + bytes(16), "[-1, 4]"),
    (described("(1000000000000, 1000000000000)"), "float32"),
    (described("(1000000000000,)", fortran=True), "float32"),
    (described("(4,)") + bytes(15), "float32[4]"),
    (packed(np.array([print])), "Python objects"),
]


@each("container", ["npy", zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@each("data, says", HOSTILE)
def test_a_header_that_is_none_or_promises_too_much_is_refused(tmp_path, container, data, says):
    path = tmp_path / "x.npy"
    if container == "npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w", container) as archive:
            archive.writestr("x.npy", data)
    with fails(InputError, says):
        open_npy(path) if container == "npy" else open_npz(path)


@given(st.integers(8, 127), st.binary(min_size=1, max_size=6))
def test_no_header_crashes_the_reader(tmp_path_factory, place, noise):
    path = tmp_path_factory.mktemp("noise") / "x.npy"
    data = bytearray(described("(4, 2)") + bytes(32))
    data[place : place + len(noise)] = noise
    path.write_bytes(data)
    try:
        rows = open_npy(path)
    except InputError:
        return
    np.testing.assert_array_equal(rows[:], np.load(path))


def archive_of(path, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", packed(ARRAY))
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_checksum_is_found_in_a_pass(tmp_path, method):
    path = tmp_path / "x.npz"
    data = archive_of(path, method)
    directory = data.rindex(b"PK\x01\x02")
    for start in (14, directory + 16):  # where the checksum stands
        data[start] ^= 1
    path.write_bytes(data)
    rows = open_npz(path)["x"]
    with fails(InputError, "x.npz"):
        [rows[start : start + 23] for start in range(0, 300, 23)]


def test_a_damaged_stream_is_refused(tmp_path):
    data = archive_of(tmp_path / "x.npz", zipfile.ZIP_DEFLATED)
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    (tmp_path / "x.npz").write_bytes(data)
    with fails(InputError, "x.npz"):
        open_npz(tmp_path / "x.npz")["x"][:]


def test_a_directory_that_promises_more_than_deflate_can_give_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", described("(500000000,)") + bytes(100))
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (2_000_000_128).to_bytes(4, "little")
    path.write_bytes(data)
    with fails(InputError, "float32"):
        open_npz(path)


def test_a_header_that_unpacks_to_very_much_is_not_unpacked(tmp_path):
    size = 1 << 26
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + b" " * size)
    tracemalloc.start()
    try:
        with fails(InputError, "x.npz"):
            open_npz(tmp_path / "x.npz")
        assert tracemalloc.get_traced_memory()[1] < size // 16
    finally:
        tracemalloc.stop()


def test_an_end_that_comes_too_early_is_named(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", described("(100,)") + bytes(100))
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (528).to_bytes(4, "little")
    path.write_bytes(data)
    with fails(InputError, "x.npz"):
        open_npz(path)["x"][:]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_numpy_never_writes_are_refused(tmp_path, method):
    archive_of(tmp_path / "x.npz", method)
    with fails(InputError, "x.npz"):
        open_npz(tmp_path / "x.npz")
