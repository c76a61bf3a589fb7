"""What two runs differ in is searched for the one thing that breaks a limit."""

import dataclasses
import math

import pytest

from tests.conftest import SAMPLES
from tests.fixtures.fails import fails
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.registry import BACKENDS
from trtcal.config import parse_config
from trtcal.errors import InputError
from trtcal.limits import parse_limit
from trtcal.wings.forensics.bisect import _search, bisect

DIGITS = SAMPLES / "digits"
RTX = BACKENDS["tensorrt-rtx"].availability()
BASE = """
model = "digits.onnx"
[calibration]
data = "{data}"
methods = ["{method}"]
{parameters}
[evaluation]
data = "test.npz"
[build]
targets = ["cpu"]
"""


def config(data="calibration.npz", method="minmax", parameters="", more=""):
    text = BASE.format(data=data, method=method, parameters=parameters) + more
    return parse_config(text, DIGITS / "trtcal.toml")


PLAN = """
[plans.mixed]
default = "{default}"
layers = {{ {layers} }}
"""
LAYERS = ("stem/conv", "block1/conv1", "block1/conv2", "widen/conv", "wide/conv", "head/gemm")


def planned(*floats, default="int8"):
    layers = ", ".join(f'"{name}" = "{"fp32" if name in floats else "int8"}"' for name in LAYERS)
    return config(more=PLAN.format(default=default, layers=layers))


@each("count", [1, 2, 3, 7, 28, 40, 64, 100])
def test_the_search_takes_at_most_the_logarithm_of_steps(count):
    for cause in range(1, count + 1):
        asked = []

        def holds(taken, cause=cause, asked=asked):
            asked.append(taken)
            return taken >= cause

        assert _search(count, holds) == (cause, len(asked))
        assert len(asked) <= math.ceil(math.log2(count)) if count > 1 else not asked


def test_data_that_break_a_limit_are_found_with_the_range_that_they_moved():
    lines = []
    found = bisect(config(), config("glitch.npz"), parse_limit("top1 >= -1.0"), say=lines.append)
    assert (found.stage, found.subsystem, found.name) == ("calibrate", "data", "calibration.data")
    assert found.variant == "int8-minmax"
    assert found.candidates == 1
    assert "range of tensor 'image'" in found.within
    assert any("with ranges 1 to" in line for line in lines)


@SLOW
def test_an_option_that_breaks_a_limit_is_found():
    parameters = "[calibration.parameters.percentile]\npercentile = {}\n"
    good, bad = (config("glitch.npz", "percentile", parameters.format(p)) for p in (99.99, 60.0))
    good = dataclasses.replace(good, task="classification")
    found = bisect(good, bad, parse_limit("top1 >= -1.0"))
    assert found.subsystem == "option"
    assert found.name == "calibration.parameters.percentile.percentile"
    assert "99.99 -> 60.0" in found.debug_info
    assert found.candidates == 2


@SLOW
def test_the_entry_of_a_plan_that_breaks_a_limit_is_found():
    floats = LAYERS[:5]
    good, bad = planned(*floats), planned("head/gemm")
    figures = bisect_values(good, bad)
    limit = parse_limit(f"mixed: relative_error <= {sum(figures) / 2:.6f}")
    found = bisect(good, bad, limit)
    assert (found.stage, found.subsystem, found.variant) == ("quantize", "plan", "mixed")
    assert found.name.startswith("plans.mixed.layers.")
    assert found.candidates == len(LAYERS)
    assert found.steps <= math.ceil(math.log2(len(LAYERS)))
    assert found.executions <= found.steps + 2


def bisect_values(good, bad):
    """Return the relative errors of both ends, as the errors of a bisection that cannot be say them."""
    shown = []
    with pytest.raises(InputError):
        bisect(good, bad, parse_limit("mixed: relative_error <= 0.0"), say=shown.append)
    parts = shown[0].split("relative_error ")[1:]
    return [float(part.split(",")[0].split(";")[0].split()[0]) for part in parts]


def test_runs_that_do_not_differ_or_ends_that_are_no_ends_are_refused():
    for good, bad, limit, name in (
        (config(), config(), "top1 >= -1.0", "inputs"),
        (planned("stem/conv"), planned("head/gemm"), "top1 >= -50.0", "bad run"),
        (config("glitch.npz"), config(), "top1 >= -1.0", "good run"),
        (config(), config("glitch.npz"), "fp16: top1 >= -1.0", "fp16"),
    ):
        with fails(InputError, name):
            bisect(good, bad, parse_limit(limit))


@SLOW
@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
def test_a_limit_on_builds_builds_each_mix():
    good, bad = (
        dataclasses.replace(one, build=dataclasses.replace(one.build, targets=("sm89",)))
        for one in (planned(), planned("wide/conv", default="fp32"))
    )
    found = bisect(good, bad, parse_limit("mixed: int8_macs >= 80%"))
    assert found.subsystem == "plan"
    assert found.name in ("plans.mixed.default", "plans.mixed.layers.wide/conv")
    assert found.candidates == 2
    assert "int8_macs" in found.good
