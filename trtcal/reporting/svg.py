"""Turn matplotlib's SVG into one that fits a page: no style attribute, no outside name, themeable.

A page with a strict Content-Security-Policy ignores `style` attributes, so that they become
presentation attributes; a colour of the palette also becomes a class, by which the page's style
sheet redraws the chart for a dark screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

GAP = 7.0  # from a point's middle to its label's edge
RING = 6.0  # how much farther each next try is
ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)
SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
DROPPED = ("metadata", "style")
FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONTS = ("font", "font-family", "font-style", "font-stretch", "font-variant")
GEOMETRY = {"d", "x", "y", "transform"}
DECIMALS = re.compile(r"-?\d+\.\d{2,}")
STEPS = re.compile(r" *\b([A-Za-z])\b *")  # of a path
DEFAULTS = {("stroke-linejoin", "miter"), ("stroke-dashoffset", "0")}
FONT_SIZE = re.compile(r"([\d.]+)px")

PALETTE = {
    "#1f2328": "ink",
    "#59636e": "muted",
    "#d5dae0": "line",
    "#0b5cad": "accent",
    "#8a3b12": "reference",
    "#ffffff": "paper",
}


@dataclass(frozen=True)
class Box:
    """A rectangle, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        is_beside = self.left >= other.right or other.left >= self.right
        return not is_beside and self.bottom < other.top and other.bottom < self.top

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        is_across = self.left <= other.left and other.right <= self.right
        return is_across and self.bottom <= other.bottom and other.top <= self.top

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        """Return a square about a point."""
        return cls(x - half, y - half, x + half, y + half)


def place(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    avoid: Sequence[Box] = (),
    prefer_to_avoid: Sequence[Box] = (),
) -> list[Box | None]:
    """Return a box of each size near each anchor, in order; None where there is no room at all.

    No box overlaps another or one of `avoid`, or leaves `bounds`; those of `prefer_to_avoid` are
    covered only where there is no room nearby. The same input gives the same places.
    """
    taken = list(avoid)
    rings = math.ceil(math.hypot(bounds.right - bounds.left, bounds.top - bounds.bottom) / RING)
    places: list[Box | None] = []
    for anchor, size in zip(anchors, sizes, strict=True):
        box = _free(_tries(anchor, size, 12), bounds, [*taken, *prefer_to_avoid])
        box = box or _free(_tries(anchor, size, rings), bounds, taken)
        places.append(box)
        if box is not None:
            taken.append(box)
    return places


def _free(tries: Iterator[Box], bounds: Box, taken: Sequence[Box]) -> Box | None:
    fitting = (box for box in tries if bounds.holds(box))
    return next((box for box in fitting if not any(map(box.overlaps, taken))), None)


def _tries(anchor: tuple[float, float], size: tuple[float, float], rings: int) -> Iterator[Box]:
    """Yield boxes about an anchor, the nearest first, those to its right before the others."""
    for ring in range(rings):
        distance = GAP + ring * RING
        for angle in ANGLES:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x, y = anchor[0] + across * distance, anchor[1] + up * distance
            left, bottom = x - size[0] * (1 - across) / 2, y - size[1] * (1 - up) / 2
            yield Box(left, bottom, left + size[0], bottom + size[1])


def tidy(
    source: str,
    title: str,
    description: str,
    tooltips: Mapping[str, str],
    name: str = "chart",
    reached: Collection[str] = (),
) -> str:
    """Return the drawing as one `<svg>` element with a title, a description and tooltips.

    `tooltips` gives a text for named groups, by `id`; browsers show it, screen readers say it. `name`
    begins the ids of this drawing, so that a page may have several. The groups in `reached` can be
    come to with the keyboard.
    """
    root = ET.fromstring(source)  # noqa: S314 (made by matplotlib a moment ago)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag.rpartition("}")[2] in DROPPED]:
            parent.remove(child)
    for element in root.iter():
        _plain_attributes(element)
    _let_symbols_inherit(root)
    _keep_ids(root, set(tooltips))
    for element in list(root.iter()):
        if text := tooltips.get(element.get("id", "")):
            _insert(element, 0, "title", text)
        if element.get("id") in reached:
            element.attrib |= {"tabindex": "0", "role": "img", "aria-label": text or ""}
    _frame(root, title, description, name, bool(reached))
    ET.register_namespace("", SVG)
    return ET.tostring(root, encoding="unicode")


def inline(drawing: str) -> str:
    """Return a tidy drawing as it stands inside HTML, where it needs no namespace."""
    return drawing.replace(f' xmlns="{SVG}"', "", 1)


def _plain_attributes(element: ET.Element) -> None:
    element.text, element.tail = (element.text or "").strip() or None, None
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if HREF in element.attrib:
        element.set("href", element.attrib.pop(HREF))
    for name in GEOMETRY & element.attrib.keys():
        rounded = DECIMALS.sub(lambda match: f"{float(match[0]):.1f}", element.attrib[name])
        element.set(name, STEPS.sub(r"\1", rounded))
    classes = []
    for name, value in _declarations(element.attrib.pop("style", "")):
        element.set(name, value)
        if name in ("fill", "stroke") and value in PALETTE:
            classes.append(f"{name}-{PALETTE[value]}")
    if classes:
        element.set("class", " ".join(classes))


def _let_symbols_inherit(root: ET.Element) -> None:
    """Take the paint off shared symbols: where they are used, they get that place's own."""
    for path in root.iterfind(f".//{{{SVG}}}defs/{{{SVG}}}path"):
        for name in ("class", "fill", "stroke", "stroke-width"):
            path.attrib.pop(name, None)


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    """Yield presentation attributes; of fonts only the size and the weight, the page has its own."""
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        size = FONT_SIZE.search(value)
        if name == "font" and size:
            yield "font-size", size[1]
        elif name == "font-size":
            yield name, value.removesuffix("px")
        elif name and name not in FONTS and (name, value) not in DEFAULTS:
            yield name, value


def _keep_ids(root: ET.Element, named: set[str]) -> None:
    """Remove the ids that nothing refers to: they could clash with the page's own."""
    source = " ".join(value for element in root.iter() for value in element.attrib.values())
    for element in root.iter():
        name = element.get("id")
        if name and name not in named and not re.search(rf"#{re.escape(name)}\b", source):
            del element.attrib["id"]


def _insert(element: ET.Element, place: int, tag: str, text: str, **attributes: str) -> None:
    child = ET.Element(f"{{{SVG}}}{tag}", attributes)
    child.text = text
    element.insert(place, child)


def _frame(root: ET.Element, title: str, description: str, name: str, is_group: bool) -> None:
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    role, labels = "group" if is_group else "img", f"{name}-title {name}-description"
    root.attrib |= {"class": "chart", "role": role, "font-family": FONT_FAMILY}
    root.set("aria-labelledby", labels)
    _insert(root, 0, "title", title, id=f"{name}-title")
    _insert(root, 1, "desc", description, id=f"{name}-description")
