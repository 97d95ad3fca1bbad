"""MixtureSampler: batches that follow a mixture exactly, change with it at once, and resume to the bit.

    sampler = MixtureSampler(store, batch=16, seed=0)
    batch = sampler.next(p)          # Batch(ids, group, positions), drawn from the mixture p

Which sequences come next is a function of (seed, what was drawn so far, p): nothing else is saved, and ranks, workers
and look-ahead do not change it. Batches are planned and read in blocks while p stays the same; what was read ahead is
dropped when p changes, so that no stale batch is ever served.
"""

from __future__ import annotations

import copy
import functools
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aioli.data.order import key, permute
from aioli.data.rows import Rows
from aioli.data.schedule import Exhausted, Mixture, Schedule
from aioli.data.store import TokenStore
from aioli.simplex import whole

Ints = NDArray[np.int64]

_PLAN_SAMPLES = 1 << 18
"""At most so many samples are planned at a time."""
_READ_TOKENS = 1 << 17
"""Small batches are read so many tokens at a time, to spread the cost of a call: at least eight, or each alone."""


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


class Planned(NamedTuple):
    """Some batches that are planned and not read."""

    group: Ints
    """(batches, samples); ascending in each batch."""
    positions: Ints
    """(batches, samples)."""
    rows: Ints
    """The same, as rows of the files that are mapped side by side."""


_NONE: Ints = np.zeros((0, 0), dtype=np.int64)
_NOTHING = Planned(_NONE, _NONE, _NONE)


class Indices(NamedTuple):
    """What a store is to the sampler, if only positions are wanted: how many sequences each group has."""

    sizes: tuple[int, ...]
    groups: tuple[str, ...] | None = None
    """Their names; None: their numbers."""


