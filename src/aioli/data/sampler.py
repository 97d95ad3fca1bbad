"""MixtureSampler: batches that follow a mixture exactly, change with it at once, and resume to the bit.

    sampler = MixtureSampler(store, batch=16, seed=0)
    batch = sampler.next(p)          # Batch(ids, group, positions), drawn from the mixture p

Which sequences come next is a function of (seed, what was drawn so far, p): nothing else is saved, and ranks, workers
and look-ahead do not change it. Batches are planned and read in blocks while p stays the same; what was read ahead is
dropped when p changes, so that no stale batch is ever served.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aioli.data.counts import plan
from aioli.data.order import key, permute
from aioli.data.store import Tokens, TokenStore
from aioli.simplex import as_mixture

Ints = NDArray[np.int64]
Mixture = NDArray[np.float64]
Exhausted = Literal["repeat", "cap", "error"]

_AHEAD_TOKENS = 4096
"""Batches of up to so many tokens are read ahead in blocks; longer ones gain nothing by it."""


class Batch(NamedTuple):
    """One batch, or this rank's slice of it."""

    ids: Ints
    """Token ids, (samples, context)."""
    group: Ints
    """The group of each sample, (samples,)."""
    positions: Ints
    """Which sequence of its group each sample is, (samples,)."""
    mask: NDArray[np.uint8] | None = None
    """Which tokens carry loss, (samples, context); None: all."""


@dataclass(frozen=True)
class _Block:
    """Batches planned ahead under one mixture."""

    counts: Ints
    group: Ints
    positions: Ints
    ids: Ints | None = None
    """Tokens that were read ahead; None: each batch is read when it is served, which is faster for long sequences."""
    mask: NDArray[np.uint8] | None = None


class Indices(NamedTuple):
    """What a store is to the sampler, if only positions are wanted: how many sequences each group has."""

    sizes: tuple[int, ...]


