"""Charts made up at random, and the geometry of what was drawn of them."""

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
from PIL import ImageFont

from trtcal.reporting.charts import NAME_LENGTHS, Chart, Drawing, Layout, Point
from trtcal.reporting.text import shorten, width_em

SVG = "http://www.w3.org/2000/svg"
NAMES = (
    *("int8", "int8-minmax", "int8-entropy", "int8-percentile", "mixed", "fp16", "WWWWWWWWWWWWWW"),
    *("a-very-long-name-of-a-variant-that-nobody-would-type-twice", "$x^2$", "<b>&amp;</b>"),
    *(
        "\u202eevil\x1b[31m",
        "数字の量子化モデル",
        "🚀🚀🚀",
        "MMMM@MMMM@MMMM@MMMM@MMMM@MMMM@MMMM",
        "",
    ),
)
SCRIPTS = 0x2E80  # the first letter that the font lacks
Ends = tuple[float, float, float, float]
"""Left, top, right and bottom of a box, or both ends of a line."""


def random_chart(seed: int) -> Chart:
    """Return 2 to 14 variants: ties, ruined ones, wide and zero intervals, ranges of decades."""
    rng = random.Random(seed)  # noqa: S311 (no secret)
    points = random_points(rng)
    bound = rng.choice((0.5, 1.0, 40.0))
    limit = (98.0 - bound, f"limit: FP32 \u2212 {bound:g} points") if rng.random() < 0.4 else None
    return Chart(points, "Top-1 accuracy", "%", "estimated latency on @a-device, in part", limit)


def random_points(rng: random.Random) -> list[Point]:
    """Return the variants of one chart."""
    middle, spread = 10 ** rng.uniform(-2, 2), rng.choice((1.0, 1.02, 1.5, 4.0, 1000.0))
    top, fall = rng.choice((99.9, 98.0, 71.3, 30.0)), rng.choice((0.0, 0.1, 2.0, 25.0))
    ruined, width = rng.choice(("", "", "accuracy", "time", "both")), rng.choice((0.0, 0.02, 0.5))
    points: list[Point] = []
    for number in range(rng.randint(2, 14)):
        ms = middle * spread ** rng.uniform(-0.5, 0.5)
        accuracy = top - fall * rng.random()
        if number == 2 and ruined:
            ms = ms * 50 if ruined != "accuracy" else ms
            accuracy = accuracy / 9 if ruined != "time" else accuracy
        if number and rng.random() < 0.25:
            twin = rng.choice(points)
            ms, accuracy = twin.latency_ms, top if twin.accuracy is None else twin.accuracy
        half = rng.choice((0.0, 0.3, 3.0))
        is_reference = number == 0
        between = None if rng.random() < 0.2 else (accuracy - half, min(accuracy + half, 100.0))
        points.append(
            Point(
                *(number, rng.choice(NAMES), ms, (ms * (1 - width), ms * (1 + width))),
                None if is_reference and rng.random() < 0.2 else accuracy,
                None if is_reference else between,
                is_reference,
                rng.choice(("p50", "about")),
            )
        )
    return points


def overlaps(one: Ends, other: Ends) -> bool:
    """Whether two boxes share more than an edge."""
    is_across = one[0] < other[2] and other[0] < one[2]
    return is_across and one[1] < other[3] and other[1] < one[3]


def crosses(line: Ends, box: Ends) -> bool:
    """Whether a line has a part inside a box: whether one of its many points is."""
    start, end = 0.0, 1.0
    for axis in (0, 1):
        origin, way = line[axis], line[axis + 2] - line[axis]
        if way == 0 and not box[axis] < origin < box[axis + 2]:
            return False
        if way:
            ends = sorted(((box[axis] - origin) / way, (box[axis + 2] - origin) / way))
            start, end = max(start, ends[0]), min(end, ends[1])
    return start < end


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 100)


def text_width(text: str, size: float) -> float:
    """Return how wide a text is set in a wide font; letters that it lacks as wide as trtcal guesses."""
    own = "".join(letter for letter in text if ord(letter) < SCRIPTS)
    others = "".join(letter for letter in text if ord(letter) >= SCRIPTS)
    return size * (_font().getlength(own) / 100 + width_em(others))


