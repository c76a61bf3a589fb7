from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trtcal.calibration.job import SHARDS, count, joined, missing, shards
from trtcal.data.dataset import spans as split

samples = st.integers(1, 3000)
spans = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)).map(lambda x: (x[0], sum(x))))


def members(parts):
    return [sample for start, stop in parts for sample in range(start, stop)]


@given(samples, st.integers(1, 40))
def test_shards_hold_every_sample_once_and_in_order(number, unit):
    parts = shards(number, unit)
    assert members(parts) == list(range(number))
    assert len(parts) <= SHARDS
    assert all(start % unit == 0 for start, _ in parts)


@given(samples, st.integers(1, 40))
def test_batches_end_where_their_shard_does(number, size):
    for shard in shards(number):
        parts = list(split(size, *shard))
        assert members(parts) == members([shard])
        assert all(stop - start <= size for start, stop in parts)


@given(spans)
def test_joined_spans_hold_the_same_samples_apart(parts):
    result = joined(parts)
    assert members(result) == sorted(set(members(parts)))
    assert all(one[1] < other[0] for one, other in pairwise(result))
    assert count(result) == len(members(result))


@given(spans, samples)
def test_what_is_missing_is_what_is_wanted_and_not_done(done, number):
    wanted = shards(number)
    left = missing(wanted, joined(done))
    assert members(left) == sorted(set(members(wanted)) - set(members(done)))
    assert all(any(a <= start and stop <= b for a, b in wanted) for start, stop in left)
