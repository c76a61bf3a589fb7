"""SavedModels, Keras' files and TFLite's become ONNX that computes the same."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest

import trtcal
from tests.fixtures.fails import fails
from tests.frameworks.conftest import needs
from trtcal.cli.main import run_command as main
from trtcal.errors import InputError, ResourceError
from trtcal.model.loaders import source_of
from trtcal.wings.frameworks import conversion

pytestmark = [needs("tensorflow", "tf2onnx", "keras"), pytest.mark.slow]


def outputs_of(model, feeds):
    session = onnxruntime.InferenceSession(str(model.path))
    return session.run(None, feeds)


@pytest.mark.parametrize("name", ["net", "net.keras", "net.tflite"])
def test_a_converted_model_computes_what_the_framework_does(models, name):
    model, expected = trtcal.load_model(models / name), np.load(models / "expected.npz")
    (found,) = outputs_of(model, {model.inputs[0].name: expected["image"]})
    np.testing.assert_allclose(found, expected["scores"], rtol=1e-4, atol=1e-5)
    assert [str(spec.shape[0]) for spec in (*model.inputs, *model.outputs)] == ["batch", "batch"]
    assert model.source == models / name


def test_names_of_inputs_outputs_and_layers_are_the_frameworks(models):
    model = trtcal.load_model(models / "net.keras")
    assert [spec.name for spec in (*model.inputs, *model.outputs)] == ["image", "scores"]
    nodes = " ".join(node.name for node in model.proto.graph.node)
    assert all(layer in nodes for layer in ("leaky", "pool", "scores"))


def test_a_model_is_converted_once_for_its_digest_and_gives_the_same_file_again(
    models, cache, tmp_path
):
    copy = tmp_path / "copy" / "net"
    shutil.copytree(models / "net", copy)
    first = trtcal.load_model(models / "net")
    made = first.path.stat().st_mtime_ns
    assert trtcal.load_model(copy).path == first.path
    assert first.path.stat().st_mtime_ns == made
    shutil.rmtree(first.path.parent)
    assert trtcal.load_model(copy).fingerprint == first.fingerprint


def test_the_onnx_says_what_it_was_converted_from(models):
    source = source_of(trtcal.load_model(models / "net").proto)
    assert source["format"] == "saved_model"
    assert source["digest"] == conversion.digest_source(models / "net")
    assert set(source["packages"]) == {"tensorflow", "tf2onnx", "keras"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lambda.keras", "Lambda"), ("writer", "WriteFile"), ("reader", "ReadFile"),
        ("loader", "WriteFile"), ("hidden", "WriteFile"),
    ],
)  # fmt: skip
def test_a_model_that_holds_a_program_is_refused_and_not_run(models, name, why):
    with fails(InputError, why, hint="--trust"):
        trtcal.load_model(models / name)
    assert not (models / "written").exists()
    assert not (models / "loaded").exists()


def test_with_trust_what_a_saved_model_does_when_it_is_loaded_is_done(models):
    trtcal.load_model(models / "loader", trust=True)
    assert (models / "loaded").read_text() == "was here"
    (models / "loaded").unlink()


def test_a_lambda_is_converted_where_the_user_trusts_it(models, tmp_path):
    assert (
        main(["prepare", str(models / "lambda.keras"), "--trust", "-o", str(tmp_path / "x.onnx")])
        == 0
    )
    assert len(trtcal.load_model(tmp_path / "x.onnx").outputs) == 1


@pytest.mark.parametrize(
    ("name", "names"), [("several", ["first", "second"]), ("own.keras", ["own.keras"])]
)
def test_what_cannot_be_converted_is_one_error_with_a_hint(models, name, names):
    with fails(InputError, *names) as caught:
        trtcal.load_model(models / name)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["saved_model.pb", "net.keras", "net.tflite"])
def test_a_broken_file_is_one_error(tmp_path, name):
    path = tmp_path / "net" / name
    path.parent.mkdir()
    path.write_bytes(b"\x12\x34broken" * 9)
    with fails(InputError, path.parent.name if name == "saved_model.pb" else name):
        trtcal.load_model(path.parent if name == "saved_model.pb" else path)


def test_a_conversion_that_takes_too_long_is_stopped(models, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(conversion, "LIMIT_S", 0.05)
    with fails(ResourceError, "0.05 s"):
        trtcal.load_model(models / "net")


def test_a_run_takes_a_saved_model_and_writes_down_its_digest(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = trtcal.load_model(models / "net").inputs[0].name
    images = np.random.default_rng(1).normal(size=(40, 12, 12, 3)).astype(np.float32)
    np.savez("images.npz", **{name: images})
    command = [
        "run", str(models / "net"), "--data", "images.npz", "--target", "cpu", "--no-history",
    ]  # fmt: skip
    assert main([*command, "-o", "out"]) in (0, 1)
    made = json.loads((tmp_path / "out" / "run.json").read_text())
    assert made["source"]["digest"] == conversion.digest_source(models / "net")
    assert f'model = "{models / "net"}"' in (tmp_path / "out" / "trtcal.toml").read_text()
