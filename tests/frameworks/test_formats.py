"""What is a model of another framework, and what is never opened: nothing needs to be installed."""

import pickle

import onnx
import pytest

import trtcal
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from trtcal.errors import InputError
from trtcal.wings.frameworks import conversion
from trtcal.wings.frameworks.conversion import convert, digest_source
from trtcal.wings.frameworks.formats import Format


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "NET.PT", "net.h5", "net.safetensors"])
def test_a_file_that_may_hold_a_pickle_is_refused_with_what_to_give_instead(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Bomb()))
    with fails(InputError, name) as caught:
        trtcal.load_model(path)
    assert caught.value.hint


def test_a_missing_package_is_named_with_its_extra(tmp_path):
    path = tmp_path / "net.keras"
    path.write_bytes(b"")
    form = Format("keras", "tensorflow_worker", ("no-such-package-of-trtcal",), "tensorflow")
    with fails(InputError, "no-such-package-of-trtcal", hint="pip install 'trtcal[tensorflow]'"):
        convert(path, form, trust=False)


def test_a_folders_digest_covers_names_and_contents_and_refuses_links(tmp_path):
    folder = tmp_path / "net"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "0").write_bytes(b"weights")
    digest = digest_source(folder)
    (folder / "variables" / "0").rename(folder / "variables" / "1")
    renamed = digest_source(folder)
    (folder / "variables" / "1").write_bytes(b"weightz")
    assert len({digest, renamed, digest_source(folder)}) == 3
    (folder / "link").symlink_to("/etc/hostname")
    with fails(InputError, "link"):
        digest_source(folder)


def test_a_folder_without_a_saved_model_is_no_model(tmp_path):
    with fails(InputError, "saved_model.pb"):
        trtcal.load_model(tmp_path)


def test_a_model_that_changes_while_it_is_converted_is_not_kept_under_its_old_digest(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "net.tflite"
    path.write_bytes(b"before")

    def converting(path, *others):
        path.write_bytes(b"after")
        return onnx.load(conv_net(tmp_path / "made"))

    monkeypatch.setattr(conversion, "_convert", converting)
    form = Format("tflite", "tensorflow_worker", (), "tensorflow")
    with fails(InputError, "net.tflite"):
        convert(path, form, trust=False)
    assert not list(tmp_path.rglob("net.onnx"))
    assert convert(path, form, trust=False).is_file()
