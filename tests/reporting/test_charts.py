import itertools
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tests.fixtures.examples import examples
from tests.fixtures.tables import each
from tests.reporting.random_charts import SVG, Geometry, faults, is_within, overlaps, random_chart
from trtcal.documents.streams import visible
from trtcal.reporting.charts import (
    LAYOUTS,
    Chart,
    Point,
    accuracy_against_latency,
    accuracy_of_each,
    pareto_front,
)
from trtcal.reporting.placing import Box, Obstacles, around, place
from trtcal.reporting.scale import axis_of

HOSTILE = [
    *("$x^2$", "$", r"\alpha $a_b", "<script>alert(1)</script>", "a\"b'c", "\x1b[31m"),
    *("\u202eevil", "数字"),
]
QUICK = 20
"""How many random charts each run of the tests looks at; the slow tests look at 200."""


def point(number: int, name: str, latency: float = 1.0, accuracy: float | None = 98.0) -> Point:
    reaches = None if accuracy is None else (accuracy - 0.5, accuracy + 0.5)
    around = (latency * 0.9, latency * 1.1)
    return Point(number, name, latency, around, accuracy, reaches, number == 0)


def chart(*points: Point, **changes) -> Chart:
    return replace(Chart(points, "Top-1 accuracy", "%"), **changes)


def draw(*points: Point) -> ET.Element:
    source = accuracy_against_latency(chart(*points)).source
    return ET.fromstring(source)  # noqa: S314 (drawn a line above)


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{{{SVG}}}text")]


def test_the_front_is_what_nothing_beats():
    points = [(1.0, 90.0), (2.0, 95.0), (2.5, 94.0), (3.0, 95.0), (0.5, 80.0)]
    assert pareto_front(points) == [4, 0, 1]
    assert pareto_front([(1.0, 90.0), (1.0, 90.0)]) == [0, 1]
    assert pareto_front([]) == []


def test_every_point_is_a_named_element_with_a_tooltip():
    root = draw(point(0, "fp32"), point(1, "int8", 0.5, 97.0))
    found = {element.get("id"): element for element in root.iter() if element.get("id")}
    assert (found["point-1"].get("tabindex"), found["point-1"].get("role")) == ("0", "img")
    assert found["point-1"].get("aria-label") == found["point-1"][0].text
    assert {"point-0", "point-1", "pareto-front", "chart-title"} <= set(found)
    assert found["point-1"][0].text == (
        "int8: Top-1 accuracy 97.00 % (96.50 to 97.50); p50 0.500 ms (0.450 to 0.550)"
    )
    assert "On the Pareto front: int8, fp32." in found["chart-description"].text


def test_it_carries_no_style_and_no_link():
    source = accuracy_against_latency(chart(point(0, "fp32"), point(1, "int8"))).source
    assert "style" not in source
    assert "http" not in source.replace(SVG, "")


@each("name", HOSTILE)
@pytest.mark.parametrize("drawing", [accuracy_against_latency, accuracy_of_each])
def test_a_name_is_text_and_nothing_else(drawing, name):
    plain, hostile = (
        ET.fromstring(drawing(chart(point(0, "fp32"), point(1, word))).source)  # noqa: S314
        for word in ("plain", name)
    )
    assert [element.tag for element in hostile.iter()] == [element.tag for element in plain.iter()]
    assert visible(name) in texts(hostile)


def test_the_same_points_give_the_same_bytes():
    for drawing in (accuracy_against_latency, accuracy_of_each):
        first, second = (drawing(random_chart(7)).source for _ in range(2))
        assert first == second


@each(
    "points",
    [
        [point(0, "only")],
        [point(0, "reference", accuracy=None), point(1, "none", accuracy=None)],
        [point(0, "reference", accuracy=None), point(1, "some", 0.5, 30.0)],
        [point(number, f"equal {number}") for number in range(14)],
        [point(number, "far", 10.0**number) for number in range(4)],
        [Point(0, "zero", 0.0, (0.0, 0.0), 0.0)],
        [point(0, "huge", 1e300, 1e-300), point(1, "tiny", 1e-300, 1e300)],
    ],
)
def test_odd_cases_have_a_drawing(points):
    for drawing in (accuracy_against_latency, accuracy_of_each):
        root = ET.fromstring(drawing(chart(*points)).source)  # noqa: S314
        drawn = [one for one in points if one.accuracy is not None]
        marks = [one for one in root.iter() if (one.get("id") or "").startswith("point-")]
        assert len(marks) == len({one.number for one in drawn})


def test_many_points_bear_their_numbers():
    points = [point(number, f"name {number}", 1.0 + number, 90.0) for number in range(30)]
    drawing = accuracy_against_latency(chart(*points))
    assert drawing.is_numbered
    assert {str(number) for number in range(30)} <= set(texts(draw(*points)))


@pytest.mark.parametrize(
    "seeds", [range(QUICK), pytest.param(range(QUICK, 200), marks=pytest.mark.slow)]
)
def test_in_random_charts_no_label_overlaps_and_no_line_crosses_one(seeds):
    wrong = {}
    for seed, layout in zip(seeds, itertools.cycle(LAYOUTS), strict=False):
        drawn = random_chart(seed)
        wrong[seed] = faults(accuracy_against_latency(drawn, layout), drawn, layout)
    assert not {seed: faults for seed, faults in wrong.items() if faults}


