"""What a bundle's verifier accepts and refuses, each file changed in turn."""

import ast
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cuda.stand_in import build as build_driver
from tests.fixtures.commands import refused
from tests.fixtures.tables import each
from tests.runs.conftest import TARGETS, write_keys
from trtcal.documents import canonical_json, digest_file, read_npz, seal, write_json, write_npz
from trtcal.errors import InputError
from trtcal.evidence.gpus import find_target
from trtcal.runs.bundle import verifying
from trtcal.runs.bundle.building import make_bundle
from trtcal.runs.bundle.devices import matrix
from trtcal.runs.bundle.signing import envelope, read_signer
from trtcal.runs.bundle.verifying import (
    DEPTH,
    MANIFEST,
    SIGNATURE,
    Device,
    Options,
    choose,
    find_device,
    fit,
    pae,
    verify,
)
from trtcal.runs.verify import OF_FILES
from trtcal.runs.verify import verify as verify_digests
from trtcal.wings.fleet.drift import drift

NAMES = (
    "calibration.json",
    "engines/cpu/build.json",
    "engines/cpu/engine.onnx",
    "golden.npz",
    "graph.html",
    "model/int8-percentile.onnx",
    "report.html",
    "report.json",
    "run.json",
    *(["engines/sm89/build.json", "engines/sm89/engine.plan"] if "sm89" in TARGETS else []),
)
needs_engine = pytest.mark.skipif("sm89" not in TARGETS, reason="needs TensorRT-RTX")
PLAN = "engines/sm89/engine.plan"
L4 = Device("NVIDIA L4", "sm89", "13.0", "x86_64")


@pytest.fixture
def bundle(made_bundle, tmp_path):
    return Path(shutil.copytree(made_bundle, tmp_path / "bundle"))


@pytest.fixture
def wanted(keys):
    return Options(keys.public)


def refusal(folder, wanted):
    """Return why a bundle is refused, once nothing of it was loaded."""
    result = verify(folder, wanted)
    assert result.status == 2
    assert "self-test" not in {check.what for check in result.checks}
    return result.verdict


def rewrite(folder, keys, change):
    """Change what a manifest says, and sign it again as its own signer would."""
    statement = json.loads((folder / MANIFEST).read_bytes())
    change(statement)
    sign(folder, canonical_json(statement), keys)


def sign(folder, payload, keys=None):
    """Put a manifest and its signature into a bundle."""
    (folder / MANIFEST).write_bytes(payload)
    signer = keys and read_signer(keys.private)
    write_json(folder / SIGNATURE, envelope(payload, signer))


def rewrite_engine(folder, keys, number=0, **fields):
    """Change what a manifest says of an engine."""
    rewrite(folder, keys, lambda made: made["predicate"]["engines"][number].update(fields))


def replace_file(folder, keys, name, data, **of_engine):
    """Put other bytes into a bundle, digest and size as its own signer would write them."""
    (folder / name).write_bytes(data)
    digest = digest_file(folder / name).removeprefix("sha256:")

    def change(statement):
        subject = next(one for one in statement["subject"] if one["name"] == name)
        subject["digest"] = {"sha256": digest}
        statement["predicate"]["sizes"][name] = len(data)
        statement["predicate"]["engines"][-1].update(of_engine)

    rewrite(folder, keys, change)


def signed(folder):
    return json.loads((folder / SIGNATURE).read_text())


def test_an_untouched_bundle_is_ready_and_gives_its_golden_outputs(bundle, wanted):
    files = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    assert files == {*NAMES, MANIFEST, SIGNATURE}
    result = verify(bundle, wanted)
    assert (result.status, result.verdict) == (0, "READY")
    assert result.checks[-1].what == "self-test"
    assert "16 golden inputs" in result.checks[-1].found
    assert verify(bundle, replace(wanted, device=True)).verdict == "READY" or shutil.which(
        "nvidia-smi"
    )


