"""Models in memory, prepared by some passes, and run beside what they were made from."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtcal.backends.sessions import open_session, run_session
from trtcal.model import Model, checked, name_nodes
from trtcal.model.passes import PASSES, prepare_with_record

FLOAT = TensorProto.FLOAT
ALL = [one.name for one in PASSES]


def info(name, shape=None, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def branch(name, nodes, result):
    return helper.make_graph(nodes, name, [], [info(result)])


def make(nodes, weights, inputs, outputs, opset=17, ir_version=8, domains=(), functions=()):
    """Return a checked model; `inputs` and `outputs` are name -> shape of float32 tensors."""
    initializers = [
        one if isinstance(one, TensorProto) else numpy_helper.from_array(np.asarray(one), name)
        for name, one in weights.items()
    ]
    values = ([info(*item) for item in side.items()] for side in (inputs, outputs))
    graph = helper.make_graph(nodes, "test", *values, initializers)
    opsets = [helper.make_opsetid(*item) for item in [("", opset), *((one, 1) for one in domains)]]
    proto = helper.make_model(
        graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions)
    )
    return checked(Model(Path("net.onnx"), proto, "sha256:0"))


def alone(name):
    """Return what to skip so that of the passes that run by themselves only one does."""
    return [one for one in ALL if one != name]


def ops(prepared):
    return [node.op_type for node in prepared.model.proto.graph.node]


def changes(prepared):
    return {record.name: record.changes for record in prepared.records if record.changes}


def values(proto, feeds, names):
    """Run a model as it stands, without ONNX Runtime's own folding, and return tensors by name."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    name_nodes(shown)  # ONNX Runtime refuses models with repeated names
    there = {value.name for value in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=one) for one in names if one not in there)
    session = open_session(shown, as_it_is=True)
    wanted = [*there, *(name for name in names if name not in there)]
    return dict(zip(wanted, run_session(session, wanted, feeds), strict=True))


def made(proto):
    return {name for node in proto.graph.node for name in node.output if name}


def prepared_alike(model, feeds, tolerance=1e-5, **options):
    """Prepare a model; every tensor that both have under one name has the same values in both."""
    prepared = prepare_with_record(model, **options)
    proto = prepared.model.proto
    common = sorted(made(model.proto) & made(proto))
    before, after = (values(one, feeds, common) for one in (model.proto, proto))
    for name, wanted in before.items():
        found = after[name]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype.kind == "f":
            scale = max(
                float(
                    np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max(
                        initial=0
                    )
                ),
                1e-6,
            )
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=name)
    again = prepare_with_record(prepared.model, **options)
    assert again.records[-1].after == prepared.records[-1].after
    return prepared
