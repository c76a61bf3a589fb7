"""Shares, copies, left-over Q/DQ, chains and findings, against sums taken by hand."""

import dataclasses
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.evidence.layers.engines import ELEMENTS, WEIGHTS, float_residual, int8_residual, write
from tests.fixtures.tables import each
from trtcal.evidence.layers.copies import examine, find_reformats, find_unfused, layout_of
from trtcal.evidence.layers.flow import depths, find_chains, follow
from trtcal.evidence.layers.layer import Layer, TensorInfo, is_quantize_step
from trtcal.evidence.layers.reading import Engine, read_engine
from trtcal.evidence.layers.roofline import counted_precision, kind_of, share_by

CONV = "a.weight + QuantizeLinear_20 + Conv_22"


@pytest.fixture
def engine(tmp_path):
    return read_engine(write(tmp_path / "a", float_residual()))


def tensor(name, dtype="fp32", *shape):
    return TensorInfo(name, dtype, shape or (8,))


def kernel(name, reads, writes, kind="kgen", dtype="fp32", **fields):
    """Return a layer that reads and writes tensors of 8 elements."""
    inputs = tuple(tensor(one, dtype) for one in reads)
    return Layer(name, kind, inputs, tuple(tensor(one, dtype) for one in writes), **fields)


def test_shares_add_up_to_all_of_the_time(engine):
    shares = {one.name: one for one in share_by(counted_precision, engine)}
    assert shares["int8"].time_ms == pytest.approx(0.2 + 0.06 + 0.07 + 0.06)
    assert shares["fp16"].time_ms == pytest.approx(0.1)
    assert shares["none"].time_ms == pytest.approx(0.05 + 0.04 + 0.03 + 0.03)
    assert "fp32" not in shares
    for parts in (shares.values(), share_by(kind_of, engine)):
        assert sum(one.layers for one in parts) == len(engine.layers)
        assert sum(one.time_ms for one in parts) == pytest.approx(engine.total_ms)
        assert sum(one.share for one in parts) == pytest.approx(1)


def test_without_times_shares_are_of_bytes(engine):
    bare = Engine("x", tuple(dataclasses.replace(one, time_ms=None) for one in engine.layers))
    shares = {one.name: one for one in share_by(counted_precision, bare)}
    assert shares["fp16"].moved_bytes == 4 * ELEMENTS
    assert shares["none"].moved_bytes == (5 + 4 + 3 + 3) * ELEMENTS
    assert sum(one.share for one in shares.values()) == pytest.approx(1)


@each(
    "layer, precision",
    [
        (kernel("__myl_CastMulAddRoun_myl0_1", ("a",), ("b",), dtype="int8", weights=None), "int8"),
        (
            Layer("k", "kgen", (tensor("a", "int8"),), (tensor("b", "int8"),), (tensor("s"),)),
            "fp32",
        ),
        (kernel("h", ("a",), ("b",), dtype="fp16"), "fp16"),
        (kernel("__myl_MulMinMaxRounCast_myl0_1", ("a",), ("b",)), "none"),
        (kernel("p", ("a",), ("b",), "CaskPooling", "int8"), "int8"),
        (kernel("n", ("a",), ("b",), "NoOp"), "none"),
        (Layer("{ForeignNode[a...b]}", "Myelin"), "unknown"),
        (kernel("e", ("a",), ("b",), "CaskConvolution", "fp8"), "fp8"),
        (kernel("e", ("a",), ("b",), "CaskConvolution", "fp4"), "fp4"),
        (kernel("e", ("a",), ("b",), "CaskConvolution", "bf16"), "other"),
    ],
)
def test_every_layer_is_counted_under_one_precision(layer, precision):
    assert counted_precision(layer) == precision


def test_copies_say_why_they_are_there_and_where(engine):
    copies = {one.layer: one for one in find_reformats(follow(engine.layers))}
    assert len(copies) == 4
    move = copies["Reformatting CopyNode for Output Tensor 0 to MaxPool_12"]
    assert (move.origin, move.why) == ("REFORMAT", "layout NC/32HW32 to linear")
    assert (move.before, len(move.after)) == (("MaxPool_12",), 2)
    assert (move.time_ms, move.moved_bytes) == (0.04, 4 * ELEMENTS)
    first = copies["QuantizeLinear_2"]
    assert (first.why, first.before) == ("precision fp32 to int8, layout linear to NC/32HW32", ())


@each(
    "form, layout",
    [
        ("Row major linear FP32", "linear"),
        ("Row major Int8 format", "linear"),
        ("Four wide channel vectorized row major Int8 format", "NC/4HW4"),
        ("Channel major FP16 format where channel % 8 == 0", "NHWC8"),
        ("(NHWC) Channel major format", "NHWC"),
        ("vectors of 32 along axis 1", "vectors of 32 along axis 1"),
        ("", "unknown"),
    ],
)
def test_layouts_have_short_names(form, layout):
    assert layout_of(TensorInfo("t", "fp16", (1,), form)) == layout


def test_left_over_steps_say_what_keeps_them(engine):
    unfused = {one.layer: one for one in find_unfused(follow(engine.layers))}
    assert {name: one.cause for name, one in unfused.items()} == {
        "QuantizeLinear_2": "border",
        "QuantizeLinear_15": "other_reader",
        "QuantizeLinear_40": "residual",
    }
    assert "Add_36" in unfused["QuantizeLinear_15"].reason
    assert "reads in fp16" in unfused["QuantizeLinear_40"].reason


