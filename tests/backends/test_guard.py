import json
import os
import shutil
from dataclasses import replace

import pytest

from tests.fixtures.commands import shows
from tests.fixtures.engines import made, needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples, transposed_net
from trtcal.backends import base as guard
from trtcal.backends.base import is_recorded, ledger_path, record_engine
from trtcal.backends.registry import check_engine
from trtcal.backends.targets import Gpu
from trtcal.cli.main import run_command
from trtcal.documents import digest_file, write_document
from trtcal.errors import InputError
from trtcal.evaluate.variants import open_variant
from trtcal.evidence.manifest import read_build
from trtcal.model import load_model


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A user of one's own, who has built nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return what copies a build for a target into a folder; each is built once."""
    kept = {}

    def copied(target, folder):
        if target not in kept:
            place = tmp_path_factory.mktemp("built")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_STATE_HOME", str(place / "state"))
                made(load_model(conv_net(place / "net.onnx")), target, place / "build")
            kept[target] = place
        shutil.copytree(kept[target], folder, dirs_exist_ok=True)
        return read_build(folder / "build")

    return copied


@pytest.fixture
def build(built, tmp_path, state):
    return built("cpu", tmp_path)


@pytest.fixture
def rtx(built, tmp_path, state):
    return built("sm86,sm120", tmp_path)


def forged(build, **changes):
    """Write a manifest with a right digest as a stranger could, or as another machine of ours did."""
    other = replace(build, **changes)
    write_document(build.folder / "build.json", other.to_document())
    return other


def recorded(build, **changes):
    other = forged(build, **changes)
    assert record_engine(other.measured["engine_digest"], other.digest) is None


def test_an_engine_of_ours_may_be_loaded_by_folder_or_file(build):
    assert check_engine(build.folder).data == build.engine.read_bytes()
    assert check_engine(build.engine).build == build
    assert open_variant(build.folder).name == "net"


def test_an_altered_engine_is_refused_whatever_is_trusted(build):
    data = bytearray(build.engine.read_bytes())
    data[-1] ^= 1
    build.engine.write_bytes(data)
    for trust in (False, True):
        with fails(InputError, "engine.onnx"):
            check_engine(build.folder, trust)


def test_a_stranger_who_computes_every_digest_is_refused(build, tmp_path):
    made(load_model(transposed_net(tmp_path / "up.onnx")), "cpu", tmp_path / "evil")
    build.engine.write_bytes((tmp_path / "evil" / "engine.onnx").read_bytes())
    forged(build, measured={**build.measured, "engine_digest": digest_file(build.engine)})
    with fails(InputError, str(build.folder), hint="--trust"):
        check_engine(build.folder)
    assert check_engine(build.folder, trust=True).data


def test_a_manifest_rewritten_around_our_engine_is_refused(build):
    forged(build, outputs=build.inputs)
    with fails(InputError, str(build.folder), hint="--trust"):
        check_engine(build.folder)


def test_builds_of_another_trtcal_stay_ours(build):
    document = write_document(
        build.folder / "build.json", {**build.to_document(), "trtcal": "0.0.1"}
    )
    record_engine(build.measured["engine_digest"], document["digest"])
    assert check_engine(build.folder)


@pytest.mark.parametrize(
    "changes",
    [{"measured": []}, {"measured": 3}, {"backend": ["tensorrt"]}, {"target": None}, {"inputs": [3]},
     {"plugins": 5}, {"plugins": [{}]}, {"engine_file": ""}, {"engine_file": ".."}, {"options": 1},
     {"inputs": [{"name": [], "dtype": "float32", "shape": [1]}]}, {"target": "sm89"}],
)  # fmt: skip
def test_a_malformed_manifest_is_bad_input_though_trusted(build, changes):
    write_document(build.folder / "build.json", {**build.to_document(), **changes})
    with pytest.raises(InputError):
        check_engine(build.folder, trust=True)


def test_another_user_must_say_trust_before_anything_is_loaded(build, tmp_path, monkeypatch):
    ledger = ledger_path()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        patch.setattr("trtcal.evaluate.variants.open_session", None)
        with fails(InputError, str(build.folder), hint="--trust"):
            open_variant(build.folder)
    ledger.unlink()
    with fails(InputError, str(build.folder), hint="--trust"):
        open_variant(build.folder)
    assert open_variant(build.folder, trust=True).name == "net"


def test_an_engine_without_manifest_is_refused(build):
    (build.folder / "build.json").unlink()
    for place in (build.folder, build.engine):
        with fails(InputError, str(build.folder), hint="trtcal build"):
            check_engine(place, trust=True)


