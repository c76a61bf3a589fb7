"""A transformer encoder of BERT-small's shape, from calibrating to the engine."""

import numpy as np
import onnx
import pytest

from tests.backends.listing import precisions
from tests.fixtures.slow import SLOW
from tests.fixtures.zoo_language import encoder
from tests.fixtures.zoo_net import Net
from tests.fixtures.zoo_scene import quantized_scene
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.backends.sessions import open_session, run_session

pytestmark = SLOW

RTX = BACKENDS["tensorrt-rtx"].availability()
LAYERS, WIDTH, HEADS, LENGTH = 4, 512, 8, 16  # BERT-small's
VOCABULARY = 500  # BERT's has 30,522 words
PRODUCTS = ("query", "key", "value", "scores", "mix", "out", "up", "down")


def bert_small():
    net = Net(ids=["n", LENGTH], vocabulary=VOCABULARY)
    words = net.add("Gather", net.weight(VOCABULARY, WIDTH, fan_in=2), "ids")
    a = net.norm(net.add("Add", words, net.weight(LENGTH, WIDTH, fan_in=2)), WIDTH)
    for number in range(LAYERS):
        a = encoder(net, a, LENGTH, WIDTH, HEADS, prefix=f"{number}.")
    first = net.add("Gather", a, net.value(0, np.int64), axis=1)
    pooled = net.add("Tanh", net.gemm("pooler", first, WIDTH, WIDTH))
    return net.done(net.gemm("classifier", pooled, 4, WIDTH))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    net = bert_small()
    onnx.save(net.proto(), folder / "bert.onnx")
    np.savez(folder / "ids.npz", **net.samples(16))
    return quantized_scene(folder / "bert.onnx", folder / "ids.npz", folder, batch=8)


@pytest.fixture(scope="module")
def engine(bert, tmp_path_factory):
    if not RTX.works:
        pytest.skip(str(RTX.missing))
    folder = tmp_path_factory.mktemp("engine")
    return build(bert.model, BACKENDS["tensorrt-rtx"], BuildOptions("sm89"), folder)


def products():
    wanted = {f"{number}.{part}" for number in range(LAYERS) for part in PRODUCTS}
    return wanted | {"pooler", "classifier"}


def test_every_product_is_int8_on_the_compiler(bert, engine):
    assert bert.heavy == products()
    seen = precisions(engine.log)
    assert all(seen.get(node) == {"int8"} for node in products())


def test_every_product_is_reported_as_int8(engine):
    share = sum(outcome.got == "int8" for outcome in engine.outcomes) / len(engine.outcomes)
    print(f"INT8 share of {len(engine.outcomes)} products: {share:.0%}")
    assert {one.node: one.got for one in engine.outcomes} == dict.fromkeys(products(), "int8")


def test_the_int8_encoder_says_what_the_float_one_says(bert):
    feeds = bert_small().samples(64, seed=1)
    expected, said = (
        run_session(open_session(model.proto), None, feeds)[0] for model in (bert.given, bert.model)
    )
    error = np.square(expected - said).sum() / np.square(expected).sum()
    assert -10 * np.log10(error) > 15
