"""The figures of docs/concepts are made by the code, are small, and each is described on a page."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from docs.compiled import OPERATORS, RECORD, kernels, operator
from docs.figures import FIGURES, FOLDER, write
from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.registry import BACKENDS

CONCEPTS = sorted((SAMPLES.parent / "docs" / "concepts").glob("*.md"))
SHOWN = re.compile(r"!\[([^\]]+)\]\(\.\./images/concepts/([\w-]+)\.svg\)")
MOST_BYTES = 60_000
RTX = BACKENDS["tensorrt-rtx"].availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))


def texts(path):
    """Return all that a drawing says, in its order."""
    return [one.text for one in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    write(folder)
    return folder


@SLOW
def test_the_figures_that_are_kept_say_what_the_code_says_now(made):
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(FIGURES)
    for name in FIGURES:
        assert texts(FOLDER / f"{name}.svg") == texts(made / f"{name}.svg"), "run `make figures`"


@SLOW
def test_figures_are_the_same_bytes_each_time(made, tmp_path):
    write(tmp_path)
    for name in FIGURES:
        assert (tmp_path / f"{name}.svg").read_bytes() == (made / f"{name}.svg").read_bytes()


@each("name", FIGURES)
def test_a_figure_is_small_and_its_text_is_text(name):
    path = FOLDER / f"{name}.svg"
    assert path.stat().st_size < MOST_BYTES
    assert len(texts(path)) >= 5


def test_every_figure_stands_on_a_page_with_a_sentence_that_says_what_is_seen():
    shown = [pair for page in CONCEPTS for pair in SHOWN.findall(page.read_text())]
    assert sorted(name for _, name in shown) == sorted(FIGURES)
    for text, _ in shown:
        assert len(text.split()) >= 12, text


@SLOW
@needs_rtx
def test_the_compiler_makes_what_the_record_says():
    record = json.loads(RECORD.read_text())
    assert kernels(None) == record["block"]["int8"], "run `python -m docs.compiled`"
    assert operator(*OPERATORS["ConvTranspose"]) == record["operators"]["ConvTranspose"]
