from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trtcal.model.tensors import groups

NEEDED = st.dictionaries(
    st.sampled_from("TUVW"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8), min_size=1
)


def test_what_is_only_summed_together_is_counted_together():
    into, made = groups({"T": "abc", "U": "cd", "c": "c"})
    assert into == {"a": "a", "b": "a", "c": "c", "d": "d"}
    assert made == {"T": ["a", "c"], "U": ["c", "d"], "c": ["c"]}


def test_what_is_kept_separate_has_a_histogram_of_its_own():
    into, made = groups({"T": "abc"}, separate="b")
    assert into == {"a": "a", "b": "b", "c": "a"}
    assert made == {"T": ["a", "b"]}


@given(NEEDED, st.sets(st.sampled_from("abcdef")))
def test_the_sums_stay_the_same(needed, separate):
    into, made = groups(needed, separate)
    members = {name: [part for part in into if into[part] == name] for name in into.values()}
    for tensor, parts in needed.items():
        assert Counter(part for name in made[tensor] for part in members[name]) == Counter(parts)
