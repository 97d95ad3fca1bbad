"""Compare methods in a world: final loss, gap to the oracle, extra runs, cost of probing, over paired seeds.

In: a world's name and size, methods, seeds. Out: a `Comparison` that prints as a table or as JSON. Every seed draws a
new world; all methods face the same worlds with the same seeds, and differences are taken pair by pair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aioli.config import content_hash
from aioli.methods import Method, conduct, create
from aioli.protocol import Observation, Segment, drive
from aioli.runs.spec import Problem, Result, Run
from aioli.simplex import as_weights, check_groups, uniform, whole
from aioli.simulate.trainer import SimTrainer
from aioli.simulate.worlds import WORLDS, World
from aioli.stats import interval


@dataclass(frozen=True)
class Trained:
    """A run that was simulated."""

    trainer: SimTrainer
    result: Result


class Simulator:
    """Trains runs in a world; an equal run is trained once. Every run has noise of its own, drawn by its content."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: dict[str, Trained] = {}

    def train(self, run: Run, again: bool = False) -> Trained:
        """Train one run, or find it again; `again`: a second time, with fresh noise."""
        key = run.key + ("/again" if again else "")
        if key not in self.done:
            reference = None if run.reference is None else self.train(run.reference).trainer
            noise = int(content_hash(key)[:15], 16)
            trainer = self.world.trainer(noise, run.task.steps, reference)
            start = trainer.losses(trainer.state)
            total = np.zeros(run.task.m)

            def record(segment: Segment, observation: Observation) -> None:
                nonlocal total
                total = total + segment.steps * segment.proportions

            drive(run.policy(), trainer, record)
            seen = trainer.losses(trainer.state) + trainer.noise.val * trainer._rng.normal(size=trainer.n)
            self.done[key] = Trained(trainer, Result(seen, start, total / run.task.steps))
        return self.done[key]

    def stage(self, runs: list[Run]) -> list[Result]:
        """Train a stage of runs."""
        return [self.train(run).result for run in runs]


@dataclass(frozen=True)
class Score:
    """One method over all seeds. Losses are true (noise-free) means over targets at the end of the final run."""

    method: str
    seeds: int
    loss: float
    """Mean over seeds."""
    difference: float
    """Mean paired difference from stratified; negative is better."""
    interval: tuple[float, float]
    """95% confidence interval of the difference (Student's t over paired seeds)."""
    gap: float
    """Mean distance to the oracle, the better of the best static mixture and the best greedy schedule (without noise;
    a cleverer schedule than the greedy one could be better still)."""
    room_closed: float
    """Share of the room between stratified and the best static mixture that was closed, over all seeds."""
    wins: int
    """Seeds in which it beat stratified."""
    extra_runs: float
    extra_steps: float
    """Training steps of the extra runs, in units of the final run."""
    probing: float
    """Cost of observations in all its runs, in units of the final run's training."""


