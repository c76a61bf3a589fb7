"""How a bundle is made: what is in it, what it refuses, and the commands."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, run, succeed
from tests.fixtures.fails import fails
from tests.fixtures.killing import tree
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.tables import each
from tests.fixtures.zoo_net import Entry
from tests.fixtures.zoo_products import tokens
from tests.fixtures.zoo_scene import scene
from tests.runs.conftest import TARGETS, VARIANT, forge_record, write_keys
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.data.images import read_names
from trtcal.documents import digest_file, read_npz, seal
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import Plan, prepare, quantize, write_quantized
from trtcal.runs.bundle.building import make_bundle, read_bundle
from trtcal.runs.bundle.golden import make_golden
from trtcal.runs.bundle.manifest import smallest_driver
from trtcal.runs.bundle.signing import PASSPHRASE, read_signer
from trtcal.runs.bundle.verifying import MANIFEST, SIGNATURE, Options, verify


@pytest.fixture(scope="session")
def predicate(made_bundle):
    return json.loads((made_bundle / MANIFEST).read_text())["predicate"]


@pytest.fixture
def copied(made_run, tmp_path):
    return Path(shutil.copytree(made_run, tmp_path / "run"))


@pytest.fixture
def other(made_bundle, tmp_path):
    return Path(shutil.copytree(made_bundle, tmp_path / "bundle"))


def test_the_manifest_names_every_file_by_digest(made_bundle):
    statement = json.loads((made_bundle / MANIFEST).read_text())
    found = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    files = {str(p.relative_to(made_bundle)) for p in made_bundle.rglob("*") if p.is_file()}
    assert set(found) == files - {MANIFEST, SIGNATURE}
    for name, digest in found.items():
        assert f"sha256:{digest}" == digest_file(made_bundle / name)


def test_the_manifest_says_what_a_device_and_an_auditor_want_to_know(predicate, made_run):
    run = json.loads((made_run / "run.json").read_text())
    materials = {one["name"]: "sha256:" + one["digest"]["sha256"] for one in predicate["materials"]}
    assert materials["model"] == run["model"]
    assert materials["calibration data"] == run["calibration_data"]
    assert materials["evaluation data"] == run["evaluation_data"]
    assert {"calibration", "plan", "quantized model", "run", "report"} <= set(materials)
    assert [one["target"] for one in predicate["engines"]] == TARGETS
    for engine in predicate["engines"]:
        assert len(bytes.fromhex(engine["header"])) == 64
        assert engine["precision"]["asked"] == {"int8": 9}
        assert engine["version"]
    assert predicate["verdict"]["word"]
    assert predicate["tags"] == {"team": "vision"}
    assert predicate["inputs"][0]["shape"] == ["batch", 1, 8, 8]


@pytest.mark.skipif("sm89" not in TARGETS, reason="needs TensorRT-RTX")
def test_the_smallest_driver_is_that_of_the_cuda_of_the_package(predicate):
    engine = predicate["engines"][1]
    assert engine["smallest_driver"] == smallest_driver("tensorrt-rtx", engine["version"])
    assert engine["smallest_driver"]["cuda"] in ("12.0", "13.0")
    assert smallest_driver("tensorrt-rtx", "0.0.1") is None
    assert engine["shapes"] == [{"image": [[1, 1, 8, 8], [8, 1, 8, 8], [32, 1, 8, 8]]}]


def test_golden_outputs_are_within_tolerance_of_the_float_model_but_not_equal(
    made_bundle, predicate
):
    golden = predicate["golden"]
    arrays = read_npz(made_bundle / "golden.npz")
    outputs = np.concatenate([arrays[f"output.0.{n}"] for n in range(golden["samples"])])
    assert golden["samples"] == 16
    assert golden["tolerances"]["logits"] >= np.abs(outputs).max() / 127
    labels = read_npz(SAMPLES / "digits" / "test.npz")["labels"]
    assert golden["labels"] == [int(labels[number]) for number in golden["numbers"]]
    assert golden["numbers"][0] == 0
    assert golden["numbers"][-1] == len(labels) - 1


def test_two_bundles_of_one_run_have_one_manifest(request_of, made_bundle, tmp_path):
    made = make_bundle(request_of(), tmp_path / "again")
    assert made.digest == digest_file(made_bundle / MANIFEST)
    assert (tmp_path / "again" / SIGNATURE).read_bytes() != (made_bundle / SIGNATURE).read_bytes()


def test_the_private_key_leaves_no_trace_in_the_bundle(made_bundle, keys):
    secret = "".join(keys.private.read_text().splitlines()[1:-1])[:40]
    for path in made_bundle.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert str(keys.private).encode() not in data, path
            assert secret.encode() not in data, path


def test_an_encrypted_key_wants_its_passphrase(tmp_path, monkeypatch):
    keys = write_keys(tmp_path, passphrase=b"open sesame")
    monkeypatch.delenv(PASSPHRASE, raising=False)
    with fails(InputError, hint=PASSPHRASE):
        read_signer(keys.private)
    monkeypatch.setenv(PASSPHRASE, "wrong")
    with pytest.raises(InputError):
        read_signer(keys.private)
    monkeypatch.setenv(PASSPHRASE, "open sesame")
    assert len(read_signer(keys.private).sign(b"payload")["keyid"]) == 64


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_keys_that_openssl_makes_sign_and_verify(request_of, tmp_path):
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    make = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private]
    subprocess.run(["openssl", *make], check=True)  # noqa: S607
    show = ["ec", "-in", private, "-pubout", "-out", public]
    subprocess.run(["openssl", *show], check=True)  # noqa: S607
    make_bundle(request_of(signer=read_signer(private)), tmp_path / "bundle")
    assert verify(tmp_path / "bundle", Options(public)).verdict == "READY"


@each("content", [b"", b"no key", os.urandom(200)])
def test_what_is_no_private_key_is_one_error(tmp_path, content):
    (tmp_path / "key.pem").write_bytes(content)
    with fails(InputError, hint="openssl ecparam"):
        read_signer(tmp_path / "key.pem")


def test_a_changed_run_or_model_gives_no_bundle(request_of, copied, tmp_path):
    report = (copied / "report.json").read_text()
    (copied / "report.json").write_text(report.replace("98.", "99.", 1))
    with fails(InputError, "report.json"):
        make_bundle(request_of(run=copied), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    (copied / "report.json").write_text(report)
    conv_net(copied / "models" / f"{VARIANT}.onnx")
    with fails(InputError, f"{VARIANT}.onnx"):
        make_bundle(request_of(run=copied), tmp_path / "bundle")


def reseal(path, change):
    """Change a sealed document and seal it again, as somebody who can write it would."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document)))
    forge_record(path.parent)


