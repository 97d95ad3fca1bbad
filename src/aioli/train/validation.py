"""Which validation sequences are looked at: a fixed random subset of each target, as large as a budget allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from aioli.data.order import key, permute
from aioli.data.store import TokenStore
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


def budget(count: int, steps: int, batch_tokens: int, context: int, targets: int, share: float) -> int:
    """Sequences of each target that keep so many looks within a share of the training compute; at least one."""
    return max(1, int(share * steps * batch_tokens / (FORWARD_SHARE * count * context * targets)))
