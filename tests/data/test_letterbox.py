"""Images that keep their aspect ratio within the input of a model, and OpenCV's filter."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import PLAIN, draw, everything, model_of, pixels
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.config import WrongKeyError, read_section
from trtcal.data import open_dataset
from trtcal.data.preprocessing import read_pixels

BOXED = replace(PLAIN, resize=(12, 16), letterbox=114, interpolation="opencv-bilinear")


def boxed(tmp_path, height, width, config=BOXED):
    draw(tmp_path / "one.png", height=height, width=width)
    return read_pixels(tmp_path / "one.png", config).astype(int)


def four_pixels(image, height, width):
    """Resize by the four nearest pixels of each place, as OpenCV's INTER_LINEAR does."""
    rows, columns = (
        np.clip((np.arange(size) + 0.5) * has / size - 0.5, 0, has - 1)
        for size, has in ((height, image.shape[0]), (width, image.shape[1]))
    )
    below, right = (np.floor(places).astype(int) for places in (rows, columns))
    above, left = np.minimum(below + 1, len(image) - 1), np.minimum(right + 1, image.shape[1] - 1)
    down, along = (rows - below)[:, None, None], (columns - right)[None, :, None]
    first = image[below][:, right] * (1 - along) + image[below][:, left] * along
    second = image[above][:, right] * (1 - along) + image[above][:, left] * along
    return first * (1 - down) + second * down


@each(
    "size, place",
    [
        ((6, 16), (3, 0, 6, 16)),  # as wide as the input: above and below
        ((24, 12), (0, 5, 12, 6)),  # twice as high: left and right
        ((12, 16), (0, 0, 12, 16)),
        ((7, 16), (2, 0, 7, 16)),  # an odd border: its larger part is below
        ((1, 400), (5, 0, 1, 16)),  # at least one pixel stays
    ],
)
def test_the_image_is_in_the_middle_of_its_border(tmp_path, size, place):
    found = boxed(tmp_path, *size)
    top, left, height, width = place
    border = np.ones((12, 16), bool)
    border[top : top + height, left : left + width] = False
    assert (found[border] == 114).all()
    inner = found[top : top + height, left : left + width]
    expected = four_pixels(pixels(height=size[0], width=size[1]), height, width)
    assert np.abs(inner - expected).max() <= 1  # a level of 256


def test_the_filter_of_opencv_does_not_smooth_what_it_shrinks(tmp_path):
    Image.fromarray(pixels(height=64, width=64)).save(tmp_path / "one.png")
    exact = four_pixels(pixels(height=64, width=64), 8, 8)
    errors = {}
    for name in ("bilinear", "opencv-bilinear"):
        config = replace(PLAIN, resize=(8, 8), interpolation=name)
        errors[name] = np.abs(read_pixels(tmp_path / "one.png", config) - exact).max()
    assert errors["opencv-bilinear"] <= 1 < errors["bilinear"]


def test_samples_of_any_shape_fill_the_input(tmp_path):
    model = model_of(tmp_path / "net.onnx", ("n", 3, 12, 16))
    for number, (height, width) in enumerate([(3, 9), (30, 8), (12, 16)]):
        draw(tmp_path / "pictures" / f"{number}.png", number, height, width)
    assert everything(open_dataset(tmp_path / "pictures", model, BOXED)).shape == (3, 3, 12, 16)


@each(
    "keys, names",
    [
        ({"letterbox": 114}, ("resize",)),
        ({"letterbox": 114, "resize": 640}, ("resize",)),
        ({"letterbox": 256, "resize": [8, 8]}, ("letterbox",)),
        ({"letterbox": True, "resize": [8, 8]}, ("letterbox",)),
    ],
)
def test_a_border_needs_a_height_and_a_width(keys, names):
    with fails(WrongKeyError, *names):
        read_section(type(PLAIN), {"channels": "RGB", "layout": "NCHW", "scale": 1, **keys})


@pytest.mark.parametrize(("letterbox", "box"), [(114, (4, 0, 8, 12)), (None, (0, 0, 8, 12))])
def test_annotated_boxes_move_with_the_image(tmp_path, letterbox, box):
    """The left half of an image twice as high as wide, as a share of the input of 12 x 16."""
    model = model_of(tmp_path / "net.onnx", ("n", 3, 12, 16))
    draw(tmp_path / "pictures" / "one.png", height=24, width=16)
    document = {
        "images": [{"id": 1, "file_name": "one.png", "width": 16, "height": 24}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 24]}],
        "categories": [{"id": 1}],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(document))
    config = replace(BOXED, letterbox=letterbox)
    data = open_dataset(tmp_path / "pictures", model, config, str(tmp_path / "boxes.json"))
    (found,) = data.labels["boxes"][0] * (16, 12, 16, 12)
    assert found.tolist() == pytest.approx(box)
