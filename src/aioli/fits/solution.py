"""The best mixture under a fitted law, how sure it is, and how much it matters.

The optimum is exact under the law (`Direct`, with a certificate). How sure it is comes from resampled tables of runs:
the law is fitted to each (`resampling`) and solved again. How much it matters comes from the set of mixtures whose
predicted loss is within one standard error of the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from aioli.fits.diagnose import teaches
from aioli.fits.fit import Fit
from aioli.fits.resampling import default_count, freedom_left, resampled
from aioli.fits.table import Runs
from aioli.fits.wish import Wish
from aioli.lmo import BestSimulated, Direct, LinearStatic, LogLinearStatic, Optimum
from aioli.lmo.laws import StaticLaw
from aioli.simplex import Array
from aioli.threads import one_thread

BEST_RUN = "best run"
LEVEL, FEWEST, MOST, HALVINGS = 0.95, 10, 1_000_000, 16
"""Of intervals; resampled tables that say anything, and that anybody means; steps of a bisection."""


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
    measured: float | None = None
    """What a run of it measured, where there is one."""

    def titled(self, name: str) -> str:
        """Its name in a table, with what was measured."""
        return name if self.measured is None else f"{name} (measured {self.measured:.4f})"

    def to_json(self, groups: tuple[str, ...]) -> dict[str, Any]:
        """As plain JSON."""
        plain = {"loss": self.loss, "worse_by": self.worse, "interval": self.interval, "within_bounds": self.within}
        plain |= {} if self.measured is None else {"measured": self.measured}
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


@one_thread()
def solve(
    fit: Fit,
    wish: Wish,
    resamples: int | None = None,
    seed: int = 0,
    step: Callable[[int, int], None] = lambda a, b: None,
) -> Solution:
    """The best mixture within bounds, with intervals from resampled tables."""
    count = default_count(fit.law) if resamples is None else resamples
    if count != 0 and count < FEWEST:
        raise ValueError(f"--bootstrap {count}: use 0 for none, or at least {FEWEST}")
    if count > MOST:
        raise ValueError(f"--bootstrap {count} is more than intervals can need; use at most {MOST:,}")
    freedom = float(freedom_left(fit)[wish.target_weights > 0].min())
    measured = _measured(fit.runs, wish)
    simple = dict(wish.simple) | _best_run(fit.runs, measured)
    best = _optimum(fit.law, wish, seed)
    if not isinstance(fit.law, StaticLaw):
        best = _better(fit.law, wish, best, np.concatenate([np.stack(list(simple.values())), fit.runs.P]))
    notes = _doubts(fit, wish, best, freedom if count else None)
    spread = None
    if count and freedom >= 1:
        spread = _Spread.of(fit, wish, best, list(simple.values()), count, freedom, seed, step)
    compared = _compared(fit, wish, best, simple, spread)
    if BEST_RUN in compared:
        compared[BEST_RUN] = replace(compared[BEST_RUN], measured=float(np.nanmin(measured)))
    if spread is None:
        return Solution(fit, wish, best, compared, notes=tuple(notes))
    shares = spread.shares(best.proportions, wish)
    span = spread.around(best.value, spread.errors[:, 0])
    notes += [*_below(fit.runs, wish, measured, span), *_far(fit.runs, best.proportions, shares)]
    return Solution(
        fit,
        wish,
        best,
        compared,
        count,
        shares,
        span,
        spread.stderr,
        max(0.0, spread.regret),
        _near(fit.law, wish, best, spread.stderr, seed),
        tuple(notes),
    )


def _compared(
    fit: Fit, wish: Wish, best: Optimum, simple: dict[str, Array], spread: _Spread | None
) -> dict[str, Compared]:
    """Simple mixtures next to the best."""
    found = {}
    for k, (name, p) in enumerate(simple.items(), 1):
        loss = float(_value(fit.law, p[None], wish)[0])
        worse = loss - best.value
        span = None if spread is None else spread.around(worse, spread.errors[:, k] - spread.errors[:, 0])
        within = bool(_within(p, wish))
        found[name] = Compared(p, loss, worse, span, within)
    return found


@dataclass(frozen=True)
class _Spread:
    """What came of resampled tables."""

    drawn: Array
    """Their best mixtures, (tables, m)."""
    errors: Array
    """What their laws say too much of their own best mixture, and of the simple ones, (tables, 1 + simple)."""
    stderr: float
    regret: float
    reach: float
    """Student's t over the normal: the noise itself is only known from so many degrees of freedom."""

    @classmethod
    def of(
        cls,
        fit: Fit,
        wish: Wish,
        best: Optimum,
        simple: list[Array],
        count: int,
        freedom: float,
        seed: int,
        step: Callable[[int, int], None],
    ) -> _Spread:
        drawn, errors, values, regrets = [], [], [], []
        for k, law in enumerate(resampled(fit, count, seed)):
            p = _optimum(law, wish, seed).proportions
            places = np.stack([p, *simple, best.proportions])
            theirs, ours = _value(law, places, wish), _value(fit.law, places, wish)
            drawn.append(p)
            errors.append((theirs - ours)[:-1])
            values.append(theirs[-1])
            regrets.append(ours[0] - best.value)
            step(k + 1, count)
        reach = float(stdtrit(freedom, 0.5 + LEVEL / 2) / ndtri(0.5 + LEVEL / 2))
        return cls(np.stack(drawn), np.stack(errors), float(np.std(values, ddof=1)), float(np.mean(regrets)), reach)

    def around(self, value: float, errors: Array) -> tuple[float, float]:
        """The interval of a value that the law states with such errors; the best looks better than it is, which the
        mean error shows."""
        middle, half = value - float(errors.mean()), self.reach * float(ndtri(0.5 + LEVEL / 2) * errors.std(ddof=1))
        return middle - half, middle + half

    def shares(self, p: Array, wish: Wish) -> Array:
        """The interval of each share, (m, 2)."""
        tail = 100 * (1 - LEVEL) / 2
        moved = np.percentile(self.reach * (self.drawn - p), [tail, 100 - tail], axis=0).T
        return np.clip(p[:, None] + moved, wish.low[:, None], wish.high[:, None])


