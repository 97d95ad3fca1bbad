"""Mixing laws: how the loss of each target answers to the mixture (the first LMO component, eq. 2).

In: mixtures P (runs, m) and losses L (runs, n). Out: a fitted law with the paper's parameters `A_` (n, m), `b_`, `c_`
(n,), and how well it fits per target, `mse_` and `r2_`. Every law is `L_i = phi_i(A_i · p)` with a convex phi; `link`
gives phi and its derivatives, which is all that `Direct` needs to find the global optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.loglinear import fit_loglinear
from aioli.simplex import Array

ROUNDING = 0.006
"""How far from 1 the rows of a table of runs may sum: published tables are rounded; they are renormalised."""


class Law(Protocol):
    """A fitted law whose optimum over mixtures can be found."""

    @property
    def A_(self) -> Array: ...

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u), phi'(u), phi''(u) of every target at u = A p, each (n,); phi is convex."""
        ...


def as_design(P: ArrayLike) -> Array:
    """Check a table of mixtures: one finite mixture per row."""
    design = np.array(P, dtype=np.float64)
    if design.ndim != 2 or 0 in design.shape:
        raise ValueError(f"mixtures must be a table of shape (runs, groups), got shape {design.shape}")
    bad = ~np.isfinite(design).all(1) | (design < 0).any(1) | (np.abs(design.sum(1) - 1.0) > ROUNDING)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the mixture in row {row}, {design[row].tolist()}, sums to {design[row].sum():g}; shares must be finite, "
            "not negative, and sum to 1 (percent: divide by 100)"
        )
    return np.asarray(design / design.sum(1, keepdims=True))


def as_losses(L: ArrayLike, runs: int, name: str = "losses") -> Array:
    """Check a table of losses: finite, one row per mixture; a vector is one target."""
    table = np.array(L, dtype=np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or len(table) != runs:
        raise ValueError(f"{name} have shape {table.shape} but there are {runs} mixtures; give one row per mixture")
    if not np.isfinite(table).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(table))[0])
        raise ValueError(f"{name}[{row}, {column}]={table[row, column]} is not finite; drop that run or that target")
    return table


def check_rank(P: Array) -> None:
    """Refuse a design from which the law's parameters cannot be told apart, and say why."""
    _, singular, directions = np.linalg.svd(P, full_matrices=True)
    m = P.shape[1]
    rank = int((singular > 1e-10 * singular[0]).sum())
    if rank == m:
        return
    distinct = len(np.unique(P.round(12), axis=0))
    unused = np.flatnonzero(P.max(0) == 0)
    if distinct < m:
        cause = f"there are {distinct} distinct mixtures for {m} groups, and at least {m} are needed"
    elif unused.size:
        cause = f"group {unused[0]} is 0 in every mixture, so its effect was never seen"
    else:
        tied = np.flatnonzero(np.abs(directions[-1]) > 1e-6)
        cause = f"the shares of groups {', '.join(map(str, tied))} are tied to each other in every mixture"
    raise ValueError(f"the mixtures do not determine the law (rank {rank} of {m}): {cause}; add runs or set ridge > 0")


def least_squares(P: Array, Y: Array, ridge: float = 0.0) -> Array:
    """Exact least squares of `P a = y` for every column of Y, as (n, m).

    `ridge` is the weight of one made-up run per group, on that group alone, that saw the average.
    """
    if ridge == 0.0:
        check_rank(P)
    else:
        m = P.shape[1]
        Y = np.concatenate([Y, np.sqrt(ridge) * np.repeat(Y.mean(0, keepdims=True), m, axis=0)])
        P = np.concatenate([P, np.sqrt(ridge) * np.eye(m)])
    return np.asarray(np.linalg.lstsq(P, Y, rcond=None)[0].T, dtype=np.float64)