class MixtureSampler:
    """Draws batches from the groups of a store."""

    def __init__(
        self,
        store: TokenStore | Indices,
        batch: int,
        seed: int = 0,
        split: str = "train",
        on_exhausted: Exhausted = "repeat",
        max_epochs: float | Mapping[str, float] | None = None,
        rank: int = 0,
        world: int = 1,
        ahead: int = 256,
    ) -> None:
        """`max_epochs` is how often a group may be gone through, for all or by name (default 1 with cap and error)."""
        if batch < 1 or ahead < 1:
            raise ValueError(f"batch={batch} and ahead={ahead} must be at least 1")
        if not 0 <= rank < world or batch % world:
            raise ValueError(f"rank={rank} of world={world} cannot take an equal share of a batch of {batch}")
        if on_exhausted not in {"repeat", "cap", "error"}:
            raise ValueError(f"on_exhausted={on_exhausted!r} is not one of repeat, cap, error")
        self.store, self.batch, self.seed, self.split = store, batch, seed, split
        self.on_exhausted, self.rank, self.world, self.ahead = on_exhausted, rank, world, ahead
        self._rows: list[Tokens] = []
        self._masks: list[Tokens | None] | None = None
        if isinstance(store, TokenStore):
            self.groups, self.sizes, self.context = store.groups, store.sequences(split), store.context
            self._rows = [store.rows(j, split) for j in range(self.m)]
            self._masks = [store.masks(j, split) for j in range(self.m)] if store.masked else None
        else:
            self.groups, self.context = tuple(map(str, range(len(store.sizes)))), 0
            self.sizes = np.array(store.sizes, dtype=np.int64)
        self.limits = self._limits(max_epochs)
        self.drawn = np.zeros(self.m, dtype=np.int64)
        self._p: Mixture | None = None
        """The mixture in force: what was asked for, less the groups that are used up."""
        self._wish: Mixture | None = None
        """The mixture that was asked for, and its bytes."""
        self._bytes = b""
        self._after: tuple[Mixture, Mixture] | None = None
        self._cursor = 0
        self._anchor(np.zeros(self.m))
        self._told: set[int] = set()

    @property
    def m(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    def _limits(self, max_epochs: float | Mapping[str, float] | None) -> Ints:
        """How many sequences of each group may be drawn; -1: as many as asked for."""
        if self.on_exhausted == "repeat" and max_epochs is None:
            return np.full(self.m, -1, dtype=np.int64)
        each = (
            max_epochs
            if isinstance(max_epochs, Mapping)
            else dict.fromkeys(self.groups, 1.0 if max_epochs is None else max_epochs)
        )
        unknown = sorted(set(each) - set(self.groups))
        if unknown:
            raise ValueError(f"max_epochs names {unknown[0]!r}, but the groups are {', '.join(self.groups)}")
        if self.on_exhausted == "repeat":
            raise ValueError("max_epochs needs on_exhausted='cap' or 'error'; 'repeat' goes on for ever")
        bad = {g: e for g, e in each.items() if not e > 0}
        if bad:
            raise ValueError(f"max_epochs={bad} must be positive")
        pairs = zip(self.groups, self.sizes, strict=True)
        return np.array([int(each[g] * n) if g in each else -1 for g, n in pairs], dtype=np.int64)

    # ------------------------------------------------------------------ what has been drawn

    @property
    def epochs(self) -> NDArray[np.float64]:
        """How often each group has been gone through; above 1 it has been repeated."""
        return self.drawn / np.maximum(self.sizes, 1)

    @property
    def repeated(self) -> Ints:
        """Sequences of each group that were drawn again."""
        return np.asarray(np.maximum(self.drawn - self.sizes, 0), dtype=np.int64)

    @property
    def tokens(self) -> Ints:
        """Tokens drawn from each group."""
        total: Ints = self.drawn * self.context
        return total

    @property
    def realised(self) -> NDArray[np.float64]:
        """The mixture that was really drawn so far."""
        return self.drawn / max(int(self.drawn.sum()), 1)

    # ------------------------------------------------------------------ drawing

    def next(self, p: ArrayLike) -> Batch:
        """The next batch, drawn from the mixture p (this rank's slice of it)."""
        mixture = np.asarray(p, dtype=np.float64)
        if self._wish is None or mixture.tobytes() != self._bytes:  # by value: a caller may change p in place
            self._change(as_mixture(mixture, self.m), mixture.tobytes())
        if self._cursor == len(self._block.counts):
            self._refill()
        t, size = self._cursor, self.batch // self.world
        block, rows = self._block, slice(t * size, (t + 1) * size)
        self._cursor = t + 1
        self._batches += 1
        self.drawn = self.drawn + block.counts[t]
        if self._after is not None:  # groups ran out in this batch: the others go on under a mixture of their own
            wish, key = self._wish, self._bytes
            owed, self._p = self._after
            self._anchor(owed)
            self._wish, self._bytes = wish, key
        group, positions = block.group[rows], block.positions[rows]
        if block.ids is None:
            return Batch(*self._tokens_of(group, positions))
        return Batch(block.ids[rows], group, positions, None if block.mask is None else block.mask[rows])

    def _anchor(self, owed: NDArray[np.float64]) -> None:
        """From here on, under the mixture in force, batches are counted from zero."""
        self._owed, self._batches, self._base = owed, 0, self.drawn.copy()
        self._wish, self._bytes, self._after = None, b"", None
        self._drop()

    def _drop(self) -> None:
        """Forget what was read ahead."""
        none = np.zeros(0, dtype=np.int64)
        self._block = _Block(np.zeros((0, self.m), dtype=np.int64), none, none)
        self._cursor = 0

    def owed(self) -> NDArray[np.float64]:
        """Samples each group has coming to it: what its shares add up to, less what was drawn; within one sample."""
        if self._p is None:
            return self._owed
        return self._owed + self._p * (self.batch * self._batches) - (self.drawn - self._base)

    def _change(self, p: NDArray[np.float64], key: bytes) -> None:
        """A new mixture comes into force with the next batch."""
        empty = np.flatnonzero((p > 0) & (self.sizes == 0))
        if empty.size:
            raise ValueError(
                f"group {self.groups[empty[0]]!r} has no whole sequence to draw, but a share of {p[empty[0]]:g}"
            )
        allowed = self._allowed(p)
        self._anchor(self.owed())
        self._wish, self._bytes, self._p = p, key, allowed

    def _allowed(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """p without the groups that are used up, what they had going to the others."""
        out = self._used_up() & (p > 0)
        if not out.any():
            return p
        rest = np.where(out, 0.0, p)
        if self.on_exhausted == "error" or rest.sum() == 0:
            raise self._refusal(int(np.flatnonzero(out)[0]))
        self._tell(out, p)
        return np.asarray(rest / rest.sum())

    def _used_up(self) -> NDArray[np.bool_]:
        return np.asarray((self.limits >= 0) & (self.drawn >= self.limits))

    def _refusal(self, j: int) -> ValueError:
        return ValueError(
            f"group {self.groups[j]!r} is used up: {self.drawn[j]} of the {self.limits[j]} sequences it may give are "
            f"drawn (it has {self.sizes[j]}), and the next batch needs more; raise max_epochs or lower its share"
        )

    def _tell(self, out: NDArray[np.bool_], p: NDArray[np.float64]) -> None:
        """Say once for each group that its share goes elsewhere from here on."""
        for j in sorted(set(np.flatnonzero(out).tolist()) - self._told):
            self._told.add(j)
            warnings.warn(
                f"group {self.groups[j]!r} is used up after {self.limits[j] / max(self.sizes[j], 1):g} epochs; its "
                f"share of {p[j]:g} goes to the other groups (sampler.realised tells what was really drawn)",
                stacklevel=5,
            )

    def _refill(self) -> None:
        """Plan and read the next block of batches under the mixture in force."""
        assert self._p is not None
        counts = plan(self._owed, self._p, self.batch, self._batches, self.drawn - self._base, self.ahead)
        counts = self._within_limits(counts)
        cells = counts.ravel()
        group = np.repeat(np.tile(np.arange(self.m), len(counts)), cells)
        before = self.drawn + np.cumsum(counts, axis=0) - counts  # drawn before each batch
        start = np.cumsum(cells) - cells
        draw = np.repeat(before.ravel() - start, cells) + np.arange(int(cells.sum()))
        if self.world > 1:  # all ranks plan the same batch; each takes every world-th row of it
            group, draw = group[self.rank :: self.world], draw[self.rank :: self.world]
        self._block = self._read(counts, group, self._positions(group, draw))
        self._cursor = 0

    def _within_limits(self, counts: Ints) -> Ints:
        """Cut the block before the first batch that would overdraw a group; that batch is a block of its own."""
        over = (self.drawn + np.cumsum(counts, axis=0) > self.limits) & (self.limits >= 0)
        if not over.any():
            return counts
        first = int(np.flatnonzero(over.any(1))[0])
        return counts[:first] if first > 0 else self._last_of(over[0])

    def _last_of(self, out: NDArray[np.bool_]) -> Ints:
        """The batch in which groups run out: what they have left, and the rest from the others."""
        assert self._wish is not None
        rest = np.where(out | self._used_up(), 0.0, self._wish)
        if self.on_exhausted == "error" or rest.sum() == 0:
            raise self._refusal(int(np.flatnonzero(out)[0]))
        rest /= rest.sum()
        owed = np.where(rest > 0, self.owed(), 0.0)
        counts = np.where(out, self.limits - self.drawn, 0)
        missing = self.batch - int(counts.sum())
        if missing > 0:
            more = plan(owed, rest, missing, 0, np.zeros(self.m, dtype=np.int64), 1)[0]
            if (((self.drawn + more) > self.limits) & (self.limits >= 0)).any():
                more = self._fill(missing, counts)
            counts = counts + more
            owed = np.where(rest > 0, owed + rest * missing - more, 0.0)
        self._tell(out, self._wish)
        self._after = (owed, rest)
        return counts[None]

    def _fill(self, missing: int, counts: Ints) -> Ints:
        """The last few samples from whichever groups still have any, where several run out at once."""
        assert self._wish is not None
        more = np.zeros(self.m, dtype=np.int64)
        for j in np.argsort(-self._wish, kind="stable"):
            if self._wish[j] > 0:
                room = missing if self.limits[j] < 0 else int(self.limits[j] - self.drawn[j] - counts[j])
                more[j] = min(room, missing)
                missing -= int(more[j])
        if missing:
            raise self._refusal(int(np.argmax(self._wish)))
        return more

    def _positions(self, group: Ints, draw: Ints) -> Ints:
        """The sequence behind each draw: its group's keyed permutation of this epoch."""
        size = self.sizes[group]
        epoch, index = np.divmod(draw, size)
        pairs, place = np.unique(epoch * self.m + group, return_inverse=True)
        keys = np.array([key(self.seed, int(v % self.m), int(v // self.m)) for v in pairs], dtype=np.uint64)
        return permute(index, size, keys[place])

    def _read(self, counts: Ints, group: Ints, positions: Ints) -> _Block:
        if not self._rows or self.batch * self.context > _AHEAD_TOKENS:
            return _Block(counts, group, positions)
        ids, mask = self._empty(len(group))
        for j, rows in enumerate(self._rows):
            here = np.flatnonzero(group == j)
            if here.size:
                ids[here] = rows[positions[here]]
                if mask is not None and self._masks is not None and (own := self._masks[j]) is not None:
                    mask[here] = own[positions[here]]
        return _Block(counts, group, positions, ids, mask)

    def _tokens_of(self, group: Ints, positions: Ints) -> tuple[Ints, Ints, Ints, NDArray[np.uint8] | None]:
        """One batch, whose samples are in the order of their groups, read now."""
        ids, mask = self._empty(len(group))
        edges = np.searchsorted(group, np.arange(self.m + 1)).tolist()
        for j, rows in enumerate(self._rows):
            a, b = edges[j], edges[j + 1]
            if a < b:
                ids[a:b] = rows[positions[a:b]]
                if mask is not None and self._masks is not None and (own := self._masks[j]) is not None:
                    mask[a:b] = own[positions[a:b]]
        return ids, group, positions, mask

    def _empty(self, samples: int) -> tuple[Ints, NDArray[np.uint8] | None]:
        shape = (samples, self.context)
        return np.empty(shape, dtype=np.int64), None if self._masks is None else np.ones(shape, dtype=np.uint8)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as plain JSON."""
        return {
            "seed": self.seed,
            "batch": self.batch,
            "sizes": self.sizes.tolist(),
            "drawn": self.drawn.tolist(),
            "owed": self._owed.tolist(),
            "base": self._base.tolist(),
            "batches": self._batches,
            "wish": None if self._wish is None else self._wish.tolist(),
            "p": None if self._p is None else self._p.tolist(),
            "key": self._bytes.hex(),
            "told": sorted(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of the same data, seed and batch size; ranks and look-ahead may differ."""
        for name, mine in (("seed", self.seed), ("batch", self.batch), ("sizes", self.sizes.tolist())):
            if state[name] != mine:
                raise ValueError(f"this state was saved with {name}={state[name]}, not {mine}; resume with what it had")
        self.drawn = np.array(state["drawn"], dtype=np.int64)
        self._anchor(np.array(state["owed"], dtype=np.float64))
        self._base = np.array(state["base"], dtype=np.int64)
        self._batches = int(state["batches"])
        self._wish = None if state["wish"] is None else np.array(state["wish"], dtype=np.float64)
        self._bytes = bytes.fromhex(state["key"])
        self._p = None if state["p"] is None else np.array(state["p"], dtype=np.float64)
        self._told = set(state["told"])
