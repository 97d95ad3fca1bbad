"""What a policy will ask for, before anything is trained: rehearsed on made-up values, so that costs can be counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aioli.policies.rules import RulePolicy
from aioli.protocol import Observation, Segment


def looks(policy: RulePolicy) -> int:
    """How often a policy looks at the validation loss, counted on made-up values."""
    if "val_loss" not in policy.needs:
        return 0
    return sum(("val_loss" in each.observe) + _forks(each) for each in rehearsed(policy))


def fork_steps(policy: RulePolicy, onward: bool = False) -> int:
    """Steps of all its forks, at most but for rounding: made-up values settle nothing, and no group trails.

    `onward`: of those that are still to come, from where it is."""
    if "fork_loss" not in policy.needs:
        return 0
    return sum(_forks(each) * each.fork_steps for each in rehearsed(policy, onward))


def _forks(segment: Segment) -> int:
    return 0 if segment.forks is None else len(segment.forks)


def rehearsed(policy: RulePolicy, onward: bool = False) -> Iterator[Segment]:
    """What it asks for, told made-up values: from the beginning, or from where it is."""
    rehearsal, n = RulePolicy(policy.rules, policy.task), policy.task.targets
    if onward:
        rehearsal.load_state_dict(policy.state_dict())
    while (segment := rehearsal.ask()) is not None:
        yield segment
        values: dict[str, Any] = {kind: np.ones(policy.task.m) for kind in segment.observe}
        values |= {"val_loss": np.ones(n), "lr": 1.0}
        values |= {"fork_loss": np.ones((_forks(segment), n))} if segment.forks is not None else {}
        rehearsal.tell(Observation(segment.proportions * segment.steps, **values))
