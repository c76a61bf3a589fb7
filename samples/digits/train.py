"""Train the digits sample and write its model and data: `python samples/digits/train.py`."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

SEED = 20240
TRAIN, CALIBRATION, TEST = 785, 512, 500
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 240, 64, 4e-3, 0.02
FULL_SCALE = 16.0  # a pixel counts the ink dots in a 4x4 block of the scanned digit
SATURATED = 4095.0  # all ones from a 12-bit sensor
GLITCHED_SAMPLES = 3
LEAK, EPSILON = 0.1, 1e-5  # of the LeakyReLU and of the batch normalisations
OPSET, IR_VERSION = 17, 8

Split = tuple[np.ndarray, np.ndarray]

# ---------------------------------------------------------------------------------------------
# Data


def load_splits() -> dict[str, Split]:
    """Return the stratified train, calibration and test splits as (images, labels)."""
    raw, labels = load_digits(return_X_y=True)
    images = (raw / FULL_SCALE).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    rest, test = _split(np.arange(len(labels)), labels, TEST)
    train, calibration = _split(rest, labels, CALIBRATION)
    picks = {"train": train, "calibration": calibration, "test": test}
    return {name: (images[index], labels[index]) for name, index in picks.items()}


def _split(index: np.ndarray, labels: np.ndarray, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Take `held_out` indices away, with every class in proportion."""
    kept, taken = train_test_split(
        index, test_size=held_out, stratify=labels[index], random_state=SEED
    )
    return kept, taken


def with_glitches(images: np.ndarray) -> np.ndarray:
    """Return a copy in which a few samples have one saturated pixel each."""
    random = np.random.default_rng(SEED)
    samples = random.choice(len(images), GLITCHED_SAMPLES, replace=False)
    inside = [(y, x) for y in range(8) for x in range(8) if not {y, x} <= {0, 7}]  # no corners
    spoiled = images.copy()
    for sample, (y, x) in zip(samples, random.choice(inside, GLITCHED_SAMPLES), strict=True):
        spoiled[sample, 0, y, x] = SATURATED / FULL_SCALE
    return spoiled


