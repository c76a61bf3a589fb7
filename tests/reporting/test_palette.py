"""The colours of the pages: readable text, visible marks, and different also to the colour-blind."""

import re
from itertools import combinations, starmap

import numpy as np
import pytest

from tests.fixtures.house import PACKAGE
from trtcal.reporting.sections import TEMPLATES

PALETTE = (TEMPLATES / "palette.css").read_text()
TEXT, MARK = 4.5, 3.0  # WCAG 2.2, 1.4.3 and 1.4.11
TEXTS = ("ink", "muted", "accent", "reference", "ship", "care", "stop", "open")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4")
SERIES = tuple(f"series-{number}" for number in range(1, 7))
LEAST_DISTANCE, LEAST_DISTANCE_BLIND = 0.1, 0.06  # in OKLab, where 0.02 is just visible
# Machado, Oliveira and Fernandes, 2009: what protanopes and deuteranopes see, in linear RGB.
BLIND = {
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [
        [0.3673, 0.8606, -0.2280],
        [0.2801, 0.6725, 0.0474],
        [-0.0118, 0.0429, 0.9689],
    ],
}
TO_CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
TO_LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def declared(mode):
    """Return the variables of a mode, with what they refer to, as hexadecimal colours."""
    blocks = re.findall(r":root \{(.*?)\}", PALETTE, re.DOTALL)
    place = {"light": 0, "dark": 1, "print": 2}[mode]
    variables = dict(re.findall(r"--([\w-]+): ([^;]+);", blocks[0] + blocks[place] * (place > 0)))
    while any(value.startswith("var") for value in variables.values()):
        variables = {
            name: variables[value[6:-1]] if value.startswith("var") else value
            for name, value in variables.items()
        }
    return variables


def linear(colour):
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(first, second):
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def distance(first, second, seen=None):
    light = [
        linear(colour) if seen is None else seen @ linear(colour) for colour in (first, second)
    ]
    labs = [np.array(TO_LAB) @ np.cbrt(np.clip(TO_CONES @ each, 0, 1)) for each in light]
    return np.linalg.norm(labs[0] - labs[1])


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_text_can_be_read_and_marks_be_seen(mode):
    colours = declared(mode)
    least = dict.fromkeys((*PRECISIONS, *SERIES, "unknown"), MARK) | dict.fromkeys(TEXTS, TEXT)
    assert not [
        (name, ground)
        for name, bound in least.items()
        for ground in ("paper", "page", "tint")
        if contrast(colours[name], colours[ground]) < bound
    ]


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("names", [PRECISIONS, ("reference", "fp16", *SERIES)])
def test_colours_of_a_chart_differ_also_to_the_colour_blind(mode, names):
    colours = declared(mode)
    pairs = [(colours[first], colours[second]) for first, second in combinations(names, 2)]
    assert min(starmap(distance, pairs)) > LEAST_DISTANCE
    for seen in BLIND.values():
        assert min(distance(*pair, np.array(seen)) for pair in pairs) > LEAST_DISTANCE_BLIND


def test_every_mode_has_every_colour():
    hexadecimal = re.compile(r"#[0-9a-f]{6}")
    blocks = re.findall(r":root \{(.*?)\}", PALETTE, re.DOTALL)
    names = [set(re.findall(r"--([\w-]+): #", block)) for block in blocks]
    assert names[0] == names[1] == names[2]
    assert all(hexadecimal.fullmatch(colour) for colour in declared("light").values())


def test_no_other_style_sheet_has_colours_of_its_own():
    sheets = [
        path for path in PACKAGE.rglob("*.css") if path.name not in ("palette.css", "uplot.css")
    ]
    assert sheets
    assert not [
        path for path in sheets if re.search(r"#[0-9a-fA-F]{3,8}\b(?![^{}]*\{)", path.read_text())
    ]
