"""What breaks a pattern is taken out, and nothing else."""

import pytest

from tests.evidence.fusion.graphs import GRAPHS, STORIES
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.data.feeds import draw_batches
from trtcal.errors import GateFailed, InputError
from trtcal.evaluate.equality import check_equal
from trtcal.evidence.fusion.fusions import check_fusions, fix_fusions

ROUNDING = ("conv_casts_relu", "conv_pair_relu", "story_layer_norm")
EXACT = (
    "attention_dropout",
    "conv_bn_identity_leaky",
    "conv_dropout_relu",
    "conv_identity_bn_identity_relu",
    "conv_transposes_relu",
    "half_conv_casts_relu",
    "layer_norm_identity_leaky",
    "matmul_dropout_add_relu",
    "matmul_identity_gelu",
    "residual_identity",
    "story_batch_norm",
)
WHATEVER = ("rounding-casts", "inner-pairs")


def names(model):
    return {node.name for node in model.proto.graph.node}


def fixed(name, folder, add=()):
    given = GRAPHS[name].save(folder)
    return given, fix_fusions(given, check_fusions(given), add)


@each("name", EXACT)
def test_what_changes_no_value_goes_and_the_outputs_stay(name, tmp_path):
    given, made = fixed(name, tmp_path)
    (answer,) = GRAPHS[name].answers
    assert names(given) - names(made.model) == answer.breakers
    assert [one.state for one in check_fusions(made.model).matches] == ["whole"]
    assert check_equal(given, made.model, draw_batches(given, 4)).holds
    assert made.step is None


@pytest.mark.parametrize("name", ROUNDING)
def test_what_changes_values_goes_on_request_only(name, tmp_path):
    with fails(GateFailed, hint="--add"):
        fixed(name, tmp_path)
    given, made = fixed(name, tmp_path, WHATEVER)
    (answer,) = GRAPHS[name].answers
    assert names(given) - names(made.model) == answer.breakers
    assert [one.state for one in check_fusions(made.model).matches] == ["whole"]
    assert made.step is None or made.step == pytest.approx(0.05)


def test_every_graph_that_can_be_fixed_is_in_the_lists(tmp_path):
    fixable = set()
    for name, graph in GRAPHS.items():
        found = check_fusions(graph.save(tmp_path))
        if any(part.fix for one in found.broken for part in one.breakers):
            fixable.add(name)
    assert fixable == {*EXACT, *ROUNDING}
    assert fixable >= set(STORIES)


@pytest.mark.parametrize("name", ["conv_read_twice", "conv_is_output", "half_conv_wide_relu"])
def test_what_no_pass_fixes_is_said(name, tmp_path):
    with fails(GateFailed, hint="no pass"):
        fixed(name, tmp_path, WHATEVER)


def test_a_whole_graph_has_nothing_to_fix(tmp_path):
    with fails(GateFailed, hint="no pattern"):
        fixed("conv_relu", tmp_path)


def test_the_pairs_around_stay(tmp_path):
    _, made = fixed("story_layer_norm", tmp_path, WHATEVER)
    assert {"beforeq", "befored", "afterq", "afterd"} <= names(made.model)


def test_only_passes_that_change_values_are_asked_for_by_name(tmp_path):
    with fails(InputError, "identities", "--add"):
        fixed("story_batch_norm", tmp_path, ["identities"])
