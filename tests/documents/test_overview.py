"""What Python and a notebook show of results: short, and harmless whatever the names are."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.fixtures.tables import each
from trtcal.documents.overview import Overview, Shown

HOSTILE = "</td><script>alert(1)</script>\u202e\x1b[31m\n\"'&"


class Elements(HTMLParser):
    """The names of elements, their attributes, and the text."""

    def __init__(self, html):
        super().__init__()
        self.names, self.attributes, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@dataclass(frozen=True)
class Pair(Shown):
    first: str
    second: Path = Path("b")
    many: tuple = ()
    hidden: int = field(default=1, repr=False)


@dataclass(frozen=True)
class Network(Shown):
    layers: tuple

    def overview(self):
        facts = [f"{name} is a layer" for name in self.layers]
        columns = {"layer": "{0}", HOSTILE: lambda row: row[1]}
        return Overview(
            f"Network {self.layers[0]}", facts, (), self.layers, columns, "-", Path(HOSTILE)
        )


def test_fields_that_differ_from_their_defaults_are_shown():
    assert repr(Pair("a")) == "Pair(first='a')"
    assert repr(Pair("a", Path("c"), hidden=2)) == "Pair(first='a', second=c)"
    assert Pair("a") == Pair("a")
    assert "<td" in Pair("a")._repr_html_()


@each("count", [1, 5, 200])
def test_texts_are_bounded_whatever_the_size(count):
    for name in ("n" * 2_000, '"' * 300):
        network = Network((name,) * count)
        assert len(repr(network)) <= 500
        assert repr(network).count("\n") < 5
        assert len(network._repr_html_()) <= 10_000
        assert len(repr(Pair("a", many=(network,) * count))) <= 500


def test_the_rest_of_a_long_table_is_counted():
    html = Network(("ab",) * 50)._repr_html_()
    assert (html.count("<tr>"), "and 30 more" in html) == (21, True)


def test_hostile_names_are_texts():
    html = Elements(Network((HOSTILE,) * 3)._repr_html_())
    assert set(html.names) <= {
        "a",
        "br",
        "div",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
    }
    assert {name for name, _ in html.attributes} == {"href", "style"}
    assert "<script>" in html.text
    assert not {"\u202e", "\x1b"} & set(html.text)
    assert not {"\u202e", "\x1b"} & set(repr(Network((HOSTILE,))))


@pytest.mark.parametrize("page", ["javascript:alert(1)", "//elsewhere/x", "a b.html"])
def test_a_link_leads_to_a_file_beside_the_notebook(page):
    html = Elements(Overview("a", page=Path(page)).html)
    ((_, link),) = (pair for pair in html.attributes if pair[0] == "href")
    assert ":" not in link
    assert not link.startswith("//")
