"""Arrays kept in files come back as they were, to several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trtcal.evaluate.caches import SpillCache


@pytest.fixture
def spill():
    made = SpillCache()
    yield made
    made.close()


def test_what_is_kept_comes_back_as_it_was(spill):
    kept = {
        "../../x": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        "fp16": np.float16([[1.5, np.inf]]),
        "yes": np.array([True, False]),
        "none": np.zeros((0, 5), np.int64),
        "one": np.array(7, np.int8),
    }
    spill.keep("float", 3, kept)
    got = spill.get("float", 3)
    assert list(got) == list(kept)
    for name, array in kept.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_what_is_kept_again_takes_the_place_of_what_was(spill):
    spill.keep("float", 0, {"a": np.ones(9)})
    spill.keep("float", 0, {"b": np.zeros(2)})
    assert list(spill.get("float", 0)) == ["b"]


def test_threads_read_at_once(spill):
    for number in range(8):
        spill.keep("float", number, {"a": np.full((4, 4), number)})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: spill.get("float", number % 8), range(2000)))
    assert [array["a"][0, 0] for array in found] == [number % 8 for number in range(2000)]
