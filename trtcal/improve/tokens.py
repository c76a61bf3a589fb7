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

Shares = list[npt.NDArray[np.float64]] | None
"""By batch how much each place counts, (places,); None where all count alike."""


def masks_in(feeds: Feeds) -> list[npt.NDArray[np.bool_]]:
    """Return the input of a batch that is a mask, unless that leaves nothing."""
    found = [one for name, one in feeds.items() if name == MASK]
    return [one != 0 for one in found if np.isin(one, (0, 1)).all() and one.any()]


def shares(
    energies: Sequence[npt.NDArray[np.floating]], masks: Sequence[list[npt.NDArray[np.bool_]]]
) -> Shares:
    """Return what places count whose outputs have these mean squares over channels.

    Both by batch, `energies` (samples, tokens) or more; of the masks those count that have that shape.
    Places count in inverse proportion, but those with less than the median about alike.
    """
    usual = max(float(np.median(np.concatenate([one.ravel() for one in energies]))), LEAST)
    found = []
    for energy, given in zip(energies, masks, strict=True):
        share = usual / (energy.astype(np.float64) + usual)
        for mask in given:
            share = share * mask if mask.shape == energy.shape else share
        found.append(share.ravel())
    return found
