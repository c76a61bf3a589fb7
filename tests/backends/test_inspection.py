"""The inspection that follows a build on a GPU, as far as it runs without one."""

import json
from types import SimpleNamespace

import pytest

from tests.fixtures.engines import needs_rtx
from tests.fixtures.networks import conv_net
from trtcal.backends.child import run_worker
from trtcal.backends.tensorrt_worker import (
    layer_information,
    settings,
    times_document,
    usual_shapes,
)
from trtcal.evidence.layers.inspector import read_inspector

LAYERS = '{"Layers": [{"Name": "conv1", "LayerType": "CaskConvolution"}], "Bindings": []}'
TRT = SimpleNamespace(LayerInformationFormat=SimpleNamespace(JSON="json"))


def test_the_inspectors_json_is_what_the_reader_takes():
    inspector = SimpleNamespace(get_engine_information=lambda form: LAYERS)
    engine = SimpleNamespace(create_engine_inspector=lambda: inspector)
    assert read_inspector(layer_information(engine, TRT))[0].name == "conv1"


def test_times_are_those_of_trtexec():
    runs = [[("a", 1.0), ("b", 2.0), ("a", 1.0)], [("a", 3.0), ("b", 4.0), ("a", 1.0)]]
    count, *layers = times_document(runs)
    assert count == {"count": 2}
    assert [layer["name"] for layer in layers] == ["a", "b", "a"]
    assert layers[1]["timeMs"] == 6.0
    assert layers[1]["averageMs"] == layers[1]["medianMs"] == 3.0
    assert sum(layer["percentage"] for layer in layers) == pytest.approx(100)
    assert json.loads(json.dumps(layers)) == layers
    assert times_document([]) == [{"count": 0}]


def test_layers_are_timed_at_the_usual_shapes_of_the_first_profile():
    first = {"x": [[4, 3], [8, 3], [32, 3]]}
    assert usual_shapes({"profiles": [first, {"x": [[1, 3]] * 3}]}) == {"x": [8, 3]}
    assert usual_shapes({"profiles": []}) == {}


def test_a_timing_cache_that_is_not_there_yet_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trt = SimpleNamespace(ProfilingVerbosity=SimpleNamespace(DETAILED="detailed"))
    request = {"profiles": [], "verbosity": "detailed", "timing_cache": "timing.cache"}
    assert settings(request, trt)["load_timing_cache"] is None
    (tmp_path / "timing.cache").write_bytes(b"+")
    assert settings(request, trt)["load_timing_cache"] == "timing.cache"


@needs_rtx
def test_an_engine_that_cannot_be_inspected_is_still_an_engine(tmp_path):
    conv_net(tmp_path / "model.onnx")
    request = {
        "module": "tensorrt_rtx",
        "model": "model.onnx",
        "engine": "engine.plan",
        "capabilities": [[8, 9]],
        "quantized": False,
        "profiles": [{"x": [[1, 3, 8, 8]] * 3}],
        "verbosity": "detailed",
        "inspect": True,
        "layer_times": True,
    }
    log = tmp_path / "build.log"
    run_worker("trtcal.backends.tensorrt_worker", request, tmp_path, 120)
    inspected = (tmp_path / "layers.json").exists()
    assert inspected != ("[W] the engine could not be inspected" in log.read_text())
    assert (tmp_path / "engine.plan").read_bytes()[:4] == b"vtrt"
