"""How much each place of a transformer layer's output counts.

What a mask takes out, as padding, counts nothing: no output depends on it.
A few tokens have activations hundreds of times larger than all others (M. Sun et al., "Massive
Activations in Large Language Models", 2024). Behind them comes a LayerNormalization, to which only
relative errors matter; in a mean or a least squares over all tokens those few would decide alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trtcal.data import Feeds

LEAST = 1e-30
MASK = "attention_mask"  # an input of ones where tokens count; others may mean the contrary

Mask = npt.NDArray[np.bool_] | None
Shares = list[npt.NDArray[np.float64]] | None
"""By batch how much each place counts, (places,); None where all count alike."""


def mask_of(feeds: Feeds) -> Mask:
    """Return the mask among a batch's inputs, None if there is none or it leaves nothing."""
    values = feeds.get(MASK)
    if values is None or not np.isin(values, (0, 1)).all() or not values.any():
        return None
    return np.asarray(values != 0)


def shares(energies: Sequence[npt.NDArray[np.floating]], masks: Sequence[Mask]) -> Shares:
    """Return what places count whose outputs have these mean squares over channels.

    Both by batch, `energies` (samples, tokens) or more; a mask of another shape is none. Places count
    in inverse proportion, but those with less than the median about alike.
    """
    usual = max(float(np.median(np.concatenate([one.ravel() for one in energies]))), LEAST)
    found = []
    for energy, mask in zip(energies, masks, strict=True):
        share = usual / (energy.astype(np.float64) + usual)
        if mask is not None and mask.shape == energy.shape:
            share *= mask
        found.append(share.ravel())
    return found
