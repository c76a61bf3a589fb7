"""Checkpoints of TVM's passes and the fusion check on its kernels."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trtcal
from tests.conftest import SAMPLES
from tests.fixtures.commands import shows
from tests.frameworks.conftest import needs
from trtcal.cli.main import run_command as main
from trtcal.wings.forensics.checkpoint_diff import compare_chains
from trtcal.wings.forensics.checkpoints import Checkpoints
from trtcal.wings.forensics.delta import difference

pytestmark = needs("tvm")
SEEDS = range(50)
KINDS = "renamed", "reordered", "constants", "structure"


@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_first_binding_of_seeded_changes_are_right(kind):
    from tests.frameworks.relax_modules import changed
    from trtcal.wings.forensics.tvm.table import table_of

    for seed in SEEDS:
        before, after, expected = changed(kind, seed)
        found = difference(table_of(before), table_of(after))
        assert (found.change, found.node) == (kind, expected), seed


@pytest.mark.parametrize("kind", KINDS)
def test_what_differs_is_what_tvms_structural_equality_says(kind):
    import tvm_ffi

    from tests.frameworks.relax_modules import changed
    from trtcal.wings.forensics.tvm.table import table_of

    for seed in SEEDS:
        before, after, _ = changed(kind, seed)
        same = all(
            table_of(before).column(one) == table_of(after).column(one)
            for one in ("content", "uses")
        )
        assert tvm_ffi.structural_equal(before, after) == same, seed


def test_repeats_without_a_change_are_equal():
    from tests.frameworks.relax_modules import build, changed, random_steps
    from trtcal.wings.forensics.tvm.table import table_of

    for seed in range(200):
        steps = random_steps(np.random.default_rng(seed))
        assert table_of(build(steps)) == table_of(build(steps)), seed
    assert len({table_of(changed("structure", seed)[0]).digest for seed in SEEDS}) == len(SEEDS)


def test_a_number_inside_a_kernel_is_a_constant_of_it():
    import tvm
    from tvm.relax import transform

    from tests.frameworks.relax_modules import norm_and_activation
    from trtcal.wings.forensics.tvm.table import table_of

    with tvm.target.Target("llvm"):
        tables = [
            table_of(transform.LegalizeOps()(norm_and_activation(alpha=alpha)))
            for alpha in (0.125, 0.25)
        ]
    found = difference(*tables)
    assert (found.change, found.node, found.operator) == ("constants", "leaky_relu", "PrimFunc")


def checkpoints(mod, folder, *passes):
    """Run passes, and the default pipeline, with the instrument."""
    import tvm
    from tvm import relax

    target = tvm.target.Target("llvm")
    instruments = [trtcal.tvm_checkpoints(folder, "net")]
    with target, tvm.transform.PassContext(instruments=instruments):
        for one in passes:
            mod = one(mod)
        relax.get_default_pipeline(target)(mod)
    return Checkpoints.read(folder)


def test_the_first_pass_that_makes_something_else_is_named_with_the_binding(tmp_path):
    from tests.frameworks.relax_modules import insert_identity, norm_and_activation

    mod = norm_and_activation()
    good = checkpoints(mod, tmp_path / "good")
    again = checkpoints(norm_and_activation(), tmp_path / "again")
    bad = checkpoints(mod, tmp_path / "bad", insert_identity())
    assert compare_chains(good, again).first is None
    first = compare_chains(good, bad).first
    assert first.checkpoint.name == "InsertIdentity"
    assert (first.graph.change, first.graph.operator) == ("structure", "identity")
    assert len(good.chain) > 10
    assert {one.artifact is not None for one in good.chain} == {True}


def test_a_constant_that_differs_in_one_bit_is_found_in_the_chain(tmp_path):
    from tests.frameworks.relax_modules import changed

    before, after, where = changed("constants", 3)
    found = compare_chains(
        checkpoints(before, tmp_path / "a"), checkpoints(after, tmp_path / "b")
    ).first
    assert (found.graph.change, found.graph.node) == ("constants", where)


def fused(mod, *passes):
    """Return the fusion check of a module after passes and FuseOps."""
    import tvm
    from tvm.relax import transform

    own = (transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant())
    with tvm.target.Target("llvm"):
        mod = tvm.transform.Sequential([*passes, *own, transform.FuseOps()])(mod)
    return trtcal.tvm_fusions(mod)


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm"])
def test_an_identity_between_norm_and_leaky_relu_breaks_the_kernel(norm):
    from tests.frameworks.relax_modules import insert_identity, norm_and_activation

    whole, broken = (fused(norm_and_activation(norm), *one) for one in ((), (insert_identity(),)))
    (match,), (seen,) = whole.matches, whole.seen
    assert (match.pattern, match.state, seen.state) == ("norm+activation", "whole", "one layer")
    (match,), (seen,) = broken.matches, broken.seen
    assert (match.state, seen.state) == ("broken", "several layers")
    assert [one.kind for one in broken.findings] == ["broken_fusion"]
    assert broken.verdicts == ("agrees",)


def test_the_sample_shows_the_pass_the_binding_and_the_broken_kernel(tmp_path, capsys):
    script = SAMPLES / "regression" / "tvm_identity.py"
    command = [sys.executable, str(script), str(tmp_path)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    good, bad = (
        [line for line in shown.splitlines() if line.startswith(name)] for name in ("good", "bad")
    )
    assert all("whole, one layer" in line for line in good)
    assert ["broken, several layers" in line for line in bad].count(True) == 1
    assert len(good) == len(bad) > 1
    assert main(["trace", "diff", str(tmp_path / "good"), str(tmp_path / "bad")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "'InsertIdentity'" in first
    assert "structure at node 'main > same' (identity)" in first


def test_an_identity_that_is_a_kernel_is_fused_by_tvm_all_the_same():
    from tests.frameworks.relax_modules import insert_identity, norm_and_activation

    found = fused(norm_and_activation(), insert_identity(copies=True))
    assert found.verdicts == ("differs",)
    assert [one.state for one in found.seen] == ["one layer"]


def test_canonicalize_bindings_before_it_takes_the_identity_out():
    from tvm.relax import transform

    from tests.frameworks.relax_modules import insert_identity, norm_and_activation

    assert not fused(
        norm_and_activation(), insert_identity(), transform.CanonicalizeBindings()
    ).broken


def small_model(path, between=()):
    random = np.random.default_rng(0)
    weights = {"w": random.normal(size=(4, 3, 3, 3))} | {n: random.uniform(1, 2, 4) for n in "sbmv"}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["n"], "norm"),
        *(helper.make_node("Identity", ["n"], ["i"], "identity") for _ in between),
        helper.make_node("LeakyRelu", ["i" if between else "n"], ["y"], "leaky", alpha=0.1),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", 1, ["batch", 3, 8, 8])],
        [info("y", 1, ["batch", 4, 8, 8])],
        [numpy_helper.from_array(one.astype(np.float32), name) for name, one in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def test_the_command_writes_checkpoints_and_the_fusion_check_of_a_model(tmp_path, capsys):
    model = small_model(tmp_path / "net.onnx")
    assert main(["trace", "tvm", str(model), "-o", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["checkpoints"][0]["name"] == "import"
    assert document["checkpoints"][0]["before"] == trtcal.load_model(model).fingerprint
    assert [one["prediction"] for one in document["fusions"]["matches"]] == ["whole"]
    assert main(["trace", "show", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "fusion.json").is_file()


def test_the_importer_drops_an_identity_of_onnx(tmp_path, capsys):
    model = small_model(tmp_path / "net.onnx", ["identity"])
    command = ["trace", "tvm", str(model), "-o", str(tmp_path / "out"), "--fail-on-broken"]
    assert main(command) == 0


def test_a_model_that_tvm_does_not_know_is_one_error(tmp_path, capsys):
    graph = helper.make_graph(
        [helper.make_node("StringNormalizer", ["x"], ["y"], "odd")],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.STRING, None)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "odd.onnx"
    )
    assert main(["trace", "tvm", str(tmp_path / "odd.onnx"), "-o", str(tmp_path / "out")]) == 3
    shows(capsys.readouterr().err, "TVM", "odd.onnx")
    assert not (tmp_path / "out").exists()
