"""Inputs that fit networks of other packages: drawn pages, written lines, photographs, tones, voices.

Each function returns `{input: array}` of the samples asked for. Pages are white with lines of strokes
and filled boxes, so that detectors of text and of layout find something. Photographs are views of those
that scikit-image ships.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tests.packages.wheels import read_file

Array = npt.NDArray[Any]
Maker = Callable[[np.random.Generator, int], dict[str, Array]]

IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
AUDIO_SAMPLES, RATE = 43844, 22050
CAFFE = np.array([[104, 117, 123]], np.float32)
SPEECH_RATE = 16000
PHOTOGRAPHS = (
    "astronaut",
    "chelsea",
    "coffee",
    "motorcycle_left",
    "color",
    "ihc",
    "rocket",
    "retina",
)
WORDS = (
    "the quick brown fox jumps over lazy dog invoice total amount 1984 street Number name Date "
    "42.50 Tel: café order PAGE report Q3 revenue"
)
TEXT = (
    b"The quick brown fox jumps over the lazy dog.\nfor i in range(10):\n    print(i)\n<html><body>"
    * 40
)


def page(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return a picture of shape (3, height, width), 0 to 255."""
    made = 235 + rng.normal(0, 6, (height, width, 3))
    for _ in range(rng.integers(4, 12)):
        top, left = rng.integers(0, height - 8), rng.integers(0, width - 8)
        tall, wide = rng.integers(4, max(5, height // 5)), rng.integers(4, max(5, width // 3))
        made[top : top + tall, left : left + wide] = rng.integers(0, 255, 3)
    for _ in range(rng.integers(2, 6)):
        _write_line(rng, made)
    return np.clip(made, 0, 255).transpose(2, 0, 1).astype(np.float32)


def _write_line(rng: np.random.Generator, made: Array) -> None:
    height, width = made.shape[:2]
    top, left = rng.integers(0, height - 12), rng.integers(0, width // 3)
    for x in range(left, min(width - 8, left + rng.integers(40, max(41, width // 2))), 9):
        made[top : top + 10, x : x + rng.integers(2, 6)] = 20
        made[top + rng.integers(0, 8) : top + 10, x : x + 7] = 30


def pages(name: str, height: int, width: int, scale: str) -> Maker:
    """Return a maker of pages, scaled as `_scaled` says."""

    def make(rng: np.random.Generator, count: int) -> dict[str, Array]:
        return {name: _scaled(np.stack([page(rng, height, width) for _ in range(count)]), scale)}

    return make


def lines(name: str, height: int, width: int, scale: str) -> Maker:
    """Return a maker of lines of words, dark on light and noisy, scaled as `_scaled` says."""

    def make(rng: np.random.Generator, count: int) -> dict[str, Array]:
        return {name: _scaled(np.stack([line(rng, height, width) for _ in range(count)]), scale)}

    return make


def line(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return the picture of one to four words, shape (3, height, width), 0 to 255."""
    paper, ink = (tuple(map(int, rng.integers(*ends, 3))) for ends in ((180, 256), (0, 90)))
    picture = Image.new("RGB", (width, height), paper)
    font = ImageFont.load_default(size=int(height * rng.uniform(0.4, 0.8)))
    place = int(rng.integers(0, 12)), int(rng.integers(0, 8))
    words = " ".join(rng.choice(WORDS.split(), rng.integers(1, 5)))
    ImageDraw.Draw(picture).text(place, words, fill=ink, font=font)
    noisy = np.asarray(picture, np.float32) + rng.normal(0, 6, (height, width, 3))
    return noisy.transpose(2, 0, 1).astype(np.float32)


def photographs(name: str, height: int, width: int, scale: str) -> Maker:
    """Return a maker of views of photographs, scaled as `_scaled` says; no two samples are alike.

    A view is a crop of a fifth of a picture or more, turned over half of the time, lighter or darker.
    """

    def make(rng: np.random.Generator, count: int) -> dict[str, Array]:
        views = [_view(rng, photograph(index), height, width) for index in range(count)]
        return {name: _scaled(np.stack(views), scale)}

    return make


@cache
def photograph(number: int) -> Image.Image:
    """Return a picture that scikit-image ships; the numbers begin again after the last."""
    name = PHOTOGRAPHS[number % len(PHOTOGRAPHS)]
    return Image.open(BytesIO(read_file("scikit-image", rf"{name}\.(png|jpg)"))).convert("RGB")


def _view(rng: np.random.Generator, picture: Image.Image, height: int, width: int) -> Array:
    across, down = (int(side * rng.uniform(0.45, 1)) for side in picture.size)
    left, top = (
        int(rng.integers(0, whole - part + 1))
        for whole, part in zip(picture.size, (across, down), strict=True)
    )
    view = picture.crop((left, top, left + across, top + down)).resize((width, height))
    view = ImageOps.mirror(view) if rng.random() < 0.5 else view
    pixels = np.asarray(view, np.float32) * np.float32(rng.uniform(0.6, 1.2))
    return np.clip(pixels, 0, 255).transpose(2, 0, 1)


def _scaled(found: Array, scale: str) -> Array:
    """Return pictures, (count, 3, height, width) from 0 to 255, in the scale of a network.

    "unit" is 0 to 1, "signed" -1 to 1, "gray" that of the mean channel; "caffe" has blue first, the
    mean taken off, and channels last.
    """
    if scale == "caffe":
        return (found[:, ::-1] - CAFFE[:, :, None, None]).transpose(0, 2, 3, 1).copy()
    if scale == "imagenet":
        mean, deviation = IMAGENET[:, :, None, None]
        return ((found / 255 - mean) / deviation).astype(np.float32)
    if scale == "gray":
        found = found.mean(1, keepdims=True)
    if scale in ("signed", "gray"):
        return (found / 127.5 - 1).astype(np.float32)
    return found if scale == "bytes" else (found / 255).astype(np.float32)


def file_bytes(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Return the first bytes of files of text, code and noise; 256 stands after their end."""
    found = np.full((count, 2048), 256, np.int32)
    for row in found:
        start, size = rng.integers(0, 1000), rng.integers(1200, 2048)
        text = np.frombuffer(TEXT, np.uint8)[start : start + size]
        row[:size] = rng.integers(0, 256, size) if rng.random() < 0.4 else text
    return {"bytes": found}


def tones(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Return two seconds of four tones that begin one after the other, with noise."""
    time = np.arange(AUDIO_SAMPLES) / RATE

    def one() -> Array:
        parts = [
            rng.uniform(0.05, 0.4)
            * np.sin(2 * np.pi * rng.uniform(80, 2000) * time)
            * (time > rng.uniform(0, 1))
            for _ in range(4)
        ]
        return (sum(parts) + rng.normal(0, 0.01, AUDIO_SAMPLES))[:, None]

    return {"serving_default_input_2:0": np.stack([one() for _ in range(count)]).astype(np.float32)}


def letters(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Return the numbers of letters, as floats."""
    return {"input_1": rng.integers(1, 40, (count, 80)).astype(np.float32)}


def marked_letters(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Return the numbers of letters and of their marks, and how many there are."""
    return {
        "char_inputs": rng.integers(1, 40, (count, 60)),
        "diac_inputs": rng.integers(0, 15, (count, 60)),
        "input_lengths": np.full(count, 60),
    }


def voice(rng: np.random.Generator, samples: int) -> Array:
    """Return sound like a voice, or noise alone a quarter of the time, at 16 kHz."""
    time = np.arange(samples) / SPEECH_RATE
    pitch = rng.uniform(80, 300) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(1, 5) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / SPEECH_RATE
    tone = sum(rng.uniform(0.2, 1) / each * np.sin(each * phase) for each in range(1, 12))
    swell = 0.3 + 0.7 * np.abs(np.sin(2 * np.pi * rng.uniform(0.5, 3) * time))
    level = rng.uniform(0.02, 0.5) * (rng.random() < 0.75)
    noise = rng.normal(0, rng.uniform(0.001, 0.02), samples)
    return (level * swell * tone + noise).astype(np.float32)


def voices(name: str, samples: int, state: Sequence[int] = (), **scalars: Any) -> Maker:
    """Return a maker of voices, of a random `state` of each if that has a shape, and of scalars."""

    def make(rng: np.random.Generator, count: int) -> dict[str, Array]:
        feeds = {name: np.stack([voice(rng, samples) for _ in range(count)])}
        if state:
            feeds["state"] = (0.3 * rng.standard_normal((count, *state))).astype(np.float32)
        return feeds | {key: np.asarray(value) for key, value in scalars.items()}

    return make
