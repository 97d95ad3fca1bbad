"""Everything that the job needs before anyone trains it, made where aioli is installed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

import aioli
from aioli.data import write_store
from aioli.policies import looks
from aioli.train import Run
from aioli.train.validation import budget
from contest.job import HELD_OUT, SHAPE, Job, write_tokens
from contest.ours import recipe_of

SHORTEST = 24
"""Steps of a round of Aioli with three groups."""


def prepare(place: Path, steps: int) -> Job:
    """Tokens, a store, the first weights, and a trained reference for DoReMi."""
    job = Job(str(place), steps, rounds=max(1, min(Job.rounds, steps // SHORTEST)))
    policy = aioli.create("aioli", rounds=job.rounds).policy(groups=list(job.groups), steps=steps)
    seen = looks(policy) * budget(looks(policy), steps, job.batch * job.context, job.context, len(job.groups), 0.04)
    job = replace(job, looked_at=min(HELD_OUT, seen // job.rounds))
    write_tokens(job)
    splits = {split: dict(zip(job.groups, map(np.ravel, job.rows(split)), strict=True)) for split in ("train", "val")}
    write_store(Path(job.store), splits, job.context, job.vocabulary)
    torch.manual_seed(job.seed)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    sizes = {"vocab_size": job.vocabulary, "max_position_embeddings": job.context, **SHAPE}
    AutoModelForCausalLM.from_config(LlamaConfig(**sizes)).save_pretrained(job.model)
    Run(recipe_of(job, "stratified", {}, None, None), place / "reference-run").train()
    shutil.copytree(place / "reference-run" / "model", job.reference)
    return job