def test_a_run_that_names_files_outside_its_folder_gives_no_bundle(request_of, copied, tmp_path):
    secret = tmp_path / "secret.json"
    shutil.copyfile(copied / "calibrations" / "percentile.json", secret)

    def change(run):
        step = next(one for one in run["stages"] if one["stage"] == "calibrate")
        step["output"] = "../secret.json"

    before = (copied / "run.json").read_text()
    reseal(copied / "run.json", change)
    with fails(InputError, "../secret.json"):
        make_bundle(request_of(run=copied), tmp_path / "bundle")
    (copied / "run.json").write_text(before)
    (copied / "report.html").unlink()
    (copied / "report.html").symlink_to(secret)
    forge_record(copied)
    with pytest.raises(InputError):
        make_bundle(request_of(run=copied), tmp_path / "bundle")


@pytest.mark.parametrize("key", ["stages", "measured", "model", "evaluation_data", "cost"])
@each("value", [None, 1, [1], {"machine": 1, "tags": [1]}])
def test_a_run_of_another_form_is_one_error(request_of, copied, tmp_path, key, value):
    reseal(copied / "run.json", lambda run: run.update({key: value}))
    with pytest.raises(InputError):
        make_bundle(request_of(run=copied), tmp_path / "bundle")


def test_other_data_than_those_judged_on_give_no_bundle(request_of, tmp_path):
    model = load_model(SAMPLES / "digits" / "digits.onnx")
    data = open_dataset(SAMPLES / "digits" / "calibration.npz", model, None, None)
    with fails(InputError, "calibration"):
        make_bundle(request_of(data=data), tmp_path / "bundle")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"variant": "int8-none"}, "int8-none"),
        ({"variant": "../models/int8-percentile"}, "../models/int8-percentile"),
        ({"targets": ("sm75",)}, "sm75"),
        ({"targets": ("nothing",)}, "nothing"),
    ],
)
def test_what_the_run_does_not_have_is_one_error(request_of, tmp_path, given, name):
    with fails(InputError, name):
        make_bundle(request_of(**given), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_targets_choose_the_engines(request_of, tmp_path):
    make_bundle(request_of(targets=("cpu",)), tmp_path / "bundle")
    assert [path.name for path in (tmp_path / "bundle" / "engines").iterdir()] == ["cpu"]


def test_a_bundle_takes_the_place_of_an_older_one_and_of_nothing_else(request_of, tmp_path):
    folder = tmp_path / "bundle"
    make_bundle(request_of(class_names=tuple("abcdefghij")), folder)
    make_bundle(request_of(targets=("cpu",)), folder)
    assert not (folder / "labels.txt").exists()
    assert verify(folder, Options(allow_unsigned=True)).status == 0
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text("{}")
    for place in (folder, tmp_path / "other"):
        before = tree(place)
        with fails(InputError, place.name):
            make_bundle(request_of(), place)
        assert tree(place) == before


def test_too_few_samples_give_no_bundle(request_of, tmp_path):
    few = replace(request_of().data, arrays={k: v[:7] for k, v in request_of().data.arrays.items()})
    with fails(InputError, "8", "16"):
        make_bundle(request_of(data=few), tmp_path / "bundle")


def test_reading_a_changed_bundle_is_an_error(other):
    (other / "run.json").write_text("{}")
    with fails(InputError, "run.json"):
        read_bundle(other)


def test_the_command_verify_knows_a_bundle_from_a_run(other, capsys):
    succeed(capsys, "verify", other)
    (other / "golden.npz").unlink()
    status, out, _ = run(capsys, "verify", other)
    assert (status, "golden.npz" in out) == (1, True)


@pytest.mark.parametrize("text", ["a\n\nb", "a\n\x1b[31mb", "\udcff"])
def test_a_file_of_names_has_a_name_on_each_line(tmp_path, text):
    (tmp_path / "names.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError):
        read_names(tmp_path / "names.txt")


CONFIG = """
model = "net.onnx"
output = "out"
[calibration]
data = "data.npz"
methods = ["minmax"]
[build]
targets = ["cpu"]
fp16 = false
"""


@pytest.fixture(scope="module")
def held_back(tmp_path_factory):
    """A run that holds samples back to judge by, made by the command."""
    place = tmp_path_factory.mktemp("held")
    conv_net(place / "net.onnx")
    samples(place / "data.npz", count=60)
    (place / "trtcal.toml").write_text(CONFIG)
    assert run_command(["run", str(place / "trtcal.toml"), "--no-history", "-q"]) in (0, 1)
    return place


def test_bundles_are_made_signed_and_verified_from_the_command_line(
    held_back, tmp_path, monkeypatch, capsys, keys
):
    monkeypatch.chdir(held_back)
    bundle = tmp_path / "bundle"
    asked = ("out", "--variant", "int8-minmax", "-o", bundle)
    assert "INCONCLUSIVE" in refused(capsys, "bundle", *asked, status=1)
    assert not bundle.exists()
    asked = (*asked, "--despite-verdict")
    assert "READY, but it is not signed" in succeed(capsys, "bundle", *asked)
    verified = ("bundle", "verify", bundle)
    assert "verdict: warning: it was made despite the verdict INCONCLUSIVE" in succeed(
        capsys, *verified
    )
    statement = json.loads((bundle / MANIFEST).read_text())
    assert statement["predicate"]["verdict"]["despite_verdict"] is True
    out = succeed(capsys, "bundle", "make", *asked, "--key", keys.private)
    assert ("READY" in out, "not checked" in out) == (True, False)
    status, out, err = run(capsys, *verified)
    assert (status, "READY" in out, "--public-key" in err) == (2, False, True)
    succeed(capsys, *verified, "--public-key", keys.public, "--device")
    monkeypatch.setenv("TRTCAL_PUBLIC_KEY", str(keys.public))
    assert answer(capsys, *verified)["state"] == "READY"


def test_a_broken_bundle_is_one_error_with_its_status(other, capsys, keys):
    (other / "report.html").write_text("")
    err = refused(capsys, "bundle", "verify", other, "--public-key", keys.public)
    assert err.startswith("error: REFUSED: report.html")


def test_the_options_may_stand_before_the_run(held_back, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(held_back)
    arguments = ("--variant", "int8-minmax", "-o", tmp_path / "bundle", "--despite-verdict", "out")
    assert run(capsys, "bundle", *arguments)[0] == 0
    assert run(capsys, "bundle", "--help")[0] == 0
    assert run(capsys, "bundle", "out")[0] == 2


def test_the_matrix_says_where_a_bundle_loads(made_bundle, capsys, tmp_path):
    matrix = ("bundle", "matrix", made_bundle)
    found = {one["device"]: one for one in answer(capsys, *matrix)}
    assert {"T4", "L4", "A100 SXM4 40 GB", "Jetson AGX Orin 64 GB", "GeForce RTX 4090"} <= set(
        found
    )
    if "sm89" in TARGETS:
        assert found["L4"]["state"] == found["GeForce RTX 4090"]["state"] == "READY"
        assert found["T4"]["reason"] == "built for sm89, but this is T4 (sm75)"
        assert {found[name]["state"] for name in ("T4", "Jetson AGX Orin 64 GB")} == {"REFUSED"}
        assert "'sm75'" in refused(capsys, *matrix, "--for", "t4", status=1)
    mine = tmp_path / "mine.toml"
    mine.write_text(
        "bandwidth_gb_s = 1\nint8_tops = 1\nfp16_tflops = 1\nfp32_tflops = 1\n"
        'capability = "sm89"\nplatform = "x86_64"\ncuda = "11.8"\n'
    )
    status, _, err = run(capsys, *matrix, "--for", mine)
    if "sm89" in TARGETS:
        assert (status, "580" in err or "525" in err) == (1, True)
    mine.write_text(mine.read_text().replace("sm89", "turing"))
    refused(capsys, *matrix, "--for", mine)


@pytest.mark.parametrize("precision", ["fp8", "int4", "nvfp4"])
def test_golden_outputs_of_other_formats_are_those_of_their_definition(precision, tmp_path):
    made = scene(Entry("products", products, ()), tmp_path, 16)
    plan = Plan(precision)
    write_quantized(tmp_path / "q.onnx", quantize(prepare(made.given), made.calibration, plan))
    model = load_model(tmp_path / "q.onnx")
    golden = make_golden(model, open_dataset(tmp_path / "samples.npz", model))
    largest = max(np.abs(golden.arrays[f"output.0.{n}"]).max() for n in range(16))
    (tolerance,) = golden.tolerances.values()
    assert tolerance == pytest.approx(largest / 127)
    evaluator = ReferenceEvaluator(model.proto)
    for number in range(16):
        (wanted,) = evaluator.run(None, {"x": golden.arrays[f"input.0.{number}"]})
        assert np.abs(wanted - golden.arrays[f"output.0.{number}"]).max() < tolerance


def products():
    net = tokens(size=128)
    return net.done(net.linear("two", net.relu(net.linear("one", "x", 128, 128)), 128, 128))
