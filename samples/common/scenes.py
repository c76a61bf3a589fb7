"""Scenes of handwritten digits on a canvas: the data of the samples in `classifier` and `detector`.

Each of scikit-learn's 1,797 digits has 8x8 pixels. A scene shows digits larger, turned and moved,
between scraps of other digits. Training scenes are drawn anew in each epoch. Those that a sample stores
are drawn once, with a seed, and a digit of the test part is in none of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

SEED = 20261
TRAIN = 900
LEVELS = 16.0  # of gray: a pixel of the data counts the ink dots in a 4x4 block
INK = 0.2  # from which on a pixel belongs to a digit
ANGLE = math.radians(20)


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) from 0 to 1 and their classes."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, places: Tensor) -> Digits:
        """Return the digits at some places."""
        return Digits(self.images[places], self.labels[places])


def load_parts() -> tuple[Digits, Digits]:
    """Return the digits for training and calibration, and those for the test, of all classes alike."""
    raw, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)), train_size=TRAIN, stratify=labels, random_state=SEED
    )
    images = torch.from_numpy((raw / LEVELS).astype(np.float32)).view(-1, 1, 8, 8)
    every = Digits(images, torch.from_numpy(labels.astype(np.int64)))
    return every.pick(torch.from_numpy(np.sort(train))), every.pick(torch.from_numpy(np.sort(test)))


def uniform(random: torch.Generator, count: int, low: float, high: float) -> Tensor:
    """Draw `count` numbers from `low` to `high`."""
    return low + (high - low) * torch.rand(count, generator=random)


def draw(images: Tensor, side: int, size: Tensor, place: Tensor, angle: Tensor) -> Tensor:
    """Draw each image (n, 1, 8, 8) on its canvas, `size` pixels large, around `place` (n, 2: x, y)."""
    scale, shift = side / size, 1 - 2 * place / side
    cosine, sine = scale * torch.cos(angle), scale * torch.sin(angle)
    x, y = shift[:, 0], shift[:, 1]
    rows = torch.stack(
        [cosine, -sine, cosine * x - sine * y, sine, cosine, sine * x + cosine * y], 1
    )
    canvas = [len(images), 1, side, side]
    grid = nn.functional.affine_grid(rows.view(-1, 2, 3), canvas, align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def scraps(digits: Digits, count: int, side: int, random: torch.Generator) -> Tensor:
    """Return canvases (count, 1, side, side) with one scrap of a digit each."""
    places = torch.randint(len(digits), (count,), generator=random)
    images = digits.images[places]
    corner = torch.randint(0, 6, (2, count), generator=random)
    ticks = torch.arange(8)
    inside = [(ticks >= one[:, None]) & (ticks < one[:, None] + 3) for one in corner]
    cut = images * (inside[0][:, None, :, None] & inside[1][:, None, None, :])
    size = uniform(random, count, 14, 20)
    middle = torch.stack([uniform(random, count, 0, side) for _ in range(2)], 1)
    return draw(cut, side, size, middle, uniform(random, count, -math.pi, math.pi))


def levels(canvas: Tensor) -> Tensor:
    """Round a canvas to the levels of gray that the data have."""
    return (canvas.clamp(0, 1) * LEVELS).round() / LEVELS


def single(
    digits: Digits, others: Digits, side: int, random: torch.Generator, clutter: int = 4
) -> Tensor:
    """Return a scene (n, 1, side, side) of each digit, with scraps of `others`."""
    count = len(digits)
    size = uniform(random, count, 15, 22)
    middle = torch.stack([uniform(random, count, 10, side - 10) for _ in range(2)], 1)
    turned = uniform(random, count, -ANGLE, ANGLE)
    canvas = draw(digits.images, side, size, middle, turned)
    for _ in range(clutter):
        canvas = torch.maximum(canvas, scraps(others, count, side, random))
    return levels(canvas)


def several(
    digits: Digits, others: Digits, side: int, random: torch.Generator, clutter: int = 6
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scenes of three digits each, with scraps of `others`: every digit once, in their order.

    These are images (n, 1, side, side), corners (n, 3, 4) in pixels, as of `outline`, and classes.
    """
    count = len(digits) // 3
    half = side // 2
    quarters = torch.stack([torch.randperm(4, generator=random)[:3] for _ in range(count)])
    quarters = quarters.flatten()
    corner = half * torch.stack([quarters % 2, quarters // 2], 1)
    middle = corner + torch.stack([uniform(random, 3 * count, 10, half - 10) for _ in range(2)], 1)
    size = uniform(random, 3 * count, 15, 22)
    turned = uniform(random, 3 * count, -ANGLE, ANGLE)
    drawn = draw(digits.images[: 3 * count], side, size, middle, turned)
    canvas = drawn.view(count, 3, side, side).amax(1, keepdim=True)
    for _ in range(clutter):
        canvas = torch.maximum(canvas, scraps(others, count, side, random))
    corners = outline(drawn[:, 0] > INK).view(count, 3, 4)
    return levels(canvas), corners, digits.labels[: 3 * count].view(count, 3)


def outline(ink: Tensor) -> Tensor:
    """Return the corners (n, 4: x1, y1, x2, y2) of what is marked in each mask (n, height, width)."""
    sides = []
    for axis in (1, 2):  # over rows: the columns that are marked; over columns: the rows
        marked = ink.any(axis).to(torch.int8)
        sides += [marked.argmax(1), marked.shape[1] - marked.flip(1).argmax(1)]
    left, right, top, bottom = sides
    return torch.stack([left, top, right, bottom], 1)
