"""The report's drawing of histograms with the ranges on them.

Methods differ by their dashes, not only by color. Counts are on a logarithmic scale, since what a
range cuts off is rare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtcal.reporting.drawing import WIDE, Drawing, Group, Layout, Shape, Stroke, Text
from trtcal.reporting.engines import View
from trtcal.reporting.placing import Box
from trtcal.reporting.text import figure, shorten, visible

NAME_LENGTH = 34
LEGEND = 3  # methods beside each other over one column
DASHES = ("", "5 2", "1.5 1.5", "5 2 1 2", "8 3", "3 1 1 1 1 1")
HEAD, ROW = 6.0, 22.0  # pixels over the legend, and of one of its rows
KEY = 26.0  # of the legend, the width of a method's line


def draw_histograms(
    tensors: Sequence[View], methods: Sequence[str], layout: Layout = WIDE
) -> Drawing:
    """Return the drawing of these tensors' magnitudes; each is one of the report's with its bars."""
    beside = LEGEND * layout.columns
    head = HEAD + ROW * -(-len(methods) // beside)
    width, height = layout.panel
    shapes: list[Shape | Group] = [*_legend(methods, beside, layout)]
    for place, tensor in enumerate(tensors):
        row, column = divmod(place, layout.columns)
        left, top = column * width + 8, head + row * height + 26
        panel = Box(left, top, left + width - 24, top + height - 50)
        tooltip, name = _tooltip(tensor), f"{layout.prefix}histogram-{place}"
        shapes.append(Group(name, tooltip, [*_histogram(panel, tensor, methods, layout)], False))
    rows = -(-len(tensors) // layout.columns)
    description = f"{len(tensors)} tensors: counts of magnitudes, and the ranges chosen for each."
    about = (f"{layout.prefix}histograms", "Histograms and ranges", description)
    return Drawing(*about, layout.width, head + rows * height, shapes)


def _histogram(panel: Box, tensor: View, methods: Sequence[str], layout: Layout) -> Iterator[Shape]:
    counts, top = np.log1p(tensor["bars"]), tensor["observed"]
    width, base = panel.right - panel.left, panel.bottom
    heights = base - (base - panel.top) * counts / (counts.max() or 1.0)
    edges = np.linspace(panel.left, panel.right, len(counts) + 1)
    corners = zip(np.repeat(edges, 2)[1:-1], np.repeat(heights, 2), strict=True)
    area = [(panel.left, base), *corners, (panel.right, base)]
    yield Stroke(area, "muted", width=0.6, fill="line")
    for row in tensor["ranges"]:
        x = panel.left + width * (min(row["amax"] / top, 1.0) if top else 1.0)
        yield _line([(x, panel.top - 4), (x, base)], methods.index(row["method"]))
    yield Stroke([(panel.left, base), (panel.right, base)], "muted")
    size = layout.small
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = (panel.left + share * width, base + 1.3 * size)
        yield Text(at, figure(share * top), size, "muted", anchor)
    name = shorten(visible(tensor["name"]), NAME_LENGTH)
    yield Text((panel.left, panel.top - 9), name, size + 0.5)


def _line(places: Sequence[tuple[float, float]], order: int) -> Stroke:
    color = "reference" if order % 2 else "accent"
    return Stroke(places, color, width=1.6, dashes=DASHES[order % len(DASHES)])


def _legend(methods: Sequence[str], beside: int, layout: Layout) -> Iterator[Shape]:
    for order, method in enumerate(methods):
        row, column = divmod(order, beside)
        left, y = 8 + column * (layout.width - 8) / beside, HEAD + 6 + ROW * row
        yield _line([(left, y), (left + KEY, y)], order)
        at, size = (left + KEY + 5, y + 0.35 * layout.small), layout.small + 0.5
        yield Text(at, visible(method), size)


def _tooltip(tensor: View) -> str:
    ranges = ", ".join(
        f"{visible(row['method'])} {figure(row['amax'])}" for row in tensor["ranges"]
    )
    return f"{visible(tensor['name'])}: largest {figure(tensor['observed'])}; {ranges}"
