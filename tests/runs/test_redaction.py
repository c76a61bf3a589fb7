"""No byte of what leaves this machine says whose it is, whose data they were, and where it was made."""

import base64
import csv
import io
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.conftest import SAMPLES
from tests.fixtures.commands import refused, run, succeed
from tests.fixtures.slow import SLOW
from trtcal.cli.main import run_command
from trtcal.documents import read_json
from trtcal.documents.redaction import REDACTED

pytestmark = SLOW
VARIANT, COUNT = "int8-minmax", 40
USER, HOST, FOLDER, AUTHOR = (
    "zelda-fitzgerald",
    "rechner-siebzehn",
    "geheim-kunde",
    "a@kunde.example",
)
FITTED, JUDGED, CLINIC = "max-mustermann", "erika-musterfrau", "charlottenburg"
CONFIG = """
model = "{folder}/digits.onnx"
output = "run"
history = "history.sqlite"
images = {{ channels = "gray", layout = "NCHW", scale = "1/255" }}
[calibration]
data = "{folder}/fitted-bilder"
labels = "csv"
methods = ["minmax"]
improve = "off"
mixed = "off"
[evaluation]
data = "judged-bilder"
labels = "csv"
slices = "slices.csv"
rounds = 3
[build]
targets = ["cpu"]
[devices.fern]
host = "{user}@rechner-fern.example"
"""
IN_DOCUMENTS = {USER, FOLDER, FITTED, JUDGED, CLINIC, "fitted-bilder", "judged-bilder"}
IN_MODELS = {HOST, AUTHOR}
EXPECTED = {
    "run": IN_DOCUMENTS | IN_MODELS,
    "store": IN_DOCUMENTS | IN_MODELS,
    "report": {FITTED, JUDGED, CLINIC, "judged-bilder"},
    "markdown": {"judged-bilder"},
    "bundle": {FITTED, JUDGED, CLINIC, HOST, AUTHOR, "a sample"},
    "archive": {HOST, AUTHOR, USER, FOLDER, "a sample"},
}
"""What each output has without the switch."""


