"""Counter-based shuffling: which sequence of a group comes i-th, as a function of (seed, group, epoch, i) alone.

A keyed permutation of 0 … n-1 that is computed, not stored: a group of a billion sequences costs nothing to shuffle,
and resuming is knowing i. It is a Feistel network on a grid of r × c >= n cells, with the few indices that land outside
walked back inside. Small groups, for which such a network is not random enough, are shuffled by sorting.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Word = NDArray[np.uint64]

_ROUNDS = [np.uint64(0x9E3779B97F4A7C15 * (r + 1) % 2**64) for r in range(6)]
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


SMALL = 1 << 14
"""Groups of up to so many sequences are shuffled outright: a few rounds on a small grid would not be random enough."""


@functools.lru_cache(maxsize=4096)
def shuffled(size: int, key: int) -> NDArray[np.uint16]:
    """A shuffle of 0 … size-1, for small sizes: sorted by a hash of (key, index)."""
    words = np.arange(size, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words += np.uint64(key)
        for _ in range(2):
            words += _ROUNDS[0]
            _mix(words, np.empty_like(words))
    return np.argsort(words, kind="stable").astype(np.uint16)


def permute(index: Index, which: Index, sizes: Index, keys: Word) -> Index:
    """The image of each index under a permutation of 0 … size-1; `which` says whose size and key are meant."""
    small = sizes <= SMALL
    if small.all():
        return _looked_up(index, which, sizes, keys)
    if not small.any():
        return _computed(index, which, sizes, keys)
    image, here = np.empty_like(index), small[which]
    image[here] = _looked_up(index[here], which[here], np.where(small, sizes, 0), keys)
    image[~here] = _computed(index[~here], which[~here], sizes, keys)
    return image


def _looked_up(index: Index, which: Index, sizes: Index, keys: Word) -> Index:
    table = np.concatenate([shuffled(n, k) for n, k in zip(sizes.tolist(), keys.tolist(), strict=True)])
    found: Index = table[(np.cumsum(sizes) - sizes)[which] + index].astype(np.int64)
    return found


def _computed(index: Index, which: Index, sizes: Index, keys: Word) -> Index:
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
