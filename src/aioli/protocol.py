"""The ask/tell protocol between a policy, which chooses mixtures, and a trainer, which trains on them.

    Policy  --ask-->  Segment      p, a number of steps, what to observe
    Trainer --tell->  Observation  tokens consumed per group, and the observed values

`drive` runs a policy on a trainer that can be called; `aioli.cursor` is the same turned inside out, for a training
loop that cannot. Inside a segment the proportions are fixed and its length is known, so prefetching inside it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from aioli.simplex import Array, as_mixture, as_weights, whole

Weighting = Literal["sample", "loss"]
State = dict[str, Any]

WEIGHTINGS: frozenset[str] = frozenset({"sample", "loss"})

KINDS: dict[str, str] = {
    "val_loss": "(n,) validation loss of each target after the segment",
    "train_loss": "(m,) mean training loss of each group over the segment, NaN where a group was absent",
    "excess_loss": "(m,) training loss minus the reference model's on the same batches, NaN where a group was absent",
    "token_excess_loss": "(m,) mean over tokens of max(excess, 0), NaN where a group was absent",
    "grad_inner": "(n, m) inner products of validation and training gradients, or (m,) their sum over targets",
    "grad_norm": "(m,) norm of each group's training gradient",
    "lr": "() the learning rate in force at the end of the segment",
    "fork_loss": "(k, n) validation loss of each target after each of the segment's k forks",
}
"""Everything a trainer may be asked to observe, with shapes for n targets and m groups."""


def as_numbers(value: Any, name: str) -> Array:
    """A copy as a float64 array (training loops reuse their buffers); anything else is refused by name."""
    try:
        return np.array(_here(value), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}={value!r} must be numbers: {KINDS.get(name, 'one per group')}") from None


def _here(value: Any) -> Any:
    """A tensor, of whatever precision, on whatever device, with or without a gradient, as numpy can read it."""
    if isinstance(value, (list, tuple)):
        return [_here(each) for each in value]
    return value.detach().cpu().double().numpy() if hasattr(value, "detach") and hasattr(value, "numpy") else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is not None and b is not None and np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


@dataclass(frozen=True, eq=False)
class Segment:
    """A stretch of training with one mixture: what a policy asks for."""

    proportions: Array
    """The mixture, (m,). With `weighting="loss"` it weights the groups' losses and batches are drawn uniformly."""
    steps: int
    """Optimizer steps (E31). 0 means: train nothing, only observe."""
    observe: frozenset[str] = frozenset()
    """The kinds (`KINDS`) to observe during or at the end of the segment."""
    weighting: Weighting = "sample"
    """`sample`: draw batches from the mixture. `loss`: draw uniformly and weight each group's loss by its share."""
    tag: str = ""
    """What the segment is for, for the journal: `train`, `look`, `sweep 3`…"""
    target_weights: Array | None = None
    """How much each target counts when `grad_inner` is summed over targets; None means equally."""
    val_share: float | None = None
    """The share of the batch that `grad_inner` may spend on validation data (E18)."""
    forks: Array | None = None
    """Mixtures, (k, m), that `fork_loss` tries out from where the segment ends, each on a copy of the model that is
    forgotten afterwards, at a learning rate that ends at zero. The run goes on as if there had been none."""
    fork_steps: int = 0
    """Optimizer steps of each fork."""
    fork_cooling: float = 1.0
    """The last share of a fork's steps, in which the learning rate falls to zero: what is seen then is what the mixture
    taught, not the noise of the last steps."""

    def __post_init__(self) -> None:
        p = as_mixture(self.proportions)
        p.setflags(write=False)
        object.__setattr__(self, "proportions", p)
        object.__setattr__(self, "steps", whole(self.steps, "steps"))
        if self.steps < 0:
            raise ValueError(f"steps={self.steps} is negative")
        observe = frozenset(self.observe)
        object.__setattr__(self, "observe", observe)
        if not observe <= KINDS.keys():
            unknown = sorted(observe - KINDS.keys())
            raise ValueError(f"cannot observe {', '.join(unknown)}; known kinds are {', '.join(KINDS)}")
        if self.weighting not in WEIGHTINGS:
            raise ValueError(f"weighting={self.weighting!r} is not one of 'sample', 'loss'")
        if self.target_weights is not None:
            w = as_weights(self.target_weights, len(self.target_weights))
            w.setflags(write=False)
            object.__setattr__(self, "target_weights", w)
        if self.val_share is not None and not 0.0 < self.val_share < 1.0:
            raise ValueError(f"val_share={self.val_share} is not a share of the batch; use 0 < val_share < 1")
        self._check_forks(p.size)

    def _check_forks(self, m: int) -> None:
        if self.forks is not None:
            rows = np.stack([as_mixture(row, m, "forks") for row in np.asarray(self.forks)])
            rows.setflags(write=False)
            object.__setattr__(self, "forks", rows)
        object.__setattr__(self, "fork_steps", whole(self.fork_steps, "fork_steps"))
        if self.fork_steps < 0:
            raise ValueError(f"fork_steps={self.fork_steps} is negative")
        if "fork_loss" in self.observe and (self.forks is None or self.fork_steps < 1):
            raise ValueError("fork_loss is asked for, but there are no forks, or of no steps; give both")
        if not 0.0 < self.fork_cooling <= 1.0:
            raise ValueError(f"fork_cooling={self.fork_cooling} is not a share of the steps; use 0 < cooling <= 1")

    def fork_scale(self, step: int) -> float:
        """By what to multiply the learning rate in step number `step` of a fork, counted from 0."""
        left = 1.0 - (step + 0.5) / max(1, self.fork_steps)
        return min(1.0, max(0.0, left) / self.fork_cooling)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segment) and all(_same(v, vars(other)[k]) for k, v in vars(self).items())


