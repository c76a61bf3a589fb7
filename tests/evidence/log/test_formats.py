"""What a log's bytes may be: packed, coded otherwise, or no text."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
import zipfile

import numpy as np
import onnx
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.structures import wrong_axis
from trtcal.errors import InputError
from trtcal.evidence.log import files
from trtcal.evidence.log.files import BLOCK_BYTES, portions_of_file, portions_of_input
from trtcal.evidence.log.reader import parse_file

TEXT = "[V] [TRT] quiet\n[W] Tensor gäbe is uniformly zero.\n" * 50


def zstd(data):
    return pytest.importorskip("backports.zstd").compress(data)


PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd}


def subjects(path):
    return {event.subject for event in parse_file(path).events}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_packed_log_is_read(tmp_path, pack):
    path = tmp_path / "build.log"
    path.write_bytes(pack(TEXT.encode()) + pack(b"[W] End\n"))
    parsed = parse_file(path)
    assert parsed.lines == 101
    assert parsed.events[-1].message == "End"
    assert parsed.events[0].subject == "gäbe"


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_packed_log_that_is_cut_or_broken_is_refused(tmp_path, pack):
    path = tmp_path / "build.log"
    chars = np.random.default_rng(0).integers(32, 127, 20_000, np.uint8).tobytes()
    packed = pack(chars)
    path.write_bytes(packed[:-30])
    with fails(InputError, "build.log"):
        parse_file(path)
    path.write_bytes(packed[:40] + b"\xff" * 400 + packed[440:])
    with fails(InputError, "build.log"):
        parse_file(path)


def test_zstd_without_its_package_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "backports", None)
    path = tmp_path / "build.log"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    with fails(InputError, "zstd", hint="pip install"):
        parse_file(path)


def test_what_a_small_file_unpacks_to_does_not_fill_the_memory():
    packed = io.BytesIO(gzip.compress(b"[V] quiet\n" * 3_000_000))
    tracemalloc.start()
    size = sum(map(len, portions_of_input(packed)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 30_000_000
    assert peak < 20 * BLOCK_BYTES


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig", "latin-1"])
def test_an_encoding_is_recognised(tmp_path, encoding):
    path = tmp_path / "build.log"
    path.write_bytes(TEXT.encode(encoding))
    assert subjects(path) == {"gäbe"}
    path.write_bytes(gzip.compress(TEXT.encode(encoding)))
    assert subjects(path) == {"gäbe"}


def test_lines_in_two_encodings_are_both_read(tmp_path):
    path = tmp_path / "build.log"
    path.write_bytes(
        b"[W] Tensor \xe4 is uniformly zero.\n" + "[W] Tensor ö is uniformly zero.".encode()
    )
    assert subjects(path) == {"ä", "ö"}


def npz():
    stream = io.BytesIO()
    np.savez(stream, images=np.zeros((2, 3)))
    return stream.getvalue()


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("build.log", TEXT)
    return stream.getvalue()


BINARY = {
    "an ONNX model": lambda: wrong_axis().proto().SerializeToString(),
    "an NPZ archive of arrays": npz,
    "a ZIP archive": zipped,
    "a TensorRT engine": lambda: b"ftrt" + bytes(60),
    "an image": lambda: b"\x89PNG\r\n\x1a\n" + bytes(60),
    "a NumPy array": lambda: b"\x93NUMPY\x01\x00" + bytes(60),
    "binary data": lambda: np.random.default_rng(0).bytes(5_000),
}


@pytest.mark.parametrize("what", BINARY)
def test_what_is_no_log_is_refused_with_what_it_is(tmp_path, what):
    path = tmp_path / "build.log"
    for data in (BINARY[what](), gzip.compress(BINARY[what]())):
        path.write_bytes(data)
        with fails(InputError, what) as raised:
            parse_file(path)
        assert raised.value.hint


@pytest.mark.parametrize("producer", ["", "pytorch", "tf2onnx"])
def test_models_of_any_producer_are_recognised(producer):
    graph = onnx.helper.make_graph([], "g", [], [])
    model = onnx.helper.make_model(graph, producer_name=producer)
    assert files._kind_of(model.SerializeToString())[0] == "an ONNX model"


def test_a_log_with_some_bytes_that_are_no_text_is_read(tmp_path):
    path = tmp_path / "build.log"
    path.write_bytes(TEXT.encode() + bytes(100) + b"\n[W] End\n" + TEXT.encode())
    assert b"[W] End\n" in b"".join(portions_of_file(path))
