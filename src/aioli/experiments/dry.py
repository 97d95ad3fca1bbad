"""What an experiment would train, without data: its recipes checked, its runs counted on made-up losses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aioli.analysis import STUDIES
from aioli.analysis.study import AMPLE, AsMethod, Lab
from aioli.carrying import Carrying
from aioli.experiments.bench import recipe_of, words_of
from aioli.experiments.catalogue import Experiment
from aioli.experiments.profiles import Profile
from aioli.experiments.settings import Setting
from aioli.methods import create
from aioli.runs.rehearsal import made_up
from aioli.runs.spec import Planned, Problem, Run, closure
from aioli.train.presets import check_preset

TASKS = 9
"""Instruction tasks, where their names are not known."""


@dataclass(frozen=True)
class Dry:
    """One experiment in one setting."""

    experiment: str
    setting: str
    model: str
    steps: int
    seeds: int
    runs: int
    """All runs of all seeds, each once."""
    total: float
    """Their steps, in final runs."""
    recipe: dict[str, Any]
    methods: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def plans(experiment: Experiment, setting: Setting, profile: Profile, seeds: int | None) -> Dry:
    """Check the recipe and rehearse every method."""
    named = setting
    if not setting.groups:
        setting = replace(setting, groups=tuple(f"task {k + 1}" for k in range(TASKS)))
    recipe = recipe_of(experiment, setting, profile, "store")
    if recipe.model.preset is not None:
        check_preset(recipe.model.preset, "model.preset")
    count = experiment.count(seeds or profile.seeds(experiment.name, named))
    problem = Problem(
        setting.groups,
        recipe.train.steps,
        setting.targets or None,
        budget=experiment.budget,
        target_weights=tuple(dict(setting.weights).get(t, 1.0) for t in setting.targets or setting.groups),
    )
    methods = experiment.asked(setting, profile)
    runs: dict[str, Run] = {}
    if experiment.study is not None:
        runs = _study(experiment, setting, profile, replace(problem, budget=AMPLE), count)
        many = 1  # a study trains its seeds itself
    else:
        for name, settings in methods.values():
            runs |= _counted(create(name, **settings), problem)
        many = count
    return Dry(
        experiment.name,
        setting.name,
        words_of(recipe.model),
        problem.steps,
        count,
        many * (len(runs) + bool(experiment.longer)),
        many * (sum(run.task.steps for run in runs.values()) / problem.steps + _longer(experiment)),
        recipe.model_dump(mode="json", exclude_defaults=True),
        {label: {"method": name, "settings": given} for label, (name, given) in methods.items()},
    )


def _longer(experiment: Experiment) -> float:
    """Steps of stratified that is trained longer, in units of a final run's."""
    return 1 + experiment.longer if experiment.longer else 0.0


def _counted(method: Planned, problem: Problem) -> dict[str, Run]:
    """Every run of a plan, with what it stands on."""
    carrying = Carrying(method, problem)
    found: dict[str, Run] = {}
    while carrying.final is None:
        found |= {run.key: run for run in closure(carrying.stage)}
        carrying.tell([made_up(run, problem) for run in carrying.stage])
    return found | {run.key: run for run in closure([carrying.final])}


def _study(experiment: Experiment, setting: Setting, profile: Profile, problem: Problem, seeds: int) -> dict[str, Run]:
    assert experiment.study is not None
    if experiment.study == "parameters":  # which reads what its methods have written
        return {}
    lab = Lab(problem, tuple(range(seeds)), lambda run: Path(run.key), **experiment.options(setting, profile))
    plan = AsMethod(experiment.study, STUDIES[experiment.study], lab).plan(problem)
    found: dict[str, Run] = {}
    stage = next(plan)
    try:
        while True:
            found |= {run.key: run for run in closure(stage)}
            stage = plan.send([made_up(run, problem) for run in stage])
    except StopIteration:
        return found
