"""Whose parameters are right? sim(A, A*) of each online method against what it gains (Section 4.3, Figure 3)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aioli.analysis.dynamic import Fork, swept
from aioli.analysis.study import Analysis, Figure, Lab, Staged, Table, perplexity
from aioli.lmo import ExcessLoss, SkillGraph, column_sums, scale, similarity
from aioli.policies import Online, Rules, Then
from aioli.registry import Method, create
from aioli.report.plots import Cloud, clouds
from aioli.report.svg import colour
from aioli.runs.spec import Problem, Result, Run
from aioli.simplex import Array, uniform
from aioli.train.journal import read

METHODS = ("skill-it", "doremi", "doge", "aioli")
"""Those of the paper's Figure 3."""
SMOOTHED = 100
"""Steps over which the A of methods that update at every step is averaged (Appendix C.2)."""


def mean_A(journal: Path, last: int | None = None) -> Array:
    """The mean of the last so many A's that a journal reports; of all of them if nothing is said."""
    found: list[tuple[int, Any]] = []
    for line, _ in read(journal, 0):
        report = line.get("report") or {} if line["kind"] == "segment" else {}
        if report.get("A") is not None and (not found or found[-1] != (report["round"], report["A"])):
            found.append((report["round"], report["A"]))
    if not found:
        raise ValueError(f"{journal} reports no A; its method has none, or the run was too short for a round")
    return np.asarray(np.mean([_filled(A) for _, A in found[-last if last else 0 :]], axis=0))


def _filled(A: Any) -> Array:
    """A group that was not tried out, because it trails, is as good as the worst that was."""
    known = np.array(A, dtype=np.float64)
    return np.where(np.isnan(known), np.nanmin(known, axis=1, keepdims=True), known)


def _until(rules: Online, problem: Problem, share: float, first: int = 0) -> tuple[Online, int]:
    """What a method does up to a share of the run: as many rounds, of the same length; and how many steps that is.

    `first` steps of something else come before its own.
    """
    steps, wanted = problem.steps - first, max(1, round(share * problem.steps) - first)
    if rules.rounds == "every step":
        return rules, wanted
    count = rules.count(problem.task(steps))
    rounds = min(count - 1, max(1, round(count * wanted / steps)))
    if rounds < 1:
        raise ValueError(f"the method has {count} round in {steps} steps, so there is no A on the way")
    return replace(rules, rounds=rounds), rounds * steps // count


def _proxy(method: Method, problem: Problem) -> Online:
    """The rules of a method's proxy: DoReMi and DoGE end with a fixed mixture, and it is their proxy that has an A."""
    refused = f"{method.name} has no A^t to look at; use an online method such as {', '.join(METHODS)}"
    try:
        next(create(method.name, **method.settings, proxy=True).plan(problem))
    except StopIteration as end:
        if isinstance(end.value, Run) and isinstance(end.value.rules, Online):
            return end.value.rules
    except ValueError:
        raise ValueError(refused) from None
    raise ValueError(refused)


def _one(
    lab: Lab, method: Method, problem: Problem, stratified: Run
) -> Generator[list[Run], list[Result], tuple[Array, Fork, Result]]:
    """Carry out a method whole; then run it to t, take its A, and sweep from there."""
    final = yield from method.plan(problem)
    result = (yield [final])[0]
    if isinstance(final.rules, Then) and isinstance(final.rules.second, Online):  # Aioli + a method
        online, t = _until(final.rules.second, problem, lab.at[0], final.rules.steps)
        t += final.rules.steps
        rules: Rules = replace(final.rules, second=online)
    else:
        online, t = _until(
            final.rules if isinstance(final.rules, Online) else _proxy(method, problem), problem, lab.at[0]
        )
        rules = online
    reference = stratified if isinstance(online.estimator, ExcessLoss) else None
    run = problem.run(rules, t, reference)
    forks = yield from swept(lab, [run], problem, t)
    return mean_A(lab.journal(run), _smoothed(online)), forks[0], result


