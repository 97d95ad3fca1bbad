"""Which validation sequences are looked at: a fixed random subset of each target, as large as a budget allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from aioli.data.order import key, permute
from aioli.data.store import TokenStore
from aioli.policies import RulePolicy
from aioli.protocol import Observation, Segment
from aioli.train.probes import IGNORED, Validation

FORWARD_SHARE = 0.4
"""A forward pass alone, in units of a training step on the same tokens: a third, and something for small batches."""
OVERVIEW = 0.01
"""Share of the training compute that looks for the journal take; those that a policy asks for: `val.share`."""
LOOKS = 10
"""How often a run is looked at for its journal, unless it is said otherwise."""


def subset(
    store: TokenStore, targets: Sequence[str], split: str, sequences: int | None, seed: int, batch: int
) -> Validation:
    """At most so many sequences with loss of each target (None: all of them), chosen by the seed."""
    ids, labels, owners = [], [], []
    for i, target in enumerate(targets):
        rows, masks = store.rows(target, split), store.masks(store.groups.index(target), split)
        able = np.arange(len(rows)) if masks is None else np.flatnonzero(np.asarray(masks)[:, 1:].any(axis=1))
        size = len(able)
        if size == 0:
            what = "sequence" if len(rows) == 0 else "token with loss"
            raise ValueError(f"target {target!r} has no {what} in the {split} split of {store.path}")
        count = size if sequences is None else max(1, min(sequences, size))
        which = np.zeros(count, dtype=np.int64)
        keys = np.array([key(seed, i, 0)], dtype=np.uint64)
        chosen = able[np.sort(permute(np.arange(count), which, np.array([size]), keys))]
        tokens = torch.from_numpy(rows[chosen].astype(np.int64))
        ids.append(tokens)
        mask = None if masks is None else torch.from_numpy(masks[chosen])
        labels.append(tokens if mask is None else tokens.masked_fill(mask == 0, IGNORED))
        owners.append(torch.full((count,), i, dtype=torch.int64))
    return Validation(torch.cat(ids), torch.cat(labels), torch.cat(owners), len(targets), batch)


def looks(policy: RulePolicy) -> int:
    """How often a policy looks at the validation loss, counted on made-up values."""
    if "val_loss" not in policy.needs:
        return 0
    return sum(("val_loss" in each.observe) + _forks(each) for each in rehearsed(policy))


def fork_steps(policy: RulePolicy) -> int:
    """Steps of all its forks, at most: made-up values settle nothing."""
    if "fork_loss" not in policy.needs:
        return 0
    return sum(_forks(each) * each.fork_steps for each in rehearsed(policy))


def _forks(segment: Segment) -> int:
    return 0 if segment.forks is None else len(segment.forks)


def rehearsed(policy: RulePolicy) -> Iterator[Segment]:
    """What it asks for, told made-up values."""
    rehearsal, n = RulePolicy(policy.rules, policy.task), policy.task.targets
    while (segment := rehearsal.ask()) is not None:
        yield segment
        values: dict[str, Any] = {kind: np.ones(policy.task.m) for kind in segment.observe}
        values |= {"val_loss": np.ones(n), "lr": 1.0}
        values |= {"fork_loss": np.ones((_forks(segment), n))} if segment.forks is not None else {}
        rehearsal.tell(Observation(segment.proportions * segment.steps, **values))


def budget(count: int, steps: int, batch_tokens: int, context: int, targets: int, share: float) -> int:
    """Sequences of each target that keep so many looks within a share of the training compute; at least one."""
    return max(1, int(share * steps * batch_tokens / (FORWARD_SHARE * count * context * targets)))
