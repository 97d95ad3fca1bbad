"""Mixtures over the steps of a run: segments as they were trained on, and as few phases as another system can follow.

A phase's mixture is the mean of what was trained on between its steps, sweeps included, so that whatever the number of
phases the model sees as much of each group as it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from aioli.simplex import SUM_TOLERANCE, Array

DIGITS = 6
"""Decimals of a share."""
CELLS, SEGMENTS = 400, 1 << 16
"""How many pieces phases are chosen from, and how many segments of a long run are kept apart, at most."""


@dataclass(frozen=True)
class Phase:
    """A mixture and the steps it is for: from `begin` on, `end` not included."""

    begin: int
    end: int
    proportions: tuple[float, ...]
    tag: str = ""


@dataclass(frozen=True)
class Schedule:
    """The mixture of a whole run, and how it moved."""

    groups: tuple[str, ...]
    proportions: tuple[float, ...]
    """The mixture, or the mean over the run of one that moved."""
    phases: tuple[Phase, ...] = ()
    """How it moved, one phase after the other from step 0 on; empty: it did not."""
    notes: tuple[str, ...] = ()
    """What is worth knowing of where it comes from."""

    @property
    def mean(self) -> dict[str, float]:
        """The mixture by group."""
        return dict(zip(self.groups, self.proportions, strict=True))

    @property
    def steps(self) -> int | None:
        """Length of the run; None: of any length."""
        return self.phases[-1].end if self.phases else None

    def shares(self, phase: Phase) -> dict[str, float]:
        """The mixture of a phase by group."""
        return dict(zip(self.groups, phase.proportions, strict=True))

    def merged(self, count: int) -> Schedule:
        """In at most `count` phases, cut where that keeps closest to the path (least squares over all steps)."""
        if count < 1:
            raise ValueError(f"--phases {count}: there must be at least 1")
        return replace(self, phases=_merged(_even(_rounds(self.phases), CELLS), count))

    def stretched(self, steps: int) -> Schedule:
        """The same path over a run of another length."""
        if self.steps is None:
            raise ValueError(f"--steps {steps} is for a mixture that moves; this one is the same for all steps")
        places = [round(Fraction(phase.end * steps, self.steps)) for phase in self.phases]
        if any(a >= b for a, b in zip([0, *places], places, strict=False)):
            raise ValueError(f"--steps {steps} is too short for {len(self.phases)} phases; add --phases with fewer")
        starts = [0, *places[:-1]]
        moved = zip(self.phases, starts, places, strict=True)
        return replace(self, phases=tuple(replace(phase, begin=a, end=b) for phase, a, b in moved))


def rounded(proportions: Mapping[str, float], digits: int = DIGITS) -> dict[str, float]:
    """Shares with so many decimals that add up to exactly 1: the largest remainders are rounded up."""
    scale = 10**digits
    exact = {name: Fraction(p) * scale for name, p in proportions.items()}
    whole = {name: int(value) for name, value in exact.items()}
    left = scale - sum(whole.values())
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[: max(0, left)]:
        whole[name] += 1
    return {name: count / scale for name, count in whole.items()}


def static(shares: Mapping[str, float], where: str, notes: Iterable[str] = ()) -> Schedule:
    """A mixture by group, checked."""
    checked = shares_of(shares, where)
    return Schedule(tuple(checked), tuple(checked.values()), notes=tuple(notes))


def shares_of(shares: Mapping[str, float], where: str) -> dict[str, float]:
    """Shares that are not negative and sum to 1, or a line that says which are not."""
    if not shares:
        raise ValueError(f"{where} names no groups")
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not math.isfinite(share) or share < 0:
            raise ValueError(f"{where}: {name}={share} is not a share; shares are numbers from 0 to 1")
    total = math.fsum(shares.values())
    if abs(total - 1.0) > SUM_TOLERANCE:
        remedy = "they look like percent: divide by 100" if abs(total - 100.0) < 1.0 else "divide them by their sum"
        raise ValueError(f"{where}: the shares sum to {total:.6g}, not 1; {remedy}")
    return {str(name): float(share) / total for name, share in shares.items()}


def moving(groups: Sequence[str], phases: Sequence[Phase], notes: Iterable[str] = ()) -> Schedule:
    """A schedule of segments as they came; one whose mixture never changed is static."""
    if not phases:
        raise ValueError("nothing has been trained yet, so there is no mixture to export")
    mean = _mean(phases)
    if all(phase.proportions == phases[0].proportions for phase in phases):
        return Schedule(tuple(groups), phases[0].proportions, notes=tuple(notes))
    return Schedule(tuple(groups), mean, tuple(phases), tuple(notes))


class Path:
    """Segments of a run, taken one by one in bounded memory: beyond `SEGMENTS` neighbours are put together."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.thinned = False
        self._least = 1

    def add(self, phase: Phase) -> None:
        """One more; one that goes on with the same mixture makes the last one longer."""
        last = self.phases[-1] if self.phases else None
        if last is not None and (last.proportions, last.tag) == (phase.proportions, phase.tag):
            self.phases[-1] = replace(last, end=phase.end)
        elif last is not None and last.end - last.begin < self._least:
            self.phases[-1] = _joined([last, phase])
        else:
            self.phases.append(phase)
        if len(self.phases) > SEGMENTS:
            self.thinned, self._least = True, 2 * self._least
            self.phases = [_joined(self.phases[k : k + 2]) for k in range(0, len(self.phases), 2)]


