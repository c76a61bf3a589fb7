"""Histograms of a few tensors side by side as one SVG, with every method's range on them.

Counts are on a logarithmic scale: what a range cuts off is rare. Methods are told apart by their
dashes and their names, not by colour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import onnx
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from calibrators import Histogram
from trtcal.calibration import Observation
from trtcal.documents import Document
from trtcal.evaluate.layerwise import find_sites
from trtcal.evidence.diagnosis.reasons import DEQUANTIZE, QUANTIZE, TRANSPARENT
from trtcal.model.tensors import constants_of, producers_of
from trtcal.ranges import Calibration
from trtcal.reporting.charts import ACCENT, DPI, FONT_SIZE, INK, LINE, MUTED, REFERENCE, saved
from trtcal.reporting.svg import tidy
from trtcal.reporting.text import figure as figure_of
from trtcal.reporting.text import shorten, visible

Makers = dict[str, onnx.NodeProto]


def wire(proto: onnx.ModelProto, nodes: Collection[str]) -> Document:
    """Return node -> operator and inputs that are no constants, for the nodes named.

    Of each input the tensor that is quantized for it and the largest value that its Q/DQ can stand
    for (`amax`, in the tensor's unit); where there is no Q/DQ the input itself, and None.
    """
    makers = producers_of(proto.graph)
    constants = constants_of(proto.graph)
    limits = {
        site.tensor: float(site.scale.reshape(-1)[0]) * 127
        for site in find_sites(proto)[0]
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


BARS = 40


def tensor_facts(
    observations: Sequence[Observation],
    calibrations: Sequence[Calibration],
    tails: Sequence[Document] = (),
) -> list[Document]:
    """Return each tensor with what was seen of it, in the order in which it was observed.

    `bars` count magnitudes in equal steps from 0 to the largest one (`observed`, in the tensor's own
    unit), exact zeros apart; None without histograms, or if no value was finite. `tail` are the
    samples that reach farthest. Histograms and tails that no calibration is of are left out.
    """
    chosen = {one.histograms for one in calibrations}
    histograms = next((one.histograms for one in observations if one.digest in chosen), {})
    data = {(one.model, one.dataset) for one in calibrations}
    reaches: Document = next(
        (one["tensors"] for one in tails if (one["model"], one["dataset"]) in data), {}
    )
    by_digest = {one.digest: one for one in calibrations}
    names = dict.fromkeys([*histograms, *(name for one in calibrations for name in one.ranges)])
    return [
        {
            "name": name,
            **_seen(histograms.get(name)),
            "ranges": [
                {"calibration": digest, "method": one.method, **_range(one, name)}
                for digest, one in by_digest.items()
                if name in one.ranges
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
    one = calibration.ranges[name]
    return {"amax": one.amax, "clipped": one.clipped, "note": one.note}


View = dict[str, Any]

COLUMNS = 3
PANEL_INCHES = (3.4, 1.9)
NAME_LENGTH = 34
DASHES: tuple[Sequence[float], ...] = (
    (1, 0),
    (5, 2),
    (1.5, 1.5),
    (5, 2, 1, 2),
    (8, 3),
    (3, 1, 1, 1, 1, 1),
)
SMALL = FONT_SIZE - 1.5


def draw_histograms(tensors: Sequence[View], methods: Sequence[str]) -> str:
    """Return the drawing of these tensors' magnitudes; each is one of the report's with its bars."""
    rows = -(-len(tensors) // COLUMNS)
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows + 0.35)
    with mpl.rc_context({"svg.hashsalt": "trtcal", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, dpi=DPI)
        FigureCanvasSVG(figure)
        for place, tensor in enumerate(tensors):
            _draw(_panel(figure, place, size), place, tensor, methods)
        _legend(figure, methods, size)
        source = saved(figure)
    tooltips = {f"histogram-{place}": _words(tensor) for place, tensor in enumerate(tensors)}
    description = f"{len(tensors)} tensors: counts of magnitudes, and the ranges chosen for each."
    return tidy(source, "Histograms and ranges", description, tooltips, "histograms")


def _panel(figure: Figure, place: int, size: tuple[float, float]) -> Axes:
    row, column = divmod(place, COLUMNS)
    left = (column * PANEL_INCHES[0] + 0.12) / size[0]
    bottom = (size[1] - 0.35 - (row + 1) * PANEL_INCHES[1] + 0.32) / size[1]
    width, height = (PANEL_INCHES[0] - 0.34) / size[0], (PANEL_INCHES[1] - 0.72) / size[1]
    return figure.add_axes((left, bottom, width, height))


def _draw(axes: Axes, place: int, tensor: View, methods: Sequence[str]) -> None:
    bars, top = np.log1p(tensor["bars"]), tensor["observed"]
    edges = np.linspace(0.0, top, len(bars) + 1)
    steps = axes.stairs(bars, edges, fill=True, color=LINE, edgecolor=MUTED, linewidth=0.6)
    steps.set_gid(f"histogram-{place}")
    for one in tensor["ranges"]:
        order = methods.index(one["method"])
        color = REFERENCE if order % 2 else ACCENT
        line = axes.axvline(min(one["amax"], top), color=color, linewidth=1.6)
        line.set_dashes(DASHES[order % len(DASHES)])
    axes.set_xlim(0.0, top * 1.02)
    axes.set_ylim(0.0, float(bars.max()) * 1.05 or 1.0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.yaxis.set_major_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([0.0, top / 2, top]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: figure_of(value)))
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=2)
    axes.text(
        *(0.0, 1.1, shorten(visible(tensor["name"]), NAME_LENGTH)),
        transform=axes.transAxes,
        color=INK,
        fontsize=SMALL + 0.5,
        parse_math=False,
    )


def _legend(figure: Figure, methods: Sequence[str], size: tuple[float, float]) -> None:
    step, height = 1.5 / size[0], 1 - 0.13 / size[1]
    for order, method in enumerate(methods):
        color = REFERENCE if order % 2 else ACCENT
        left = 0.012 + order * step
        line = mpl.lines.Line2D(
            [left, left + 0.35 / size[0]], [height, height], color=color, linewidth=1.6
        )
        line.set_dashes(DASHES[order % len(DASHES)])
        figure.add_artist(line)
        figure.text(
            *(left + 0.42 / size[0], height, visible(method)),
            color=INK,
            fontsize=SMALL + 0.5,
            va="center",
            parse_math=False,
        )


def _words(tensor: View) -> str:
    ranges = ", ".join(f"{visible(r['method'])} {figure_of(r['amax'])}" for r in tensor["ranges"])
    return f"{visible(tensor['name'])}: largest {figure_of(tensor['observed'])}; {ranges}"
