import shlex
from pathlib import Path

import pytest

from trtcal.backends.options import BuildOptions
from trtcal.backends.tensorrt import rtx_command, trtexec_command

RANGE = ((1, 3), (2, 3), (4, 3))


def trtexec(version, options=None, profiles=({},), quantized=True, onnx="m.onnx"):
    options = options or BuildOptions("gpu")
    command = trtexec_command(version, options, profiles, quantized, onnx, "m.plan")
    return command and shlex.split(command)


@pytest.mark.parametrize(
    ("version", "wanted", "unwanted"),
    [
        ("8.6.1", {"--int8"}, {"--stronglyTyped"}),
        ("10.3.0", {"--stronglyTyped"}, {"--int8"}),
        ("11.4.0.106", set(), {"--stronglyTyped", "--int8"}),
    ],
)
def test_the_flags_of_typing_fit_the_version(version, wanted, unwanted):
    words = set(trtexec(version))
    assert wanted <= words
    assert not unwanted & words
    assert {"trtexec", "--onnx=m.onnx", "--saveEngine=m.plan", "--skipInference"} <= words


def test_int8_is_not_asked_for_without_ranges():
    assert "--int8" not in trtexec("8.6.1", quantized=False)


def test_options_become_flags():
    options = BuildOptions(
        "gpu", workspace_bytes=3 << 19, timing_cache=Path("t.cache"), optimization_level=4
    )
    wanted = {"--memPoolSize=workspace:1.5", "--timingCacheFile=t.cache"}
    assert {*wanted, "--builderOptimizationLevel=4"} <= set(trtexec("10.3", options))


def test_names_are_quoted_for_the_shell_and_for_trtexec():
    profile = {"in:0": RANGE, "$(touch x)": RANGE}
    words = trtexec("10.3", profiles=(profile,), onnx="a b;.onnx")
    assert "--onnx=a b;.onnx" in words
    assert "--maxShapes='in:0':4x3,$(touch x):4x3" in words


def test_several_profiles_need_trtexec_10():
    profiles = ({"x": RANGE}, {"x": RANGE})
    assert trtexec("8.6.1", profiles=profiles) is None
    words = trtexec("10.3", profiles=profiles)
    assert (
        words.index("--profile=1") > words.index("--minShapes=x:1x3") > words.index("--profile=0")
    )


def test_tensorrt_rtx_takes_capabilities():
    several = shlex.split(rtx_command(BuildOptions("sm86,sm120"), ({},), "m.onnx", "m.plan"))
    assert several[0] == "tensorrt_rtx"
    assert "--computeCapabilities=86,120" in several
    assert "Capabilities" not in rtx_command(BuildOptions("portable"), ({},), "m.onnx", "m.plan")
