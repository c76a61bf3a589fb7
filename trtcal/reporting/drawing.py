"""What a drawing has: lines, marks and texts in pixels, y downwards, which `drawing.j2` writes as SVG.

Colors are names of the page's style sheet, so that a drawing follows a dark screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtcal.reporting.placing import Box, Place


@dataclass(frozen=True)
class Stroke:
    """A line through some places; with a `fill` an area. `css` says what it is."""

    places: Sequence[Place]
    color: str
    css: str = ""
    width: float = 1.0
    dashes: str = ""
    fill: str = ""

    @property
    def points(self) -> str:
        """The places as SVG has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.places)


@dataclass(frozen=True)
class Text:
    """A text from its base line; `anchor` is which end of it (`start`, `middle`, `end`) is there."""

    at: Place
    text: str
    size: float
    color: str = "ink"
    anchor: str = "start"
    css: str = ""


@dataclass(frozen=True)
class Mark:
    """A circle or a diamond, hollow unless `is_full`."""

    at: Place
    color: str
    is_diamond: bool
    is_full: bool = True


Shape = Stroke | Text | Mark


@dataclass(frozen=True)
class Group:
    """Shapes with a tooltip, which the keyboard reaches unless they are no point."""

    id: str
    tooltip: str
    shapes: Sequence[Shape]
    is_point: bool = True


@dataclass(frozen=True)
class Drawing:
    """A drawing; `id` begins its ids. Parts of a chart that were replaced are flagged for its note."""

    id: str
    title: str
    description: str
    width: float
    height: float
    shapes: Sequence[Shape | Group] = field(repr=False)
    is_broken: bool = False
    is_numbered: bool = False


@dataclass(frozen=True)
class Layout:
    """A size that drawings have, in pixels; a page shows the one that its screen has room for.

    `frame` is where a chart has its points, `names` the width of names beside rows. Histograms are
    `columns` panels of a size beside each other. `prefix` begins the ids of what is drawn so.
    """

    width: float
    frame: Box
    names: float
    panel: Place
    columns: int
    font: float
    small: float
    prefix: str = ""


WIDE = Layout(720.0, Box(47.0, 36.0, 705.0, 300.0), 240.0, (240.0, 130.0), 3, 10.0, 8.5)
NARROW = Layout(
    331.0, Box(46.0, 44.0, 322.0, 284.0), 145.0, (331.0, 150.0), 1, 12.5, 12.0, "narrow-"
)
LAYOUTS = (WIDE, NARROW)
