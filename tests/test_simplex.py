"""Mixtures, covers, splits and projections."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioli.simplex import (
    apportion,
    as_mixture,
    as_weights,
    box,
    cheapest,
    dirichlet_cover,
    pair_grid,
    project,
    smoothed_one_hot,
    split_evenly,
    uniform,
)

# The authors' published sweep of nine mixtures of three groups, seed 0 (github.com/HazyResearch/aioli,
# dirichlet_weights/k_3_n_9_seed_0.txt); its first row is the grid-search result printed in the paper's Table 13.
PUBLISHED_K3_N9_SEED0 = [
    [0.290991, 0.305786, 0.403223],
    [0.895544, 0.061192, 0.043264],
    [0.439226, 0.094484, 0.466289],
    [0.657667, 0.106660, 0.235673],
    [0.148904, 0.499877, 0.351219],
    [0.084589, 0.310648, 0.604763],
    [0.097333, 0.752472, 0.150196],
    [0.500644, 0.398725, 0.100631],
    [0.165316, 0.092574, 0.742110],
]


def test_dirichlet_cover_is_the_published_point_set():
    np.testing.assert_allclose(dirichlet_cover(3, 9, 1.0, 0), PUBLISHED_K3_N9_SEED0, atol=5e-7)


def slow_cover(m, n, alpha, seed, oversample):
    points = np.random.RandomState(seed).dirichlet([alpha] * m, n * oversample)
    while len(points) > n:
        gap = np.linalg.norm(points[:, None] - points[None], axis=-1)
        np.fill_diagonal(gap, np.inf)
        i, j = np.unravel_index(np.argmin(gap), gap.shape)
        points = np.vstack([np.delete(points, (i, j), 0), (points[i] + points[j]) / 2])
    return points


@given(st.integers(2, 8), st.integers(1, 12), st.sampled_from([0.5, 1.0, 1.5]), st.integers(0, 99), st.integers(1, 8))
def test_dirichlet_cover_equals_merging_the_closest_pair_by_brute_force(m, n, alpha, seed, oversample):
    cover = dirichlet_cover(m, n, alpha, seed, oversample)
    np.testing.assert_allclose(cover, slow_cover(m, n, alpha, seed, oversample), atol=1e-12)
    np.testing.assert_allclose(cover.sum(1), 1.0, atol=1e-12)


def test_pair_grid_is_the_papers():
    np.testing.assert_allclose(pair_grid()[:, 0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_rounds_differ_by_at_most_one_and_add_up(total, parts):
    pieces = split_evenly(total, parts)
    assert sum(pieces) == total
    assert max(pieces) - min(pieces) <= 1


@given(st.integers(0, 1000), st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda v: sum(v) > 1e-3))
def test_apportion_adds_up_and_is_within_one(total, shares):
    p = np.array(shares) / sum(shares)
    counts = apportion(total, p)
    assert counts.sum() == total
    assert np.abs(counts - p * total).max() < 1 + 1e-9


def boxes():
    def build(values):
        low = np.array([v[0] for v in values])
        low = low / max(1.0, low.sum() / 0.9)
        high = np.minimum(1.0, low + np.array([v[1] for v in values]))
        return low, high

    pair = st.tuples(st.floats(0, 0.5), st.floats(0, 1))
    return st.lists(pair, min_size=1, max_size=8).map(build).filter(lambda b: b[1].sum() > 1.0)


@given(boxes(), st.integers(0, 1000), st.sampled_from([0.1, 3.0, 50.0, 2000.0]))
def test_projection_is_the_kl_projection_onto_the_capped_simplex(bounds, seed, size):
    low, high = bounds
    rng = np.random.default_rng(seed)
    logits = size * rng.normal(size=low.size)
    z = project(logits, low, high)
    p = np.exp(z)
    assert abs(p.sum() - 1.0) < 1e-10
    assert (p >= low - 1e-12).all()
    assert (p <= high + 1e-12).all()
    # optimality: the gradient of KL(p || q) is z - logits; no feasible direction may go down
    inside = z > -500
    if inside.all():
        gradient = z - logits
        assert gradient @ p <= gradient @ cheapest(gradient, low, high) + 1e-7 * max(1.0, size)


def test_projection_without_bounds_is_softmax():
    z = project(np.array([0.0, 1.0, 2.0]), np.zeros(3), np.ones(3))
    np.testing.assert_allclose(np.exp(z), np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum())


def test_smoothed_one_hot_puts_the_papers_weight_on_the_chosen_group():
    P = smoothed_one_hot(4, 0.75)
    np.testing.assert_allclose(np.diag(P), 0.25 + 0.75 / 4)  # E8
    around = smoothed_one_hot(2, 0.5, [0.9, 0.1])
    np.testing.assert_allclose(around, [[0.95, 0.05], [0.45, 0.55]])  # E32


def test_weights_have_mean_one():
    np.testing.assert_allclose(as_weights((2, 1, 1), 3), [1.5, 0.75, 0.75])
    np.testing.assert_allclose(as_weights(None, 3), 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: as_mixture([0.5, 0.4]), "sum to 0.9, not 1"),
        (lambda: as_mixture([1.5, -0.5]), r"proportions\[1\]=-0.5"),
        (lambda: as_mixture([np.nan, 1.0]), r"proportions\[0\]=nan"),
        (lambda: as_mixture([]), "at least one group"),
        (lambda: as_mixture([0.5, 0.5], 3), "2 entries but there are 3 groups"),
        (lambda: uniform(0), "m=0"),
        (lambda: smoothed_one_hot(2, 1.0), "eps=1.0 makes the sweep mixtures identical"),
        (lambda: box(3, caps=[0.2, 0.2, 0.2]), "caps sum to 0.6 < 1"),
        (lambda: box(2, caps=[50, 60]), "percent: divide by 100"),
        (lambda: box(2, floors=[0.8, 0.8]), "floors sum to 1.6 > 1"),
        (lambda: box(2, floors=[0.5, 0.0], caps=[0.2, 1.0]), "floor 0.5 above its cap 0.2"),
        (lambda: as_weights((0, 0), 2), "not all zero"),
        (lambda: as_weights((1, -1), 2), "not negative"),
        (lambda: dirichlet_cover(3, 0, 1.0, 0), "n=0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
