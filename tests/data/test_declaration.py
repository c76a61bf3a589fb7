"""`[images]` and `labels` in trtcal.toml, and what the commands make of them."""

import json

import numpy as np
import pytest

from tests.data.pictures import draw, gallery
from tests.fixtures.commands import refused
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal.cli.main import run_command
from trtcal.config import IMAGES_EXAMPLE, ImagesConfig, read_config
from trtcal.errors import InputError

NEEDED = '[images]\nchannels = "RGB"\nlayout = "NCHW"\nscale = 1\n'


def configured(tmp_path, text):
    path = tmp_path / "trtcal.toml"
    path.write_text(text)
    return read_config(path)


def test_the_example_in_the_hint_is_a_declaration(tmp_path):
    images = configured(tmp_path, IMAGES_EXAMPLE).images
    assert images == ImagesConfig(
        channels="RGB",
        layout="NCHW",
        scale=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        resize=256,
        crop=(224, 224),
    )


def test_every_key_is_read(tmp_path):
    text = NEEDED + (
        "mean = 127.5\nstd = [2, 3, 4]\nresize = [20, 30]\ncrop = [10, 12]\n"
        'interpolation = "bicubic"\nalpha = "white"\n'
        '[calibration]\nlabels = "csv"\n[evaluation]\nlabels = "folders"\n'
    )
    config = configured(tmp_path, text)
    assert config.images == ImagesConfig(
        "RGB", "NCHW", 1.0, (127.5,), (2, 3, 4), (20, 30), (10, 12), "bicubic", "white"
    )
    assert (config.calibration.labels, config.evaluation.labels) == ("csv", "folders")


def test_without_a_table_nothing_is_declared(tmp_path):
    assert configured(tmp_path, "").images is None


LINES = [
    *("layuot = 1", "mean = [1, 2]", 'mean = "1"', "mean = inf", "std = [1, 0, 1]", "resize = 0"),
    *("resize = true", "crop = [1, 2, 3]", "crop = []", "crop = 1.5", 'alpha = "red"'),
    'interpolation = "linear"',
]
SCALES = ('"1/0"', '"a/b"', "0", "true", "nan")


@each(
    "text, says",
    [
        ("[images]", "images.channels"),
        ('[images]\nchannels = "RGB"\nlayout = "NCHW"', "images.scale"),
        ('[images]\nchannels = "RGB"', "images.layout"),
        ("images = 3", "images"),
        ('[images]\nchannels = "rgb"', "images.channels"),
        *((NEEDED.replace("= 1", f"= {scale}"), "images.scale") for scale in SCALES),
        *((NEEDED + line, f"images.{line.split()[0]}") for line in LINES),
        (NEEDED.replace("RGB", "gray") + "mean = [1, 2, 3]", "images.mean"),
        ("[evaluation]\nlabels = true", "evaluation.labels"),
        ('[calibration]\nlabels = "npz"', "calibration.labels"),
    ],
)
def test_mistakes_are_named(tmp_path, text, says):
    with fails(InputError, says):
        configured(tmp_path, text)


def test_calibrate_and_compare_take_a_folder_of_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    images = gallery(tmp_path / "pictures" / "cat", 6)
    draw(tmp_path / "pictures" / "dog" / "a.png", 50)
    (tmp_path / "pictures" / "notes.txt").write_text("")
    command = ["calibrate", "net.onnx", "--data", "pictures"]
    assert "images = {" in refused(capsys, *command)
    scale = NEEDED.replace("= 1", '= "1/255"') + "crop = 8\n"
    (tmp_path / "trtcal.toml").write_text(scale + '[evaluation]\nlabels = "folders"\n')
    assert run_command(command) == 0
    assert "that are not used: notes.txt" in capsys.readouterr().err
    ranges = json.loads((tmp_path / "calibration.json").read_text())
    assert ranges["samples"] == 7
    assert ranges["ranges"]["x"]["observed_amax"] == pytest.approx(images.max() / 255, rel=1e-2)
    quantize = ["quantize", "net.onnx", "--calibration", "calibration.json", "-o", "int8.onnx"]
    assert run_command(quantize) == 0
    compared = ["compare", "net.onnx", "int8.onnx", "--data", "pictures", "--rounds", "2"]
    assert run_command(compared) == 0
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert all(row["accuracy"]["top1"] is not None for row in rows)


def test_calibrate_takes_a_polygraphy_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    (tmp_path / "loader.py").write_text(
        "import numpy as np\n"
        "def load_data():\n"
        "    rng = np.random.default_rng(1)\n"
        "    for _ in range(3):\n"
        "        yield {'x': rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}\n"
    )
    assert run_command(["calibrate", "net.onnx", "--data", "loader.py"]) == 0
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((2, 3, 8, 8)).astype(np.float32) for _ in range(3)]
    np.savez(tmp_path / "same.npz", x=np.concatenate(rows))
    first = json.loads((tmp_path / "calibration.json").read_text())
    assert run_command(["calibrate", "net.onnx", "--data", "same.npz"]) == 0
    assert json.loads((tmp_path / "calibration.json").read_text()) == first
