"""A conformance suite for policies: `check_policy(factory)` says whether yours keeps what the protocol promises.

    from aioli.testing import check_policy
    check_policy(lambda task: MyPolicy(task.m, task.steps))       # tried on several tasks
    check_policy(lambda: MyPolicy(3, 1000))                       # or on the one it is made for

Ours pass the same suite. A broken promise raises AssertionError with the promise in words.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from aioli.lmo.task import Task
from aioli.protocol import KINDS, Observation, Policy, Segment
from aioli.simplex import Array

Factory = Callable[[Task], Policy]
Maker = Factory | Callable[[], Policy]

TASKS = (Task(1, 300), Task(2, 400), Task(3, 601), Task(7, 1200), Task(3, 500, n=1), Task(2, 500, n=4))
"""What a policy is tried on unless told otherwise: one group, in-domain, and targets other than the groups."""


def check_policy(factory: Maker, tasks: Iterable[Task] | None = None) -> None:
    """Try the policies that `factory` makes; raises AssertionError naming the first broken promise.

    `factory(task)` makes a policy for each task. `factory()` makes one policy, whose task is its attribute `task` or,
    if it has none, found out by running it once (then the targets are taken to be the groups).
    """
    make, tasks = _factory(factory, tasks)
    for task in tasks:
        for check in (_check_run, _check_reload, _check_refusals, _check_constant):
            check(make, task)


def _factory(factory: Maker, tasks: Iterable[Task] | None) -> tuple[Factory, Iterable[Task]]:
    if any(p.default is p.empty for p in inspect.signature(factory).parameters.values()):
        return cast(Factory, factory), TASKS if tasks is None else tasks
    one = cast(Callable[[], Policy], factory)
    policy = one()
    task = getattr(policy, "task", None)
    if not isinstance(task, Task):
        segment, steps, m = policy.ask(), 0, 1
        while segment is not None and steps < 10**7:
            m = segment.proportions.size
            policy.tell(observation_for(segment, Task(m, 1), steps))
            steps += segment.steps
            segment = policy.ask()
        task = Task(m, max(steps, 1))
    return lambda _: one(), [task] if tasks is None else tasks


def observation_for(segment: Segment, task: Task, step: int, constant: bool = False) -> Observation:
    """Made-up but repeatable observations: losses that fall, noise that depends only on the step."""
    rng = np.random.default_rng([task.seed, step])
    fall = 3.0 / (1.0 + step / 100.0)

    def losses(size: int) -> Array:
        return np.full(size, 2.0) if constant else 1.0 + fall + 0.01 * rng.normal(size=size)

    m, n = task.m, task.targets
    tokens = segment.proportions * segment.steps * 1000.0
    if segment.weighting == "loss":
        tokens = np.full(m, segment.steps * 1000.0 / m)
    absent = tokens == 0
    values: dict[str, Any] = {
        "val_loss": losses(n),
        "train_loss": np.where(absent, np.nan, losses(m)),
        "excess_loss": np.where(absent, np.nan, losses(m) - 2.0),
        "token_excess_loss": np.where(absent, np.nan, np.abs(losses(m) - 2.0)),
        "grad_inner": np.zeros((n, m)) if constant else rng.normal(size=(n, m)),
        "grad_norm": np.ones(m),
        "lr": 1e-3,
    }
    if segment.forks is not None:
        values["fork_loss"] = np.stack([losses(n) for _ in segment.forks])
    return Observation(tokens, **{kind: values[kind] for kind in segment.observe})


def _promise(kept: bool, words: str, task: Task) -> None:
    if not kept:
        raise AssertionError(f"{words} (m={task.m}, n={task.targets}, steps={task.steps})")


def _check_run(factory: Factory, task: Task) -> None:
    policy, twin = factory(task), factory(task)
    _promise(frozenset(policy.needs) <= KINDS.keys(), f"needs {set(policy.needs)} must be known kinds", task)
    step, limit = 0, 100 * task.steps + 1000
    for _ in range(limit):
        segment = policy.ask()
        _promise(segment == policy.ask(), "ask must return the same segment until tell", task)
        _promise(segment == twin.ask(), "two policies told the same must ask the same (use task.seed)", task)
        if segment is None:
            break
        p = segment.proportions
        _promise(p.shape == (task.m,), f"proportions must have one entry per group, got {p.shape}", task)
        _promise(abs(p.sum() - 1.0) <= 1e-12 and bool((p >= 0).all()), f"{p.tolist()} is not on the simplex", task)
        _promise(segment.observe <= frozenset(policy.needs), "every kind observed must be declared in needs", task)
        weightings = frozenset(getattr(policy, "weightings", {"sample"}))
        _promise(segment.weighting in weightings, f"weighting={segment.weighting!r} must be in `weightings`", task)
        told = observation_for(segment, task, step)
        policy.tell(told)
        twin.tell(told)
        step += segment.steps
        _promise(step <= task.steps, f"the segments add up to more than {task.steps} steps", task)
    else:
        raise AssertionError(f"the policy asked for {limit} segments without coming to its end")
    _promise(step == task.steps, f"the segments add up to {step} steps instead of {task.steps}", task)
    _promise(policy.ask() is None, "ask must keep returning None at the end", task)


def _as_json(state: Any, task: Task) -> str:
    try:
        return json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"state_dict must be plain JSON without NaN or infinity: {error} (m={task.m})") from error


def _check_reload(factory: Factory, task: Task) -> None:
    """Dump and reload between every two calls (of a long run, a sample), beside a policy that is left alone."""
    plain, restless = factory(task), factory(task)
    step = count = 0
    while (segment := plain.ask()) is not None:
        count += 1
        for _ in range(2 if count < 100 or count % 20 == 0 else 0):  # before ask, and between ask and tell
            text = _as_json(restless.state_dict(), task)
            restless, loaded = factory(task), json.loads(text)
            restless.load_state_dict(loaded)
            _promise(restless.ask() == segment, f"reloading the state changed what follows at step {step}", task)
            _promise(json.dumps(loaded) == text, "load_state_dict must not keep or change the state it is given", task)
        told = observation_for(segment, task, step)
        plain.tell(told)
        restless.tell(told)
        step += segment.steps
    _promise(restless.ask() is None, "reloading the state changed the end of the run", task)


def _check_refusals(factory: Factory, task: Task) -> None:
    """A missing, misshapen or non-finite observation is refused with ValueError and changes nothing."""
    policy = factory(task)
    step, tried = 0, set()
    while (segment := policy.ask()) is not None:
        kind = segment.tag.split(" ")[0] + "/".join(sorted(segment.observe))
        if segment.observe and kind not in tried:
            tried.add(kind)
            _check_refused(policy, segment, task, step)
        policy.tell(observation_for(segment, task, step))
        step += segment.steps


def _check_refused(policy: Policy, segment: Segment, task: Task, step: int) -> None:
    good = vars(observation_for(segment, task, step))
    kind = sorted(segment.observe)[0]
    bad = {
        "without": {**good, kind: None},
        "with the wrong shape of": {**good, kind: np.zeros(task.m + task.targets + 5)},
        "with NaN in": {**good, kind: np.full_like(np.asarray(good[kind]), np.nan), "tokens": np.ones(task.m)},
        "with negative tokens beside": {**good, "tokens": np.full(task.m, -1.0)},
    }
    before = json.dumps(policy.state_dict(), sort_keys=True)
    for how, values in bad.items():
        try:
            policy.tell(Observation(**values))
        except ValueError:
            pass
        except Exception as error:
            raise AssertionError(
                f"an observation {how} {kind} must be refused with ValueError, not {error!r}"
            ) from error
        else:
            raise AssertionError(f"an observation {how} {kind} must be refused with ValueError")
        after = json.dumps(policy.state_dict(), sort_keys=True)
        _promise(before == after, f"a refused observation ({how} {kind}) must leave the state unchanged", task)
        _promise(policy.ask() == segment, "a refused observation must leave the segment as it was", task)


def _check_constant(factory: Factory, task: Task) -> None:
    """Losses that never change must not produce anything but mixtures."""
    policy = factory(task)
    step = 0
    while (segment := policy.ask()) is not None:
        _promise(bool(np.isfinite(segment.proportions).all()), "constant losses must not produce NaN", task)
        policy.tell(observation_for(segment, task, step, constant=True))
        step += segment.steps
