"""Whether a law can be trusted: tests of what it leaves over, where a test exists instead of eyesight.

Residuals of a right law are noise. Two ways they are not: pairs of groups explain them (interactions and curvature, an
F-test), or they lie on one side near an edge of the simplex (Appendix C.1.1: loss that rises again as a group takes
everything). Both are tested after what the law's own parameters could still explain is taken out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import fdtrc, stdtr

from aioli.fits.table import Runs
from aioli.simplex import Array

LEVEL = 0.01
"""Chance of a false alarm in a whole table, at most."""
MATTERS, AT_ALL = 0.1, 0.002
"""Share of the left-over variance, and of all variance, that must be explained for a warning: with many runs
anything is significant."""
PAIRS = 300
"""Products of shares that are looked at, at most."""
POOR = 0.8
"""Held-out R² below which a law explains little."""


@dataclass(frozen=True)
class Trouble:
    """One reason not to trust the law of one target."""

    target: str
    kind: str
    """`interactions`, `edge` or `poor`."""
    words: str
    p_value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return vars(self).copy()


@dataclass(frozen=True)
class FTest:
    """Whether added columns explain residuals."""

    F: float
    p_value: float
    explained: float
    """Share of the left-over variance that they explain, beyond what as many random columns would."""
    terms: int
    freedom: int


def interactions(P: Array) -> Array:
    """P_j P_k for all pairs of groups, (runs, m(m-1)/2)."""
    j, k = np.triu_indices(P.shape[1], 1)
    return P[:, j] * P[:, k]


def f_test(residual: Array, tangent: Array, added: Array) -> FTest | None:
    """F-test of adding columns to a law with this tangent; None where there are too few runs for it."""
    base = _basis(tangent)
    if len(residual) - base.shape[1] - added.shape[1] < 3:
        return None
    left = residual - base @ (base.T @ residual)
    new = added - base @ (base.T @ added)
    squares, directions = np.linalg.eigh(new.T @ new)
    real = squares > 1e-9 * max(float((added**2).sum(0).max(initial=0.0)), 1e-300)  # the rest is rounding
    terms = int(real.sum())
    freedom = len(residual) - base.shape[1] - terms
    if terms == 0:
        return None
    gain = float((((directions[:, real].T @ (new.T @ left)) ** 2) / squares[real]).sum())
    rest = max(float((left**2).sum()) - gain, 0.0)
    if rest <= 1e-24 * float((residual**2).sum()) + 1e-300:
        return None
    F = (gain / terms) / (rest / freedom)
    before = (gain + rest) / (terms + freedom)
    return FTest(F, float(fdtrc(terms, freedom, F)), max(0.0, 1.0 - (rest / freedom) / before), terms, freedom)


def _basis(columns: Array) -> Array:
    """Orthonormal columns that span the given ones."""
    size = np.linalg.norm(columns, axis=0)
    u, s, _ = np.linalg.svd(columns / np.where(size > 0, size, 1.0), full_matrices=False)
    return np.asarray(u[:, s > 1e-9 * s[0]])


def _added(P: Array, base: int) -> tuple[Array, str]:
    """Columns to test for: products of all pairs of groups; squares of shares where those would be too many."""
    m = P.shape[1]
    if m * (m - 1) // 2 <= min(PAIRS, (len(P) - base) // 2):
        return interactions(P), "pairs of groups"
    return P**2, "squares of shares"


def diagnose(law: Any, runs: Runs, held_out_r2: Array, predicted: Array) -> list[Trouble]:
    """What speaks against a fitted law, target by target; `predicted` are its predictions for runs it did not see."""
    found: list[Trouble] = []
    n, m = len(runs.targets), len(runs.groups)
    for i, target in enumerate(runs.targets):
        there = np.isfinite(runs.L[:, i]) & (hasattr(law, "tangent") | np.isfinite(predicted[:, i]))
        P, y = runs.P[there], runs.L[there, i]
        if len(y) < 3 or not moves(y):
            continue
        if not held_out_r2[i] >= POOR:
            found.append(Trouble(target, "poor", f"on runs it has not seen the law explains {_share(held_out_r2[i])}"))
        if hasattr(law, "tangent"):
            tangent, residual = law.tangent(P, i), y - law.part([i]).predict(P)[:, 0]
        else:
            tangent, residual = np.concatenate([P, predicted[there, i : i + 1]], 1), y - predicted[there, i]
        left = float(residual.var() / y.var())
        if left < 1e-12:  # nothing is left over
            continue
        added, what = _added(P, tangent.shape[1])
        test = f_test(residual, tangent, added)
        if test is not None and test.p_value < LEVEL / n and test.explained > max(MATTERS, AT_ALL / left):
            words = (
                f"{what} explain {test.explained:.0%} of the {left:.1%} of variance that the law leaves over "
                f"(F({test.terms}, {test.freedom}) = {test.F:.1f}, p = {test.p_value:.0e})"
            )
            found.append(Trouble(target, "interactions", words, test.p_value))
        least = max(0.5 * MATTERS, AT_ALL / left)
        found += _edges(target, runs.groups, P, residual, tangent, LEVEL / (n * 2 * m), least)
    return found


def teaches(L: Array) -> bool:
    """Whether any column of losses differs between runs."""
    return any(moves(column[np.isfinite(column)]) for column in L.T)


def moves(values: Array) -> bool:
    """Whether values differ by more than rounding."""
    return values.size > 0 and bool(np.ptp(values) > 1e-9 * np.abs(values).max())


def _edges(
    target: str, groups: Sequence[str], P: Array, residual: Array, tangent: Array, level: float, least: float
) -> list[Trouble]:
    """Groups at whose edge the residuals lie on one side; the clearest of them."""
    base = _basis(tangent)
    left = residual - base @ (base.T @ residual)
    freedom = len(left) - base.shape[1] - 1
    if freedom < 3:
        return []
    found: list[tuple[float, str]] = []
    for j, group in enumerate(groups):
        top = max(0.5, float(np.sort(P[:, j])[-max(2, len(P) // 20)]))
        for words, edge in ((f"{group} ≥ {top:.2g}", P[:, j] >= top), (f"{group} = 0", P[:, j] <= 1e-9)):
            count = int(edge.sum())
            if not 2 <= count <= 0.4 * len(P):
                continue
            new = edge - base @ (base.T @ edge)
            power = float(new @ new)
            if power < 1e-6 * count:
                continue
            size = float(new @ left) / power
            rest = max(float(left @ left) - size**2 * power, 1e-300)
            t = size * np.sqrt(power / (rest / freedom))
            explained = size**2 * power / float(left @ left)
            p_value = 2.0 * float(stdtr(freedom, -abs(t)))
            if p_value < level and explained > least:
                side = "higher" if size > 0 else "lower"
                note = f"where {words} ({count} runs) the loss is {abs(size):.2g} {side} than the law (t = {t:+.1f})"
                found.append((p_value, note))
    return [Trouble(target, "edge", note, p) for p, note in sorted(found)[:1]]


def _share(r2: float) -> str:
    return f"{r2:.0%} of the variance" if np.isfinite(r2) and r2 > 0 else "nothing of the variance"