@pytest.mark.parametrize("how", ["bit", "cut", "gone", "longer"])
@pytest.mark.parametrize("name", NAMES)
def test_a_change_in_any_file_is_refused_by_its_name(bundle, wanted, name, how):
    path = bundle / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    changed = {"bit": data, "cut": data[:-1], "longer": data + b"\n"}
    path.unlink()
    if how != "gone":
        path.write_bytes(changed[how])
    assert name in refusal(bundle, wanted)
    assert name in refusal(bundle, Options(allow_unsigned=True))


@pytest.mark.parametrize("place", [*range(0, 1000, 97), *range(-400, 0, 37)])
@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE])
def test_a_change_in_the_manifest_or_the_signature_is_refused(bundle, wanted, name, place):
    data = bytearray((bundle / name).read_bytes())
    data[place % len(data)] ^= 1
    (bundle / name).write_bytes(data)
    assert verify(bundle, wanted).status == 2
    assert name == SIGNATURE or verify(bundle, Options(allow_unsigned=True)).status == 2


def test_a_signature_that_was_changed_or_is_of_somebody_else_is_refused(bundle, wanted, tmp_path):
    found = signed(bundle)
    raw = bytearray(base64.b64decode(found["signatures"][0]["sig"]))
    raw[-1] ^= 1
    found["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    write_json(bundle / SIGNATURE, seal(found))
    assert "public key" in refusal(bundle, wanted)
    rewrite(bundle, write_keys(tmp_path / "other"), lambda statement: None)
    assert "no signature of the bundle matches" in refusal(bundle, wanted)


def test_a_signature_and_a_key_need_each_other(bundle, wanted):
    assert "no public key is given" in refusal(bundle, Options())
    assert verify(bundle, Options(allow_unsigned=True)).status == 0
    write_json(bundle / SIGNATURE, seal({**signed(bundle), "signatures": []}))
    assert "not signed" in refusal(bundle, wanted)
    assert verify(bundle).verdict.startswith("READY, but it is not signed")


def test_the_hint_asks_for_a_key_only_where_none_is_given(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRTCAL_PUBLIC_KEY", raising=False)
    line = ("bundle", "verify", bundle)
    assert "--public-key FILE" in refused(capsys, *line)
    other = write_keys(tmp_path).public
    assert "--public-key FILE" not in refused(capsys, *line, "--public-key", other)


@each("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END"])
def test_what_is_no_public_key_is_refused(bundle, tmp_path, text):
    (tmp_path / "bad.pem").write_text(text)
    assert "public key" in refusal(bundle, Options(tmp_path / "bad.pem"))


def test_a_key_is_a_public_one_on_the_curve_p_256(bundle, keys, tmp_path, capsys):
    other = write_keys(tmp_path / "other", ec.SECP384R1())
    assert "P-256" in refusal(bundle, Options(other.public))
    assert "is a private key" in refusal(bundle, Options(keys.private))
    assert "-pubout" in refused(capsys, "bundle", "verify", bundle, "--public-key", keys.private)


def test_a_link_to_the_public_key_is_followed(bundle, keys, tmp_path):
    link = tmp_path / "public.pem"
    link.symlink_to(keys.public)
    assert verify(bundle, Options(link)).verdict == "READY"
    link.unlink()
    link.symlink_to(link)
    assert "cannot be read" in refusal(bundle, Options(link))


def test_what_is_signed_is_as_the_specification_shows():
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_verifies_the_signature_too(bundle, keys, tmp_path):
    found = signed(bundle)
    payload = base64.b64decode(found["payload"])
    (tmp_path / "signed").write_bytes(pae(found["payloadType"], payload))
    (tmp_path / "sig").write_bytes(base64.b64decode(found["signatures"][0]["sig"]))
    files = ["-signature", tmp_path / "sig", tmp_path / "signed"]
    command = ["openssl", "dgst", "-sha256", "-verify", keys.public, *files]
    assert b"OK" in subprocess.run(command, check=True, capture_output=True).stdout


@pytest.mark.parametrize("name", ["extra.txt", "engines/cpu/extra", ".hidden", "new/file"])
def test_a_file_that_is_not_in_the_manifest_is_refused(bundle, wanted, name):
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).touch()
    assert f"{name} is in the folder" in refusal(bundle, wanted)


