"""Train a network of `trtcal export torch` without labels: `python train.py qat.py DATA.npz`.

The student is the network with Q/DQ, the teacher the float network of the same file. The loss is the
ratio of noise to signal at the outputs and, with less weight, at every quantized tensor.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FEATURES = 0.1  # weight of the loss at quantized tensors beside that at the outputs
SCALES = 30.0  # learning rate of the logarithms of scales, in that of weights


def load_module(path: Path) -> ModuleType:
    """Import a file of `trtcal export torch`."""
    spec = importlib.util.spec_from_file_location("qat", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def follow(module: ModuleType, network: nn.Module) -> list[Tensor]:
    """Return a list that each pass fills with what the quantizers of activations read."""
    features: list[Tensor] = []
    for part in network.children():
        if isinstance(part, module.FakeQuantizer):
            part.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    return features


def noise(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the ratio of noise to signal."""
    return (student - teacher).square().mean() / teacher.square().mean().clamp_min(1e-12)


def outputs(result: Any) -> tuple[Tensor, ...]:
    """Return the outputs of a network that may have one alone."""
    return result if isinstance(result, tuple) else (result,)


def train(module: ModuleType, data: list[Tensor], options: argparse.Namespace) -> nn.Module:
    """Return the trained student."""
    student, teacher = module.Network(), module.Network(quantized=False)
    inside, target = follow(module, student), follow(module, teacher)
    scales = module.scales(student)
    weights = [p for p in student.parameters() if all(p is not scale for scale in scales)]
    groups = [{"params": weights}, {"params": scales, "lr": SCALES * options.lr}]
    optimizer = torch.optim.Adam(groups, lr=options.lr)
    steps = options.epochs * (len(data[0]) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(options.epochs):
        total, started = 0.0, time.monotonic()
        for batch in torch.randperm(len(data[0])).split(options.batch)[: steps // options.epochs]:
            inside.clear()
            target.clear()
            feeds = [array[batch] for array in data]
            with torch.no_grad():
                wanted = outputs(teacher(*feeds))
            loss = sum(map(noise, outputs(student(*feeds)), wanted))
            features = sum(map(noise, inside, target)) / max(len(inside), 1)
            optimizer.zero_grad()
            (loss + FEATURES * features).backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * options.epochs / steps
        print(
            f"epoch {epoch + 1}: noise {total:.5f}, {time.monotonic() - started:.1f} s", flush=True
        )
    return student


def main() -> None:
    """Train, and write `trained.npz` for `trtcal import`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("trained.npz"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    module = load_module(options.network)
    with np.load(options.data, allow_pickle=False) as arrays:
        data = [torch.from_numpy(arrays[name]) for name in module.INPUTS]
    module.save_trained(train(module, data, options), options.output)


if __name__ == "__main__":
    main()
