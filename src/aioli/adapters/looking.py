"""Validation losses inside somebody else's trainer: held-out sequences of each target, and a model left as it was."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aioli.data.store import TokenStore
from aioli.policies import RulePolicy, looks
from aioli.simplex import Array
from aioli.train.probes import IGNORED
from aioli.train.validation import FORWARD_SHARE, budget, subset

SHARE = 0.04
"""Share of the training compute that a policy's looks may take, unless the number of sequences is given."""
FEW = 16
"""Sequences of each target below which a look is said to be noisy."""
Tensors = dict[str, Any]
Sums = Callable[[Tensors], tuple[torch.Tensor, torch.Tensor]]
"""Of each sequence of a batch: the sum of its losses, and how many tokens have one."""


@dataclass(frozen=True)
class HeldOut:
    """Batches of held-out sequences."""

    batches: Sequence[Tensors]
    target: Sequence[torch.Tensor]
    """For each batch the target of each of its sequences."""
    names: tuple[str, ...]
    """The targets."""

    def __post_init__(self) -> None:
        for batch in self.batches:
            if "labels" not in batch:
                raise ValueError(f"held-out batches must have labels; these have {', '.join(batch)}")
        counts = torch.zeros(len(self.names))
        for batch, target in zip(self.batches, self.target, strict=True):
            counts.index_add_(0, target, counted(batch).float())
        for name, count in zip(self.names, counts.tolist(), strict=True):
            if not count:
                raise ValueError(f"the held-out sequences of {name!r} have no token with loss")

    @property
    def tokens(self) -> int:
        """Tokens in it."""
        return sum(int(batch["labels"].numel()) for batch in self.batches)

    def losses(self, sums: Sums, device: torch.device, rank: int = 0, world: int = 1) -> Array:
        """Mean loss of each target. All ranks call it: each looks at its share, and all learn the same."""
        found = torch.zeros(2, len(self.names), dtype=torch.float64)
        for k in range(rank, -(-len(self.batches) // world) * world, world):
            at = min(k, len(self.batches) - 1)  # sharded models need as many passes on every rank
            both = torch.stack(sums(moved(self.batches[at], device))).cpu().double()  # not all devices have doubles
            if k < len(self.batches):
                found.index_add_(1, self.target[at], both)
        if world > 1:
            everywhere = found.to(device)
            torch.distributed.all_reduce(everywhere)
            found = everywhere.cpu()
        means: Array = (found[0] / found[1]).numpy()
        return means


def counted(batch: Mapping[str, Any]) -> torch.Tensor:
    """Tokens with loss of each sequence: labels are shifted inside models, so that the first is never predicted."""
    found: torch.Tensor = (batch["labels"][:, 1:] != IGNORED).sum(1)
    return found


def moved(batch: Mapping[str, Any], device: torch.device) -> Tensors:
    """A batch on a device."""
    return {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}


def of_store(
    store: TokenStore, targets: Sequence[str], sequences: int, seed: int, batch: int, apart: bool = False
) -> HeldOut:
    """So many sequences of each target, from the validation split of a store; `apart`: no batch has two targets."""
    for target in targets:
        if target not in store.groups:
            raise ValueError(f"{store.path} has no group {target!r} to look at; it has {', '.join(store.groups)}")
    chosen = subset(store, targets, "val", sequences, seed, batch)
    parts = [(chosen.target == i).nonzero()[:, 0] for i in range(len(targets))]
    every = parts if apart else [torch.cat(parts)]
    rows = [part[k : k + batch] for part in every for k in range(0, len(part), batch)]
    batches = [{"input_ids": chosen.ids[some], "labels": chosen.labels[some].clone()} for some in rows]
    return HeldOut(batches, [chosen.target[some] for some in rows], tuple(targets))


def how_many(policy: RulePolicy, per_step: int, sequences: int | None) -> int:
    """Sequences of each target in a look: as asked for, or what keeps all looks within a share of the compute."""
    if sequences is not None:
        if sequences < 1:
            raise ValueError(f"sequences={sequences} must be at least 1")
        return sequences
    count, targets, steps = max(looks(policy), 10), policy.task.targets, policy.task.steps
    found = budget(count, steps, per_step, 1, targets, SHARE)
    if found < FEW:
        share = FEW * count * targets * FORWARD_SHARE / (steps * per_step)
        logging.getLogger("aioli").warning(
            "%d looks may take %.0f%% of the training compute, which is %d sequences of each target at a time: a noisy "
            "look. sequences=%d would take about %.0f%%; fewer rounds, longer runs or larger batches also help",
            *(count, 100 * SHARE, found, FEW, 100 * share),
        )
    return found


def target_names(policy: RulePolicy) -> tuple[str, ...]:
    """What the policy is judged by."""
    names = policy.targets or policy.groups
    if names is None or len(names) != policy.task.targets:
        raise ValueError(
            "the policy does not know its groups and targets by name; make it with "
            "aioli.create(...).policy(groups=[...], targets=[...])"
        )
    return names


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Look at a model in eval mode and without gradients; its modes and all random numbers stay as they were."""
    modes = [(module, module.training) for module in model.modules()]
    states = random.getstate(), np.random.get_state()
    device = next(model.parameters()).device
    others = {} if device.type == "cpu" else {"devices": [device], "device_type": device.type}
    try:
        with torch.random.fork_rng(**(others or {"devices": []})), torch.no_grad():
            model.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        random.setstate(states[0])
        np.random.set_state(states[1])
