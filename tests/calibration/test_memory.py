import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.fixtures.networks import conv_net, samples, save, weight
from tests.fixtures.slow import SLOW
from trtcal.backends.taps import lay_out
from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.job import Job, tensor_bytes
from trtcal.calibration.lanes import Observer
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.quantization import prepare

SIDE = 700
CHILD = """
import sys
from pathlib import Path
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.calibration import ObserveOptions, observe
from trtcal.calibration import observer as observing
from trtcal.quantization import find_layers, prepare, tensors_to_observe

net, data, ceiling = sys.argv[1:]
inner = observing.passes_within
def passes_within(*arguments):
    passes = inner(*arguments)
    print(len(passes))
    return passes
observing.passes_within = passes_within
model = load_model(Path(net))
prepared = prepare(model)
tensors = tensors_to_observe(find_layers(prepared))
made = observe(
    prepared,
    open_dataset(Path(data), model),
    tensors,
    ObserveOptions(threads=1, max_memory=int(ceiling) or None),
)
print(made.digest)
lines = Path("/proc/self/status").read_text().splitlines()
print(*(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


def chain(path, length=12):
    """Convolutions one after another, whose outputs all have the size of the image."""
    nodes, weights = [], {}
    for number in range(length):
        weights[f"w{number}"] = weight(8, 8 if number else 3, 3, 3, seed=number)
        names = [f"t{number}" if number else "x", f"w{number}"]
        nodes.append(helper.make_node("Conv", names, [f"c{number}"], f"c{number}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"t{number + 1}"], f"r{number}"))
    output = {f"t{length}": ["n", 8, SIDE, SIDE]}
    return save(path, nodes, weights, {"x": ["n", 3, SIDE, SIDE]}, output)


@SLOW
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_ceiling_is_kept_and_changes_nothing(tmp_path):
    net = chain(tmp_path / "net.onnx")
    data = samples(tmp_path / "data.npz", count=8, shape=(3, SIDE, SIDE))

    def peak(ceiling):
        command = [sys.executable, "-c", CHILD, net, data, str(ceiling)]
        *passes, digest, kib = subprocess.check_output(command, text=True).split()
        return int(kib) * 1024, digest, [int(number) for number in passes]

    free, expected, _ = peak(0)
    for ceiling in (free * 13 // 20, free * 3 // 4):
        held, digest, (passes,) = peak(ceiling)
        assert held <= ceiling
        assert passes > 1
        assert digest == expected


def test_large_inputs_are_run_in_small_batches_whatever_is_observed(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[64, 64])]
    sizes = {"x": ["n", 3, 900, 900]}, {"y": ["n", 8, 14, 14]}
    model = load_model(save(tmp_path / "net.onnx", nodes, {"w": weight(8, 3, 64, 64)}, *sizes))
    lay_out(model.proto, tmp_path)
    dataset = open_dataset(samples(tmp_path / "data.npz", count=2, shape=(3, 900, 900)), model)
    job, batches = Job(tmp_path, dataset, [["y"]], {"y": "y"}, 1, 32, 1, 0), list[int]()
    with Observer(job) as observer:
        observer.run((0, [(0, 2)]), HistogramAccumulator(), lambda n: batches.append(n) is None)
    assert batches == [1, 1]


def test_sizes_come_from_the_first_batch(tmp_path):
    proto = prepare(load_model(conv_net(tmp_path / "net.onnx"))).proto
    sizes = tensor_bytes(proto, {"x": np.zeros((2, 3, 10, 12), np.float32)})
    assert sizes["b"] == 2 * 8 * 10 * 12 * 4


def test_resident_memory_is_that_of_this_process():
    # In a process of its own: what earlier tests freed may be handed out again.
    code = """
import numpy as np
from trtcal.calibration.job import resident_bytes
before = resident_bytes()
block = np.ones(10**8, np.uint8)
print((resident_bytes() - before) / block.nbytes)
"""
    grown = float(subprocess.check_output([sys.executable, "-c", code]))
    assert 0.9 < grown < 1.5
