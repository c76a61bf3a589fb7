"""What is known of each tensor: how it is wired, its histogram, ranges and largest samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from calibrators import Histogram
from trtcal.calibration import Observation
from trtcal.documents import Document
from trtcal.evaluate.layerwise import SiteFinder
from trtcal.evidence.diagnosis.reasons import DEQUANTIZE, QUANTIZE, TRANSPARENT
from trtcal.model.tensors import constants_of, producers_of
from trtcal.ranges import Calibration
from trtcal.reporting import text
from trtcal.reporting.engines import View, numbered_tensors

Makers = dict[str, onnx.NodeProto]
HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
BARS = 40


def wire(proto: onnx.ModelProto, nodes: Collection[str]) -> Document:
    """Return node -> operator and inputs that are no constants, for the nodes named.

    Of each input the tensor that is quantized for it and the largest value that its Q/DQ can stand
    for (`amax`, in the tensor's unit); where there is no Q/DQ the input itself, and None.
    """
    makers = producers_of(proto.graph)
    constants = constants_of(proto.graph)
    limits = {
        site.tensor: float(site.scale.reshape(-1)[0]) * site.top
        for site in SiteFinder(proto).sites
        if site.scale.size == 1 and not site.is_weight
    }
    return {
        node.name: {"op": node.op_type, "inputs": list(_inputs(node, makers, constants, limits))}
        for node in proto.graph.node
        if node.name in nodes
    }


def _inputs(
    node: onnx.NodeProto, makers: Makers, constants: Collection[str], limits: dict[str, float]
) -> Iterator[Document]:
    for name in filter(None, node.input):
        tensor, is_quantized = _source(name, makers)
        if tensor not in constants:
            yield {"tensor": tensor, "amax": limits.get(tensor) if is_quantized else None}


def _source(name: str, makers: Makers) -> tuple[str, bool]:
    """Return the tensor that is quantized for an input, itself if none is."""
    at = name
    while at in makers and makers[at].op_type in TRANSPARENT:
        at = makers[at].input[0]
    pair = makers.get(at)
    if pair is None or pair.op_type != DEQUANTIZE:
        return name, False
    quantize = makers.get(pair.input[0])
    if quantize is not None and quantize.op_type == QUANTIZE:
        return quantize.input[0], True
    return pair.input[0], True  # a weight, stored in integers


def tensor_facts(
    observations: Sequence[Observation],
    calibrations: Sequence[Calibration],
    tails: Sequence[Document] = (),
) -> list[Document]:
    """Return each tensor with what was seen of it, in the order in which it was observed.

    `bars` count magnitudes in equal steps from 0 to the largest one (`observed`, in the tensor's own
    unit), exact zeros counted separately; None without histograms, or if no value was finite. `tail`
    are the samples that reach farthest. Histograms and tails that no calibration is of are left out.
    """
    chosen = {calibration.histograms for calibration in calibrations}
    histograms = next((seen.histograms for seen in observations if seen.digest in chosen), {})
    data = {(calibration.model, calibration.dataset) for calibration in calibrations}
    reaches: Document = next(
        (tail["tensors"] for tail in tails if (tail["model"], tail["dataset"]) in data), {}
    )
    by_digest = {calibration.digest: calibration for calibration in calibrations}
    names = dict.fromkeys([*histograms, *(name for table in calibrations for name in table.ranges)])
    return [
        {
            "name": name,
            **_seen(histograms.get(name)),
            "ranges": [
                {"calibration": digest, "method": calibration.method, **_range(calibration, name)}
                for digest, calibration in by_digest.items()
                if name in calibration.ranges
            ],
            "tail": list(reaches.get(name, ())),
        }
        for name in names
    ]


def _seen(histogram: Histogram | None) -> Document:
    if histogram is None or not 0 < histogram.amax < np.inf:
        return {"values": None, "zeros": None, "observed": None, "bars": None}
    low, high, counts = histogram.magnitudes()
    places = ((low + high) / 2 * (BARS / histogram.amax)).astype(np.int64)
    bars: npt.NDArray[Any] = np.zeros(BARS, np.int64)
    np.add.at(bars, np.minimum(places, BARS - 1), counts)
    return {
        "values": int(histogram.count),
        "zeros": int(histogram.zeros),
        "observed": float(histogram.amax),
        "bars": bars.tolist(),
    }


def _range(calibration: Calibration, name: str) -> Document:
    entry = calibration.ranges[name]
    return {"amax": entry.amax, "clipped": entry.clipped, "note": entry.note}


def heights(bars: Sequence[int]) -> str:
    """Return a histogram as one character a bar, its height on a logarithmic scale."""
    top = math.log1p(max(bars, default=0)) or 1.0
    return "".join(HEIGHTS[round((len(HEIGHTS) - 1) * math.log1p(bar) / top)] for bar in bars)


def drawn_tensors(document: Document, methods: Sequence[str], numbers: Collection[int]) -> View:
    """Return the data from which the page's script plots tensors: bars, largest value, ranges, tail.

    Ranges stand in the order of `methods`.
    """
    drawn = {}
    for number, tensor in numbered_tensors(document).values():
        amaxes = {row["method"]: _short(row["amax"]) for row in reversed(tensor["ranges"])}
        if number in numbers:
            drawn[str(number)] = [
                heights(tensor["bars"]),
                _short(tensor["observed"]),
                [amaxes.get(method) for method in methods],
                [tail_words(reach) for reach in tensor["tail"]],
            ]
    return {"methods": [text.visible(method) for method in methods], "tensors": drawn}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def tail_words(reach: View) -> str:
    """Return which sample reaches how far."""
    name = text.visible(reach["name"]) if reach["name"] else f"sample {reach['index']:,}"
    return f"{name}: {text.figure(reach['value'])}"
