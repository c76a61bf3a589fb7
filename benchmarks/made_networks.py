"""Made-up networks of several kinds with data, for figures of time and memory.

    python -m benchmarks.made_networks FOLDER [NAME ...] [--images IMAGES] [--samples 512]

Writes NAME.onnx and NAME.npz. Weights are He-normal with a scale of its own for each channel, from a
fixed seed. Photographs of the folder IMAGES (*.jpg) are cut to what a network reads; without it,
images are noise of a 1/f spectrum. Sounds are harmonics under an envelope in noise, words are drawn by
Zipf's law and repeat.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageOps

Floats = npt.NDArray[np.float32]
WORDS, TOKENS, WIDTH = 30522, 64, 384


class _Net:
    """A graph that grows; every method returns the name of the tensor that its node writes."""

    def __init__(self, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = helper.make_tensor_value_info("input", kind, ["N", *shape])

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: object, kind: type = np.float32) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def he(self, *shape: int, gain: float = 1.0) -> Floats:
        scale = gain * np.sqrt(2 / np.prod(shape[1:]))
        channels = scale * np.exp(0.3 * self.rng.standard_normal(shape[0]))
        weights = self.rng.standard_normal(shape) * channels.reshape(-1, *[1] * (len(shape) - 1))
        return np.asarray(weights, np.float32)

    def conv(self, x: str, *shape: int, gain: float = 1.0, **attributes: Any) -> str:
        pads = [size // 2 for size in shape[2:]] * 2
        bias = self.constant(0.1 * self.rng.standard_normal(shape[0]))
        weight = self.constant(self.he(*shape, gain=gain))
        return self.node("Conv", x, weight, bias, **{"pads": pads} | attributes)

    def conv_relu(self, x: str, *shape: int, **attributes: Any) -> str:
        return self.node("Relu", self.conv(x, *shape, **attributes))

    def linear(self, x: str, inputs: int, outputs: int, gain: float = 0.7) -> str:
        weight = self.constant(self.he(outputs, inputs, gain=gain).T)
        return self.node("Add", self.node("MatMul", x, weight), self.constant(np.zeros(outputs)))

    def normed(self, x: str) -> str:
        scale, shift = self.constant(np.ones(WIDTH)), self.constant(np.zeros(WIDTH))
        return self.node("LayerNormalization", x, scale, shift, axis=-1)

    def model(self, outputs: Iterable[str]) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "made", [self.input], ends, self.weights)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def segmentation() -> onnx.ModelProto:
    """Return a U-Net of 3 x 128 x 128 with 21 classes."""
    net = _Net((3, 128, 128))
    x, skips, sizes = "input", [], (16, 32, 64, 128)
    for inputs, size in zip((3, *sizes), sizes, strict=False):
        x = net.conv_relu(net.conv_relu(x, size, inputs, 3, 3), size, size, 3, 3)
        skips.append(x)
        x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = skips.pop()
    for size in sizes[-2::-1]:
        weight = net.constant(net.he(2 * size, size, 2, 2, gain=1.5))
        x = net.node("ConvTranspose", x, weight, strides=[2, 2])
        x = net.node("Concat", x, skips.pop(), axis=1)
        x = net.conv_relu(net.conv_relu(x, size, 2 * size, 3, 3), size, size, 3, 3)
    return net.model([net.conv(x, 21, 16, 1, 1)])


def superres() -> onnx.ModelProto:
    """Return an ESPCN: 3 x 96 x 96 to 3 x 288 x 288."""
    net = _Net((3, 96, 96))
    x = net.conv_relu(net.conv_relu("input", 64, 3, 5, 5), 32, 64, 3, 3)
    return net.model([net.node("DepthToSpace", net.conv(x, 27, 32, 3, 3), blocksize=3, mode="CRD")])


def audio() -> onnx.ModelProto:
    """Return a keyword spotter of one second of sound at 16 kHz, one-dimensional convolutions."""
    net = _Net((1, 16000))
    x, inputs = "input", 1
    for size, kernel, stride in ((32, 80, 4), (32, 3, 1), (64, 3, 1), (128, 3, 1)):
        x = net.conv(x, size, inputs, kernel, strides=[stride], pads=[kernel // 2] * 2)
        norm = [net.constant(np.full(size, value)) for value in (1.0, 0.0, 0.0, 1.0)]
        x = net.node("Relu", net.node("BatchNormalization", x, *norm))
        x, inputs = net.node("MaxPool", x, kernel_shape=[4], strides=[4]), size
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.model([net.node("Gemm", x, net.constant(net.he(35, 128)), transB=1)])


def lstm() -> onnx.ModelProto:
    """Return an LSTM of two layers behind a convolution, on 64 steps of 40 features."""
    net = _Net((40, 64))
    x, inputs = net.conv_relu("input", 64, 40, 3, pads=[1, 1]), 64
    x = net.node("Transpose", x, perm=[2, 0, 1])
    for _ in range(2):
        weights = [net.he(512, size, gain=0.7)[None] for size in (inputs, 128)]
        x = net.node("LSTM", x, *map(net.constant, weights), hidden_size=128)
        x, inputs = net.node("Squeeze", x, net.constant([1], np.int64)), 128
    return net.model([net.linear(net.node("Transpose", x, perm=[1, 0, 2]), inputs, 32)])


def transformer() -> onnx.ModelProto:
    """Return a BERT of 90 MB: six layers of 384 on 64 tokens of 30,522."""
    net = _Net((TOKENS,), TensorProto.INT64)
    words = net.constant(net.rng.standard_normal((WORDS, WIDTH)))
    places = net.constant(0.3 * net.rng.standard_normal((TOKENS, WIDTH)))
    x = net.normed(net.node("Add", net.node("Gather", words, "input"), places))
    apart = net.constant([0, 0, 6, WIDTH // 6], np.int64)
    for _ in range(6):
        q, k, v = (net.node("Reshape", net.linear(x, WIDTH, WIDTH), apart) for _ in range(3))
        q, v = (net.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 3, 1]))
        scores = net.node("Softmax", net.node("Mul", scores, net.constant(0.125)), axis=-1)
        mixed = net.node("Transpose", net.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        mixed = net.node("Reshape", mixed, net.constant([0, 0, WIDTH], np.int64))
        x = net.normed(net.node("Add", x, net.linear(mixed, WIDTH, WIDTH)))
        wide = net.linear(x, WIDTH, 4 * WIDTH)
        gate = net.node("Erf", net.node("Mul", wide, net.constant(2**-0.5)))
        gate = net.node("Mul", net.node("Add", gate, net.constant(1)), net.constant(0.5))
        narrow = net.linear(net.node("Mul", wide, gate), 4 * WIDTH, WIDTH)
        x = net.normed(net.node("Add", x, narrow))
    return net.model([net.linear(x, WIDTH, 128)])


def deep(nodes: int) -> onnx.ModelProto:
    """Return residual blocks of five nodes, 8 x 16 x 16."""
    net = _Net((3, 16, 16))
    x, gain = net.conv_relu("input", 8, 3, 3, 3), (nodes / 5) ** -0.5
    for _ in range(nodes // 5 - 1):
        branch = net.conv(net.conv_relu(x, 8, 8, 3, 3), 8, 8, 3, 3, gain=gain)
        x = net.node("Relu", net.node("Add", x, branch))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.model([net.node("Gemm", x, net.constant(net.he(10, 8)), transB=1)])


def wide(outputs: int) -> onnx.ModelProto:
    """Return a trunk on 3 x 32 x 32 with as many heads as outputs."""
    net = _Net((3, 32, 32))
    x = net.conv_relu("input", 16, 3, 3, 3, strides=[2, 2])
    x = net.conv_relu(x, 32, 16, 3, 3, strides=[2, 2])
    x = net.conv_relu(x, 64, 32, 3, 3)
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    heads = [net.constant(net.he(4, 64)) for _ in range(outputs)]
    return net.model([net.node("Gemm", x, head, transB=1) for head in heads])


def images(rng: np.random.Generator, count: int, size: int, folder: Path | None) -> Floats:
    """Return `count` images, (3, size, size) each, about from -2 to 2."""
    if folder is None:
        frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)) + 1 / size
        spectrum = np.fft.rfft2(rng.standard_normal((count, 3, size, size))) / frequency
        noise = np.fft.irfft2(spectrum, (size, size))
        return np.asarray(noise / noise.std(axis=(1, 2, 3), keepdims=True), np.float32)
    paths = sorted(folder.glob("*.jpg"))
    pictures = [ImageOps.fit(Image.open(path).convert("RGB"), (size, size)) for path in paths]
    turned = pictures + [ImageOps.mirror(picture) for picture in pictures]
    pixels = np.stack([np.asarray(picture) for picture in turned[:count]])
    return np.asarray((pixels.transpose(0, 3, 1, 2) - np.float32(120)) / 60, np.float32)


def sounds(rng: np.random.Generator, count: int, length: int) -> Floats:
    """Return `count` harmonic sounds that swell and fade in noise, (1, length) each."""
    time = np.arange(length) / 16000
    waves = 0.01 * rng.standard_normal((count, length))
    for wave in waves:
        for start in rng.uniform(0, 0.8, 4):
            swell = np.exp(-(((time - start - 0.1) / rng.uniform(0.03, 0.1)) ** 2))
            phase = 2 * np.pi * rng.uniform(90, 300) * time
            for harmonic in range(1, 12):
                wave += swell * rng.exponential(0.15) / harmonic * np.sin(harmonic * phase)
    return waves[:, None].astype(np.float32)


def features(rng: np.random.Generator, count: int, bands: int, steps: int) -> Floats:
    """Return logarithms of the spectra of sounds, (bands, steps) each."""
    sound = sounds(rng, count, steps * 256)[:, 0].reshape(count, steps, 256)
    power = np.abs(np.fft.rfft(sound * np.hanning(256)))[:, :, :bands]
    return np.log(power + 1e-3).transpose(0, 2, 1).astype(np.float32)


def sentences(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Return `count` rows of tokens by Zipf's law, a fifth of them repeated, padded with zeros."""
    tokens = np.minimum(rng.zipf(1.2, (count, TOKENS)) + 100, WORDS - 1)
    repeats = rng.random((count, TOKENS)) < 0.2
    tokens[repeats] = np.roll(tokens, 3, axis=1)[repeats]
    return np.where(np.arange(TOKENS) < rng.integers(8, TOKENS + 1, (count, 1)), tokens, 0)


MADE: dict[str, tuple[Callable[[], onnx.ModelProto], str, tuple[int, ...]]] = {
    "segmentation": (segmentation, "images", (128,)),
    "superres": (superres, "images", (96,)),
    "audio": (audio, "sounds", (16000,)),
    "lstm": (lstm, "features", (40, 64)),
    "transformer": (transformer, "sentences", ()),
    "deep2000": (lambda: deep(2000), "images", (16,)),
    "wide1024": (lambda: wide(1024), "images", (32,)),
    "deep10000": (lambda: deep(10000), "images", (16,)),
}


def write(name: str, folder: Path, samples: int, pictures: Path | None) -> Path:
    """Write one network and its samples; return the path of the network."""
    build, data, sizes = MADE[name]
    more = (pictures,) if data == "images" else ()
    onnx.save(build(), folder / f"{name}.onnx")
    values = globals()[data](np.random.default_rng(1), samples, *sizes, *more)
    np.savez(folder / f"{name}.npz", input=values)
    return folder / f"{name}.onnx"


def main() -> None:
    """Write the networks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(MADE))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        print(write(name, options.folder, options.samples, options.images), flush=True)


if __name__ == "__main__":
    main()
