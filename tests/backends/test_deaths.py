"""A compiler that dies or hangs in the middle of a build, by its own doing or from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.engines import needs_rtx, worker
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save, weight
from trtcal.errors import BackendError, InputError, ResourceError

pytestmark = needs_rtx
BEGUN = b"Compiler backend is used during engine build"


def crashing(path):
    """A convolution whose input's scale is an input of the graph: TensorRT-RTX 1.7 dies of it."""
    nodes = as_nodes(
        "[Q] q = QuantizeLinear(x, s, z)  [DQ] d = DequantizeLinear(q, s, z)  "
        "[WQ] wq = QuantizeLinear<axis=0>(w, ws, wz)  "
        "[WDQ] wd = DequantizeLinear<axis=0>(wq, ws, wz)  "
        "[conv] y = Conv<pads=[1, 1, 1, 1]>(d, wd)"
    )
    constants = {
        "z": np.int8(0),
        "w": weight(8, 3, 3, 3),
        "ws": np.full(8, 0.1, np.float32),
        "wz": np.zeros(8, np.int8),
    }
    shapes = {"x": [1, 3, 8, 8], "s": [], "y": [1, 8, 8, 8]}
    x, s, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x, s], [y], initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, path)
    return path


def long_net(path):
    """A net that takes seconds to compile."""
    count = 60
    nodes = [
        helper.make_node("Conv", [f"t{n}", f"w{n}"], [f"t{n + 1}"], f"c{n}", pads=[1, 1, 1, 1])
        for n in range(count)
    ]
    weights = {f"w{n}": weight(16, 16, 3, 3, seed=n) for n in range(count)}
    return save(path, nodes, weights, {"t0": [1, 16, 8, 8]}, {f"t{count}": [1, 16, 8, 8]})


@pytest.fixture
def place(tmp_path):
    (tmp_path / "temporary").mkdir()
    return tmp_path


def start(place, model, *words):
    command = [sys.executable, "-m", "trtcal.cli.main", "build", str(model), "--target", "sm89"]
    environment = {
        **os.environ,
        "TMPDIR": str(place / "temporary"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.Popen(
        [*command, "-o", str(place / "build"), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_compiler(place, parent):
    """Return the compiler's process id, stopped in the middle of its work; None if it ended."""
    while parent.poll() is None:
        for log in place.glob("temporary/trtcal-*/*/new/build.log"):
            if BEGUN in log.read_bytes():
                children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
                os.kill(int(children.split()[0]), signal.SIGSTOP)
                return int(children.split()[0])
        time.sleep(0.005)
    return None


def check_remains(place):
    """No engine anywhere, whole records only, nothing left in temporary folders."""
    left = {item.name for item in (place / "build").iterdir()}
    assert left == {"build.log", "build.jsonl", "diagnosis.json"}
    records = (place / "build" / "build.jsonl").read_text().splitlines()
    assert all(json.loads(record)["message"] for record in records)
    # ONNX Runtime leaves a .ses wherever it is imported
    assert {item.name for item in (place / "temporary").iterdir()} <= {".ses"}


def check_error(parent, status, says):
    _, error = parent.communicate()
    assert parent.returncode == status, error
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert "Traceback" not in error


def test_the_parser_s_own_crash_is_one_error(place):
    check_error(start(place, crashing(place / "net.onnx")), 3, "crashed (SIGSEGV)")
    check_remains(place)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_compiler_killed_from_outside_is_one_error(place, name):
    compiler = None
    while compiler is None:  # on a busy machine it may be done before we see it begin
        parent = start(place, long_net(place / "net.onnx"))
        compiler = wait_for_compiler(place, parent)
    os.kill(compiler, signal.Signals[name])
    os.kill(compiler, signal.SIGCONT)
    check_error(parent, 3, name)
    check_remains(place)
    assert BEGUN in (place / "build" / "build.log").read_bytes()


def test_a_compiler_that_hangs_is_stopped_at_the_time_limit(place):
    parent = start(place, long_net(place / "net.onnx"), "--time-limit", "4")
    compiler = wait_for_compiler(place, parent)
    check_error(parent, 4, "stopped after the time limit of 4 s")
    check_remains(place)
    assert not Path(f"/proc/{compiler}").exists()  # None if the machine was too slow to begin


def test_output_that_a_grandchild_holds_open_is_not_waited_for(tmp_path, monkeypatch):
    body = (
        "import subprocess, sys\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(other.pid, flush=True)\nsys.exit(3)\n"
    )
    with fails(BackendError, hint="trtcal log"):
        worker(tmp_path, monkeypatch, body)
    os.kill(int((tmp_path / "work" / "build.log").read_text()), signal.SIGKILL)


def test_a_builder_that_closes_its_output_is_waited_for(tmp_path, monkeypatch):
    body = "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(0.3)\nos._exit(4)\n"
    with fails(BackendError, hint="trtcal log"):
        worker(tmp_path, monkeypatch, body)


@pytest.mark.parametrize("kind", [InputError, BackendError, ResourceError])
def test_an_error_of_ours_is_the_same_in_the_parent(tmp_path, monkeypatch, kind):
    body = (
        "from trtcal.backends.worker import raise_in_parent\nfrom trtcal import errors\n"
        f"raise_in_parent(errors.{kind.__name__}('what', 'a hint'))\n"
    )
    with pytest.raises(kind) as caught:
        worker(tmp_path, monkeypatch, body)
    assert (caught.value.message, caught.value.hint) == ("what", "a hint")


def test_what_the_child_puts_into_temporary_folders_goes_with_it(tmp_path, monkeypatch):
    body = "import tempfile\nprint(tempfile.mkstemp()[1])\n"
    worker(tmp_path, monkeypatch, body)
    assert Path((tmp_path / "work" / "build.log").read_text().strip()).parent == tmp_path / "work"
