"""PooledSweep: what it makes of noise, of targets that disagree, and when it sweeps."""

import json
from functools import partial

import numpy as np
import pytest

from aioli import create
from aioli.lmo import EGD, InterleavedSweep, PooledSweep, Round, Task
from aioli.lmo.pooled import _even
from aioli.policies import Online, RulePolicy
from aioli.protocol import Observation, drive
from aioli.simplex import uniform
from aioli.simulate import LinearWorld, Noise


def drive_pooled(noise, contrast, seed, rounds=10, shrink=True):
    A = np.full((1, 3), 1e-3) + contrast * np.array([[1.0, 0.0, -1.0]])
    world = LinearWorld(A, np.array([3.0]), 3000, noise=Noise(val=noise))
    policy = RulePolicy(Online(PooledSweep(shrink=shrink), EGD(3.0, "ema(0)"), rounds), Task(3, 3000, 1, seed))
    trainer = world.trainer(seed)
    while (segment := policy.ask()) is not None:
        policy.tell(trainer.advance(segment))
    return policy.report()


def test_pooled_sweep_finds_a_clear_contrast():
    told = drive_pooled(noise=1e-5, contrast=5e-4, seed=0)
    assert np.argsort(told["p"]).tolist() == [2, 1, 0]
    np.testing.assert_allclose(told["pull"], np.array([0.5, 0.0, -0.5]), atol=0.05)  # relative to the typical drop


def test_pooled_sweep_without_noise_recovers_the_contrasts_exactly():
    told = drive_pooled(noise=0.0, contrast=3e-4, seed=1, shrink=False)
    interval = PooledSweep().sweep.interval(3, 300)
    A = np.array(told["A"])[0]
    np.testing.assert_allclose(A - A.mean(), interval * np.array([3e-4, 0.0, -3e-4]), atol=1e-9)


def test_pooled_sweep_does_not_follow_noise():
    """Without any contrast, the shrunken pulls are smaller than the raw ones, and mostly zero."""
    moved = [np.abs(drive_pooled(0.003, 0.0, seed)["pull"]).max() for seed in range(12)]
    raw = [np.abs(drive_pooled(0.003, 0.0, seed, shrink=False)["pull"]).max() for seed in range(12)]
    assert np.mean(moved) < 0.5 * np.mean(raw)
    assert np.median(moved) == 0.0


def test_pooled_standard_errors_cover():
    """Without any contrast, pulls divided by their standard errors have a spread of about one."""
    z = []
    for seed in range(60):
        told = drive_pooled(0.001, 0.0, seed, shrink=False)
        z.append(np.array(told["pull"]) / np.array(told["stderr"]))
    assert 0.7 < np.sqrt(np.mean(np.square(z))) < 1.5


def pooled_in(A, doubt, weights=None, until=1.0):
    """A run in a linear world without noise."""
    A = np.asarray(A)
    world = LinearWorld(A, np.full(len(A), 5.0), 2000)
    rules = Online(PooledSweep(doubt=doubt, until=until), EGD(3.0, "ema(0)"), 10)
    policy, trainer, tags = (
        RulePolicy(rules, Task(A.shape[1], 2000, len(A), target_weights=weights)),
        world.trainer(0),
        [],
    )
    while (segment := policy.ask()) is not None:
        policy.tell(trainer.advance(segment))
        tags.append((segment.tag, trainer.step, segment.proportions))
    return policy.report(), tags


def test_targets_that_pull_apart_leave_p_alone():
    """Two targets that each want their own group: with a doubt of one half, one must want it three times as much."""
    for other, moves in ((1e-3, False), (0.5e-3, False), (0.3e-3, True), (0.1e-3, True)):
        told, _ = pooled_in([[1e-3, 0.0], [0.0, other]], doubt=0.5)
        assert (np.abs(told["pull"]).max() > 0) == moves, other
    told, _ = pooled_in([[1e-3, 0.0], [0.0, 0.5e-3]], doubt=0.0)
    assert told["p"][0] > 0.6


