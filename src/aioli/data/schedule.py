"""Schedule: how many samples of each group every batch takes, batch after batch, and what happens when a group ends.

It knows the mixture in force, what each group is owed, and how much of each may be drawn; `MixtureSampler` turns its
counts into sequences. Batches are planned from the moment a mixture came into force, so that planning in larger or
smaller pieces, on any number of ranks, or after resuming, gives the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aioli.data.counts import plan
from aioli.simplex import as_mixture

Ints = NDArray[np.int64]
Mixture = NDArray[np.float64]
Exhausted = Literal["repeat", "cap", "error"]


class Schedule:
    """Counts of samples under changing mixtures."""

    def __init__(
        self,
        groups: tuple[str, ...],
        sizes: Ints,
        batch: int,
        on_exhausted: Exhausted,
        max_epochs: float | Mapping[str, float] | None,
    ) -> None:
        if on_exhausted not in {"repeat", "cap", "error"}:
            raise ValueError(f"on_exhausted={on_exhausted!r} is not one of repeat, cap, error")
        self.groups, self.sizes, self.batch, self.on_exhausted = groups, sizes, batch, on_exhausted
        self.m = len(groups)
        self.limits = self._limits(max_epochs)
        self.told: set[int] = set()
        """Groups whose end has been announced."""
        self.quiet = False
        self.key = b""
        """The mixture that was asked for, as bytes."""
        self._p: Mixture | None = None
        """The mixture in force: what was asked for, less the groups that are used up."""
        self._after: tuple[Mixture, Mixture] | None = None
        self._cursor = 0
        self._anchor(np.zeros(self.m), np.zeros(self.m, dtype=np.int64))

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
        pairs = zip(self.groups, self.sizes.tolist(), strict=True)
        found = [int(each[g] * n + 1e-6) if each.get(g, math.inf) * n < 2**62 else -1 for g, n in pairs]
        return np.array(found, dtype=np.int64)

    # ------------------------------------------------------------------ the mixture in force

    @property
    def drawn(self) -> Ints:
        """Samples drawn from each group."""
        found: Ints = self._path[self._cursor].copy()
        return found

    def owed(self) -> Mixture:
        """Samples each group has coming to it: what its shares add up to, less what was drawn; within one sample."""
        if self._p is None:
            return self._owed
        return self._owed + self._p * (self.batch * self._batches) - (self.drawn - self._base)

    def change(self, mixture: Mixture) -> None:
        """A new mixture comes into force with the next batch."""
        p = as_mixture(mixture, self.m)
        empty = np.flatnonzero((p > 0) & (self.sizes == 0))
        if empty.size:
            raise ValueError(
                f"group {self.groups[empty[0]]!r} has no whole sequence to draw, but a share of {p[empty[0]]:g}"
            )
        allowed = self._allowed(p)
        self._anchor(self.owed(), self.drawn)
        self.key, self._p = mixture.tobytes(), allowed

    def _anchor(self, owed: Mixture, drawn: Ints) -> None:
        """From here on batches are counted from zero, and no mixture is in force yet."""
        self._owed, self._batches, self._base = owed, 0, drawn
        self.key, self._after = b"", None
        self._path, self._cursor, self._size = drawn[None], 0, 8

    # ------------------------------------------------------------------ batches

    def upcoming(self, most: int) -> Ints:
        """What will have been drawn from each group before each of the next batches, and after the last: at least one
        batch, at most so many; few at first, since the mixture may change again soon."""
        if self._cursor == len(self._path) - 1:
            assert self._p is not None
            drawn = self.drawn
            self._size = min(2 * self._size, most)
            counts = plan(self._owed, self._p, self.batch, self._batches, drawn - self._base, max(1, self._size))
            counts = self._within_limits(counts, drawn)
            self._path, self._cursor = np.concatenate([drawn[None], drawn + np.cumsum(counts, axis=0)]), 0
        return self._path[self._cursor : self._cursor + most + 1]

    def serve(self, batches: int = 1) -> None:
        """So many of the upcoming batches have been drawn."""
        if batches == 0:
            return
        self._cursor += batches
        self._batches += batches
        if self._after is not None:  # groups ran out in this batch: the others go on under a mixture of their own
            (owed, p), wish = self._after, self.key
            self._anchor(owed, self.drawn)
            self._p, self.key = p, wish

    def _within_limits(self, counts: Ints, drawn: Ints) -> Ints:
        """Cut the block before the first batch that would overdraw a group; that batch is a block of its own."""
        if self.on_exhausted == "repeat":
            return counts
        more = np.cumsum(counts, axis=0)
        over = (drawn + more > self.limits) & (self.limits >= 0) & (more > 0)
        if not over.any():
            return counts
        first = int(np.flatnonzero(over.any(1))[0])
        return counts[:first] if first > 0 else self._last_of(over[0])

    def _last_of(self, out: NDArray[np.bool_]) -> Ints:
        """The batch in which groups run out: what they have left, and the rest from the others."""
        wish = self._wish
        rest = np.where(out | self._used_up(), 0.0, wish)
        if self.on_exhausted == "error" or rest.sum() == 0:
            raise self._refusal(int(np.flatnonzero(out)[0]))
        rest /= rest.sum()
        owed = np.where(rest > 0, self.owed(), 0.0)
        counts = np.where(out, np.maximum(self.limits - self.drawn, 0), 0)
        missing = self.batch - int(counts.sum())
        if missing > 0:
            more = plan(owed, rest, missing, 0, np.zeros(self.m, dtype=np.int64), 1)[0]
            if (((self.drawn + more) > self.limits) & (self.limits >= 0)).any():
                more = self._fill(missing, counts)
            counts = counts + more
            owed = np.where(rest > 0, owed + rest * missing - more, 0.0)
        self._tell(out, wish)
        self._after = (owed, rest)
        return counts[None]

    def _fill(self, missing: int, counts: Ints) -> Ints:
        """The last few samples from whichever groups still have any, where several run out at once."""
        wish = self._wish
        more = np.zeros(self.m, dtype=np.int64)
        for j in np.argsort(-wish, kind="stable"):
            if wish[j] > 0:
                room = missing if self.limits[j] < 0 else int(self.limits[j] - self.drawn[j] - counts[j])
                more[j] = min(room, missing)
                missing -= int(more[j])
        if missing:
            raise self._refusal(int(np.argmax(wish)))
        return more

    @property
    def _wish(self) -> Mixture:
        return as_mixture(np.frombuffer(self.key), self.m)

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
        for j in sorted(set(np.flatnonzero(out).tolist()) - self.told):
            self.told.add(j)
            if self.quiet:
                continue
            warnings.warn(
                f"group {self.groups[j]!r} is used up after {self.limits[j] / max(self.sizes[j], 1):g} epochs; its "
                f"share of {p[j]:g} goes to the other groups (sampler.realised tells what was really drawn)",
                stacklevel=6,
            )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as plain JSON."""
        return {
            "batch": self.batch,
            "groups": list(self.groups),
            "sizes": self.sizes.tolist(),
            "drawn": self.drawn.tolist(),
            "owed": self._owed.tolist(),
            "base": self._base.tolist(),
            "batches": self._batches,
            "p": None if self._p is None else self._p.tolist(),
            "wish": self.key.hex(),
            "told": sorted(self.told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; anything that cannot be one is refused."""
        try:
            drawn, base = (_whole(state[name], self.m, name) for name in ("drawn", "base"))
            owed, key = _finite(state["owed"], self.m, "owed"), bytes.fromhex(state["wish"])
            batches, told = int(state["batches"]), {int(j) for j in state["told"]}
            p = None if state["p"] is None else as_mixture(_finite(state["p"], self.m, "p"), self.m)
            if len(key) not in (0, 8 * self.m) or (p is None) != (not key):
                raise ValueError("the mixture in force is incomplete")
            if key:
                as_mixture(np.frombuffer(key), self.m)
            if (
                (base > drawn).any()
                or int((drawn - base).sum()) != self.batch * batches
                or not told <= set(range(self.m))
            ):
                raise ValueError("its counts do not add up")
            if np.abs(owed).max() > 2 * self.m:
                raise ValueError(f"owed={owed.tolist()} is more than any mixture leaves")
        except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"this is not the state of a sampler of these groups: {what}") from None
        self._anchor(owed, drawn)
        self._base, self._batches, self._p, self.key, self.told = base, batches, p, key, told
        if p is not None and ((p > 0) & self._used_up()).any():  # max_epochs is lower than it was
            self.change(np.frombuffer(key).copy())


def _whole(values: Any, m: int, name: str) -> Ints:
    found = np.array(values)
    if found.shape != (m,) or not np.issubdtype(found.dtype, np.integer) or (found < 0).any():
        raise ValueError(f"{name}={values} must be {m} whole numbers, one per group, not negative")
    return found.astype(np.int64)


def _finite(values: Any, m: int, name: str) -> Mixture:
    found = np.array(values, dtype=np.float64)
    if found.shape != (m,) or not np.isfinite(found).all():
        raise ValueError(f"{name}={values} must be {m} finite numbers, one per group")
    return found
