"""The pre-commit hook: models that TensorRT refuses do not get into a commit."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from tests.ci.repository import git
from tests.docs.pages import ROOT
from tests.fixtures.commands import answer, refused, run, shows, succeed
from tests.fixtures.networks import conv_net
from tests.fixtures.slow import SLOW
from tests.fixtures.structures import (
    integer_products,
    residual,
    stored_table,
    with_bias,
    zero_point,
)

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
REFUSED = {
    "zero point.onnx": (zero_point, "zero_point"),
    "bias.onnx": (lambda: with_bias(np.int32), "quantized_bias"),
    "integer.onnx": (integer_products, "integer_operators"),
    "-table`$(x)`.onnx": (stored_table, "stored_integers"),
}
LONGEST_S = 600


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with models that are refused, one with good Q/DQ and one in float."""
    monkeypatch.chdir(tmp_path)
    for name, (make, _) in REFUSED.items():
        onnx.save(make(), tmp_path / name)
    onnx.save(residual(), "qdq.onnx")
    conv_net(tmp_path / "float.onnx")
    return tmp_path


def test_each_refused_model_is_named_with_its_kind_and_fix(models, capsys):
    names = [*REFUSED, "qdq.onnx", "float.onnx"]
    status, printed, _ = run(capsys, "check-model", "--json", "--", *names)
    found = json.loads(printed)
    assert status == 1
    for name, (_, kind) in REFUSED.items():
        assert [finding["kind"] for finding in found[name]][:1] == [kind]
        assert found[name][0]["fix"]
    assert found["qdq.onnx"] == found["float.onnx"] == []
    error = refused(capsys, "check-model", "--", *names, status=1)
    assert "TensorRT refuses" in error
    assert "qdq.onnx" not in error


def test_models_in_float_and_with_good_q_dq_pass(models, capsys):
    out = succeed(capsys, "check-model", "qdq.onnx", "float.onnx")
    shows(out, "qdq.onnx", "float.onnx")
    assert answer(capsys, "check-model", "float.onnx") == {"float.onnx": []}


def test_what_tensorrt_misreads_is_shown_and_passes(models, capsys):
    onnx.save(residual(0, np.uint8), "codes.onnx")
    shows(succeed(capsys, "check-model", "codes.onnx"), "unsigned_codes")


def test_a_file_that_is_not_a_model_is_refused_with_status_2(models, capsys):
    (models / "broken.onnx").write_bytes(b"\x08not a model")
    shows(refused(capsys, "check-model", "broken.onnx"), "broken.onnx")


def test_the_hook_takes_onnx_files_and_installs_this_package():
    assert HOOK["files"] == r"\.onnx$"
    assert HOOK["language"] == "python"
    assert shlex.split(HOOK["entry"]) == ["trtcal", "check-model", "--"]


@SLOW
def test_pre_commit_refuses_the_commit_of_a_bad_model(models):
    """The hook runs with the trtcal of this environment: its own would be installed from an index."""
    hook = {**HOOK, "language": "system"}
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (models / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(models, "init", "-q", "-b", "main")
    assert commit(models, "qdq.onnx", "float.onnx")[0] == 0
    status, printed = commit(models, *REFUSED)
    assert status == 1
    for name, (_, kind) in REFUSED.items():
        assert f"{name}: {kind}" in printed
    assert "qdq.onnx" not in printed  # it did not change


def commit(folder: Path, *names: str) -> tuple[int, str]:
    """Return what pre-commit ends with, and prints, for the files of the next commit; commit them."""
    git(folder, "add", "--", *names)
    bin_folder = str(Path(sys.executable).parent)
    done = subprocess.run(
        [f"{bin_folder}/pre-commit", "run"],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "PRE_COMMIT_HOME": str(folder.with_suffix(".home")),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
    )
    if done.returncode == 0:
        git(folder, "commit", "-q", "-m", "models")
    return done.returncode, done.stdout
