"""Kernels that TensorRT makes of well-known networks, from their published shapes.

For engines of which only the latency is published: a convolution takes batch normalization, ReLU
and a residual sum into its kernel, a float32 input is copied once into the engine's precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtcal.evidence.times import OTHER, PRODUCT, product_kind

COPY, POOLING = "copy", "pooling"

BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


@dataclass(frozen=True)
class KernelFacts:
    """What one kernel does: its kind, precision, bytes moved, multiply-accumulates."""

    kind: str
    precision: str
    size_bytes: int
    macs: int = 0


@dataclass
class Writer:
    """Writes the kernels of a convolutional network; holds the shape of the running tensor."""

    precision: str
    batch: int
    channels: int = 3
    side: int = 224

    @property
    def values(self) -> int:
        """Values of the running tensor."""
        return self.batch * self.channels * self.side**2

    def light(self, kind: str, values: int) -> KernelFacts:
        """Return a kernel that moves values of the network's precision."""
        return KernelFacts(kind, self.precision, values * BYTES[self.precision])

    def start(self) -> Iterator[KernelFacts]:
        """Yield the copy of a float32 input."""
        if self.precision != "fp32":
            yield KernelFacts(COPY, "fp32", self.values * (4 + BYTES[self.precision]))

    def conv(
        self, out: int, kernel: int, stride: int = 1, groups: int = 1, added: bool = False
    ) -> KernelFacts:
        """Return a convolution and move on to its output; `added` reads a residual as well."""
        weights = out * self.channels // groups * kernel**2
        before = self.values
        self.channels, self.side = out, math.ceil(self.side / stride)
        macs = self.values // out * weights
        moved = before + weights + self.values * (2 if added else 1)
        kind = product_kind(macs, self.values)
        return KernelFacts(kind, self.precision, moved * BYTES[self.precision], macs)

    def pool(self, stride: int) -> KernelFacts:
        """Return a pooling and move on to its output."""
        before = self.values
        self.side = math.ceil(self.side / stride)
        return self.light(POOLING, before + self.values)

    def product(self, rows: int, inner: int, columns: int) -> KernelFacts:
        """Return a matrix product with weights."""
        moved = rows * inner + inner * columns + rows * columns
        return KernelFacts(
            PRODUCT, self.precision, moved * BYTES[self.precision], rows * inner * columns
        )


def _classifier(net: Writer, classes: int = 1000) -> Iterator[KernelFacts]:
    yield net.pool(net.side)
    yield net.product(net.batch, net.channels, classes)


def resnet(
    precision: str, batch: int, blocks: Sequence[int], bottleneck: bool
) -> list[KernelFacts]:
    """Return the kernels of a ResNet v1 (He et al., 2015) at 224 x 224."""
    net = Writer(precision, batch)
    kernels = [*net.start(), net.conv(64, 7, 2), net.pool(2)]
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            kernels += _block(net, width, 2 if stage and not block else 1, bottleneck)
    return [*kernels, *_classifier(net)]


def _block(net: Writer, width: int, stride: int, bottleneck: bool) -> Iterator[KernelFacts]:
    out = width * 4 if bottleneck else width
    if stride > 1 or net.channels != out:
        yield Writer(net.precision, net.batch, net.channels, net.side).conv(out, 1, stride)
    if bottleneck:
        yield net.conv(width, 1)
    yield net.conv(width, 3, stride)
    yield net.conv(out, 1, added=True) if bottleneck else net.conv(out, 3, added=True)


def mobilenet_v1(precision: str, batch: int) -> list[KernelFacts]:
    """Return the kernels of MobileNet v1 (Howard et al., 2017) at 224 x 224."""
    net = Writer(precision, batch)
    kernels = [*net.start(), net.conv(32, 3, 2)]
    widths = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *5 * [(512, 1)]]
    for out, stride in [*widths, (1024, 2), (1024, 1)]:
        kernels += [net.conv(net.channels, 3, stride, net.channels), net.conv(out, 1)]
    return [*kernels, *_classifier(net)]


def mobilenet_v2(precision: str, batch: int) -> list[KernelFacts]:
    """Return the kernels of MobileNet v2 (Sandler et al., 2018) at 224 x 224."""
    net = Writer(precision, batch)
    kernels = [*net.start(), net.conv(32, 3, 2)]
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    for expand, out, count, first in [*stages, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for block in range(count):
            stride, before = first if not block else 1, net.channels
            kernels += [net.conv(before * expand, 1)] if expand > 1 else []
            kernels.append(net.conv(net.channels, 3, stride, net.channels))
            kernels.append(net.conv(out, 1, added=bool(block)))
    return [*kernels, net.conv(1280, 1), *_classifier(net)]


def bert(precision: str, batch: int, length: int, layers: int, width: int) -> list[KernelFacts]:
    """Return the kernels of BERT (Devlin et al., 2018) as NVIDIA's demoBERT builds it.

    In each layer four products, fused attention, two sums with normalization; in float16 GELU is
    a kernel of its own.
    """
    net, rows = Writer(precision, batch), batch * length
    values, size = rows * width, BYTES[precision]
    attention = KernelFacts(PRODUCT, precision, 4 * values * size, 2 * rows * length * width)
    layer = [net.product(rows, width, 3 * width), attention, net.product(rows, width, width)]
    layer += [net.light(OTHER, 3 * values), net.product(rows, width, 4 * width)]
    layer += [net.light(OTHER, 8 * values)] if precision == "fp16" else []
    layer += [net.product(rows, 4 * width, width), net.light(OTHER, 3 * values)]
    return [net.light(OTHER, 4 * values), *layers * layer, net.product(rows, width, 2)]


def kernels_of(network: str, precision: str, batch: int) -> list[KernelFacts]:
    """Return the kernels of a network by its name in engines.csv."""
    if network in RESNETS:
        return resnet(precision, batch, *RESNETS[network])
    if network.startswith("BERT"):
        name, length = network.rsplit(" ", 1)
        return bert(precision, batch, int(length), *BERTS[name])
    return {"MobileNet v1": mobilenet_v1, "MobileNet v2": mobilenet_v2}[network](precision, batch)


RESNETS = {
    "ResNet-18": ((2, 2, 2, 2), False),
    "ResNet-50": ((3, 4, 6, 3), True),
    "ResNet-101": ((3, 4, 23, 3), True),
}
BERTS = {"BERT base": (12, 768), "BERT large": (24, 1024)}
