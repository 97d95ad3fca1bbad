"""Us: `aioli train` under a method, and aioli inside the bare loop through `MixtureDataset` and `Cursor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import aioli
from aioli.adapters.pytorch import MixtureDataset
from aioli.config import to_config
from aioli.data import MixtureSampler, TokenStore
from aioli.lmo.task import Task
from aioli.policies import RulePolicy, Static, Then, looks
from aioli.train import Run, TrainRecipe, checkpoint
from aioli.train.validation import budget, subset
from contest.by_hand import first_model, optimizer_of, update
from contest.job import Job
from contest.turns import Turns


def rounds(job: Job, method: str) -> dict[str, int]:
    """The one setting that is not a default: a short run has few rounds."""
    return {"rounds": job.rounds} if method.startswith("aioli") else {}


def switching(job: Job, step: int) -> Then:
    """All of the first group, and from a step on all of the second."""
    rest = [0.0] * (len(job.groups) - 2)
    return Then(Static((1.0, 0.0, *rest)), step, Static((0.0, 1.0, *rest)))


def policy_of(job: Job, switch: int | None) -> RulePolicy:
    """Aioli, or a mixture that changes at a given step."""
    if switch is None:
        return aioli.create("aioli", **rounds(job, "aioli")).policy(groups=list(job.groups), steps=job.steps)
    found = RulePolicy(switching(job, switch), Task(len(job.groups), job.steps))
    found.groups = job.groups
    return found


def recipe_of(job: Job, method: str, settings: dict[str, Any], save: int | None, switch: int | None) -> TrainRecipe:
    """The job as `aioli train` takes it."""
    chosen: dict[str, Any] = {"name": method, "settings": {**rounds(job, method), **settings}}
    if method == "doremi":
        chosen["reference"] = job.place + "/reference-run"
    if switch is not None:
        chosen = {"rules": to_config(switching(job, switch))}
    train = {"steps": job.steps, "batch": job.batch, "lr": job.lr, "warmup": job.warmup, "floor": job.floor}
    train |= {"betas": job.betas, "eps": job.eps, "decay": job.decay, "clip": job.clip, "threads": 1}
    return TrainRecipe.model_validate(
        {
            "data": {"store": job.store, "groups": list(job.groups)},
            "model": {"name": job.model},
            "train": train,
            "method": chosen,
            "checkpoint": {"every": save or 10**9},
            "seed": job.seed,
        }
    )


def train(
    job: Job,
    turns: Turns,
    place: Path,
    method: str = "stratified",
    proxy: bool = False,
    save: int | None = None,
    switch: int | None = None,
    **options: object,
) -> None:
    """`aioli train`, as it is; run again in the same place it goes on."""
    even = [1 / len(job.groups)] * len(job.groups)

    def told(run: Run) -> None:
        if run.engine.step > turns.done:
            assert run.segment is not None
            turns.step(run.segment.proportions if run.segment.weighting == "sample" else even)

    run = Run(recipe_of(job, method, {"proxy": True} if proxy else {}, save, switch), place / "run", told)
    last = checkpoint.latest(place / "run")
    turns.begin(run.engine.plain, 0 if last is None else checkpoint.step_of(last))
    run.train()


def loop(
    job: Job,
    turns: Turns,
    place: Path,
    save: int | None = None,
    resume: bool = False,
    switch: int | None = None,
    workers: int = 0,
    **options: object,
) -> None:
    """The bare loop with two lines more, and a checkpoint as one would write it."""
    model, store = first_model(job), TokenStore(job.store)
    optimizer, groups, m = optimizer_of(job, model), list(job.groups), len(job.groups)
    policy = policy_of(job, switch)
    each = budget(max(1, looks(policy)), job.steps, job.batch * job.context, job.context, m, 0.04)
    held_out = subset(store, groups, "val", each, job.seed, 64)

    def look() -> list[float]:
        sums, counts = held_out.losses(model, model)
        return (sums / counts).tolist()

    cursor = aioli.Cursor(policy, {"val_loss": look})
    data = MixtureDataset(MixtureSampler(store, job.batch, job.seed, groups=groups), cursor)
    file = place / "checkpoint.pt"
    done = 0
    if resume:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        cursor.load_state_dict(saved["cursor"])
        data.load_state_dict(saved["data"])
        done = saved["step"]
    turns.begin(model, done)
    for step, batch in enumerate(DataLoader(data, batch_size=None, num_workers=workers), done):
        p = np.array(cursor.proportions)
        model(input_ids=batch["input_ids"], labels=batch["labels"]).loss.backward()
        update(job, optimizer, step)
        cursor.step()
        if save is not None and (step + 1) % save == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save({**state, "cursor": cursor.state_dict(), "data": data.state_dict()}, file)
        turns.step(p)