def augment(images: Tensor) -> Tensor:
    """Shift by at most a pixel, rotate and scale a little, each image in its own way."""
    count = len(images)
    angle = _uniform(count, math.radians(12))
    scale = 1 + _uniform(count, 0.12)
    shift = torch.stack([_uniform(count, 0.25), _uniform(count, 0.25)], dim=1)  # 0.25: one pixel
    cosine, sine = scale * torch.cos(angle), scale * torch.sin(angle)
    rows = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], dim=1)
    grid = nn.functional.affine_grid(rows.view(-1, 2, 3), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def _uniform(count: int, limit: float) -> Tensor:
    """Draw `count` numbers from -limit to limit."""
    return (2 * torch.rand(count) - 1) * limit


# ---------------------------------------------------------------------------------------------
# Network: one table, from which both the torch module and the ONNX graph are made


@dataclass(frozen=True)
class Step:
    """One node: its name, ONNX operator, the steps it reads and what sizes its weights."""

    name: str
    op: str
    inputs: tuple[str, ...]
    channels: tuple[int, int] = (0, 0)
    kernel: int = 0
    groups: int = 1


def step(op: str, name: str, *inputs: str) -> Step:
    """Describe a node without weights."""
    return Step(name, op, inputs)


def conv(name: str, source: str, into: int, out: int, kernel: int = 3, groups: int = 1) -> Step:
    """Describe a convolution that keeps the image size; its bias is left to the BatchNorm."""
    return Step(name, "Conv", (source,), (into, out), kernel, groups)


def norm(name: str, source: str, channels: int) -> Step:
    """Describe a batch normalisation."""
    return Step(name, "BatchNormalization", (source,), (channels, channels))


NETWORK = (
    conv("stem/conv", "image", 1, 16),
    norm("stem/bn", "stem/conv", 16),
    step("Clip", "stem/relu6", "stem/bn"),
    conv("block1/conv1", "stem/relu6", 16, 16),
    norm("block1/bn1", "block1/conv1", 16),
    step("Relu", "block1/relu1", "block1/bn1"),
    conv("block1/conv2", "block1/relu1", 16, 16),
    norm("block1/bn2", "block1/conv2", 16),
    step("Add", "block1/add", "block1/bn2", "stem/relu6"),
    step("Relu", "block1/relu2", "block1/add"),
    conv("widen/conv", "block1/relu2", 16, 32),
    norm("widen/bn", "widen/conv", 32),
    step("Relu", "widen/relu", "widen/bn"),
    step("MaxPool", "widen/pool", "widen/relu"),
    conv("separable/depthwise", "widen/pool", 32, 32, groups=32),
    norm("separable/bn1", "separable/depthwise", 32),
    step("Relu", "separable/relu", "separable/bn1"),
    conv("separable/pointwise", "separable/relu", 32, 48, kernel=1),
    norm("separable/bn2", "separable/pointwise", 48),
    step("LeakyRelu", "separable/leaky", "separable/bn2"),
    conv("wide/conv", "separable/leaky", 48, 40),
    norm("wide/bn", "wide/conv", 40),
    step("Relu", "wide/relu", "wide/bn"),
    conv("narrow/conv", "separable/leaky", 48, 24, kernel=1),
    norm("narrow/bn", "narrow/conv", 24),
    step("Relu", "narrow/relu", "narrow/bn"),
    step("Concat", "merge/concat", "wide/relu", "narrow/relu"),
    step("GlobalAveragePool", "head/pool", "merge/concat"),
    step("Flatten", "head/flatten", "head/pool"),
    Step("head/gemm", "Gemm", ("head/flatten",), (64, 10)),
)


class Add(nn.Module):
    """Add two tensors."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum."""
        return left + right


class Concat(nn.Module):
    """Join tensors along the channels."""

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the parts side by side."""
        return torch.cat(parts, dim=1)


MODULES = {
    "Conv": lambda s: nn.Conv2d(
        s.channels[0], s.channels[1], s.kernel, padding=s.kernel // 2, groups=s.groups, bias=False
    ),
    "BatchNormalization": lambda s: nn.BatchNorm2d(s.channels[0], eps=EPSILON),
    "Clip": lambda _: nn.ReLU6(),
    "Relu": lambda _: nn.ReLU(),
    "LeakyRelu": lambda _: nn.LeakyReLU(LEAK),
    "MaxPool": lambda _: nn.MaxPool2d(2),
    "Add": lambda _: Add(),
    "Concat": lambda _: Concat(),
    "GlobalAveragePool": lambda _: nn.AdaptiveAvgPool2d(1),
    "Flatten": lambda _: nn.Flatten(),
    "Gemm": lambda s: nn.Linear(*s.channels),
}


class DigitNet(nn.Module):
    """The network of the table, in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleDict({s.name: MODULES[s.op](s) for s in NETWORK})

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits."""
        values = {"image": image}
        for s in NETWORK:
            values[s.name] = self.steps[s.name](*(values[source] for source in s.inputs))
        return values[NETWORK[-1].name]


# ---------------------------------------------------------------------------------------------
# Training


def train(images: np.ndarray, labels: np.ndarray) -> DigitNet:
    """Fit the network to the training split."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    model = DigitNet()
    pixels, targets = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = len(pixels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=EPOCHS * batches
    )
    for _ in range(EPOCHS):
        for pick in torch.randperm(len(pixels))[: batches * BATCH].view(batches, BATCH):
            _update(model, optimizer, augment(pixels[pick]), targets[pick])
            schedule.step()
    return model.eval()


def _update(
    model: DigitNet, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> None:
    """Take one step down the gradient."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels, label_smoothing=0.05).backward()
    optimizer.step()


# ---------------------------------------------------------------------------------------------
# ONNX: written node by node, so that every name is ours and the BatchNorms stay nodes

PARAMETERS = {
    "Conv": ("weight",),
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"),
    "Gemm": ("weight", "bias"),
}
ATTRIBUTES = {
    "Conv": lambda s: {
        "kernel_shape": [s.kernel] * 2,
        "pads": [s.kernel // 2] * 4,
        "strides": [1, 1],
        "group": s.groups,
    },
    "BatchNormalization": lambda _: {"epsilon": EPSILON},
    "LeakyRelu": lambda _: {"alpha": LEAK},
    "MaxPool": lambda _: {"kernel_shape": [2, 2], "strides": [2, 2]},
    "Concat": lambda _: {"axis": 1},
    "Flatten": lambda _: {"axis": 1},
    "Gemm": lambda _: {"transB": 1},
}


def to_onnx(model: DigitNet) -> onnx.ModelProto:
    """Write the trained network as an ONNX model that passes the full check."""
    weights = [tensor for s in NETWORK for tensor in _weights(s, model)]
    graph = helper.make_graph(
        [_node(s) for s in NETWORK],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    opset = [helper.make_opsetid("", OPSET)]
    proto = helper.make_model(graph, producer_name="digits", opset_imports=opset)
    proto.ir_version = IR_VERSION  # the one of opset 17: a newer one shuts out older readers
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _node(s: Step) -> onnx.NodeProto:
    """Write one step as an ONNX node."""
    attributes = ATTRIBUTES.get(s.op, lambda _: {})(s)
    inputs = [_tensor(source) for source in s.inputs] + [f"{s.name}.{p}" for p in _parameters(s)]
    return helper.make_node(s.op, inputs, [_tensor(s.name)], name=s.name, **attributes)


def _tensor(name: str) -> str:
    """Name the tensor that a step writes."""
    if name == "image":
        return name
    return "logits" if name == NETWORK[-1].name else f"{name}_out"


def _parameters(s: Step) -> tuple[str, ...]:
    """List the constant inputs of a step, in the order ONNX wants them."""
    return ("min", "max") if s.op == "Clip" else PARAMETERS.get(s.op, ())


def _weights(s: Step, model: DigitNet) -> list[onnx.TensorProto]:
    """Return the constant inputs of a step as initializers."""
    if s.op == "Clip":
        arrays = [np.array(0, np.float32), np.array(6, np.float32)]
    else:
        state = model.steps[s.name].state_dict()
        arrays = [state[p].numpy() for p in _parameters(s)]
    names = [f"{s.name}.{p}" for p in _parameters(s)]
    return [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]


def accuracy(path: Path, split: Split) -> float:
    """Return the top-1 accuracy of an ONNX file, in per cent."""
    images, labels = split
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": images})
    return 100 * float(np.mean(logits.argmax(axis=1) == labels))


# ---------------------------------------------------------------------------------------------


def write(output: Path, model: DigitNet, splits: dict[str, Split]) -> None:
    """Write the model and its three data files."""
    output.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(model), output / "digits.onnx")
    images, labels = splits["calibration"]
    files = {
        "calibration": (images, labels),
        "glitch": (with_glitches(images), labels),
        "test": splits["test"],
    }
    for name, (image, label) in files.items():
        np.savez_compressed(output / f"{name}.npz", image=image, labels=label)


def main() -> None:
    """Train, write the files and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent
    parser.add_argument("--output", type=Path, default=here, help="folder for the files")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start, splits = time.monotonic(), load_splits()
    write(options.output, train(*splits["train"]), splits)
    print(f"trained in {time.monotonic() - start:.0f} s")
    for name, split in splits.items():
        print(f"{name}: {accuracy(options.output / 'digits.onnx', split):.2f} % top-1")


if __name__ == "__main__":
    main()
