"""What the samples' `train.py` share: a training loop, the files of a sample, the command line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import trtcal
from samples.common.names import name_by_module

SEED = 20262

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]


def options(folder: Path, epochs: int) -> argparse.Namespace:
    """Read the command line of a sample's `train.py`, and seed torch."""
    parser = argparse.ArgumentParser(description="Train the sample and write its model and data.")
    parser.add_argument("--output", type=Path, default=folder, help="folder for the files")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for training")
    parser.add_argument("--epochs", type=int, default=epochs)
    found = parser.parse_args()
    torch.set_num_threads(found.threads)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    found.output.mkdir(parents=True, exist_ok=True)
    return found


def fit(
    network: nn.Module,
    epoch: Callable[[], list[Batch]],
    loss: Loss,
    epochs: int,
    rate: float,
    decay: float = 0.02,
) -> nn.Module:
    """Train by AdamW with a one-cycle schedule, in bfloat16; `epoch` makes the batches of one pass."""
    network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)
    steps = epochs * len(epoch())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    start = time.monotonic()
    for number in range(epochs):
        total = 0.0
        for batch in epoch():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(network, batch)
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += value.item()
        if number % 10 == 9:
            spent = time.monotonic() - start
            print(f"epoch {number + 1}: loss {total:.3f}, {spent:.0f} s", flush=True)
    return network.eval().to(memory_format=torch.contiguous_format)


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the top-1 accuracy in per cent."""
    with torch.no_grad():
        return 100 * (network(images).argmax(1) == labels).double().mean().item()


def write_model(network: nn.Module, example: Tensor, outputs: list[str], path: Path) -> None:
    """Write a network as ONNX, with a batch of any size."""
    model = trtcal.from_torch(network, {"image": example}, outputs=outputs)
    name_by_module(model.proto)
    onnx.save(model.proto, path)


def write_data(path: Path, images: Tensor, labels: Tensor | None = None) -> None:
    """Write images, and their labels if each has one, as `trtcal` reads them."""
    arrays = {"image": images.numpy()} | ({} if labels is None else {"labels": labels.numpy()})
    np.savez_compressed(path, **arrays)