@dataclass(frozen=True)
class Comparison:
    """What `simulate` found."""

    world: str
    groups: int
    targets: int | None
    steps: int
    budget: str | float
    seeds: int
    stratified: float
    room: float
    """Mean gap between stratified and the best static mixture, both without noise: what there is to win."""
    room_interval: tuple[float, float]
    """Over worlds."""
    scores: tuple[Score, ...]
    skipped: dict[str, str]
    """Methods that could not run here, and why."""

    @property
    def no_room(self) -> bool:
        """Whether nothing can be won: the room is less than a ten-thousandth of the loss."""
        return self.room < 1e-4 * abs(self.stratified)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON; an interval that cannot be told (one seed) is null."""
        plain = asdict(self)
        for part in (plain, *plain["scores"]):
            for name in ("interval", "room_interval"):
                if name in part and not np.isfinite(part[name]).all():
                    part[name] = None
        return plain


@dataclass(frozen=True)
class Setting:
    """One comparison to make."""

    world: str = "powerlaw"
    groups: int = 7
    targets: int | None = None
    steps: int = 2000
    budget: str | float = "unrestricted"
    target_weights: tuple[float, ...] | None = None

    def draw(self, seed: int) -> tuple[World, Problem]:
        """The world and the problem of one seed."""
        if self.world not in WORLDS:
            raise ValueError(f"there is no world {self.world!r}; known worlds are {', '.join(WORLDS)}")
        if self.world == "uniform" and self.targets is not None:
            raise ValueError("the uniform world is judged on its groups; leave targets out")
        check_groups(self.groups)
        if self.targets is not None and self.targets < 1:
            raise ValueError(f"targets={self.targets} must be at least 1, or left out: judged on the groups")
        world = WORLDS[self.world](self.groups, self.targets, seed, self.steps)
        groups = tuple(f"group{j}" for j in range(world.m))
        targets = None if self.targets is None else tuple(f"target{i}" for i in range(world.n))
        problem = Problem(groups, self.steps, targets, seed, self.budget, self.target_weights, world.sizes)
        return world, problem


def _one_seed(setting: Setting, methods: Sequence[tuple[str, Method]], seed: int) -> dict[str, Any]:
    """All methods on one seed's world."""
    world, problem = setting.draw(seed)
    weights = as_weights(problem.target_weights, problem.n)
    simulator = Simulator(world)
    static = world.value([(problem.steps, world.best_static(weights))], weights)
    greedy = world.value(world.best_greedy(weights), weights)
    base = simulator.train(problem.final_static(uniform(problem.m)), again=True).trainer
    even = world.value([(problem.steps, uniform(problem.m))], weights)
    rows: dict[str, Any] = {}

    def afresh(run: Run) -> Result:
        # judged by a training of its own, so that a method that picked its luckiest run does not keep the luck
        return simulator.train(run, again=True).result

    for label, method in methods:
        try:
            outcome = conduct(method, problem, simulator.stage, afresh)
        except ValueError as problem_found:
            rows[label] = str(problem_found)
            continue
        final = simulator.train(outcome.final, again=True).trainer
        probed = [final, *(simulator.train(run).trainer for run in {run.key: run for run in outcome.extra}.values())]
        rows[label] = {
            "loss": float(weights @ final.losses(final.state)) / problem.n,
            "extra_runs": outcome.extra_runs,
            "extra_steps": sum(r.task.steps for r in {r.key: r for r in outcome.extra}.values()) / problem.steps,
            "probing": sum(trainer.probing for trainer in probed) / problem.steps,
        }
    stratified = float(weights @ base.losses(base.state)) / problem.n
    return {"stratified": stratified, "room": even - static, "oracle": min(static, greedy), "rows": rows}


def compare(
    setting: Setting,
    methods: Sequence[str | tuple[str, Method]],
    seeds: Iterable[int],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Simulate every method (a name, or a label and a method) on every seed.

    `progress` is told seeds done and seeds in all. With more than one worker, seeds run in processes of their own.
    """
    seeds = [whole(seed, "seed") for seed in seeds]
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds={seeds} must be at least one number, none negative")
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    named = [(each, create(each)) if isinstance(each, str) else each for each in methods]
    setting.draw(seeds[0])
    found: list[dict[str, Any]] = []
    for row in _rows(setting, named, seeds, min(len(seeds), workers or os.cpu_count() or 1)):
        found.append(row)
        if progress:
            progress(len(found), len(seeds))
    return _summarise(setting, [label for label, _ in named], found)


def _rows(
    setting: Setting, methods: list[tuple[str, Method]], seeds: list[int], workers: int
) -> Iterator[dict[str, Any]]:
    if workers == 1:
        yield from (_one_seed(setting, methods, seed) for seed in seeds)
        return
    pool = ProcessPoolExecutor(workers)
    try:
        yield from pool.map(_one_seed, [setting] * len(seeds), [methods] * len(seeds), seeds)
    except BaseException:  # interrupted: the workers must not go on alone
        for process in list((pool._processes or {}).values()):
            process.kill()  # SIGTERM would only end what it is doing: it has inherited how commands take that
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _summarise(setting: Setting, labels: Sequence[str], found: Sequence[dict[str, Any]]) -> Comparison:
    stratified, room_each, oracle = (np.array([f[key] for f in found]) for key in ("stratified", "room", "oracle"))
    scores, skipped = [], {}
    for label in labels:
        rows = [f["rows"][label] for f in found]
        failed = [row for row in rows if isinstance(row, str)]
        if failed:
            skipped[label] = failed[0]
            continue
        loss = np.array([row["loss"] for row in rows])
        difference = loss - stratified
        room = float(room_each.sum())
        scores.append(
            Score(
                method=label,
                seeds=len(found),
                loss=float(loss.mean()),
                difference=float(difference.mean()),
                interval=interval(difference),
                gap=float((loss - oracle).mean()),
                room_closed=float(-difference.sum()) / room if room > 0 else 0.0,
                wins=int((difference < 0).sum()),
                **{key: float(np.mean([row[key] for row in rows])) for key in ("extra_runs", "extra_steps", "probing")},
            )
        )
    return Comparison(
        setting.world,
        setting.groups,
        setting.targets,
        setting.steps,
        setting.budget,
        len(found),
        float(stratified.mean()),
        float(room_each.mean()),
        interval(room_each),
        tuple(scores),
        skipped,
    )
