"""Boosted trees as a mixing law (RegMix's main form; outside LMO). Needs the extra `trees`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.laws import as_design, as_losses, scores
from aioli.simplex import Array


class Trees:
    """One LightGBM regressor per target. It predicts, but has no A and no certificate of an optimum."""

    def __init__(self, trees: int = 100, learning_rate: float = 0.1, seed: int = 0) -> None:
        self.trees, self.learning_rate, self.seed = trees, learning_rate, seed

    def fit(self, P: ArrayLike, L: ArrayLike) -> Trees:
        """Fit one regressor per target."""
        try:
            import lightgbm
        except ImportError:
            raise ValueError("the trees law needs LightGBM: pip install 'aioli-mix[trees]'") from None
        design = as_design(P)
        losses = as_losses(L, len(design))
        settings: dict[str, Any] = {
            "objective": "regression",
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": max(1, min(20, len(design) // 10)),
            "min_data_in_bin": 1,
            "seed": self.seed,
            "deterministic": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        self._models = [
            lightgbm.train(settings, lightgbm.Dataset(design, column, params=settings), self.trees)
            for column in losses.T
        ]
        self._vector = np.ndim(L) == 1
        self.mse_, self.r2_ = scores(losses, self._table(design))
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        if not hasattr(self, "_models"):
            raise ValueError("this Trees law is not fitted yet; call fit(P, L) first")
        table = self._table(as_design(P))
        return table[:, 0] if self._vector else table

    def _table(self, design: Array) -> Array:
        return np.stack([np.asarray(model.predict(design, num_threads=1)) for model in self._models], axis=1)