@pytest.mark.parametrize("name", ["golden.npz", "model", MANIFEST, SIGNATURE])
def test_links_are_refused(bundle, wanted, tmp_path, name):
    shutil.move(bundle / name, tmp_path / "elsewhere")
    (bundle / name).symlink_to(tmp_path / "elsewhere")
    assert verify(bundle, wanted).status == 2


def test_a_pipe_is_refused_and_not_waited_for(bundle, wanted):
    os.mkfifo(bundle / "pipe")
    assert "special file" in refusal(bundle, wanted)
    (bundle / MANIFEST).unlink()
    os.mkfifo(bundle / MANIFEST)
    assert verify(bundle, wanted).status == 2


@each(
    "fields",
    [{"word": "DO NOT SHIP"}, {"word": "INCONCLUSIVE"}, {"limits_of_this": "broken"}],
)
def test_a_bundle_against_the_verdict_says_so(bundle, wanted, keys, fields):
    rewrite(bundle, keys, lambda statement: statement["predicate"]["verdict"].update(fields))
    verdict = verify(bundle, replace(wanted, self_test=True)).verdict
    assert verdict.startswith("READY, but it was made despite the verdict")
    assert fields.get("word", "") in verdict


NOT_INSIDE = [
    *("../outside", "/etc/hostname", "a/../../b", "a//b", "./golden.npz", "", "a\\b", "a\nb"),
]


@each("name", NOT_INSIDE)
def test_names_that_leave_the_bundle_are_refused(bundle, wanted, keys, name):
    rewrite(bundle, keys, lambda statement: statement["subject"][0].update(name=name))
    assert "not a path inside the bundle" in refusal(bundle, wanted)


@pytest.mark.parametrize("fields", [{"file": "../engine.onnx"}, {"product": "tensorflow"}])
def test_an_engine_without_a_digest_or_of_what_is_not_known_is_refused(
    bundle, wanted, keys, fields
):
    rewrite_engine(bundle, keys, **fields)
    assert "".join(fields.values()) in refusal(bundle, wanted)


def test_verify_names_an_engine_without_a_digest(bundle, keys):
    rewrite_engine(bundle, keys, file="other.onnx")
    failing = [check for check in verify_digests(bundle, keys.public) if not check.holds]
    assert [(check.part, check.what) for check in failing] == [(OF_FILES, "bundle")]
    assert "other.onnx" in failing[0].problem


def test_a_bundle_without_engines_is_refused(bundle, wanted, keys):
    rewrite(bundle, keys, lambda statement: statement["predicate"].update(engines=[]))
    assert "names no engine" in refusal(bundle, wanted)


@each(
    "data",
    [
        b'{"payload": "", "payload": "", "payloadType": "", "signatures": []}',
        b"[" * 100_000,
        b'{"a":' * (DEPTH + 2) + b"1" + b"}" * (DEPTH + 2),
        *(b"[]", b"1", b"null", b"", b"\xff\xfe", b'{"payload": NaN}'),
        b'{"payload": 1, "payloadType": 2, "signatures": 3}',
        b'{"payload": "AA==", "payloadType": "application/vnd.in-toto+json", "signatures": [1]}',
    ],
)
def test_what_is_no_envelope_is_refused(bundle, wanted, data):
    (bundle / SIGNATURE).write_bytes(data)
    assert verify(bundle, wanted).status == 2
    assert verify(bundle, Options(allow_unsigned=True)).status == 2


@pytest.mark.parametrize("key", ["engines", "golden", "sizes"])
@pytest.mark.parametrize("value", [None, 1, "text", [], {}, [1], {"file": 1}])
def test_a_manifest_of_another_form_is_refused(bundle, wanted, keys, key, value):
    rewrite(bundle, keys, lambda statement: statement["predicate"].update({key: value}))
    assert verify(bundle, replace(wanted, device=L4)).status == 2


def places(value, place=()):
    """Yield the way to every value inside a JSON value."""
    pairs = dict(enumerate(value)) if isinstance(value, list) else value
    for key, item in pairs.items() if isinstance(pairs, dict) else ():
        yield (*place, key)
        yield from places(item, (*place, key))


