from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.tables import each
from trtcal.documents.streams import visible
from trtcal.reporting.charts import Point, accuracy_against_latency, pareto_front
from trtcal.reporting.svg import SVG, Box, place

HOSTILE = [
    *("$x^2$", "$", r"\alpha $a_b", "<script>alert(1)</script>", "a\"b'c", "\x1b[31m"),
    *("\u202eevil", "数字"),
]


def point(number: int, name: str, latency: float = 1.0, accuracy: float | None = 98.0) -> Point:
    reaches = None if accuracy is None else (accuracy - 0.5, accuracy + 0.5)
    around = (latency * 0.9, latency * 1.1)
    return Point(number, name, latency, around, accuracy, reaches, number == 0)


def draw(points: list[Point]) -> ET.Element:
    source = accuracy_against_latency(points, "Top-1 accuracy", "%")
    return ET.fromstring(source)  # noqa: S314 (drawn a line above)


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{{{SVG}}}text")]


def test_the_front_is_what_nothing_beats():
    points = [(1.0, 90.0), (2.0, 95.0), (2.5, 94.0), (3.0, 95.0), (0.5, 80.0)]
    assert pareto_front(points) == [4, 0, 1]
    assert pareto_front([(1.0, 90.0), (1.0, 90.0)]) == [0, 1]
    assert pareto_front([]) == []


def test_every_point_is_a_named_element_with_a_tooltip():
    root = draw([point(0, "fp32"), point(1, "int8", 0.5, 97.0)])
    found = {element.get("id"): element for element in root.iter() if element.get("id")}
    assert (found["point-1"].get("tabindex"), found["point-1"].get("role")) == ("0", "img")
    assert found["point-1"].get("aria-label") == found["point-1"][0].text
    assert {"point-0", "point-1", "pareto-front", "chart-title"} <= set(found)
    assert found["point-1"][0].text == (
        "int8: Top-1 accuracy 97.00 % (96.50 to 97.50); p50 0.500 ms (0.450 to 0.550)"
    )
    assert "On the Pareto front: int8, fp32." in found["chart-description"].text


def test_it_carries_no_style_no_link_and_no_metadata():
    source = accuracy_against_latency([point(0, "fp32"), point(1, "int8")], "Top-1", "%")
    assert "style=" not in source
    assert "<style" not in source
    assert "http" not in source.replace(SVG, "")
    assert "metadata" not in source


@each("name", HOSTILE)
def test_a_name_is_text_and_nothing_else(name):
    plain = [element.tag for element in draw([point(0, "fp32"), point(1, "plain")]).iter()]
    root = draw([point(0, "fp32"), point(1, name)])
    assert [element.tag for element in root.iter()] == plain
    assert visible(name) in texts(root)


def test_the_same_points_give_the_same_bytes():
    points = [point(number, f"m{number}", 1.0 + number, 90.0 + number) for number in range(5)]
    drawn = [accuracy_against_latency(points, "Top-1", "%") for _ in range(2)]
    assert drawn[0] == drawn[1]


@each(
    "points",
    [
        [point(0, "only")],
        [point(0, "reference", accuracy=None), point(1, "none", accuracy=None)],
        [point(0, "reference", accuracy=None), point(1, "some", 0.5, 30.0)],
        [point(number, f"equal {number}") for number in range(50)],
        [point(number, "far", 10.0**number) for number in range(4)],
        [Point(0, "zero", 0.0, (0.0, 0.0), 0.0)],
    ],
)
def test_it_plots_odd_cases(points):
    root = draw(points)
    drawn = [one for one in points if one.accuracy is not None]
    marks = [element for element in root.iter() if (element.get("id") or "").startswith("point-")]
    assert len(marks) == len({one.number for one in drawn})


def test_many_points_bear_their_numbers():
    root = draw([point(number, f"name {number}") for number in range(50)])
    assert {str(number) for number in range(50)} <= set(texts(root))


near = st.tuples(st.floats(0, 600), st.floats(0, 300))


@examples(12)
@given(st.lists(near, min_size=1, max_size=12))
def test_labels_never_overlap(anchors):
    bounds = Box(0, 0, 640, 320)
    marks = [Box.around(*anchor, 5) for anchor in anchors]
    boxes = place(anchors, [(70.0, 12.0)] * len(anchors), bounds, marks)
    placed = [box for box in boxes if box is not None]
    for index, box in enumerate(placed):
        assert bounds.holds(box)
        assert not any(box.overlaps(other) for other in (*placed[index + 1 :], *marks))
    assert len(placed) == len(anchors)


def test_a_label_without_room_is_left_out():
    assert place([(5.0, 5.0)], [(100.0, 10.0)], Box(0, 0, 50, 50)) == [None]
