"""Boosted trees as a mixing law (RegMix's main form; outside LMO). Needs the extra `trees`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.design import as_counted, as_design, scores
from aioli.simplex import Array, Places


@dataclass
class Trees:
    """One LightGBM regressor per target. It predicts, but has no A and no certificate of an optimum."""

    trees: int = 100
    learning_rate: float = 0.1
    seed: int = 0
    mse_: Array = field(init=False, repr=False)
    r2_: Array = field(init=False, repr=False)

    def fit(self, P: ArrayLike, L: ArrayLike, weights: ArrayLike | None = None, like: Trees | None = None) -> Trees:
        """Fit one regressor per target; `weights` is how much each run or each loss counts."""
        try:
            import lightgbm
        except ImportError:
            raise ValueError("the trees law needs LightGBM: pip install 'aioli-mix[trees]'") from None
        design = as_design(P)
        losses, w = as_counted(L, len(design), weights)
        self._models = []
        for column, counted in zip(losses.T, w.T, strict=True):
            rows = counted > 0
            settings: dict[str, Any] = {
                "objective": "regression",
                "learning_rate": self.learning_rate,
                "min_data_in_leaf": max(1, min(20, int(rows.sum()) // 10)),
                "min_data_in_bin": 1,
                "seed": self.seed,
                "deterministic": True,
                "num_threads": 1,
                "verbosity": -1,
            }
            data = lightgbm.Dataset(design[rows], column[rows], weight=counted[rows], params=settings)
            self._models.append(lightgbm.train(settings, data, self.trees))
        self._vector = np.ndim(L) == 1
        self.mse_, self.r2_ = scores(losses, self._table(design), w)
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        if not hasattr(self, "_models"):
            raise ValueError("this Trees law is not fitted yet; call fit(P, L) first")
        table = self._table(as_design(np.atleast_2d(np.asarray(P, dtype=np.float64))))
        return table[:, 0] if self._vector else table

    def part(self, targets: Sequence[int] | Places) -> Trees:
        """The trees of some targets alone."""
        law = copy.copy(self)
        law._models = [self._models[int(i)] for i in targets]
        law.mse_, law.r2_ = self.mse_[np.asarray(targets)], self.r2_[np.asarray(targets)]
        law._vector = False
        return law

    def _table(self, design: Array) -> Array:
        return np.stack([np.asarray(model.predict(design, num_threads=1)) for model in self._models], axis=1)
