"""A policy inside a training loop that is not ours: `drive` turned inside out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aioli.protocol import KINDS, Observation, Policy, Record, Segment, State, as_numbers, check_supported
from aioli.simplex import Array

Measure = Callable[..., ArrayLike]


@dataclass
class Cursor:
    """A policy inside a training loop that is not ours.

        cursor = Cursor(policy, {"val_loss": lambda: evaluate(model)})
        while not cursor.done:
            batch = draw(cursor.proportions)  # changes only between segments
            tokens = train_one_step(batch)
            cursor.step(tokens)               # tokens per group; left out: as requested

    Measuring happens inside `step`, when a segment is over, and before the first step.
    """

    policy: Policy
    observe: Mapping[str, Measure] | Measure = field(default_factory=dict)
    """For each kind the policy needs, a function that measures it now; a single function if it needs a single kind.
    That of `fork_loss` is given the segment, whose `forks` it is to try out for `fork_steps` each."""
    fed: Iterable[str] = ()
    """Kinds that the loop passes to `step` instead, such as `train_loss`; averaged over the steps with that group."""
    weightings: Iterable[str] = ("sample",)
    """Add "loss" if the loop multiplies each group's loss by its share when `segment.weighting` says so."""
    record: Record | None = None
    """Sees every segment with its observation, after the policy did."""

    def __post_init__(self) -> None:
        fed = frozenset({self.fed} if isinstance(self.fed, str) else self.fed)
        self.fed = fed
        self._measures = self._as_measures(fed)
        unknown = sorted((fed | self._measures.keys()) - KINDS.keys())
        if unknown:
            raise ValueError(f"cannot observe {', '.join(unknown)}; known kinds are {', '.join(KINDS)}")
        if "fork_loss" in fed:
            raise ValueError("fork_loss cannot be fed step by step; give a function that tries the segment's forks out")
        check_supported(self.policy, fed | self._measures.keys(), self.weightings)
        self._clear()
        self._last: Segment | None = None
        self.listeners: list[Callable[[Segment | None, int, bool], None]] = []
        """Called after every step with the segment, its steps left, and whether a state was loaded: for loaders."""

    def _as_measures(self, fed: frozenset[str]) -> dict[str, Measure]:
        wanted = sorted(self.policy.needs - fed)
        if callable(self.observe):
            if len(wanted) != 1:
                raise ValueError(
                    f"the policy needs {', '.join(wanted) or 'nothing'}; give one function for each: a dict"
                )
            _check_arguments(wanted[0], self.observe)
            return {wanted[0]: self.observe}
        for kind, measure in self.observe.items():
            if not callable(measure):
                raise ValueError(f"observe[{kind!r}] must be a function that measures it, not {measure!r}")
            _check_arguments(kind, measure)
        return dict(self.observe)

    def _clear(self) -> None:
        self._steps = 0
        self._tokens: Array | None = None
        self._sums: dict[str, Array] = {}
        self._seen: dict[str, Array] = {}

    @property
    def segment(self) -> Segment | None:
        """The segment being trained; looks that need no step are made on the way. None when all is done."""
        while (segment := self.policy.ask()) is not None and self._steps == segment.steps:
            tokens = self._tokens if self._tokens is not None else np.zeros(segment.proportions.size)
            observation = Observation(tokens, **self._measure(segment))
            self.policy.tell(observation)
            self._last = segment
            self._clear()
            if self.record is not None:
                self.record(segment, observation)
        return segment

    @property
    def done(self) -> bool:
        """Whether the policy's steps are used up."""
        return self.segment is None

    @property
    def proportions(self) -> Array:
        """The mixture for the next batch; when all is done, the last one."""
        segment = self.segment or self._last
        if segment is None:
            raise ValueError("the policy was already at its end when this cursor was made")
        return segment.proportions

    @property
    def remaining(self) -> int:
        """Steps left in this segment: as far as a loader may prefetch. 0 when all is done."""
        segment = self.segment
        return 0 if segment is None else segment.steps - self._steps

    def step(self, tokens: ArrayLike | None = None, **values: ArrayLike) -> None:
        """Say that one optimizer step was done: tokens used per group, and the values declared as `fed`.

        If a measurement is refused (NaN, say) the step is not counted: mend it and call `step` again.
        """
        segment = self.segment
        if segment is None:
            raise ValueError("the policy's steps are used up; check cursor.done before training another step")
        before = (self._steps, self._tokens, dict(self._sums), dict(self._seen))
        try:
            self._count(segment, tokens, values)
            _ = self.segment
        except BaseException:
            self._steps, self._tokens, self._sums, self._seen = before
            raise
        self._notify(loaded=False)

    def _notify(self, loaded: bool) -> None:
        for listener in self.listeners:
            listener(self.segment, self.remaining, loaded)

    def _count(self, segment: Segment, tokens: ArrayLike | None, values: Mapping[str, ArrayLike]) -> None:
        m = segment.proportions.size
        used = as_numbers(segment.proportions if tokens is None else tokens, "tokens")
        if used.shape != (m,) or not np.isfinite(used).all() or (used < 0).any():
            raise ValueError(f"tokens={used.tolist()} must be {m} finite numbers, one per group, not negative")
        wanted = segment.observe & frozenset(self.fed)
        missing = sorted(wanted - values.keys())
        if missing:
            raise ValueError(f"step() was not given {', '.join(missing)}, which was declared as fed and is asked for")
        for kind in wanted:
            value = as_numbers(values[kind], kind)
            present = used > 0 if value.shape == (m,) else np.ones(value.shape, dtype=bool)
            if not np.isfinite(value[present]).all():
                raise ValueError(f"{kind}={value.tolist()} is not finite where tokens were used; the run has diverged")
            self._sums[kind] = self._sums.get(kind, 0.0) + np.where(present, value, 0.0)
            self._seen[kind] = self._seen.get(kind, 0.0) + present.astype(np.float64)
        self._tokens = used if self._tokens is None else self._tokens + used
        self._steps += 1

    def _measure(self, segment: Segment) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for kind in sorted(segment.observe, key=lambda kind: kind == "fork_loss"):  # which may be the longest, last
            if kind in self._measures:
                values[kind] = self._measures[kind](*([segment] if kind == "fork_loss" else []))
            elif kind in self._sums:
                with np.errstate(invalid="ignore"):
                    values[kind] = self._sums[kind] / self._seen[kind]
        return values

    def state_dict(self) -> State:
        """The policy's state and the progress inside the segment, as plain JSON."""
        return {
            "policy": self.policy.state_dict(),
            "steps": self._steps,
            "tokens": None if self._tokens is None else self._tokens.tolist(),
            "sums": {k: v.tolist() for k, v in self._sums.items()},
            "seen": {k: v.tolist() for k, v in self._seen.items()},
            "last": None if self._last is None else self._last.proportions.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a `state_dict`, also in the middle of a segment."""
        if not isinstance(state, dict) or not {"policy", "steps", "tokens", "sums", "seen"} <= state.keys():
            raise ValueError("this is not the state of a cursor; load what cursor.state_dict() returned")
        last = self._last if state.get("last") is None else Segment(as_numbers(state["last"], "last"), 0)
        self.policy.load_state_dict(state["policy"])
        segment, steps = self.policy.ask(), state["steps"]
        if segment is not None and last is not None and last.proportions.size != segment.proportions.size:
            last = None
        most = 0 if segment is None else max(0, segment.steps - 1)
        if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= most:
            raise ValueError(
                f"this is not the state of a cursor: steps={steps!r} of a segment with {most + 1} or fewer"
            )
        if not isinstance(state["sums"], dict) or not isinstance(state["seen"], dict):
            raise ValueError("this is not the state of a cursor: its sums are not by kind")
        self._last = last
        self._steps = steps
        self._tokens = None if state["tokens"] is None else np.asarray(state["tokens"], dtype=np.float64)
        self._sums = {k: np.asarray(v, dtype=np.float64) for k, v in state["sums"].items()}
        self._seen = {k: np.asarray(v, dtype=np.float64) for k, v in state["seen"].items()}
        self._notify(loaded=True)


def _check_arguments(kind: str, measure: Measure) -> None:
    """Before a run begins, not when its first segment is over."""
    try:
        signature = inspect.signature(measure, follow_wrapped=False)
    except (TypeError, ValueError):  # some that are not written in Python have none
        return
    try:
        signature.bind(*([None] if kind == "fork_loss" else []))
    except TypeError:
        given = "the segment, whose forks it tries out" if kind == "fork_loss" else "nothing"
        raise ValueError(f"the function that measures {kind} is given {given}, but it is {kind}{signature}") from None