@each(
    "layer, step",
    [
        (Layer("__myl_MulMinMaxRounCast_myl0_4", "kgen", nodes=("conv", "x/quantize")), True),
        (Layer("__myl_CastMulTran_myl0_4", "kgen", nodes=("conv",)), True),
        (Layer("__myl_MulAddReluMulMinMaxRounCast_myl0_4", "kgen", nodes=("relu",)), False),
        (Layer("__myl_Mul_myl0_4", "kgen", nodes=("x/quantize", "x/dequantize")), True),
        (Layer("QuantizeLinear_7_quantize_scale_node", "Scale"), True),
        (Layer("bn", "Scale", nodes=("BatchNormalization_3",)), False),
        (Layer("unquantized_pool", "Scale"), False),
        (Layer("a", "Reformat", origin="REFORMAT"), False),
        (Layer("QuantizeLinear_7 + Conv_9", "CaskConvolution", origin="QDQ"), False),
    ],
)
def test_quantize_steps_are_distinguished_from_work(layer, step):
    assert is_quantize_step(layer) is step


def test_a_chain_follows_tensors_and_counts_each_once(engine):
    (chain,) = find_chains(follow(engine.layers))
    assert [name[:12] for name in chain.layers] == ["MaxPool_12", "Reformatting", "QuantizeLine"]
    assert chain.moved_bytes == (4 + 4 + 3) * ELEMENTS
    # one kernel: reads the stem's result; writes the copy, which the Add reads too, and its INT8 form
    assert chain.stitched_bytes == (2 + 2 + 1) * ELEMENTS
    assert chain.saved_bytes == 6 * ELEMENTS
    assert chain.time_ms == pytest.approx(0.17)
    assert chain.cuts == ()
    assert chain.before == ("stem.weight + QuantizeLinear_7 + Conv_9",)


def test_order_in_the_list_does_not_matter_to_chains(engine):
    given, turned = (
        find_chains(follow(layers))[0] for layers in (engine.layers, engine.layers[::-1])
    )
    assert set(given.layers) == set(turned.layers)
    assert (given.moved_bytes, given.stitched_bytes) == (turned.moved_bytes, turned.stitched_bytes)


def test_a_quantize_step_inside_a_chain_cuts_it():
    layers = (
        kernel("relu", ("x",), ("a",)),
        kernel("q", ("a",), ("b",), "Reformat", origin="QDQ"),
        kernel("sigmoid", ("b",), ("c",)),
    )
    (chain,) = find_chains(follow(layers))
    assert chain.cuts == ("q",)
    assert (chain.moved_bytes, chain.stitched_bytes) == (6 * 32, 2 * 32)
    finding = next(one for one in examine(layers).findings if one.kind == "memory_bound_chain")
    assert (finding.kind, finding.cost.moved_bytes) == ("memory_bound_chain", 4 * 32)
    assert "q in the middle divide it" in finding.what
    assert [one.place for one in finding.evidence] == ["relu", "q", "sigmoid"]


def test_a_chain_of_unknown_types_is_no_finding():
    names = "abcdefgh"
    layers = tuple(kernel(one, (one,), (two,), dtype="unknown") for one, two in pairwise(names))
    assert len(find_chains(follow(layers))[0].layers) == len(layers)
    assert not [one for one in examine(layers).findings if one.kind == "memory_bound_chain"]


def test_a_chain_never_goes_around_a_convolution():
    layers = (
        kernel("a", ("x",), ("t",)),
        kernel("conv", ("t",), ("u",), "CaskConvolution"),
        kernel("add", ("t", "u"), ("v",)),
        kernel("relu", ("v",), ("w",)),
    )
    assert depths(follow(layers)) == [0, 1, 1, 1]
    (chain,) = find_chains(follow(layers))
    assert chain.layers == ("add", "relu")
    assert chain.stitched_bytes == 3 * 32


def test_empty_copies_join_a_chain_but_do_not_lengthen_it():
    layers = (
        kernel("a", ("x",), ("t",)),
        kernel("view", ("t",), ("u",), "NoOp"),
        kernel("b", ("u",), ("v",)),
    )
    (chain,) = find_chains(follow(layers))
    assert chain.layers == ("a", "b")
    assert find_chains(follow(layers[:2])) == ()


def test_rings_and_unknown_types_do_no_harm():
    ring = (kernel("a", ("t",), ("u",)), kernel("b", ("u",), ("t",)))
    assert len(find_chains(follow(ring))) == 1
    layers = (kernel("a", ("x",), ("t",), dtype="odd"), kernel("b", ("t",), ("u",)))
    (chain,) = find_chains(follow(layers))
    assert (chain.moved_bytes, chain.saved_bytes) == (None, None)
    assert share_by(counted_precision, Engine("x", layers))[-1].unsized == 1


def test_findings_are_ranked_and_leave_out_what_costs_nothing(engine):
    findings = examine(engine.layers).findings
    assert [one.kind for one in findings] == [
        "float_between_int8", "memory_bound_chain", "unfused_qdq", "silent_reformat",
        "unfused_qdq", "unfused_qdq",
    ]  # fmt: skip
    assert findings[1].cost.time_ms == pytest.approx(0.17 * 6 / 11)
    assert findings[3].subject.startswith("Reformatting")
    slow = (*engine.layers, kernel("slow", (), (), time_ms=100.0))
    assert examine(slow).findings == ()
    predicted = [replace(layer, tactic="predicted tf32") for layer in engine.layers]
    assert "silent_reformat" not in {one.kind for one in examine(predicted).findings}


def test_a_well_quantized_block_has_only_its_border(tmp_path):
    layers = read_engine(write(tmp_path / "b", int8_residual())).layers
    findings = examine(layers).findings
    assert [one.subject for one in findings] == ["QuantizeLinear_2"]
    assert layers[1].bytes_moved == 2 * ELEMENTS + WEIGHTS + 4 * 64