def test_a_signed_manifest_with_anything_anywhere_gives_a_verdict_and_no_crash(bundle, keys):
    original = (bundle / MANIFEST).read_bytes()
    ways, random = [*places(json.loads(original))], Random(0)  # noqa: S311
    odd = [None, -1, 1.5, 2**70, True, "", "x", "../x", "\u202e", [], {}, [[]], {"a": 1}]
    for _ in range(300):
        statement = json.loads(original)
        *way, last = random.choice(ways)
        reduce(getitem, way, statement)[last] = random.choice(odd)
        sign(bundle, canonical_json(statement))
        device = random.choice([L4, Device(missing="none")])
        result = verify(bundle, Options(device=device, self_test=False))
        assert json.loads(json.dumps(result.to_document()))["state"] in verifying.VERDICTS.values()
        with contextlib.suppress(InputError):
            assert matrix(bundle, [find_target("l4")])
        with contextlib.suppress(InputError):
            assert drift(bundle, [bundle / "golden.npz"], 95.0)


@needs_engine
def test_a_cut_engine_is_refused_even_if_it_was_signed(bundle, wanted, keys):
    data = (bundle / PLAN).read_bytes()
    replace_file(bundle, keys, PLAN, data[: len(data) // 2])
    assert "is cut: its header says" in refusal(bundle, wanted)
    replace_file(bundle, keys, PLAN, data[:20])
    assert verify(bundle, wanted).status == 2


@needs_engine
def test_an_engine_of_another_version_than_said_is_refused(bundle, wanted, keys):
    rewrite_engine(bundle, keys, 1, version="1.6.0.3")
    assert re.search(r"is of version 1\.7|not 1\.6\.0\.3", refusal(bundle, wanted))


@needs_engine
def test_a_file_that_is_no_engine_is_refused(bundle, wanted, keys):
    data = b"ftrt" + bytes(60)
    replace_file(bundle, keys, PLAN, data, header=data.hex())
    assert "is not an engine of tensorrt-rtx" in refusal(bundle, wanted)


def engine(**given):
    """Return an engine's entry in a manifest."""
    usual = {
        "file": "engines/gpu/engine.plan",
        "target": "gpu",
        "product": "tensorrt",
        "version": "10.3.0.26",
        "capabilities": ["sm89"],
        "portable_to": [],
        "at_least": None,
        "gpu": "NVIDIA L4 (sm89)",
        "platform": "x86_64",
        "smallest_driver": {"cuda": "12.0", "linux": "525.60.13"},
    }
    return {**usual, **given}


PORTABLE = {"capabilities": [], "portable_to": ["sm80", "sm89"], "at_least": "sm120"}
PORTABLE |= {"gpu": None}
OF_RTX = {"gpu": None, "product": "tensorrt-rtx"}


def plan(tmp_path, version, magic=b"ftrt"):
    """Write the first bytes of a datacenter plan, and return its entry."""
    head = magic + bytes(20) + bytes(version) + bytes(36)
    (tmp_path / "engine.plan").write_bytes(head + bytes(100))
    return engine(file="engine.plan", header=head.hex())


def test_the_header_of_a_datacenter_plan_has_its_version(tmp_path):
    entry = plan(tmp_path, (10, 3, 0, 26))
    assert verifying._header(tmp_path, entry).state == "holds"
    for version, magic in (((10, 4, 0, 26), b"ftrt"), ((10, 3, 0, 26), b"vtrt")):
        with pytest.raises(verifying.RefusedError):
            verifying._header(tmp_path, plan(tmp_path, version, magic))


@each(
    "given, device, state, words",
    [
        ({}, L4, "holds", "for NVIDIA L4"),
        ({}, replace(L4, cuda="12.2"), "holds", ""),
        ({}, replace(L4, cuda="11.8"), "refused", "525.60.13"),
        ({}, replace(L4, name="Tesla T4", target="sm75"), "refused", "built for sm89"),
        ({}, replace(L4, name="NVIDIA RTX 4090"), "rebuild", "tactics"),
        ({}, replace(L4, platform="aarch64"), "refused", "aarch64"),
        ({}, Device(missing="there is no NVIDIA driver"), "refused", "no NVIDIA driver"),
        (OF_RTX, L4, "holds", ""),
        (OF_RTX, replace(L4, platform="aarch64"), "rebuild", "aarch64"),
        (PORTABLE, L4, "rebuild", "portable"),
        (PORTABLE, replace(L4, target="sm121"), "rebuild", "portable"),
        (PORTABLE, replace(L4, target="sm87"), "refused", "sm80, sm89"),
        ({"smallest_driver": None}, replace(L4, cuda="10.0"), "holds", ""),
        ({"product": "onnxruntime", "target": "cpu"}, Device(), "holds", "any CPU"),
    ],
)
def test_an_engine_fits_a_device_or_not_with_the_reason(given, device, state, words):
    check = fit(engine(**given), device)
    assert check.state == state
    assert words in check.found


def test_the_engine_that_suits_a_device_best_is_chosen():
    entries = [
        engine(product="onnxruntime", target="cpu"),
        engine(target="portable", **PORTABLE),
        engine(target="sm89", gpu=None),
        engine(target="sm75", capabilities=["sm75"], gpu=None),
    ]
    found = {device: choose(entries, replace(L4, target=device)) for device in ("sm89", "sm80")}
    assert found["sm89"][0]["target"] == "sm89"
    assert found["sm80"][0]["target"] == "portable"
    assert choose(entries, Device())[0]["target"] == "cpu"
    assert choose(entries, replace(L4, target="sm70"))[1].state == "refused"


@needs_engine
def test_the_wrong_device_is_refused_with_its_name(bundle, wanted):
    t4 = replace(wanted, device=Device("Tesla T4", "sm75", "13.0", "x86_64"))
    assert "built for sm89, but this is Tesla T4 (sm75)" in refusal(bundle, t4)


@needs_engine
@pytest.mark.skipif(find_device().target is not None, reason="has a GPU")
def test_a_bundle_for_a_gpu_alone_is_refused_where_there_is_none(request_of, tmp_path, wanted):
    make_bundle(request_of(targets=("sm89",)), tmp_path / "bundle")
    assert "no NVIDIA driver" in refusal(tmp_path / "bundle", replace(wanted, device=True))
    without = verify(tmp_path / "bundle", wanted)
    assert (without.status, without.verdict) == (
        0,
        "READY, but no engine was run; `trtcal bundle verify --device` runs the engine for this "
        "machine",
    )


@needs_engine
def test_the_driver_is_asked_in_a_child_process(bundle, keys, tmp_path):
    library = build_driver(tmp_path)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    command = [sys.executable, verifying.__file__, bundle, "--public-key", keys.public, "--device"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "built for sm89, but this is" in done.stdout
    assert "(sm99)" in done.stdout


def test_an_engine_of_another_onnx_runtime_is_to_be_built_again(bundle, wanted, keys):
    rewrite_engine(bundle, keys, version="1.0.0")
    result = verify(bundle, wanted)
    assert result.status == 1
    assert result.verdict.startswith("REBUILD RECOMMENDED: built by onnxruntime 1.0.0")


@needs_engine
def test_another_tensorrt_than_the_one_that_built_it_is_refused(bundle, wanted, keys):
    data = bytearray((bundle / PLAN).read_bytes())
    data[24:28] = bytes((1, 2, 0, 5))
    replace_file(bundle, keys, PLAN, bytes(data), version="1.2.0.5", header=data[:64].hex())
    assert "built by tensorrt-rtx 1.2.0.5" in refusal(bundle, replace(wanted, device=L4))


def test_outputs_that_differ_are_refused(bundle, wanted, keys, tmp_path):
    arrays = read_npz(bundle / "golden.npz")
    arrays["output.0.3"][0, 5] += 100.0
    write_npz(tmp_path / "golden.npz", arrays.items())
    replace_file(bundle, keys, "golden.npz", (tmp_path / "golden.npz").read_bytes())
    result = verify(bundle, wanted)
    assert result.status == 2
    assert "logits of 3 differs by 100" in result.verdict


def test_an_engine_that_does_not_load_is_refused(bundle, wanted, keys):
    name = "engines/cpu/engine.onnx"
    data = (bundle / name).read_bytes()[:64] + bytes(1000)
    replace_file(bundle, keys, name, data)
    result = verify(bundle, wanted)
    assert result.status == 2
    assert result.checks[-1].what == "self-test"


def test_saved_outputs_say_what_made_them(bundle, wanted, tmp_path):
    verify(bundle, replace(wanted, save_outputs=tmp_path / "out.npz", tier="edge"))
    arrays = read_npz(tmp_path / "out.npz")
    about = json.loads(str(arrays["about"]))
    assert arrays["output.0.15"].shape == (1, 10)
    assert about["tier"] == "edge"
    assert "sha256:" + about["manifest"] == digest_file(bundle / MANIFEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.npz"]


def alone(tmp_path, *arguments, blocked=()):
    """Run the verifier as a file of its own, where trtcal and what is `blocked` cannot be imported."""
    shutil.copyfile(verifying.__file__, tmp_path / "verify_bundle.py")
    block = "".join(f"sys.modules[{name!r}] = None; " for name in ("trtcal", *blocked))
    start = f"import runpy, sys; {block}runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import sys; sys.argv = sys.argv[1:]; {start}"
    command = [sys.executable, "-I", "-W", "error", "-c", code, "verify_bundle.py", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_the_verifier_runs_alone_on_a_device(bundle, keys, tmp_path):
    done = alone(tmp_path, "bundle", "--public-key", keys.public)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "READY"
    (bundle / "golden.npz").write_bytes(b"")
    done = alone(tmp_path, "bundle", "--public-key", keys.public, "--json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (2, "REFUSED")


def test_without_cryptography_a_signature_is_unchecked_and_never_ready(bundle, keys, tmp_path):
    done = alone(tmp_path, "bundle", "--public-key", keys.public, blocked=["cryptography"])
    assert done.returncode == 2
    assert "the signature was not checked, because `cryptography` is not installed" in done.stdout
    done = alone(tmp_path, "bundle", "--allow-unsigned", blocked=["cryptography", "numpy"])
    assert done.returncode == 0


def test_the_verifier_imports_pythons_library_alone_and_is_understood_by_python_3_8():
    source = Path(verifying.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [one.name for node in top if isinstance(node, ast.Import) for one in node.names]
    names += [str(node.module) for node in top if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    assert "trtcal" not in "".join(ast.unparse(node) for node in top)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path, wanted):
    assert verify(tmp_path, wanted).status == 2
    assert "is not a folder" in verify(tmp_path / "none", wanted).verdict


@pytest.mark.parametrize("name", ["engines/cpu/engine.onnx", "golden.npz"])
def test_a_file_that_is_exchanged_after_it_was_checked_is_not_loaded(
    bundle, wanted, monkeypatch, name
):
    found = verifying._runtime

    def exchanging(engine):
        source = bundle / ("model/int8-percentile.onnx" if "onnx" in name else "golden.npz")
        (bundle / name).write_bytes(source.read_bytes() + b"\0")
        return found(engine)

    monkeypatch.setattr(verifying, "_runtime", exchanging)
    result = verify(bundle, wanted)
    assert result.status == 2
    assert "was changed while it was checked" in result.verdict


@pytest.mark.parametrize(
    ("part", "value"),
    [("samples", 0), ("tolerances", {}), ("tolerances", {"logits": float("1e999")})],
)
def test_golden_outputs_that_nothing_can_differ_from_are_refused(bundle, wanted, keys, part, value):
    rewrite(bundle, keys, lambda statement: statement["predicate"]["golden"].update({part: 1}))
    text = json.dumps(value).replace("Infinity", "1e999")  # a number, to JSON
    places = f'"{part}":1'.encode(), f'"{part}":{text}'.encode()
    sign(bundle, (bundle / MANIFEST).read_bytes().replace(*places), keys)
    assert "have infinite tolerances" in refusal(bundle, wanted)


def test_files_are_counted_over_all_folders(bundle, wanted, monkeypatch):
    monkeypatch.setattr(verifying, "FILES", 30)
    for number in range(60):
        place = bundle / "extra" / str(number % 4)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number)).touch()
    assert "has more than 30 files" in refusal(bundle, wanted)
