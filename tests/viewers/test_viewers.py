"""Model Explorer and Netron themselves read what `trtcal export` writes, and show it in a browser."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import trtcal
from tests.browser.conftest import required_browser
from trtcal.wings.graph.figures import figured
from trtcal.wings.graph.viewers import export_model_explorer, export_netron

DIGITS = Path(__file__).parent.parent.parent / "samples" / "digits"
OTHERS = ("Input", "Output", "Initializer", "InitializedInput")
PORTS = {"model-explorer": 8671, "netron": 8672}
GPU = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # Model Explorer needs WebGL


def missing(module):
    return pytest.importorskip(module, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "int8.onnx"
    table = trtcal.calibrate(DIGITS / "digits.onnx", DIGITS / "calibration.npz")
    trtcal.quantize(DIGITS / "digits.onnx", table, output=path)
    return figured(path)


def main_graph(model):
    adapter = missing("model_explorer_onnx.main").ONNXAdapter()
    return adapter.convert(str(model), {})["graphs"][0]


def test_model_explorer_names_graph_and_nodes_as_the_node_data_do(quantized, tmp_path):
    model, *files = export_model_explorer(quantized, tmp_path)
    graph = main_graph(model)
    nodes = {node.id for node in graph.nodes if node.label not in OTHERS}
    known = [json.loads(path.read_text()) for path in files]
    assert {name for document in known for name in document} == {graph.id}
    assert {name for document in known for name in document[graph.id]["results"]} <= nodes
    assert known[-1][graph.id]["results"].keys() == nodes  # the precision built


@contextmanager
def served(program, *words):
    """Serve files by a program beside Python, and yield its address."""
    port = PORTS[program]
    command = [Path(sys.executable).parent / program, *map(str, words), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"BROWSER": "true"}) as server:
        try:
            for _ in range(600):
                try:
                    urlopen(f"http://localhost:{port}/").close()
                    break
                except URLError:
                    time.sleep(0.1)
            yield f"http://localhost:{port}/"
        finally:
            server.terminate()


@pytest.fixture
def browser():
    path = required_browser()
    playwright = missing("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        shown = driver.chromium.launch(executable_path=path, args=[*GPU])
        yield shown.new_page(viewport={"width": 1400, "height": 900})
        shown.close()


@pytest.mark.slow
def test_model_explorer_shows_the_node_data(quantized, tmp_path, browser):
    missing("model_explorer")
    model, *files = export_model_explorer(quantized, tmp_path)
    models, data = [{"url": str(model)}], [str(path) for path in files]
    words = (model, "--extensions=model_explorer_onnx", "--no_open_in_browser")
    with served("model-explorer", *words) as address:
        browser.goto(f"{address}?data={json.dumps({'models': models, 'nodeData': data})}")
        browser.get_by_text("precision-built.json").first.wait_for(timeout=300_000)
        browser.get_by_text("unfold_more").first.click()
        browser.screenshot(path=tmp_path / "model-explorer.png")


@pytest.mark.slow
def test_netron_shows_the_figures_of_a_node(quantized, tmp_path, browser):
    missing("netron")
    export_netron(quantized, tmp_path / "shown.onnx")
    with served("netron", tmp_path / "shown.onnx") as address:
        browser.goto(address)
        browser.get_by_role("button", name="Accept").click()
        browser.wait_for_timeout(5_000)  # the graph moves while it is laid out
        browser.locator('[id="node-name-stem/conv"]').click(force=True)
        for key in ("trtcal.requested", "trtcal.built", "trtcal.ms_estimated"):
            browser.locator(f"input[value='{key}']").first.wait_for(timeout=20_000)
        browser.screenshot(path=tmp_path / "netron.png")
