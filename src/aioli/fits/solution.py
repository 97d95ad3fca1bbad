"""The best mixture under a fitted law, how sure it is, and how much it matters.

The optimum is exact under the law (`Direct`, with a certificate). How sure it is comes from resampled tables of runs:
the law is fitted to each and solved again. A table is resampled by keeping its mixtures and flipping the signs of what
the law leaves over at random (wild bootstrap: it needs no more runs than the fit and lets noise differ from run to
run); for trees, which leave nothing over, by drawing runs. How much it matters comes from the set of mixtures whose
predicted loss is within one standard error of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aioli.fits.fit import Fit
from aioli.fits.scoring import fit_anyhow
from aioli.fits.table import Runs
from aioli.lmo import BestSimulated, Direct, Optimum, TransferPowerLaw
from aioli.lmo.laws import Fitted
from aioli.simplex import Array, as_weights, box, uniform

RESAMPLES, SLOW, TREES, LEVEL = 200, 100, 20, 0.95
"""Resampled tables by default, for laws of several terms and for trees, which take longer; the level of intervals."""
BATCH = 400
"""Targets that are fitted at once."""
HALVINGS = 16


@dataclass(frozen=True)
class Wish:
    """What is wanted: targets and their weights, and bounds on shares."""

    target_weights: Array
    """Of every target of the fit; 0 leaves one out."""
    low: Array
    high: Array
    simple: Mapping[str, Array] = field(default_factory=dict)
    """Simple mixtures to compare with, by name."""

    @classmethod
    def of(
        cls,
        runs: Runs,
        weights: Mapping[str, float] | None = None,
        floors: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
        targets: tuple[str, ...] | None = None,
        natural: Mapping[str, float] | None = None,
    ) -> Wish:
        """By name; a target that is not named counts once, a group without bounds has none."""
        chosen = (
            _named(dict.fromkeys(targets, 1.0), runs.targets, "target", 0.0) if targets else np.ones(len(runs.targets))
        )
        counted = chosen * _named(weights or {}, runs.targets, "target", 1.0)
        if (counted < 0).any() or not np.isfinite(counted).all() or not counted.any():
            raise ValueError(f"target weights {counted.tolist()} must not be negative, and one must be above 0")
        low = _named(floors or {}, runs.groups, "group", 0.0)
        high = _named(caps or {}, runs.groups, "group", 1.0)
        for group, a, b in zip(runs.groups, low, high, strict=True):
            if a > b:
                raise ValueError(f"{group} must be at least {a:g} and at most {b:g}, which cannot be")
        box(len(runs.groups), low, high)
        simple = {"uniform": uniform(len(runs.groups))}
        if natural:
            sizes = _named(natural, runs.groups, "group", 0.0)
            simple["natural"] = sizes / sizes.sum()
        return cls(as_weights(counted, len(counted)), low, high, simple)


def _named(values: Mapping[str, float], names: tuple[str, ...], what: str, rest: float) -> Array:
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"there is no {what} {unknown[0]!r}; there are {', '.join(names)}")
    return np.array([float(values.get(name, rest)) for name in names])


def caps_from_tokens(
    available: Mapping[str, float], groups: tuple[str, ...], budget: float, epochs: float
) -> dict[str, float]:
    """The largest share of each group that does not repeat its tokens more than `epochs` times within the budget."""
    if not (np.isfinite(budget) and budget > 0) or not (np.isfinite(epochs) and epochs > 0):
        raise ValueError(f"--budget {budget:g} and --max-epochs {epochs:g} must be positive")
    _named(available, groups, "group", 0.0)
    for group, tokens in available.items():
        if not (np.isfinite(tokens) and tokens >= 0):
            raise ValueError(f"{group} has {tokens} tokens available; give a number that is not negative")
    caps = {group: min(1.0, available[group] * epochs / budget) for group in groups if group in available}
    total = sum(caps.get(group, 1.0) for group in groups)
    if total < 1.0:
        have = sum(available.values()) * epochs
        raise ValueError(
            f"{sum(available.values()):.3g} tokens at most {epochs:g} times are {have:.3g}, fewer than the budget of "
            f"{budget:.3g}; allow more epochs, a smaller budget, or add data"
        )
    return caps


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
    count = _count(fit.law) if resamples is None else resamples
    if count < 0 or count == 1:
        raise ValueError(f"--bootstrap {count}: use 0 for none, or at least 2")
    notes: list[str] = []
    if count and convex and not _left_over(fit):
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
    for k, law in enumerate(_resampled(fit, count, seed)):
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


def _count(law: Any) -> int:
    if not isinstance(law, Fitted):
        return TREES
    return RESAMPLES if law.terms == 1 else SLOW


def _left_over(fit: Fit) -> bool:
    """Whether there are more runs than parameters, so that something is left over to resample."""
    q = fit.law.tangent(fit.runs.P[:1], 0).shape[1]
    return isinstance(fit.law, TransferPowerLaw) or bool(fit.runs.weights.sum(0).min() > q)


def _resampled(fit: Fit, count: int, seed: int) -> Iterator[Any]:
    """The law, fitted again to resampled tables, several at a time."""
    rng, runs, n = np.random.default_rng(seed), fit.runs, len(fit.runs.targets)
    convex = isinstance(fit.law, Fitted)
    left = _scaled_residuals(fit) if convex else np.zeros_like(runs.L)
    expected = fit.predict(runs.P)
    size = max(1, BATCH // n)
    for first in range(0, count, size):
        many = min(size, count - first)
        if convex:  # one sign for all targets of a run: what disturbs one may disturb another
            signs = rng.choice([-1.0, 1.0], (many, len(runs.P), 1))
            L, weights = np.concatenate(list(expected + signs * left), axis=1), np.tile(runs.weights, many)
        else:
            draws = rng.multinomial(len(runs.P), np.full(len(runs.P), 1.0 / len(runs.P)), many)
            L = np.tile(runs.L, many)
            weights = np.concatenate([runs.weights * draw[:, None] for draw in draws], axis=1)
            bare = ~weights.any(0)  # a target whose few runs were not drawn keeps them all
            weights[:, bare] = np.tile(runs.weights, many)[:, bare]
        law = fit_anyhow(fit.law, runs.P, L, weights, fit.law.part(np.tile(np.arange(n), many)))
        for k in range(many):
            yield law.part(np.arange(k * n, (k + 1) * n))


def _scaled_residuals(fit: Fit) -> Array:
    """What the law leaves over, made as large as the noise: a fit takes part of the noise for its own."""
    runs = fit.runs
    left = np.where(runs.weights > 0, runs.L - fit.predict(runs.P), 0.0)
    for i in range(len(runs.targets)):
        there = runs.weights[:, i] > 0
        basis = np.linalg.qr(fit.law.tangent(runs.P[there], i))[0]
        leverage = (basis**2).sum(1)
        left[there, i] /= np.sqrt(np.maximum(1.0 - leverage, 0.1))
    return np.asarray(left)


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
