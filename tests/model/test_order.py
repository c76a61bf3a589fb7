"""Nodes are sorted as onnx-graphsurgeon sorts them, in a tenth of its time."""

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx_graphsurgeon.util.exception import OnnxGraphSurgeonException

from tests.fixtures.tables import each
from trtcal.model.graph import in_order


def network(seed, cycle=False):
    """Return a graph of random nodes, each reading up to three others, in a random order."""
    rng = np.random.default_rng(seed)
    tensors, nodes = [gs.Variable("x", np.float32)], list[gs.Node]()
    for number in range(40):
        reads = [tensors[i] for i in rng.integers(0, len(tensors), rng.integers(1, 4))]
        tensors.append(gs.Variable(f"t{number}", np.float32))
        nodes.append(gs.Node("Sum", f"n{number}", inputs=reads, outputs=tensors[-1:]))
    if cycle:
        nodes[0].inputs.append(tensors[-1])
        nodes[-1].inputs.append(tensors[1])
    order = rng.permutation(40)
    return gs.Graph([nodes[i] for i in order], tensors[:1], tensors[-1:], opset=17)


@each("seed", range(8))
def test_nodes_in_any_order_are_sorted_as_graphsurgeon_does(seed, monkeypatch):
    expected = [node.name for node in network(seed).toposort(mode="nodes").nodes]
    graph = network(seed)
    assert [node.name for node in graph.nodes] != expected
    with monkeypatch.context() as patch:
        patch.setattr(gs.Graph, "toposort", lambda *_, **__: pytest.fail("it is called"))
        assert [node.name for node in in_order(in_order(graph)).nodes] == expected


def test_a_cycle_is_an_error_as_it_is_there():
    with pytest.raises(OnnxGraphSurgeonException, match="Cycle"):
        in_order(network(0, cycle=True))
