"""The laws of the online methods: how losses move over one round, `L^{t+1}` from `L^t` and the round's mixture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.design import as_design, as_losses, least_squares, scores
from aioli.lmo.laws import Ridged
from aioli.simplex import Array


@dataclass
class LinearDynamic(Ridged):
    """`L^{t+1} = L^t - A p`: the law of the online methods (b is absorbed into A). `diagonal` keeps only A_ii (n = m).

    Without `start` the fit takes L^t = 0: on the simplex a constant moves freely between c and A (Lemma 2), so the
    predictions and the differences between groups are the same and only the level of A's rows differs. A diagonal A
    has no level to move, so it needs `start`.
    """

    diagonal: bool = False

    def fit(self, P: ArrayLike, L: ArrayLike, start: ArrayLike | None = None) -> LinearDynamic:
        """Fit losses L after one round of P, from the losses `start` before it: (n,), or (runs, n) if they differ."""
        design = as_design(P)
        losses = as_losses(L, len(design))
        before = _as_start(start, losses)
        drop = before - losses
        self._vector = np.ndim(L) == 1
        if self.diagonal:
            if design.shape[1] != losses.shape[1]:
                n, m = losses.shape[1], design.shape[1]
                raise ValueError(f"a diagonal A needs one target per group; there are {n} targets and {m} groups")
            if start is None:
                raise ValueError("a diagonal A needs the losses before the round: fit(P, L, start)")
            power = (design**2).sum(0) + self.ridge
            if (power == 0).any():
                raise ValueError(f"group {int(np.argmin(power))} is 0 in every mixture, so its effect was never seen")
            self.A_ = np.diag(((design * drop).sum(0) + self.ridge * drop.mean(0)) / power)
        else:
            self.A_ = least_squares(design, drop, self.ridge)
        self.c_ = before.mean(0)
        self._starts_differ = bool((np.ptp(before, axis=0) > 0).any())
        self.b_ = np.ones(len(self.A_))
        self.mse_, self.r2_ = scores(losses, before - design @ self.A_.T)
        return self

    def predict(self, P: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Losses after one round of P from `start` (by default the start the law was fitted from)."""
        u = self._projected(P)
        return self._shape(_start_of(self, start, u) - u)

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = L^t - u."""
        return self.c_ - u, -np.ones_like(u), np.zeros_like(u)


@dataclass
class LogLinearDynamic(Ridged):
    """`log L^{t+1} = log L^t - A p`: the log-linear dynamic law of Appendix C.1.2. Scores are on the scale of L."""

    def fit(self, P: ArrayLike, L: ArrayLike, start: ArrayLike | None = None) -> LogLinearDynamic:
        """Fit by exact least squares on the logarithms; losses must be positive."""
        design = as_design(P)
        losses = as_losses(L, len(design))
        before = np.ones_like(losses) if start is None else _as_start(start, losses)
        if (losses <= 0).any() or (before <= 0).any():
            low = min(losses.min(), before.min())
            raise ValueError(f"a loss of {low:g} has no logarithm; the log-linear law needs positive losses")
        self._vector = np.ndim(L) == 1
        self.A_ = least_squares(design, np.log(before) - np.log(losses), self.ridge)
        self.c_ = np.zeros(len(self.A_))
        self.b_ = np.exp(np.log(before).mean(0))
        self._starts_differ = bool((np.ptp(before, axis=0) > 0).any())
        self.mse_, self.r2_ = scores(losses, before * np.exp(-(design @ self.A_.T)))
        return self

    def predict(self, P: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Losses after one round of P from `start` (by default the start the law was fitted from)."""
        u = self._projected(P)
        return self._shape(_start_of(self, start, u) * np.exp(-u))

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = L^t·exp(-u)."""
        e = self.b_ * np.exp(-u)
        return e, -e, e


def _as_start(start: ArrayLike | None, losses: Array) -> Array:
    if start is None:
        return np.zeros_like(losses)
    before = np.array(start, dtype=np.float64)
    if before.shape not in {(losses.shape[1],), losses.shape, (), (len(losses),) if losses.shape[1] == 1 else ()}:
        raise ValueError(f"start has shape {before.shape}; give one loss per target, or one row per mixture")
    if before.shape == (len(losses),) and losses.shape[1] == 1:
        before = before[:, None]
    if not np.isfinite(before).all():
        raise ValueError(f"start={before.tolist()} is not finite")
    return np.broadcast_to(before, losses.shape)


def _start_of(law: LinearDynamic | LogLinearDynamic, start: ArrayLike | None, u: Array) -> Array:
    if start is not None:
        return _as_start(start, u)
    if law._starts_differ:
        raise ValueError("the law was fitted from several starting losses; say which with predict(P, start=...)")
    return law.c_ if isinstance(law, LinearDynamic) else law.b_
