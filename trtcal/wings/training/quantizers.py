"""Fake quantization in PyTorch, which `export torch` copies into its files.

The rounding is that of Q/DQ in TensorRT and ONNX: symmetric, half to even, clipped to [-128, 127],
weights to [-127, 127]. Scales are learned by their logarithm, as LSQ does with their value: the
gradient goes straight through the rounding.
Source: S. K. Esser et al., "Learned Step Size Quantization" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEAST, LARGEST = -128, 127


class FakeQuantizer(nn.Module):
    """Rounds a tensor to INT8 and back: (), or (channels,) scales along an axis; not if disabled."""

    start: Tensor

    def __init__(self, scale: Tensor, axis: int | None = None, least: int = LEAST) -> None:
        super().__init__()
        self.register_buffer("start", scale)
        self.log_change = nn.Parameter(torch.zeros_like(scale))
        self.axis, self.least, self.enabled = axis, least, True

    @property
    def scale(self) -> Tensor:
        """The scale as it is now, that of the calibration at first."""
        return self.start * torch.exp(self.log_change)

    def forward(self, x: Tensor) -> Tensor:
        """Return the values that the integers stand for."""
        if not self.enabled:
            return x
        scale = self.scale
        if self.axis is not None:
            scale = scale.reshape([-1 if i == self.axis else 1 for i in range(x.dim())])
        steps = (x / scale).clamp(self.least, LARGEST)
        return (steps + (torch.round(steps) - steps).detach()) * scale


class QuantizedWeight(nn.Module):
    """A weight that stays float and is rounded whenever it is read."""

    def __init__(self, values: Tensor, scale: Tensor, axis: int | None) -> None:
        super().__init__()
        self.values = nn.Parameter(values)
        self.quantizer = FakeQuantizer(scale, axis, -LARGEST)

    def forward(self) -> Tensor:
        """Return the weight as the layer reads it."""
        return self.quantizer(self.values)


Layout = Mapping[str, Any]
"""The identifiers of a network: literals in a written file."""


class QuantizedNetwork(nn.Module):
    """A network with quantizers `q_...`, quantized weights `w_...`, and constants `c_...`.

    With `quantized=False` it is the float model that INT8 is compared with: the teacher.
    """

    def __init__(self, arrays: Mapping[str, Any], layout: Layout, quantized: bool = True) -> None:
        super().__init__()

        def tensor(key: str) -> Tensor:
            chosen = key if quantized or f"{key}.float" not in arrays else f"{key}.float"
            return torch.from_numpy(np.array(arrays[chosen]))

        for name, axis in layout["weights"].items():
            weight = QuantizedWeight(tensor(f"{name}.values"), tensor(f"{name}.scale"), axis)
            self.add_module(name, weight)
        for name in layout["activations"]:
            self.add_module(name, FakeQuantizer(tensor(f"{name}.scale")))
        for name in layout["trained"]:
            self.register_parameter(name, nn.Parameter(tensor(name)))
        for name in layout["constants"]:
            self.register_buffer(name, tensor(name))
        self.model = layout["model"]
        enable(self, quantized)


def quantizers(module: nn.Module) -> dict[str, FakeQuantizer]:
    """Return all quantizers of a module by name, those of weights too."""
    every = module.named_modules()
    return {name: part for name, part in every if isinstance(part, FakeQuantizer)}


def enable(module: nn.Module, enabled: bool = True) -> None:
    """Let all quantizers round, or let them pass values through."""
    for part in quantizers(module).values():
        part.enabled = enabled


def scales(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are logarithms of scales: they take their own learning rate."""
    return [part.log_change for part in quantizers(module).values()]


def save_trained(network: QuantizedNetwork, path: str | Path) -> None:
    """Write weights, scales and biases for `trtcal import`."""
    arrays: dict[str, Any] = {"model": np.array(network.model)}
    for name, part in network.named_children():
        if isinstance(part, QuantizedWeight):
            arrays[f"{name}.values"] = part.values.detach().cpu().numpy()
            arrays[f"{name}.scale"] = part.quantizer.scale.detach().cpu().numpy()
        elif isinstance(part, FakeQuantizer):
            arrays[f"{name}.scale"] = part.scale.detach().cpu().numpy()
    for name, parameter in network.named_parameters(recurse=False):
        arrays[name] = parameter.detach().cpu().numpy()
    np.savez(path, **arrays)


# The same quantizers around the layers of your own module


def module_name(layer: str) -> str:
    """Return the module that ONNX export names a node after: `/layer1/conv1/Conv`, `layer1.conv1`."""
    return layer.strip("/").rpartition("/")[0].replace("/", ".")


class QuantizedLayer(nn.Module):
    """A layer of your module that computes with a network's weight, bias and quantizer."""

    def __init__(self, layer: nn.Module, parts: Mapping[str, Any], transposed: bool) -> None:
        super().__init__()
        self.layer, self.transposed = layer, transposed
        self.weight, self.bias, self.quantizer = parts["weight"], parts["bias"], parts["input"]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer makes of its quantized input and weight."""
        x = x if self.quantizer is None else self.quantizer(x)
        weight = self.weight().t() if self.transposed else self.weight()
        if isinstance(self.layer, nn.Conv2d):
            return self.layer._conv_forward(x, weight, self.bias)
        return nn.functional.linear(x, weight, self.bias)


def attach(
    module: nn.Module,
    network: QuantizedNetwork,
    layers: Layout,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Quantize the Conv2d and Linear layers of your module in place; return the layers left out.

    `names` gives the module of a layer whose name does not say it. Your layers compute with the
    network's parameters, so `save_trained(network, path)` writes what you trained. `ValueError` if a
    layer has other weights than the exported one.
    """
    modules, left = dict(module.named_modules()), list[str]()
    for layer, row in layers.items():
        name = (names or {}).get(layer, module_name(layer))
        target = modules.get(name)
        parts = {key: getattr(network, row[key]) if row[key] else None for key in PARTS}
        if not isinstance(target, (nn.Conv2d, nn.Linear)) or parts["weight"] is None:
            left.append(layer)
            continue
        values = parts["weight"].values
        _check(name, target, values.t() if row["transposed"] else values, parts["bias"])
        parent, _, last = name.rpartition(".")
        setattr(modules[parent], last, QuantizedLayer(target, parts, row["transposed"]))
    return left


PARTS = "weight", "bias", "input"
NEAR = 0.02  # of the largest weight; one step of INT8 is 0.008 of it


def _check(name: str, target: Any, values: Tensor, bias: Tensor | None) -> None:
    is_near = target.weight.shape == values.shape and bool(
        (target.weight - values).abs().max() <= NEAR * values.abs().max()
    )
    if not is_near or (bias is None and target.bias is not None):
        raise ValueError(
            f"{name} has other weights than the exported layer: fold its BatchNorm into it first "
            "(torch.nn.utils.fusion.fuse_conv_bn_eval), or load the weights that were exported"
        )