def _value(law: Any, P: Array, wish: Wish) -> Array:
    """The objective at mixtures: the weighted mean of the predicted losses."""
    return np.asarray(law.predict(P) @ wish.target_weights / wish.target_weights.size)


def _optimum(law: Any, wish: Wish, seed: int) -> Optimum:
    weights, low, high = (tuple(each.tolist()) for each in (wish.target_weights, wish.low, wish.high))
    if isinstance(law, StaticLaw):
        return Direct(weights, low, high).solve(law)
    return BestSimulated(20_000, 20, seed=seed, target_weights=weights, floors=low, caps=high).solve(
        law.predict, len(low)
    )


def _better(law: Any, wish: Wish, best: Optimum, others: Array) -> Optimum:
    """The best of many simulated mixtures, or one of the others that are allowed if that is better."""
    allowed = others[((others >= wish.low - 1e-9) & (others <= wish.high + 1e-9)).all(1)]
    values = _value(law, allowed, wish) if len(allowed) else np.array([np.inf])
    k = int(np.argmin(values))
    if values[k] >= best.value:
        return best
    return Optimum(allowed[k], np.asarray(law.predict(allowed[k : k + 1])[0]), float(values[k]), None)


def _measured(runs: Runs, wish: Wish) -> Array:
    """What each run measured of what counts; nan where a loss is missing."""
    used = wish.target_weights > 0
    return np.asarray(runs.L[:, used] @ wish.target_weights[used] / wish.target_weights.size)


def _best_run(runs: Runs, measured: Array) -> dict[str, Array]:
    """The mixture of the run that did best, by what was measured."""
    return {BEST_RUN: runs.P[int(np.nanargmin(measured))]} if np.isfinite(measured).any() else {}


def _within(p: Array, wish: Wish) -> Any:
    """Which mixtures keep the bounds."""
    return ((p >= wish.low - 1e-9) & (p <= wish.high + 1e-9)).all(-1)


def _below(runs: Runs, wish: Wish, measured: Array, span: tuple[float, float]) -> list[str]:
    """Runs within the bounds that did better than the law thinks possible there."""
    known = measured[_within(runs.P, wish) & np.isfinite(measured)]
    below = int((known < span[0]).sum())
    if not below:
        return []
    return [
        f"{below} of {len(known)} runs measured less than that interval (the least {known.min():.4f}): the "
        "law does not follow the best runs, or they were lucky; compare laws (aioli fit --law auto), and run both"
    ]


def _doubts(fit: Fit, wish: Wish, best: Optimum, freedom: float | None) -> list[str]:
    """What speaks against the answer, or for taking it with care."""
    used = {t for t, w in zip(fit.runs.targets, wish.target_weights, strict=True) if w > 0}
    found = []
    if not teaches(fit.runs.L[:, wish.target_weights > 0]):
        found.append("all runs have the same losses, so any mixture is as good as this one")
    if freedom is not None and freedom < 1:
        found.append("the law has as many parameters as there are runs, so nothing says how sure it is; add runs")
    elif freedom is not None and freedom < 4:
        found.append(f"only {freedom:.0f} runs more than parameters: the intervals are rough")
    poor = [each.target for each in fit.troubles if each.kind == "poor" and each.target in used]
    if poor:
        names = ", ".join(poor)
        found.append(f"on runs it has not seen the law explains little of {names}: do not rely on the intervals")
    if any(each.kind != "poor" and each.target in used for each in fit.troubles):
        found.append("aioli fit found this law misspecified, which intervals do not allow for; see its warnings")
    found += [
        f"{group} at {share:.1%} is beyond what any run has tried (at most {top:.1%})"
        for group, share, top in zip(fit.runs.groups, best.proportions, fit.runs.P.max(0), strict=True)
        if share > _reach(top)
    ]
    straight = isinstance(fit.law, LinearStatic) or (len(used) == 1 and isinstance(fit.law, LogLinearStatic))
    if straight and freedom is not None:
        what = "a linear law" if isinstance(fit.law, LinearStatic) else "a log-linear law of a single target"
        found.append(
            f"{what} is best at a corner of what is allowed, whatever the runs are, so narrow intervals of shares mean "
            "little; aioli fit --law transfer:terms=4 or trees can be best within, --max and --tried allow less"
        )
    if best.gap is None:
        found.append("trees have no certificate: this is the best of many tried")
    return found


def _far(runs: Runs, p: Array, shares: Array) -> list[str]:
    """Groups whose interval reaches where no run has been, although their share does not."""
    tops = zip(runs.groups, runs.P.max(0), p, shares[:, 1], strict=True)
    far = [group for group, top, share, high in tops if high > _reach(top) >= share]
    if not far:
        return []
    return [f"the intervals of {', '.join(far)} reach beyond what any run has tried; --tried keeps within"]


def _reach(top: float) -> float:
    """As good as tried."""
    return top * 1.05 + 0.005


def _near(law: Any, wish: Wish, best: Optimum, stderr: float, seed: int) -> Array:
    """How far each share can go, the others following as they like, before the loss rises by one standard error."""
    limit, m = best.value + stderr, best.proportions.size
    found = np.stack([best.proportions, best.proportions], axis=1)
    if not isinstance(law, StaticLaw):
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
