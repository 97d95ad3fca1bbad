"""Mixing laws recover what made the data, and say when they cannot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.lmo import LinearDynamic, LinearStatic, LogLinearDynamic, LogLinearStatic, Trees

STATIC = [LinearStatic, LogLinearStatic]
DYNAMIC = [LinearDynamic, LogLinearDynamic]


def truth(m, n, runs, seed, spread=1.5):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(m), runs)
    return rng, P, rng.normal(0, spread, (n, m)), rng.uniform(1, 3, n)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000))
def test_log_linear_law_is_recovered_without_noise(m, n, seed):
    rng, P, A, c = truth(m, n, 3 * m + 4, seed)
    law = LogLinearStatic().fit(P, c + np.exp(-P @ A.T))
    Q = rng.dirichlet(np.ones(m), 50)
    np.testing.assert_allclose(law.predict(Q), c + np.exp(-Q @ A.T), rtol=1e-4, atol=1e-4)
    assert law.A_.shape == (n, m)
    np.testing.assert_array_equal(law.b_, 1.0)  # the gauge of E22


@pytest.mark.parametrize("m", [2, 17, 50])
def test_log_linear_law_reaches_the_noise_floor(m):
    rng, P, A, c = truth(m, 4, 10 * m + 20, m)
    noise = 0.01
    clean = c + np.exp(-P @ A.T)
    law = LogLinearStatic().fit(P, clean + noise * rng.normal(size=clean.shape))
    expected = noise * np.sqrt((m + 1) / len(P))  # parameters over runs: the error of an efficient fit
    assert np.sqrt(((law.predict(P) - clean) ** 2).mean()) < 1.6 * expected


def test_log_linear_fit_is_not_moved_by_outliers():
    for seed in range(30):
        rng, P, A, c = truth(3, 2, 60, seed)
        clean = c + np.exp(-P @ A.T)
        L = clean + 0.003 * rng.normal(size=clean.shape)
        L[::15] += 2.0
        robust = np.abs(LogLinearStatic().fit(P, L).predict(P) - clean).max()
        assert robust < 0.02
        assert robust < 0.5 * np.abs(LogLinearStatic(huber=1e9).fit(P, L).predict(P) - clean).max()


def test_log_linear_fit_to_noise_is_no_worse_than_a_constant():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        law = LogLinearStatic().fit(rng.dirichlet([1, 1], 10), rng.normal(size=10))
        assert law.r2_[0] > -0.5
        assert np.isfinite(law.predict(np.eye(2))).all()
    P = np.random.default_rng(0).dirichlet([1, 1], 10)
    law = LogLinearStatic().fit(P, 3 + 1e-15 * np.arange(10))
    np.testing.assert_allclose(law.predict(np.eye(2)), 3.0)


def test_log_linear_fit_beats_a_multi_start_of_the_same_loss():
    from scipy.optimize import minimize

    rng, P, A, c = truth(4, 1, 25, 3)
    y = (c + np.exp(-P @ A.T))[:, 0] + 0.02 * rng.normal(size=25)
    delta = 0.02

    def huber(r):
        return np.where(np.abs(r) <= delta, 0.5 * r**2, delta * (np.abs(r) - delta / 2)).sum()

    law = LogLinearStatic(huber=delta).fit(P, y)
    ours = huber(y - law.predict(P))
    starts = rng.normal(0, 1.5, (30, 5))
    theirs = min(minimize(lambda t: huber(y - t[0] - np.exp(np.clip(-P @ t[1:], -50, 50))), s).fun for s in starts)
    assert ours <= theirs * (1 + 1e-6)


@pytest.mark.parametrize("law", STATIC)
def test_a_linear_world_is_fitted_by_both_static_laws(law):
    _, P, A, c = truth(4, 3, 30, 5, spread=0.3)
    L = c - P @ A.T
    fitted = law().fit(P, L)
    np.testing.assert_allclose(fitted.predict(P), L, atol=2e-3 if law is LogLinearStatic else 1e-10)
    assert fitted.r2_.min() > 0.999


def test_linear_static_reads_as_loss_at_uniform_minus_gains():
    _, P, A, c = truth(3, 2, 12, 1)
    law = LinearStatic().fit(P, c - P @ A.T)
    np.testing.assert_allclose(law.A_.sum(1), 0.0, atol=1e-9)
    np.testing.assert_allclose(law.c_, law.predict([[1 / 3] * 3])[0], atol=1e-9)
    np.testing.assert_allclose(law.A_ - law.A_[:, :1], A - A[:, :1], atol=1e-9)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 500))
def test_linear_dynamic_law_returns_A_exactly(m, n, seed):
    _, P, A, start = truth(m, n, 2 * m + 2, seed)
    law = LinearDynamic().fit(P, start - P @ A.T, start)
    np.testing.assert_allclose(law.A_, A, atol=1e-7)
    np.testing.assert_allclose(law.mse_, 0.0, atol=1e-12)


def test_linear_dynamic_law_with_many_starts():
    rng, P, A, _ = truth(3, 2, 20, 2)
    start = rng.uniform(2, 4, (20, 2))
    law = LinearDynamic().fit(P, start - P @ A.T, start)
    np.testing.assert_allclose(law.A_, A, atol=1e-9)
    np.testing.assert_allclose(law.predict(P, start), start - P @ A.T, atol=1e-9)
    with pytest.raises(ValueError, match="several starting losses"):
        law.predict(P)


def test_diagonal_law_is_least_squares_through_the_origin():
    _, P, A, start = truth(3, 3, 30, 4)
    D = np.diag(np.abs(A).sum(0))
    law = LinearDynamic(diagonal=True).fit(P, start - P @ D.T, start)
    np.testing.assert_allclose(law.A_, D, atol=1e-9)


def test_log_linear_dynamic_law_returns_A_exactly():
    _, P, A, start = truth(4, 3, 20, 6, spread=0.2)
    law = LogLinearDynamic().fit(P, start * np.exp(-P @ A.T), start)
    np.testing.assert_allclose(law.A_, A, atol=1e-9)
    np.testing.assert_allclose(law.predict(P), start * np.exp(-P @ A.T))


@pytest.mark.parametrize("law", [*STATIC, *DYNAMIC])
def test_laws_do_not_care_about_the_order_of_groups_or_targets(law):
    rng, P, A, c = truth(5, 4, 40, 8, spread=0.4)
    L = 3 + c + np.exp(-P @ A.T) + 0.01 * rng.normal(size=(40, 4))
    groups, targets = rng.permutation(5), rng.permutation(4)
    plain, moved = law().fit(P, L), law().fit(P[:, groups], L[:, targets])
    Q = rng.dirichlet(np.ones(5), 20)
    np.testing.assert_allclose(plain.predict(Q)[:, targets], moved.predict(Q[:, groups]), atol=1e-6)
    np.testing.assert_allclose(plain.A_[np.ix_(targets, groups)], moved.A_, atol=1e-3)


@pytest.mark.parametrize("law", [*STATIC, *DYNAMIC])
def test_a_constant_target_is_fitted_without_nan(law):
    _, P, A, _ = truth(3, 2, 12, 9, spread=0.3)
    L = np.stack([np.full(12, 2.5), 3 + P @ A[0]], 1)
    fitted = law().fit(P, L)
    assert np.isfinite(fitted.A_).all()
    np.testing.assert_allclose(fitted.predict(P)[:, 0], 2.5, atol=1e-9)
    assert fitted.r2_[0] == 1.0


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize("law", STATIC)
def test_the_size_of_the_losses_does_not_matter(law, size):
    _, P, A, c = truth(3, 2, 20, 10, spread=0.5)
    L = c + np.exp(-P @ A.T)
    np.testing.assert_allclose(law().fit(P, size * L).predict(P), size * law().fit(P, L).predict(P), rtol=1e-6)


@pytest.mark.parametrize("law", [*STATIC, *DYNAMIC])
def test_one_target_may_be_a_vector(law):
    _, P, A, c = truth(3, 1, 12, 11, spread=0.3)
    L = 3 + (c + np.exp(-P @ A.T))[:, 0]
    assert law().fit(P, L).predict(P).shape == (12,)
    assert law().fit(P, L[:, None]).predict(P).shape == (12, 1)


def test_trees_follow_a_smooth_law():
    _, P, A, c = truth(3, 2, 300, 12, spread=0.5)
    L = c + np.exp(-P @ A.T)
    law = Trees().fit(P[:200], L[:200])
    error = ((law.predict(P[200:]) - L[200:]) ** 2).mean(0)
    assert (error < 0.1 * L.var(0)).all()


def test_a_rank_deficient_design_names_the_cause():
    P = np.array([[0.2, 0.3, 0.5], [0.4, 0.1, 0.5]])
    with pytest.raises(ValueError, match="2 distinct mixtures for 3 groups"):
        LinearStatic().fit(P, [1.0, 2.0])
    P = np.array([[0.2, 0.8, 0.0], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])
    with pytest.raises(ValueError, match="group 2 is 0 in every mixture"):
        LinearStatic().fit(P, np.arange(4.0))
    x = np.linspace(0.1, 0.4, 5)
    P = np.stack([x, x, 1 - 2 * x], 1)
    with pytest.raises(ValueError, match=r"groups 0, 1 are tied"):
        LogLinearStatic().fit(P, np.arange(5.0))
    P = np.eye(3)
    with pytest.raises(ValueError, match="4 parameters per target"):
        LogLinearStatic().fit(P, np.arange(3.0))


@pytest.mark.parametrize("law", [*STATIC, *DYNAMIC])
def test_ridge_accepts_a_rank_deficient_design(law):
    x = np.linspace(0.1, 0.4, 9)
    P = np.stack([x, x, 1 - 2 * x], 1)
    fitted = law(ridge=1e-6).fit(P, 2 + 0.1 * x)
    np.testing.assert_allclose(fitted.predict(P), 2 + 0.1 * x, atol=1e-3)
    np.testing.assert_allclose(fitted.A_[0, 0], fitted.A_[0, 1], atol=1e-3)  # what cannot be told apart is shared


def test_ridge_pulls_towards_the_mean_without_running_into_corners():
    """Ten runs of ten groups cannot determine the law; with a little ridge its optimum is no worse than uniform."""
    from aioli.lmo import Direct

    gains = []
    for seed in range(8):
        _, P, A, c = truth(10, 10, 10, seed, spread=0.3)
        A = A + 1.5 * np.eye(10)
        best = Direct().solve(LogLinearStatic(ridge=0.1).fit(P, c + np.exp(-P @ A.T))).proportions
        gains.append(np.exp(-A @ np.full(10, 0.1)).mean() - np.exp(-A @ best).mean())
    assert np.mean(gains) > -0.02


def test_rows_that_are_rounded_are_accepted():
    P = np.array([[0.333, 0.333, 0.333], [0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])
    law = LinearStatic().fit(P, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert np.isfinite(law.predict([[0.333, 0.333, 0.333]])).all()


@pytest.mark.parametrize(
    ("P", "L", "words"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], [1, 2], "row 0"),
        ([[50, 50], [40, 60]], [1, 2], "percent"),
        ([[0.5, 0.5], [0.4, 0.6]], [1, np.nan], r"losses\[1, 0\]=nan"),
        ([[0.5, 0.5], [0.4, 0.6]], [1, 2, 3], "one row per mixture"),
        ([0.5, 0.5], [1, 2], "table of shape"),
        (np.zeros((0, 2)), [], "table of shape"),
    ],
)
@pytest.mark.parametrize("law", [*STATIC, *DYNAMIC])
def test_bad_tables_are_named(law, P, L, words):
    with pytest.raises(ValueError, match=words):
        law().fit(P, L)


def test_predicting_before_fitting_and_with_the_wrong_groups_is_refused():
    with pytest.raises(ValueError, match="not fitted"):
        LogLinearStatic().predict([[1.0]])
    law = LinearStatic().fit([[0.1, 0.9], [0.9, 0.1]], [1, 2])
    with pytest.raises(ValueError, match="3 groups but the law was fitted on 2"):
        law.predict([[0.2, 0.3, 0.5]])
    with pytest.raises(ValueError, match="no logarithm"):
        LogLinearDynamic().fit([[0.1, 0.9], [0.9, 0.1]], [0.0, 1.0])
    with pytest.raises(ValueError, match="one target per group"):
        LinearDynamic(diagonal=True).fit([[0.1, 0.9], [0.9, 0.1]], [0.0, 1.0])
