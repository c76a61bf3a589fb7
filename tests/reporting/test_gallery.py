"""The committed reports hold together, are light, and name no folder of a machine."""

import re

from tests.conftest import SAMPLES
from tests.fixtures.tables import each
from trtcal.cli.main import run_command

GALLERY = sorted((SAMPLES.parent / "reports").glob("*.html"))
A_MACHINES_FOLDER = re.compile(r"[\"' >](/(tmp|home|root|work|var|opt|Users)/|[A-Z]:\\)")


def test_it_shows_what_may_be_shipped_and_what_not():
    words = {re.search("<title>([A-Z ]+):", page.read_text())[1] for page in GALLERY}
    assert "DO NOT SHIP" in words
    assert words & {"SHIP", "SHIP WITH CARE"}


@each("page", GALLERY)
def test_a_page_of_the_gallery_is_whole_light_and_discreet(page):
    data = page.with_suffix(".json")
    assert run_command(["verify", str(page), str(data)]) == 0
    assert page.stat().st_size < 300_000
    for text in (page.read_text(), data.read_text()):
        assert not A_MACHINES_FOLDER.search(text)