@pytest.mark.parametrize("layout", LAYOUTS, ids=["wide", "narrow"])
def test_the_texts_of_rows_are_beside_each_other_and_within_the_drawing(layout):
    for seed in range(QUICK):
        seen = Geometry(accuracy_of_each(random_chart(seed), layout).source)
        boxes = [box for _, text, box in seen.texts if text]
        assert not any(overlaps(*pair) for pair in itertools.combinations(boxes, 2))
        assert all(box[0] >= 0 and box[2] <= seen.size[0] for box in boxes)
        assert not any(overlaps(box, mark) for box in boxes for mark in seen.marks)


def test_rows_are_sorted_and_name_fp32():
    points = (point(0, "net", accuracy=97.0), point(1, "low", accuracy=90.0), point(2, "high"))
    drawing = accuracy_of_each(chart(*points, limit=(96.0, "limit: FP32 \u2212 1 point")))
    root = ET.fromstring(drawing.source)  # noqa: S314
    shown = texts(root)
    assert [name for name in shown if name in ("high", "net (FP32)", "low")] == [
        *("high", "net (FP32)", "low"),
    ]
    assert {"98.00 %", "97.00 %", "90.00 %", "limit: FP32 \u2212 1 point"} <= {*shown}
    assert "ms" not in drawing.source.split("<g ")[1]


@each(
    "values, may_be_log, bands",
    [
        ([98.6, 98.4, 97.0, 11.0], False, [0.14, 0.81]),
        ([98.6, 98.4, 97.0, 97.5, 97.2, 60.0, 11.0], False, [0.14, 0.81]),
        ([25.0, 27.0, 26.0, 64.0], False, [0.81, 0.14]),
        ([98.6, 11.0], False, [1.0]),
        ([98.0, 97.0, 96.0, 95.0, 90.0], False, [1.0]),
        ([1.0, 1.3, 2.0, 60.0], True, [0.81, 0.14]),
        ([1.0, 10.0, 100.0, 1000.0], True, [1.0]),
        ([0.02, 1.0, 1.1, 1.2, 60.0], True, [0.14, 0.62, 0.14]),
    ],
)
def test_values_far_off_have_a_part_of_the_axis_and_leave_the_others_the_rest(
    values, may_be_log, bands
):
    axis = axis_of([(value,) for value in values], may_be_log)
    assert [round(end - start, 2) for start, end in axis.places] == bands
    assert len(axis.breaks) == len(bands) - 1
    axes = Figure().add_axes((0, 0, 1, 1))
    axes.set(xscale=axis.scale(axes.xaxis), xlim=axis.ends)
    order = sorted(values)
    places = [(axes.transScale + axes.transLimits).transform((value, 0))[0] for value in order]
    assert places == sorted(places)
    assert all(0 < at < 1 for at in places)


def test_a_broken_axis_is_drawn_and_said():
    points = [point(number, "near", 1.0 + number / 9, 98.0) for number in range(4)]
    whole = accuracy_against_latency(chart(*points))
    broken = accuracy_against_latency(chart(*points, point(4, "ruined", 1.2, 11.0)))
    for drawing, is_broken in ((whole, False), (broken, True)):
        seen = Geometry(drawing.source)
        assert drawing.is_broken == is_broken
        assert any(seen.lines("break")) == is_broken
        assert any("broken axis" in text for _, text, _ in seen.texts) == is_broken
        assert ("The vertical axis is broken" in drawing.source) == is_broken


def test_an_estimate_is_hollow_and_its_interval_dashed():
    measured, estimated = point(1, "int8"), replace(point(2, "fp16", 2.0), evidence="about")
    root = draw(point(0, "fp32"), measured, estimated)
    found = {element.get("id"): element for element in root.iter() if element.get("id")}
    marks = [next(found[f"point-{number}"].iter(f"{{{SVG}}}use")) for number in (1, 2)]
    assert [mark.get("class").split()[0] for mark in marks] == ["fill-accent", "fill-paper"]
    bars = [found[f"point-{number}"].find(f"{{{SVG}}}path") for number in (1, 2)]
    assert [bar.get("stroke-dasharray") for bar in bars] == [None, "3,2"]
    assert {"measured", "estimated", "FP32"} <= {*texts(root)}


def test_the_limit_is_a_labelled_line_unless_it_is_far_off():
    near = accuracy_against_latency(
        chart(point(0, "fp32"), point(1, "a", 2.0, 97.0), limit=(97.2, "limit: 97.2 %"))
    )
    assert "limit: 97.2 %" in near.source
    far = accuracy_against_latency(
        chart(point(0, "fp32"), point(1, "a"), limit=(50.0, "limit: 50"))
    )
    assert "limit: 50" not in far.source


near = st.tuples(st.floats(0, 600), st.floats(0, 300))


@examples(12)
@given(st.lists(near, min_size=1, max_size=12))
def test_labels_never_overlap(anchors):
    bounds = Box(0, 0, 640, 320)
    marks = [Box.around(*anchor, 5) for anchor in anchors]
    near = [around(anchor, (70.0, 12.0), 200) for anchor in anchors]
    labels = place(anchors, near, bounds, Obstacles(marks))
    placed = [label.box for label in labels if label is not None]
    for index, box in enumerate(placed):
        assert is_within(box, bounds)
        assert not any(overlaps(box, other) for other in (*placed[index + 1 :], *marks))


def test_a_label_without_room_is_left_out():
    near = [around((5.0, 5.0), (100.0, 10.0), 20)]
    assert place([(5.0, 5.0)], near, Box(0, 0, 50, 50), Obstacles()) == [None]
