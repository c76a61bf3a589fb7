"""What a bundle holds for Triton, DeepStream and Docker, against their documented fields."""

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import TensorProto, helper

from tests.fixtures.commands import environment, refused, succeed
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.runs.conftest import TARGETS
from trtcal.calibration.formats.tensorrt_cache import read_cache
from trtcal.config import ImagesConfig
from trtcal.documents import read_json
from trtcal.errors import InputError
from trtcal.evidence.manifest import read_build
from trtcal.model import load_model
from trtcal.ranges import Calibration
from trtcal.runs.bundle import verifying
from trtcal.runs.bundle.building import Draft, make_bundle
from trtcal.runs.bundle.verifying import MANIFEST, Options, verify
from trtcal.runs.origin import Origin
from trtcal.wings.fleet.exporters.deepstream import export_deepstream
from trtcal.wings.fleet.exporters.docker import export_docker
from trtcal.wings.fleet.exporters.triton import export_triton

IMAGES = ImagesConfig("gray", "NCHW", 0.0625, (0.5,), (0.25,), (8, 8))
NAMES = tuple(f"digit {number}" for number in range(10))
EXPORTS = (export_triton, export_deepstream, export_docker)

KEYS = """
    auto-inc-mem batch-size classifier-async-mode classifier-threshold classifier-type
    cluster-mode crop-objects-to-roi-boundary custom-lib-path custom-network-config
    disable-output-host-copy enable-dla enable-dbscan engine-create-func-name filter-out-class-ids
    force-implicit-batch-dim gie-unique-id gpu-id infer-dims input-object-max-height
    input-object-max-width input-object-min-height input-object-min-width input-tensor-from-meta
    int8-calib-file interval is-classifier labelfile-path layer-device-precision
    maintain-aspect-ratio max-gpu-mem-per mean-file model-color-format model-engine-file
    net-scale-factor network-input-order network-mode network-type num-detected-classes offsets
    onnx-file operate-on-class-ids operate-on-gie-id output-blob-names output-instance-mask
    output-io-formats output-tensor-meta parse-bbox-func-name parse-bbox-instance-mask-func-name
    parse-classifier-func-name process-mode scaling-compute-hw scaling-filter
    secondary-reinfer-interval segmentation-output-order segmentation-threshold symmetric-padding
    tensor-meta-pool-size tlt-encoded-model tlt-model-key use-dla-core workspace-size
"""
NVINFER = set(KEYS.split())
"""Keys of [property] that Gst-nvinfer's page and its property parser know."""


TRITON = """
ModelConfig: name=string platform=string backend=string max_batch_size=int32 input=*ModelInput
  output=*ModelOutput default_model_filename=string cc_model_filenames=*Pair
  instance_group=*ModelInstanceGroup optimization=ModelOptimizationPolicy
  dynamic_batching=ModelDynamicBatching
ModelInput: name=string data_type=DataType dims=*int64 reshape=ModelTensorReshape
ModelOutput: name=string data_type=DataType dims=*int64 reshape=ModelTensorReshape
  label_filename=string
ModelTensorReshape: shape=*int64
ModelInstanceGroup: name=string kind=Kind count=int32
ModelOptimizationPolicy: execution_accelerators=ExecutionAccelerators
ExecutionAccelerators: gpu_execution_accelerator=*Accelerator cpu_execution_accelerator=*Accelerator
Accelerator: name=string parameters=*Pair
ModelDynamicBatching: preferred_batch_size=*int32
Pair: key=string value=string
"""
"""Messages and fields that model_config.proto documents, of which the exporter writes some."""
ENUMS = {
    "DataType": "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 "
    "STRING BF16",
    "Kind": "AUTO GPU CPU MODEL",
}


@cache
def documented():
    """Return a ModelConfig of the documented fields; their numbers matter to bytes alone."""
    file = descriptor_pb2.FileDescriptorProto(name="documented", package="d", syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        start = "TYPE" if name == "DataType" else "KIND"
        for number, value in enumerate(values.split()):
            enum.value.add(name=f"{start}_{value}", number=number)
    for block in re.split(r"\n(?! )", TRITON.strip()):
        name, *fields = block.replace(":", "").split()
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate((one.split("=") for one in fields), 1):
            added = message.field.add(name=field, number=number, label=1 + 2 * ("*" in kind))
            plain = kind.lstrip("*")
            if plain[0].isupper():
                added.type, added.type_name = (14 if plain in ENUMS else 11), f".d.{plain}"
            else:
                added.type = {"string": 9, "int32": 5, "int64": 3}[plain]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("d.ModelConfig"))


@cache
def tritons():
    """Return Triton's own ModelConfig, without the gRPC that its package would import."""
    package = pytest.importorskip("tritonclient")
    path = Path(package.__file__).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ModelConfig