def scores(L: Array, predicted: Array) -> tuple[Array, Array]:
    """Mean squared error and R² per target; a target that never changes has R² 1 if it is met and 0 otherwise."""
    error = ((L - predicted) ** 2).mean(0)
    spread = L.var(0)
    r2 = np.where(error <= 1e-24 * np.maximum(1.0, (L**2).mean(0)), 1.0, 0.0)
    moving = spread > 0
    r2[moving] = 1.0 - error[moving] / spread[moving]
    return error, r2


@dataclass
class _Fitted:
    """What every law has after `fit`."""

    ridge: float = 0.0
    """How many made-up runs per group, on that group alone, are added that saw the average loss: a pull towards "it
    does not matter" that makes any design solvable. 0 is plain least squares."""
    A_: Array = field(init=False, repr=False)
    b_: Array = field(init=False, repr=False)
    c_: Array = field(init=False, repr=False)
    mse_: Array = field(init=False, repr=False)
    r2_: Array = field(init=False, repr=False)
    _vector: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f"ridge={self.ridge} must not be negative")

    def _shape(self, predicted: Array) -> Array:
        return predicted[:, 0] if self._vector else predicted

    def _projected(self, P: ArrayLike) -> Array:
        if not hasattr(self, "A_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet; call fit(P, L) first")
        design = as_design(np.atleast_2d(np.asarray(P, dtype=np.float64)))
        if design.shape[1] != self.A_.shape[1]:
            raise ValueError(f"mixtures have {design.shape[1]} groups but the law was fitted on {self.A_.shape[1]}")
        return design @ self.A_.T


@dataclass
class LinearStatic(_Fitted):
    """`L = c - A p`: RegMix's linear regression. The gauge is sum_j A_ij = 0, so c is the loss at uniform."""

    def fit(self, P: ArrayLike, L: ArrayLike) -> LinearStatic:
        """Fit by exact least squares."""
        design = as_design(P)
        losses = as_losses(L, len(design))
        a = least_squares(design, losses, self.ridge)
        self._vector = np.ndim(L) == 1
        self.c_ = a.mean(1)
        self.A_ = self.c_[:, None] - a
        self.b_ = np.ones(len(a))
        self.mse_, self.r2_ = scores(losses, design @ a.T)
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        u = self._projected(P)
        return self._shape(self.c_ - u)

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = c - u."""
        return self.c_ - u, -np.ones_like(u), np.zeros_like(u)


@dataclass
class LogLinearStatic(_Fitted):
    """`L = c + b·exp(-A p)`: the law of Data Mixing Laws, in the gauge b = 1 (E22)."""

    huber: float | None = None
    """Residual beyond which errors count linearly, in units of the loss; None: 1.345 robust standard deviations."""

    def fit(self, P: ArrayLike, L: ArrayLike) -> LogLinearStatic:
        """Fit all targets by variable projection; needs at least m + 1 distinct mixtures."""
        design = as_design(P)
        losses = as_losses(L, len(design))
        if self.huber is not None and not self.huber > 0:
            raise ValueError(f"huber={self.huber} must be positive, or None to estimate it")
        if self.ridge == 0.0:
            check_rank(design)
            distinct, needed = len(np.unique(design.round(12), axis=0)), design.shape[1] + 1
            if distinct < needed and design.shape[1] > 1:
                raise ValueError(
                    f"{distinct} distinct mixtures cannot determine the log-linear law of {design.shape[1]} groups, "
                    f"which has {needed} parameters per target; add runs or set ridge > 0"
                )
        self.A_, self.c_ = fit_loglinear(design, losses, self.huber, self.ridge)
        self.b_ = np.ones(len(self.A_))
        self._vector = np.ndim(L) == 1
        self.mse_, self.r2_ = scores(losses, self.c_ + np.exp(-(design @ self.A_.T)))
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        u = self._projected(P)
        return self._shape(self.c_ + self.b_ * np.exp(-u))

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = c + b·exp(-u)."""
        e = self.b_ * np.exp(-u)
        return self.c_ + e, -e, e


@dataclass
class LinearDynamic(_Fitted):
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
class LogLinearDynamic(_Fitted):
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
