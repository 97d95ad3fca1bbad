"""A study as something that a conductor carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aioli.analysis import STUDIES
from aioli.analysis.study import AMPLE, Analysis, AsMethod, Lab
from aioli.registry import Method
from aioli.runs.conducting import Asked, Carried
from aioli.runs.job import Job, Setup
from aioli.runs.store import RunStore
from aioli.train.layout import JOURNAL
from aioli.train.recipe import TrainRecipe


def on_one_schedule(recipe: TrainRecipe) -> TrainRecipe:
    """Parents and forks follow one schedule: that of the whole run."""
    train = recipe.train.model_copy(update={"horizon": recipe.train.horizon or recipe.train.steps})
    return recipe.model_copy(update={"train": train})


def ask(
    name: str,
    setup: Setup,
    store: RunStore,
    seeds: Sequence[int],
    methods: Sequence[tuple[str, Method]] | None = None,
    **options: Any,
) -> Asked:
    """A study by name; `options` are those of a `Lab`. The setup must be on one schedule."""
    problem = replace(setup.problem(seeds[0]), budget=AMPLE, proxy_steps=None)
    lab = Lab(
        problem,
        tuple(seeds),
        lambda run: store.run_folder(Job(run, setup).key) / JOURNAL,
        settings={"methods": methods},
        **options,
    )
    return Asked(name, AsMethod(name, STUDIES[name], lab), problem, False)


def found(carried: Carried) -> Analysis:
    """What came of it."""
    study = carried.asked.method
    assert isinstance(study, AsMethod)
    if carried.error is not None or study.found is None:
        raise ValueError(f"{study.name}: {carried.error or 'nothing was found'}")
    return study.found