def test_targets_that_agree_and_single_targets_are_not_doubted():
    alone, _ = pooled_in([[1e-3, 0.0, 0.5e-3]], doubt=0.0)
    for A in ([[1e-3, 0.0, 0.5e-3]], [[1e-3, 0.0, 0.5e-3]] * 4):
        told, _ = pooled_in(A, doubt=2.0)
        np.testing.assert_allclose(told["p"], alone["p"], atol=1e-3)


def test_a_target_that_counts_more_is_followed_in_spite_of_doubt():
    own = 1e-3 * np.eye(3)
    even, _ = pooled_in(own, doubt=0.5)
    np.testing.assert_allclose(even["p"], np.full(3, 1 / 3))
    told, _ = pooled_in(own, doubt=0.5, weights=(4.0, 1.0, 1.0))
    assert told["p"][0] > 0.45


def test_sweeps_end_when_they_are_told_to():
    """After half the run the mixture stays, and every step is trained on it."""
    told, tags = pooled_in([[1e-3, 0.0]], doubt=0.0, until=0.5)
    swept = [step for tag, step, _ in tags if tag.startswith("sweep")]
    assert max(swept) <= 1000 + 0.5 * 200
    later = np.stack([p for tag, step, p in tags if tag == "train" and step > 1000])
    np.testing.assert_array_equal(later, np.tile(later[0], (len(later), 1)))
    assert told["p"][0] > 0.8
    assert told["round"] == 10


def test_a_mixture_that_accumulates_stays_after_the_sweeps():
    rules = Online(PooledSweep(until=0.5), EGD(0.2), 10)
    world = LinearWorld(np.array([[1e-3, 0.0]]), np.array([5.0]), 2000)
    policy, trainer, seen = RulePolicy(rules, Task(2, 2000, 1)), world.trainer(0), []
    while (segment := policy.ask()) is not None:
        policy.tell(trainer.advance(segment))
        if segment.tag == "train":
            seen.append(segment.proportions[0])
    assert np.all(np.diff(seen[:5]) > 0)
    assert np.ptp(seen[5:]) == 0


