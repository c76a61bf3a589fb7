"""TVM's pattern language, where it is installed, sees the story's two patterns as the check does."""

import importlib.util
import json
import subprocess
import sys

import onnx
import pytest

from tests.conftest import SAMPLES
from tests.evidence.fusion.graphs import GRAPHS, STORIES
from trtcal.evidence.fusion.fusions import ON_REQUEST, check_fusions, fix_fusions

needs_tvm = pytest.mark.skipif(
    importlib.util.find_spec("tvm") is None,
    reason="TVM is not installed: pip install 'trtcal[tvm]'",
)


@needs_tvm
@pytest.mark.parametrize("name", STORIES)
def test_tvm_fuses_what_is_whole_and_not_what_is_broken(name, tmp_path):
    given = GRAPHS[name].save(tmp_path)
    found = check_fusions(given)
    fixed = fix_fusions(given, found, ON_REQUEST).model
    onnx.save(fixed.proto, tmp_path / "fixed.onnx")
    command = [sys.executable, "-m", "tests.evidence.fusion.tvm_patterns", given.path]
    done = subprocess.run(
        [*command, tmp_path / "fixed.onnx"],
        cwd=SAMPLES.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    whole = [
        sum(one.state == "whole" for one in part)
        for part in (found.matches, check_fusions(fixed).matches)
    ]
    assert json.loads(done.stdout.splitlines()[-1]) == whole == [0, 1]
