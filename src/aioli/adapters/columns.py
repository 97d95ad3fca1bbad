"""Data sets of others, grouped by one of their columns: which examples are of which group, and how they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from aioli.data.order import key, permute
from aioli.data.sampler import Ints

SEEN = 8
"""Examples of each group that a fingerprint looks at."""


def rows_by_group(dataset: Any, column: str, groups: Sequence[str], what: str) -> dict[str, Ints]:
    """The rows of each group in a data set."""
    if dataset is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"{what} is {type(dataset).__name__}, but any example must be within reach; use a data set with a length, "
            "or make a token store of it: aioli prepare"
        )
    names = np.array([str(name) for name in _column(dataset, column, what)])
    found = {str(group): np.flatnonzero(names == group) for group in groups}
    empty = [group for group, rows in found.items() if rows.size == 0]
    if empty:
        there = ", ".join(sorted(set(names.tolist()))[:20])
        raise ValueError(f"{what} has no example whose {column!r} is {empty[0]!r}; there are {there}")
    return found


def _column(dataset: Any, column: str, what: str) -> Sequence[Any]:
    columns = getattr(dataset, "column_names", None)
    if columns is None and len(dataset) and isinstance(dataset[0], Mapping):
        columns = list(dataset[0])
    if columns is None or column not in columns:
        packed = "; packing drops it: set packing=False" if columns is not None and "seq_lengths" in columns else ""
        raise ValueError(f"{what} has no column {column!r}, it has {', '.join(columns or ['none'])}{packed}")
    if hasattr(dataset, "column_names"):
        named: Sequence[Any] = dataset[column]
        return named
    return [dataset[k][column] for k in range(len(dataset))]


def held_out_rows(
    dataset: Any, column: str, targets: Sequence[str], sequences: int, seed: int
) -> list[tuple[Any, Ints]]:
    """For each target a data set and at most so many of its rows, chosen by the seed."""
    if dataset is None:
        raise ValueError("the policy looks at validation losses: give the trainer an eval_dataset")
    found = []
    by_name = isinstance(dataset, Mapping)
    groups = {} if by_name else rows_by_group(dataset, column, targets, "eval_dataset")
    for i, target in enumerate(targets):
        if by_name and target not in dataset:
            raise ValueError(f"eval_dataset has no {target!r}; it has {', '.join(map(str, dataset))}")
        mine = dataset[target] if by_name else dataset
        rows = np.arange(len(mine)) if by_name else groups[target]
        count = min(sequences, len(rows))
        keys = np.array([key(seed, i, 0)], dtype=np.uint64)
        order = permute(np.arange(count), np.zeros(count, dtype=np.int64), np.array([len(rows)]), keys)
        found.append((mine, rows[np.sort(order)]))
    return found


def examples(dataset: Any, rows: list[int]) -> list[Any]:
    """These rows, as a loader would fetch them."""
    if hasattr(dataset, "__getitems__"):
        fetched: list[Any] = dataset.__getitems__(rows)
        return fetched
    return [dataset[row] for row in rows]


class Rows:
    """Reads the examples that a sampler of indices has drawn."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], rows: Sequence[Ints]) -> None:
        self.dataset, self.collate, self.rows = dataset, collate, rows

    def fingerprint(self) -> str:
        """Of which examples there are, by their groups and by some of them: data sets have none to be relied on."""
        digest = hashlib.sha256()
        for rows in self.rows:
            digest.update(np.asarray(rows, dtype=np.int64).tobytes() + b"|")
            some = rows[np.linspace(0, len(rows) - 1, min(len(rows), SEEN)).astype(np.int64)]
            for example in examples(self.dataset, some.tolist()):
                words = repr(example)
                digest.update(b"" if " at 0x" in words else words.encode(errors="replace"))  # no address in memory
        return digest.hexdigest()

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> Any:
        """A batch as the trainer's own loader would give it."""
        drawn = zip(batch["group"].tolist(), batch["positions"].tolist(), strict=True)
        return self.collate(examples(self.dataset, [int(self.rows[group][at]) for group, at in drawn]))
