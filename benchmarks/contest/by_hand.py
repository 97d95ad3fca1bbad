"""Loops that one would write: plain training, DoGE with a gradient of each group, DoReMi with a forward pass of each.

DoGE is Algorithm 1 of Fan, Pagliardini and Jaggi (2023, arXiv:2310.15393), for the training groups themselves: the
groups' gradients on one batch give both the weights, p_j ∝ p_j exp(η ⟨∇l_j, Σ_i ∇l_i⟩), and the step, along
Σ_j p_j ∇l_j. With `held_out` the other factor is the gradient on half a batch of held-out sequences, as in the Aioli
paper and in this library. DoReMi is the proxy run of Algorithm 1 of Xie et al. (2023, arXiv:2305.10429): excess losses
over a reference, clipped at 0 token by token, p_j ∝ p_j exp(η λ_j), smoothed, and a step on the losses weighted with p.
Both draw batches evenly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from contest.job import Job
from contest.turns import Turns

ETA, SMOOTHING = 0.01, 1e-3
"""Step size and smoothing, as in the Aioli paper's experiments; they do not change what a step costs."""


# ---------------------------------------------------------------------- the parts


def first_model(job: Job) -> torch.nn.Module:
    """The model with the weights that everyone begins with."""
    model = AutoModelForCausalLM.from_pretrained(job.model)
    model.config.use_cache = False
    return model.train()


def first_loss(job: Job) -> float:
    """The loss of the first weights on a few sequences: the same in every environment, if the model is."""
    ids = torch.from_numpy(np.concatenate([rows[:8] for rows in job.rows("val")]).astype(np.int64))
    with torch.no_grad():
        return float(first_model(job)(input_ids=ids, labels=ids).loss)


def optimizer_of(job: Job, model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": job.decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=job.lr, betas=job.betas, eps=job.eps)


def even_counts(batch: int, groups: int, step: int) -> list[int]:
    """Sequences of each group in this step: all alike; what is over goes round."""
    each, over = divmod(batch, groups)
    lucky = {(step * over + k) % groups for k in range(over)}
    return [each + (j in lucky) for j in range(groups)]


def drawn(job: Job, split: str = "train", batch: int | None = None) -> Iterator[list[torch.Tensor]]:
    """Batches without end, as the sequences of each group, every group in a random order."""
    rows, size = job.rows(split), job.batch if batch is None else batch
    orders = [np.random.default_rng([job.seed, j]).permutation(len(r)) for j, r in enumerate(rows)]
    used, step = [0] * len(rows), 0
    while True:
        found = []
        for j, count in enumerate(even_counts(size, len(rows), step)):
            chosen = orders[j][np.arange(used[j], used[j] + count) % len(orders[j])]
            used[j] += count
            found.append(torch.from_numpy(rows[j][chosen].astype(np.int64)))
        step += 1
        yield found


def update(job: Job, optimizer: torch.optim.AdamW, step: int) -> None:
    """Clip the gradients, set the rate, step."""
    torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], job.clip)
    for group in optimizer.param_groups:
        group["lr"] = job.rate(step)
    optimizer.step()
    optimizer.zero_grad()


def reweighted(p: torch.Tensor, pull: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """p_j ∝ p_j exp(η pull_j), with a share of uniform mixed in."""
    found = torch.softmax(p.log() + ETA * pull, dim=0)
    return (1 - smoothing) * found + smoothing / p.numel()


# ---------------------------------------------------------------------- the loops


def plain(job: Job, turns: Turns, **options: object) -> None:
    """What one would write with a fixed, even mixture."""
    model = first_model(job)
    optimizer, batches = optimizer_of(job, model), drawn(job)
    even = [1 / len(job.groups)] * len(job.groups)
    turns.begin(model)
    for step in range(job.steps):
        ids = torch.cat(next(batches))
        model(input_ids=ids, labels=ids).loss.backward()
        update(job, optimizer, step)
        turns.step(even)


def gradient(model: torch.nn.Module, parameters: list[torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Of the mean loss on these sequences, as one vector."""
    found = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, parameters)
    return torch.cat([g.flatten() for g in found])


def doge_step(
    gradients: torch.Tensor, p: torch.Tensor, target: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """From the groups' gradients (m, parameters): the new weights, and the direction of the step under them.

    `target`: the gradient of what the model is to be good at; left out: the sum over the groups themselves.
    """
    p = reweighted(p, gradients @ (gradients.sum(0) if target is None else target))
    return p, p @ gradients


def doge(job: Job, turns: Turns, held_out: bool = False, **options: object) -> None:
    """A gradient of each group in every step."""
    model = first_model(job)
    parameters = list(model.parameters())
    sizes = [q.numel() for q in parameters]
    optimizer, batches, looks = optimizer_of(job, model), drawn(job), drawn(job, "val", job.batch // 2)
    m = len(job.groups)
    p, even = torch.full((m,), 1 / m), [1 / m] * m
    turns.begin(model)
    for step in range(job.steps):
        target = m * gradient(model, parameters, torch.cat(next(looks))) if held_out else None
        gradients = torch.stack([gradient(model, parameters, ids) for ids in next(batches)])
        p, direction = doge_step(gradients, p, target)
        for parameter, piece in zip(parameters, direction.split(sizes), strict=True):
            parameter.grad = piece.view_as(parameter)
        update(job, optimizer, step)
        turns.step(even)


def token_losses(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The loss of every token but the first: (sequences, tokens)."""
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def excess(losses: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """How far a group's tokens lie above the reference, where they do: DoReMi's λ."""
    return (losses - reference).clamp(min=0).mean()


def doremi(job: Job, turns: Turns, **options: object) -> None:
    """A forward pass of the proxy and of the reference for each group in every step."""
    model = first_model(job)
    reference = AutoModelForCausalLM.from_pretrained(job.reference).eval().requires_grad_(False)
    optimizer, batches = optimizer_of(job, model), drawn(job)
    m = len(job.groups)
    p, even = torch.full((m,), 1 / m), [1 / m] * m
    turns.begin(model)
    for step in range(job.steps):
        losses, pulls = [], []
        for ids in next(batches):
            mine = token_losses(model, ids)
            with torch.no_grad():
                pulls.append(excess(mine.detach(), token_losses(reference, ids)))
            losses.append(mine.mean())
        p = reweighted(p, torch.stack(pulls), SMOOTHING)
        (p * torch.stack(losses)).sum().backward()
        update(job, optimizer, step)
        turns.step(even)
