"""Reading sequences of many groups at once: their files are mapped side by side, so that one gather serves them all.

Every file keeps its place in one stretch of addresses, at a distance that is a whole number of rows. Addresses between
them are reserved, not used: nothing is copied or loaded.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.data.store import Tokens, TokenStore

Ints = NDArray[np.int64]
Mask = NDArray[np.uint8]

_PROT_NONE, _MAP_FIXED = 0, 0x10
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SideBySide:
    """Files of rows as one array: the rows of file k are `first[k]`, `first[k] + 1`, …; None has no rows."""

    def __init__(self, files: Sequence[Path | None], dtype: Any, context: int) -> None:
        row = np.dtype(dtype).itemsize * context
        step = math.lcm(mmap.ALLOCATIONGRANULARITY, row)
        sizes = [0 if file is None else file.stat().st_size // row * row for file in files]
        begins = np.concatenate([[0], np.cumsum([-(-size // step) * step for size in sizes])])
        total = max(step, int(begins[-1]))
        base = _map(None, total, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _LIBC.munmap, base, total).atexit = False  # threads may still be reading then
        for file, begin, size in zip(files, begins.tolist(), sizes, strict=False):
            if file is not None and size:
                handle = os.open(file, os.O_RDONLY)
                try:
                    _map(base + begin, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, handle)
                finally:
                    os.close(handle)
        memory = (ctypes.c_ubyte * total).from_address(base)
        self.rows: NDArray[Any] = np.ctypeslib.as_array(memory).view(dtype).reshape(-1, context)
        self.rows.flags.writeable = False
        self.first: Ints = begins[:-1] // row


def _map(address: int | None, size: int, protection: int, flags: int, handle: int) -> int:
    found = _LIBC.mmap(address, size, protection, flags, handle, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
    return int(found)


class Rows:
    """The sequences of some groups of a store."""

    def __init__(self, store: TokenStore, split: str, groups: Sequence[str]) -> None:
        self.store, self.split, self.groups = store, split, tuple(groups)
        self._open()

    def _open(self) -> None:
        numbers = [self.store.groups.index(group) for group in self.groups]
        files = [self.store.file(self.split, j) for j in numbers]
        self._tokens = SideBySide(files, self.store.dtype, self.store.context)
        masked = [self.store.parts[self.split][j].mask is not None for j in numbers]
        self._masked = np.array(masked)
        self._masks: SideBySide | None = None
        if any(masked):
            kept = [
                self.store.file(self.split, j, "mask") if has else None for j, has in zip(numbers, masked, strict=True)
            ]
            self._masks = SideBySide(kept, np.uint8, self.store.context)
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

    def index(self, group: Ints, positions: Ints) -> Ints:
        """Where sequences are among all rows; they must be there."""
        return self._tokens.first[group] + positions

    def read(self, group: Ints, positions: Ints, index: Ints) -> tuple[Ints, Mask | None]:
        """Tokens and masks of sequences, whose `index` was computed before."""
        if len(self._buffer) < len(index):
            self._buffer = np.empty((len(index), self.store.context), dtype=self.store.dtype)
        found = self._buffer[: len(index)]
        self._tokens.rows.take(index, 0, found, "clip")
        ids = found.astype(np.int64)
        if self._masks is None:
            return ids, None
        mask: Mask = np.ones(found.shape, dtype=np.uint8)
        has = np.flatnonzero(self._masked[group])
        mask[has] = self._masks.rows[self._masks.first[group[has]] + positions[has]]
        return ids, mask
