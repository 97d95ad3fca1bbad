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

    def read(self, positions: Ints, edges: list[int]) -> tuple[Ints, Mask | None]:
        """Tokens and mask of one batch: the rows of group j are those from edges[j] to edges[j + 1]."""
        ids = self._gather(positions, edges).astype(np.int64)
        return ids, None if self._masks is None else self._mask(positions, edges)

    def read_many(self, group: Ints, positions: Ints) -> tuple[Ints, Mask | None]:
        """Tokens and masks of sequences in any order of groups."""
        order = np.argsort(group, kind="stable")
        positions = positions[order]
        edges = np.searchsorted(group[order], np.arange(len(self.groups) + 1)).tolist()
        ids = np.empty((len(group), self.store.context), dtype=np.int64)
        ids[order] = self._gather(positions, edges)
        mask = self._mask(positions, edges)
        return ids, None if mask is None else mask[np.argsort(order, kind="stable")]

    def _gather(self, positions: Ints, edges: list[int]) -> Tokens:
        """Tokens as they are stored, in a buffer that the next call uses again."""
        if len(self._buffer) < len(positions):
            self._buffer = np.empty((len(positions), self.store.context), dtype=self.store.dtype)
        found = self._buffer[: len(positions)]
        for rows, a, b in zip(self._tokens, edges, edges[1:], strict=False):
            if a < b:
                rows.take(positions[a:b], 0, found[a:b], "clip")
        return found

    def _mask(self, positions: Ints, edges: list[int]) -> Mask | None:
        if self._masks is None:
            return None
        found = np.ones((len(positions), self.store.context), dtype=np.uint8)
        for rows, a, b in zip(self._masks, edges, edges[1:], strict=False):
            if a < b and rows is not None:
                rows.take(positions[a:b], 0, found[a:b], "clip")
        return found
