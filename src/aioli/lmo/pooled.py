"""PooledSweep (ours, E33): what one round's sweep cannot tell from noise, the sweeps of all rounds together may.

The summed loss drop of every interval is regressed on its proportions, all rounds at once: each round has its own
level and drift in time, is scaled by its typical drop, and counts less the older it is. The regression comes with
standard errors; contrasts between groups are shrunk by them (empirical Bayes), so that noise moves p little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aioli.lmo.sweep import InterleavedSweep
from aioli.lmo.task import VAL, Estimate, Round, Start, Task
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array

SURE = 4.0
"""Times its variance by noise that a disagreement must amount to before it ends the sweeps."""
JUDGED = 2
"""Sweeps after which it is judged whether more of them would tell anything that is worth their steps."""


@dataclass(frozen=True)
class PooledSweep:
    """One weighted regression over the intervals of all rounds so far."""

    sweep: InterleavedSweep = field(default_factory=lambda: InterleavedSweep(order="mirrored"))
    """The intervals that are trained."""
    discount: float = 0.9
    """Weight of a round relative to the one after it."""
    shrink: bool = True
    """Shrink contrasts by their standard errors; False takes the regression as it is."""
    caution: float | None = None
    """How many times its variance by noise a squared contrast must amount to before it moves p at all; 1 is plain
    empirical Bayes. None: 1 for a single target, 2 for several, where staying is seldom far from the best."""
    doubt: float = 0.0
    """How many times the standard error over targets their mean contrasts must amount to: where targets pull against
    each other, what is left of their sum is no reason to move. Once that is clear in spite of the noise, sweeps end."""
    after: float = 0.0
    """Share of the run before the first sweep: while a model learns which tokens are frequent, contrasts say little."""
    until: float = 1.0
    """Share of the run in which rounds begin with a sweep; after it the mixture stays."""
    first: float | None = None
    """Share of the round that sweeps take while it is not known whether several targets agree; None: as always."""
    expected: float | None = None
    """How large contrasts, relative to the typical drop, are expected to be where there is a single target: p follows
    their posterior mean, a little even within the noise, because staying would cost what there is to win. None: as for
    several targets."""
    trail: float | None = None
    """Standard errors by which a group must trail the best, towards a single target, to be swept no more: the others
    have longer intervals then, and sweeps end when one group is left. None: all are swept; an accumulating solver needs
    that, for which p is on its way."""
    even: bool = False
    """Towards a single target, shrink differences between the groups that are still swept as far as noise explains
    them: what cannot be told apart is best mixed evenly."""
    start: Start = field(default="always", init=False, repr=False)
    needs: frozenset[str] = field(default=VAL, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.discount <= 1.0:
            raise ValueError(f"discount={self.discount} must be above 0 and at most 1")
        if self.caution is not None and not self.caution >= 1.0:
            raise ValueError(f"caution={self.caution} must be at least 1")
        if self.expected is not None and not self.expected > 0.0:
            raise ValueError(f"expected={self.expected} must be positive, or None")
        if self.trail is not None and not self.trail > 0.0:
            raise ValueError(f"trail={self.trail} must be positive, or None")
        if not self.doubt >= 0.0:
            raise ValueError(f"doubt={self.doubt} must not be negative")
        if not 0.0 <= self.after < self.until <= 1.0:
            raise ValueError(f"after={self.after}, until={self.until}: use shares of the run, 0 <= after < until <= 1")
        replace(self.sweep, delta=self.first)  # refuses what is no share
        if self.sweep.diagonal:
            raise ValueError("a pooled sweep estimates contrasts between groups; diagonal=True has none")

    def begin(self, task: Task) -> State:
        """The sums that the regression needs, which do not grow with the rounds."""
        m, n = task.m, task.targets
        sums = {"gram": np.zeros((m, m)), "cross": np.zeros((m, n)), "power": np.zeros(n + 1)}
        return {**sums, "count": 0.0, "fixed": 0.0, "rounds": 0, "settled": False, "swept": list(range(m))}

    def probes(self, state: State, round: Round) -> list[Segment]:
        """Those of the sweep, from `after` to `until`; short ones at first where targets may disagree."""
        begun, steps = round.t * round.steps, round.task.steps
        later = round.t + 1 + (round.t + 1) * round.steps < self.until * steps  # rounds differ by a step at most
        early = begun < self.after * steps and later  # another round will sweep
        if state["settled"] or early or (begun and begun >= self.until * steps):
            return []
        if self.first is None or round.task.targets == 1 or state["rounds"] >= JUDGED:
            return self.sweep.probes({}, round, state["swept"])
        least = round.task.m * self.sweep.sweeps(round.task.m) / round.steps
        return replace(self.sweep, delta=max(self.first, least)).probes({}, round)

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """Add this round to the regression and read off the shrunken contrasts."""
        if not log:
            return state, None
        assert start is not None
        weights = round.task.weights
        _, Q, drop = self.sweep.drops(round, start, log, state["swept"])
        typical = float(np.sqrt(np.mean((drop @ weights) ** 2))) or 1.0
        K = len(Q)
        clock = np.linspace(-1.0, 1.0, K) if K > 2 else np.zeros(K)
        nuisance, _ = np.linalg.qr(np.stack([np.ones(K), clock], axis=1)[:, : 2 if K > 2 else 1])
        Qc = Q - nuisance @ (nuisance.T @ Q)
        Yc = (drop - nuisance @ (nuisance.T @ drop)) / typical
        # of groups that are out of the race nothing new is learned, so that the past is not to fade
        keep = self.discount if len(state["swept"]) == round.task.m else 1.0
        new = {
            "gram": keep * np.asarray(state["gram"]) + Qc.T @ Qc,
            "cross": keep * np.asarray(state["cross"]) + Qc.T @ Yc,
            "power": keep * np.asarray(state["power"]) + (np.c_[Yc, Yc @ weights] ** 2).sum(0),  # last: of the sum
            "count": keep * state["count"] + float(K),
            "fixed": keep * state["fixed"] + float(nuisance.shape[1]),
            "rounds": state["rounds"] + 1,
            "settled": False,
            "swept": state["swept"],
        }
        inverse = np.linalg.pinv(new["gram"], rcond=1e-9, hermitian=True)
        contrasts = (inverse @ new["cross"]).T  # (n, m), each row sums to 0
        theta = weights @ contrasts
        free = new["count"] - new["fixed"] - (round.task.m - 1)
        A = typical * contrasts + drop.mean(0)[:, None]
        if free <= 0:  # nothing left over to judge the noise by: do not move yet
            return new, None
        every = np.vstack([contrasts, theta])
        left = np.maximum(new["power"] - np.einsum("im,mk,ik->i", every, new["gram"], every), 0.0) / free
        stderr = np.sqrt(np.maximum(left[-1] * np.diag(inverse), 0.0))
        if not self.shrink:
            return new, Estimate(A, theta, stderr)
        spread = float(np.trace(inverse))
        apart, sure = (
            self.doubt**2 * disagreement(contrasts, weights, times * left[:-1] * spread) for times in (1, SURE)
        )
        V = left[-1] * np.diag(inverse)
        caution = self.caution if self.caution is not None else (1.0 if round.task.targets == 1 else 2.0)
        if new["rounds"] >= JUDGED:
            racing = state["swept"]
            if round.task.targets == 1 and self.trail is not None:
                full = () if round.bounds is None else np.flatnonzero(round.p >= round.bounds[1] - 1e-9)
                racing = self._race(theta, left[-1] * inverse, [j for j in racing if j not in full])
                new["swept"] = sorted({*racing, *(j for j in state["swept"] if j in full)})
            new["settled"] = float(theta @ theta + caution * V.sum()) < sure or len(racing) <= 1 < round.task.m
        if self.expected is not None and round.task.targets == 1:
            pull = theta * self.expected**2 / (self.expected**2 + V)
            if self.even:
                pull = _even(pull, theta, left[-1] * inverse, new["swept"])
            return new, Estimate(A, pull - pull.mean(), stderr)
        return new, Estimate(A, _shrink(theta, V, caution, apart), stderr)

    def _race(self, theta: Array, covariance: Array, swept: list[int]) -> list[int]:
        """Of these groups, those that may turn out to be the best: they do not trail it for sure."""
        if not swept:
            return swept
        assert self.trail is not None
        best = max(swept, key=lambda j: float(theta[j]))
        noise = np.diag(covariance) + covariance[best, best] - 2.0 * covariance[best]
        behind = theta[best] - theta > self.trail * np.sqrt(np.maximum(noise, 0.0))
        return [j for j in swept if j == best or not behind[j]]


def _even(pull: Array, theta: Array, covariance: Array, swept: list[int]) -> Array:
    """The pulls with differences between the groups that are still swept shrunk as far as noise explains them.

    What cannot be told apart is best mixed evenly, because returns diminish: the more of a group, the less the next
    share of it is worth. The share of their spread that noise leaves, at least 0, by the method of moments."""
    k = len(swept)
    if k < 2:
        return pull
    apart = theta[swept] - theta[swept].mean()
    here = covariance[np.ix_(swept, swept)]
    noise = float(np.trace(here) - here.sum() / k)
    size = float(apart @ apart)
    found = pull.copy()
    mean = pull[swept].mean()
    found[swept] = mean + max(0.0, 1.0 - noise / size if size > 0.0 else 0.0) * (pull[swept] - mean)
    return found


def disagreement(contrasts: Array, weights: Array, noise: Array) -> float:
    """The squared standard error of the weighted sum of contrasts (n, m), the targets taken as a sample of targets.

    Less what `noise`, of this squared length for each target, accounts for."""
    n = len(weights)
    if n == 1:
        return 0.0
    apart = contrasts - weights @ contrasts / n
    return n / (n - 1) * max(float((weights**2) @ ((apart**2).sum(1) - noise)), 0.0)


def _shrink(theta: Array, V: Array, caution: float, apart: float) -> Array:
    """The posterior means of contrasts theta_j ~ N(truth_j, V_j), truth_j ~ N(0, tau_j²) with tau_j² from the data.

    `apart` is the squared length of an error that is not noise. Together they must be more than noise, because among
    many groups one always stands out; then each is shrunk for itself: that one is clear says nothing of the others."""
    m = theta.size
    if m == 1:
        return theta
    if float(theta @ theta) <= caution * V.sum() + apart:
        return np.zeros(m)
    tau2 = np.maximum(theta**2 - caution * V - apart / m, 0.0)
    error = tau2 + V + apart / m
    shrunk = np.divide(tau2 * theta, error, out=np.zeros(m), where=error > 0)
    return np.asarray(shrunk - shrunk.mean())
