"""Four faults in one build: each is found with its fix, and nothing else is."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.zoo_net import Net
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.cli.main import run_command
from trtcal.config import Config
from trtcal.data import open_dataset
from trtcal.errors import GateFailed
from trtcal.evidence.diagnosis.build_diagnosis import check_build, hold, write_diagnosis
from trtcal.evidence.findings import COSTS_ALONE
from trtcal.limits import parse_limits
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized

RTX = BACKENDS["tensorrt-rtx"].availability()
pytestmark = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))

# What a builder of TensorRT 8.6 prints when its workspace is too small, among other things.
REPLAYED = """\
[11/02/2026-09:00:01] [I] [TRT] [MemUsageChange] Init CUDA: CPU +2, GPU +0, now: CPU 21, GPU 512 (MiB)
[11/02/2026-09:00:02] [V] [TRT] =============== Computing costs for stem
[11/02/2026-09:00:02] [W] [TRT] Tactic Device request: 840MB Available: 64MB. Device memory is \
insufficient to use tactic.
[11/02/2026-09:00:02] [W] [TRT] Skipping tactic 3 due to insufficient memory on requested size of \
840 detected for tactic 0x0000000000000004.
Try decreasing the workspace size with IBuilderConfig::setMemoryPoolLimit().
[11/02/2026-09:00:03] [V] [TRT] stem Set Tactic Name: some_kernel Tactic: 0x0000000000000007
[11/02/2026-09:00:04] [W] [TRT] Skipping tactic 5 due to insufficient memory on requested size of \
420 detected for tactic 0x0000000000000009.
Try decreasing the workspace size with IBuilderConfig::setMemoryPoolLimit().
[11/02/2026-09:00:09] [I] [TRT] Some tactics do not have sufficient workspace memory to run. \
Increasing workspace size will enable more tactics, please check verbose output for requested sizes.
[11/02/2026-09:00:09] [V] [TRT] Engine generation completed in 8.1 seconds.
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A build of a network without a range for one tensor, with one wrong axis and an upsampling."""
    folder = tmp_path_factory.mktemp("faulty")
    net = Net(x=("n", 8, 16, 16))
    y = net.relu(net.conv("stem", "x", (16, 8, 3, 3)))
    y = net.relu(net.conv("unranged", y, (16, 16, 3, 3)))
    y = net.relu(net.conv("turned", y, (16, 16, 3, 3)))
    y = net.relu(net.up("up", y, (16, 16, 2, 2)))
    net.done(net.head("head", net.relu(net.conv("last", y, (16, 16, 3, 3))), 16))
    onnx.save(net.proto(), folder / "float.onnx")
    np.savez(folder / "samples.npz", **net.samples(32))
    model = load_model(folder / "float.onnx")
    prepared = prepare(model)
    dataset = open_dataset(folder / "samples.npz", model)
    seen = observe(
        prepared,
        dataset,
        tensors_to_observe(find_layers(prepared)),
        ObserveOptions(batch=8, threads=1),
    )
    calibration = calibrate(seen, "minmax")
    (missing,) = next(
        layer.activations.values()
        for layer in find_layers(prepared).layers
        if layer.name == "unranged"
    )
    kept = {name: item for name, item in calibration.ranges.items() if name != missing}
    quantized = quantize(prepared, replace(calibration, ranges=kept))
    turn_axis(quantized.proto, "turned")
    write_quantized(folder / "int8.onnx", quantized)
    (folder / "replayed.log").write_text(REPLAYED)
    return build(
        load_model(folder / "int8.onnx"),
        BACKENDS["tensorrt-rtx"],
        BuildOptions("sm89", {"x": ((1, 8, 16, 16), (4, 8, 16, 16), (8, 8, 16, 16))}),
        folder / "build",
    )


def turn_axis(proto, node):
    """Put the scales of a Conv's weights on the axis of its input channels."""
    (conv,) = (one for one in proto.graph.node if one.name == node)
    (dequantizer,) = (one for one in proto.graph.node if conv.input[1] in one.output)
    (axis,) = (one for one in dequantizer.attribute if one.name == "axis")
    axis.i = 1


def diagnosed(faulty, config=None):
    model = load_model(faulty.folder.parent / "int8.onnx")
    logs = [faulty.folder.parent / "replayed.log"]
    return check_build(faulty, config or Config(faulty.folder), model, logs)


