"""Validation losses inside somebody else's trainer: held-out sequences of each target, and a model left as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aioli.data.store import TokenStore
from aioli.policies import RulePolicy
from aioli.simplex import Array
from aioli.train.probes import IGNORED
from aioli.train.validation import budget, looks, subset

SHARE = 0.04
"""Share of the training compute that a policy's looks may take, unless the number of sequences is given."""
Tensors = dict[str, Any]
Loss = Callable[[Tensors], torch.Tensor]
"""The mean loss of a batch, over its tokens with loss."""


@dataclass(frozen=True)
class HeldOut:
    """Batches of held-out sequences, each of one target."""

    batches: Sequence[Tensors]
    target: Sequence[int]
    """The target of each batch."""
    names: tuple[str, ...]
    """The targets."""

    def __post_init__(self) -> None:
        for batch in self.batches:
            if "labels" not in batch:
                raise ValueError(f"held-out batches must have labels; these have {', '.join(batch)}")
        for i, name in enumerate(self.names):
            if not any(counted(batch) for batch, target in zip(self.batches, self.target, strict=True) if target == i):
                raise ValueError(f"the held-out sequences of {name!r} have no token with loss")

    @property
    def tokens(self) -> int:
        """Tokens in it."""
        return sum(int(batch["labels"].numel()) for batch in self.batches)

    def losses(self, loss: Loss, device: torch.device, rank: int = 0, world: int = 1) -> Array:
        """Mean loss of each target. All ranks call it: each looks at its share, and all learn the same."""
        found = torch.zeros(2, len(self.names), dtype=torch.float64)
        for k in range(rank, -(-len(self.batches) // world) * world, world):
            at = min(k, len(self.batches) - 1)  # sharded models need as many passes on every rank
            batch = moved(self.batches[at], device)
            count, value = counted(batch), loss(batch)
            if k < len(self.batches) and count:
                found[0, self.target[at]] += float(value) * count
                found[1, self.target[at]] += count
        if world > 1:
            everywhere = found.to(device)
            torch.distributed.all_reduce(everywhere)
            found = everywhere.cpu()
        means: Array = (found[0] / found[1]).numpy()
        return means


def counted(batch: Mapping[str, Any]) -> int:
    """Tokens with loss: labels are shifted inside models, so that the first is never predicted."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def moved(batch: Mapping[str, Any], device: torch.device) -> Tensors:
    """A batch on a device."""
    return {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}


def of_store(
    store: TokenStore, targets: Sequence[str], sequences: int, seed: int, batch: int, split: str = "val"
) -> HeldOut:
    """So many sequences of each target, from the validation split of a store."""
    for target in targets:
        if target not in store.groups:
            raise ValueError(f"{store.path} has no group {target!r} to look at; it has {', '.join(store.groups)}")
    chosen = subset(store, targets, split, sequences, seed, batch)
    batches, owners = [], []
    for i in range(len(targets)):
        mine = (chosen.target == i).nonzero()[:, 0]
        for k in range(0, len(mine), batch):
            some = mine[k : k + batch]
            batches.append({"input_ids": chosen.ids[some], "labels": chosen.labels[some].clone()})
            owners.append(i)
    return HeldOut(batches, owners, tuple(targets))


def how_many(policy: RulePolicy, per_step: int, sequences: int | None) -> int:
    """Sequences of each target in a look: as asked for, or what keeps all looks within a share of the compute."""
    if sequences is not None:
        if sequences < 1:
            raise ValueError(f"sequences={sequences} must be at least 1")
        return sequences
    count = max(looks(policy), 10)
    return budget(count, policy.task.steps, per_step, 1, policy.task.targets, SHARE)


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
