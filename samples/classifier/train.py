"""Train the classifier and write its model and data: `python -m samples.classifier.train`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from samples.common import training
from samples.common.scenes import SEED, Digits, load_parts, single

SIDE, BATCH, EPOCHS, RATE = 32, 60, 90, 4e-3
CALIBRATION = 256
FOLDER = Path(__file__).resolve().parent


def convolution(into: int, out: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 convolution with its normalization."""
    kernel = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
    return nn.Sequential(kernel, nn.BatchNorm2d(out))


class Block(nn.Module):
    """Two convolutions with a connection around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(channels, channels), convolution(channels, channels)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        inner = self.conv2(self.conv1(values).relu())
        return (values + inner).relu()


class Classifier(nn.Module):
    """A small residual network: (batch, 1, 32, 32) from 0 to 1 gives 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down1 = convolution(1, 32, 2), convolution(32, 64, 2)
        self.block1, self.down2 = Block(64), convolution(64, 96, 2)
        self.block2, self.head = Block(96), nn.Linear(96, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits."""
        values = self.block1(self.down1(self.stem(image).relu()).relu())
        values = self.block2(self.down2(values).relu())
        return self.head(values.mean((2, 3)))


def epoch(digits: Digits, random: torch.Generator) -> list[training.Batch]:
    """Draw a scene of each digit, in batches."""
    drawn = digits.pick(torch.randperm(len(digits), generator=random))
    images = single(drawn, digits, SIDE, random)
    return list(zip(images.split(BATCH), drawn.labels.split(BATCH), strict=True))


def loss(network: nn.Module, batch: training.Batch) -> Tensor:
    """Return the cross entropy of a batch."""
    images, labels = batch
    return nn.functional.cross_entropy(network(images), labels, label_smoothing=0.05)


def stored_scenes(digits: Digits, test: Digits) -> dict[str, training.Batch]:
    """Return the scenes to calibrate on and those of the test, with their labels."""
    random = torch.Generator().manual_seed(SEED)
    chosen = digits.pick(torch.randperm(len(digits), generator=random)[:CALIBRATION])
    return {
        "calibration": (single(chosen, digits, SIDE, random), chosen.labels),
        "test": (single(test, test, SIDE, random), test.labels),
    }


def main() -> None:
    """Train, write the files and print the accuracy."""
    options = training.options(FOLDER, EPOCHS)
    digits, test = load_parts()
    random = torch.Generator().manual_seed(training.SEED)
    scenes = stored_scenes(digits, test)
    for name, (images, labels) in scenes.items():
        training.write_data(options.output / f"{name}.npz", images, labels)
    network = training.fit(Classifier(), lambda: epoch(digits, random), loss, options.epochs, RATE)
    training.write_model(
        network, scenes["test"][0][:2], ["logits"], options.output / "classifier.onnx"
    )
    right = training.accuracy(network, *scenes["test"])
    print(f"test: {right:.2f} % top-1")


if __name__ == "__main__":
    main()
