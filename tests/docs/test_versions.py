"""The page of versions is what data and results say."""

import importlib.util

import pytest

from tests.docs.versions import PAGE, facts, page, rtx_targets


def test_the_page_is_what_the_data_give_today():
    assert PAGE.read_text() == page(), "python -m tests.docs.versions --write"


def test_the_page_says_the_two_facts_that_people_miss():
    text = " ".join(PAGE.read_text().split())
    assert "An engine of TensorRT-RTX is not an engine of TensorRT" in text
    assert "TensorRT-RTX covers neither H100 and H200 (sm90) nor Orin (sm87)" in text
    assert not {"sm87", "sm90"} & {*rtx_targets()}


@pytest.mark.skipif(not importlib.util.find_spec("tensorrt_rtx"), reason="needs TensorRT-RTX")
def test_the_targets_are_those_of_the_package():
    import tensorrt_rtx

    names = tensorrt_rtx.ComputeCapability.__members__
    assert {name.lower() for name in names if name.startswith("SM")} == {*rtx_targets()}
    assert tensorrt_rtx.__version__ in facts()["rtx"]
