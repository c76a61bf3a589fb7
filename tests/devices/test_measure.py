"""The archive that measures elsewhere: what is in it, its script, and the result that comes back.

The script runs a stand-in of trtexec, which runs models on the CPU and writes documented forms: that
proves the script, its options and the reading, not TensorRT.
"""

import io
import json
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.fixtures.commands import refused, succeed
from tests.fixtures.fails import fails
from tests.fixtures.measured import FAULT, FAULTY, run_once
from tests.fixtures.schema import schema_errors
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from tests.fixtures.trtexec import install
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.documents import json_bytes, seal, write_document
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.reporting.document import assemble
from trtcal.wings.devices.measure import SCRIPT, make_archive


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_once(tmp_path_factory)


@pytest.fixture(scope="module")
def archive(run, tmp_path_factory):
    """The archive of the run, as `trtcal bundle --measure` writes it."""
    path = tmp_path_factory.mktemp("archive") / "measure.tar"
    words = ["bundle", run, "--measure", "--data", run / "test.npz", "-o", path]
    assert run_command(list(map(str, words))) == 0
    return path


def unpack(archive, place):
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place / "measure"


def measure(folder, program, result, shell="dash", **variables):
    words = [shell, str(folder / SCRIPT), str(result)]
    environment = {"PATH": "/usr/bin:/bin", "TRTEXEC": str(program), **variables}
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder.parent)


def members(result):
    with tarfile.open(result) as packed:
        return {each.name: packed.extractfile(each).read() for each in packed if each.isfile()}


def repack(contents, path):
    """Write members into a tar, each with its content, or as the TarInfo that it is."""
    with tarfile.open(path, "w") as packed:
        for name, content in contents.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def result(archive, tmp_path_factory):
    """What the script brings back of a run with the stand-in of 8.6."""
    place = tmp_path_factory.mktemp("far away")
    install(place, "8.6.1")
    done = measure(unpack(archive, place), place / "trtexec", place / "result.tar", "sh")
    assert done.returncode == 0, done.stderr
    return place / "result.tar"


def report(run, path):
    document = assemble(run, [str(path)])
    assert not schema_errors(document)
    return document


def test_the_same_run_gives_the_same_archive(run, archive, tmp_path, capsys):
    again = tmp_path / "again.tar"
    succeed(capsys, "bundle", run, "--measure", "--data", run / "test.npz", "-o", again)
    assert again.read_bytes() == archive.read_bytes()
    assert {"measure/measure.sh", "measure/measure.json", "measure/inputs/0.bin"} <= {
        *members(again)
    }


def test_a_variant_alone_goes_with_fp32(run, tmp_path, capsys):
    path = tmp_path / "one.tar"
    words = ("bundle", run, "--measure", "--data", run / "test.npz", "-o", path, "--variant")
    succeed(capsys, *words, "int8")
    assert {"measure/models/0.onnx", "measure/models/1.onnx"} <= {*members(path)}
    err = refused(capsys, *words, "int4")
    assert "int4" in err
    assert "int8" in err


def test_an_input_that_is_open_behind_its_first_axis_has_its_shapes(tmp_path):
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    text = head + "g (float[1, n] x) => (float[1, n] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((8, 5), np.float32))
    model = load_model(tmp_path / "m.onnx")
    rows = [SimpleNamespace(name="m", model=model.fingerprint)]
    data = open_dataset(tmp_path / "data.npz", model)
    make_archive(rows, {model.fingerprint: model}, data, 32, tmp_path / "measure.tar")
    settings = members(tmp_path / "measure.tar")["measure/settings.sh"].decode()
    shapes = "--minShapes=x:1x5 --optShapes=x:1x5 --maxShapes=x:1x5"
    assert f'SPAN="{shapes}"\nBATCH="--shapes=x:1x5"\nFEW="--shapes=x:1x5"' in settings


@pytest.mark.parametrize("shell", ["dash", "sh", "bash"])
def test_the_script_is_posix_sh(archive, tmp_path, shell):
    script = unpack(archive, tmp_path) / SCRIPT
    subprocess.run([shell, "-n", script], check=True)


def test_without_trtexec_it_says_so(archive, tmp_path):
    done = measure(unpack(archive, tmp_path), "/nowhere/trtexec", tmp_path / "result.tar")
    assert (done.returncode, "TRTEXEC" in done.stderr) == (4, True)
    assert not (tmp_path / "result.tar").exists()


@SLOW
@pytest.mark.parametrize("version", ["10.8.0", "11.1.0"])
def test_it_measures_and_the_report_names_the_faulty_tensor(run, archive, tmp_path, version):
    folder = unpack(archive, tmp_path)
    install(tmp_path, version)
    done = measure(folder, tmp_path / "trtexec", tmp_path / "result.tar", FAULT=FAULT)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout
    assert not [*folder.glob("engine-*")]
    for times in json.loads(members(tmp_path / "result.tar")["./1/times-2.json"]):
        assert times["latencyMs"] > times["computeMs"]  # with transfers, which 11 leaves out
    timed = [line for line in done.stdout.splitlines() if "--exportTimes" in line]
    assert all(("--noCudaGraph" in line) == version.startswith("11") for line in timed)
    reference, int8 = report(run, tmp_path / "result.tar")["measured"]["imports"]
    assert (reference["variant"], int8["variant"]) == ("digits", "int8")
    assert int8["hardware"] == f"NVIDIA RTX A4000, TensorRT {version}"
    assert reference["difference"]["tensor"] is None
    difference = int8["difference"]
    if version.startswith("11"):
        assert difference["node"] == FAULTY
        assert difference["compared"] > 20
    else:
        assert difference["tensor"] == "logits"


PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
exec {python} "$1" "$2" onnxruntime
"""


@SLOW
def test_where_there_is_only_python_the_worker_measures_in_turns(run, archive, tmp_path):
    """ONNX Runtime stands in for TensorRT's package: all but its own runtime runs."""
    folder = unpack(archive, tmp_path)
    python = tmp_path / "python3"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = measure(folder, "/nowhere/trtexec", tmp_path / "result.tar", PATH=path)
    assert done.returncode == 0, done.stderr
    document = report(run, tmp_path / "result.tar")
    int8 = document["measured"]["imports"][1]
    assert int8["hardware"].startswith("CPU ")
    assert int8["ms"] > 0
    assert (int8["difference"]["tensor"], int8["difference"]["compared"]) == (None, 1)
    assert not any("in turns" in warning for warning in int8["warnings"])
    latency = document["measured"]["variants"]["int8"]["times"][-1]["latency"]
    assert (latency["runs"], latency["batch"], latency["is_gpu"]) == (200, 32, False)


def test_each_engine_is_timed_twice_in_turns_with_its_layers(run, result):
    document = report(run, result)
    reference, int8 = document["measured"]["imports"]
    assert [file["kind"] for file in int8["files"]].count("times") == 2
    assert int8["difference"]["tensor"] is None
    assert "none differs from the simulated Q/DQ" in int8["notes"][0]
    assert "none differs from the float model" in reference["notes"][0]
    low, high = int8["interval_ms"]
    assert low <= int8["ms"] <= high < reference["ms"]
    row = document["measured"]["variants"]["int8"]["times"][0]
    assert (row["batch"], row["latency"]["runs"], row["is_measured"]) == (32, 200, True)
    assert [len(build["layers"]) for build in document["builds"]] == [2, 2]


# --- results that are not as they should be


def changed(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def forged(manifest, **fields):
    """Return a manifest, sealed anew, that says other things of its first input."""
    document = json.loads(manifest)
    document["inputs"][0].update(fields)
    return json_bytes(seal(document))


DIGESTS, MANIFEST, INPUT = "./digests.txt", "./measure.json", "./inputs/0.bin"
HOSTILE = {
    "a path out": lambda files: {"../../evil.sh": b"echo"},
    "an absolute path": lambda files: {"/root/evil": b"x"},
    "a link": lambda files: {"./0/times-1.json": link("./0/times-1.json", "/etc/passwd")},
    "an unknown member": lambda files: {"0/engine.plan": b"x"},
    "a variant too many": lambda files: {"./7/times-1.json": files["./1/times-1.json"]},
    "a member twice": lambda files: {"0/times-1.json": files["./0/times-1.json"]},
    "another manifest": lambda files: {MANIFEST: files[MANIFEST].replace(b'"int8"', b'"int9"')},
    "an unknown type": lambda files: {MANIFEST: forged(files[MANIFEST], type="(1,")},
    "objects": lambda files: {MANIFEST: forged(files[MANIFEST], type="O")},
    "another shape": lambda files: {MANIFEST: forged(files[MANIFEST], shape=[1 << 40])},
    "no manifest": lambda files: {MANIFEST: b"{}"},
    "another model": lambda files: {DIGESTS: changed(files[DIGESTS])},
    "no digests": lambda files: {DIGESTS: b""},
    "other inputs": lambda files: {INPUT: changed(files[INPUT])},
    "no times in a file": lambda files: {"./0/times-1.json": b'[ { "latencyMs" : 1 } ]'},
}


@each("name", HOSTILE)
def test_a_result_that_was_changed_is_one_error(name, run, result, tmp_path):
    files = members(result)
    path = repack({**files, **HOSTILE[name](files)}, tmp_path / f"{name.replace(' ', '-')}.tar")
    with pytest.raises(InputError) as caught:
        report(run, path)
    assert path.name in caught.value.message or "times-1" in caught.value.message
    assert caught.value.hint


def test_half_of_a_result_is_one_error(run, result, tmp_path):
    data = result.read_bytes()
    (tmp_path / "half.tar").write_bytes(data[: len(data) // 2 + 100])
    with fails(InputError, "half.tar", hint="measure.sh"):
        report(run, tmp_path / "half.tar")


def test_headers_behind_headers_are_one_error(run, tmp_path):
    header = tarfile.TarInfo.create_pax_global_header({"comment": "x"})
    (tmp_path / "deep.tar").write_bytes(header * 2000)
    with fails(InputError, "deep.tar", hint="measure.sh"):
        report(run, tmp_path / "deep.tar")


def test_an_archive_of_a_run_without_its_models_is_refused(run, tmp_path, capsys):
    (tmp_path / "comparison.json").write_bytes((run / "comparison.json").read_bytes())
    err = refused(capsys, "bundle", tmp_path, "--measure", "--data", run / "test.npz")
    assert "model of digits is not there" in err


@each("words", [("--target", "cpu"), ("--triton",), ("--class-names", "names.txt")])
def test_what_is_of_a_bundle_is_not_for_an_archive(words, run, capsys):
    err = refused(capsys, "bundle", run, "--measure", "--data", run / "test.npz", *words)
    assert f"{words[0]} is not for it" in err


def test_a_result_of_another_run_is_refused(run, result, tmp_path):
    document = json.loads((run / "comparison.json").read_text())
    document["rows"][1]["model"] = "sha256:" + 64 * "0"
    other = tmp_path / "other"
    other.mkdir()
    write_document(other / "comparison.json", document)
    with fails(InputError, "int8", hint="folder of the run"):
        report(other, result)
