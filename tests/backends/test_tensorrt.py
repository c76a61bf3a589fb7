"""What TensorRT's backend does around the builder, which needs a GPU."""

import json
from types import SimpleNamespace

import pytest

from tests.fixtures.networks import conv_net
from trtcal.backends import child, tensorrt
from trtcal.backends.base import Made
from trtcal.backends.options import BuildOptions
from trtcal.backends.tensorrt import TensorRT
from trtcal.backends.tensorrt_worker import plugins_of
from trtcal.errors import BackendError
from trtcal.model import load_model


def builder(fails=False):
    """Return a stand-in for the child process, which adds to the timing cache as TensorRT does."""

    def build(request, model, options, folder):
        cache = folder / request["timing_cache"]
        cache.write_bytes((cache.read_bytes() if cache.exists() else b"") + b"+")
        if fails:
            raise BackendError("it failed")
        return Made(())

    return build


def test_a_timing_cache_is_read_and_written_back(tmp_path, monkeypatch):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    options = BuildOptions("gpu", timing_cache=tmp_path / "kept" / "timing.cache")
    monkeypatch.setattr(tensorrt, "_build", builder())
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        TensorRT().build_in(model, options, folder)
        assert options.timing_cache.read_bytes() == b"+" * size
    assert [item.name for item in options.timing_cache.parent.iterdir()] == ["timing.cache"]


def test_a_failed_build_leaves_the_timing_cache_as_it_was(tmp_path, monkeypatch):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    options = BuildOptions("gpu", timing_cache=tmp_path / "timing.cache")
    options.timing_cache.write_bytes(b"old")
    monkeypatch.setattr(tensorrt, "_build", builder(fails=True))
    (tmp_path / "work").mkdir()
    with pytest.raises(BackendError):
        TensorRT().build_in(model, options, tmp_path / "work")
    assert options.timing_cache.read_bytes() == b"old"


class PluginLayer:
    """Stands in for the classes that the bindings give a layer."""


def layer(kind, plugin=None):
    made = PluginLayer()
    made.type, made.plugin = f"LayerType.{kind}", plugin
    return made


def test_plugins_of_both_kinds_are_named():
    core = SimpleNamespace(plugin_name="New_TRT", plugin_version="2")
    new = SimpleNamespace(get_capability_interface=lambda kind: core)
    old = SimpleNamespace(plugin_type="Old_TRT", plugin_version="1")
    trt = SimpleNamespace(
        IPluginV2Layer=PluginLayer,
        IPluginV3Layer=PluginLayer,
        PluginCapabilityType=SimpleNamespace(CORE="core"),
    )
    network = [layer("CONVOLUTION"), layer("PLUGIN_V3", new), layer("PLUGIN_V2", old)]
    assert plugins_of(network, trt) == ["New_TRT 2", "Old_TRT 1"]


@pytest.mark.parametrize(
    ("version", "quantized", "kept", "fp16", "rewritten"),
    [
        ("8.6.0", False, {}, True, True),
        ("8.6.0", False, {"soft": "fp32"}, True, True),
        ("8.6.0", True, {}, True, True),
        ("8.6.0", True, {"soft": "fp32"}, False, True),
        ("10.3.0", True, {"soft": "fp32"}, False, False),
    ],
)
def test_float16_is_a_flag_for_the_versions_that_have_no_strong_typing(
    tmp_path, monkeypatch, version, quantized, kept, fp16, rewritten
):
    seen = {}
    monkeypatch.setattr(tensorrt, "version_of", lambda name: version)
    monkeypatch.setattr(tensorrt, "fp16_tensors", lambda graph: {"x"})
    monkeypatch.setattr(tensorrt, "kept_in_float32", lambda proto: kept)
    monkeypatch.setattr(tensorrt, "_is_quantized", lambda model: quantized)
    monkeypatch.setattr(tensorrt, "for_tensorrt_8", lambda proto: seen.update(rewritten=1) or proto)
    monkeypatch.setattr(child, "run_worker", lambda module, request, *_: seen.update(request))
    monkeypatch.setattr(tensorrt, "listed_layers", lambda folder, options: ())
    model = load_model(conv_net(tmp_path / "net.onnx"))
    TensorRT().build_in(model, BuildOptions("gpu"), tmp_path)
    assert ("rewritten" in seen) == rewritten
    assert (seen["fp16"], seen["float32"]) == (fp16, kept if fp16 else {})


def test_no_trtexec_is_named_that_would_get_another_model(tmp_path, monkeypatch):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    monkeypatch.setattr(tensorrt, "version_of", lambda name: "8.6.0")
    assert TensorRT().command(model, BuildOptions("gpu"), "m.onnx", "m.plan")
    monkeypatch.setattr(tensorrt, "for_tensorrt_8", lambda proto: None)
    assert TensorRT().command(model, BuildOptions("gpu"), "m.onnx", "m.plan") is None


LISTED = """[V] Engine Layer Information:
Layer(Reformat): copy, Tactic: 0x0, x (Float[-1,3,8,8]) -> q (Int8[-1,3:4,8,8])
[V] end
"""
DYNAMIC = "N/A due to dynamic shapes"


def test_types_that_the_inspector_lacks_come_from_the_log(tmp_path):
    tensors = [
        {"Name": one, "Dimensions": [-1, 3, 8, 8], "Format/Datatype": DYNAMIC} for one in "xq"
    ]
    layer = {"Name": "copy", "LayerType": "Reformat", "Inputs": tensors[:1], "Outputs": tensors[1:]}
    (tmp_path / "layers.json").write_text(json.dumps({"Layers": [layer]}))
    (tmp_path / "build.log").write_text("")
    (bare,) = tensorrt.listed_layers(tmp_path, BuildOptions("gpu"))
    assert bare.inputs[0].dtype == "unknown"
    (tmp_path / "build.log").write_text(LISTED)
    (found,) = tensorrt.listed_layers(tmp_path, BuildOptions("gpu"))
    assert (found.inputs[0].dtype, found.outputs[0].dtype) == ("fp32", "int8")
    assert found.outputs[0].shape == (-1, 3, 8, 8)
