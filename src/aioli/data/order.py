"""Counter-based shuffling: which sequence of a group comes i-th, as a function of (seed, group, epoch, i) alone.

A keyed permutation of 0 … n-1 that is computed, not stored: a group of a billion sequences costs nothing to shuffle,
and resuming is knowing i. It is a Feistel network on a grid of r × c >= n cells, with the few indices that land outside
walked back inside.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Word = NDArray[np.uint64]

_ROUNDS = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF = np.uint64(32)


def key(seed: int, group: int, epoch: int) -> int:
    """64 bits that differ for every (seed, group, epoch)."""
    digest = hashlib.blake2b(f"{seed}/{group}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(x: Word) -> Word:
    """The finaliser of splitmix64: every input bit changes every output bit."""
    x = (x ^ (x >> _SHIFTS[0])) * _MIX_1
    x = (x ^ (x >> _SHIFTS[1])) * _MIX_2
    return x ^ (x >> _SHIFTS[2])


def _feistel(x: Word, rows: Word, columns: Word, keys: Word) -> Word:
    high = x // columns
    low = x - high * columns
    for round in range(_ROUNDS):
        keys = keys + _GOLDEN
        if round % 2 == 0:
            high = _shifted(high, low ^ keys, rows)
        else:
            low = _shifted(low, high ^ keys, columns)
    return high * columns + low


def _shifted(x: Word, by: Word, size: Word) -> Word:
    """x moved round a circle of `size` by a pseudo-random amount; without the slow remainder of a division."""
    x = x + (((_mix(by) >> _HALF) * size) >> _HALF)
    return np.where(x >= size, x - size, x)


def permute(index: Index, which: Index, sizes: Index, keys: Word) -> Index:
    """The image of each index under a permutation of 0 … size-1; `which` says whose size and key are meant."""
    n = sizes.astype(np.uint64)
    rows = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    columns = (n + rows - np.uint64(1)) // rows
    with np.errstate(over="ignore"):
        image = _feistel(index.astype(np.uint64), rows[which], columns[which], keys[which])
        outside = np.flatnonzero(image >= n[which])
        while outside.size:
            these = which[outside]
            image[outside] = _feistel(image[outside], rows[these], columns[these], keys[these])
            outside = outside[image[outside] >= n[these]]
    return image.astype(np.int64)
