"""The work of what reads a whole graph grows with its nodes, counted in calls, not in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.made_networks import deep
from trtcal.evidence.layers.predicted import predict_layers
from trtcal.model import Model, load_model
from trtcal.quantization.coverage import asked_coverage
from trtcal.quantization.placement import find_layers
from trtcal.quantization.plan import Plan, resolve

NODES = 200


def calls(function: Callable[[], object]) -> int:
    """Count the calls of Python and of C that a function makes."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(predict_layers, id="layers"),
        pytest.param(lambda model: resolve(Plan(), model), id="plan"),
        pytest.param(find_layers, id="quantize"),
        pytest.param(asked_coverage, id="coverage"),
    ],
)
def test_twice_the_nodes_are_at_most_twice_the_work(work: Callable[[Model], object]) -> None:
    small, large = (load_model(deep(nodes)) for nodes in (NODES, 2 * NODES))
    work(load_model(deep(10)))  # tables that are read once
    assert calls(lambda: work(large)) <= 2.2 * calls(lambda: work(small))
