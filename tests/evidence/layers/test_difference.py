"""What changed between two engines, in records and in words."""

import dataclasses

import pytest

from tests.evidence.layers.engines import float_residual, int8_residual, write
from trtcal.evidence.layers.difference import compare_engines, describe
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.matching import join_heavy
from trtcal.evidence.layers.reading import Engine, read_engine


@pytest.fixture
def engines(tmp_path):
    before = read_engine(write(tmp_path / "float", float_residual()))
    return before, read_engine(write(tmp_path / "int8", int8_residual()))


def heavy(name, macs, nodes=(), dtype="fp32"):
    x, y = (TensorInfo(f"{name}_{side}", dtype, (8,)) for side in ("in", "out"))
    return Layer(name, "gemm", (x,), (y,), nodes=nodes or (name,), macs=macs)


def test_layers_are_joined_by_names_though_nodes_were_numbered_anew(engines):
    pairs = join_heavy(*(engine.layers for engine in engines))
    names = [
        (engines[0].layers[p.before].nodes[0], engines[1].layers[p.after].nodes[0]) for p in pairs
    ]
    assert names == [(f"{name}.weight", f"{name}.weight") for name in ("stem", "a", "b", "c")]
    assert {pair.by for pair in pairs} == {"name"}


def test_a_number_joins_only_where_the_arithmetic_agrees():
    before = [heavy("Conv_1", 10), heavy("Conv_2", 20), heavy("Conv_3", 30)]
    after = [heavy("Conv_2", 10), heavy("Conv_3", 20), heavy("Conv_4", 30)]
    pairs = join_heavy(before, after)
    assert [(p.before, p.after, p.by) for p in pairs] == [
        (number, number, "arithmetic and order") for number in range(3)
    ]
    same = join_heavy(before, before[::-1])
    assert [(p.before, p.after, p.by) for p in same] == [(n, 2 - n, "name") for n in range(3)]


def test_no_layer_is_in_two_pairs():
    before = [heavy("a", 1, ("n", "m")), heavy("b", 1, ("n",))]
    after = [heavy("c", 1, ("m",)), heavy("d", 2, ("k",))]
    assert [(p.before, p.after) for p in join_heavy(before, after)] == [(0, 0)]


def test_the_records_of_a_difference(engines):
    difference = compare_engines(*engines)
    assert len(difference.pairs) == 4
    assert (difference.alone("gone"), difference.alone("new")) == ((), ())
    assert [one.layer for one in difference.gone] == [
        "Reformatting CopyNode for Output Tensor 0 to MaxPool_12",
        "QuantizeLinear_15",
        "QuantizeLinear_40",
    ]
    assert difference.new == ()
    assert [one.layer for side in difference.kept for one in side] == ["QuantizeLinear_2"] * 2
    assert [(one.layer.name, one.into.name[:4]) for one in difference.merged] == [
        ("MaxPool_12", "stem")
    ]
    assert difference.split == ()
    assert sum(a for a, _ in difference.kinds.values()) == pytest.approx(engines[0].total_ms)
    assert sum(b for _, b in difference.kinds.values()) == pytest.approx(engines[1].total_ms)


def test_the_words_say_the_reason_and_the_sums(engines):
    words = describe(compare_engines(*engines))
    assert "The total went from 0.640 ms to 0.340 ms, 46.9 % less." in words
    assert "10 layers became 5; 4 convolutions and matrix products are in both." in words
    residual = next(one for one in words if "residual" in one)
    assert "1 read it in fp16; now 1 read it in int8." in residual
    assert "1 of these layers write INT8 for the next layer; 0 did before" in residual
    assert "2 layers write int8 instead of fp16; 1 copy disappeared after them (0.030 ms)." in words
    assert "3 copies are gone (0.100 ms): 1 REFORMAT (0.040 ms), 2 QDQ (0.060 ms)." in words
    assert "The copies in both engines took 0.050 ms before and take 0.060 ms now." in words
    assert any(one.startswith("MaxPool_12 was a layer of its own (0.100 ms)") for one in words)
    assert "The layers whose time changed most: stem.weight -0.100 ms; b.weight -0.010 ms." in words


