"""Chains of checkpoints held against each other, and the graphs beside them."""

import dataclasses

import numpy as np
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.zoo import ZOO
from trtcal.documents import write_npz
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.passes import PASSES, Pass, prepare_with_record
from trtcal.runs.verify import verify
from trtcal.wings.forensics.chain import Checkpoint, read_chain
from trtcal.wings.forensics.checkpoint_diff import compare_chains, merged
from trtcal.wings.forensics.checkpoints import (
    GRAPHS,
    PREVIOUS,
    Checkpoints,
    GraphTables,
    checkpoints_of,
    keep_previous,
    write_checkpoints,
)


def rename(graph):
    graph.nodes[-1].name += "/renamed"
    return 1


def nothing(graph):
    return 0


def own(name, apply, version="1"):
    return Pass(name, "", apply, version=version)


@pytest.fixture
def written(tmp_path):
    """Return a function that prepares a network by passes of one's own and writes the checkpoints."""

    def write(folder, *passes, net="residual"):
        model = load_model(ZOO[net].make().proto())
        graphs = GraphTables()
        prepared = prepare_with_record(model, passes=(*PASSES, *passes), see=graphs.see)
        chain = checkpoints_of(prepared, graphs.tables)
        write_checkpoints(tmp_path / folder, chain, graphs.tables)
        return Checkpoints.read(tmp_path / folder)

    return write


def test_the_chain_of_passes_links_each_graph_to_the_next(written):
    found = written("one", own("rename", rename))
    assert len(found.chain) == len(PASSES) + 1
    for one, following in zip(found.chain, found.chain[1:], strict=False):
        assert one.after == following.before
    assert {one.after for one in found.chain} <= set(found.graphs)
    asked = [one.options for one in found.chain]
    assert len(set(asked)) == 2  # those that run, and those on request


def test_repeats_without_a_change_raise_no_alert(written):
    first = written("first", own("rename", rename))
    for number in range(5):
        found = compare_chains(first, written(f"again{number}", own("rename", rename)))
        assert found.first is None
        assert not found.same_output


def test_a_pass_that_gives_another_output_is_the_first_delta_with_what_it_changed(written):
    before = written("before", own("own", nothing), own("last", nothing))
    after = written("after", own("own", rename), own("last", nothing))
    found = compare_chains(before, after)
    assert found.first.checkpoint.name == "own"
    assert found.first.number == len(PASSES) + 1
    assert found.first.is_unexplained
    assert found.first.graph.change == "renamed"
    assert [one.checkpoint.name for one in found.deltas] == ["own", "last"]
    assert found.deltas[1].changed == ("input",)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("version", "version"),
        ("options", "options"),
        ("tool", "tool"),
        ("tool_version", "tool version"),
    ],
)
def test_the_component_of_the_key_that_changed_is_named(written, field, words):
    before = written("before")
    chain = list(before.chain)
    chain[3] = dataclasses.replace(chain[3], **{field: "other"})
    same = compare_chains(before, dataclasses.replace(before, chain=tuple(chain)))
    assert same.first is None
    assert same.same_output[0].changed == (words,)
    chain[3] = dataclasses.replace(chain[3], after="sha256:other")
    found = compare_chains(before, dataclasses.replace(before, chain=tuple(chain)))
    assert found.first.changed == (words,)
    assert f"its {words}" in str(found.first)


def test_another_model_is_another_input_of_the_first_pass(written):
    found = compare_chains(written("one"), written("other", net="three_added"))
    assert (found.first.number, found.first.changed) == (1, ("input",))
    assert found.first.graph is not None
    assert "has a different input" in str(found.first)


def test_a_pass_that_only_one_chain_has_counts_if_it_changes_something(written):
    plain = written("plain")
    assert compare_chains(plain, written("idle", own("own", nothing))).first is None
    changed = written("changed", own("own", rename))
    for pair, side in (((plain, changed), "new"), ((changed, plain), "removed")):
        found = compare_chains(*pair).first
        assert found.checkpoint.name == "own"
        assert side in str(found)


def test_a_stage_with_another_output_is_named_with_its_subject():
    def chain(after):
        return Checkpoints(
            None, (Checkpoint("build", "layers", "a", after, subject="net for sm89"),)
        )

    found = compare_chains(chain("b"), chain("c")).first
    assert str(found).startswith("build 'layers' of net for sm89 (number 1) has a different output")


def test_an_engine_of_another_identity_is_no_delta():
    one, other = (
        Checkpoints(None, (Checkpoint("build", "layers", "a", "b", artifact=engine),))
        for engine in ("sha256:1", "sha256:2")
    )
    assert compare_chains(one, other).first is None


def test_graphs_that_were_changed_are_refused(written, tmp_path):
    found = written("one")
    empty = [(name.partition(":")[2], np.frombuffer(b"{}", np.uint8)) for name in found.graphs]
    for tables in (empty, [("a", np.zeros(3))]):
        write_npz(tmp_path / "one" / GRAPHS, tables)
        with fails(InputError, GRAPHS):
            len(Checkpoints.read(tmp_path / "one").graphs)


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with fails(InputError, "checkpoints.jsonl", hint="trtcal run"):
        Checkpoints.read(tmp_path)


def test_the_checkpoints_of_a_run_that_is_replaced_are_kept(written, tmp_path):
    found = written("one")
    keep_previous(tmp_path / "one", tmp_path / "place")
    kept = Checkpoints.read(tmp_path / "place" / PREVIOUS)
    assert kept.chain == found.chain
    assert dict(kept.graphs) == dict(found.graphs)
    keep_previous(tmp_path / "none", tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_what_is_in_either_list_comes_in_the_order_of_the_second():
    assert list(merged("abcd", "adxc")) == list("abdxc")
    assert list(merged("ab", "")) == list("ab")
    assert list(merged("", "ab")) == list("ab")
    assert list(merged("xab", "ba")) == list("xba")


def test_verify_checks_a_chain_and_its_graphs_without_a_run(written, tmp_path):
    written("one")
    assert [check.holds for check in verify(tmp_path / "one")] == [True, True, True]
    (tmp_path / "one" / GRAPHS).write_bytes(b"PK")
    checks = verify(tmp_path / "one")
    assert [check.holds for check in checks] == [False, True, True]
    assert GRAPHS in checks[0].problem


def test_a_chain_on_disk_reads_as_in_memory(written, tmp_path):
    found = written("one")
    assert read_chain(tmp_path / "one" / "checkpoints.jsonl") == found.chain
