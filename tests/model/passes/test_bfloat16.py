"""Models in bfloat16: refused by the node where they have to run, and the same model in float32."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.fixtures.commands import refused, shows, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import rng
from trtcal.backends.sessions import open_session, run_session
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.passes import prepare
from trtcal.quantization.placement import find_layers

BODY = """
  [conv] b = Conv<pads=[1,1,1,1]>(a, w)
  k = Constant<value = bfloat16[1] {16500}>()
  [mul] c = Mul(b, k)
  [if] d = If (yes) <
    then_branch = t () => (bfloat16[n,4,8,8] q) {
      l = Constant<value = bfloat16[1] {16400}>()
      q = Mul(c, l) },
    else_branch = o () => (bfloat16[n,4,8,8] q) { q = Neg(c) } >
  f = GlobalAveragePool(d)
"""
CAST = (
    "(float[n,3,8,8] x) => (float[n,4] y)",
    "a = Cast<to=16>(x)",
    "e = Flatten(f) y = Cast<to=1>(e)",
)
DIRECT = "(bfloat16[n,3,8,8] x) => (bfloat16[n,4] y)", "a = Identity(x)", "y = Flatten(f)"
WEIGHT = (rng(1).standard_normal((4, 3, 3, 3)) * 0.3).astype(ml_dtypes.bfloat16)
IMAGES = rng(2).standard_normal((4, 3, 8, 8)).astype(np.float32)


def brain_net(path, sides=CAST):
    """conv -> mul -> if -> pool in bfloat16, between Casts or as inputs and outputs are."""
    head, first, last = sides
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 22]> net {head} <bool yes = {{1}}> '
        f"{{ {first} {BODY} {last} }}"
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    onnx.save(proto, path)
    return load_model(path)


@pytest.mark.parametrize("sides", [CAST, DIRECT])
def test_they_are_written_in_float32_on_request(tmp_path, sides):
    model = brain_net(tmp_path / "net.onnx", sides)
    wide = prepare(model, add=["float32"])
    assert {spec.dtype for spec in (*wide.inputs, *wide.outputs)} == {"float32"}
    assert find_layers(wide).names[0] == "conv"
    (found,) = run_session(open_session(wide.proto), ["y"], {"x": IMAGES})
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, WEIGHT.astype(np.float32))
    factors = np.array([16500, 16400], np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(found, conv.mean((2, 3)) * factors.prod(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sides", "where"), [(CAST, "node 'conv' (Conv)"), (DIRECT, "tensor 'x'")])
def test_data_and_quantization_are_refused_with_the_command(tmp_path, sides, where):
    model = brain_net(tmp_path / "net.onnx", sides)
    for use in (lambda: open_dataset({"x": IMAGES}, model), lambda: find_layers(prepare(model))):
        with fails(InputError, where, "bfloat16", hint="prepare"):
            use()


def test_weights_that_are_stored_so_and_cast_are_taken(tmp_path):
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> net (float[n,3,8,8] x) => (float[n,4,6,6] y) '
        "{ v = Cast<to=1>(w) [conv] y = Conv(x, v) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    model = load_model(proto)
    assert len(open_dataset({"x": IMAGES}, model)) == 4
    assert find_layers(prepare(model)).names == ["conv"]


def test_the_hint_is_a_command_that_helps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    brain_net(tmp_path / "net.onnx")
    np.savez("data.npz", x=IMAGES)
    wide, data = "net-float32.onnx", ("--data", "data.npz")
    shown = refused(capsys, "calibrate", "net.onnx", *data)
    shows(shown, "bfloat16", f"trtcal prepare net.onnx --add float32 -o {wide}")
    succeed(capsys, "prepare", "net.onnx", "--add", "float32", "-o", wide, *data)
