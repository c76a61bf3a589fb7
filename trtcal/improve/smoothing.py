"""Smoothing: channels that MatMuls read are shifted so that zero lies in their middle, and scaled.

Where a normalization makes them it takes both; elsewhere a Mul and an Add are put between. Weights and
biases behind make up for it: the network computes the same. Sources: G. Xiao et al., "SmoothQuant"
(2023), equation 4; X. Wei et al., "Outlier Suppression+" (2023), section 4.1, the channel-wise shift.
"""

from __future__ import annotations

from dataclasses import replace

from trtcal.data import Dataset
from trtcal.graph import import_graph
from trtcal.improve.affine import affine_places, with_affines
from trtcal.improve.equalize import Moved, equalized
from trtcal.model import Model
from trtcal.quantize import find_layers


def smoothed(model: Model, dataset: Dataset, samples: int) -> Moved | None:
    """Return what smoothing changes in a prepared model, None if that is nothing."""
    affines = tuple(affine_places(import_graph(model.proto), find_layers(model)))
    model = replace(model, proto=with_affines(model.proto, affines))
    found = equalized(model, dataset, samples, "normalizations")
    return None if found is None else replace(found, affines=affines)
