"""Mixing laws: how the loss of each target answers to the mixture (the first LMO component, eq. 2).

In: mixtures P (runs, m) and losses L (runs, n). Out: a fitted law with the paper's parameters `A_` (n, m), `b_`, `c_`
(n,), and how well it fits per target, `mse_` and `r2_`. Every law is `L_i = phi_i(A_i · p)` with a convex phi, or a sum
of such terms; `link` gives phi and its derivatives, which is all that `Direct` needs to find the global optimum. Here
are the two static laws of the paper; the dynamic ones are in `dynamic`, the transfer power law in `transfer`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.design import as_counted, as_design, check_rank, least_squares, patterns, scores
from aioli.lmo.loglinear import fit_loglinear
from aioli.simplex import Array, Places
from aioli.threads import one_thread

Own = TypeVar("Own", bound="Fitted")


class Law(Protocol):
    """A fitted law whose optimum over mixtures can be found. If several terms add up to the loss of a target, their
    rows stand next to each other, and an attribute `terms` says how many there are."""

    @property
    def A_(self) -> Array:
        """One row for each term of each target, (n·terms, m)."""
        ...

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u), phi'(u), phi''(u) of every term at u = A p, each (n·terms,); phi is convex."""
        ...


@dataclass
class Fitted:
    """What every law has after `fit`."""

    A_: Array = field(init=False, repr=False)
    b_: Array = field(init=False, repr=False)
    c_: Array = field(init=False, repr=False)
    mse_: Array = field(init=False, repr=False)
    r2_: Array = field(init=False, repr=False)
    _vector: bool = field(init=False, repr=False, default=False)
    BY_TERM: ClassVar[tuple[str, ...]] = ("A_", "b_")
    """What has a row for each term of each target."""
    BY_TARGET: ClassVar[tuple[str, ...]] = ("c_", "mse_", "r2_")
    """What has an entry for each target."""

    @property
    def terms(self) -> int:
        """How many terms add up to the loss of a target."""
        return 1

    def part(self: Own, targets: Sequence[int] | Places) -> Own:
        """The fitted law of some targets alone, in the order given; one may be named several times."""
        law, chosen = copy.copy(self), np.asarray(targets, dtype=np.intp)
        rows = (chosen[:, None] * self.terms + np.arange(self.terms)).ravel()
        for names, index in ((self.BY_TERM, rows), (self.BY_TARGET, chosen)):
            for name in names:
                setattr(law, name, getattr(self, name)[index])
        law._vector = False
        return law

    def _shape(self, predicted: Array) -> Array:
        return predicted[:, 0] if self._vector else predicted

    def _projected(self, P: ArrayLike) -> Array:
        if not hasattr(self, "A_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet; call fit(P, L) first")
        design = as_design(np.atleast_2d(np.asarray(P, dtype=np.float64)))
        if design.shape[1] != self.A_.shape[1]:
            raise ValueError(f"mixtures have {design.shape[1]} groups but the law was fitted on {self.A_.shape[1]}")
        return design @ self.A_.T


class StaticLaw(Fitted, ABC):
    """A convex law of finished runs: its optimum is exact, and what it leaves over can be tested."""

    @abstractmethod
    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u), phi'(u), phi''(u) of every term at u = A p."""

    @abstractmethod
    def tangent(self, P: ArrayLike, target: int) -> Array:
        """How the predictions of one target change with its parameters, (runs, parameters)."""


@dataclass
class Ridged(Fitted):
    """A law that any design determines if it is helped a little."""

    ridge: float = 0.0
    """How many made-up runs per group, on that group alone, are added that saw the average loss: a pull towards "it
    does not matter" that makes any design solvable. 0 is plain least squares."""

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f"ridge={self.ridge} must not be negative")


@dataclass
class LinearStatic(Ridged, StaticLaw):
    """`L = c - A p`: RegMix's linear regression. The gauge is sum_j A_ij = 0, so c is the loss at uniform."""

    def fit(
        self, P: ArrayLike, L: ArrayLike, weights: ArrayLike | None = None, like: LinearStatic | None = None
    ) -> LinearStatic:
        """Fit by exact least squares; `weights` is how much each run counts, (runs,), or each loss, (runs, n)."""
        design = as_design(P)
        losses, w = as_counted(L, len(design), weights)
        a = least_squares(design, losses, self.ridge, w)
        self._vector = np.ndim(L) == 1
        self.c_ = a.mean(1)
        self.A_ = self.c_[:, None] - a
        self.b_ = np.ones(len(a))
        self.mse_, self.r2_ = scores(losses, design @ a.T, w)
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        u = self._projected(P)
        return self._shape(self.c_ - u)

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = c - u."""
        return self.c_ - u, -np.ones_like(u), np.zeros_like(u)

    def tangent(self, P: ArrayLike, target: int) -> Array:
        """How the predictions of one target change with its parameters, (runs, parameters)."""
        return as_design(P)


@dataclass
class LogLinearStatic(Ridged, StaticLaw):
    """`L = c + b·exp(-A p)`: the law of Data Mixing Laws, in the gauge b = 1 (E22)."""

    huber: float | None = None
    """Residual beyond which errors count linearly, in units of the loss; None: 1.345 robust standard deviations."""
    huber_: Array = field(init=False, repr=False)
    """That residual, as it was used for each target."""
    BY_TARGET: ClassVar[tuple[str, ...]] = (*Fitted.BY_TARGET, "huber_")

    def fit(
        self, P: ArrayLike, L: ArrayLike, weights: ArrayLike | None = None, like: LogLinearStatic | None = None
    ) -> LogLinearStatic:
        """Fit all targets by variable projection; needs at least m + 1 distinct mixtures.

        `weights` is how much each run counts, (runs,), or each loss, (runs, n). `like` is a law fitted to much the same
        runs, to start from.
        """
        design = as_design(P)
        losses, w = as_counted(L, len(design), weights)
        if self.huber is not None and not self.huber > 0:
            raise ValueError(f"huber={self.huber} must be positive, or None to estimate it")
        if self.ridge == 0.0:
            for column, _ in patterns(w):
                _check_runs(design[column > 0])
        start = None if like is None else (like.A_, like.c_, like.huber_)
        with one_thread():
            self.A_, self.c_, self.huber_ = fit_loglinear(design, losses, self.huber, self.ridge, w, start)
        self.b_ = np.ones(len(self.A_))
        self._vector = np.ndim(L) == 1
        self.mse_, self.r2_ = scores(losses, self.c_ + np.exp(-(design @ self.A_.T)), w)
        return self

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        u = self._projected(P)
        return self._shape(self.c_ + self.b_ * np.exp(-u))

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = c + b·exp(-u)."""
        e = self.b_ * np.exp(-u)
        return self.c_ + e, -e, e

    def tangent(self, P: ArrayLike, target: int) -> Array:
        """How the predictions of one target change with its parameters, (runs, parameters)."""
        design = as_design(P)
        e = self.b_[target] * np.exp(-(design @ self.A_[target]))
        return np.concatenate([np.ones((len(design), 1)), e[:, None] * design], axis=1)


def _check_runs(design: Array) -> None:
    """Refuse a design that cannot determine the log-linear law."""
    check_rank(design)
    distinct, needed = len(np.unique(design.round(12), axis=0)), design.shape[1] + 1
    if distinct < needed and design.shape[1] > 1:
        raise ValueError(
            f"{distinct} distinct mixtures cannot determine the log-linear law of {design.shape[1]} groups, "
            f"which has {needed} parameters per target; add runs or set ridge > 0"
        )