def parsed(path):
    """Return a config.pbtxt as the documented fields read it; an unknown one is an error."""
    return text_format.Parse(path.read_text(), documented()())


def properties(folder):
    """Return nvinfer's file as GLib's key files are read."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None, comment_prefixes="#")
    parser.read_string((folder / "deepstream" / "config_infer.txt").read_text())
    assert parser.sections() == ["property"]
    return dict(parser["property"])


@pytest.fixture(scope="module")
def exported(request_of, tmp_path_factory):
    """A bundle with everything."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    asked = request_of(images=IMAGES, class_names=NAMES, exports=EXPORTS)
    make_bundle(asked, folder)
    return folder


@pytest.fixture
def draft(made_bundle, request_of, tmp_path):
    """Return what makes a draft whose engines say that they are TensorRT's, with other settings."""
    folder = Path(shutil.copytree(made_bundle, tmp_path / "bundle"))
    about = read_json(folder / MANIFEST)["predicate"]
    entry = {
        **about["engines"][0],
        "product": "tensorrt",
        "capabilities": ["sm89"],
        "shapes": [{"image": [[1, 1, 8, 8], [4, 1, 8, 8], [16, 1, 8, 8]]}],
    }
    other = {**entry, "capabilities": ["sm120"]}
    made = read_build(folder / "engines" / "cpu")
    model = load_model(folder / about["model"])

    def draft(images=IMAGES, engines=(entry, other), model=model, task=about["task"]):
        asked = request_of(images=images)
        pairs = tuple((one, made) for one in engines)
        return Draft(folder, asked, Origin.read(asked.run), pairs, model, about["model"], task)

    return draft


def test_a_bundle_with_every_export_is_ready(exported, keys):
    assert verify(exported, Options(keys.public)).verdict == "READY"
    (exported / "triton").rename(exported / "moved")
    assert verify(exported, Options(keys.public)).status == 2
    (exported / "moved").rename(exported / "triton")


def test_triton_reads_the_configuration_of_the_cpus_engine(exported):
    place = exported / "triton" / "int8-percentile-cpu"
    config = parsed(place / "config.pbtxt")
    about = (config.name, config.platform, config.max_batch_size)
    assert about == (place.name, "onnxruntime_onnx", 32)
    (one,) = config.input
    assert (one.name, list(one.dims)) == ("image", [1, 8, 8])
    assert "data_type: TYPE_FP32" in str(one)
    (out,) = config.output
    assert (out.name, list(out.dims), out.label_filename) == ("logits", [10], "labels.txt")
    assert (place / out.label_filename).read_text().splitlines() == list(NAMES)
    assert "kind: KIND_CPU" in str(config.instance_group[0])
    served = (place / "1" / "model.onnx").read_bytes()
    assert served == (exported / "engines" / "cpu" / "engine.onnx").read_bytes()


@pytest.mark.skipif("sm89" not in TARGETS, reason="needs TensorRT-RTX")
def test_triton_builds_its_own_engine_where_ours_is_of_tensorrt_rtx(exported):
    place = exported / "triton" / "int8-percentile"
    config = parsed(place / "config.pbtxt")
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert [(one.key, one.value) for one in accelerator.parameters] == [("precision_mode", "INT8")]
    assert config.platform == "onnxruntime_onnx"
    served = (place / "1" / "model.onnx").read_bytes()
    assert served == (exported / "model" / "int8-percentile.onnx").read_bytes()


def test_engines_of_tensorrt_are_one_model_with_a_file_for_each_capability(draft):
    made = draft()
    assert export_triton(made) == []
    place = made.folder / "triton" / "int8-percentile"
    config = parsed(place / "config.pbtxt")
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 16)
    files = {one.key: one.value for one in config.cc_model_filenames}
    assert files == {"8.9": "model_sm89.plan", "12.0": "model_sm120.plan"}
    assert config.default_model_filename == "model_sm89.plan"
    names = {path.name for path in (place / "1").iterdir()}
    assert names == set(files.values())
    assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("shape", "batch", "dims", "reshaped"),
    [
        (("n", 3, "h", 5), 16, [3, -1, 5], False),
        ((2, 3), 0, [2, 3], False),
        ((), 0, [1], True),
        (("n",), 16, [1], True),
    ],
)
def test_shapes_become_triton_dims(draft, tmp_path, shape, batch, dims, reshaped):
    name = 'odd "name"\n'
    one = helper.make_tensor_value_info(name, TensorProto.INT64, shape)
    two = helper.make_tensor_value_info("made", TensorProto.INT64, shape)
    graph = helper.make_graph([helper.make_node("Identity", [name], ["made"])], "g", [one], [two])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m")
    made = draft(model=load_model(tmp_path / "m"))
    export_triton(made)
    config = parsed(made.folder / "triton" / "int8-percentile" / "config.pbtxt")
    assert config.max_batch_size == batch
    assert (config.input[0].name, list(config.input[0].dims)) == (name, dims)
    assert config.input[0].HasField("reshape") == reshaped


