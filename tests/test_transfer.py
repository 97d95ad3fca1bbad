"""The transfer power law recovers what made the data, stays convex, and does not run away."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.lmo import Direct, LogLinearStatic, TransferPowerLaw


def world(m, n, runs, seed, terms=1):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(m), runs)
    T = np.exp(rng.normal(1.0, 1.2, (n, terms, m)))
    alpha, b, c = rng.uniform(0.3, 0.9, (n, terms)), rng.uniform(0.5, 2.0, (n, terms)), rng.uniform(1, 3, n)

    def loss(Q):
        return c + (b * (1 + np.einsum("nkm,rm->rnk", T, Q)) ** -alpha).sum(2)

    return rng, P, loss


@pytest.mark.parametrize("m", [2, 8, 17, 50])
def test_reaches_the_noise_floor(m):
    rng, P, loss = world(m, 3, 12 * m + 30, m)
    noise = 0.05 * loss(P).std(0)
    law = TransferPowerLaw().fit(P, loss(P) + noise * rng.normal(size=(len(P), 3)))
    efficient = noise * np.sqrt((m + 3) / len(P))  # parameters over runs: the error of an efficient fit
    assert (np.sqrt(((law.predict(P) - loss(P)) ** 2).mean(0)) < 1.6 * efficient).all()
    assert (law.noise_ / noise < 1.5).all()
    assert (law.noise_ / noise > 0.6).all()


def test_without_noise_it_predicts_new_mixtures():
    rng, P, loss = world(4, 2, 60, 0)
    law = TransferPowerLaw().fit(P, loss(P))
    Q = rng.dirichlet(np.ones(4), 100)
    np.testing.assert_allclose(law.predict(Q), loss(Q), atol=0.02 * loss(P).std())
    assert law.A_.shape == (2, 4)
    assert (law.A_ >= 0).all()


def test_several_terms_follow_what_one_cannot():
    rng, P, loss = world(6, 4, 400, 3, terms=4)
    L = loss(P) + 0.002 * rng.normal(size=(400, 4))
    Q = rng.dirichlet(np.ones(6), 200)
    error = {k: ((TransferPowerLaw(k).fit(P, L).predict(Q) - loss(Q)) ** 2).mean() for k in (1, 4)}
    assert error[4] < 0.5 * error[1]


@settings(max_examples=15)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 100))
def test_it_is_convex_and_its_optimum_is_certified(m, n, terms, seed):
    rng, P, loss = world(m, n, 5 * m, seed)
    law = TransferPowerLaw(terms).fit(P, loss(P) + 0.01 * rng.normal(size=(5 * m, n)))
    a, b = rng.dirichlet(np.ones(m), (2, 50))
    middle = law.predict((a + b) / 2)
    assert (middle <= (law.predict(a) + law.predict(b)) / 2 + 1e-9).all()
    best = Direct().solve(law)
    assert best.gap < 1e-9
    np.testing.assert_allclose(best.losses, law.predict(best.proportions[None])[0], rtol=1e-9)
    assert best.value <= law.predict(rng.dirichlet(np.ones(m), 2000)).mean(1).min() + 1e-9
    capped = Direct(caps=(0.3, *[1.0] * (m - 1))).solve(law)
    assert capped.gap < 1e-9
    assert capped.proportions[0] <= 0.3 + 1e-12


def test_few_runs_and_extreme_mixtures_do_not_make_it_run_away():
    for seed in range(8):
        rng, P, loss = world(8, 2, 6, seed)
        L = loss(P) + 0.02 * rng.normal(size=(6, 2))
        predicted = TransferPowerLaw(2).fit(P, L).predict(np.eye(8))
        assert np.isfinite(predicted).all()
        assert predicted.max() < L.max() + 20 * L.std()


def test_outliers_and_constant_and_huge_losses():
    rng, P, loss = world(3, 2, 60, 1)
    L = loss(P) + 0.003 * rng.normal(size=(60, 2))
    L[::15] += 2.0
    assert np.abs(TransferPowerLaw().fit(P, L).predict(P) - loss(P)).max() < 0.05
    flat = TransferPowerLaw().fit(P, np.full(60, 2.5))
    np.testing.assert_allclose(flat.predict(P), 2.5)
    for size in (1e-12, 1e12):
        L = loss(P)
        np.testing.assert_allclose(
            TransferPowerLaw().fit(P, size * L).predict(P), size * TransferPowerLaw().fit(P, L).predict(P), rtol=1e-4
        )


@pytest.mark.parametrize("law", [LogLinearStatic(), TransferPowerLaw(), TransferPowerLaw(2)])
def test_weights_count_runs_and_missing_losses_do_not(law):
    import copy

    rng, P, loss = world(4, 2, 60, 5)
    L = loss(P) + 0.01 * rng.normal(size=(60, 2))
    twice = copy.copy(law).fit(np.concatenate([P, P[:20]]), np.concatenate([L, L[:20]])).predict(P)
    weights = np.ones(60)
    weights[:20] = 2
    np.testing.assert_allclose(copy.copy(law).fit(P, L, weights).predict(P), twice, atol=2e-3)
    holes = L.copy()
    holes[40:, 0] = np.nan
    fitted = copy.copy(law).fit(P, holes, np.isfinite(holes))
    np.testing.assert_allclose(fitted.predict(P)[:, 0], copy.copy(law).fit(P[:40], L[:40, 0]).predict(P), atol=2e-3)
    np.testing.assert_allclose(fitted.predict(P)[:, 1], copy.copy(law).fit(P, L[:, 1]).predict(P), atol=2e-3)
    again = copy.copy(law).fit(P, L, like=copy.copy(law).fit(P, L))
    np.testing.assert_allclose(again.predict(P), copy.copy(law).fit(P, L).predict(P), atol=2e-3)


def test_parts_and_the_tangent():
    _, P, loss = world(4, 3, 50, 6)
    for law in (LogLinearStatic().fit(P, loss(P)), TransferPowerLaw(2).fit(P, loss(P))):
        part = law.part([2, 0, 2])
        np.testing.assert_allclose(part.predict(P), law.predict(P)[:, [2, 0, 2]])
        tangent = law.tangent(P, 1)
        assert tangent.shape[0] == 50
        np.testing.assert_allclose(tangent @ np.linalg.lstsq(tangent, np.ones(50), rcond=None)[0], 1.0)  # the level


@pytest.mark.parametrize("settings", [{"terms": 0}, {"terms": 2.5}, {"terms": 21}, {"spread": 0}, {"spread": np.nan}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        TransferPowerLaw(**settings)


def test_bad_weights_are_named():
    P, L = np.eye(3), np.ones((3, 2))
    with pytest.raises(ValueError, match="weights have shape"):
        TransferPowerLaw().fit(P, L, np.ones(4))
    with pytest.raises(ValueError, match="not negative"):
        TransferPowerLaw().fit(P, L, [-1, 1, 1])
    with pytest.raises(ValueError, match="no run counts for target 1"):
        TransferPowerLaw().fit(P, L, np.array([[1, 0], [1, 0], [1, 0]]))
