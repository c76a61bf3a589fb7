"""Train the detector and write its model and data: `python -m samples.detector.train`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from samples.classifier.train import Block, convolution
from samples.common import training
from samples.common.scenes import SEED, Digits, load_parts, several

SIDE, STRIDE, CLASSES = 64, 8, 10
BATCH, EPOCHS, RATE = 30, 120, 4e-3
CALIBRATION = 128  # scenes
FOLDER = Path(__file__).resolve().parent


class Detector(nn.Module):
    """A single-shot detector: (batch, 1, 64, 64) gives (batch, 4 + 10, 64).

    Each of 8x8 cells has a box (x and y of the middle, width, height, in pixels) and a score of each
    class, as the heads of the YOLO family have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down1 = convolution(1, 16), convolution(16, 32, 2)
        self.down2, self.block2 = convolution(32, 48, 2), Block(48)
        self.down3, self.block3 = convolution(48, 64, 2), Block(64)
        self.head = nn.Conv2d(64, 4 + CLASSES, 1)
        nn.init.constant_(self.head.bias, -3.0)
        cells = torch.arange(SIDE // STRIDE, dtype=torch.float32)
        self.register_buffer("cells", torch.stack(torch.meshgrid(cells, cells, indexing="xy")))

    def raw(self, image: Tensor) -> Tensor:
        """Return the head's values, (batch, 14, 8, 8)."""
        values = self.down1(self.stem(image).relu()).relu()
        values = self.block2(self.down2(values).relu())
        return self.head(self.block3(self.down3(values).relu()))

    def boxes(self, raw: Tensor) -> Tensor:
        """Return the boxes of the cells, (batch, 4, 8, 8), in pixels."""
        middle = (raw[:, :2].sigmoid() + self.cells) * STRIDE
        return torch.cat([middle, 4 * STRIDE * raw[:, 2:4].sigmoid()], 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return boxes and scores of all cells."""
        raw = self.raw(image)
        return torch.cat([self.boxes(raw), raw[:, 4:].sigmoid()], 1).flatten(2)


def epoch(digits: Digits, random: torch.Generator) -> list[training.Batch]:
    """Draw each digit into a scene, in batches of scenes."""
    drawn = digits.pick(torch.randperm(len(digits), generator=random))
    parts = (one.split(BATCH) for one in several(drawn, digits, SIDE, random))
    return list(zip(*parts, strict=True))


def loss(network: nn.Module, batch: training.Batch) -> Tensor:
    """Return the error of scores (focal loss) and, where a digit's middle is, of boxes."""
    images, corners, labels = batch
    raw = network.raw(images).float()
    middle, sides = (corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]
    places = (middle / STRIDE).long()
    sample = torch.arange(len(images))[:, None].expand_as(labels)
    wanted = torch.zeros_like(raw[:, 4:])
    wanted[sample, labels, places[..., 1], places[..., 0]] = 1.0
    right = torch.where(wanted > 0, raw[:, 4:].sigmoid(), 1 - raw[:, 4:].sigmoid())
    focal = nn.functional.binary_cross_entropy_with_logits(raw[:, 4:], wanted, reduction="none")
    found = network.boxes(raw)[sample, :, places[..., 1], places[..., 0]]
    boxes = (found - torch.cat([middle, sides], -1)).abs().mean()
    return (focal * (1 - right) ** 2).sum() / labels.numel() + boxes


def annotations(corners: Tensor, labels: Tensor) -> dict[str, list[dict[str, object]]]:
    """Return the boxes of scenes as COCO's instances."""
    images = [{"id": one, "width": SIDE, "height": SIDE} for one in range(len(corners))]
    objects = [
        {"image_id": scene, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for scene, (boxes, classes) in enumerate(
            zip(corners.tolist(), labels.tolist(), strict=True)
        )
        for (x1, y1, x2, y2), label in zip(boxes, classes, strict=True)
    ]
    numbered = [
        {"id": number, **one, "area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0}
        for number, one in enumerate(objects)
    ]
    categories = [{"id": one, "name": str(one)} for one in range(CLASSES)]
    return {"images": images, "annotations": numbered, "categories": categories}


def main() -> None:
    """Train and write the files."""
    options = training.options(FOLDER, EPOCHS)
    digits, test = load_parts()
    random = torch.Generator().manual_seed(SEED)
    images, *_ = several(digits, digits, SIDE, random)
    training.write_data(options.output / "calibration.npz", images[:CALIBRATION])
    images, corners, labels = several(test, test, SIDE, random)
    training.write_data(options.output / "test.npz", images)
    document = json.dumps(annotations(corners, labels), separators=(",", ":"))
    (options.output / "instances.json").write_text(document + "\n")
    random = torch.Generator().manual_seed(training.SEED)
    network = training.fit(Detector(), lambda: epoch(digits, random), loss, options.epochs, RATE)
    training.write_model(network, images[:2], ["boxes"], options.output / "detector.onnx")


if __name__ == "__main__":
    main()