def test_tritons_own_schema_reads_every_configuration(exported, draft):
    made = draft()
    export_triton(made)
    found = [*exported.glob("triton/*/config.pbtxt"), *made.folder.glob("triton/*/config.pbtxt")]
    assert len(found) > len(TARGETS)
    for path in found:
        assert text_format.Parse(path.read_text(), tritons()()).name == path.parent.name


def test_every_key_of_the_nvinfer_file_is_documented(exported):
    found = properties(exported)
    assert set(found) <= NVINFER
    assert {"net-scale-factor", "offsets", "onnx-file", "batch-size", "network-mode"} <= set(found)


def test_nvinfer_has_the_cache_without_which_it_builds_in_fp16(exported):
    cache = read_cache(exported / "deepstream" / properties(exported)["int8-calib-file"])
    ranges = Calibration.read(exported / "calibration.json")
    assert cache.ranges.keys() == ranges.ranges.keys()
    for name, one in cache.ranges.items():
        assert one.amax == pytest.approx(ranges.ranges[name].amax, rel=1e-5)


def test_nvinfer_prepares_pixels_as_they_are_declared(exported):
    found = properties(exported)
    factor, offset = float(found["net-scale-factor"]), float(found["offsets"])
    pixels = np.arange(256)
    declared = (pixels * IMAGES.scale - IMAGES.mean[0]) / IMAGES.std[0]
    np.testing.assert_allclose(factor * (pixels - offset), declared, rtol=1e-12, atol=1e-12)
    assert (found["model-color-format"], found["network-input-order"]) == ("2", "0")
    assert found["infer-dims"] == "1;8;8"


def test_the_files_that_nvinfer_is_given_are_there(exported):
    found = properties(exported)
    for key in ("onnx-file", "labelfile-path"):
        assert (exported / "deepstream" / found[key]).is_file()
    labels = (exported / "deepstream" / found["labelfile-path"]).read_text()
    assert labels.strip().split(";") == list(NAMES)
    assert (found["network-mode"], found["network-type"]) == ("1", "1")
    assert found["output-blob-names"] == "logits"
    assert "model-engine-file" not in found  # nvinfer loads no engine of TensorRT-RTX


def of_nvinfer(made):
    """Return the properties that nvinfer gets of a draft, and the notes about it."""
    notes = export_deepstream(made)
    return properties(made.folder), " ".join(notes)


def test_nvinfer_gets_the_engine_of_tensorrt_and_its_batch(draft):
    made = draft()
    found, _ = of_nvinfer(made)
    assert (made.folder / "deepstream" / found["model-engine-file"]).is_file()
    assert found["batch-size"] == "16"


def test_a_colour_image_has_an_offset_for_each_channel(draft):
    colour = ImagesConfig("BGR", "NHWC", 1.0, (1.0, 2.0, 3.0), (2.0, 2.0, 2.0), (8, 8))
    found, _ = of_nvinfer(draft(colour))
    assert (found["offsets"], found["net-scale-factor"]) == ("1.0;2.0;3.0", "0.5")
    assert (found["model-color-format"], found["network-input-order"]) == ("1", "1")


def test_a_letterbox_is_a_padding_on_both_sides(draft):
    boxed = replace(IMAGES, resize=(8, 8), crop=None, letterbox=0, interpolation="opencv-bilinear")
    found, notes = of_nvinfer(draft(boxed))
    keys = ("maintain-aspect-ratio", "symmetric-padding", "scaling-filter")
    assert ([found[key] for key in keys], notes) == (["1", "1", "1"], "")
    plain, _ = of_nvinfer(draft(replace(boxed, letterbox=None)))
    assert (plain["maintain-aspect-ratio"], "symmetric-padding" in plain) == ("0", False)


@each(
    "images, hint",
    [
        (None, "[images]"),
        (ImagesConfig("RGB", "NCHW", 1.0, std=(1.0, 2.0, 3.0)), "std"),
    ],
)
def test_what_nvinfer_cannot_express_is_an_error_with_a_hint(draft, images, hint):
    with fails(InputError, hint=hint):
        export_deepstream(draft(images))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"resize": 8}, "aspect ratio"),
        ({"resize": 9, "crop": (8, 8)}, "crop"),
        ({"resize": (8, 8), "interpolation": "lanczos"}, "lanczos"),
        ({"resize": (8, 8), "letterbox": 114}, "114"),
    ],
)
def test_what_nvinfer_does_in_another_way_is_said_in_its_file(draft, given, words):
    made = draft(replace(IMAGES, **{"resize": None, **given}))
    assert words in of_nvinfer(made)[1]
    assert words in (made.folder / "deepstream" / "config_infer.txt").read_text()


