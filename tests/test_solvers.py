"""Solvers: the certificate of Direct, the memories of EGD, best of a sweep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioli.lmo import EGD, BestOf, BestSimulated, Direct, LinearStatic, LogLinearStatic, TimeAverage


def random_law(rng, m, n, spread):
    law = LogLinearStatic()
    law.A_, law.b_, law.c_ = rng.normal(0, spread, (n, m)), rng.uniform(0.2, 2, n), rng.uniform(0, 3, n)
    return law


def random_bounds(rng, m, kind):
    if kind == "caps":
        caps = rng.uniform(0.5, 3, m) / m
        return None, tuple(np.minimum(1.0, caps * max(1.0, 1.1 / caps.sum())))
    if kind == "both":
        floors = rng.uniform(0, 0.6, m) / m
        return tuple(floors), tuple(np.minimum(1.0, floors + rng.uniform(1, 3, m) / m))
    return None, None


def in_box(rng, m, low, high, count):
    """Random mixtures within bounds: convex combinations of random greedy vertices and of the middle."""
    draws = rng.dirichlet(np.full(m, 0.3), count)
    if low is None and high is None:
        return draws
    low = np.zeros(m) if low is None else np.array(low)
    high = np.minimum(1.0, np.array(high))
    room = high - low
    fill = np.minimum(draws * (1 - low.sum()), room)
    for _ in range(60):
        left = (1 - low.sum()) - fill.sum(1, keepdims=True)
        space = room - fill
        fill = np.minimum(fill + left * space / np.maximum(space.sum(1, keepdims=True), 1e-300), room)
    P = low + fill
    return P[np.abs(P.sum(1) - 1) < 1e-9]


@pytest.mark.parametrize("m", [*(pytest.param(m, marks=pytest.mark.slow) for m in (2, 3, 5)), 8])
def test_direct_beats_or_equals_a_million_random_mixtures_on_200_convex_instances(m):
    """50 instances for each number of groups, each against the same 10^6 mixtures (with caps: those that keep them)."""
    rng = np.random.default_rng(m)
    cloud = np.concatenate([rng.dirichlet(np.full(m, a), 500_000) for a in (0.4, 2.0)])
    for k in range(50):
        n = int(rng.integers(1, 4))
        law = random_law(rng, m, n, rng.choice([0.2, 1.0, 4.0]))
        low, high = random_bounds(rng, m, ("none", "caps", "both")[k % 3])
        weights = rng.uniform(0, 2, n) + 0.01
        found = Direct(tuple(weights), low, high).solve(law)
        P = cloud
        if high is not None:
            inside = (cloud <= np.array(high)).all(1) & (cloud >= np.array(low if low is not None else 0.0)).all(1)
            P = np.concatenate([cloud[inside], in_box(rng, m, low, high, 2000)])
        best = ((law.c_ + law.b_ * np.exp(-P @ law.A_.T)) @ (weights / weights.sum())).min()
        assert found.value <= best + 1e-10
        assert found.gap < 1e-8
        assert abs(found.proportions.sum() - 1) < 1e-12
        assert (found.proportions <= (1.0 if high is None else np.array(high)) + 1e-12).all()
        assert (found.proportions >= (0.0 if low is None else np.array(low)) - 1e-12).all()


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", [pytest.param("linear", marks=SLOW), "log-linear", pytest.param("noise", marks=SLOW)])
def test_direct_is_right_on_laws_that_were_fitted(kind):
    """Fitted laws, also to data that are straight or mere noise: no vertex or edge point beats a certified optimum."""
    for seed in range(60):
        rng = np.random.default_rng([7, seed])
        m = int(rng.integers(2, 5))
        P, A = rng.dirichlet(np.ones(m), 10), rng.normal(0, 1, (m, m))
        clean = {"linear": 3 - P @ A.T, "log-linear": 2 + np.exp(-P @ A.T), "noise": np.zeros((10, m))}[kind]
        law = LogLinearStatic().fit(P, clean + 0.01 * rng.normal(size=clean.shape))
        found = Direct().solve(law)
        assert found.gap < 1e-8
        others = np.concatenate([np.eye(m), rng.dirichlet(np.full(m, 0.3), 2000)])
        assert found.value <= law.predict(others).mean(1).min() + 1e-8
        assert law.r2_.min() > -0.5


def test_direct_gap_bounds_the_distance_to_the_optimum():
    rng = np.random.default_rng(0)
    law = random_law(rng, 5, 3, 1.0)
    found = Direct().solve(law)
    P = rng.dirichlet(np.ones(5), 2000)
    assert ((law.c_ + law.b_ * np.exp(-P @ law.A_.T)).mean(1) >= found.value - found.gap).all()


def test_direct_on_a_linear_law_is_the_cheapest_vertex():
    law = LinearStatic().fit(np.eye(3), [[1.0], [3.0], [2.0]])
    found = Direct().solve(law)
    np.testing.assert_allclose(found.proportions, [1, 0, 0], atol=1e-12)
    capped = Direct(caps=(0.5, 1.0, 0.3)).solve(law)
    np.testing.assert_allclose(capped.proportions, [0.5, 0.2, 0.3], atol=1e-12)
    assert capped.gap == pytest.approx(0.0, abs=1e-12)


def test_direct_gives_groups_that_do_not_help_exactly_nothing():
    law = random_law(np.random.default_rng(2), 4, 2, 1.0)
    law.A_[:, 3] = law.A_.min() - 1.0
    assert Direct().solve(law).proportions[3] == 0.0


@pytest.mark.parametrize("caps", [(1.0, 0.0, 1.0), (0.5, 0.25, 0.25), (1.0, 1.0, 1.0)])
def test_direct_with_degenerate_caps(caps):
    law = random_law(np.random.default_rng(3), 3, 2, 1.0)
    found = Direct(caps=caps).solve(law)
    assert (found.proportions <= np.array(caps) + 1e-12).all()
    assert found.gap < 1e-8


def test_direct_with_a_fixed_group():
    law = random_law(np.random.default_rng(3), 3, 2, 1.0)
    found = Direct(floors=(0.2, 0.0, 0.0), caps=(0.2, 1.0, 1.0)).solve(law)
    assert found.proportions[0] == 0.2
    assert found.gap < 1e-8


def test_direct_weighs_targets():
    law = LogLinearStatic()
    law.A_, law.b_, law.c_ = np.array([[2.0, 0.0], [0.0, 2.0]]), np.ones(2), np.zeros(2)
    np.testing.assert_allclose(Direct().solve(law).proportions, [0.5, 0.5], atol=1e-9)
    assert Direct((3.0, 1.0)).solve(law).proportions[0] > 0.6
    np.testing.assert_allclose(Direct((1.0, 0.0)).solve(law).proportions, [1.0, 0.0], atol=1e-9)


@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 200))
def test_direct_does_not_care_about_the_order_of_groups(m, n, seed):
    rng = np.random.default_rng(seed)
    law = random_law(rng, m, max(m, n), 1.0)  # n >= m: the optimum is unique
    order = rng.permutation(m)
    moved = LogLinearStatic()
    moved.A_, moved.b_, moved.c_ = law.A_[:, order], law.b_, law.c_
    np.testing.assert_allclose(Direct().solve(law).proportions[order], Direct().solve(moved).proportions, atol=1e-6)


pulls = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=8)


def memories():
    return st.sampled_from(
        [
            EGD(0.3),
            EGD(0.3, "ema(0.5)"),
            EGD(0.3, "window(2)"),
            EGD(0.3, smoothing=0.01),
            EGD(0.3, caps=(0.5, 0.4, 0.9)),
        ]
    )


@given(memories(), pulls)
def test_egd_stays_on_the_simplex_and_within_bounds(egd, pulls):
    state = egd.start(3)
    for pull in pulls:
        state, p = egd.step(state, pull)
        assert abs(p.sum() - 1) <= 1e-12
        assert (p >= 0).all()
        if egd.caps:
            assert (p <= np.array(egd.caps) + 1e-12).all()
        if egd.smoothing:
            assert (p >= egd.smoothing / 3 - 1e-15).all()


@given(memories(), pulls, st.permutations([0, 1, 2]))
def test_egd_does_not_care_about_the_order_of_groups(egd, pulls, order):
    from dataclasses import replace

    moved = replace(egd, caps=None if egd.caps is None else tuple(egd.caps[j] for j in order))
    a, b = egd.start(3), moved.start(3)
    for pull in pulls:
        a, p = egd.step(a, pull)
        b, q = moved.step(b, [pull[j] for j in order])
        np.testing.assert_allclose(p[list(order)], q, atol=1e-9)


def test_egd_memories_do_what_they_say():
    pull = [np.array([1.0, 0.0]), np.array([0.0, 3.0]), np.array([2.0, 0.0])]

    def last(egd):
        state = egd.start([0.25, 0.75])
        for g in pull:
            state, p = egd.step(state, g)
        return p

    def softmax(logits):
        return np.exp(logits) / np.exp(logits).sum()

    origin = np.log([0.25, 0.75])
    np.testing.assert_allclose(last(EGD(0.1)), softmax(origin + 0.1 * np.array([3.0, 3.0])))
    np.testing.assert_allclose(last(EGD(0.1, "window", window=2)), softmax(origin + 0.1 * np.array([2.0, 3.0])))
    ema = 0.5 * pull[2] + 0.5 * (0.5 * pull[1] + 0.5 * pull[0])
    np.testing.assert_allclose(last(EGD(0.1, "ema", gamma=0.5)), softmax(origin + 0.1 * ema))
    np.testing.assert_allclose(last(EGD(0.1, "ema", gamma=0.0)), softmax(origin + 0.1 * pull[2]))


def test_egd_takes_a_whole_A_and_sums_it_by_target_weights():
    A = np.array([[1.0, 0.0], [0.0, 2.0]])
    egd = EGD(0.5, target_weights=(3.0, 1.0))
    _, p = egd.step(egd.start(2), A)
    _, q = EGD(0.5).step(EGD(0.5).start(2), np.array([1.5, 0.5]) @ A)
    np.testing.assert_allclose(p, q)
    _, plain = EGD(0.5).step(EGD(0.5).start(2), A)
    np.testing.assert_allclose(plain, np.exp([0.5, 1.0]) / np.exp([0.5, 1.0]).sum())


def test_egd_never_loses_a_group_for_good():
    egd = EGD(1.0)
    state = egd.start(2)
    for _ in range(900):
        state, p = egd.step(state, [1.0, 0.0])
    assert p[1] < 1e-300
    for _ in range(900):
        state, p = egd.step(state, [0.0, 1.0])
    np.testing.assert_allclose(p, [0.5, 0.5], atol=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EGD(0.0), "eta=0.0"),
        (lambda: EGD(float("nan")), "eta=nan"),
        (lambda: EGD(memory="last"), "memory='last'"),
        (lambda: EGD(memory="ema"), "gamma=None"),
        (lambda: EGD(memory="ema(1.0)"), "gamma=1.0"),
        (lambda: EGD(memory="window(0)"), "window=0"),
        (lambda: EGD(smoothing=1.0), "smoothing=1.0"),
        (lambda: EGD(caps=(0.1, 0.1)).start(2), "caps sum to 0.2 < 1"),
        (lambda: EGD(caps=(0.5, 0.6)).start(3), "one entry for each of the 3 groups"),
        (lambda: EGD().step(EGD().start(2), [np.nan, 0.0]), "finite"),
        (lambda: EGD().step(EGD().start(2), [1.0]), "2 finite numbers"),
        (lambda: TimeAverage(gamma=0.0), "gamma=0.0"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_best_of_averages_repeated_mixtures():
    P = [[0.5, 0.5], [0.2, 0.8], [0.5, 0.5]]
    assert BestOf().solve(P, [1.0, 1.5, 3.0]).value == 1.5
    assert BestOf().solve(P, [1.0, 1.5, 1.2]).value == pytest.approx(1.1)
    assert BestOf((0.0, 1.0)).solve(P[:2], [[1.0, 9.0], [5.0, 2.0]]).value == 2.0


def test_best_simulated_finds_the_good_region():
    found = BestSimulated(20_000, 50).solve(lambda P: ((P - [0.6, 0.3, 0.1]) ** 2).sum(1, keepdims=True), 3)
    np.testing.assert_allclose(found.proportions, [0.6, 0.3, 0.1], atol=0.02)
    assert found.gap is None


def test_direct_stays_in_the_middle_where_nothing_matters():
    law = LogLinearStatic().fit(np.random.default_rng(0).dirichlet(np.ones(3), 12), np.full((12, 2), 2.5))
    np.testing.assert_allclose(Direct().solve(law).proportions, 1 / 3)
    with pytest.raises(ValueError, match="not fitted"):
        Direct().solve(LogLinearStatic())
