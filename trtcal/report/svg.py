"""Turn matplotlib's SVG into one that fits a page: no style attribute, no outside name, themeable.

A page with a strict Content-Security-Policy ignores `style` attributes, so that they become
presentation attributes; a colour of the palette also becomes a class, by which the page's style
sheet redraws the chart for a dark screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
DROPPED = ("metadata", "style")
FONT_FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONT_SIZE = re.compile(r"([\d.]+)px")

PALETTE = {
    "#1f2328": "ink",
    "#59636e": "muted",
    "#d5dae0": "line",
    "#0b5cad": "accent",
    "#8a3b12": "reference",
    "#ffffff": "paper",
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
    _drop(root)
    for element in root.iter():
        _plain_attributes(element)
    _let_symbols_inherit(root)
    _keep_ids(root, set(tooltips))
    for element in list(root.iter()):
        if element.get("id") in tooltips:
            _describe(element, tooltips[element.attrib["id"]])
        if element.get("id") in reached:
            element.set("tabindex", "0")
            element.set("role", "img")
            element.set("aria-label", tooltips[element.attrib["id"]])
    _frame(root, title, description, name, bool(reached))
    ET.register_namespace("", SVG)
    return ET.tostring(root, encoding="unicode")


def inline(drawing: str) -> str:
    """Return a tidy drawing as it stands inside HTML, where it needs no namespace."""
    return drawing.replace(f' xmlns="{SVG}"', "", 1)


def _drop(element: ET.Element) -> None:
    for child in list(element):
        if child.tag.rpartition("}")[2] in DROPPED:
            element.remove(child)
        else:
            _drop(child)


def _plain_attributes(element: ET.Element) -> None:
    element.text, element.tail = (element.text or "").strip() or None, None
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if HREF in element.attrib:
        element.set("href", element.attrib.pop(HREF))
    style = element.attrib.pop("style", "")
    classes = []
    for name, value in _declarations(style):
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


def _declarations(style: str) -> list[tuple[str, str]]:
    """Return presentation attributes; of fonts only the size and the weight, the page has its own."""
    found = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            size = FONT_SIZE.search(value)
            found += [("font-size", size[1])] if size else []
        elif name == "font-size":
            found.append((name, value.removesuffix("px")))
        elif name and name not in ("font-family", "font-style", "font-stretch", "font-variant"):
            found.append((name, value))
    return found


def _keep_ids(root: ET.Element, named: set[str]) -> None:
    """Remove the ids that nothing refers to: they could clash with the page's own."""
    source = " ".join(value for element in root.iter() for value in element.attrib.values())
    for element in root.iter():
        name = element.get("id")
        if name and name not in named and not re.search(rf"#{re.escape(name)}\b", source):
            del element.attrib["id"]


def _describe(element: ET.Element, text: str) -> None:
    title = ET.Element(f"{{{SVG}}}title")
    title.text = text
    element.insert(0, title)


def _frame(root: ET.Element, title: str, description: str, name: str, is_group: bool) -> None:
    for given in ("width", "height", "version"):
        root.attrib.pop(given, None)
    root.set("class", "chart")
    root.set("role", "group" if is_group else "img")
    root.set("font-family", FONT_FAMILY)
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for index, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{SVG}}}{tag}")
        element.set("id", f"{name}-{'title' if tag == 'title' else 'description'}")
        element.text = text
        root.insert(index, element)
