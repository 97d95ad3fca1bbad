"""Methods side by side over paired seeds: the paper's tables, for any data.

In: what a conductor has carried out. Out: a `Comparison`. The headline is the test perplexity, the mean over targets of
exp(loss), relative to stratified; the mean test loss stands beside it (E29). Where targets count differently, means are
weighted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from aioli import __version__
from aioli.runs.conducting import Carried
from aioli.runs.job import Setup
from aioli.runs.store import RunStore
from aioli.simplex import as_weights
from aioli.stats import interval
from aioli.train.records import probe_share

BASE = "stratified"


@dataclass(frozen=True)
class Row:
    """One method on one seed."""

    seed: int
    key: str
    """Its final run in the store."""
    perplexity: float
    """Mean over targets."""
    loss: float
    """Mean over targets."""
    losses: dict[str, float]
    """By target."""
    proportions: dict[str, float]
    """Of each group, in what was trained on."""
    extra_runs: int
    extra_steps: float
    """In units of the final run's."""
    seconds: dict[str, float]
    """Of all its runs, however many share them: training, looking, judging."""


@dataclass(frozen=True)
class Score:
    """One method over all seeds."""

    method: str
    rows: tuple[Row, ...]
    failed: dict[int, str] = field(default_factory=dict)
    """Seeds without a result, and why."""
    pairs: int = 0
    """Seeds that it shares with stratified; differences are over these."""
    perplexity: float | None = None
    difference: float | None = None
    """Mean paired difference in perplexity from stratified; negative is better."""
    interval: tuple[float, float] | None = None
    """95%, Student's t over paired seeds; None with fewer than two."""
    loss: float | None = None
    loss_difference: float | None = None
    loss_interval: tuple[float, float] | None = None
    wins: int = 0
    """Seeds in which its perplexity is below that of stratified."""
    extra_runs: float = 0.0
    extra_steps: float = 0.0
    probing: float = 0.0
    """Time of looking in all its runs, as a share of their training."""

    @property
    def verdict(self) -> str:
        """Whether it is sure which of the two is better."""
        if self.method == BASE or self.interval is None:
            return ""
        return "better" if self.interval[1] < 0 else "worse" if self.interval[0] > 0 else ""


@dataclass(frozen=True)
class Comparison:
    """What was compared, and how it ended."""

    groups: list[str]
    targets: list[str]
    steps: int
    budget: str | float
    seeds: list[int]
    split: str
    """What losses are of: test, or val where there is no test data."""
    model: str
    proxy: str
    data: str
    """Fingerprint of the tokens."""
    weights: dict[str, float]
    scores: tuple[Score, ...]
    aioli: str = __version__

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        return asdict(self)


def compare(
    carried: Sequence[Carried],
    store: RunStore,
    final: Setup,
    proxy: Setup,
    budget: str | float,
    known: Mapping[str, Mapping[int, Row] | None] | None = None,
) -> Comparison:
    """Methods and seeds as they were carried out; stratified must be among them, or among what is `known` already.

    `known` has the order of the methods, and the rows of those that were not carried out."""
    recipe = final.recipe
    split = "test" if "test" in final.store.parts else "val"
    weights = as_weights(final.problem(0).target_weights, len(recipe.data.targets))
    rows: dict[str, dict[int, Row | str]] = {label: dict(found or {}) for label, found in (known or {}).items()}
    for each in carried:
        seed = each.asked.problem.seed
        rows.setdefault(each.asked.label, {})[seed] = each.error or _row(each, store, split, weights)
    base = {seed: row for seed, row in rows[BASE].items() if isinstance(row, Row)}
    return Comparison(
        groups=recipe.data.groups,
        targets=recipe.data.targets,
        steps=recipe.train.steps,
        budget=budget,
        seeds=sorted({seed for found in rows.values() for seed in found}),
        split=split,
        model=str(recipe.model.preset or recipe.model.name),
        proxy=str(proxy.recipe.model.preset or proxy.recipe.model.name),
        data=final.store.fingerprint,
        weights=dict(zip(recipe.data.targets, weights.tolist(), strict=True)),
        scores=tuple(score_of(label, found, base) for label, found in rows.items()),
    )


def _row(carried: Carried, store: RunStore, split: str, weights: np.ndarray[Any, np.dtype[np.float64]]) -> Row:
    result, final, problem = carried.result, carried.final, carried.asked.problem
    assert result is not None
    assert final is not None
    losses = np.array([result[split]["loss"][target] for target in result["targets"]])
    return Row(
        seed=problem.seed,
        key=final.key,
        perplexity=float(weights @ np.exp(losses)) / losses.size,
        loss=float(weights @ losses) / losses.size,
        losses=dict(result[split]["loss"]),
        proportions=dict(result["realised"]),
        extra_runs=len(carried.extra),
        extra_steps=sum(job.run.task.steps for job in carried.extra) / problem.steps,
        seconds=store.seconds([final.key, *(job.key for job in carried.extra)]),
    )


def score_of(label: str, found: Mapping[int, Row | str], base: Mapping[int, Row]) -> Score:
    """A method's rows, or why there is none, by seed, against those of stratified."""
    rows = tuple(row for row in found.values() if isinstance(row, Row))
    failed = {seed: row for seed, row in found.items() if isinstance(row, str)}
    if not rows:
        return Score(label, (), failed)
    pairs = [(row, base[row.seed]) for row in rows if row.seed in base]
    perplexity = np.array([row.perplexity - other.perplexity for row, other in pairs])
    loss = np.array([row.loss - other.loss for row, other in pairs])
    shown = [row for row, _ in pairs] or rows  # so that means and differences are of the same seeds
    many = len(pairs) > 1 and label != BASE
    seconds = {name: sum(row.seconds.get(name, 0.0) for row in rows) for name in ("train", "probe")}
    return Score(
        method=label,
        rows=rows,
        failed=failed,
        pairs=len(pairs),
        perplexity=_mean([row.perplexity for row in shown]),
        difference=_mean(perplexity),
        interval=interval(perplexity) if many else None,
        loss=_mean([row.loss for row in shown]),
        loss_difference=_mean(loss),
        loss_interval=interval(loss) if many else None,
        wins=int((perplexity < 0).sum()),
        extra_runs=float(np.mean([row.extra_runs for row in rows])),
        extra_steps=float(np.mean([row.extra_steps for row in rows])),
        probing=probe_share(seconds),
    )


def _mean(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return float(np.mean(values)) if len(values) else None
