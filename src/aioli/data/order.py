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

_ROUNDS = [np.uint64(0x9E3779B97F4A7C15 * (r + 1) % 2**64) for r in range(4)]
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_HALF = np.uint64(32)


def key(seed: int, group: int, epoch: int) -> int:
    """64 bits that differ for every (seed, group, epoch)."""
    digest = hashlib.blake2b(f"{seed}/{group}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(x: Word, scratch: Word) -> None:
    """The finaliser of splitmix64, in place: every input bit changes every output bit."""
    for shift, factor in ((_SHIFTS[0], _MIX_1), (_SHIFTS[1], _MIX_2)):
        np.right_shift(x, shift, out=scratch)
        x ^= scratch
        x *= factor
    np.right_shift(x, _SHIFTS[2], out=scratch)
    x ^= scratch


def _feistel(x: Word, rows: Word, columns: Word, keys: Word) -> Word:
    """Rounds that move the row by a pseudo-random amount that depends on the column, and the other way round.

    Works in place on few arrays: this is the greater part of what a batch costs.
    """
    high = x // columns
    low = x - high * columns
    amount, scratch = np.empty_like(x), np.empty_like(x)
    for round, constant in enumerate(_ROUNDS):
        here, there, size = (high, low, rows) if round % 2 == 0 else (low, high, columns)
        np.add(keys, constant, out=amount)
        amount ^= there
        _mix(amount, scratch)
        amount >>= _HALF  # 32 random bits to a whole number below `size`, without the slow remainder of a division
        amount *= size
        amount >>= _HALF
        here += amount
        np.subtract(here, size, out=scratch)  # wraps round to something huge where nothing is to be subtracted
        np.minimum(here, scratch, out=here)
    high *= columns
    high += low
    return high


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
