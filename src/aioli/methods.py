"""Methods: each plans the runs it needs and ends with the run it recommends.

A method is one function, decorated with its row of the paper's Table 1. It either returns the final run at once, or is
a generator that yields stages (lists of runs), receives their results, and returns the final run. Settings are its
keyword arguments. `docs/your-own-method.md` shows how to add one; `registry` finds, checks and conducts them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, Literal

import numpy as np

from aioli.lmo import (
    EGD,
    BestOf,
    BestSimulated,
    Direct,
    ExcessLoss,
    ForkedSweep,
    GradientInner,
    InterleavedSweep,
    LinearStatic,
    LogLinearStatic,
    PooledSweep,
    ScalingSlope,
    SkillGraph,
    TimeAverage,
    Trees,
)
from aioli.policies import Bandit, Normalise, Online, Rules, Static, Then
from aioli.registry import Method, Outcome, Plan, Row, Vector, addition, conduct, create, method, names, variant
from aioli.runs.spec import Problem, Result, Run, by_name
from aioli.simplex import Array, box, uniform

__all__ = ["Method", "Outcome", "Plan", "Row", "Vector", "conduct", "create", "method", "names"]


# ---------------------------------------------------------------- without extra runs


@method("–", "–", "uniform")
def stratified(problem: Problem) -> Run:
    """The same share of every group."""
    return problem.final_static(uniform(problem.m))


@method("–", "–", "in proportion to size")
def proportional(problem: Problem) -> Run:
    """Every group in proportion to how much there is of it."""
    return problem.final_static(problem.natural)


# ---------------------------------------------------------------- offline: sweep, fit, solve


def _swept(problem: Problem, runs: int, alpha: float) -> Generator[list[Run], list[Result], tuple[Array, Array]]:
    """One sweep of static runs: mixtures (runs, m) and final losses (runs, n). All offline methods share it."""
    points = problem.sweep(runs, alpha)
    steps = problem.extra_steps(len(points))
    results = yield [problem.static(p, steps, seed) for p, seed in points]
    return np.stack([p for p, _ in points]), np.stack([r.val_loss for r in results])


@method("–", "losses of the sweep", "best seen")
def grid_search(problem: Problem, *, runs: int = 10, alpha: float = 1.0) -> Plan:
    """Try a sweep of mixtures and keep the best."""
    P, L = yield from _swept(problem, runs, alpha)
    best = BestOf(problem.target_weights).solve(P, L)
    return problem.final_static(best.proportions, best.losses)


@method("log-linear static", "fit from ≥ m+1 runs", "Direct")
def dml(
    problem: Problem,
    *,
    runs: int = 10,
    alpha: float = 1.0,
    huber: float | None = None,
    ridge: float = 0.0,
    floors: Vector = None,
    caps: Vector = None,
) -> Plan:
    """Data Mixing Laws: fit the log-linear law to a sweep and take its optimum."""
    direct = Direct(problem.target_weights, *_bounds(problem, floors, caps))
    if ridge == 0 and problem.m > 1 and runs <= problem.m:
        raise ValueError(f"dml needs at least m+1={problem.m + 1} runs for {problem.m} groups, not {runs}; set runs")
    P, L = yield from _swept(problem, runs, alpha)
    best = direct.solve(LogLinearStatic(ridge, huber).fit(P, L))
    return problem.final_static(best.proportions, best.losses)


@method("boosted trees", "fit from many runs", "best simulated", lmo=False)
def regmix(
    problem: Problem,
    *,
    runs: int = 10,
    alpha: float = 1.0,
    candidates: int = 100_000,
    top: int = 100,
    trees: int = 100,
) -> Plan:
    """RegMix with LightGBM: fit trees to a sweep and average the best simulated mixtures."""
    P, L = yield from _swept(problem, runs, alpha)
    law = Trees(trees=trees).fit(P, L)
    simulated = BestSimulated(candidates, top, seed=problem.seed, target_weights=problem.target_weights)
    best = simulated.solve(law.predict, problem.m)
    return problem.final_static(best.proportions, best.losses)


@method("linear static", "fit from ≥ m runs", "best simulated")
def regmix_linear(
    problem: Problem,
    *,
    runs: int = 10,
    alpha: float = 1.0,
    candidates: int = 100_000,
    top: int = 100,
    ridge: float = 0.0,
) -> Plan:
    """RegMix with a linear law."""
    if ridge == 0 and problem.m > runs:
        raise ValueError(f"regmix-linear needs at least m={problem.m} runs, not {runs}; set runs")
    P, L = yield from _swept(problem, runs, alpha)
    law = LinearStatic(ridge).fit(P, L)
    simulated = BestSimulated(candidates, top, seed=problem.seed, target_weights=problem.target_weights)
    best = simulated.solve(law.predict, problem.m)
    return problem.final_static(best.proportions, best.losses)


# ---------------------------------------------------------------- online, from extra runs


@method("linear dynamic", "L_val × skill graph of m runs", "EGD (window)")
def skill_it(
    problem: Problem,
    *,
    rounds: int = 10,
    eta: float = 0.2,
    window: int = 3,
    graph: Sequence[Sequence[float]] | None = None,
) -> Plan:
    """Skill-It: learn from m one-hot runs how groups help each other, then follow the losses (E12, E13)."""
    egd = EGD(eta, "window", window=window)
    if graph is not None:
        given = SkillGraph(tuple(tuple(row) for row in graph))
        return problem.final(Online(given, egd, min(rounds, problem.steps)))
    steps = problem.extra_steps(problem.m)
    results = yield [problem.static(one_hot, steps) for one_hot in np.eye(problem.m)]
    before, after = (np.stack([getattr(r, name) for r in results]) for name in ("start_loss", "val_loss"))
    learned = SkillGraph(SkillGraph.learn(before, after))
    return problem.final(Online(learned, egd, min(rounds, problem.steps)))


@method("linear dynamic, diagonal A", "excess loss over a reference", "EGD, then its mean")
def doremi(
    problem: Problem,
    *,
    eta: float = 0.01,
    smoothing: float = 1e-3,
    clip: Literal["group", "token"] = "group",
    proxy: bool = False,
) -> Plan:
    """DoReMi: a proxy run weights the groups it lags behind a reference in; its mean mixture is used (E14-E16)."""
    rules = Online(ExcessLoss(clip), EGD(eta, smoothing=smoothing), "every step")
    if proxy:
        return problem.final(rules)
    steps = problem.extra_steps(2)
    reference = problem.static(uniform(problem.m), steps)
    yield [reference]
    results = yield [problem.run(rules, steps, reference)]
    return problem.final_static(results[0].mean_proportions)


@method("linear dynamic", "⟨∇L_val, ∇L_train⟩", "EGD, then its mean")
def doge(
    problem: Problem,
    *,
    eta: float = 0.01,
    smoothing: float = 0.0,
    rule: Literal["paper", "normalised"] = "paper",
    r: float | None = None,
    proxy: bool = False,
) -> Plan:
    """DoGE: a proxy run follows the gradients; its mean mixture is used (E17, E18)."""
    rules = Online(GradientInner(rule, r), EGD(eta, smoothing=smoothing), "every step")
    if proxy:
        return problem.final(rules)
    results = yield [problem.run(rules, problem.extra_steps(1))]
    return problem.final_static(results[0].mean_proportions)


# ---------------------------------------------------------------- online, without extra runs


@method("–", "losses as rewards", "EXP3 bandit", lmo=False)
def odm(problem: Problem, *, alpha: float = 0.9) -> Run:
    """Online Data Mixing: a bandit picks one group per batch (E19).

    alpha: weight of the past in a group's reward
    """
    return problem.final(Bandit(alpha))


@method("linear dynamic, diagonal A", "scaling-law slopes × credit", "time average")
def ado(
    problem: Problem,
    *,
    rounds: int = 100,
    s: float = 0.5,
    gamma: float = 0.1,
    floor: float = 0.01,
    warmup: float = 0.1,
    prior: Literal["uniform", "natural"] = "uniform",
) -> Run:
    """ADO: groups whose loss is still falling get more (E21).

    gamma: weight of the newest preference against the mean of all
    """
    p0 = tuple(problem.natural.tolist()) if prior == "natural" else None
    rules = Online(ScalingSlope(s, warmup=warmup), TimeAverage(gamma, floor), min(rounds, problem.steps), p0=p0)
    return problem.final(rules)


def _bounds(problem: Problem, floors: Vector, caps: Vector) -> list[tuple[float, ...] | None]:
    """Floors and caps in the order of the groups; a group left out of a dict has none."""
    bounds = [by_name(floors, problem.groups, "floors", 0.0), by_name(caps, problem.groups, "caps", 1.0)]
    box(problem.m, *bounds)
    return bounds


def _memory(gamma: float | None) -> dict[str, Any]:
    return {"memory": "sum"} if gamma is None else {"memory": "ema", "gamma": gamma}


def _after(problem: Problem, rules: Rules, p_init: Vector, S_init: int) -> Run:
    """`rules`, after S_init steps of p_init where there are any (Alg. 1, line 2)."""
    if S_init == 0:
        if p_init is not None:
            raise ValueError("p_init is given but S_init=0 steps are to be trained on it; set S_init")
        return problem.final(rules)
    start = by_name(p_init, problem.groups, "p_init", None)
    first = Static(tuple(uniform(problem.m).tolist()) if start is None else start)
    run = problem.final(Then(first, S_init, rules))
    run.policy()
    return run


@method("linear dynamic", "fit from the history of L_val and p", "EGD")
def aioli(
    problem: Problem,
    *,
    rounds: int | None = None,
    k: int | None = None,
    eps: float = 0.75,
    delta: float | None = None,
    eta: float = 0.2,
    gamma: float | None = None,
    order: Literal["shuffle", "blocks", "mirrored"] = "shuffle",
    around: Literal["uniform", "current"] = "uniform",
    fit: Literal["realised", "requested"] = "realised",
    diagonal: bool = False,
    normalise: Normalise = "shift-sum",
    floors: Vector = None,
    caps: Vector = None,
    p_init: Vector = None,
    S_init: int = 0,
) -> Run:
    """Aioli (Alg. 1): estimate A^t by interleaved sweeps inside the run, and step by EGD."""
    sweep = InterleavedSweep(k, eps, delta, order, around, fit, diagonal)
    low, high = _bounds(problem, floors, caps)
    egd = EGD(eta, **_memory(gamma), floors=low, caps=high)
    return _after(problem, Online(sweep, egd, rounds, normalise), p_init, S_init)


variant(
    aioli,
    "aioli-static",
    "The ablation with T = 1: A is learned once, at the start (E10).",
    Row("linear static", "fit once, at the start", "EGD, one step"),
    {"rounds": 1},
)
variant(
    aioli,
    "aioli-diagonal",
    "The ablation without effects between groups (E10).",
    Row("linear dynamic, diagonal A", "fit from the history of L_val and p", "EGD"),
    {"diagonal": True},
)
variant(
    aioli,
    "aioli-ood",
    "Aioli towards targets that are not trained on, with the step size of the paper's experiment (E11).",
    Row("linear dynamic, A is n × m", "fit from the history of L_val and p", "EGD"),
    {},
    eta=0.8,
)


@method("linear dynamic", "regression over all rounds, shrunken", "EGD from p⁰")
def aioli_pooled(
    problem: Problem,
    *,
    rounds: int | None = None,
    k: int | None = 2,
    eps: float | None = None,
    delta: float | None = 0.9,
    first: float | None = 0.3,
    eta: float = 2.0,
    gamma: float | None = 0.0,
    discount: float = 0.9,
    shrink: bool = True,
    caution: float | None = None,
    expected: float | None = 0.7,
    trail: float | None = 2.0,
    even: bool = True,
    doubt: float = 0.5,
    after: float = 0.1,
    until: float = 0.5,
    around: Literal["uniform", "current"] = "current",
    smoothing: float | None = None,
    floors: Vector = None,
    caps: Vector = None,
    p_init: Vector = None,
    S_init: int = 0,
) -> Run:
    """Ours: one regression over the sweeps of all rounds; noise moves p little, targets that disagree do not (E33).

    rounds: T: how often the mixture is updated; None: 20, fewer where intervals would have less than 15 steps
    eps: one-hot smoothing of the sweep mixtures; None: 0.25 for one target, 0.5 for several
    smoothing: share of uniform mixed in after each update; None: 0.05 for one target, nothing for several
    """
    if eps is None:
        eps = 0.25 if problem.n == 1 else 0.5
    if smoothing is None:
        smoothing = 0.05 if problem.n == 1 else 0.0
    if gamma is None:  # p is still on its way while sweeps go on
        trail = None
    intervals = InterleavedSweep(k, eps, delta, "mirrored", around)
    if rounds is None:
        rounds = _long_rounds(problem.steps - S_init, problem.m * intervals.sweeps(problem.m), delta or 0.5)
    sweep = PooledSweep(intervals, discount, shrink, caution, doubt, after, until, first, expected, trail, even)
    low, high = _bounds(problem, floors, caps)
    egd = EGD(eta, **_memory(gamma), smoothing=smoothing, floors=low, caps=high)
    return _after(problem, Online(sweep, egd, rounds), p_init, S_init)


@method("linear dynamic", "sweeps on copies of the model", "EGD")
def aioli_fork(
    problem: Problem,
    *,
    rounds: int | None = None,
    eps: float = 0.25,
    delta: float = 0.6,
    eta: float = 3.0,
    gamma: float | None = None,
    after: float = 0.1,
    until: float = 0.4,
    doubt: float = 0.7,
    smoothing: float = 0.05,
    floors: Vector = None,
    caps: Vector = None,
    p_init: Vector = None,
    S_init: int = 0,
) -> Run:
    """Ours: sweep mixtures are tried out on copies of the model, so that sweeps disturb neither the run nor each other.

    rounds: T: how often the mixture may be updated; None: 10, or as many as there are steps
    eps: one-hot smoothing of the sweep mixtures: the share of the mixture in force
    delta: steps of all copies together, as a share of the run's; a copy is trained for at most a hundred
    smoothing: share of uniform mixed in after each update
    """
    low, high = _bounds(problem, floors, caps)
    egd = EGD(eta, **_memory(gamma), smoothing=smoothing, floors=low, caps=high)
    sweep = ForkedSweep(eps, delta, after, until, doubt)
    rounds = max(1, min(10, problem.steps - S_init)) if rounds is None else rounds
    return _after(problem, Online(sweep, egd, rounds), p_init, S_init)


def _long_rounds(steps: int, intervals: int, share: float) -> int:
    """Rounds so few that intervals have some 15 steps, at most 20; but 8 if they can be had, for three sweeps."""
    wanted = min(20, max(8, int(share * steps / (15 * intervals))))
    return max(1, min(wanted, steps // math.ceil(intervals / share - 1e-9)))


def _aioli(problem: Problem, **settings: Any) -> Run:
    planned = aioli(problem, **settings)
    assert isinstance(planned, Run)
    return planned


@addition
def _aioli_plus(problem: Problem, base: Method, *, S_init: int | None = None, **settings: Any) -> Plan:
    """Aioli + any method: the first S_init steps of the method's own policy, then Aioli from uniform (E3).

    S_init defaults to the length of the method's extra runs; where these are as long as the final run, to what it is
    in the restricted setting (half the steps over the number of extra runs); S/20 for a method that needs none.
    """
    plan = base.plan(problem)
    lengths: list[int] = []
    try:
        stage = next(plan)
        while True:
            lengths += [run.task.steps for run in stage]
            stage = plan.send((yield stage))
    except StopIteration as end:
        final: Run = end.value
    if S_init is None:
        longest = max(lengths, default=problem.steps)
        S_init = longest if longest < problem.steps else max(1, problem.steps // (2 * len(lengths) or 20))
    run = problem.final(Then(final.rules, S_init, _aioli(problem, **settings).rules))
    run.policy()
    return run
