"""The best mixture under a fitted law, how sure it is, and how much it matters.

The optimum is exact under the law (`Direct`, with a certificate). How sure it is comes from resampled tables of runs:
the law is fitted to each (`resampling`) and solved again. How much it matters comes from the set of mixtures whose
predicted loss is within one standard error of the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioli.fits.fit import Fit
from aioli.fits.resampling import default_count, resampled, something_left
from aioli.fits.table import Runs
from aioli.fits.wish import Wish
from aioli.lmo import BestSimulated, Direct, Optimum
from aioli.lmo.laws import Fitted
from aioli.simplex import Array

LEVEL, HALVINGS = 0.95, 16


@dataclass(frozen=True)
class Compared:
    """A simple mixture next to the best."""

    proportions: Array
    loss: float
    worse: float
    """Predicted loss above the best mixture's."""
    interval: tuple[float, float] | None
    within: bool
    """Whether it keeps the bounds."""

    def to_json(self, groups: tuple[str, ...]) -> dict[str, Any]:
        """As plain JSON."""
        plain = {"loss": self.loss, "worse_by": self.worse, "interval": self.interval, "within_bounds": self.within}
        return plain | {"proportions": dict(zip(groups, self.proportions.tolist(), strict=True))}


@dataclass(frozen=True)
class Solution:
    """The best mixture, and how sure it is."""

    fit: Fit
    wish: Wish
    best: Optimum
    compared: dict[str, Compared]
    resamples: int = 0
    interval: Array | None = None
    """Of each share, (m, 2)."""
    loss_interval: tuple[float, float] | None = None
    stderr: float | None = None
    """Standard error of the predicted loss of the best mixture."""
    regret: float | None = None
    """Mean loss that is lost, by this law, when the mixture is chosen by a resampled table."""
    near: Array | None = None
    """Smallest and largest share of each group among mixtures within one standard error of the best, (m, 2)."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        groups, targets = self.fit.runs.groups, self.fit.runs.targets

        def by(names: tuple[str, ...], values: Array | None) -> Any:
            return None if values is None else dict(zip(names, values.tolist(), strict=True))

        return {
            "kind": "aioli solution",
            "schema": 1,
            "law": self.fit.name,
            "proportions": by(groups, self.best.proportions),
            "loss": self.best.value,
            "losses": by(targets, self.best.losses),
            "target_weights": by(targets, self.wish.target_weights),
            "certified_gap": self.best.gap,
            "bounds": {
                g: [a, b] for g, a, b in zip(groups, self.wish.low.tolist(), self.wish.high.tolist(), strict=True)
            },
            "resamples": self.resamples,
            "interval_level": LEVEL,
            "proportion_intervals": by(groups, self.interval),
            "loss_interval": self.loss_interval,
            "standard_error": self.stderr,
            "regret": self.regret,
            "within_one_standard_error": by(groups, self.near),
            "compared": {name: each.to_json(groups) for name, each in self.compared.items()},
            "notes": list(self.notes),
        }


def solve(
    fit: Fit,
    wish: Wish,
    resamples: int | None = None,
    seed: int = 0,
    step: Callable[[int, int], None] = lambda a, b: None,
) -> Solution:
    """The best mixture within bounds, with intervals from resampled tables."""
    convex = isinstance(fit.law, Fitted)
    count = default_count(fit.law) if resamples is None else resamples
    if count < 0 or count == 1:
        raise ValueError(f"--bootstrap {count}: use 0 for none, or at least 2")
    notes: list[str] = []
    if count and convex and not something_left(fit):
        notes.append("the law has as many parameters as there are runs, so nothing says how sure it is; add runs")
        count = 0
    best = _optimum(fit.law, wish, seed)
    simple = dict(wish.simple) | _best_run(fit.runs, wish)
    places = np.stack([best.proportions, *simple.values()])
    here = _value(fit.law, places, wish)
    notes += _beyond(fit.runs, best.proportions)
    if not convex:
        notes.append("trees have no certificate: this is the best of many tried")
    drawn, values, regrets = [], [], []
    for k, law in enumerate(resampled(fit, count, seed)):
        other = _optimum(law, wish, seed)
        drawn.append(other.proportions)
        values.append(_value(law, places, wish))
        regrets.append(float(_value(fit.law, other.proportions[None], wish)[0]) - best.value)
        step(k + 1, count)
    tail = 100 * (1 - LEVEL) / 2
    spans = np.percentile(np.array(values), [tail, 100 - tail], axis=0) if count else None
    over = np.array(values) - np.array(values)[:, :1] if count else None
    ranges = np.percentile(over, [tail, 100 - tail], axis=0) if over is not None else None
    compared = {
        name: Compared(
            p,
            float(here[k]),
            float(here[k] - best.value),
            None if ranges is None else (float(ranges[0, k]), float(ranges[1, k])),
            bool((p >= wish.low - 1e-9).all() and (p <= wish.high + 1e-9).all()),
        )
        for k, (name, p) in enumerate(simple.items(), 1)
    }
    if spans is None:
        return Solution(fit, wish, best, compared, notes=tuple(notes))
    stderr = float(np.std([each[0] for each in values], ddof=1))
    return Solution(
        fit,
        wish,
        best,
        compared,
        count,
        np.percentile(np.array(drawn), [tail, 100 - tail], axis=0).T,
        (float(spans[0, 0]), float(spans[1, 0])),
        stderr,
        max(0.0, float(np.mean(regrets))),
        _near(fit.law, wish, best, stderr, seed),
        tuple(notes),
    )


def _value(law: Any, P: Array, wish: Wish) -> Array:
    """The objective at mixtures: the weighted mean of the predicted losses."""
    return np.asarray(law.predict(P) @ wish.target_weights / wish.target_weights.size)


def _optimum(law: Any, wish: Wish, seed: int) -> Optimum:
    weights, low, high = (tuple(each.tolist()) for each in (wish.target_weights, wish.low, wish.high))
    if isinstance(law, Fitted):
        return Direct(weights, low, high).solve(law)
    return BestSimulated(20_000, 20, seed=seed, target_weights=weights, floors=low, caps=high).solve(
        law.predict, len(low)
    )


def _best_run(runs: Runs, wish: Wish) -> dict[str, Array]:
    """The mixture of the run that did best, by what was measured."""
    used = wish.target_weights > 0
    value = runs.L[:, used] @ wish.target_weights[used]
    whole = np.isfinite(value)
    return {"best run": runs.P[whole][int(np.argmin(value[whole]))]} if whole.any() else {}


def _beyond(runs: Runs, p: Array) -> list[str]:
    """Shares that no run has tried."""
    most = runs.P.max(0)
    found = [
        f"{group} at {share:.1%} is beyond what any run has tried (at most {top:.1%})"
        for group, share, top in zip(runs.groups, p, most, strict=True)
        if share > top * 1.05 + 0.005
    ]
    return found


def _near(law: Any, wish: Wish, best: Optimum, stderr: float, seed: int) -> Array:
    """How far each share can go, the others following as they like, before the loss rises by one standard error."""
    limit, m = best.value + stderr, best.proportions.size
    found = np.stack([best.proportions, best.proportions], axis=1)
    if not isinstance(law, Fitted):
        tried = BestSimulated(20_000, 20, seed=seed, floors=tuple(wish.low), caps=tuple(wish.high)).draws(m)
        close = tried[_value(law, tried, wish) <= limit]
        return np.stack([close.min(0, initial=1.0), close.max(0, initial=0.0)], 1) if len(close) else found
    for j in range(m):
        for side, end in ((0, _least(wish, j)), (1, _most(wish, j))):
            found[j, side] = _edge(law, wish, j, float(best.proportions[j]), end, limit)
    return found


def _least(wish: Wish, j: int) -> float:
    return max(float(wish.low[j]), 1.0 - float(np.delete(wish.high, j).sum()))


def _most(wish: Wish, j: int) -> float:
    return min(float(wish.high[j]), 1.0 - float(np.delete(wish.low, j).sum()))


def _edge(law: Any, wish: Wish, j: int, inside: float, outside: float, limit: float) -> float:
    """Between a share that is within the limit and one that may not be: how far it goes (the set is convex)."""

    def allowed(share: float) -> bool:
        low, high = wish.low.copy(), wish.high.copy()
        low[j] = high[j] = share
        return _optimum(law, Wish(wish.target_weights, low, high), 0).value <= limit

    if abs(outside - inside) < 1e-4 or allowed(outside):
        return outside
    for _ in range(HALVINGS):
        middle = 0.5 * (inside + outside)
        if allowed(middle):
            inside = middle
        else:
            outside = middle
        if abs(outside - inside) < 1e-3:
            break
    return inside