def planted(diagnosis):
    """Return the findings but for what follows in the layer list: the first ones, if ranked well."""
    faults = [one for one in diagnosis.findings if one.kind not in COSTS_ALONE]
    assert list(diagnosis.findings[: len(faults)]) == faults
    return faults


def test_all_four_are_found_with_their_fixes_and_nothing_else(faulty):
    found = {(one.kind, one.subject): one for one in planted(diagnosed(faulty))}
    assert set(found) == {
        ("missing_range", "unranged"),
        ("silent_fallback", "turned"),
        ("silent_fallback", "up"),
        ("workspace_too_small", None),
    }
    said = {subject: f"{one.what} {one.fix}" for (_, subject), one in found.items()}
    shows(said["unranged"], "range", "Calibrate")
    shows(said["turned"], "axis 1", "axis 0", "along axis 0")
    shows(said["up"], "ConvTranspose", "Resize")
    shows(said[None], "840 MiB", "64 MiB", "--workspace")


def test_each_has_evidence_of_its_own_kind(faulty):
    sources = {
        one.subject: {evidence.source for evidence in one.evidence}
        for one in planted(diagnosed(faulty))
    }
    expected = {"unranged": {"node"}, "turned": {"node", "layer"}, "up": {"node", "layer"}}
    assert sources == {**expected, None: {"log"}}
    (tactics,) = (one for one in planted(diagnosed(faulty)) if one.subject is None)
    assert tactics.evidence[0].place == "replayed.log:4"
    assert "Tactic Device request" in tactics.evidence[0].text  # the line before it


def test_what_the_layer_list_and_the_fusions_show_is_part_of_the_diagnosis(faulty):
    found = {(one.kind, one.subject) for one in diagnosed(faulty).findings}
    assert {("fusion_differs", "relu_1"), ("fusion_differs", "relu_9")} <= found
    kinds = {kind for kind, _ in found}
    assert {"unfused_qdq", "float_between_int8"} <= kinds
    without_model = check_build(faulty, Config(faulty.folder)).findings
    assert "fusion_differs" not in {one.kind for one in without_model}
    assert "float_between_int8" in {one.kind for one in without_model}


def test_limits_hold_or_end_with_a_failed_gate(faulty):
    loose = ["uncalibrated <= 1", "silent_fallbacks <= 2", "tactic_failed == 0", "top1 >= -1"]
    judged = diagnosed(faulty, Config(faulty.folder, limits=parse_limits(loose)))
    assert [one.state for one in judged.limits] == ["holds"] * 3
    hold(judged)
    strict = ["uncalibrated == 0", "silent_fallbacks <= 1", "workspace_too_small == 0"]
    names = ("uncalibrated", "1", "silent_fallbacks", "2", "1.0", "workspace_too_small")
    with fails(GateFailed, *names):
        hold(diagnosed(faulty, Config(faulty.folder, limits=parse_limits(strict))))


def test_what_is_accepted_with_a_reason_counts_no_more(faulty):
    accepted = (
        {"kind": "silent_fallback", "subject": "u*", "reason": "upsampling is cheap here"},
        {"kind": "tactic_failed", "reason": "seen on the old driver"},
    )
    limits = parse_limits(["silent_fallbacks <= 1"])
    diagnosis = diagnosed(faulty, Config(faulty.folder, limits=limits, suppress=accepted))
    hold(diagnosis)
    ((finding, why),) = diagnosis.accepted
    assert (finding.subject, why.reason) == ("up", "upsampling is cheap here")
    assert [one.kind for one in diagnosis.unused] == ["tactic_failed"]


def test_the_command_says_the_same(faulty, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, log = (str(faulty.folder.parent / name) for name in ("int8.onnx", "replayed.log"))
    arguments = ["diagnose", str(faulty.folder), "--model", model, "--log", log]
    assert run_command(arguments) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("1 missing", "2 silent fallback", "1 shortage"))
    (tmp_path / "trtcal.toml").write_text('limits = ["silent_fallbacks == 0"]\n')
    assert run_command([*arguments, "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    kinds = [one["kind"] for one in document["findings"]]
    assert len([kind for kind in kinds if kind not in COSTS_ALONE]) == 4
    assert document["limits"][0]["value"] == 2
    shows(captured.err, "silent_fallbacks", "2", "0.0")


def test_it_is_written_beside_the_build_and_goes_with_the_next_one(faulty):
    write_diagnosis(faulty.folder, diagnosed(faulty))
    assert json.loads((faulty.folder / "diagnosis.json").read_text())["kind"] == "diagnosis"
