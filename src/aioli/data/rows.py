"""Reading sequences: rows of several memory-mapped arrays, as int64, in few passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.data.store import Tokens, TokenStore

Ints = NDArray[np.int64]
Mask = NDArray[np.uint8]


class Rows:
    """The sequences of some groups of a store."""

    def __init__(self, store: TokenStore, split: str, groups: Sequence[str]) -> None:
        self.store, self.split, self.groups = store, split, tuple(groups)
        self._open()

    def _open(self) -> None:
        numbers = [self.store.groups.index(group) for group in self.groups]
        self._tokens = [self.store.rows(j, self.split) for j in numbers]
        masks = [self.store.masks(j, self.split) for j in numbers]
        self._masks: list[Tokens | None] | None = masks if any(m is not None for m in masks) else None
        self._buffer: Tokens = np.zeros((0, self.store.context), dtype=self.store.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Memory maps are opened again on the other side, never copied."""
        return {"store": self.store, "split": self.split, "groups": self.groups}

    def __copy__(self) -> Rows:
        other = object.__new__(Rows)
        other.__dict__.update(self.__dict__)
        other._buffer = self._buffer[:0]  # each reader has its own
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def read(self, group: Ints, positions: Ints, in_order: bool) -> tuple[Ints, Mask | None]:
        """Tokens and mask of the given sequences; `in_order`: the groups are ascending."""
        order = None if in_order else np.argsort(group, kind="stable")
        if order is not None:
            group, positions = group[order], positions[order]
        edges = np.searchsorted(group, np.arange(len(self.groups) + 1)).tolist()
        if len(self._buffer) < len(group):
            self._buffer = np.empty((len(group), self.store.context), dtype=self.store.dtype)
        found = self._buffer[: len(group)]
        for j, rows in enumerate(self._tokens):
            a, b = edges[j], edges[j + 1]
            if a < b:
                rows.take(positions[a:b], axis=0, out=found[a:b], mode="clip")
        if order is None:
            ids = found.astype(np.int64)
        else:
            ids = np.empty(found.shape, dtype=np.int64)
            ids[order] = found
        return ids, self._mask(edges, positions, order)

    def _mask(self, edges: list[int], positions: Ints, order: Ints | None) -> Mask | None:
        if self._masks is None:
            return None
        found = np.ones((len(positions), self.store.context), dtype=np.uint8)
        for j, rows in enumerate(self._masks):
            a, b = edges[j], edges[j + 1]
            if a < b and rows is not None:
                rows.take(positions[a:b], axis=0, out=found[a:b], mode="clip")
        if order is None:
            return found
        mask = np.empty_like(found)
        mask[order] = found
        return mask
