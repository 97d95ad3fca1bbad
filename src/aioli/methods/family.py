"""Aioli: the paper's (Alg. 1) with its ablations and its out-of-domain form, ours, and Aioli added to any method."""

from __future__ import annotations

import math
from typing import Any, Literal

from aioli.lmo import EGD, ForkedSweep, InterleavedSweep, PooledSweep
from aioli.policies import Normalise, Online, Rules, Static, Then
from aioli.registry import Method, Plan, Row, Vector, addition, method, variant
from aioli.runs.spec import Problem, Run, bounds, by_name
from aioli.simplex import uniform


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
    low, high = bounds(problem, floors, caps)
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
    low, high = bounds(problem, floors, caps)
    egd = EGD(eta, **_memory(gamma), smoothing=smoothing, floors=low, caps=high)
    return _after(problem, Online(sweep, egd, rounds), p_init, S_init)


@method("linear dynamic", "sweeps on copies of the model", "EGD")
def aioli_fork(
    problem: Problem,
    *,
    rounds: int | None = None,
    eps: float = 0.25,
    delta: float = 0.6,
    cooling: float = 0.25,
    eta: float = 3.0,
    after: float = 0.1,
    until: float = 0.4,
    doubt: float = 0.7,
    trail: float | None = 1.5,
    first: float = 0.5,
    smoothing: float = 0.2,
    floors: Vector = None,
    caps: Vector = None,
    p_init: Vector = None,
    S_init: int = 0,
) -> Run:
    """Ours: sweep mixtures are tried out on copies of the model, so that sweeps disturb neither the run nor each other.

    rounds: T: how often the mixture may be updated; None: 10, or as many as there are steps
    eps: one-hot smoothing of the sweep mixtures: the share of the mixture in force
    delta: steps of all copies together, as a share of the run's; a copy is trained for at most a hundred
    cooling: the last share of a copy's steps, in which its learning rate falls to zero
    first: how much the first sweep counts, where others follow
    trail: how far a group must trail the best in the sum of pulls to be tried out no more, towards a single target
    smoothing: share of uniform in every mixture: a group's first few percent are worth more than forks of it show
    """
    low, high = bounds(problem, floors, caps)
    rounds = max(1, min(10, problem.steps - S_init)) if rounds is None else rounds
    # pulls of all rounds, so that what smoothing puts in is in force but does not take back what is known
    egd = EGD(eta, memory="window", window=max(1, rounds), smoothing=smoothing, floors=low, caps=high)
    sweep = ForkedSweep(eps, delta, after, until, doubt, cooling, trail, first)
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
