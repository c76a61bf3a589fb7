from dataclasses import replace

import pytest
from onnx import helper

from tests.fixtures.engines import int8, made, needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, save, weight
from tests.fixtures.tables import each
from trtcal.backends.options import BuildOptions, parse_profiles
from trtcal.backends.registry import targets_here
from trtcal.backends.targets import canonical, has_provider, parse_target, runs_on
from trtcal.errors import BackendError, InputError
from trtcal.evidence.gpus import DATASHEETS, GPUS, datasheet_of, find_target, target_names
from trtcal.evidence.layers.outcomes import find_outcomes
from trtcal.model import load_model
from trtcal.quantization.qdq import asked_precisions


def convolution(path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])]
    shapes = {"x": ["n", 3, 8, 8]}, {"y": ["n", 16, 8, 8]}
    return save(path, nodes, {"w": weight(16, 3, 3, 3)}, *shapes)


def test_targets_are_read():
    assert parse_target("sm89") == ((8, 9),)
    assert parse_target("sm86,sm120") == ((8, 6), (12, 0))
    assert parse_target("portable") == ()
    for wrong in ("", "sm", "sm8", "89", "sm89,", "sm89,portable", "sm89;sm90", "sm86,sm86"):
        with pytest.raises(InputError):
            parse_target(wrong)


@each(
    "name, target",
    [
        ("T4", "sm75"),
        ("NVIDIA A100-SXM4-40GB", "sm80"),
        ("orin", "sm87"),
        ("NVIDIA GeForce RTX 4080 SUPER", "sm89"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "sm89"),
        ("h100-pcie", "sm90"),
        ("rtx5090", "sm120"),
        ("sm_86", "sm86"),
        ("portable", "portable"),
    ],
)
def test_a_gpu_is_a_target(name, target):
    assert canonical(name) == target


@each("wrong, near", [("rtx4091", "rtx4090"), ("h10", "h100"), ("cpuu", "cpu"), ("rtx6000", "ada")])
def test_an_unknown_gpu_gets_the_nearest_names(wrong, near):
    with pytest.raises(InputError) as caught:
        canonical(wrong)
    assert near in caught.value.hint


def test_a_datasheet_is_that_of_the_gpu_named_or_of_one_like_it():
    assert [datasheet_of(one) for one in ("rtx4090", "l40", "sm80")] == [
        "rtx-4090",
        "l4",
        "a100-sxm4-40gb",
    ]
    assert datasheet_of("h100") is None
    assert set(DATASHEETS.values()) <= set(target_names())
    assert find_target("NVIDIA RTX 4090") == find_target("rtx-4090")


@needs_rtx
def test_every_target_that_can_be_built_here_is_known_by_a_gpu():
    here = targets_here()
    assert here["sm89"] == here["portable"] == "tensorrt-rtx"
    assert {one for one in here if one.startswith("sm")} <= set(GPUS)


def test_an_engine_runs_on_its_targets_only():
    assert runs_on("sm86,sm120", (12, 0))
    assert not runs_on("sm86,sm120", (8, 9))
    assert runs_on("portable", (8, 9))
    assert runs_on("portable", (12, 1))
    assert not runs_on("portable", (7, 5))
    assert not runs_on("portable", (9, 0))


@needs_rtx
@pytest.mark.parametrize("target", ["sm80,sm89,sm120", "portable"])
def test_one_engine_for_several_targets_has_one_list_of_layers(tmp_path, target):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    single, several = (made(model, name, tmp_path / name) for name in ("sm89", target))
    assert several.target == target
    assert several.layers == single.layers
    assert several.engine.read_bytes() != single.engine.read_bytes()


@needs_rtx
def test_turing_among_the_targets_takes_int8_from_all(tmp_path):
    model = int8(convolution(tmp_path / "net.onnx"), tmp_path)
    assert made(model, "sm89", tmp_path / "ada").outcomes[0].got == "int8"
    (outcome,) = made(model, "sm89,sm75", tmp_path / "both").outcomes
    assert (outcome.asked, outcome.got) == ("int8", "fp32")
    assert "sm75" in outcome.reason