def pictures(folder, who, name):
    """Write digits as files that are named after a person, with their labels."""
    folder.mkdir()
    arrays = np.load(SAMPLES / "digits" / f"{name}.npz")
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "label"))
        for number in range(COUNT):
            pixels = np.round(arrays["image"][number, 0] * 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{who}-{number:03}.png")
            rows.writerow((f"{who}-{number:03}.png", int(arrays["labels"][number])))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Work as a user with a name, on a host with a name, in the folder of a customer."""
    home = tmp_path_factory.mktemp("home") / USER
    folder = home / FOLDER
    folder.mkdir(parents=True)
    model = onnx.load(SAMPLES / "digits" / "digits.onnx")
    model.graph.doc_string = f"trained on {HOST}"
    model.metadata_props.add(key="author", value=AUTHOR)
    for node in model.graph.node:
        stack = f'File "{folder}/net.py", line 12, in forward'
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=stack)
    onnx.save(model, folder / "digits.onnx")
    pictures(folder / "fitted-bilder", FITTED, "calibration")
    pictures(folder / "judged-bilder", JUDGED, "test")
    clinics = (f"{(CLINIC, 'schwarzwald')[number % 2]}\n" for number in range(COUNT))
    (folder / "slices.csv").write_text("clinic\n" + "".join(clinics))
    (folder / "trtcal.toml").write_text(CONFIG.format(folder=folder, user=USER))
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {
            "HOME": home,
            "USER": USER,
            "LOGNAME": USER,
            "HOSTNAME": HOST,
        }.items():
            patch.setenv(variable, str(value))
        os.chdir(folder)
        yield home
        os.chdir(before)


@pytest.fixture(scope="module")
def plain(home):
    """The outputs without the switch."""
    assert run_command(["run", "--allow-undecided"]) == 0
    return outputs("plain", "run")


@pytest.fixture(scope="module")
def redacted(plain):
    """The outputs of the same run with the switch, and a run that is redacted itself."""
    made = outputs("redacted", "run", "--redact")
    assert run_command(["run", "--allow-undecided", "--redact", "-o", "redacted/run"]) == 0
    return {**made, "run": Path("redacted/run")}


def outputs(name, folder, *options):
    """Make everything that a run is shown and shipped by."""
    place = Path(name)
    place.mkdir()
    page, comment, bundle, archive, store = (
        place / each for each in ("page/report.html", "comment.md", "bundle", "m.tar", "store")
    )
    page.parent.mkdir()
    every = ["--variant", VARIANT, "--despite-verdict", "--triton", "--docker", "-o", bundle]
    for line in (
        ["report", folder, "-o", page],
        ["report", folder, "--md", "-o", comment],
        ["bundle", folder, *every],
        ["bundle", folder, "--measure", "-o", archive],
        ["store", "push", folder, "--store", store],
    ):
        assert run_command([*map(str, line), *options]) == 0, line
    paths = {"report": page.parent, "markdown": comment, "bundle": bundle, "archive": archive}
    return {**paths, "store": store, "run": Path(folder)}


def blobs(name, data):
    """Yield the bytes of a file, of what is packed in it, and its name."""
    yield name.encode()
    yield data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from blobs(member, archive.read(member))
    if name.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                yield from blobs(member.name, archive.extractfile(member).read())
    for text in re.findall(rb"(?:[A-Za-z0-9+/]{4}){10,}", data):
        yield base64.b64decode(text)


def secrets_in(place):
    """Return which secrets are anywhere in a file or a folder."""
    sample = np.load("plain/bundle/golden.npz")["input.0.0"].tobytes()
    known = {name: name.encode() for name in IN_DOCUMENTS | IN_MODELS} | {"a sample": sample}
    known |= {str(root): str(root).encode() for root in (Path.home(), SAMPLES.parent)}
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    parts = [
        part for path in files for part in blobs(str(path.relative_to(place)), path.read_bytes())
    ]
    return {name for name, secret in known.items() if any(secret in part for part in parts)}


@pytest.mark.parametrize("output", EXPECTED)
def test_an_output_has_the_names_without_the_switch_and_none_with_it(output, plain, redacted):
    assert secrets_in(plain[output]) >= EXPECTED[output]
    assert secrets_in(redacted[output]) == set()


def test_verdict_and_figures_are_the_same(plain, redacted):
    before, after = (read_json(each["report"] / "report.json") for each in (plain, redacted))
    assert after["measured"]["verdict"] == before["measured"]["verdict"]
    assert after["builds"] == before["builds"]
    for one, two in zip(before["comparison"]["rows"], after["comparison"]["rows"], strict=True):
        assert {key: one[key] for key in ("name", "model", "means", "accuracy")} == {
            key: two[key] for key in ("name", "model", "means", "accuracy")
        }


def test_a_redacted_report_says_so(plain, redacted):
    for each, is_said in ((plain, False), (redacted, True)):
        page = (each["report"] / "report.html").read_text()
        comment = each["markdown"].read_text()
        assert ("This report is redacted" in page, "This report is redacted" in comment) == (
            is_said,
        ) * 2
        assert ("redacted" in read_json(each["report"] / "report.json")) == is_said


@pytest.mark.parametrize("output", ["run", "bundle", "report"])
def test_what_is_redacted_verifies(output, redacted, capsys):
    place = redacted[output]
    for path in sorted(place.iterdir()) if output == "report" else [place]:
        assert "digests match" in succeed(capsys, "verify", path)


def test_the_golden_inputs_are_drawn_at_random_and_pass(redacted, capsys):
    manifest = read_json(redacted["bundle"] / "manifest.json")
    assert "drawn at random" in manifest["predicate"]["golden"]["about"]
    assert "READY" in succeed(capsys, "bundle", "verify", redacted["bundle"], "--allow-unsigned")


def test_a_store_gives_a_redacted_run_back(redacted, capsys):
    listed = json.loads(succeed(capsys, "store", "list", "--store", redacted["store"], "--json"))
    succeed(
        capsys, "store", "pull", listed[0]["digest"], "--store", redacted["store"], "-o", "pulled"
    )
    succeed(capsys, "verify", "pulled")
    assert secrets_in(Path("pulled")) == set()


def test_what_is_made_of_a_redacted_run_is_redacted(redacted, capsys):
    succeed(capsys, "report", redacted["run"], "-o", "again/report.html")
    assert read_json(Path("again/report.json"))["redacted"]
    names = [
        "--variant",
        VARIANT,
        "--despite-verdict",
        "--data",
        "judged-bilder",
        "--labels",
        "csv",
    ]
    _, _, printed = run(
        capsys, "bundle", redacted["run"], *names, "--config", "trtcal.toml", "-o", "b"
    )
    assert "drawn at random" in printed
    assert secrets_in(Path("b")) == set()


def test_the_configuration_has_the_switch_too(redacted, capsys):
    text = Path("trtcal.toml").read_text()
    Path("trtcal.toml").write_text(f"{text}\n[report]\nredact = true\n")
    try:
        assert REDACTED in succeed(capsys, "report", "run", "--json", "-o", "by-config.html")
        succeed(capsys, "store", "push", "run", "--store", "by-config")
        assert secrets_in(Path("by-config")) == set()
    finally:
        Path("trtcal.toml").write_text(text)


def test_a_run_that_was_changed_is_not_redacted(redacted, capsys):
    path = Path("run/tails.json")
    before = path.read_bytes()
    path.write_bytes(before.replace(b"max", b"min"))
    try:
        printed = refused(capsys, "store", "push", "run", "--redact", "--store", "changed")
        assert "tails.json" in printed
        assert not Path("changed").exists()
    finally:
        path.write_bytes(before)