def test_a_network_that_is_no_classifier_hands_out_its_tensors(draft):
    found, _ = of_nvinfer(draft(task=None))
    assert (found["network-type"], found["output-tensor-meta"]) == ("100", "1")


@pytest.mark.parametrize("name", ["a;b", "a\nonnx-file=other"])
def test_a_name_that_would_be_another_line_of_nvinfers_file_is_an_error(draft, name):
    made = draft()
    made.model.proto.graph.output[0].name = name
    with fails(InputError, repr(name)):
        export_deepstream(replace(made, model=replace(made.model, proto=made.model.proto)))


@pytest.mark.parametrize("version", ["1.0; echo", "1\nRUN echo", "$(echo)", ""])
def test_a_version_that_a_shell_would_run_is_an_error(draft, version):
    made = draft()
    entry, build = made.engines[0]
    odd = replace(made, engines=(({**entry, "version": version}, build),))
    with fails(InputError, repr(version)):
        export_docker(odd)


def test_the_dockerfile_pins_what_it_installs_and_checks_before_it_serves(exported):
    lines = (exported / "docker" / "Dockerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if not line.startswith("#")]
    assert words == ["ARG", "FROM", "RUN", "COPY", "ENV", "ENTRYPOINT", "CMD"]
    packages = lines[[line.split()[0] for line in lines].index("RUN")].split()[4:]
    assert {"onnxruntime", "numpy", "cryptography"} <= {one.split("==")[0] for one in packages}
    assert all(re.fullmatch(r"[a-z-]+==[\w.]+", one) for one in packages)
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT"))[-1] == "/opt/trtcal/check.sh"
    for name in next(line for line in lines if line.startswith("COPY")).split()[1:-1]:
        assert (exported / "docker" / name).is_file()
    copied = (exported / "docker" / "verify_bundle.py").read_bytes()
    assert copied == Path(verifying.__file__).read_bytes()


def test_the_entry_point_serves_only_what_holds(exported, keys, tmp_path):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    script = exported / "docker" / "check.sh"

    def start(folder, key=keys.public):
        about = {"BUNDLE": str(folder), "VERIFIER": verifying.__file__}
        variables = environment(PATH=path, TRTCAL_PUBLIC_KEY=str(key), **about)
        command = ["/bin/sh", script, "echo", "served"]
        return subprocess.run(command, env=variables, capture_output=True, text=True)

    good = start(exported)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "served"), good.stdout
    copied = Path(shutil.copytree(exported, tmp_path / "bundle"))
    (copied / "golden.npz").write_bytes(b"")
    bad = start(copied)
    assert (bad.returncode, "served" in bad.stdout) == (2, False)
    assert start(exported, tmp_path / "none.pem").returncode == 2


def test_the_command_adds_what_is_asked_for(made_run, tmp_path, capsys):
    bundle = tmp_path / "bundle"
    config = made_run.parent / "trtcal.toml"
    arguments = ["bundle", made_run, "--config", config, "--variant", "int8-percentile"]
    arguments += ["-o", bundle, "--triton", "--docker"]
    succeed(capsys, *arguments)
    assert (bundle / "triton").is_dir()
    assert (bundle / "docker").is_dir()
    assert "[images]" in refused(capsys, *arguments, "--deepstream")


def asked_in(draft, product, *precisions):
    """Return a draft whose engine was asked in these precisions."""
    (entry, _), *_ = draft().engines
    precision = {**entry["precision"], "asked": dict.fromkeys(precisions, 1)}
    return draft(engines=({**entry, "product": product, "precision": precision},))


@pytest.mark.parametrize("export", [export_triton, export_deepstream])
@pytest.mark.parametrize(
    ("precisions", "names"),
    [(("fp8", "fp16"), ["FP8"]), (("int4", "int8", "nvfp4"), ["INT4", "NVFP4"])],
)
def test_a_server_that_builds_has_no_mode_for_fp8_and_four_bits(draft, export, precisions, names):
    with fails(InputError, *names, hint="target gpu"):
        export(asked_in(draft, "tensorrt-rtx", *precisions))


def test_nvinfer_only_loads_an_engine_in_fp8(draft):
    made = asked_in(draft, "tensorrt", "fp8", "int8")
    found, _ = of_nvinfer(made)
    assert (made.folder / "deepstream" / found["model-engine-file"]).is_file()
    assert not {"onnx-file", "network-mode", "int8-calib-file"} & found.keys()
    about = (made.folder / "deepstream" / "config_infer.txt").read_text()
    assert "nvinfer cannot build this engine" in about
    export_triton(made)