@needs_rtx
def test_a_capability_that_the_builder_lacks_is_refused_with_those_it_has(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    with fails(InputError, "sm99", "sm75", hint="--backend tensorrt --target gpu"):
        made(model, "sm89,sm99", tmp_path / "build")
    assert not (tmp_path / "build").exists()


def test_a_missing_provider_is_a_missing_backend(tmp_path):
    if has_provider("cuda"):
        pytest.skip("this machine has the provider")
    with fails(BackendError, "CUDAExecutionProvider"):
        made(load_model(conv_net(tmp_path / "net.onnx")), "cuda", tmp_path / "build")


def test_profiles_are_read_from_repeated_shapes():
    low, high = ((1, 3),) * 3, ((2, 3),) * 3
    assert parse_profiles([]) == ({},)
    assert parse_profiles(["x=1x3", "y=2x3"]) == ({"x": low, "y": high},)
    pairs = ["x=1x3", "y=2x3", "x=2x3"]
    assert parse_profiles(pairs) == ({"x": low, "y": high}, {"x": high, "y": high})
    for wrong in (["x"], ["=1x3"], ["x=1", "x=2", "x=3", "y=1", "y=2"]):
        with pytest.raises(InputError):
            parse_profiles(wrong)


@needs_rtx
def test_every_profile_has_its_layers(tmp_path):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    first, second = ({"x": ((n, 3, 8, 8),) * 3} for n in (1, 4))
    result = made(model, "sm89", tmp_path / "build", shapes=first, further_profiles=(second,))
    heavy = [layer.nodes[0] for layer in result.layers if layer.is_heavy]
    assert sorted(heavy) == sorted(["first", "second", "gemm"] * 2)
    assert {outcome.got for outcome in result.outcomes} == {"int8"}
    asked = asked_precisions(model.proto)
    lost = find_outcomes(asked, tuple(map(without_int8, result.layers)), 2)
    assert [(one.node, one.got) for one in lost if one.is_lost] == [("first", "fp32")]
    assert lost[0].reason.startswith("in profile 1, ")


def without_int8(layer):
    if not layer.name.startswith("first [profile 1]"):
        return layer
    return replace(layer, inputs=(replace(layer.inputs[0], dtype="fp32"),))


@needs_rtx
def test_options_reach_the_builder(tmp_path):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    options = {"workspace_bytes": 3 << 29, "optimization_level": 0}
    result = made(model, "sm89", tmp_path / "build", **options)
    log = result.log.read_text()
    assert "WORKSPACE: 1536.00 MiB" in log
    assert "at optimization level 0" in log
    assert result.options["workspace_bytes"] == 3 << 29
    with fails(BackendError, "workspace"):
        made(model, "sm89", tmp_path / "small", workspace_bytes=1024)


@needs_rtx
def test_less_verbosity_makes_the_outcome_unknown_and_not_wrong(tmp_path):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    result = made(model, "sm89", tmp_path / "build", verbosity="none")
    assert {outcome.got for outcome in result.outcomes} == {"unknown"}


@needs_rtx
@pytest.mark.parametrize("target", ["sm89", "cpu"])
def test_what_a_backend_lacks_is_refused(tmp_path, target):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    with fails(InputError, "--timing-cache"):
        made(model, target, tmp_path / "build", timing_cache=tmp_path / "timing")
    assert not (tmp_path / "timing").exists()


@pytest.mark.parametrize(
    "wrong", [{"verbosity": "loud"}, {"workspace_bytes": 0}, {"optimization_level": 6}]
)
def test_impossible_options_are_refused(wrong):
    with pytest.raises(InputError):
        BuildOptions("sm89", **wrong)
