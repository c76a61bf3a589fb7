"""What TensorRT's backend does around the builder, which needs a GPU."""

from types import SimpleNamespace

import pytest

from tests.fixtures.networks import conv_net
from trtcal.backends import tensorrt
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
