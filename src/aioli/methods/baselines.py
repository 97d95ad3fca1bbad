"""The methods that the paper unifies, and those of its appendix."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal

import numpy as np

from aioli.lmo import (
    EGD,
    BestOf,
    BestSimulated,
    Direct,
    ExcessLoss,
    GradientInner,
    LinearStatic,
    LogLinearStatic,
    ScalingSlope,
    SkillGraph,
    TimeAverage,
    Trees,
)
from aioli.policies import Bandit, Online
from aioli.registry import Plan, Vector, method
from aioli.runs.spec import Problem, Result, Run, bounds
from aioli.simplex import Array, uniform

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
    direct = Direct(problem.target_weights, *bounds(problem, floors, caps))
    if ridge == 0 and problem.m > 1 and runs <= problem.m:
        raise ValueError(f"dml needs at least m+1={problem.m + 1} runs for {problem.m} groups, not {runs}; set runs")
    P, L = yield from _swept(problem, runs, alpha)
    best = direct.solve(LogLinearStatic(ridge, huber).fit(P, L))
    return problem.final_static(best.proportions, best.losses)


def _best_simulated(problem: Problem, predict: Callable[[Array], Array], candidates: int, top: int) -> Run:
    """RegMix's choice: the mean of the mixtures that a law predicts to be the best."""
    simulated = BestSimulated(candidates, top, seed=problem.seed, target_weights=problem.target_weights)
    best = simulated.solve(predict, problem.m)
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
    return _best_simulated(problem, Trees(trees=trees).fit(P, L).predict, candidates, top)


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
    return _best_simulated(problem, LinearStatic(ridge).fit(P, L).predict, candidates, top)


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
