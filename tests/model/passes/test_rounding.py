"""Fake quantization that is spelled out: recognized in all its forms, and replaced by equal Q/DQ."""

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, weight
from tests.fixtures.tables import each
from tests.model.passes.graphs import make, ops, values
from trtcal.config import Config
from trtcal.errors import InputError
from trtcal.evidence.diagnosis.build_diagnosis import check_engine
from trtcal.evidence.layers.reading import Engine
from trtcal.model.passes import prepare_with_record
from trtcal.quantization.placement import find_layers

SCALE = np.float32(0.037)
CONSTANTS = {
    "s": SCALE, "inv": 1 / SCALE, "two": np.float32(2**-5), "back": np.float32(2**5),
    "lo": np.float32(-128), "hi": np.float32(127), "low": SCALE * -128, "high": SCALE * 127,
    "zero": np.float32(128), "none": np.float32(0), "most": np.float32(255),
    "narrow": np.float32(-127), "four": np.float32(-8), "seven": np.float32(7),
    "one": np.float32([1.0]), "root": np.float32([[[[0.037]]]]),
}  # fmt: skip
FORMS = {
    "Div, Round, Clip, Mul": "a = Div(x, s) b = Round(a) c = Clip(b, lo, hi) y = Mul(c, s)",
    "Mul by a power of two": "a = Mul(x, back) b = Round(a) c = Clip(b, lo, hi) y = Mul(two, c)",
    "Clip before Round": "a = Div(x, s) b = Clip(a, lo, hi) c = Round(b) y = Mul(c, s)",
    "Min and Max": "a = Div(x, s) b = Round(a) c = Max(b, lo) d = Min(hi, c) e = Identity(d) "
    "y = Mul(e, s)",
    "Clip of the values": "a = Clip(x, low, high) b = Div(a, s) c = Round(b) y = Mul(c, s)",
    "Div back": "a = Mul(x, back) b = Round(a) c = Clip(b, lo, hi) y = Div(c, back)",
    "unsigned around 128": "a = Div(x, s) b = Round(a) c = Add(b, zero) d = Clip(c, none, most) "
    "e = Sub(d, zero) y = Mul(e, s)",
    "zero point before Round": "a = Div(x, s) b = Add(zero, a) c = Round(b) "
    "d = Clip(c, none, most) e = Sub(d, zero) y = Mul(e, s)",
    "Casts": "a = Div(x, s) b = Round(a) c = Clip(b, lo, hi) d = Cast<to = 3>(c) "
    "e = Cast<to = 1>(d) y = Mul(e, s)",
    "narrow": "a = Div(x, s) b = Round(a) c = Clip(b, narrow, hi) y = Mul(c, s)",
    "four bits": "a = Div(x, s) b = Round(a) c = Clip(b, four, seven) y = Mul(c, s)",
    "Constants": "k = Constant<value_float = 0.0625>() a = Div(x, k) b = Round(a) "
    "c = Clip(b, lo, hi) y = Mul(c, k)",
    "computed scales": "k = Div(one, root) l = Div(one, k) a = Div(x, l) b = Round(a) "
    "c = Clip(b, lo, hi) y = Mul(c, l)",
    "straight-through Round": "a = Div(x, s) b = Round(a) r = Sub(b, a) t = Add(a, r) "
    "c = Clip(t, lo, hi) y = Mul(c, s)",
}  # fmt: skip
KEPT = {
    "no limits": "a = Div(x, s) b = Round(a) y = Mul(b, s)",
    "0 to 255": "a = Div(x, s) b = Round(a) c = Clip(b, none, most) y = Mul(c, s)",
    "each channel": "a = Div(x, each) b = Round(a) c = Clip(b, lo, hi) y = Mul(c, each)",
}
NONE = {
    "rounded outputs": "a = Round(x) y = Clip(a, none, most)",
    "other factors": "a = Div(x, s) b = Round(a) c = Clip(b, lo, hi) y = Mul(c, two)",
    "half a step": "a = Div(x, s) b = Add(a, half) c = Round(b) d = Clip(c, lo, hi) y = Mul(d, s)",
    "limits that are no constants": "a = Div(x, s) b = Round(a) c = Min(b, hi, x) "
    "d = Max(c, lo, narrow) y = Mul(d, s)",
    "read inside": "a = Div(x, s) b = Round(a) c = Clip(b, lo, hi) d = Mul(c, s) y = Add(d, b)",
}
FEEDS = {"x": (rng(3).standard_normal((4, 6, 5, 5)) * 3).astype(np.float32)}


