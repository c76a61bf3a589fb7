"""The prediction, against graphs with known answers."""

import pytest

from tests.fusion.graphs import GRAPHS, Answer
from trtcal.fusion import check_fusions


def predicted(model, patterns=None):
    found = check_fusions(model, patterns).matches
    return {
        Answer(
            match.pattern,
            frozenset(match.nodes),
            frozenset(name for one in match.breakers for name in one.nodes),
        )
        for match in found
    }


def test_there_are_forty_graphs_with_answers():
    assert len(GRAPHS) >= 40


@pytest.mark.parametrize("name", GRAPHS)
def test_every_pattern_is_found_and_nothing_else(name, tmp_path):
    """Precision and recall are 1.0 on every graph: the sets are equal, breaking nodes included."""
    assert predicted(GRAPHS[name].save(tmp_path)) == set(GRAPHS[name].answers)
