"""Results in a real JupyterLab: their tables are seen, and read in its light and dark themes."""

import json
import os
import subprocess
import time

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Viewer
from tests.browser.notebook import SERVER
from tests.conftest import SAMPLES
from tests.fixtures.slow import SLOW

pytestmark = [
    SLOW,
    pytest.mark.skipif(
        not SERVER.exists(), reason="JupyterLab is not installed: make test-notebook"
    ),
]

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
CONTRAST = {"runOnly": ["color-contrast"]}
CELLS = (
    "import trtcal\n"
    "digits, data = 'samples/digits/digits.onnx', 'samples/digits/calibration.npz'\n"
    "test = 'samples/digits/test.npz'\n"
    "calibration = trtcal.calibrate(digits, data)\n"
    "calibration",
    "int8 = trtcal.quantize(digits, calibration, {'layers': {'head/gemm': 'fp32'}})\nint8",
    "comparison = trtcal.compare(digits, {'int8': int8}, test, rounds=3)\ncomparison",
    "trtcal.report([calibration, comparison], output='report.html')",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the samples and a notebook that was not run yet."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "samples").symlink_to(SAMPLES)
    empty = {"metadata": {}, "outputs": [], "execution_count": None, "cell_type": "code"}
    cells = [{**empty, "id": f"cell-{n}", "source": text} for n, text in enumerate(CELLS)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": cells}
    (folder / "results.ipynb").write_text(json.dumps(book))
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """The address of a JupyterLab in that folder, and where its settings are."""
    own = tmp_path_factory.mktemp("jupyter")
    names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    places = dict.fromkeys(
        (*names, "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"), str(own)
    )
    quiet = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    environment = {**os.environ, **places, "TRTCAL_NO_PROGRESS": "1"}
    with subprocess.Popen([SERVER, *quiet], cwd=folder, env=environment) as child:
        try:
            while not (files := [*own.glob("jpserver-*.json")]):
                assert child.poll() is None, "JupyterLab has ended"
                time.sleep(0.2)
            yield json.loads(files[0].read_text()), own
        finally:
            child.terminate()


@pytest.mark.parametrize("scheme", THEMES)
def test_the_tables_of_results_are_seen(viewer: Viewer, server, folder, scheme):
    about, own = server
    settings = own / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"theme": THEMES[scheme]}))
    address = f"{about['url']}lab/tree/results.ipynb?reset&token={about['token']}"
    size = {"width": 1280, "height": 1600}
    with viewer.open(address, viewport=size) as opened:
        page = opened.page
        page.locator(".jp-Notebook .jp-Cell").first.click()
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        cards = page.locator(".jp-OutputArea-executeResult .jp-RenderedHTML > div")
        cards.nth(len(CELLS) - 1).wait_for()
        texts = cards.all_inner_texts()
        assert cards.locator("table").count() == 3
        assert "Calibration by percentile" in texts[0]
        assert "head/gemm" in texts[1]
        assert "top-1 %" in texts[2]
        assert any(word in texts[3] for word in ("SHIP", "INCONCLUSIVE"))
        assert cards.nth(3).locator("a").inner_text() == "report.html"
        assert "<div" not in "".join(texts)
        found = Axe().run(page, context=".jp-RenderedHTML", options=CONTRAST)
        assert found.violations_count == 0, found.generate_report()
        if pictures := os.environ.get("NOTEBOOK_PICTURES"):
            page.screenshot(path=f"{pictures}/notebook-{scheme}.png")
    assert (folder / "report.html").exists()
