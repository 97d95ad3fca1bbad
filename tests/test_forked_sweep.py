"""ForkedSweep: what is made of the losses after forks, and which groups are tried out again."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioli
from aioli.lmo import EGD, ForkedSweep, Round, Task
from aioli.lmo.forks import LONGEST, SEVERAL
from aioli.policies import Online, RulePolicy, fork_steps
from aioli.protocol import Observation
from aioli.simplex import uniform
from aioli.testing import check_policy


@settings(max_examples=40, deadline=None)
@given(m=st.integers(2, 6), n=st.integers(1, 5), eps=st.floats(0, 0.8), seed=st.integers(0, 10**6))
def test_a_is_exact_where_drops_are_linear(m, n, eps, seed):
    rng = np.random.default_rng(seed)
    A, p, sweep = rng.normal(size=(n, m)), rng.dirichlet(np.ones(m)), ForkedSweep(eps=eps)
    round = Round(Task(m, 100, n), 1, 10, p, None, 10)
    (segment,) = sweep.probes(sweep.begin(round.task), round)
    start = rng.uniform(2, 4, n)
    told = Observation(np.zeros(m), val_loss=start, fork_loss=start - segment.forks @ A.T)
    _, found = sweep.estimate(sweep.begin(round.task), round, None, [told])
    np.testing.assert_allclose(found.A, A, atol=1e-8)


def estimated(A, weights=None, sweep=None, state=None):
    """What a sweep makes of forks in a world where A is the truth."""
    sweep = sweep or ForkedSweep()
    n, m = A.shape
    round = Round(Task(m, 100, n, target_weights=weights), 1, 10, uniform(m), None, 10)
    state = state or sweep.begin(round.task)
    (segment,) = sweep.probes(state, round)
    told = Observation(np.zeros(m), val_loss=np.full(n, 3.0), fork_loss=3.0 - segment.forks @ A.T)
    return sweep.estimate(state, round, None, [told])


def test_a_is_fitted_on_what_forks_consumed():
    A, sweep = np.array([[0.3, -0.1, 0.2], [0.0, 0.1, 0.4]]), ForkedSweep()
    round = Round(Task(3, 100, 2), 1, 10, uniform(3), None, 10)
    tokens = np.array([[6.0, 1, 1], [1, 5, 2], [1, 1, 6]])  # eight whole samples
    drops = tokens / 8 @ A.T
    told = Observation(np.zeros(3), val_loss=np.full(2, 3.0), fork_loss=3.0 - drops, fork_tokens=tokens)
    _, found = sweep.estimate(sweep.begin(round.task), round, None, [told])
    np.testing.assert_allclose(found.A, A, atol=1e-9)
    policy = RulePolicy(Online(sweep, EGD(1.5), 1), round.task)
    for wrong in (tokens[:2], -tokens, 0 * tokens):
        with pytest.raises(ValueError, match="fork_tokens"):
            policy.tell(Observation(np.zeros(3), val_loss=np.ones(2), fork_loss=np.ones((3, 2)), fork_tokens=wrong))


def test_a_single_target_pulls_with_all_its_strength():
    state, found = estimated(np.array([[1.0, -1.0]]))
    np.testing.assert_allclose(found.pull, [1.0, -1.0])
    assert not state["settled"]


def test_differences_that_have_become_small_pull_little():
    large, small = np.array([[1.0, -1.0]]), np.array([[-0.1, 0.1]])
    state, _ = estimated(large)
    np.testing.assert_allclose(estimated(small, state=state)[1].pull, [-0.1, 0.1])


def test_even_shares_that_are_mixed_in_do_not_take_back_what_is_known():
    """Forks that show the same lead each time move p further each time, up to what smoothing leaves."""
    policy = aioli.create("aioli-fork", eta=0.3, first=1.0).policy(list("abc"), 1000, targets=["t"])
    paths = []
    while (segment := policy.ask()) is not None:
        told = {}
        if segment.forks is not None:
            told = {"val_loss": np.full(1, 3.0), "fork_loss": 3.0 - segment.forks @ np.array([[1.0], [0.0], [0.0]])}
        policy.tell(Observation(segment.proportions * segment.steps, **told))
        paths += [policy.report()["p"]] if told else []
    shares = [(p[0] - 0.2 / 3) / (p[1] - 0.2 / 3) for p in paths]
    np.testing.assert_allclose(shares, shares[0] ** np.arange(1, 4))


def raced(A, trail, **settings):
    """The groups of each sweep, the steps of its forks, and the mixture after it, in a world where A is the truth."""
    m = A.shape[1]
    groups, targets = [f"g{j}" for j in range(m)], [f"t{i}" for i in range(len(A))]
    policy = aioli.create("aioli-fork", trail=trail, **settings).policy(groups, 1000, targets=targets)
    sweeps = []
    while (segment := policy.ask()) is not None:
        told = {}
        if segment.forks is not None:
            told = {"val_loss": np.full(len(A), 3.0), "fork_loss": 3.0 - segment.forks @ A.T}
        policy.tell(Observation(segment.proportions * segment.steps, **told))
        if told:
            assert len(segment.forks) * segment.fork_steps <= 200  # a third of 60%, or two forks of a hundred
            sweeps.append((len(segment.forks), segment.fork_steps, policy.report()["p"]))
            assert sum(a is not None for a in policy.report()["A"][0]) == len(
                segment.forks
            )  # of others nothing is said
            json.dumps(policy.state_dict(), allow_nan=False)
    return sweeps


def test_groups_that_trail_are_tried_out_no_more_and_the_others_have_their_steps():
    lagging = np.array([[1.0, 0.8, -0.5]])
    assert [sweep[:2] for sweep in raced(lagging, None)] == [(3, 66)] * 3
    assert [sweep[:2] for sweep in raced(lagging, 1.0)] == [(3, 66), (2, 100), (2, 100)]
    close = np.array([[1.0, 0.8, 0.7]])
    assert [sweep[0] for sweep in raced(close, 1.0)] == [3, 3, 3]
    clear = np.array([[1.0, -1.0, -1.2, -1.1]])
    assert [sweep[0] for sweep in raced(clear, 1.0)] == [4, 2, 2]  # one fork alone would tell nothing


def test_what_is_tried_out_no_more_stays_behind_and_the_others_are_judged_as_before():
    A = np.array([[1.0, 0.8, -1.0]])
    every, few = raced(A, None, eta=0.5), raced(A, 1.0, eta=0.5)
    for (_, _, with_all), (_, _, p) in zip(every, few, strict=True):
        assert p[0] > p[1] > p[2]
        above = [np.array(q) - 0.2 / 3 for q in (with_all, p)]
        np.testing.assert_allclose(above[0][0] / above[0][1], above[1][0] / above[1][1], rtol=1e-6)


def test_the_first_sweep_counts_less_where_others_follow():
    A, smoothing = np.array([[1.0, 0.0]]), 0.2 / 2
    above = [np.array(p) - smoothing for _, _, p in raced(A, 1.5, first=0.5, eta=0.3)]
    whole = np.log(above[1][0] / above[1][1]) - np.log(above[0][0] / above[0][1])
    assert np.log(above[0][0] / above[0][1]) == pytest.approx(whole / 2)
    alone = [raced(A, 1.5, first=first, rounds=1) for first in (0.5, 1.0)]
    assert alone[0] == alone[1]


def test_towards_several_targets_all_groups_are_tried_out():
    assert [sweep[0] for sweep in raced(np.array([[1.0, 0.8, -0.5], [0.9, 0.9, -0.5]]), 1.0)] == [3, 3, 3]


@pytest.mark.parametrize("bounds", [{"caps": {"g0": 0.4}}, {"floors": {"g3": 0.1}}])
def test_with_floors_or_caps_all_groups_are_tried_out_and_the_best_keeps_its_cap(bounds):
    sweeps = raced(np.array([[1.0, 0.6, -1.5, -1.5]]), 1.5, **bounds)
    assert [sweep[0] for sweep in sweeps] == [4, 4, 4]
    if "caps" in bounds:
        assert all(p[0] == pytest.approx(0.4) for _, _, p in sweeps)


def test_where_targets_want_their_own_groups_p_stays_and_forks_end():
    own = np.array([[1.0, -0.9], [-1.0, 1.0]])
    state, found = estimated(own)
    assert found.pull.tolist() == [0.0, 0.0]
    assert state["settled"]
    assert ForkedSweep().probes(state, Round(Task(2, 100), 2, 10, uniform(2), None, 10)) == []
    assert 0 < estimated(own, sweep=ForkedSweep(doubt=0.0))[1].pull[1] < 0.1


def test_targets_that_agree_pull_together_and_weights_decide_between_others():
    _, agreed = estimated(np.array([[1.0, -1.0], [0.9, -0.9]]))
    _, alone = estimated(np.array([[1.0, -1.0]]))
    assert alone.pull[0] == pytest.approx(1.0)
    assert 0.9 * SEVERAL < agreed.pull[0] <= SEVERAL  # several targets: half as far
    _, first = estimated(np.array([[1.0, -1.0], [-1.0, 1.0]]), weights=(9.0, 1.0))
    assert first.pull[0] > 0.5 * SEVERAL


def test_losses_that_do_not_change_move_nothing_and_settle_nothing():
    state, found = estimated(np.zeros((2, 3)))
    assert found.pull.tolist() == [0.0, 0.0, 0.0]
    assert not state["settled"]  # or looks would be counted too low


@pytest.mark.parametrize(("rounds", "swept"), [(10, [1, 2, 3]), (1, [0]), (2, [1]), (20, [2, 3, 4, 5, 6, 7])])
def test_which_rounds_fork(rounds, swept):
    assert list(ForkedSweep().swept(Task(2, 1000), rounds)) == swept
    assert list(ForkedSweep(delta=0.2).swept(Task(2, 10), rounds)) == swept[:1]


@pytest.mark.parametrize(("steps", "m"), [(1000, 3), (40, 3), (100_000, 7), (200, 20)])
@pytest.mark.parametrize("delta", [0.6, 0.2])
def test_forks_keep_to_their_share_of_the_run(steps, m, delta):
    policy = aioli.create("aioli-fork", delta=delta).policy([f"g{j}" for j in range(m)], steps)
    spent, trained = 0, 0
    while (segment := policy.ask()) is not None:
        forks = 0 if segment.forks is None else len(segment.forks)
        assert segment.fork_steps <= LONGEST
        spent, trained = spent + forks * segment.fork_steps, trained + segment.steps
        values = {"val_loss": np.ones(m)} | ({"fork_loss": np.ones((forks, m))} if forks else {})
        policy.tell(Observation(segment.proportions * segment.steps, **values))
    assert trained == steps
    assert 0 < spent <= delta * steps


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(20, 3000), m=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_they_do_so_whoever_is_tried_out(steps, m, seed):
    rng = np.random.default_rng(seed)
    policy = aioli.create("aioli-fork").policy([f"g{j}" for j in range(m)], steps, targets=["t"])
    spent, told = 0, fork_steps(policy)
    while (segment := policy.ask()) is not None:
        forks = 0 if segment.forks is None else len(segment.forks)
        spent += forks * segment.fork_steps
        values = {"val_loss": np.full(1, 3.0), "fork_loss": rng.normal(2.5, 0.5, (forks, 1))} if forks else {}
        policy.tell(Observation(segment.proportions * segment.steps, **values))
    assert 0 < spent <= 0.6 * steps
    assert spent < told + 3 * m  # which is rounded, and told as about


def test_a_share_that_is_too_small_for_one_step_each_is_refused():
    with pytest.raises(ValueError, match=r"delta=0.2 of 12 steps is 2.4 steps, too few .* delta >= 0.417"):
        aioli.create("aioli-fork", delta=0.2).policy(5, 12)
    aioli.create("aioli-fork", delta=0.5).policy(5, 12)
    with pytest.raises(ValueError, match="S_init"):
        aioli.create("aioli-fork", S_init=120).policy(3, 100)


def test_bounds_hold_in_forks_too():
    policy = aioli.create("aioli-fork", caps={"a": 0.4}, floors={"b": 0.2}).policy(list("abc"), 100)
    while (segment := policy.ask()) is not None:
        every = segment.proportions[None] if segment.forks is None else segment.forks
        assert (every[:, 0] <= 0.4 + 1e-9).all()
        assert (every[:, 1] >= 0.2 - 1e-9).all()
        forks = np.ones((len(every), 3)) * [[1.0], [2.0], [3.0]][: len(every)]
        policy.tell(Observation(segment.proportions, val_loss=np.full(3, 4.0), fork_loss=forks))


def test_it_keeps_what_policies_promise():
    check_policy(lambda task: RulePolicy(Online(ForkedSweep(), EGD(1.5), min(10, task.steps)), task))


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": 0.0},
        {"eps": 1.0},
        {"after": 0.5, "until": 0.4},
        {"delta": 2.0},
        {"cooling": 0.0},
        {"trail": 0.0},
        {"first": 2.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ForkedSweep(**wrong)
