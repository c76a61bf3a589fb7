"""The page on JSON documents has every kind, and every field that commands write into one."""

import json
import re
import shlex

import pytest

from tests.conftest import SAMPLES
from tests.docs.pages import ROOT
from tests.docs.reference.documents import DOCUMENTS, HEAD
from tests.fixtures.commands import succeed
from trtcal.cli.main import run_command

DIGITS, DATA, TEST = (
    SAMPLES / "digits" / name for name in ("digits.onnx", "calibration.npz", "test.npz")
)
WRITTEN = f"""
calibrate {DIGITS} --data {DATA} --profile
calibrate {DIGITS} --data {DATA} --method minmax -o minmax.json
ranges tails {DIGITS} calibration.json --data {DATA} -o tails.json
quantize {DIGITS} --calibration calibration.json -o int8.onnx
quantize {DIGITS} --improve fast --time-limit 1 --data {DATA} -o improved.onnx
build int8.onnx --target cpu -o build
layers fusions int8.onnx build -o fusion.json
compare {DIGITS} int8.onnx --data {TEST}
ab {DIGITS} int8.onnx --data {TEST} -o ab.json
sensitivity {DIGITS} --calibration calibration.json --data {TEST} -o sensitivity.json
search {DIGITS} --calibration calibration.json --data {TEST} -o search
run {DIGITS} --data {DATA} --test {TEST} --target cpu
"""
PRINTED = f"""
ranges diff calibration.json minmax.json --json
calibrate {DIGITS} --data {DATA} --how-many --json
"""
WHERE_SET = {"plan": {"rest"}, "run": {"source", "cost"}}
"""Fields that only some documents of a kind have."""

OF_OTHERS = {
    "report": "its fields are those of its JSON Schema",
    "trtcal-store": "the marker of a store",
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A document of each kind, by its kind."""
    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in WRITTEN.strip().splitlines():
            assert run_command([*shlex.split(line), "-q"]) == 0, line
        found = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    return folder, {one["kind"]: one for one in found if "kind" in one}


def test_every_field_of_a_document_is_on_the_page(documents, monkeypatch, capsys):
    folder, found = documents
    monkeypatch.chdir(folder)
    for line in PRINTED.strip().splitlines():
        capsys.readouterr()
        one = json.loads(succeed(capsys, *shlex.split(line), "-q"))
        found[one["kind"]] = one
    assert {*found} | {*OF_OTHERS} == {*DOCUMENTS} | {*OF_OTHERS}
    for kind in {*found} - {*OF_OTHERS}:
        known = {*DOCUMENTS[kind]["fields"]} - WHERE_SET.get(kind, set())
        written = {*found[kind]} - ({*HEAD} - known)
        assert written - WHERE_SET.get(kind, set()) == known, kind
        assert found[kind]["schema_version"] == DOCUMENTS[kind]["version"], kind


def test_every_kind_in_the_code_is_on_the_page():
    text = "\n".join(path.read_text() for path in (ROOT / "trtcal").rglob("*.py"))
    sealed = re.findall(r"^class \w+\(Sealed, kind=\"([\w-]+)\"", text, re.MULTILINE)
    named = re.findall(r"^(?:\w+_)?KIND(?:, VERSION)? = \"([\w-]+)\"", text, re.MULTILINE)
    assert {*sealed, *named} <= {*DOCUMENTS, *OF_OTHERS}
