"""What one run is about (`Task`), one of its rounds (`Round`), and what an estimator makes of it (`Estimate`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, as_weights, whole

Start = Literal["never", "later", "always"]
NONE: frozenset[str] = frozenset()
VAL = frozenset({"val_loss"})


@dataclass(frozen=True)
class Task:
    """What one run is about: m groups, n targets, its steps, its seed, and how much each target counts."""

    m: int
    steps: int
    n: int | None = None
    """Number of targets; None means the groups themselves (in-domain)."""
    seed: int = 0
    target_weights: tuple[float, ...] | None = None
    groups: tuple[str, ...] | None = None
    """The groups' names, where known: a state is not resumed with groups in another order."""
    weights: Array = field(init=False, repr=False, compare=False)
    """The target weights, scaled to mean 1."""

    def __post_init__(self) -> None:
        for name in ("m", "steps", "n", "seed"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, name))
        if self.m < 1:
            raise ValueError(f"m={self.m} groups cannot be mixed; there must be at least one group")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} leaves nothing to train; use at least 1")
        if self.targets < 1:
            raise ValueError(f"n={self.n} targets: there must be at least one")
        if self.groups is not None and len(self.groups) != self.m:
            raise ValueError(f"groups={list(self.groups)} must be {self.m} names")
        if self.target_weights is not None:
            object.__setattr__(self, "target_weights", tuple(float(w) for w in self.target_weights))
        weights = as_weights(self.target_weights, self.targets)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @property
    def targets(self) -> int:
        """The number of targets, n."""
        return self.m if self.n is None else self.n


@dataclass(frozen=True)
class Round:
    """Round t of an online method: its number (from 0), its steps, and the mixture in force when it starts."""

    task: Task
    t: int
    steps: int
    p: Array
    bounds: tuple[Array, Array] | None = None
    """Floors and caps that every mixture must keep."""
    rounds: int = 1
    """T, of how many rounds it is one."""


@dataclass(frozen=True)
class Estimate:
    """A^t, and, from estimators that know better than its column sums, the pull on each group."""

    A: Array
    pull: Array | None = None
    stderr: Array | None = None
    """Standard error of each group's pull, where known."""


class Estimator(Protocol):
    """Where A^t comes from."""

    @property
    def start(self) -> Start:
        """When the losses at the start of a round are needed: never, in all rounds but the first, always."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """The kinds it observes."""
        ...

    @property
    def weighting(self) -> Weighting:
        """How its probes use the mixture."""
        ...

    def begin(self, task: Task) -> State:
        """What it remembers before the first round; refuses settings that cannot work for this task."""
        ...

    def probes(self, state: State, round: Round) -> list[Segment]:
        """The segments to train before A^t is known, taken out of the round's steps."""
        ...

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """A^t from the losses at the start of the round and the observations of its probes, in order; None: there is
        nothing new, and the mixture stays."""
        ...


def realised(observation: Observation, requested: Array) -> Array:
    """The proportions that were consumed (E5), or the requested ones if nothing was."""
    total = observation.tokens.sum()
    return observation.tokens / total if total > 0 else requested
