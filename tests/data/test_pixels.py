"""Preprocessing, checked against numpy by hand, and files that are odd, damaged or hostile."""

import io
import struct
import warnings
import zlib
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import PLAIN, draw, pixels
from tests.fixtures.fails import fails
from trtcal.config import ImagesConfig
from trtcal.data.preprocessing import Preprocess, read_pixels
from trtcal.errors import InputError

GRAY = replace(PLAIN, channels="gray")


def prepared(config, dtype, file):
    preprocess = Preprocess(config, dtype)
    return preprocess.sample(preprocess.pixels(file))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "one.png"


def test_scale_mean_and_std_are_exact_to_the_last_bit(file):
    drawn = draw(file)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = replace(PLAIN, scale=1 / 255, mean=mean, std=std)
    made = prepared(config, "float32", file)
    expected = (drawn.astype(np.float64) * (1 / 255) - mean) / std
    assert made.dtype == np.float32
    assert (made == expected.transpose(2, 0, 1).astype(np.float32)).all()
    one = (Fraction(int(drawn[0, 0, 0])) / 255 - Fraction("0.485")) / Fraction("0.229")
    assert made[0, 0, 0] == pytest.approx(float(one), rel=1e-6)


def test_layout_and_order_of_channels(file):
    drawn = draw(file, height=5, width=7)
    mean = (1.0, 2.0, 3.0)
    bgr = replace(PLAIN, channels="BGR", layout="NHWC", mean=mean)
    assert (prepared(bgr, "float32", file) == drawn[..., ::-1] - np.array(mean)).all()
    assert (prepared(PLAIN, "float32", file) == drawn.transpose(2, 0, 1)).all()


def test_gray_is_the_weighted_sum_of_the_colours(file):
    drawn = draw(file).astype(np.float64)
    made = prepared(GRAY, "float32", file)
    assert made.shape == (1, 8, 8)
    assert np.abs(made[0] - drawn @ [0.299, 0.587, 0.114]).max() <= 0.51


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8"])
def test_the_type_is_the_models(file, dtype):
    drawn = draw(file)
    made = prepared(PLAIN, dtype, file)
    assert made.dtype == dtype
    assert (made == drawn.transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("change", "dtype"),
    [({"scale": 1 / 255}, "uint8"), ({"mean": (1.0,)}, "uint8"), ({"scale": 1e9}, "float16")],
)
def test_values_that_the_type_cannot_hold_are_refused(file, change, dtype):
    draw(file)
    with fails(InputError, dtype):
        prepared(replace(PLAIN, **change), dtype, file)


@pytest.mark.parametrize(
    ("height", "width", "resize", "expected"),
    [(20, 30, 10, (10, 15)), (30, 20, 10, (15, 10)), (7, 5, 3, (4, 3)), (20, 30, (6, 4), (6, 4))],
)
def test_resize_takes_the_shorter_side_or_height_and_width(file, height, width, resize, expected):
    draw(file, height=height, width=width)
    assert read_pixels(file, replace(PLAIN, resize=resize)).shape[:2] == expected


def test_resize_by_a_whole_number_is_the_mean_of_blocks(file):
    drawn = draw(file, height=8, width=12)
    made = read_pixels(file, replace(PLAIN, resize=(4, 6), interpolation="box"))
    blocks = drawn.reshape(4, 2, 6, 2, 3).astype(np.float64).mean(axis=(1, 3))
    assert np.abs(made - blocks).max() <= 1  # rounded after each of two directions
    nearest = read_pixels(file, replace(PLAIN, resize=(4, 6), interpolation="nearest"))
    assert (nearest == drawn[1::2, 1::2]).all()


def test_crop_takes_the_middle(file):
    drawn = draw(file, height=10, width=13)
    made = read_pixels(file, replace(PLAIN, crop=(4, 6)))
    assert (made == drawn[3:7, 4:10]).all()  # 3.5 to the left rounds to even, as torchvision does


def test_a_crop_larger_than_the_image_is_refused(file):
    draw(file)
    with fails(InputError, "one.png", "8 x 8", "9 x 4"):
        read_pixels(file, replace(PLAIN, crop=(9, 4)))


def test_pictures_are_turned_upright(tmp_path):
    drawn = pixels(height=6, width=4)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(drawn).save(tmp_path / "phone.png", exif=exif)
    assert (read_pixels(tmp_path / "phone.png", PLAIN) == np.rot90(drawn, -1)).all()


