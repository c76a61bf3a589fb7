"""Turn matplotlib's SVG into one that fits a page: no style attribute, no outside name, themeable.

A page with a strict Content-Security-Policy ignores `style` attributes, so that they become
presentation attributes; a colour of the palette also becomes a class, by which the page's style
sheet redraws the chart for a dark screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
DROPPED = ("metadata", "style")
FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONTS = ("font", "font-family", "font-style", "font-stretch", "font-variant")
GEOMETRY = {"d", "x", "y", "transform"}
DECIMALS = re.compile(r"-?\d+\.\d{2,}")
STEPS = re.compile(r" *\b([A-Za-z])\b *")  # of a path
DEFAULTS = {("stroke-linejoin", "miter"), ("stroke-dashoffset", "0")}
KINDS = {"bar", "break", "label", "leader", "limit"}  # ids that are many: they become classes
FONT_SIZE = re.compile(r"([\d.]+)px")

INK, MUTED, LINE = "#1f2328", "#59636e", "#d5dae0"
ACCENT, REFERENCE, PAPER = "#0b5cad", "#6d1a63", "#ffffff"
PALETTE = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    ACCENT: "accent",
    REFERENCE: "reference",
    PAPER: "paper",
}


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
    _dissolve_groups(root)
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


def _dissolve_groups(parent: ET.Element) -> None:
    """Put what plain groups hold in their place: matplotlib nests several around each mark."""
    for place, child in reversed([*enumerate(parent)]):
        _dissolve_groups(child)
        if child.tag == f"{{{SVG}}}g" and not child.attrib:
            parent[place : place + 1] = list(child)


def _keep_ids(root: ET.Element, named: set[str]) -> None:
    """Remove the ids that nothing refers to: they could clash with the page's own."""
    source = " ".join(value for element in root.iter() for value in element.attrib.values())
    for element in root.iter():
        name = element.get("id")
        if name in KINDS:
            element.set("class", name)
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