def _smoothed(rules: Online) -> int | None:
    """Over how many A's the paper averages: 100 steps, all rounds of Aioli, and for Skill-It only the last counts."""
    if rules.rounds == "every step":
        return SMOOTHED
    return 1 if isinstance(rules.estimator, SkillGraph) else None


def _scale(A: Array, fork: Fork) -> float:
    """b^t (E25); of an A that is summed over targets, for the summed losses."""
    drop = fork.start - fork.L
    return scale(A, fork.P, drop if len(A) == drop.shape[1] else drop.sum(1, keepdims=True))


def parameters(lab: Lab) -> Staged:
    """For every method and seed: how close its A is to A*, and how much it gains over stratified."""
    chosen: list[tuple[str, Method]] = list(lab.settings.get("methods") or [(name, create(name)) for name in METHODS])
    if len(lab.at) > 1:
        raise ValueError(f"--at {' '.join(map(str, lab.at))}: parameters looks at one time; give one share")
    points = []
    for seed in lab.seeds:
        problem = lab.seeded(seed)
        stratified = problem.final_static(uniform(problem.m))
        base = (yield [stratified])[0]
        before = float(perplexity([base])[0])
        for name, method in chosen:
            A, fork, result = yield from _one(lab, method, problem, stratified)
            star, after, b = fork.A_star, float(perplexity([result])[0]), _scale(A, fork)
            points.append(
                {
                    "method": name,
                    "seed": seed,
                    "t": fork.t,
                    "similarity": similarity(b * A, star),  # E24: of b·A
                    "b": b,
                    "pull": column_sums(A).tolist(),
                    "pull_star": column_sums(star).tolist(),
                    "A": A.tolist(),
                    "A_star": star.tolist(),
                    "stratified": before,
                    "perplexity": after,
                    "improvement": before - after,
                }
            )
    return _report(lab, points)


def relation(points: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Slope and R² of the improvement over stratified against the similarity."""
    x, y = (np.array([point[k] for point in points]) for k in ("similarity", "improvement"))
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return float("nan"), float("nan")
    r = float(np.corrcoef(x, y)[0, 1])
    return r * float(y.std() / x.std()), r * r


def _report(lab: Lab, points: list[dict[str, Any]]) -> Analysis:
    slope, r2 = relation(points)
    rows = tuple(
        (
            str(p["method"]),
            str(p["seed"]),
            f"{p['similarity']:+.2f}",
            f"{p['b']:.3g}",
            ", ".join(f"{v:.3g}" for v in p["pull"]),
            ", ".join(f"{v:.3g}" for v in p["pull_star"]),
            f"{p['improvement']:+.3f}",
        )
        for p in points
    )
    header = ("method", "seed", "sim(A, A*)", "b", "column sums of A", "of A*", "perplexity gained")
    times = ", ".join(dict.fromkeys(str(p["t"]) for p in points))
    words = [f"A at step {times} of {lab.problem.steps}, A* from forks of {lab.steps_ahead} steps."]
    if np.isfinite(r2):
        words.append(
            f"Perplexity gained against similarity: slope {slope:+.2f}, R² {r2:.2f} over {len(points)} points."
        )
    inks = {name: colour(k) for k, name in enumerate(dict.fromkeys(str(p["method"]) for p in points))}
    panel = Cloud(
        "",
        [float(p["similarity"]) for p in points],
        [float(p["improvement"]) for p in points],
        colours=[inks[str(p["method"])] for p in points],
        flats=(0.0,),
        names=[str(p["method"]) for p in points],
    )
    chart = clouds([panel], "sim(A, A*)", "perplexity gained over stratified")
    caption = (
        "A point for each method and seed: how close its A is to A*, and what it gains; below the dotted line it loses."
    )
    data = {"setting": lab.setting, "points": points, "slope": _known(slope), "r2": _known(r2)}
    title = f"Parameters against gains: {lab.setting}"
    return Analysis(
        "parameters", title, tuple(words), (Table("A against A*", header, rows),), (Figure(chart, caption),), data
    )


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
