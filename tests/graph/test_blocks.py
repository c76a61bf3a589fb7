"""Blocks of networks: scopes, segments, rows of equal ones, and the limits that hold for any graph."""

from collections import Counter

import onnx
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tables import each
from trtcal.wings.graph.blocks import MOST_CHILDREN, NAME_SCOPES, Block, Wiring, fold, scopes_of

LAYER = ("MatMul", "Softmax", "MatMul", "Add", "MatMul", "Relu", "MatMul", "Add")


def chain(operators, scopes=None, skips=()):
    """Return nodes of which each reads the one before; `skips` are further (from, to)."""
    count = len(operators)
    sources = [[at - 1] if at else [] for at in range(count)]
    for start, end in skips:
        sources[end].append(start)
    names = [f"{operator}_{at}" for at, operator in enumerate(operators)]
    return Wiring(names, operators, scopes or [[]] * count, sources)


def blocks_in(block):
    inner = [child for child in block.children if isinstance(child, Block)]
    return [block, *(each for child in inner for each in blocks_in(child))]


def titles(block):
    return [child.title if isinstance(child, Block) else child for child in block.children]


def check_limits(wiring):
    """Assert what holds of every folded network, and return its top."""
    top = fold(wiring)
    blocks = blocks_in(top)
    assert sorted(top.nodes()) == list(range(len(wiring.names)))
    assert all(len(block.children) <= MOST_CHILDREN for block in blocks)
    assert all(len(block.children) > 1 for block in blocks[1:])
    numbered = [*top.flat()]
    assert len(numbered) == len(blocks) - 1
    assert all(parent < number for number, (_, parent) in enumerate(numbered))
    return top


@each(
    "name, scopes",
    [
        ("/layer1/layer1.0/conv1/Conv", ["layer1", "layer1.0", "conv1"]),
        ("net/block_2/Conv2D", ["net", "block_2"]),
        ("layers.0.mlp/Gemm", ["layers", "layers.0", "layers.0.mlp"]),
        ("/encoder/0/Conv", ["encoder", "encoder.0"]),
        ("a/Relu;a/BiasAdd", ["a"]),
        ("Conv_123", []),
        ("", []),
    ],
)
def test_scopes_are_read_as_exporters_write_them(name, scopes):
    assert scopes_of(onnx.NodeProto(name=name)) == scopes


def test_scopes_of_torch_export_are_in_metadata():
    node = onnx.NodeProto(name="node_conv2d_7")
    node.metadata_props.add(key=NAME_SCOPES, value="['', 'layer1', 'layer1.0', 'conv2d_7']")
    assert scopes_of(node) == ["layer1", "layer1.0"]


def test_equal_layers_are_one_block_with_their_number():
    scopes = [["model", f"layer.{number}"] for number in range(12) for _ in LAYER]
    top = check_limits(chain(LAYER * 12 + ("Gemm",), [*scopes, []]))
    row = top.children[0]
    assert (row.title, row.repeat, titles(row)[:2]) == ("layer.0 to 11", 12, ["layer.0", "layer.1"])


def test_another_layer_ends_a_row():
    kinds = [*[LAYER] * 3, (*LAYER, "Gelu"), *[LAYER] * 2]
    operators = [operator for kind in kinds for operator in kind]
    scopes = [[f"layer.{number}"] for number, kind in enumerate(kinds) for _ in kind]
    top = check_limits(chain(operators, scopes))
    assert titles(top) == ["layer.0 to 2", "layer.3", "layer.4 to 5"]


def test_equal_operators_with_other_wires_are_no_row():
    operators = ("Conv", "Relu", "Conv", "Add") * 2 + ("Gemm",)
    scopes = [*[["a"]] * 4, *[["b"]] * 4, []]
    assert titles(check_limits(chain(operators, scopes, [(0, 3), (5, 7)]))) == ["a", "b", 8]
    assert titles(check_limits(chain(operators, scopes, [(0, 3), (4, 7)]))) == ["a to b", 8]


def test_a_flat_network_is_cut_where_all_goes_through_one_tensor():
    count = 20
    skips = [
        (8 * number + place, 8 * number + place + 3) for number in range(count) for place in (0, 4)
    ]
    top = check_limits(chain(LAYER * count, skips=skips))
    rows = [block for block in blocks_in(top) if block.repeat == count]
    assert [len([*row.nodes()]) for row in rows] == [8 * count]


def test_what_is_called_in_two_places_is_no_block():
    scopes = [["a"], ["shared"], ["b"], ["shared"], ["c"]]
    top = check_limits(chain(("Conv", "Relu", "Conv", "Relu", "Conv"), scopes))
    assert titles(top) == [0, 1, 2, 3, 4]


@each("operators", [("Relu",) * 5000, [f"Op{number}" for number in range(5000)], LAYER * 625])
def test_5000_nodes_without_scopes_fold(operators):
    check_limits(chain(operators))


def test_scopes_of_any_depth_fold():
    node = onnx.NodeProto(name="a/" * 50_000 + "Conv")
    check_limits(chain(("Conv", "Relu"), [scopes_of(node)] * 2))


@given(st.data())
def test_any_network_folds(data):
    count = data.draw(st.integers(1, 200))
    words = st.sampled_from(("a", "b", "a.0", "a.1", "c"))
    scopes = data.draw(st.lists(st.lists(words, max_size=3), min_size=count, max_size=count))
    sources = [
        data.draw(st.lists(st.integers(0, at - 1), max_size=2)) if at else [] for at in range(count)
    ]
    operators = data.draw(st.lists(st.sampled_from("XY"), min_size=count, max_size=count))
    check_limits(Wiring([str(at) for at in range(count)], operators, scopes, sources))
    assert Counter(operators).total() == count
