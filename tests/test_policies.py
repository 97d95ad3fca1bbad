"""Every policy on every kind of task: steps add up, mixtures are mixtures, states survive, refusals are clean."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.lmo import (
    EGD,
    ExcessLoss,
    ForkedSweep,
    GradientInner,
    InterleavedSweep,
    PooledSweep,
    ScalingSlope,
    SkillGraph,
    Task,
)
from aioli.lmo.slopes import TimeAverage
from aioli.methods import create
from aioli.policies import Bandit, Online, RulePolicy, Static, Then, build
from aioli.protocol import Observation, drive
from aioli.simulate import WORLDS, LinearWorld
from aioli.testing import TASKS, check_policy, observation_for


def graph_for(task):
    rng = np.random.default_rng([task.m, task.targets])
    return SkillGraph(tuple(map(tuple, rng.uniform(0, 0.5, (task.targets, task.m)))))


RULES = {
    "static": lambda task: Static(tuple(np.arange(1, task.m + 1) / np.arange(1, task.m + 1).sum())),
    "aioli": lambda task: Online(InterleavedSweep(), EGD(0.2), None, "shift-sum"),
    "aioli-ema": lambda task: Online(InterleavedSweep(), EGD(0.2, "ema(0.1)"), None, "shift-sum"),
    "aioli-l1-current": lambda task: Online(InterleavedSweep(around="current"), EGD(0.2), None, "l1"),
    "aioli-diagonal": lambda task: Online(InterleavedSweep(diagonal=True), EGD(0.2), None, "shift-sum"),
    "aioli-static": lambda task: Online(InterleavedSweep(), EGD(0.2), 1, "shift-sum"),
    "aioli-pooled": lambda task: Online(PooledSweep(), EGD(3.0, "ema(0)"), None),
    "aioli-fork": lambda task: Online(ForkedSweep(), EGD(1.5), min(10, task.steps)),
    "aioli-pooled-sum": lambda task: Online(PooledSweep(until=0.4, doubt=0.5), EGD(1.0), None),
    "skill-it": lambda task: Online(graph_for(task), EGD(0.2, "window(3)"), 10),
    "doremi": lambda task: Online(ExcessLoss(), EGD(0.01, smoothing=1e-3), "every step"),
    "doremi-token": lambda task: Online(ExcessLoss("token"), EGD(0.01, smoothing=1e-3), "every step"),
    "doge": lambda task: Online(GradientInner(), EGD(0.01), "every step"),
    "doge-normalised": lambda task: Online(GradientInner("normalised"), EGD(20.0), "every step"),
    "odm": lambda task: Bandit(),
    "ado": lambda task: Online(ScalingSlope(), TimeAverage(), 50),
    "then": lambda task: Then(
        Static((1.0, *[0.0] * (task.m - 1))), 77, Online(InterleavedSweep(), EGD(0.2), None, "shift-sum")
    ),
    "capped": lambda task: Online(
        InterleavedSweep(), EGD(2.0, caps=tuple([min(1.0, 1.3 / task.m)] * task.m)), None, "shift-sum"
    ),
}
IN_DOMAIN_ONLY = {"aioli-diagonal"}


EVERY_STEP = {"doremi", "doremi-token", "doge", "doge-normalised", "odm"}


def tasks_for(name):
    """Fewer steps for what is asked at every one."""
    tasks = [task for task in TASKS if name not in IN_DOMAIN_ONLY or task.targets == task.m]
    return [replace(task, steps=task.steps // 5) for task in tasks] if name in EVERY_STEP else tasks


LIKE_OTHERS = {"aioli-ema", "aioli-l1-current", "aioli-pooled-sum", "doremi-token", "doge-normalised"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LIKE_OTHERS else name for name in RULES]
)
def test_conformance(name):
    check_policy(lambda task: RulePolicy(RULES[name](task), task), tasks_for(name))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", RULES)
def test_every_policy_in_every_world(name, world):
    """Methods × worlds: the run ends after its steps, on the simplex, with losses that went down."""
    where = WORLDS[world](3, None, 0, 500)
    task = Task(3, 500)
    reference = where.trainer(1)
    drive(RulePolicy(Static((1 / 3, 1 / 3, 1 / 3)), task), reference)
    trainer = where.trainer(2, 500, reference)
    seen = []
    drive(RulePolicy(RULES[name](task), task), trainer, lambda s, o: seen.append((s, o)))
    assert trainer.step == sum(s.steps for s, _ in seen) == 500
    assert (trainer.losses(trainer.state) < trainer.losses(where.trainer().state)).all()


@settings(max_examples=60)
@given(st.data())
def test_steps_add_up_for_all_valid_settings(data):
    """For all m in 1..50 and all S, T, k, delta that are valid: the steps asked for add up to S exactly."""
    m = data.draw(st.integers(1, 50))
    k = data.draw(st.integers(1, 3))
    T = data.draw(st.integers(1, 6))
    S = data.draw(st.integers(T * m * k, 4 * T * m * k + 50))
    delta = data.draw(st.floats(m * k / (S // T), 1.0))
    order = data.draw(st.sampled_from(["shuffle", "blocks", "mirrored"]))
    n = data.draw(st.integers(1, 3))
    task = Task(m, S, n, seed=data.draw(st.integers(0, 9)))
    policy = RulePolicy(Online(InterleavedSweep(k, delta=delta, order=order), EGD(0.5), T, "shift-sum"), task)
    total = 0
    while (segment := policy.ask()) is not None:
        p = segment.proportions
        assert abs(p.sum() - 1) <= 1e-12
        assert (p >= 0).all()
        total += segment.steps
        policy.tell(observation_for(segment, task, total))
    assert total == S


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 3000), st.sampled_from(sorted(set(RULES) - {"then"})))
def test_default_settings_work_for_all_sizes_or_say_why_not(m, S, name):
    task = Task(m, S)
    try:
        policy = RulePolicy(RULES[name](task), task)
    except ValueError as error:
        if "use" not in str(error):  # the remedy is part of the message
            raise
        return
    total = 0
    while (segment := policy.ask()) is not None and total < 200:
        total += segment.steps
        policy.tell(observation_for(segment, task, total))
    assert total <= S


@pytest.mark.parametrize("name", sorted(set(RULES) - {"static", "then", "skill-it", "odm"}))
def test_policies_do_not_care_about_the_order_of_groups(name):
    """Permute groups and targets of a noiseless world: the mixtures come out permuted."""
    rng = np.random.default_rng(1)
    A = rng.uniform(0, 2e-3, (4, 4))
    order = np.array([2, 0, 3, 1])
    ends = []
    for perm in (np.arange(4), order):
        world = LinearWorld(A[np.ix_(perm, perm)], np.array([5.0, 4.0, 6.0, 5.5])[perm], 400)
        task = Task(4, 400)
        reference = world.trainer()
        drive(RulePolicy(Static((0.25,) * 4), task), reference)
        policy = RulePolicy(RULES[name](task), task)
        drive(policy, world.trainer(reference=reference))
        ends.append(np.array(policy.report()["p"]))
    np.testing.assert_allclose(ends[0][order], ends[1], atol=1e-6)


def test_bandit_update_does_not_care_about_the_order_of_groups():
    reward, order = np.array([3.0, 1.0, 20.0, 7.0]), [2, 0, 3, 1]
    p, q = Bandit().update(reward, 50), Bandit().update(reward[order], 50)
    np.testing.assert_allclose(p[order], q)


def test_bandit_follows_exp3_as_printed():
    """E19: rewards, exploration and mixture, transcribed."""
    m, alpha = 3, 0.9
    task = Task(m, 30, seed=4)
    policy = RulePolicy(Bandit(alpha), task)
    R, p = np.zeros(m), np.full(m, 1 / m)
    for t in range(1, 31):
        segment = policy.ask()
        arm = int(np.argmax(segment.proportions))
        assert segment.proportions[arm] == 1.0
        loss = 2.0 + arm + 1 / t
        losses = np.full(m, np.nan)
        losses[arm] = loss
        policy.tell(Observation(segment.proportions * 10, train_loss=losses))
        R[arm] = alpha * R[arm] + (1 - alpha) * loss / p[arm]
        now, before = (1 / m if s < 1 else min(1 / m, np.sqrt(np.log(m) / (m * s))) for s in (t, t - 1))
        p = (1 - m * now) * np.exp(before * R) / np.exp(before * R).sum() + now
        np.testing.assert_allclose(policy.report()["p"], p, rtol=1e-9)


def test_a_policy_is_rebuilt_from_its_config():
    task = Task(3, 600)
    for name, rules in RULES.items():
        policy = RulePolicy(rules(task), task)
        config = json.loads(json.dumps(policy.state_dict()["rules"]))
        again = build(config, task)
        assert again.rules == policy.rules, name


def test_a_state_of_other_settings_is_refused():
    task = Task(2, 400)
    state = RulePolicy(RULES["aioli"](task), task).state_dict()
    other = RulePolicy(Online(InterleavedSweep(), EGD(0.3), None, "shift-sum"), task)
    with pytest.raises(ValueError, match=r"solver\.eta was 0\.2, now 0\.3"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="steps was 400, now 500"):
        RulePolicy(RULES["aioli"](task), Task(2, 500)).load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of a policy"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match="groups was"):
        create("aioli").policy(["a", "b"], 400).load_state_dict(create("aioli").policy(["b", "a"], 400).state_dict())


def test_configs_from_data_build_nothing_unknown():
    task = Task(2, 10)
    with pytest.raises(ValueError, match=r"'os\.system' is not known"):
        build({"type": "os.system"}, task)
    with pytest.raises(ValueError, match="Static has no setting 'x'"):
        build({"type": "Static", "x": 1}, task)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Task(0, 10), "m=0"),
        (lambda: Task(2, 0), "steps=0"),
        (lambda: Task(2, 10, n=0), "n=0"),
        (lambda: Task(2, 10, target_weights=(1.0,)), "one entry for each of the 2 targets"),
        (lambda: InterleavedSweep(eps=1.0), "eps=1.0"),
        (lambda: InterleavedSweep(delta=0.0), "delta=0.0"),
        (lambda: InterleavedSweep(k=0), "k=0"),
        (lambda: InterleavedSweep(order="random"), "order='random'"),
        (lambda: RulePolicy(Online(InterleavedSweep(delta=0.01), EGD(), 20), Task(7, 2000)), "delta=0.01 of a round"),
        (lambda: RulePolicy(Online(InterleavedSweep(), EGD(), 300), Task(7, 2000)), "use fewer rounds"),
        (lambda: RulePolicy(Online(InterleavedSweep(), EGD(), 300), Task(2, 200)), "rounds=300 is more than"),
        (lambda: RulePolicy(Online(InterleavedSweep(diagonal=True), EGD()), Task(2, 400, n=1)), "diagonal A"),
        (lambda: RulePolicy(Online(SkillGraph(((1.0, 2.0),)), EGD()), Task(3, 100)), r"shape \(1, 2\)"),
        (lambda: RulePolicy(Static((0.5, 0.5)), Task(3, 10)), "3 groups"),
        (lambda: RulePolicy(Then(Static((0.5, 0.5)), 11, Static((0.5, 0.5))), Task(2, 10)), "S_init=11 is more than"),
        (lambda: Static((0.5, 0.6)), "sum to 1.1"),
        (lambda: Bandit(alpha=1.0), "alpha=1.0"),
        (lambda: Online(InterleavedSweep(), EGD(), normalise="max"), "normalise='max'"),
        (lambda: RulePolicy(Online(InterleavedSweep(), EGD(caps=(0.1, 0.2))), Task(2, 400)), "caps sum to 0.3"),
    ],
)
def test_bad_settings_are_named_before_anything_is_trained(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_conformance_suite_takes_a_factory_without_a_task():
    check_policy(lambda: create("aioli").policy(3, 600))
    check_policy(lambda: create("aioli").policy(3, 600, targets=("x",)))

    class Bare:
        """Nothing but the protocol."""

        def __init__(self):
            self.policy = create("odm").policy(2, 120)
            self.needs = self.policy.needs
            self.ask, self.tell = self.policy.ask, self.policy.tell
            self.state_dict, self.load_state_dict = self.policy.state_dict, self.policy.load_state_dict

    check_policy(Bare)


def test_the_conformance_suite_catches_broken_policies():
    task = Task(2, 400)

    class Broken(RulePolicy):
        pass

    class Forgetful(Broken):
        def load_state_dict(self, state):
            self._state = self.rules.begin(self.task)
            self._asked = None

    class Restless(Broken):
        calls = 0

        def ask(self):
            self.calls += 1
            segment = super().ask()
            return segment if segment is None or self.calls % 2 else replace(segment, tag="other")

    class Credulous(Broken):
        def tell(self, observation):
            segment = self.ask()
            if observation.val_loss is None:
                observation = observation_for(segment, self.task, 0)
            super().tell(observation)

    class Short(Broken):
        def ask(self):
            segment = super().ask()
            return None if segment is not None and segment.tag == "train" else segment

    rules = RULES["aioli"](task)
    for broken, words in (
        (Forgetful, "reloading the state"),
        (Restless, "same segment until tell"),
        (Credulous, "must be refused"),
        (Short, "instead of 400"),
    ):
        with pytest.raises(AssertionError, match=words):
            check_policy(lambda t, broken=broken: broken(rules, t), [task])


def test_nobody_can_reach_into_a_policy():
    """What was told, loaded or handed out can be changed by its owner without changing the policy."""
    task = Task(2, 400)
    policy = RulePolicy(RULES["aioli"](task), task)
    policy.tell(Observation(np.zeros(2), val_loss=[2.0, 3.0]))
    losses = np.array([1.9, 2.9])
    observation = Observation(policy.ask().proportions, val_loss=losses)
    policy.tell(observation)
    before = json.dumps(policy.state_dict())
    losses[0] = 99.0
    with pytest.raises(ValueError, match="read-only"):
        observation.val_loss[0] = 99.0
    assert json.dumps(policy.state_dict()) == before
    loaded = json.loads(before)
    policy.load_state_dict(loaded)
    policy.ask()
    assert json.dumps(loaded) == before
    loaded["state"]["round"] = 7
    assert json.dumps(policy.state_dict()) == before


def test_what_was_not_asked_for_is_not_kept():
    task = Task(2, 400)
    policy = RulePolicy(RULES["aioli"](task), task)
    for _ in range(3):
        policy.tell(Observation(policy.ask().proportions, val_loss=[2.0, 3.0], train_loss=[3.0, np.nan]))
    json.dumps(policy.state_dict(), allow_nan=False)


def test_short_deltas_of_long_rounds_are_driven():
    """20,000-step rounds with a delta that would be too small for 1,000-step ones."""
    policy = create("aioli", delta=0.007).policy(7, 400_000)
    world = LinearWorld(np.full((7, 7), 1e-7), np.ones(7), 400_000)
    drive(policy, world.trainer())
