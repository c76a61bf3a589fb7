"""Two small transformers on text, trained here: `python -m samples.common.text_models FOLDER`.

The text is Python's own library, which every installation has. `gpt` is a language model of bytes,
built as GPT-2 (normalization first, GELU, learned positions); `encoder` is built as MiniLM
(normalization last, mean over the tokens that its mask keeps) and tells from which package a window of
source text comes. Needs torch. Each model lies beside `<name>-calibration.npz` and `<name>-test.npz`.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, TOKENS, BYTES = 256, 4, 4, 64, 128
BATCH, RATE, SEED = 16, 1e-3, 0
CALIBRATION, TEST = 128, 512
PACKAGES = ("asyncio", "ctypes", "email", "encodings", "http", "idlelib", "tkinter", "unittest")
LIBRARY = Path(sysconfig.get_path("stdlib"))


class Attention(nn.Module):
    """Attention of several heads; `mask` is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.write = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return values of the same shape: (batch, tokens, width)."""
        query, key, value = (
            one(values).unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + mask
        return self.write((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and two projections, with the normalization before them or after them."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.attention = first, Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return values of the same shape."""
        if self.first:
            values = values + self.attention(self.norm1(values), mask)
            return values + self._unit(self.norm2(values))
        values = self.norm1(values + self.attention(values, mask))
        return self.norm2(values + self._unit(values))

    def _unit(self, values: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(values)))


class Network(nn.Module):
    """Embeddings and layers."""

    def __init__(self, first: bool, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(1, TOKENS, WIDTH))
        self.layers = nn.ModuleList(Layer(first) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs)

    def hidden(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the values of all tokens, normalized."""
        values = self.embedding(tokens) + self.places
        for layer in self.layers:
            values = layer(values, mask)
        return self.norm(values)


class LanguageModel(Network):
    """Tokens (batch, tokens) give logits (batch, tokens, bytes) of the next ones."""

    def __init__(self) -> None:
        super().__init__(True, BYTES)
        self.register_buffer("mask", torch.full((TOKENS, TOKENS), -1e4).triu(1))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.hidden(input_ids, self.mask))


class Encoder(Network):
    """Tokens and a mask of ones and zeros, both (batch, tokens), give logits (batch, packages)."""

    def __init__(self) -> None:
        super().__init__(False, len(PACKAGES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits."""
        kept = attention_mask.to(torch.float32)
        found = self.hidden(input_ids, (kept[:, None, None, :] - 1) * 1e4)
        total = (found * kept[:, :, None]).sum(1)
        return self.head(total / kept.sum(1, keepdim=True))


def text_of(package: str) -> np.ndarray:
    """Return the source text of a package as bytes below 128, in the order of its files' names."""
    files = sorted((LIBRARY / package).glob("*.py"))
    text = np.frombuffer(b"\n".join(one.read_bytes() for one in files), np.uint8)
    return text[text < BYTES].astype(np.int64)


def windows(text: np.ndarray, count: int, random: np.random.Generator, size: int) -> np.ndarray:
    """Return random windows of a text, (count, size)."""
    starts = random.integers(0, len(text) - size, count)
    return text[starts[:, None] + np.arange(size)]


class LanguageData:
    """Windows of text, and the same one byte later; the last tenth of each package is for tests."""

    def __init__(self) -> None:
        self.train, self.test = list[np.ndarray](), list[np.ndarray]()
        for package in PACKAGES:
            text = text_of(package)
            cut = len(text) * 9 // 10
            self.train.append(text[:cut])
            self.test.append(text[cut:])

    def draw(self, count: int, random: np.random.Generator, test: bool) -> dict[str, np.ndarray]:
        """Return `input_ids` and `labels`, both (count, tokens)."""
        text = np.concatenate(self.test if test else self.train)
        found = windows(text, count, random, TOKENS + 1)
        return {"input_ids": found[:, :-1], "labels": found[:, 1:]}


class PackageData(LanguageData):
    """Windows of different lengths, and the package that each comes from."""

    def draw(self, count: int, random: np.random.Generator, test: bool) -> dict[str, np.ndarray]:
        """Return `input_ids` and `attention_mask`, both (count, tokens), and `labels`, (count,)."""
        labels = random.integers(0, len(PACKAGES), count)
        texts = self.test if test else self.train
        found = np.concatenate([windows(texts[one], 1, random, TOKENS) for one in labels])
        lengths = random.integers(TOKENS // 2, TOKENS + 1, count)
        mask = (np.arange(TOKENS) < lengths[:, None]).astype(np.int64)
        return {"input_ids": found * mask, "attention_mask": mask, "labels": labels}


KINDS = {"gpt": (LanguageModel, LanguageData), "encoder": (Encoder, PackageData)}


def train(network: nn.Module, data: LanguageData, steps: int) -> None:
    """Train by AdamW with a one-cycle schedule."""
    random = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for step in range(steps):
        batch = {k: torch.from_numpy(v) for k, v in data.draw(BATCH, random, False).items()}
        labels = batch.pop("labels")
        loss = nn.functional.cross_entropy(network(**batch).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(step, f"{loss.item():.3f}", file=sys.stderr, flush=True)


def make(name: str, folder: Path, steps: int) -> None:
    """Train a model, and write it and its data."""
    torch.manual_seed(SEED)
    model, data = (one() for one in KINDS[name])
    train(model, data, steps)
    random = np.random.default_rng(SEED + 1)
    np.savez(folder / f"{name}-calibration.npz", **data.draw(CALIBRATION, random, False))
    tested = data.draw(TEST, random, True)
    np.savez(folder / f"{name}-test.npz", **tested)
    given = tuple(torch.from_numpy(v[:2]) for k, v in tested.items() if k != "labels")
    names = [one for one in tested if one != "labels"]
    torch.onnx.export(
        model.eval(),
        given,
        folder / f"{name}.onnx",
        input_names=names,
        output_names=["logits"],
        dynamic_axes={one: {0: "batch"} for one in (*names, "logits")},
        opset_version=18,
        dynamo=False,
    )


def main() -> None:
    """Train both, or the ones named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(KINDS))
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        make(name, options.folder, options.steps)


if __name__ == "__main__":
    main()
