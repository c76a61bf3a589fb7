"""Train the vision transformer and write its model: `python -m samples.vit.train`.

It reads the scenes of `samples/classifier`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from samples.classifier.train import SIDE, convolution, epoch, loss, stored_scenes
from samples.common import training
from samples.common.scenes import load_parts

WIDTH, HEADS, DEPTH, HIDDEN = 64, 4, 3, 192
PATCHES = (SIDE // 4) ** 2
EPOCHS, RATE = 80, 2e-3
FOLDER = Path(__file__).resolve().parent


class Attention(nn.Module):
    """Attention of several heads, of each patch to all."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape: (batch, patches, width)."""
        heads = self.read(values).unflatten(2, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5).softmax(-1)
        return self.write((weights @ value).transpose(1, 2).flatten(2))


class GatedUnit(nn.Module):
    """A gated linear unit (SwiGLU): the product of two projections, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        gate = self.gate(values)
        return self.down(gate * gate.sigmoid() * self.up(values))


class Layer(nn.Module):
    """Attention and a gated unit, each behind a normalization and with a connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.unit = nn.LayerNorm(WIDTH), GatedUnit()

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        values = values + self.attention(self.norm1(values))
        return values + self.unit(self.norm2(values))


class Transformer(nn.Module):
    """A small vision transformer: (batch, 1, 32, 32) from 0 to 1 gives 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.patches = convolution(1, 32, 2), convolution(32, WIDTH, 2)
        self.places = nn.Parameter(0.02 * torch.randn(1, PATCHES, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits."""
        values = self.patches(self.stem(image).relu()).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(values)).mean(1))


def main() -> None:
    """Train, write the model and print its accuracy."""
    options = training.options(FOLDER, EPOCHS)
    digits, test = load_parts()
    random = torch.Generator().manual_seed(training.SEED)
    judged = stored_scenes(digits, test)["test"]
    network = training.fit(
        Transformer(), lambda: epoch(digits, random), loss, options.epochs, RATE, decay=0.0
    )
    training.write_model(network, judged[0][:2], ["logits"], options.output / "vit.onnx")
    print(f"test: {training.accuracy(network, *judged):.2f} % top-1")


if __name__ == "__main__":
    main()
