"""How fast a variant is on a target, by its engine's layers and a datasheet; what FP16 is for."""

from dataclasses import replace

import pytest

from tests.reporting.samples import accuracy, build, comparison, latency, row
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.reporting.verdict import estimates, judge

GOOD = accuracy(2, 2)
SIZES = {"digits": 4000, "fp16": 2000}


def made(name, values, model=None):
    """Return a build for sm89 whose one layer reads so many float32 values, and writes one."""
    tensors = (TensorInfo("x", "fp32", (values,)),), (TensorInfo("y", "fp32", (1,)),)
    layers = (Layer("copy", "kgen", *tensors),)
    return replace(build(name, {}), layers=layers, model=model or f"sha256:{name}")


def compared(values):
    """Return a comparison with FP16 beside INT8, and their builds."""
    half = replace(row("fp16", GOOD, latency(1.0, 3.0)), is_alternative=True)
    found = comparison(row("int8", GOOD), half)
    builds = [made("digits", SIZES["digits"], "sha256:fp32"), made("fp16", SIZES["fp16"])]
    return found, [*builds, made("int8", values)]


def test_times_are_those_of_bytes_on_one_gpu_of_the_target():
    found, builds = compared(1000)
    beside = found.rows[0], found.alternative
    first, second = estimates(builds, found.rows[1], beside)
    assert (first.target, first.gpu, first.against) == ("sm89", "l4", "digits")
    assert first.ratio == pytest.approx(4001 / 1001)
    assert (second.against, second.ratio) == ("fp16", pytest.approx(2001 / 1001))
    assert estimates(builds[1:], found.rows[1], beside) == (second,)
    assert estimates([replace(one, target="sm121") for one in builds], found.rows[1], beside) == ()


def test_fp16_is_no_candidate():
    found, builds = compared(1000)
    assert list(judge_variants(found)) == ["int8"]
    assert judge(found, builds).variant == "int8"


@pytest.mark.parametrize(("values", "pays"), [(1000, True), (1950, False), (3000, False)])
def test_int8_that_is_no_faster_than_fp16_is_said(values, pays):
    verdict = judge(*compared(values))
    assert [one.against for one in verdict.estimates] == ["digits", "fp16"]
    said = [one for one in verdict.reasons if one.startswith("int8 is not worth it on sm89")]
    assert bool(said) != pays