@dataclass(frozen=True, eq=False)
class Observation:
    """What a trainer saw while it trained a segment: what it tells the policy."""

    tokens: Array
    """Tokens consumed from each group in this segment, (m,); all zero for a segment of 0 steps."""
    val_loss: Array | None = None
    train_loss: Array | None = None
    excess_loss: Array | None = None
    token_excess_loss: Array | None = None
    grad_inner: Array | None = None
    grad_norm: Array | None = None
    lr: float | None = None
    fork_loss: Array | None = None
    fork_tokens: Array | None = None
    """Tokens that each fork consumed from each group, (k, m), beside `fork_loss`; left out: as requested."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            array = as_numbers(value, name)
            array.setflags(write=False)
            object.__setattr__(self, name, float(array) if name == "lr" and array.ndim == 0 else array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observation) and all(_same(v, vars(other)[k]) for k, v in vars(self).items())


@runtime_checkable
class Policy(Protocol):
    """Chooses the mixture of one training run."""

    @property
    def needs(self) -> frozenset[str]:
        """The kinds it will ask a trainer to observe."""
        ...

    def ask(self) -> Segment | None:
        """The next segment, the same one until `tell`; None when the run is over."""
        ...

    def tell(self, observation: Observation) -> None:
        """What came of the segment asked for. A refused observation raises ValueError and changes nothing."""
        ...

    def state_dict(self) -> State:
        """Everything that decides what follows, as plain JSON."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go on from a `state_dict`."""
        ...


class Trainer(Protocol):
    """Trains segments: our engine, the simulator, or a user's.

    One that does not honour `segment.weighting` says so with an attribute `weightings = {"sample"}`.
    """

    @property
    def supports(self) -> frozenset[str]:
        """The kinds it can observe. It may have `weightings`, the subset of {sample, loss} it can do."""
        ...

    def advance(self, segment: Segment) -> Observation:
        """Train the segment and observe what it asks for."""
        ...


def check_supported(policy: Policy, supports: Iterable[str], weightings: Iterable[str] = WEIGHTINGS) -> None:
    """Refuse, by name, a policy that needs what a trainer cannot give."""
    missing = sorted(policy.needs - frozenset(supports))
    if missing:
        what = "; ".join(f"{kind}: {KINDS[kind]}" for kind in missing)
        if "fork_loss" in missing:
            raise ValueError(
                f"this policy tries mixtures out on copies of the model ({what}), which the trainer cannot do; "
                "aioli-pooled learns from the run itself, and a Cursor is given it as Cursor(policy, {'val_loss': "
                "function, 'fork_loss': function of the segment})"
            )
        raise ValueError(
            f"this policy needs {', '.join(missing)}, which the trainer cannot observe ({what}); a Cursor is given it "
            f"as Cursor(policy, {{{missing[0]!r}: function}}), or with fed={{{missing[0]!r}}} at every step"
        )
    lacking = sorted(frozenset(getattr(policy, "weightings", {"sample"})) - frozenset(weightings))
    if lacking:
        raise ValueError(
            f"this policy needs weighting={lacking[0]!r} (batches drawn uniformly, each group's loss multiplied by its "
            "share), which the trainer cannot do; a method that only samples, such as aioli, can run here"
        )


Record = Callable[[Segment, Observation], None]


def drive(policy: Policy, trainer: Trainer, record: Record | None = None) -> None:
    """Run `policy` to its end on `trainer`; `record` sees every segment with its observation, after the policy did."""
    if not hasattr(trainer, "supports"):
        raise ValueError(
            f"{type(trainer).__name__} has no `supports`: the set of kinds ({', '.join(KINDS)}) it can observe"
        )
    check_supported(policy, trainer.supports, getattr(trainer, "weightings", WEIGHTINGS))
    while (segment := policy.ask()) is not None:
        observation = trainer.advance(segment)
        policy.tell(observation)
        if record is not None:
            record(segment, observation)