def test_the_way_back_tells_the_opposite(engines):
    words = describe(compare_engines(*engines[::-1]))
    assert "3 copies are new (0.100 ms): 1 REFORMAT (0.040 ms), 2 QDQ (0.060 ms)." in words
    assert any("The values after them must be quantized again" in one for one in words)
    assert any(one.startswith("MaxPool_12 is a layer of its own") for one in words)


def test_an_engine_and_itself_have_nothing_between_them(engines):
    for engine in engines:
        difference = compare_engines(engine, engine)
        assert difference.gone == difference.new == difference.merged == difference.split == ()
        assert [one.split(" ")[0] for one in describe(difference)] == [
            "The",
            str(len(engine.layers)),
            "Time",
        ]


def test_precision_that_changed_is_reported(engines):
    changed = [
        dataclasses.replace(layer, weights="fp16") if layer.name.startswith("c.") else layer
        for layer in engines[0].layers
    ]
    other = dataclasses.replace(engines[0], layers=tuple(changed))
    words = describe(compare_engines(engines[0], other))
    assert "1 layer went from int8 to fp16, 0.000 ms more: c.weight." in words


def test_without_times_the_words_are_of_bytes(engines):
    bare = dataclasses.replace(engines[0], total_ms=None)
    words = describe(compare_engines(bare, engines[1]))
    assert words[0].startswith("One engine has no layer times. The bytes moved went from")
    assert any(one.startswith("Bytes by kind") for one in words)
    assert not any("The copies in both engines took" in one for one in words)


def test_what_only_one_engine_has_is_named():
    before, after = (Engine(n, (heavy(n, m, (n,)),)) for n, m in (("left", 1), ("right", 2)))
    words = describe(compare_engines(before, after))
    assert "Only in the first engine: left." in words
    assert "Only in the second engine: right." in words


def test_many_layers_that_came_apart_are_one_sentence():
    before = [heavy(f"c{n}", n + 1, (f"c{n}", f"relu{n}")) for n in range(5)]
    after = []
    for n, one in enumerate(before):
        middle = TensorInfo(f"t{n}", "fp32", (8,))
        after.append(dataclasses.replace(one, outputs=(middle,), nodes=(f"c{n}",)))
        after.append(Layer(f"k{n}", "kgen", (middle,), one.outputs, nodes=(f"relu{n}",)))
    words = describe(compare_engines(Engine("a", tuple(before)), Engine("b", tuple(after))))
    assert any(
        one.startswith("5 layers are layers of their own; the first: k0 was part of c0;")
        for one in words
    )


def test_what_was_split_is_reported_of_the_layer_that_lists_its_node():
    x, y, z = (TensorInfo(name, "fp32", (8,)) for name in "xyz")
    one = Layer("one", "gemm", (x,), (y,), nodes=("one", "relu_1"), macs=1)
    two = Layer("two", "gemm", (y,), (z,), nodes=("two", "relu_2"), macs=2)
    bare = [
        dataclasses.replace(one, nodes=("one",)),
        dataclasses.replace(two, inputs=(x,), outputs=(y,), nodes=("two",)),
        Layer("k", "kgen", (y,), (z,), nodes=("relu_2",)),
    ]
    (moved,) = compare_engines(Engine("a", (one, two)), Engine("b", tuple(bare))).split
    assert moved.into.name == "two"


def test_a_residual_in_another_float_is_no_quantized_residual(engines):
    def widened(layer):
        further = (layer.inputs[0], dataclasses.replace(layer.inputs[1], dtype="fp32"))
        return dataclasses.replace(layer, inputs=further)

    layers = tuple(widened(one) if one.inputs[1:] else one for one in engines[0].layers)
    words = describe(compare_engines(engines[0], dataclasses.replace(engines[0], layers=layers)))
    residual = next(one for one in words if "residual" in one)
    assert residual.endswith("1 read it in fp16; now 1 read it in fp32.")