class MixtureSampler:
    """Draws batches from the groups of a store."""

    def __init__(
        self,
        store: TokenStore | Indices,
        batch: int,
        seed: int = 0,
        split: str = "train",
        groups: Sequence[str] | None = None,
        on_exhausted: Exhausted = "repeat",
        max_epochs: float | Mapping[str, float] | None = None,
        rank: int = 0,
        world: int = 1,
        ahead: int = 1024,
    ) -> None:
        """`groups` are those to mix, in this order (left out: all that have a sequence in this split); `max_epochs` is
        how often a group may be gone through, for all or by name (default 1 with cap and error); up to `ahead` batches
        are planned at a time."""
        batch, seed, ahead = whole(batch, "batch"), whole(seed, "seed"), whole(ahead, "ahead")
        if batch < 1 or ahead < 1:
            raise ValueError(f"batch={batch} and ahead={ahead} must be at least 1")
        if not 0 <= rank < world or batch % world:
            raise ValueError(f"rank={rank} of world={world} cannot take an equal share of a batch of {batch}")
        self.store, self.batch, self.seed, self.split = store, batch, seed, split
        self.rank, self.world, self.ahead = rank, world, max(1, min(ahead, _PLAN_SAMPLES // batch))
        self._rows: Rows | None = None
        if isinstance(store, TokenStore):
            self.groups, self.sizes = _chosen(store, split, groups)
            self.context, self._rows = store.context, Rows(store, split, self.groups)
            self._data = store.fingerprint
        else:
            self.groups, self.context, self._data = store.groups or tuple(map(str, range(len(store.sizes)))), 0, ""
            if len(self.groups) != len(store.sizes):
                raise ValueError(f"groups={list(self.groups)} must be {len(store.sizes)} names, one for each size")
            self.sizes = np.array(store.sizes, dtype=np.int64)
            if self.sizes.size == 0 or (self.sizes < 0).any():
                raise ValueError(f"sizes={store.sizes} must be whole numbers, not negative, at least one")
        self._schedule = Schedule(self.groups, self.sizes, batch, on_exhausted, max_epochs)
        self._key = b""
        """The mixture that is drawn from, as bytes."""
        self._taken = 0
        """Batches that were taken since the schedule was last told."""
        self._forget()

    @property
    def m(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    # ------------------------------------------------------------------ what has been drawn

    @property
    def drawn(self) -> Ints:
        """Sequences drawn from each group."""
        self._sync()
        return self._schedule.drawn

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

    def owed(self) -> Mixture:
        """Samples each group has coming to it: what its shares add up to, less what was drawn; within one sample."""
        self._sync()
        return self._schedule.owed()

    # ------------------------------------------------------------------ drawing

    def next(self, p: ArrayLike) -> Batch:
        """The next batch, drawn from the mixture p (this rank's slice of it)."""
        try:
            mixture = np.asarray(p, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"p={p!r} must be numbers, one share for each of {', '.join(self.groups)}") from None
        if mixture.tobytes() != self._key:  # by value: a caller may change p in place
            self._use(mixture)
        if not self._ready:
            self._refill()
        self._taken += 1
        found = self._ready.pop()
        return found if isinstance(found, Batch) else self._read(*found)

    def skip(self, p: ArrayLike, batches: int) -> None:
        """Go on as if so many batches had been drawn from p, without reading any."""
        if batches > 0:
            self._use(np.asarray(p, dtype=np.float64))
        while batches > 0:
            some = min(batches, len(self._schedule.upcoming(256)) - 1)
            self._schedule.serve(some)
            batches -= some

    def segment(self, p: ArrayLike, batches: int, prefetch: int = 0) -> Iterator[Batch]:
        """So many batches drawn from p; with `prefetch`, a thread reads that many ahead, never beyond the segment.

        The state of the sampler counts the batches that were taken, not those that were read ahead.
        """
        mixture = np.array(p, dtype=np.float64)
        if prefetch < 1:
            for _ in range(batches):
                yield self.next(mixture)
            return
        ready: queue.Queue[Batch | Exception] = queue.Queue(prefetch)
        stop = threading.Event()
        threading.Thread(
            target=_produce, args=(self.copy(quiet=True), mixture, batches, ready, stop), daemon=True
        ).start()
        try:
            for _ in range(batches):
                found = ready.get()
                if isinstance(found, Exception):
                    raise found
                self.skip(mixture, 1)
                yield found
        finally:
            stop.set()

    def copy(self, quiet: bool = False) -> MixtureSampler:
        """Another sampler at the same place; a quiet one does not tell of groups that end."""
        other = copy.copy(self)
        other._schedule, other._rows = copy.copy(self._schedule), copy.copy(self._rows)
        other._schedule.quiet = quiet
        other.load_state_dict(self.state_dict())
        return other

    def trial(self) -> MixtureSampler:
        """Another sampler at the same place, for batches that do not count: groups start again instead of ending."""
        other = self.copy(quiet=True)
        other._schedule.on_exhausted, other._schedule.limits = "repeat", np.full(self.m, -1, dtype=np.int64)
        return other

    def _sync(self) -> None:
        """Tell the schedule of the batches that were taken since it was last told."""
        taken, self._taken = self._taken, 0
        self._schedule.serve(taken)

    def _forget(self) -> None:
        """Drop what was planned and read ahead."""
        self._planned, self._at = _NOTHING, 0
        self._ready: list[Any] = []
        """The next batches, the last one first: read, or as arguments of `_read`."""

    def _use(self, mixture: Mixture) -> None:
        """Draw from this mixture from now on."""
        self._sync()
        self._forget()
        if mixture.tobytes() != self._schedule.key:
            self._schedule.change(mixture)
        self._key = self._schedule.key

    def _refill(self) -> None:
        """Plan the next batches if need be; read several of them if they are small."""
        if self._at == len(self._planned.group):
            self._sync()
            self._planned, self._at = self._sequences(self._schedule.upcoming(self.ahead)), 0
        if not 0 < 8 * self.batch * self.context <= _READ_TOKENS:
            self._ready = list(zip(*self._planned, strict=True))
            self._at = len(self._ready)
        else:
            at, self._at = self._at, self._at + _READ_TOKENS // (self.batch * self.context)
            some = Planned(*(array[at : self._at] for array in self._planned))
            self._at = at + len(some.group)
            self._ready = self._read_many(some)
        self._ready.reverse()

    def _read(self, group: Ints, positions: Ints, rows: Ints) -> Batch:
        """One planned batch."""
        if self._rows is None:
            return Batch(np.zeros((len(group), 0), dtype=np.int64), group, positions)
        ids, mask = self._rows.read(group, positions, rows)
        return Batch(ids, group, positions, mask)

    def _read_many(self, some: Planned) -> list[Any]:
        """Several planned batches."""
        assert self._rows is not None
        ids, found = self._rows.read(*(array.ravel() for array in some))
        ids = ids.reshape(*some.group.shape, self.context)
        masks: Iterable[Any] = repeat(None) if found is None else found.reshape(ids.shape)
        make = functools.partial(tuple.__new__, Batch)
        return list(map(make, zip(ids, some.group, some.positions, masks, strict=False)))

    def read(self, planned: Planned, t: int) -> Batch:
        """The t-th of some planned batches."""
        return self._read(planned.group[t], planned.positions[t], planned.rows[t])

    def plan(self, p: ArrayLike, batches: int) -> Iterator[Planned]:
        """So many batches, some at a time, without reading them (`read` does); the sampler moves on."""
        self._use(np.asarray(p, dtype=np.float64))
        while batches > 0:
            path = self._schedule.upcoming(min(self.ahead, batches))
            found = self._sequences(path)
            self._schedule.serve(len(path) - 1)
            batches -= len(path) - 1
            yield found

    def _sequences(self, path: Ints) -> Planned:
        """The batches along a path of draws: each group in the keyed order of its epoch."""
        counts = np.diff(path, axis=0)
        cells = counts.ravel()
        group = np.repeat(np.tile(np.arange(self.m), len(counts)), cells)
        draw = np.repeat(path[:-1].ravel() - (np.cumsum(cells) - cells), cells) + np.arange(group.size)
        if self.world > 1:  # all ranks plan the same batch; each takes every world-th row of it
            group, draw = group[self.rank :: self.world], draw[self.rank :: self.world]
        sizes = np.maximum(self.sizes, 1)
        first, last = path[0] // sizes, np.maximum(path[-1] - 1, path[0]) // sizes
        each = last - first + 1  # epochs of each group that are touched
        owner = np.repeat(np.arange(self.m), each)
        epochs = np.arange(owner.size) - np.repeat(np.cumsum(each) - each - first, each)
        keys = [key(self.seed, j, epoch) for j, epoch in zip(owner.tolist(), epochs.tolist(), strict=True)]
        epoch = draw // sizes[group]
        which = (np.cumsum(each) - each - first)[group] + epoch
        index = draw - epoch * sizes[group]
        positions = permute(index, which, sizes[owner], np.array(keys, dtype=np.uint64))
        shape = (len(counts), self.batch // self.world)
        rows = positions if self._rows is None else self._rows.index(group, positions)
        return Planned(group.reshape(shape), positions.reshape(shape), rows.reshape(shape))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as plain JSON."""
        self._sync()
        return {**self._identity(), **self._schedule.state_dict()}

    def _identity(self) -> dict[str, Any]:
        """What a state belongs to."""
        return {
            "seed": self.seed,
            "batch": self.batch,
            "groups": list(self.groups),
            "sizes": self.sizes.tolist(),
            "split": self.split,
            "data": self._data,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of the same data, seed and batch size; ranks and look-ahead may differ."""
        if not isinstance(state, Mapping):
            raise ValueError(f"this is not the state of a sampler but {type(state).__name__}")
        for name, value in self._identity().items():
            if state.get(name) != value:
                saved = str(state.get(name, "nothing"))[:80]
                raise ValueError(f"this state was saved with {name}={saved}, not {value}; resume with what it had")
        self._schedule.load_state_dict(state)
        self._key, self._taken = self._schedule.key, 0
        self._forget()


def _chosen(store: TokenStore, split: str, groups: Sequence[str] | None) -> tuple[tuple[str, ...], Ints]:
    """The groups to mix and how many sequences each has."""
    sizes = dict(zip(store.groups, store.sequences(split).tolist(), strict=True))
    chosen = tuple(group for group in store.groups if sizes[group] > 0) if groups is None else tuple(groups)
    for group in chosen:
        if group not in sizes:
            raise ValueError(f"{store.path} has no group {group!r}; it has {', '.join(store.groups)}")
        if sizes[group] == 0:
            raise ValueError(f"group {group!r} of {store.path} has no whole sequence in its {split} split")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"groups={list(chosen)} of {store.path} must be at least one, each named once")
    return chosen, np.array([sizes[group] for group in chosen], dtype=np.int64)


def _produce(
    sampler: MixtureSampler, p: Mixture, batches: int, ready: queue.Queue[Batch | Exception], stop: threading.Event
) -> None:
    """Read the batches of a segment ahead of time, in a thread."""
    found: Batch | Exception
    for _ in range(batches):
        try:
            found = sampler.next(p)
        except Exception as error:
            found = error
        while not stop.is_set():
            try:
                ready.put(found, timeout=0.1)
                break
            except queue.Full:
                continue
        if stop.is_set() or isinstance(found, Exception):
            return
