"""How long runs will take here, from a few steps of the real thing. Needs torch."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from aioli.config import to_config
from aioli.policies import Static
from aioli.runs.job import Job, Setup
from aioli.simplex import uniform
from aioli.train import Run, TrainRecipe

FACTORS = {"excess_loss": 1.4, "token_excess_loss": 1.4, "grad_inner": 2.8, "grad_norm": 2.8, "val_loss": 1.04}
"""Time of a step with these observations, in units of a plain one, as benchmarks/engine.py measures it."""
OVERVIEW = 1.01
"""The same for the looks that are for the journal."""
WARM, LEAST, SECONDS = 2, 4, 3.0
"""Steps that are not timed, steps that are timed at least, and how long to go on."""
STARTED = 1.0
"""Seconds to build a run and to write what came of it."""


class _EnoughError(Exception):
    """Enough steps are timed; nothing is worth saving."""


@dataclass(frozen=True)
class Pace:
    """What was measured for one setup."""

    step: float
    """Seconds of a training step."""
    judging: float
    """Seconds to judge a model on all validation and test data."""

    def seconds(self, job: Job) -> float:
        """Of a whole run."""
        policy = job.run.policy()
        factor = OVERVIEW * max([1.0, *(FACTORS.get(kind, 1.0) for kind in policy.needs)])
        return STARTED + (job.run.task.steps * factor + job.tried) * self.step + self.judging


def measure(setup: Setup, threads: int = 1) -> Pace:
    """Train a few steps in a temporary directory, and judge once."""
    before = torch.get_num_threads()
    torch.set_num_threads(setup.recipe.train.threads or threads)
    recipe = setup.recipe
    plain = recipe.model_dump(mode="json", include={"data", "model", "train", "val"})
    rules = Static(tuple(uniform(len(recipe.data.groups)).tolist()))
    plain["method"] = {"name": "static", "rules": to_config(rules)}
    plain["val"]["every"] = 0
    clock: list[float] = []

    def after_step(run: Run) -> None:
        clock.append(time.perf_counter())
        if len(clock) > WARM + LEAST and clock[-1] - clock[WARM] > SECONDS:
            raise _EnoughError

    try:
        with tempfile.TemporaryDirectory(prefix="aioli-plan-") as folder:
            run = Run(TrainRecipe.model_validate(plain), Path(folder) / "run", after_step)
            began = time.perf_counter()
            run.start_losses()
            val = time.perf_counter() - began
            with suppress(_EnoughError):
                run.train()
            sizes = {split: sum(part.tokens for part in parts) for split, parts in run.store.parts.items()}
    finally:
        torch.set_num_threads(before)
    timed = clock[min(WARM, len(clock) - 1) :]
    step = (timed[-1] - timed[0]) / max(1, len(timed) - 1)
    return Pace(step, val * (1.0 + sizes.get("test", 0) / max(1, sizes["val"])))
