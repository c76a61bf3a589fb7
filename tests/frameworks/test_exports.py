"""What exporters write beside and into ONNX files: Hugging Face's folders, Ultralytics' metadata."""

import json

import numpy as np
import onnx
import pytest

from tests.data.pictures import draw
from tests.fixtures.commands import refused, run
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal.config import read_config
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.loaders import declared_by
from trtcal.wings.frameworks.image_processor import UnknownKeyError, images_of

CONFIG = {
    "architectures": ["ViTForImageClassification"],
    "id2label": {str(number): f"thing {number}" for number in range(5)},
    "model_type": "vit",
}
PROCESSOR = {
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "size": {"height": 8, "width": 8},
}
METADATA = {
    "task": "classify", "imgsz": "[8, 8]", "stride": "1", "channels": "3",
    "names": "{0: 'a', 1: 'b', 2: 'c', 3: 'd', 4: 'e'}",
}  # fmt: skip


def write(folder, *names, **files):
    """Write ONNX files under names, and JSON files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        conv_net(folder / name)
    for name, value in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(value))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "hub", "onnx/model.onnx", config=CONFIG, preprocessor_config=PROCESSOR)
    for number in range(20):
        draw(tmp_path / "images" / f"{number}.png", number, 12, 10)
    return tmp_path


def with_metadata(path, **changes):
    proto = onnx.load(conv_net(path))
    values = {key: value for key, value in {**METADATA, **changes}.items() if value is not None}
    onnx.helper.set_model_props(proto, values)
    onnx.save(proto, path)
    return path


def proto_of(shape=("n", 3, 8, 8)):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    return onnx.helper.make_model(onnx.helper.make_graph([], "g", [value], []))


def test_a_folder_gives_the_preprocessing_the_task_and_the_classes(place, capsys):
    write(place / "hub", "onnx/model_quantized.onnx", "onnx/model_fp16.onnx")
    status, _, err = run(capsys, "init", "hub", "--data", "images")
    assert status == 0
    config = read_config(place / "trtcal.toml")
    assert (config.model, config.task) == (place / "hub", "classification")
    images = config.images
    assert (images.resize, images.mean, images.std) == ((8, 8), (0.5,) * 3, (0.5,) * 3)
    assert (images.interpolation, images.scale) == ("bicubic", 1 / 255)
    read = [line for line in err.splitlines() if line.startswith("read: ")]
    assert "model = hub/onnx/model.onnx" in read[0]
    for name in ("model_quantized.onnx (quantized)", "model_fp16.onnx (float16)"):
        assert name in read[0]
    assert any("thing 0" in line and "config.json (id2label)" in line for line in read)
    assert any("resize" in line and "preprocessor_config.json (size)" in line for line in read)
    assert "guessed: scale" not in err


def test_commands_read_the_preprocessing_too_but_a_declared_one_counts(place, capsys):
    status, _, err = run(capsys, "calibrate", "hub", "--data", "images", "--method", "minmax")
    assert (status, "read: resize = [8, 8]: preprocessor_config.json (size)" in err) == (0, True)
    declared = '[images]\nchannels = "RGB"\nlayout = "NCHW"\nscale = 1\nresize = [8, 8]\n'
    (place / "trtcal.toml").write_text(declared)
    status, _, err = run(capsys, "calibrate", "hub", "--data", "images", "--method", "minmax")
    assert (status, "read: resize" in err) == (0, False)


@each(
    "files, chosen",
    [
        (("model.onnx", "onnx/model.onnx"), "model.onnx"),
        (("model_fp16.onnx", "model_int8.onnx"), "model_fp16.onnx"),
        (("decoder_model_merged.onnx",), "decoder_model_merged.onnx"),
        (("text_model.onnx", "model.onnx", "vision_model.onnx"), "model.onnx"),
    ],
)
def test_the_float_network_is_chosen(tmp_path_factory, files, chosen):
    folder = tmp_path_factory.mktemp("hub")
    write(folder, *files, config=CONFIG)
    model = load_model(folder)
    assert (model.path, model.source) == (folder / chosen, folder)


@each(
    "files, names",
    [
        (
            ("encoder_model.onnx", "decoder_model.onnx"),
            ("encoder_model.onnx", "decoder_model.onnx"),
        ),
        (("model_q4.onnx", "model_quantized.onnx"), ("model_q4.onnx", "model_quantized.onnx")),
    ],
)
def test_a_folder_without_one_float_network_is_an_error_that_names_the_files(
    tmp_path_factory, files, names
):
    folder = tmp_path_factory.mktemp("hub")
    write(folder, *files, config=CONFIG)
    with fails(InputError, *names):
        load_model(folder)


@each(
    "keys, expected",
    [
        ({"size": 8}, {"resize": [8, 8]}),
        ({"size": {"shortest_edge": 9}, "crop_size": 8}, {"resize": 9, "crop": [8, 8]}),
        ({"size": 9, "crop_size": {"height": 8, "width": 6}}, {"resize": 9, "crop": [8, 6]}),
        ({"size": 9, "crop_size": 8, "feature_extractor_type": "DeiTFeatureExtractor"},
         {"resize": [9, 9], "crop": [8, 8]}),
        ({"size": 9, "crop_size": 8, "do_center_crop": False}, {"resize": 9}),
        ({"size": {"shortest_edge": 224}, "image_processor_type": "ConvNextImageProcessor"},
         {"resize": 256, "crop": [224, 224]}),
        ({"size": {"shortest_edge": 384}, "image_processor_type": "ConvNextImageProcessor"},
         {"resize": [384, 384]}),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.9, "crop_size": 224},
         {"resize": 248, "crop": [224, 224]}),
        ({"size": 8, "do_resize": False}, {}),
    ],
)  # fmt: skip
def test_sizes_are_read_in_their_spellings(keys, expected):
    given = {"do_normalize": False, **keys}
    images, why = images_of(given, proto_of())
    assert {key: images[key] for key in ("resize", "crop") if key in images} == expected
    assert images.keys() == why.keys()


@each(
    "keys, shape, expected",
    [
        ({}, ("n", 3, 8, 8), {"scale": "1/255", "channels": "RGB", "layout": "NCHW"}),
        ({"do_rescale": False}, ("n", "c", "h", "w"), {"scale": 1, "layout": "NCHW"}),
        ({"rescale_factor": 0.5}, ("n", 8, 8, 3), {"scale": 0.5, "layout": "NHWC"}),
        ({"do_flip_channel_order": True}, ("n", 3, 8, 8), {"channels": "BGR"}),
        ({}, ("n", 1, 8, 8), {"channels": "gray", "mean": [0.5]}),
    ],
)
def test_pixels_are_read_with_the_form_of_the_input(keys, shape, expected):
    images, _ = images_of({**PROCESSOR, **keys}, proto_of(shape))
    assert {key: images[key] for key in expected} == expected


@each(
    "keys, name",
    [
        ({"do_thumbnail": True}, "do_thumbnail"),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, "longest_edge"),
        ({"image_mean": None}, "image_mean"),
        ({"size": {"height": 8}}, "width"),
        ({"size": "large"}, "large"),
        ({"image_mean": [0.5, 0.5]}, "mean"),
        ({"image_std": [0, 0, 0]}, "std"),
        ({"resample": 99}, "range"),
        ({"rescale_factor": "x"}, "float"),
    ],
)
def test_what_cannot_be_expressed_is_named_and_nothing_is_read(keys, name):
    with pytest.raises(UnknownKeyError, match=name):
        images_of({**PROCESSOR, **keys}, proto_of())


def test_what_cannot_be_read_is_printed_and_guessed(place, capsys):
    processor = {**PROCESSOR, "size": {"longest_edge": 9}}
    write(place / "hub", preprocessor_config=processor)
    status, _, err = run(capsys, "init", "hub", "--data", "images")
    assert (status, "longest_edge" in err, "guessed: scale" in err) == (0, True, True)
    assert "not read: hub/preprocessor_config.json" in err


def test_audio_has_no_images(place):
    assert images_of({"sampling_rate": 16000, "feature_size": 80}, proto_of()) == ({}, {})


@each("text", ["{", "[]", "null", '{"architectures": 7, "model_type": "x", "id2label": [1]}'])
def test_a_damaged_configuration_leaves_the_model(place, text):
    (place / "hub" / "config.json").write_text(text)
    model = load_model(place / "hub")
    declared = declared_by(model.path, model.proto)
    assert declared.task == {}


def test_names_in_a_folder_cannot_write_keys(place, capsys):
    name = 'x\n[build]\ntargets = ["sm70"]\n#ForImageClassification'
    write(place / "hub", config={**CONFIG, "architectures": [name]})
    status, _, _ = run(capsys, "init", "hub", "--data", "images")
    assert (status, read_config(place / "trtcal.toml").build.targets) == (0, ("sm89",))


def test_text_is_an_error_that_says_what_to_give(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = onnx.helper.make_node("Cast", ["input_ids"], ["logits"], to=1)
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, ("n", "length"))
        for name, kind in (("input_ids", onnx.TensorProto.INT64), ("logits", 1))
    ]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), "m")
    write(tmp_path / "hub", config=CONFIG, tokenizer={})
    (tmp_path / "m").rename(tmp_path / "hub" / "model.onnx")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    for command in ("init", "check-data"):
        err = refused(capsys, command, "hub", "--data", "texts.txt")
        assert ("tokenizer.json" in err, "input_ids" in err) == (True, True)


def test_the_metadata_of_ultralytics_give_the_preprocessing(place, capsys):
    with_metadata(place / "yolo.onnx")
    status, _, err = run(capsys, "init", "yolo.onnx", "--data", "images")
    images = read_config(place / "trtcal.toml").images
    assert (status, images.resize, images.crop, images.scale) == (0, 8, (8, 8), 1 / 255)
    assert "5 classes: a, b, c, d and 1 more: the model's metadata (names)" in err


@each(
    "changes, expected",
    [
        ({"task": "detect", "imgsz": "[6, 8]"}, {"resize": [6, 8], "letterbox": 114}),
        ({"task": "segment", "imgsz": "8"}, {"resize": [8, 8], "interpolation": "opencv-bilinear"}),
        ({"imgsz": "[6, 8]"}, {"resize": [6, 8], "crop": [6, 8]}),
        ({"channels": "1"}, {"channels": "gray"}),
        ({"channels": None}, {"channels": "RGB"}),
    ],
)
def test_the_task_decides_how_images_are_resized(tmp_path, changes, expected):
    path = with_metadata(tmp_path / "yolo.onnx", **changes)
    images = declared_by(path, onnx.load(path)).images
    assert {key: images[key] for key in expected} == expected


@each(
    "changes",
    [
        {"imgsz": "[8, 8, 8]"},
        {"imgsz": "__import__('os').getcwd()"},
        {"imgsz": "(" * 5000},
        {"imgsz": "[0, 8]"},
        {"channels": "10"},
        {"imgsz": "[[8], 8]"},
    ],
)
def test_metadata_that_make_no_sense_are_named_and_left_out(tmp_path, changes):
    path = with_metadata(tmp_path / "yolo.onnx", **changes)
    declared = declared_by(path, onnx.load(path))
    assert not declared.images
    assert declared.notes[0].startswith("not read: ")


def test_other_models_declare_nothing(tmp_path):
    path = with_metadata(tmp_path / "net.onnx", stride=None)
    assert not declared_by(path, onnx.load(path)).images
    assert np.size(declared_by(path, onnx.load(path)).notes) == 0
