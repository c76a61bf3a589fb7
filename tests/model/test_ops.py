"""The table of operators: its rows, what its traits promise, and that no other table repeats it."""

import ast
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import trtcal
from tests.fixtures.tables import each
from trtcal.backends.sessions import open_session, run_session
from trtcal.model import ops

PACKAGE = Path(trtcal.__file__).parent
KNOWN = {schema.name for schema in onnx.defs.get_all_schemas()}
OF_ONNX_RUNTIME = {"MatMulIntegerToFloat", "QGemm"}
MOST = 2  # operators that a collection elsewhere may name: more of them are a table
ALLOWED = {
    (
        "quantization",
        "RULES",
    ): "operator -> the function that reads its weight",
    ("ptq", "RULES"): "operator -> the function that joins its channels",
    ("model", "FORMULAS"): "operator -> the function that counts its multiply-accumulates",
    ("model", "_Counter"): "operator -> the method that counts the bodies that it holds",
    ("model", "NEUTRAL"): "operator -> its neutral element",
    ("backends", "KEPT"): "operators that name the type of their result",
    ("evidence", "BETWEEN"): "words of the pattern files, one is no operator",
}
"""By room and name."""


def named(node):
    """Return the operators that a collection or a call names itself."""
    items = {
        ast.Tuple: lambda: node.elts, ast.List: lambda: node.elts, ast.Set: lambda: node.elts,
        ast.Dict: lambda: node.keys, ast.Call: lambda: node.args,
    }.get(type(node), list)()  # fmt: skip
    return {one.value for one in items if isinstance(one, ast.Constant)} & KNOWN


def tables(source):
    """Yield the name to which each table of operators belongs, and the operators."""
    for statement in ast.parse(source).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
        name = getattr(targets[0], "id", getattr(targets[0], "name", "?"))
        for node in ast.walk(statement):
            found = named(node)
            if len(found) > MOST:
                yield name, found


def test_no_other_module_has_a_table_of_operators():
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "ops.py"]
    found = {
        (path.relative_to(PACKAGE).parts[0], name): operators
        for path in paths
        for name, operators in tables(path.read_text())
    }
    assert set(found) == set(ALLOWED), {
        place: found.get(place) for place in set(found) ^ set(ALLOWED)
    }


@each(
    "source",
    [
        'A = ("Relu", "Conv", "Add")',
        'def f(node):\n    return node.op in {"Relu", "Conv", "Add"}',
        'B = {"Relu": 1, "Conv": 2, "Add": 3}',
        'def f(node):\n    return is_op(node, "Relu", "Conv", "Add")',
    ],
)
def test_finds_a_table(source):
    assert list(tables(source))


def test_each_operator_has_one_row_and_only_known_traits():
    names = [name for name, *_ in ops.ROWS]
    rows = [names.split() for names in ops.TABLE]
    for row in (*rows, [first for first, *_ in rows]):
        assert sorted(row, key=str.lower) == row
    assert len(names) == len(set(names))
    assert set(names) - KNOWN - ops.UNMULTIPLIED - ops.ATTENDS == OF_ONNX_RUNTIME
    assert {trait for _, *traits in ops.ROWS for trait in traits} == set(ops.TRAITS)


def run(op, *arrays, **attributes):
    inputs = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in enumerate(arrays)
    ]
    node = helper.make_node(op, [value.name for value in inputs], ["y"], **attributes)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    feeds = {value.name: array for value, array in zip(inputs, arrays, strict=True)}
    proto.ir_version = 8
    return run_session(open_session(proto), None, feeds)[0]


IMAGES = np.random.default_rng(0).normal(0, 3, (2, 3, 4, 4)).astype(np.float32)
MORE = {
    "Expand": [np.array([2, 3, 4, 4])],
    "Gather": [np.array([1])],
    "GatherElements": [np.zeros((1, 1, 1, 1), np.int64)],
    "GatherND": [np.array([[0, 1]])],
    **{op: [np.array([2, 3])] for op in ("ReduceMax", "ReduceMean", "ReduceMin")},
    "Reshape": [np.array([6, 16])],
    "Slice": [np.array([1]), np.array([2])],
    "Split": [np.array([2])],
    "Squeeze": [],
    "Tile": [np.array([1, 2, 1, 1])],
    "Unsqueeze": [np.array([0])],
}
OPTIONS = {
    "AveragePool": {"kernel_shape": [2, 2]},
    "DepthToSpace": {"blocksize": 1},
    "MaxPool": {"kernel_shape": [2, 2]},
    "SpaceToDepth": {"blocksize": 2},
}


def of_images(op, images=IMAGES):
    """Return what an operator makes of images, with what else it has to be given."""
    return run(op, images, *MORE.get(op, []), **OPTIONS.get(op, {}))


@each("op", sorted(ops.SHIFTS))
def test_a_shift_goes_through(op):
    expected = of_images(op) + 2
    np.testing.assert_allclose(of_images(op, IMAGES + 2), expected, rtol=1e-5, atol=1e-5)


@each("op", sorted(ops.SCALES))
def test_a_factor_goes_through(op):
    np.testing.assert_allclose(of_images(op, 2 * IMAGES), 2 * of_images(op), rtol=1e-5)


@each("op", sorted(ops.MOVES))
def test_moving_operators_keep_every_value(op):
    assert sorted(of_images(op).flat) == sorted(IMAGES.flat)
