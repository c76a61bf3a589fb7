import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trtcal.evaluate.groups import WORST_KEPT, Worst
from trtcal.evaluate.per_sample import compare_rows


@given(st.integers(0, 1000), st.integers(1, 20), st.integers(0, 60))
def test_the_worst_are_those_of_a_full_sort_whatever_the_batches(seed, split, count):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((count + 20, 4))
    variant = reference + rng.integers(0, 3, (count + 20, 1))  # with ties
    worst, start = Worst([f"{i}.png" for i in range(count + 20)]), 0
    pieces = (np.array_split(one, split) for one in (reference, variant))
    for a, b in zip(*pieces, strict=True):
        if len(a):
            worst.add(start + np.arange(len(a)), compare_rows([a], [b]), ([a], [b]), None)
        start += len(a)
    errors = np.round(np.linalg.norm(reference - variant, axis=1), 9)
    wanted = sorted(np.flatnonzero(errors), key=lambda i: (-errors[i], i))[:WORST_KEPT]
    found = worst.result()
    assert {round(one.l2, 4) for one in found} == {round(errors[i], 4) for i in wanted}
    assert len(found) == len(wanted)
    assert all(one.name == f"{one.index}.png" for one in found)


def test_classes_and_labels_are_reported():
    reference, variant = np.eye(3), np.roll(np.eye(3), 1, 1)
    worst = Worst(None)
    found = compare_rows([reference], [variant])
    worst.add(np.arange(5, 8), found, ([reference], [variant]), np.array([0, 1, 1]))
    first = worst.result()[0]
    assert (first.index, first.name, first.label) == (5, None, 0)
    assert (first.reference, first.variant) == (0, 1)
