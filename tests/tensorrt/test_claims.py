"""What we touch of TensorRT is what we claim to be there; `make test-tensorrt` asks packages."""

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.tensorrt import check, stand_in
from tests.tensorrt.claims import EVERYWHERE, TOUCHED
from tests.tensorrt.touched import OBJECTS, calls_in, touched, touched_in

FOUND = {
    "trt.ILogger.Severity.ERROR": "ILogger.Severity.ERROR",
    "hasattr(trt.BuilderFlag, 'INT8')": "BuilderFlag.INT8",
    "getattr(trt, 'Runtime')": "Runtime",
    "kind = trt.ILogger.Severity\nkind.INFO": "ILogger.Severity.INFO",
    "def f(trt, network): return network.num_layers": "INetworkDefinition.num_layers",
    "for layer in trt.x: layer.precision = 1": "ILayer.precision",
}


def test_everything_that_the_sources_touch_is_claimed_and_nothing_else():
    assert touched() == set(TOUCHED)


@each("source", FOUND)
def test_the_reader_finds_every_way_to_touch(source):
    assert FOUND[source] in touched_in(source)


@pytest.mark.parametrize(
    "source",
    ["getattr(trt, name)", "hasattr(trt.X, a + b)", "def f(trt, thing: Any): return thing.weights"],
)
def test_the_reader_refuses_what_it_cannot_tell(source):
    with fails(ValueError, "line 1"):
        touched_in(source)


def test_the_stand_in_has_nothing_that_is_not_claimed():
    for name, kind in OBJECTS.items():
        stood = getattr(stand_in, name.title(), None)
        public = {item for item in dir(stood) if not item.startswith("_")} if stood else set()
        fields = set(getattr(stood, "__dataclass_fields__", {}))
        ours = {"range", "refuses", "inputs", "outputs", "layers"}
        for item in (public | fields) - ours:
            assert f"{kind}.{item}" in TOUCHED


def test_a_claim_that_is_wrong_either_way_is_found():
    for version in check.VERSIONS:
        there = [path for path, versions in TOUCHED.items() if version.name in versions]
        assert check.differences(version, there) == []
        assert check.differences(version, there[1:]) == [f"it has no {there[0]}"]
        assert check.differences(version, [*there, "Magic"]) == ["it has Magic, unclaimed"]
    old = {"answers": {}, "refused": [], "worker": {}, "log": check.LOG}
    assert len(check.wrong_answers(check.VERSIONS[0], old)) == 2
    assert len(check.wrong_answers(check.VERSIONS[-1], old)) == 1


SIGNATURES = {
    "self: a.B": ({0}, {1}),
    "self: a.B, flags: typing.SupportsInt = 0": ({0, 1}, {2}),
    "self: a.B, name: str, kind: a.Kind = <Kind.WARNING: 2>": ({1, 2}, {0, 3}),
    "logger: capsule, namespace: str": ({2}, {1, 3}),
}


@each("signature", SIGNATURES)
def test_a_call_with_arguments_that_a_signature_does_not_take_is_found(signature):
    right, wrong = SIGNATURES[signature]
    calls = [("B.call", count, [signature]) for count in sorted(right | wrong)]
    assert len(check.wrong_calls(calls)) == len(wrong)
    assert {count for count in right | wrong if check.takes(signature, count)} == right


def test_the_reader_finds_calls_and_their_arguments():
    source = "def f(trt, engine):\n    trt.Runtime(1)\n    engine.get_tensor_name(1, index=2)"
    assert calls_in(source) == {("Runtime", 1), ("ICudaEngine.get_tensor_name", 2)}


def test_versions_are_spelled_alike():
    assert {version for versions in TOUCHED.values() for version in versions} == set(EVERYWHERE)
    assert set(stand_in.VERSIONS) == set(EVERYWHERE)
    assert [version.name for version in check.VERSIONS] == list(EVERYWHERE)
