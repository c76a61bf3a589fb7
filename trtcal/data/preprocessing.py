"""One image file to one sample, as `[images]` in trtcal.toml declares it.

Decode, turn upright (EXIF), convert to the channels, resize, crop the middle, then
(pixel * scale - mean) / std. Pixels have 8 bits; of 16 the upper 8 are taken, as Pillow does itself
for colour. Sizes are rounded as torchvision's Resize and CenterCrop round them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from trtcal.config import ImagesConfig
from trtcal.data.dataset import Array
from trtcal.errors import InputError

# Only these decoders are tried, whatever a file is called: some others start programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
TURNED = (5, 6, 7, 8)  # orientations in EXIF that exchange width and height
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")


@dataclass(frozen=True)
class Preprocess:
    """Turns an image file into an array of `dtype` (a numpy type name), without a batch axis."""

    config: ImagesConfig
    dtype: str

    def pixels(self, file: Path) -> Array:
        """Return pixels, uint8 [C, H, W]; `InputError` names a file that can't be used."""
        return np.ascontiguousarray(np.moveaxis(read_pixels(file, self.config), -1, 0))

    def sample(self, pixels: Array) -> Array:
        """Return the sample that pixels become, [C, H, W] or [H, W, C]."""
        planes = np.empty(pixels.shape, self.dtype)
        for channel, values in enumerate(self.values):
            # Nothing is ever clipped; the mode only spares numpy a check and a copy (6 times faster).
            np.take(values, pixels[channel], out=planes[channel], mode="clip")
        return planes if self.config.layout == "NCHW" else np.moveaxis(planes, 0, -1)

    def shape(self, file: Path) -> tuple[int, ...]:
        """Return the shape of a file's sample, of which only the header is read."""
        with reading(file), Image.open(file, formats=_formats()) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in TURNED
            size = image.size[::-1] if turned else image.size
        width, height = size if self.config.resize is None else _target(size, self.config.resize)
        channels = 1 if self.config.channels == "gray" else 3
        first = self.config.layout == "NCHW"
        return (channels, height, width) if first else (height, width, channels)

    @cached_property
    def values(self) -> Array:
        """What each of 256 pixel values becomes in each channel, [C, 256], rounded only once."""
        config = self.config
        channels = 1 if config.channels == "gray" else 3
        mean, std = (np.array(numbers).reshape(-1, 1) for numbers in (config.mean, config.std))
        exact = (np.arange(256) * config.scale - mean) / std * np.ones((channels, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            values: Array = exact.astype(self.dtype)
        holds = np.isfinite(values) if values.dtype.kind == "f" else values == exact
        if not holds.all():
            raise InputError(
                f"[images] gives values from {exact.min():.6g} to {exact.max():.6g}, which are "
                f"not all {self.dtype}, the type that the model expects",
                "check scale, mean and std in trtcal.toml; integer inputs need scale = 1",
            )
        return values


def read_pixels(file: Path, config: ImagesConfig) -> Array:
    """Return an image's pixels, uint8 [H, W, C], with everything done but the arithmetic."""
    with reading(file):
        with Image.open(file, formats=_formats()) as image:
            _check_frames(file, image)
            _check_size(file, image.size)
            upright = _eight_bit(ImageOps.exif_transpose(image), image.format)
        opaque = _opaque(file, upright, config.alpha)
        converted = opaque.convert("L" if config.channels == "gray" else "RGB")
        pixels = np.asarray(_cropped(file, _resized(file, converted, config), config))
    if config.channels == "gray":
        return pixels[..., np.newaxis]
    return pixels[..., ::-1] if config.channels == "BGR" else pixels


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Make an `InputError` of what goes wrong with an image."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(file, str(error)) from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise InputError(
            f"image {file} cannot be read: {error or type(error).__name__}",
            "replace the file, or remove it from the folder",
        ) from error


@cache
def _formats() -> tuple[str, ...]:
    Image.init()  # else most decoders are not known yet
    return tuple(form for form in FORMATS if form in Image.OPEN)


def _check_frames(file: Path, image: Image.Image) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # cameras put a preview behind the picture
        raise InputError(f"image {file} has {frames} frames", "save one frame as an image")


def _check_size(file: Path, size: tuple[int, int]) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and size[0] * size[1] > limit:
        raise _too_large(
            file, f"{size[0]} x {size[1]} pixels, the limit is {limit} pixels in total"
        )


def _too_large(file: Path, text: str) -> InputError:
    hint = "make it smaller, or remove it from the folder if you do not know it"
    return InputError(f"image {file} is too large to decode safely: {text}", hint)


def _eight_bit(image: Image.Image, form: str | None) -> Image.Image:
    """Return 16-bit gray (in some versions of Pillow mode I) as 8-bit gray, the rest as it is."""
    if image.mode == "F" or (image.mode == "I" and form not in ("PNG", "PPM")):
        raise ValueError("its pixels are 32-bit numbers, neither 8 nor 16 bits")
    if not image.mode.startswith("I"):
        return image
    if "transparency" in image.info:
        raise ValueError("16-bit gray with a transparent colour is not supported")
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _opaque(file: Path, image: Image.Image, alpha: str | None) -> Image.Image:
    """Return the image without its alpha, as declared; where nothing is transparent, as it is."""
    if image.mode not in ALPHA_MODES and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    if alpha == "drop" or image.getchannel("A").getextrema()[0] == 255:
        return image.convert("RGB")
    if alpha is None:
        raise InputError(
            f"image {file} is transparent in places, and the configuration has no background for "
            "it",
            'set alpha in [images] of trtcal.toml: "black" or "white" as the background, or "drop"',
        )
    behind = Image.new("RGBA", image.size, alpha)
    return Image.alpha_composite(behind, image).convert("RGB")


def _resized(file: Path, image: Image.Image, config: ImagesConfig) -> Image.Image:
    if config.resize is None:
        return image
    size = _target(image.size, config.resize)
    _check_size(file, size)
    if config.letterbox is None:
        return _scaled(image, size, config.interpolation)
    left, top, *inner = fit_into(image.size, size)
    border = (config.letterbox,) * len(image.getbands())
    whole = Image.new(image.mode, size, border)
    whole.paste(_scaled(image, (inner[0], inner[1]), config.interpolation), (left, top))
    return whole


def _scaled(image: Image.Image, size: tuple[int, int], interpolation: str) -> Image.Image:
    """Return an image of another size; OpenCV's filter reads the nearest four pixels alone."""
    if interpolation != "opencv-bilinear":
        return image.resize(size, Image.Resampling[interpolation.upper()])
    steps = (image.width / size[0], 0, 0, 0, image.height / size[1], 0)
    return image.transform(size, Image.Transform.AFFINE, steps, Image.Resampling.BILINEAR)


def fit_into(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a letterboxed image, rounded as Ultralytics' LetterBox."""
    ratio = min(target[0] / size[0], target[1] / size[1])
    width, height = (max(round(side * ratio), 1) for side in size)
    left, top = (round((target[0] - width) / 2 - 0.1), round((target[1] - height) / 2 - 0.1))
    return left, top, width, height


def _target(size: tuple[int, int], resize: int | tuple[int, int]) -> tuple[int, int]:
    """Return width and height after the resize: the shorter side, or (height, width), is given."""
    if not isinstance(resize, int):
        return resize[1], resize[0]
    shorter = min(size)
    return (resize * size[0] // shorter, resize * size[1] // shorter)


def _cropped(file: Path, image: Image.Image, config: ImagesConfig) -> Image.Image:
    if config.crop is None:
        return image
    (height, width), (has_width, has_height) = config.crop, image.size
    if height > has_height or width > has_width:
        raise InputError(
            f"image {file} is {has_height} x {has_width} before the crop to {height} x {width}",
            "set resize in [images] of trtcal.toml at least as large as the crop",
        )
    top, left = round((has_height - height) / 2), round((has_width - width) / 2)
    return image.crop((left, top, left + width, top + height))
