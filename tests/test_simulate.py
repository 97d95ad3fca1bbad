"""Worlds know their oracle, teach what they say, and comparisons are paired."""

import json

import numpy as np
import pytest

from aioli import Problem
from aioli.methods import create
from aioli.protocol import Segment
from aioli.simplex import uniform
from aioli.simulate import (
    WORLDS,
    LinearWorld,
    Noise,
    PowerLawWorld,
    Setting,
    Simulator,
    compare,
    interval,
    uniform_world,
)


@pytest.mark.parametrize("n", [None, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_static_mixture_beats_random_ones(seed, n):
    rng = np.random.default_rng(seed)
    for world in (PowerLawWorld.random(4, n, seed, 500), LinearWorld.random(4, n, seed, 500)):
        weights = rng.uniform(0.5, 2, world.n)
        best = world.value([(500, world.best_static(weights))], weights)
        others = [world.value([(500, p)], weights) for p in rng.dirichlet(np.full(4, 0.5), 300)]
        assert best <= min(others) + 1e-9


@pytest.mark.parametrize("name", ["powerlaw", "linear"])
def test_the_greedy_schedule_is_best_in_its_first_round(name):
    world = WORLDS[name](3, None, 1, 400)
    weights = np.ones(3)
    path = world.best_greedy(weights, 4)
    assert sum(steps for steps, _ in path) == 400
    first = world.value(path[:1], weights)
    rng = np.random.default_rng(0)
    assert first <= min(world.value([(path[0][0], p)], weights) for p in rng.dirichlet(np.ones(3), 200)) + 1e-9


def test_uniform_is_optimal_in_the_uniform_world():
    world = uniform_world(5, seed=3, steps=400)
    np.testing.assert_allclose(world.best_static(np.ones(5)), uniform(5), atol=1e-5)


def test_the_linear_law_holds_exactly_in_the_linear_world():
    world = LinearWorld(np.array([[1e-3, 2e-3]]), np.array([3.0]), 1000)
    trainer = world.trainer()
    trainer.advance(Segment([0.25, 0.75], 100))
    np.testing.assert_allclose(trainer.losses(trainer.state), 3.0 - 100 * (0.25e-3 + 1.5e-3))


def test_gradients_are_the_slopes_of_the_losses():
    world = PowerLawWorld.random(3, 2, 0, 500)
    trainer = world.trainer()
    trainer.noise = Noise()
    trainer.advance(Segment(uniform(3), 200))
    state, before = trainer.state, trainer.losses(trainer.state)
    slopes = trainer.slopes(state, trainer.step)
    rate = trainer.rate(trainer.step)
    tiny = 1e-4
    for j in range(3):
        moved = trainer.state.copy()
        count = len(world.E)
        moved[:count] += tiny * world.T[:, j]
        moved[count:] += tiny / world.memory * (np.eye(3)[j] - state[count:])
        np.testing.assert_allclose((before - trainer.losses(moved)) / tiny, slopes[:, j], rtol=1e-3)
    assert 0 < rate <= 1


def test_batches_hold_whole_samples_that_add_up_to_the_mixture():
    world = LinearWorld(np.eye(3) / 1000, np.ones(3), 100, noise=Noise(batch=8))
    trainer = world.trainer()
    p = np.array([0.357, 0.107, 0.536])
    total = np.zeros(3)
    for step in range(1, 60):
        tokens = trainer.advance(Segment(p, 1)).tokens
        assert tokens.sum() == 8
        assert (tokens == np.round(tokens)).all()
        total += tokens
        assert np.abs(total - 8 * step * p).max() <= 1.0 + 1e-9
    one_hot = LinearWorld(np.eye(3) / 1000, np.ones(3), 100, noise=Noise(batch=8)).trainer()
    assert one_hot.advance(Segment([1.0, 0.0, 0.0], 5)).tokens.tolist() == [40.0, 0.0, 0.0]


def test_the_learning_rate_warms_up_and_decays():
    rate = PowerLawWorld.random(2, None, 0, 1000).rate(1000)
    assert rate[0] < 0.05
    assert rate[49] == 1.0
    assert rate[-1] == pytest.approx(0.1, abs=0.01)
    assert (np.diff(rate[50:]) <= 0).all()


def test_interval_is_students():
    from scipy.stats import t

    d = np.array([0.1, -0.2, 0.4, 0.3])
    low, high = interval(d)
    expected = t.interval(0.95, 3, d.mean(), d.std(ddof=1) / 2)
    np.testing.assert_allclose((low, high), expected)
    assert interval([1.0]) == (-np.inf, np.inf)


@pytest.mark.parametrize("workers", [1, 2])
def test_compare_is_paired_and_repeatable(workers):
    methods = [(name, create(name)) for name in ("stratified", "aioli-ood", "dml")]
    found = compare(Setting("powerlaw", 3, 1, 400), methods, range(4), workers)
    again = compare(Setting("powerlaw", 3, 1, 400), methods, range(4), 1)
    assert found == again
    scores = {s.method: s for s in found.scores}
    assert scores["stratified"].difference == 0.0
    assert scores["dml"].difference < 0
    assert scores["dml"].extra_runs == 10
    assert scores["aioli-ood"].probing > 0
    assert found.room > 0


@pytest.mark.slow
def test_dml_wins_where_there_is_room_and_uniform_where_there_is_none():
    """Two worlds whose truth is known: a method must tell them apart."""
    methods = [(name, create(name)) for name in ("stratified", "dml", "aioli", "aioli-pooled")]
    target = compare(Setting("powerlaw", 4, 1, 1000), [*methods, ("aioli-ood", create("aioli-ood"))], range(20))
    assert target.room_interval[0] > 0
    by_name = {s.method: s for s in target.scores}
    assert by_name["dml"].room_closed > 0.8
    for name in ("aioli-ood", "aioli-pooled"):
        assert by_name[name].interval[1] < 0  # better than stratified, and surely so
    flat = compare(Setting("uniform", 7, None, 2000), methods, range(12))
    assert flat.no_room
    for score in flat.scores:  # and there they do no harm: less than a thousandth of the loss
        assert score.difference < 1e-3 * flat.stratified


def test_methods_that_cannot_run_are_skipped_with_the_reason():
    found = compare(Setting("powerlaw", 12, None, 800), [("dml", create("dml")), ("aioli", create("aioli"))], [0])
    assert "at least m+1=13 runs" in found.skipped["dml"]
    assert [s.method for s in found.scores] == ["aioli"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(world="flat"), "no world 'flat'"),
        (Setting(groups=0), "at least one group"),
        (Setting(targets=-1), "targets=-1"),
        (Setting(world="uniform", targets=2), "leave targets out"),
        (Setting(budget="none"), "budget='none'"),
        (Setting(groups=2, target_weights=(1.0,)), "one entry for each of the 2 targets"),
    ],
)
def test_bad_settings_are_named(setting, words):
    with pytest.raises(ValueError, match=words):
        compare(setting, [("aioli", create("aioli"))], [0])


def test_runs_have_noise_of_their_own_and_final_runs_are_judged_afresh():
    world = uniform_world(3, steps=200)
    task = Problem(("a", "b", "c"), 200)
    simulator = Simulator(world)
    ends = []
    for p in ([1 / 3] * 3, [1 / 3 + 1e-9, 1 / 3, 1 / 3 - 1e-9]):
        run = task.final_static(p)
        ends += [simulator.train(run).result.val_loss, simulator.train(run, again=True).result.val_loss]
        np.testing.assert_array_equal(simulator.train(run).result.val_loss, ends[-2])
    spread = np.std([end.mean() for end in ends])
    assert spread > 1e-4  # the same mixture, four different trainings


def test_one_seed_has_no_interval_and_is_valid_json():
    found = compare(Setting("powerlaw", 2, None, 300), ["stratified", "aioli"], [0])
    plain = found.to_json()
    assert plain["scores"][0]["interval"] is None
    json.dumps(plain, allow_nan=False)