class Geometry:
    """What an SVG shows: boxes of texts and marks, lines by what they are."""

    def __init__(self, source: str) -> None:
        self.root = ET.fromstring(source)  # noqa: S314 (drawn by the test)
        self.size = [float(each) for each in self.root.attrib["viewBox"].split()][2:]
        self.kinds: dict[ET.Element, str] = {}
        for group in self.root.iter(f"{{{SVG}}}g"):
            kind = group.get("class") or group.get("id", "").removeprefix("narrow-")
            self.kinds |= {element: kind for element in group.iter() if kind}
        self.texts = [
            (self.kinds.get(element, ""), element.text or "", _text_box(element))
            for element in self.root.iter(f"{{{SVG}}}text")
        ]
        self.labels = [box for kind, _, box in self.texts if kind == "label"]
        self.marks = [
            (
                float(use.attrib["x"]) - 5,
                float(use.attrib["y"]) - 5,
                float(use.attrib["x"]) + 5,
                float(use.attrib["y"]) + 5,
            )
            for use in self.root.iter(f"{{{SVG}}}use")
            if self.kinds.get(use, "").startswith("point-")
        ]

    def lines(self, begin: str) -> Iterator[Ends]:
        """Yield the parts of the lines of a kind."""
        symbols = {path for defs in self.root.iter(f"{{{SVG}}}defs") for path in defs.iter()}
        for path in self.root.iter(f"{{{SVG}}}path"):
            if self.kinds.get(path, "").startswith(begin) and path not in symbols:
                numbers = [float(each) for each in re.findall(r"-?[\d.]+", path.attrib["d"])]
                places = [*zip(numbers[::2], numbers[1::2], strict=True)]
                yield from ((*start, *end) for start, end in itertools.pairwise(places))


def _text_box(element: ET.Element) -> Ends:
    size, text = float(element.attrib["font-size"]), element.text or ""
    place = re.findall(r"[\d.]+", element.get("transform", ""))  # of a line of several
    x, y = float(element.get("x", *place[:1])), float(element.get("y", *place[1:2]))
    width = text_width(text, size)
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
    left = x - share * width
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def faults(drawing: Drawing, chart: Chart, layout: Layout) -> set[str]:
    """Return what is wrong with the drawing of a chart."""
    seen = Geometry(drawing.source)
    boxes = [box for _, text, box in seen.texts if text]
    names = {text for kind, text, _ in seen.texts if kind == "label"}
    whole, inner = (
        (0.0, 0.0, *seen.size),
        (layout.left, layout.head, layout.right, layout.head + layout.height),
    )
    kinds = ("pareto-front", "leader", "bar", "point", "limit", "break")
    lines = {kind: [*seen.lines(kind)] for kind in kinds}
    wrong = {
        "texts overlap": any(overlaps(*pair) for pair in itertools.combinations(boxes, 2)),
        "a text leaves the drawing": not all(is_within(box, whole) for box in boxes),
        "a label leaves the frame": not all(is_within(box, inner) for box in seen.labels),
        "a label is missing": not all(
            names & _texts_of(point) for point, _ in chart.known if point.label
        ),
        "a label covers a mark": any(
            overlaps(*pair) for pair in itertools.product(seen.labels, seen.marks)
        ),
    }
    for kind, own in lines.items():
        pairs = itertools.product(own, seen.labels)
        wrong[f"a {kind} line crosses a label"] = any(crosses(*pair) for pair in pairs)
    return {fault for fault, is_so in wrong.items() if is_so}


def is_within(box: Ends, other: Ends) -> bool:
    """Whether a box lies inside another."""
    starts = box[0] >= other[0] and box[1] >= other[1]
    return starts and box[2] <= other[2] and box[3] <= other[3]


def _texts_of(point: Point) -> set[str]:
    """Return the texts that a point's label may have."""
    return {str(point.number), *(shorten(point.label, length) for length in NAME_LENGTHS)}
