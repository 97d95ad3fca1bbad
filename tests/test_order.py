"""The order in which sequences are drawn, and how many of each group: keyed, random, exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.data import Indices, MixtureSampler
from aioli.data.counts import plan
from aioli.data.order import key, permute


def shares(m):
    value = st.one_of(st.just(0.0), st.floats(0.001, 1.0))
    return st.lists(value, min_size=m, max_size=m).filter(lambda v: sum(v) > 0).map(lambda v: np.array(v) / sum(v))


mixtures = st.integers(1, 12).flatmap(shares)


def order_of(n, seed=0, group=0, epoch=0, index=None):
    index = np.arange(n) if index is None else index
    keys = np.array([key(seed, group, epoch)], dtype=np.uint64)
    return permute(index, np.zeros(len(index), dtype=np.int64), np.array([n]), keys)


@given(st.integers(1, 3000), st.integers(0, 10**6), st.integers(0, 50), st.integers(0, 50))
def test_the_keyed_order_is_a_permutation(n, seed, group, epoch):
    assert sorted(order_of(n, seed, group, epoch)) == list(range(n))


def test_the_keyed_order_looks_random_and_differs_by_epoch_and_group():
    n = 50_000
    orders = [order_of(n, 0, g, e) for g, e in ((0, 0), (0, 1), (1, 0))]
    for a in orders:
        assert abs(np.corrcoef(np.arange(n), a)[0, 1]) < 0.02
        assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.02
        assert abs(np.abs(np.diff(a)).mean() / n - 1 / 3) < 0.01
        counts = np.bincount(a[: n // 2] * 50 // n, minlength=50)  # the first half is spread over the whole
        assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 100
    assert all((a == b).mean() < 0.01 for i, a in enumerate(orders) for b in orders[:i])


def test_a_billion_sequences_are_shuffled_without_memory():
    n = 10**9
    index = np.array([0, 1, n // 2, n - 1])
    image = order_of(n, index=index)
    assert len(set(image.tolist())) == 4
    assert (image < n).all()


@settings(max_examples=150)
@given(mixtures, st.integers(1, 40), st.integers(1, 120), st.data())
def test_counts_are_exact_for_all_mixtures_and_batch_sizes(p, batch, batches, data):
    m = p.size
    counts = plan(np.zeros(m), p, batch, 0, np.zeros(m, dtype=np.int64), batches)
    assert (counts >= 0).all()
    assert (counts.sum(1) == batch).all()
    assert (counts[:, p == 0] == 0).all()
    asked = p * batch * np.arange(1, batches + 1)[:, None]
    assert np.abs(np.cumsum(counts, 0) - asked).max() <= 1.0 + 1e-6
    cut = data.draw(st.integers(0, batches))
    first = plan(np.zeros(m), p, batch, 0, np.zeros(m, dtype=np.int64), cut)
    second = plan(np.zeros(m), p, batch, cut, first.sum(0), batches - cut)
    np.testing.assert_array_equal(np.concatenate([first, second]), counts)


def test_many_small_groups_that_fall_due_together_stay_within_one():
    p = np.array([0.5] + [0.005] * 100)
    counts = plan(np.zeros(101), p, 1, 0, np.zeros(101, dtype=np.int64), 2000)
    assert np.abs(np.cumsum(counts, 0) - p * np.arange(1, 2001)[:, None]).max() <= 1.0 + 1e-6


@settings(max_examples=60)
@given(st.integers(2, 8).flatmap(lambda m: st.lists(shares(m), min_size=2, max_size=12)), st.integers(4, 32))
def test_counts_follow_changing_mixtures(path, batch):
    """What is owed carries over; a change that no schedule can follow within one sample is followed within two."""
    m = path[0].size
    sampler = MixtureSampler(Indices((1000,) * m), batch)
    asked = np.zeros(m)
    for p in path:
        for _ in range(3):
            before = sampler.drawn
            sampler.next(p)
            asked += batch * p
            assert (sampler.drawn - before)[p == 0].sum() == 0
            assert np.abs(sampler.drawn - asked).max() <= 2.0


def test_every_epoch_has_an_order_of_its_own():
    for size in (40, 20_000):
        sampler = MixtureSampler(Indices((size,)), size // 4)
        epochs = [np.concatenate([sampler.next([1.0]).positions for _ in range(4)]) for _ in range(3)]
        for a, b in ((0, 1), (1, 2), (0, 2)):
            assert (epochs[a] == epochs[b]).mean() < 0.2
            assert sorted(epochs[a]) == list(range(size))


@pytest.mark.parametrize("n", [3, 6, 16, 64, 1000, 20_000])
def test_orders_are_as_random_as_shuffles(n):
    """The difference of neighbours is as uniform as it is for true shuffles, also for small groups."""
    rng, keys = np.random.default_rng(0), max(20, 60_000 // n)
    ours, true = np.zeros(n), np.zeros(n)
    for seed in range(keys):
        for counts, order in ((ours, order_of(n, seed)), (true, rng.permutation(n))):
            counts += np.bincount(np.diff(order) % n, minlength=n)
    expected = keys * (n - 1) / n
    spread = [((counts[1:] - expected) ** 2 / expected).sum() / (n - 1) for counts in (ours, true)]
    assert spread[0] < 2 * spread[1] + 0.5
    if n == 3:
        assert len({tuple(order_of(3, seed)) for seed in range(300)}) == 6
