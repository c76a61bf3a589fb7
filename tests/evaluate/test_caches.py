"""Arrays kept in files come back as they were, to several threads at once."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from trtcal.evaluate.caches import SpillCache
from trtcal.evaluate.replay import Kept


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


def test_a_full_disk_ends_the_keeping_and_gets_back_what_it_took():
    kept, runs = Kept(room=0), []
    folder = Path(kept.spill.place.name)

    def run(feeds):
        runs.append(len(feeds["x"]))
        return {"y": feeds["x"] + 1}

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [8, 1 << 16, 8]
    for _ in range(2):
        outputs_of = kept.of(run, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
        try:
            outputs = [outputs_of({"x": np.zeros(size)})["y"] for size in sizes]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [(len(each), each.min()) for each in outputs] == [(size, 1.0) for size in sizes]
        assert not folder.exists()
    assert runs == 2 * sizes
