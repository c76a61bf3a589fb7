"""What a plan will probably lose: a sum over layers, corrected by every plan that was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

TRUST = 0.03  # relative error at which a measured plan counts as much as one layer's own figure


class Surrogate:
    """Shares of the loss by layer, none below 0."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.units = list(shares)
        given = np.array([max(one, 0.0) for one in shares.values()])
        least = float(given.sum()) * 1e-6 or 1e-12
        self.prior = np.maximum(given, least)
        self.shares: npt.NDArray[np.float64] = self.prior

    def learn(self, measured: Sequence[tuple[Collection[str], float]]) -> None:
        """Move the shares as little as measured plans ask: (layers in INT8, loss) each.

        Least squares with relative weights: a layer's share may double as easily as another's.
        """
        known = [(plan, loss) for plan, loss in measured if plan]
        if not known:
            return
        rows = np.array([[name in plan for name in self.units] for plan, _ in known], np.float64)
        losses = np.array([loss for _, loss in known])
        weights = 1.0 / (TRUST * np.maximum(np.abs(losses), self.prior.min()))
        # shares = prior * (1 + change), change as near to 0 as the weighted rows allow
        system = np.vstack([rows * self.prior * weights[:, None], np.eye(len(self.units))])
        wanted = np.concatenate([(losses - rows @ self.prior) * weights, np.zeros(len(self.units))])
        change = np.linalg.lstsq(system, wanted, rcond=None)[0]
        self.shares = self.prior * np.maximum(1.0 + change, 0.01)

    def by_unit(self) -> dict[str, float]:
        """Return each layer's share."""
        return dict(zip(self.units, self.shares.tolist(), strict=True))

    def loss(self, int8: Collection[str]) -> float:
        """Return what a plan will probably lose."""
        return float(sum(one for name, one in self.by_unit().items() if name in int8))
