"""Inputs that fit networks of other packages: drawn pages, text, tones.

Each function returns `{input: array}` of the samples asked for. Pictures are white pages with lines of
strokes and filled boxes, so that detectors of text and of layout find something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Maker = Callable[[np.random.Generator, int], dict[str, Array]]

IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
AUDIO_SAMPLES, RATE = 43844, 22050
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
    """Return a maker of pictures: "unit" 0 to 1, "signed" -1 to 1, "imagenet", "bytes", "gray"."""

    def make(rng: np.random.Generator, count: int) -> dict[str, Array]:
        found = np.stack([page(rng, height, width) for _ in range(count)])
        return {name: _scaled(found, scale)}

    return make


def _scaled(found: Array, scale: str) -> Array:
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