def test_palettes_and_two_colours(tmp_path):
    indexed = Image.new("P", (2, 1))
    indexed.putpalette([10, 20, 30, 200, 100, 50])
    indexed.putpixel((1, 0), 1)
    indexed.save(tmp_path / "p.png")
    assert read_pixels(tmp_path / "p.png", PLAIN).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    Image.new("1", (1, 1), 1).save(tmp_path / "1.png")
    assert read_pixels(tmp_path / "1.png", GRAY).tolist() == [[[255]]]


def test_sixteen_bits_keep_the_upper_eight(tmp_path):
    wide = np.array([[0, 255, 256, 65535]], np.uint16)
    for name in ("wide.png", "wide.tif"):
        Image.fromarray(wide).save(tmp_path / name)
        assert read_pixels(tmp_path / name, GRAY)[..., 0].tolist() == [[0, 0, 1, 255]]
        assert read_pixels(tmp_path / name, PLAIN).shape == (1, 4, 3)


def test_print_colours_become_red_green_blue(tmp_path):
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "print.tif")
    red = read_pixels(tmp_path / "print.tif", PLAIN)[0, 0]
    assert red.tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [("black", [100, 0, 0]), ("white", [228, 127, 127]), ("drop", [201, 0, 0])],
)
def test_transparent_pixels_are_laid_over_what_is_declared(file, alpha, expected):
    Image.new("RGBA", (1, 1), (201, 0, 0, 127)).save(file)
    made = read_pixels(file, replace(PLAIN, alpha=alpha))[0, 0]
    assert np.abs(made.astype(int) - expected).max() <= 1


def test_transparency_is_never_guessed_and_opaque_alpha_needs_nothing(tmp_path):
    Image.new("RGBA", (1, 1), (9, 8, 7, 255)).save(tmp_path / "opaque.png")
    assert read_pixels(tmp_path / "opaque.png", PLAIN).tolist() == [[[9, 8, 7]]]
    clear = Image.new("P", (1, 1))
    clear.save(tmp_path / "clear.png", transparency=0)
    Image.new("LA", (1, 1), (9, 254)).save(tmp_path / "veil.png")
    for name in ("clear.png", "veil.png"):
        with fails(InputError, name, hint="alpha"):
            read_pixels(tmp_path / name, PLAIN)


def truncated(image, form):
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()[: buffer.tell() * 2 // 3]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF"])
def test_truncated_images_are_named(tmp_path, form):
    path = tmp_path / f"cut.{form.lower()}"
    path.write_bytes(truncated(Image.fromarray(pixels(height=64, width=64)), form))
    with fails(InputError, path.name):
        read_pixels(path, PLAIN)


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"\xff\xd8\xff", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_files_that_are_no_images_are_named(tmp_path, data):
    (tmp_path / "x.jpg").write_bytes(data)
    with fails(InputError, "x.jpg"):
        read_pixels(tmp_path / "x.jpg", PLAIN)


def png_header(width, height):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.parametrize("warned", ["error", "ignore"])
def test_decompression_bombs_are_refused(file, side, warned):
    file.write_bytes(png_header(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter(warned, Image.DecompressionBombWarning)
        with fails(InputError, "one.png"):
            read_pixels(file, PLAIN)


def test_a_resize_cannot_blow_a_thin_image_up(file):
    Image.new("RGB", (60_000, 1)).save(file)
    with fails(InputError, "one.png"):
        read_pixels(file, replace(PLAIN, resize=224))


def test_films_and_float_pixels_are_refused(tmp_path):
    frames = [Image.fromarray(pixels(seed, channels=1)) for seed in (1, 2)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    with fails(InputError, "2 frames"):
        read_pixels(tmp_path / "film.gif", PLAIN)
    for name, kind in (("f.tif", np.float32), ("i.tif", np.int32)):
        Image.fromarray(np.ones((2, 2), kind)).save(tmp_path / name)
        with fails(InputError, "32-bit numbers"):
            read_pixels(tmp_path / name, PLAIN)


def test_a_photograph_with_a_preview_behind_it_is_one_image(tmp_path):
    frames = [Image.fromarray(pixels(seed)) for seed in (1, 2)]
    frames[0].save(tmp_path / "camera.jpg", "MPO", save_all=True, append_images=frames[1:])
    assert read_pixels(tmp_path / "camera.jpg", PLAIN).shape == (8, 8, 3)


def test_the_declaration_has_no_hidden_defaults():
    with pytest.raises(TypeError):
        ImagesConfig(channels="RGB", layout="NCHW")