def net(body):
    each = {"each": np.float32([[[0.1]], [[0.2]]]).repeat(3, 0), "half": np.float32(0.5)}
    used = {
        name: value
        for name, value in {**CONSTANTS, **each}.items()
        if name in body.replace("(", " ").replace(",", " ").replace(")", " ").split()
    }
    return make(as_nodes(body), used, {"x": ["n", 6, 5, 5]}, {"y": ["n", 6, 5, 5]})


def prepared_equally(model, feeds):
    prepared = prepare_with_record(model)
    found, expected = (values(m.proto, feeds, ["y"])["y"] for m in (prepared.model, model))
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 10
    return prepared


@each("name", list(FORMS))
def test_pairs_take_the_place_of_every_form(name):
    found = ops(prepared_equally(net(FORMS[name]), FEEDS))
    is_clipped = ["Clip"] * (name in ("narrow", "four bits"))
    assert found == [*is_clipped, "QuantizeLinear", "DequantizeLinear"]


@each("name", list(KEPT))
def test_what_no_pair_can_be_is_kept_and_noted(name):
    prepared = prepared_equally(net(KEPT[name]), FEEDS)
    assert "Round" in ops(prepared)
    assert any("fake quantization" in note for note in prepared.notes)


@each("name", list(NONE))
def test_other_roundings_are_left_alone(name):
    prepared = prepared_equally(net(NONE[name]), FEEDS)
    assert "Round" in ops(prepared)
    assert prepared.notes == ()


WEIGHTS = {
    "of all": ("s1", "", np.float32(0.011)),
    "each channel": ("s1", "", np.float32(rng(5).uniform(0.01, 0.02, (8, 1, 1, 1)))),
    "through": ("s1", "r = Sub(k, w) j = Add(w, r)", np.float32(0.011)),
}


def quantized_conv(scale, through=""):
    text = (
        "[din] a = Div(x, s) [rin] b = Round(a) [cin] c = Clip(b, lo, hi) [min] d = Mul(c, s) "
        "[dw] e = Div(w, t) [rw] f = Round(e) [cw] g = Clip(f, lo, hi) [mw] k = Mul(g, t) "
        f"{through} [conv] m = Conv(d, {'j' if through else 'k'}) [relu] y = Relu(m)"
    )
    weight = (rng(4).standard_normal((8, 6, 3, 3)) * 0.4).astype(np.float32)
    constants = {name: CONSTANTS[name] for name in ("s", "lo", "hi")} | {"w": weight, "t": scale}
    return make(as_nodes(text), constants, {"x": ["n", 6, 5, 5]}, {"y": ["n", 8, 3, 3]})


@each("name", list(WEIGHTS))
def test_weights_are_stored_in_the_steps_that_they_were_trained_with(name):
    _, through, scale = WEIGHTS[name]
    prepared = prepared_equally(quantized_conv(scale, through), FEEDS)
    assert ops(prepared) == ["QuantizeLinear", *["DequantizeLinear"] * 2, "Conv", "Relu"]
    stored = {one.name: one for one in prepared.model.proto.graph.initializer}
    weight = next(
        one for one in stored.values() if len(one.dims) == 4 and one.data_type == TensorProto.INT8
    )
    scales = numpy_helper.to_array(stored[f"{weight.name.removesuffix('/int8')}/scale"])
    np.testing.assert_array_equal(scales, scale.reshape(-1) if scale.size > 1 else scale)


def test_they_are_not_quantized_a_second_time():
    prepared = prepare_with_record(quantized_conv(np.float32(0.011)))
    with fails(InputError, "conv: it is already quantized", hint="trtcal prepare"):
        find_layers(prepared.model)


def test_a_skip_that_is_quantized_gets_no_second_pair():
    text = (
        "[round] a = Div(x, s) b = Round(a) c = Clip(b, lo, hi) d = Mul(c, s) "
        "[conv] e = Conv<pads = [1, 1, 1, 1]>(x, w) [add] y = Add(e, d)"
    )
    constants = {name: CONSTANTS[name] for name in ("s", "lo", "hi")} | {"w": weight(6, 6, 3, 3)}
    model = make(as_nodes(text), constants, {"x": ["n", 6, 5, 5]}, {"y": ["n", 6, 5, 5]})
    assert [layer.name for layer in find_layers(prepare_with_record(model).model).layers] == [
        "conv"
    ]


def test_a_diagnosis_names_the_chains_with_their_steps():
    (finding,) = check_engine(
        Engine("", ()), Config(), (), quantized_conv(np.float32(0.011))
    ).findings
    assert finding.kind == "fake_quantization"
    assert [item.place for item in finding.evidence] == ["rin", "rw"]
    assert "'x' in steps of 0.037 (INT8, -128 to 127)" in finding.what
