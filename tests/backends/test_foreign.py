"""Q/DQ of other tools: what is computed here is what the Q/DQ say, in every form that ONNX allows."""

import numpy as np
import onnx
import onnxruntime

from tests.fixtures.examples import FACTOR
from tests.fixtures.foreign import Foreign
from tests.fixtures.slow import SLOW
from trtcal.backends.lowering import lower_with_reasons
from trtcal.backends.sessions import open_session, run_session

FEW = range(60)
MANY = range(60, 60 + int(340 * FACTOR))
ROUNDING_DB = 28.0  # another rounding of the values between two layers leaves this


def literal(proto, feeds):
    """Run Q/DQ as written: no graph optimization, every Q and DQ in float."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


def legal(graph):
    """Return what the Q/DQ of a graph say, None if ONNX's checker or ONNX Runtime refuses it."""
    try:
        onnx.checker.check_model(graph.proto, full_check=True)
        return literal(graph.proto, graph.feeds)
    except Exception:  # neither names its errors
        return None


def noise_db(expected, computed):
    expected, computed = expected.astype(np.float64), computed.astype(np.float64)
    return 10 * np.log10(
        np.square(expected).sum() / max(np.square(expected - computed).sum(), 1e-9)
    )


def check(seeds):
    """Hold each graph to what its Q/DQ say; return those that were held, and their reasons."""
    checked = {}
    for seed in seeds:
        graph = Foreign(seed)
        expected = legal(graph)
        if expected is None:
            continue
        lowered, checked[seed] = lower_with_reasons(graph.proto)
        computed = run_session(open_session(lowered, threads=1), None, graph.feeds)
        for name, before, after in zip(graph.outputs, expected, computed, strict=True):
            assert after.shape == before.shape, (seed, name)
            assert noise_db(before, after) > ROUNDING_DB, (seed, name)
        layers = {node.name for node in graph.proto.graph.node}
        assert graph.is_nested or layers >= {*checked[seed]}, seed
    return checked


def test_foreign_graphs_are_computed_as_their_qdq_say():
    checked = check(FEW)
    assert len(checked) > 0.9 * len(FEW)
    named = sum(map(bool, checked.values()))
    assert 0.1 * len(checked) < named < 0.6 * len(checked)  # the others go to integer kernels


@SLOW
def test_many_foreign_graphs_are_computed_as_their_qdq_say():
    assert len(check(MANY)) > 0.9 * len(MANY)