def swept(A, targets_weights=None, **settings):
    """The steps of each sweep interval by round, in a linear world without noise."""
    A = np.asarray(A)
    world = LinearWorld(A, np.full(len(A), 5.0), 2000)
    sweep = InterleavedSweep(k=2, delta=0.9, order="mirrored", around="current", eps=0.5)
    rules = Online(PooledSweep(sweep, doubt=0.5, after=0.1, until=0.5, first=0.3, **settings), EGD(3.0, "ema(0)"), 10)
    policy, trainer = (
        RulePolicy(rules, Task(A.shape[1], 2000, len(A), target_weights=targets_weights)),
        world.trainer(0),
    )
    found = {}
    while (segment := policy.ask()) is not None:
        if segment.tag.startswith("sweep"):
            found.setdefault(trainer.step // 200, []).append(segment.steps)
        policy.tell(trainer.advance(segment))
    return found, policy.report()


def test_a_single_target_is_swept_for_long_from_a_tenth_of_the_run_to_half_of_it():
    found, told = swept([[1e-3, 0.0, 0.5e-3]])
    assert found == {t: [30] * 6 for t in (1, 2, 3, 4)}
    assert np.argmax(told["p"]) == 0


def test_sweeps_are_short_until_targets_are_known_to_agree_and_end_where_they_do_not():
    own = np.diag([1e-3, 0.9e-3, 1.1e-3])
    found, told = swept(own)
    assert found == {1: [10] * 6, 2: [10] * 6}
    np.testing.assert_allclose(told["p"], 1 / 3, atol=1e-9)
    found, told = swept([[1e-3, 0.0, 0.5e-3], [0.9e-3, 0.1e-3, 0.5e-3], [1e-3, 0.1e-3, 0.4e-3]])
    assert found == {1: [10] * 6, 2: [10] * 6, 3: [30] * 6, 4: [30] * 6}
    assert np.argmax(told["p"]) == 0
    found, told = swept(own, (8.0, 1.0, 1.0))  # one target that counts eight times is not outvoted
    assert len(found) == 4
    assert np.argmax(told["p"]) == 0


def test_rounds_too_short_for_careful_sweeps_are_swept_as_shortly_as_they_can_be():
    task = Task(4, 100, 4)
    sweep = PooledSweep(InterleavedSweep(k=2, delta=0.9, order="mirrored"), first=0.3)
    probes = sweep.probes(sweep.begin(task), Round(task, 0, 10, uniform(4)))
    assert [segment.steps for segment in probes] == [1] * 8


def test_when_sweeps_begin_and_end_is_checked():
    with pytest.raises(ValueError, match="0 <= after < until <= 1"):
        PooledSweep(after=0.5, until=0.5)
    with pytest.raises(ValueError, match="delta=2"):
        PooledSweep(first=2.0)


@pytest.mark.parametrize("groups", [2, 3, 7, 10])
def test_short_runs_are_swept_too(groups):
    """However few rounds there are, one of them sweeps; and no length of run is refused for its default rounds."""
    for steps in (*range(2 * groups + 3, 60 * groups, 7), 94, 100, 318, 388):
        policy = create("aioli-pooled").policy(groups=groups, steps=steps)
        swept = 0
        while (segment := policy.ask()) is not None:
            swept += segment.tag.startswith("sweep")
            values = {"val_loss": np.full(groups, 3.0)} if segment.observe else {}
            policy.tell(Observation(segment.proportions * segment.steps, **values))
        assert swept > 0, steps


def test_noise_in_targets_is_no_disagreement():
    """Targets whose noise cancels in the sum do not end the sweeps: what is apart is only noise."""
    ended = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        task = Task(2, 2000, 2, seed)
        pooled = PooledSweep(InterleavedSweep(k=2, delta=0.9, order="mirrored"), doubt=0.5)
        state = pooled.begin(task)
        for t in range(3):
            round = Round(task, t, 200, uniform(2))
            log, loss = [], np.full(2, 3.0)
            for segment in pooled.sweep.probes({}, round):
                jitter = rng.normal(0, 0.01)
                loss = loss - 0.01 + np.array([jitter, -jitter])
                log.append(Observation(segment.proportions * segment.steps, val_loss=loss))
            state, _ = pooled.estimate(state, round, np.full(2, 3.0), log)
        ended += state["settled"]
    assert ended <= 8


def test_towards_a_single_target_p_follows_the_posterior_mean():
    """With a prior as large as the standard error half of a contrast is believed, without noise all of it; less where
    noise explains the differences between groups."""
    for contrast, noise, seeds in ((3e-4, 0.0, 1), (0.0, 0.003, 12)):
        for seed in range(seeds):
            A = np.full((1, 3), 1e-3) + contrast * np.array([[1.0, 0.0, -1.0]])
            told = {}
            for prior in (None, 0.7):
                world = LinearWorld(A, np.array([3.0]), 3000, noise=Noise(val=noise))
                rules = Online(PooledSweep(shrink=prior is not None, expected=prior, even=True), EGD(1e-9), 10)
                policy, trainer = RulePolicy(rules, Task(3, 3000, 1, seed)), world.trainer(seed)
                while (segment := policy.ask()) is not None:
                    policy.tell(trainer.advance(segment))
                told[prior] = policy.report()
            V = np.square(told[None]["stderr"])
            expected = np.array(told[None]["pull"]) * 0.49 / (0.49 + V)
            expected -= expected.mean()
            believed = float(np.dot(told[0.7]["pull"], expected) / (expected @ expected))
            np.testing.assert_allclose(told[0.7]["pull"], believed * expected, rtol=1e-6, atol=1e-9)
            assert believed == pytest.approx(1.0) if noise == 0.0 else 0.0 <= believed < 1.0
    with pytest.raises(ValueError, match="expected=0"):
        PooledSweep(expected=0.0)


@pytest.mark.parametrize(
    ("A", "noise", "steps"),
    [
        ([[1e-3, 0.0, 0.5e-3]], 0.0, 2000),  # one group is left after two sweeps
        ([[1e-3, 0.0, 1e-3, 0.2e-3]], 1e-2, 1999),  # two are
        (np.diag([1e-3, 0.9e-3, 1.1e-3]), 0.0, 2000),  # targets disagree
        ([[1e-3, 0.0], [0.9e-3, 0.1e-3]], 0.0, 2000),  # and agree
    ],
)
def test_reloaded_after_every_step_it_trains_the_same(A, noise, steps):
    """What ends or changes sweeps is decided within a round, whose rest must not depend on when it was saved."""
    A = np.asarray(A)
    targets = [f"t{i}" for i in range(len(A))]

    def trained(reload):
        world = LinearWorld(A, np.full(len(A), 5.0), steps, noise=Noise(val=noise))
        method = create("aioli-pooled", rounds=10)
        make = partial(method.policy, groups=[f"g{j}" for j in range(A.shape[1])], steps=steps, targets=targets)
        policy, trainer, seen = make(), world.trainer(0), []
        while (segment := policy.ask()) is not None:
            seen.append((segment.tag, segment.steps, tuple(np.round(segment.proportions, 9))))
            policy.tell(trainer.advance(segment))
            if reload:
                saved = json.loads(json.dumps(policy.state_dict()))
                policy = make()
                policy.load_state_dict(saved)
        return seen

    assert trained(False) == trained(True)
    assert sum(each[1] for each in trained(True)) == steps


def test_groups_out_of_the_race_stay_there():
    """Nothing new is learned of them, and nothing is forgotten: p stays once nothing changes."""
    A = np.zeros((1, 12))
    A[0, :2] = 1e-3
    world = LinearWorld(A, np.array([5.0]), 12_000, noise=Noise(val=1e-3))
    policy = create("aioli-pooled", rounds=60, even=False).policy(groups=12, steps=12_000, targets=["t"])
    trainer, good = world.trainer(0), []
    while (segment := policy.ask()) is not None:
        policy.tell(trainer.advance(segment))
        if segment.tag == "train":
            good.append(segment.proportions[:2].sum())
    assert good[-1] >= max(good[8:]) - 0.03


def test_a_group_at_its_cap_ends_no_race():
    """What is left is shared by the others, which are therefore still swept."""
    A = [[4e-3, 1e-3, 1e-3]]
    found = {}
    for caps in (None, [0.1, 1.0, 1.0]):
        world = LinearWorld(np.array(A), np.array([9.0]), 2000)
        policy = create("aioli-pooled", rounds=10, caps=caps).policy(groups=3, steps=2000, targets=["t"])
        trainer, sweeps = world.trainer(0), 0
        while (segment := policy.ask()) is not None:
            sweeps += segment.tag.startswith("sweep")
            policy.tell(trainer.advance(segment))
        found[caps is None] = sweeps
    assert found[True] == 12
    assert found[False] == 24


@pytest.mark.parametrize(
    ("groups", "steps", "rounds"), [(3, 100_000, 20), (3, 1000, 10), (3, 500, 8), (7, 1000, 8), (3, 40, 5), (3, 8, 1)]
)
def test_rounds_are_so_few_that_intervals_are_long(groups, steps, rounds):
    policy = create("aioli-pooled").policy(groups=groups, steps=steps, targets=["t"])
    assert policy.state_dict()["state"]["rounds"] == rounds


def test_what_cannot_be_told_apart_is_mixed_evenly():
    theta, pull = np.array([0.9, 0.5, -1.4]), np.array([0.8, 0.4, -1.2])
    for variance, swept, expected in (
        (0.0, [0, 1, 2], pull),  # no noise
        (0.04, [0, 1], [0.7, 0.5, -1.2]),  # two differ by 0.4, with a variance of 0.08: half of it is believed
        (0.5, [0, 1], [0.6, 0.6, -1.2]),  # nothing of it; the third is out of the race and stays
        (5.0, [0, 1, 2], [0.0, 0.0, 0.0]),
        (5.0, [0], pull),
    ):
        np.testing.assert_allclose(_even(pull, theta, variance * np.eye(3), swept), expected, atol=1e-12)
    unseen = _even(pull, np.zeros(3), np.zeros((3, 3)), [0, 1, 2])
    np.testing.assert_allclose(unseen, 0.0, atol=1e-12)


def test_towards_a_single_target_groups_that_trail_are_swept_no_more():
    A = [[1e-3, 0.0, 0.5e-3]]
    found, told = swept(A, trail=2.0)  # without noise the second sweep settles it
    assert found == {1: [30] * 6, 2: [30] * 6}
    assert np.argmax(told["p"]) == 0
    found, told = swept([[1e-3, 0.0, 1e-3]], trail=2.0)  # two that are equally good go on, with longer intervals
    assert found == {1: [30] * 6, 2: [30] * 6, 3: [45] * 4, 4: [45] * 4}
    assert told["p"][0] == pytest.approx(told["p"][2], rel=1e-6)
    assert told["p"][1] < 0.1
    found, _ = swept(A * 3, trail=2.0)  # several targets: p must be able to follow what they need later
    assert set(found) == {1, 2, 3, 4}
    assert all(len(steps) == 6 for steps in found.values())
    with pytest.raises(ValueError, match="trail=0"):
        PooledSweep(trail=0.0)


def test_noise_seldom_ends_the_sweeps():
    """Where groups do not differ, few trail by two standard errors, and hardly ever all but one."""
    ended = left = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        task = Task(3, 2000, 1, seed)
        pooled = PooledSweep(InterleavedSweep(k=2, delta=0.9, order="mirrored", eps=0.25), trail=2.0)
        state = pooled.begin(task)
        for t in range(3):
            round = Round(task, t, 200, uniform(3))
            probes = pooled.probes(state, round)
            if not probes:
                break
            loss = 3.0 - np.cumsum(0.01 + rng.normal(0, 0.01, len(probes)))
            log = [
                Observation(s.proportions * s.steps, val_loss=np.array([v])) for s, v in zip(probes, loss, strict=True)
            ]
            state, _ = pooled.estimate(state, round, np.array([3.0]), log)
        ended += state["settled"]
        left += 3 - len(state["swept"])
    assert ended <= 20
    assert left <= 60


def test_how_far_sweeps_go_depends_on_the_number_of_targets():
    for targets, largest in ((["t"], 0.75 + 0.25 / 2), (["t", "u"], 0.5 + 0.5 / 2), (None, 0.5 + 0.5 / 2)):
        policy = create("aioli-pooled").policy(groups=["a", "b"], steps=1000, targets=targets)
        n = len(targets or "ab")
        while not (segment := policy.ask()).tag.startswith("sweep"):
            policy.tell(Observation(segment.proportions * segment.steps, val_loss=np.full(n, 3.0)))
        assert segment.proportions.max() == pytest.approx(largest)


def test_towards_a_single_target_no_group_is_left_out():
    """However bad a group is, it keeps a trace; towards several targets nothing is mixed in."""
    for targets, least in ((["t"], 0.05 / 3), (["t", "u"], 0.0)):
        A = np.tile([[2e-3, 0.0, 0.0]], (len(targets), 1))
        world = LinearWorld(A, np.full(len(targets), 5.0), 2000)
        policy = create("aioli-pooled", eta=30.0).policy(groups=["a", "b", "c"], steps=2000, targets=targets)
        drive(policy, world.trainer(0))
        assert min(policy.report()["p"]) == pytest.approx(least, abs=1e-3)
        assert np.argmax(policy.report()["p"]) == 0
