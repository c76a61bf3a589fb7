import json
from dataclasses import asdict

import pytest

from tests.fixtures.tables import each
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.outcomes import check


def info(dtype, name="t"):
    return TensorInfo(name, dtype, (1, 8), "")


def heavy(node, dtype, *also, kind="correlation", weights=None):
    return Layer(
        f"{node}_myl0_1",
        kind,
        inputs=(info(dtype),),
        constants=(info(weights or dtype, "w"),),
        outputs=(info("fp32", "y"),),
        nodes=(node, *also),
    )


KGEN = Layer("__myl_MulAdd_myl0_2", "kgen", inputs=(info("fp32"),), nodes=("conv", "relu"))


def test_a_node_gets_what_its_heavy_layer_computes_in():
    met, lost = check(
        {"conv": "int8", "fc": "int8"}, [KGEN, heavy("conv", "int8"), heavy("fc", "fp32")]
    )
    assert (met.got, met.layer, met.reason, met.is_met) == ("int8", "conv_myl0_1", None, True)
    assert (lost.got, lost.is_lost) == ("fp32", True)
    assert "fp32" in lost.reason
    assert lost.hint


def test_a_layer_that_merely_absorbed_the_node_does_not_decide():
    layers = [heavy("next", "int8", "conv"), heavy("conv", "fp32")]
    (outcome,) = check({"conv": "int8"}, layers)
    assert outcome.got == "fp32"


def test_a_node_that_only_element_wise_kernels_list_is_unknown():
    (outcome,) = check({"relu": "int8"}, [KGEN])
    assert (outcome.got, outcome.layer) == ("unknown", KGEN.name)
    assert not outcome.is_met
    assert not outcome.is_lost
    assert "kgen" in outcome.reason


def test_a_pooling_layer_decides_for_its_node():
    pool = Layer("p", "maxpool", inputs=(info("int8"),), nodes=("dq", "pool"))
    assert check({"pool": "int8"}, [pool])[0].got == "int8"


def test_a_node_in_no_layer_or_without_a_list_is_said_to_be_so():
    (outcome,) = check({"gone": "int8"}, [heavy("conv", "int8")])
    assert (outcome.got, outcome.layer) == ("unknown", None)
    assert outcome.reason
    assert check({"conv": "int8"}, [])[0].reason not in (None, outcome.reason)


def test_a_node_that_may_lie_in_a_compiled_subgraph_is_unknown():
    myelin = Layer("{ForeignNode[a...z]}", "Myelin", inputs=(info("int8"),), nodes=("a", "z"))
    first, inside = check({"a": "int8", "m": "int8"}, [myelin])
    assert first.got == inside.got == "unknown"
    assert "subgraph" in first.reason
    assert "subgraph" in inside.reason


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (heavy("n", "fp32", weights="int8"), "weights"),
        (heavy("n", "int8", weights="fp32"), "INT8"),
        (heavy("n", "fp16"), "fp16"),
    ],
)
def test_the_reason_tells_which_operand_was_not_quantized(layer, said):
    (outcome,) = check({"n": "int8"}, [layer])
    assert outcome.is_lost
    assert said in outcome.reason


@pytest.mark.parametrize(
    ("asked", "runs", "got", "is_lost"),
    [("fp16", "int8", "int8", True), ("int8", "bf16", "unknown", False)],
)
def test_another_precision_than_was_asked(asked, runs, got, is_lost):
    (outcome,) = check({"n": asked}, [heavy("n", runs)])
    assert (outcome.got, outcome.is_lost) == (got, is_lost)
    assert got == "int8" or runs in outcome.reason


@each("name", ["", "a\nb", "x][ONNX Layer: y", " + ", "{ForeignNode[", "\udcff"])
def test_hostile_names_are_only_names(name):
    outcomes = check({name: "int8", "other": "int8"}, [heavy(name, "int8")])
    assert [o.node for o in outcomes] == [name, "other"]
    assert [o.got for o in outcomes] == ["int8", "unknown"]
    assert all(json.dumps(asdict(o)) for o in outcomes)
