"""Small engines as the inspector describes them: a residual block, quantized in two ways."""

from __future__ import annotations

import json

FORMATS = {
    "int8": "Thirty-two wide channel vectorized row major Int8 format",
    "fp16": "Thirty-two wide channel vectorized row major FP16 format",
    "fp32": "Row major linear FP32",
}
BATCH, CHANNELS, SIZE = 4, 64, 8
ELEMENTS = BATCH * CHANNELS * SIZE * SIZE
WEIGHTS = CHANNELS * CHANNELS * 9
CONV_MACS = ELEMENTS * CHANNELS * 9


def tensor(name, dtype, size=SIZE, form=None):
    shape = [BATCH, CHANNELS, size, size]
    return {"Name": name, "Dimensions": shape, "Format/Datatype": form or FORMATS[dtype]}


def layer(name, kind, inputs, outputs, **fields):
    return {"Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": outputs, **fields}


def conv(name, inputs, outputs, weights="Int8", **fields):
    parameters = {
        "ParameterType": "Convolution",
        "Kernel": [3, 3],
        "PrePadding": [1, 1],
        "PostPadding": [1, 1],
        "Stride": [1, 1],
        "Dilation": [1, 1],
        "OutMaps": CHANNELS,
        "Groups": 1,
        "Weights": {"Type": weights, "Count": WEIGHTS},
        "Bias": {"Type": "Float", "Count": CHANNELS},
        "TacticName": "sm80_xmma_fprop" if weights == "Int8" else "sm80_tf32f32",
    }
    return layer(name, "CaskConvolution", inputs, outputs, **{**parameters, **fields})


def quantize(name, source, result, dtype="fp16"):
    return layer(name, "Reformat", [tensor(source, dtype)], [tensor(result, "int8")], Origin="QDQ")


def pool(name, source, result, dtype, size=SIZE):
    return layer(name, "TiledPooling", [tensor(source, dtype)], [tensor(result, dtype, size)])


def float_residual():
    """A block whose Add reads fp16, so that its result is quantized again, and a pooling alone."""
    return [
        (quantize("QuantizeLinear_2", "x", "xq", "fp32"), 0.05),
        (
            conv(
                "stem.weight + QuantizeLinear_7 + Conv_9",
                [tensor("xq", "int8")],
                [tensor("s", "fp16")],
            ),
            0.2,
        ),
        (pool("MaxPool_12", "s", "p", "fp16"), 0.1),
        (
            layer(
                "Reformatting CopyNode for Output Tensor 0 to MaxPool_12",
                "Reformat",
                [tensor("p", "fp16")],
                [tensor("i", "fp16", form="Row major linear FP16 format")],
                Origin="REFORMAT",
            ),
            0.04,
        ),
        (quantize("QuantizeLinear_15", "i", "iq"), 0.03),
        (
            conv(
                "a.weight + QuantizeLinear_20 + Conv_22",
                [tensor("iq", "int8")],
                [tensor("h", "int8")],
            ),
            0.06,
        ),
        (
            conv(
                "b.weight + QuantizeLinear_32 + Conv_34 + Add_36 + Relu_37",
                [tensor("h", "int8"), tensor("i", "fp16")],
                [tensor("o", "fp16")],
            ),
            0.07,
        ),
        (quantize("QuantizeLinear_40", "o", "oq"), 0.03),
        (
            conv(
                "c.weight + QuantizeLinear_45 + Conv_47",
                [tensor("oq", "int8")],
                [tensor("y", "fp32")],
            ),
            0.06,
        ),
        (layer("out", "NoOp", [tensor("y", "fp32")], [tensor("z", "fp32")]), 0.0),
    ]


def int8_residual():
    """The same with the residual quantized; the exporter has numbered the nodes anew."""
    return [
        (quantize("QuantizeLinear_2", "x", "xq", "fp32"), 0.06),
        (
            conv(
                "stem.weight + QuantizeLinear_7 + Conv_9 + MaxPool_12",
                [tensor("xq", "int8")],
                [tensor("iq", "int8")],
            ),
            0.1,
        ),
        (
            conv(
                "a.weight + QuantizeLinear_20 + Conv_34",
                [tensor("iq", "int8")],
                [tensor("h", "int8")],
            ),
            0.06,
        ),
        (
            conv(
                "b.weight + QuantizeLinear_40 + Conv_42 + Add_50 + Relu_51",
                [tensor("h", "int8"), tensor("iq", "int8")],
                [tensor("oq", "int8")],
            ),
            0.06,
        ),
        (
            conv(
                "c.weight + QuantizeLinear_60 + Conv_62",
                [tensor("oq", "int8")],
                [tensor("y", "fp32")],
            ),
            0.06,
        ),
    ]


def inspected(timed):
    """Return the inspector's JSON text."""
    return json.dumps({"Layers": [entry for entry, _ in timed], "Bindings": ["x", "z"]})


def profiled(timed, runs=10):
    """Return what `trtexec --exportProfile` writes: names are not escaped."""
    total = sum(ms for _, ms in timed)
    rows = [f'  {{ "count" : {runs} }}']
    rows += [entry_text(entry["Name"], ms, runs, total) for entry, ms in timed]
    return "[\n" + "\n, ".join(rows) + "\n]\n"


def entry_text(name, ms, runs=10, total=1.0):
    return (
        f'{{ "name" : "{name}", "timeMs" : {ms * runs:.6g}, "averageMs" : {ms:.6g}, '
        f'"medianMs" : {ms:.6g}, "percentage" : {100 * ms / total:.6g} }}'
    )


def write(folder, timed):
    """Write both files into a folder, as trtexec's users keep them."""
    folder.mkdir(exist_ok=True)
    (folder / "graph.json").write_text(inspected(timed))
    (folder / "profile.json").write_text(profiled(timed))
    return folder