def test_another_file_of_the_folder_is_not_the_engine(build):
    with fails(InputError, "build.log", "build.json"):
        check_engine(build.log)


def test_a_manifest_cannot_point_out_of_its_folder(build, tmp_path):
    (tmp_path / "away.onnx").write_bytes(build.engine.read_bytes())
    build.engine.unlink()
    recorded(build, engine_file="../away.onnx")
    with fails(InputError, "away.onnx"):
        check_engine(build.folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes that lie in folders")
def test_an_engine_is_no_pipe(build):
    build.engine.unlink()
    os.mkfifo(build.engine)
    with fails(InputError, "engine.onnx"):
        check_engine(build.folder)


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("backend_version", "0.1", "onnxruntime 0.1"), ("backend", "mars", "mars"),
        ("target", "rocm", "rocm"),
    ],
)  # fmt: skip
def test_what_it_was_built_by_and_is_not_here_is_named(build, key, value, name):
    recorded(build, **{key: value})
    with fails(InputError, name):
        check_engine(build.folder)


def test_the_signature_is_compared_with_the_model(build, tmp_path):
    model = load_model(tmp_path / "net.onnx")
    assert check_engine(build.folder, model=model)
    other = load_model(transposed_net(tmp_path / "up.onnx"))
    with fails(InputError, "y: float32[n, 5]", "y: float32[n, 8, 16, 16]"):
        check_engine(build.folder, model=other)
    recorded(build, inputs=(replace(build.inputs[0], dtype="float16"),))
    with fails(InputError, "x: float16", "x: float32"):
        check_engine(build.folder, model=model)
    recorded(build, inputs=(*build.inputs, replace(build.inputs[0], name="mask")))
    with fails(InputError, "mask"):
        check_engine(build.folder, model=model)


@needs_rtx
def test_the_gpu_must_be_one_of_the_targets(rtx, monkeypatch):
    places = {None: ["sm86,sm120"], (8, 9): ["sm86,sm120", "NVIDIA Test", "sm89"]}
    for capability, names in places.items():
        gpu = capability and Gpu("NVIDIA Test", capability)
        monkeypatch.setattr(guard, "find_gpu", lambda gpu=gpu: gpu)
        with fails(InputError, *names):
            check_engine(rtx.folder)
    monkeypatch.setattr(guard, "find_gpu", lambda: Gpu("NVIDIA Test", (12, 0)))
    assert check_engine(rtx.folder).data[:4] == b"vtrt"


@needs_rtx
def test_missing_plugins_are_named(rtx, monkeypatch):
    monkeypatch.setattr(guard, "find_gpu", lambda: Gpu("NVIDIA Test", (8, 6)))
    recorded(rtx, plugins=("Strange_TRT 1",))
    with fails(InputError, "Strange_TRT 1"):
        check_engine(rtx.folder)


def test_the_command_line_asks_for_trust(build, tmp_path, monkeypatch, capsys):
    samples(tmp_path / "data.npz")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    line = f"compare {tmp_path}/net.onnx {build.folder} --data {tmp_path}/data.npz --rounds 2"
    words = [*line.split(), "-o", str(tmp_path / "comparison.json")]
    (tmp_path / "net.onnx").rename(tmp_path / "reference.onnx")
    words[1] = str(tmp_path / "reference.onnx")
    assert run_command(words) == 2
    assert "--trust" in capsys.readouterr().err
    assert run_command([*words, "--trust"]) == 0


def test_a_state_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    conv_net(tmp_path / "net.onnx")
    words = ["build", str(tmp_path / "net.onnx"), "--target", "cpu", "-o", str(tmp_path / "build")]
    assert run_command(words) == 0
    shows(capsys.readouterr().err, "--trust")
    with fails(InputError, str(tmp_path / "build"), hint="--trust"):
        check_engine(tmp_path / "build")


def test_the_ledger_is_the_users_alone_and_survives_a_torn_line(state):
    assert record_engine("sha256:1", "sha256:2") is None
    with ledger_path().open("a") as file:
        file.write('{"engine": "sha256:3", "mani')
    assert record_engine("sha256:4", "sha256:5") is None
    assert is_recorded("sha256:1", "sha256:2")
    assert is_recorded("sha256:4", "sha256:5")
    assert not is_recorded("sha256:1", "sha256:5")
    assert ledger_path().stat().st_mode & 0o077 == 0
    assert ledger_path().parent.stat().st_mode & 0o077 == 0


def test_the_manifest_keeps_what_the_guard_needs(build):
    document = json.loads((build.folder / "build.json").read_text())
    assert document["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 3, 8, 8]}]
    assert document["plugins"] == []
    assert read_build(build.folder) == build
