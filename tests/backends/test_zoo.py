"""Every graph of the zoo on the compiler and on ONNX Runtime."""

import itertools
import os
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.backends.listing import precisions
from tests.fixtures.slow import SLOW, slow_but
from tests.fixtures.zoo import ZOO
from tests.fixtures.zoo_scene import HEAVY, scene
from trtcal.backends.building import build
from trtcal.backends.lowering import lower
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.backends.sessions import open_session
from trtcal.model import load_model
from trtcal.quantization import Plan, find_layers, prepare, quantize, write_quantized

RTX = BACKENDS["tensorrt-rtx"].availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))

OTHER_TARGETS = ("sm86", "sm120")
ON_ALL_TARGETS = ("residual", "conv3d", "depthwise", "unet", "encoder_layer", "half")
AGREEMENT, FLOOR_DB = 0.99, 20.0  # float16 is rounded in one of two sessions
CHECKED = 400  # samples: two may disagree
WHOLE = bool(os.environ.get("WHOLE_ZOO"))  # as `make soak` sets it
MIXED = [(name, first) for name in sorted(ZOO) for first in range(3)]
SOME_MIXED = [*((name, 0) for name in sorted(ZOO)[::6]), ("attention_packed", 2)]
QUICK = sorted(ZOO)[::10]
ALL, NONE = (
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
)


def test_the_zoo_names_every_heavy_node_once():
    assert len(ZOO) >= 60
    for entry in ZOO.values():
        nodes = entry.make().proto().graph.node
        heavy = sorted(node.name for node in nodes if node.op_type in HEAVY)
        assert sorted([*entry.int8, *entry.floats]) == heavy, entry.name


@needs_rtx
@pytest.mark.parametrize("name", slow_but(ZOO, *QUICK))
def test_the_compiler_gives_int8_and_the_report_is_true(name, tmp_path):
    check(ZOO[name], "sm89", tmp_path)


@needs_rtx
@SLOW
@pytest.mark.parametrize("target", OTHER_TARGETS)
@pytest.mark.parametrize("name", ZOO if WHOLE else ON_ALL_TARGETS)
def test_other_targets_give_the_same(name, target, tmp_path):
    check(ZOO[name], target, tmp_path)


def check(entry, target, folder):
    made = scene(entry, folder, 64)
    engine = build(
        made.model, BACKENDS["tensorrt-rtx"], BuildOptions(target, entry.shapes), folder / "build"
    )
    seen = precisions(engine.log)
    outcomes = {outcome.node: outcome for outcome in engine.outcomes}
    for node in sorted(made.heavy):
        outcome, is_int8 = outcomes.get(node), seen.get(node) == {"int8"}
        assert is_int8 == (node in entry.int8), (node, seen.get(node), outcome)
        assert (outcome is not None and outcome.got == "int8") == is_int8, outcome
        if not is_int8:
            assert entry.floats[node] in why(node, outcome, made.quantized.skipped)


def why(node, outcome, skipped):
    """Return what is reported to the user of a node that isn't INT8."""
    return skipped.get(node) or (outcome and outcome.reason) or "nothing"


@pytest.mark.parametrize("name", slow_but(ZOO, *QUICK))
def test_onnxruntime_agrees_with_itself_and_with_the_float_model(name, tmp_path):
    made = scene(ZOO[name], tmp_path)
    feeds = ZOO[name].make().samples(CHECKED, seed=1)
    size = made.given.inputs[0].shape[0]
    batch = size if isinstance(size, int) else CHECKED
    model = made.model.proto
    reference, literal, optimized, lowered = (
        run(session, feeds, batch)
        for session in (
            plain(made.given.proto, ALL),
            plain(model, NONE),
            plain(model, ALL),
            open_session(lower(model), threads=1),
        )
    )
    for outputs in (literal, optimized, lowered) if PLAIN_IS_EXACT else (literal, lowered):
        assert sqnr_db(reference, outputs) >= FLOOR_DB
        assert (top1(outputs) == top1(literal)).mean() >= AGREEMENT


# ONNX Runtime's own uint8 x int8 kernels add in 16 bits and saturate on x86 CPUs without VNNI.
CPU_INFO = Path("/proc/cpuinfo")
PLAIN_IS_EXACT = (
    not CPU_INFO.exists() or re.search("vnni|asimddp", CPU_INFO.read_text()) is not None
)


def plain(proto, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def run(session, feeds, batch):
    """Return all outputs, each flattened by sample, beside one another."""
    rows = []
    for start in range(0, CHECKED, batch):
        part = {name: values[start : start + batch] for name, values in feeds.items()}
        outputs = session.run(None, part)
        rows.append(np.concatenate([one.reshape(batch, -1) for one in outputs], 1))
    return np.concatenate(rows).astype(np.float64)


def top1(outputs):
    return outputs.argmax(1)


def sqnr_db(expected, said):
    return 10 * np.log10(np.square(expected).sum() / np.square(expected - said).sum())


@needs_rtx
@pytest.mark.parametrize(
    ("name", "first"), slow_but(MIXED if WHOLE else SOME_MIXED, *SOME_MIXED[::6])
)
def test_mixed_plans_build_strongly_typed_and_are_obeyed(name, first, tmp_path):
    made = scene(ZOO[name], tmp_path, 32)
    prepared = prepare(made.given)
    names = [layer.name for layer in find_layers(prepared).layers]
    asked = itertools.islice(itertools.cycle(("fp16", "int8", "fp32")), first, None)
    plan = Plan("fp16", dict(zip(names, asked, strict=False)))
    write_quantized(tmp_path / "mixed.onnx", quantize(prepared, made.calibration, plan))
    options = BuildOptions("sm89", ZOO[name].shapes)
    model = load_model(tmp_path / "mixed.onnx")
    engine = build(model, BACKENDS["tensorrt-rtx"], options, tmp_path / "mixed")
    assert engine.outcomes
    assert not [one for one in engine.outcomes if one.is_lost and one.asked != "int8"]
