"""Multiply-accumulates, counted by hand beside what the reader says."""

import json

import pytest

from tests.fixtures.tables import each
from trtcal.documents import from_fields
from trtcal.evidence.layers.inspector import read_inspector
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.roofline import count_operands


def shape(*sizes):
    return TensorInfo("t", "int8", sizes)


def read(first, output, **fields):
    entry = {
        "Name": "c",
        "LayerType": "CaskConvolution",
        "Inputs": [{"Name": "x", "Dimensions": first, "Format/Datatype": "Row major Int8 format"}],
        "Outputs": [
            {"Name": "y", "Dimensions": output, "Format/Datatype": "Row major Int8 format"}
        ],
        "ParameterType": "Convolution",
        **fields,
    }
    return read_inspector(json.dumps({"Layers": [entry]}))[0]


PLAIN = {"Kernel": [3, 3], "OutMaps": 16, "Groups": 1}
WINDOW = {"PrePadding": [1, 1], "PostPadding": [1, 1], "Stride": [2, 2], "Dilation": [1, 1]}


def test_a_convolution_by_its_parameters():
    layer = read([2, 8, 10, 10], [2, 16, 5, 5], **PLAIN, **WINDOW)
    assert layer.macs == 2 * 16 * 5 * 5 * 8 * 9


def test_stored_weights_are_counted_and_weighed():
    stored = {
        "Weights": {"Type": "Int8", "Count": 16 * 4 * 9},
        "Bias": {"Type": "Float", "Count": 16},
    }
    layer = read([2, 8, 10, 10], [2, 16, 5, 5], **{**PLAIN, "Groups": 2}, **WINDOW, **stored)
    assert layer.macs == 2 * 16 * 5 * 5 * 4 * 9
    assert layer.weight_bytes == 16 * 4 * 9 + 16 * 4
    assert layer.bytes_read == 2 * 8 * 100 + layer.weight_bytes
    assert layer.bytes_written == 2 * 16 * 25
    assert layer.bytes_moved == layer.bytes_read + layer.bytes_written


def test_a_pooling_fused_behind_does_not_hide_the_convolution():
    fused = {f"Conv{key}": value for key, value in {**PLAIN, **WINDOW}.items()}
    weights = {"ConvWeights": {"Type": "Int8", "Count": 16 * 8 * 9}}
    layer = read([2, 8, 20, 20], [2, 16, 5, 5], ParameterType="ConvActPool", **fused, **weights)
    assert layer.macs == 2 * 16 * 10 * 10 * 8 * 9
    assert layer.weights == "int8"


def test_a_transposed_convolution_multiplies_every_input():
    fields = {
        **PLAIN,
        "ParameterType": "Deconvolution",
        "Weights": {"Type": "Int8", "Count": 8 * 16 * 9},
    }
    assert read([2, 8, 10, 10], [2, 16, 21, 21], **fields).macs == 2 * 100 * 8 * 16 * 9


@each(
    "fields",
    [
        {},
        {"Kernel": [3], "OutMaps": 16},
        {"Kernel": "3x3", "OutMaps": 16},
        {"Kernel": [3, 3], "OutMaps": None},
        {"Kernel": [3, 3], "OutMaps": 16, "Groups": 0},
        {"Kernel": [3, 3], "OutMaps": 10**90, "Groups": 1},
        {"Kernel": [3, 3], "ParameterType": "Pooling", "OutMaps": 3},
    ],
)
def test_what_is_unknown_is_none(fields):
    assert read([2, 8, 10, 10], [2, 16, 5, 5], **fields).macs is None


@each(
    "kind, operands, output, macs",
    [
        ("correlation", [(1, 8, 6, 6), (16, 8, 3, 3)], (1, 16, 6, 6), 16 * 36 * 8 * 9),
        ("correlation", [(-1, 8, 6, 6), (8, 1, 3, 3)], (-1, 8, 6, 6), 8 * 36 * 9),
        ("deconv", [(1, 8, 6, 6), (8, 16, 2, 2)], (1, 16, 12, 12), 8 * 36 * 16 * 4),
        ("gemm", [(5, 7), (7, 3)], (5, 3), 5 * 7 * 3),
        ("gemm", [(2, 4, 5, 7), (2, 4, 7, 3)], (2, 4, 5, 3), 8 * 5 * 7 * 3),
        ("gemm", [(5, 7), (3, 7)], (5, 3), None),
        ("gemm", [(5, 7)], (5, 3), None),
        ("kgen", [(5, 7), (7, 3)], (5, 3), None),
        ("correlation", [(1 << 40, 1 << 40), (1, 1)], (1 << 40, 1 << 40), None),
    ],
)
def test_listed_operands_are_counted(kind, operands, output, macs):
    tensors = [shape(*sizes) for sizes in operands]
    assert count_operands(kind, tensors[:1], [shape(3), *tensors[1:]], [shape(*output)]) == macs


def test_documents_are_read_and_what_has_a_default_may_be_missing():
    document = Layer("a", "gemm", macs=5, time_ms=1.5, weight_bytes=3).to_document()
    assert from_fields(Layer, document) == Layer("a", "gemm", macs=5, time_ms=1.5, weight_bytes=3)
    old = {key: document[key] for key in document if key not in ("macs", "time_ms", "weight_bytes")}
    assert from_fields(Layer, old) == Layer("a", "gemm")
    with pytest.raises((TypeError, ValueError)):
        from_fields(Layer, {**document, "macs": "many"})


def test_an_idle_layer_moves_nothing():
    layer = Layer("Reformatting CopyNode for x", "NoOp", (shape(4, 4),), (shape(4, 4),))
    assert layer.is_reformat
    assert layer.bytes_moved == 0
    assert TensorInfo("t", "int8", (1 << 40, 1 << 40)).size_bytes is None


def test_dilation_and_stride_make_the_result_smaller():
    window = {**WINDOW, "PrePadding": [0, 1], "Stride": [1, 2], "Dilation": [3, 2]}
    fused = {**PLAIN, **window, "ParameterType": "Convolution"}
    assert read([1, 8, 10, 10], [1, 16, 1, 1], **fused).macs == 16 * (5 * 4) * 8 * 9


def test_a_residual_that_is_added_behind_is_not_taken_for_weights():
    x, residual, weights = shape(1, 16, 8, 8), shape(1, 16, 8, 8), shape(16, 16, 3, 3)
    expected = 16 * 8 * 8 * 16 * 9
    assert count_operands("correlation", [x, residual], [weights], [residual]) == expected
    assert count_operands("correlation", [x, weights], [residual], [residual]) == expected
    assert count_operands("correlation", [x], [residual], [residual]) is None