def _mean(phases: Sequence[Phase]) -> tuple[float, ...]:
    """Over all steps."""
    lengths = np.array([phase.end - phase.begin for phase in phases], dtype=np.float64)
    total = lengths @ np.array([phase.proportions for phase in phases])
    return tuple((total / total.sum()).tolist())


def _joined(phases: Sequence[Phase]) -> Phase:
    tag = phases[0].tag if all(phase.tag == phases[0].tag for phase in phases) else ""
    return Phase(phases[0].begin, phases[-1].end, _mean(phases), tag)


def _rounds(phases: Sequence[Phase]) -> list[Phase]:
    """Sweeps go with the mixture that was chosen after them: they are how it was found, not a change of it."""
    found: list[list[Phase]] = []
    for phase in phases:
        last = found[-1][-1] if found else None
        swept = last is not None and last.tag.startswith("sweep")
        goes_on = last is not None and not phase.tag.startswith("sweep") and last.proportions == phase.proportions
        if swept or goes_on:
            found[-1].append(phase)
        else:
            found.append([phase])
    return [_joined(some) for some in found]


def _even(phases: Sequence[Phase], most: int) -> list[Phase]:
    """No more than `most` pieces, of about equal length where there are more."""
    if len(phases) <= most:
        return list(phases)
    steps = phases[-1].end
    cells: dict[int, list[Phase]] = {}
    for phase in phases:
        cells.setdefault(phase.begin * most // steps, []).append(phase)
    return [_joined(some) for some in cells.values()]


def _merged(pieces: Sequence[Phase], count: int) -> tuple[Phase, ...]:
    """The best cut of a path into at most `count` phases, by dynamic programming over where each ends."""
    size, n = min(count, len(pieces)), len(pieces)
    weight = np.array([piece.end - piece.begin for piece in pieces], dtype=np.float64)
    P = np.array([piece.proportions for piece in pieces])
    w = np.concatenate([[0.0], weight.cumsum()])
    first = np.concatenate([np.zeros((1, P.shape[1])), (weight[:, None] * P).cumsum(0)])
    second = np.concatenate([[0.0], (weight * (P**2).sum(1)).cumsum()])

    def spread(j: int) -> Array:
        """How far pieces i … j-1 are from their mean, for every i < j."""
        gone = first[j] - first[:j]
        return np.asarray(second[j] - second[:j] - (gone**2).sum(1) / (w[j] - w[:j]))

    apart = [spread(j) for j in range(1, n + 1)]
    cost = np.array([each[0] for each in apart])
    cuts: list[list[int]] = []
    for k in range(1, size):
        choices = [cost[k - 1 : j - 1] + apart[j - 1][k:j] for j in range(k + 1, n + 1)]
        best = [int(np.argmin(each)) for each in choices]
        cuts.append([0] * k + [k + b for b in best])
        cost = np.concatenate([np.full(k, np.inf), [each[b] for each, b in zip(choices, best, strict=True)]])
    ends = [n]
    for each in reversed(cuts):
        ends.append(each[ends[-1] - 1])
    edges = [0, *reversed(ends)]
    return tuple(_joined(pieces[a:b]) for a, b in pairwise(edges))
