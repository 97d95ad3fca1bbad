"""LearnParams returns the truth; pooling knows its noise; orders and slopes are what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioli.lmo import EGD, InterleavedSweep, Round, Task
from aioli.lmo.slopes import fit_slopes
from aioli.policies import Online, RulePolicy
from aioli.protocol import Observation
from aioli.simplex import uniform
from aioli.simulate import LinearWorld, Noise


def learn(world, estimator, steps, seed=0, p=None, distort=None):
    """One round of an estimator in a world; returns its A."""
    task = Task(world.m, steps, None if world.n == world.m else world.n, seed)
    round = Round(task, 0, steps, uniform(world.m) if p is None else p)
    trainer = world.trainer(seed)
    log = []
    for segment in estimator.probes(estimator.begin(task), round):
        if distort is not None:
            from aioli.protocol import Segment

            segment = Segment(distort(segment.proportions), segment.steps, segment.observe)
        log.append(trainer.advance(segment))
    _, estimate = estimator.estimate(estimator.begin(task), round, world.start, log)
    return estimate.A


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0, 0.9),
    st.integers(1, 3),
    st.sampled_from(["shuffle", "blocks", "mirrored"]),
    st.integers(0, 99),
)
def test_learn_params_returns_A_exactly(m, n, eps, k, order, seed):
    rng = np.random.default_rng(seed)
    world = LinearWorld(rng.normal(0, 1e-3, (n, m)), np.full(n, 3.0), 1000)
    sweep = InterleavedSweep(k=k, eps=eps, order=order)
    np.testing.assert_allclose(learn(world, sweep, 1000), world.A * sweep.interval(m, 1000), atol=1e-9)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 99))
def test_learn_params_with_a_P_that_is_not_symmetric(m, n, seed):
    """Around a lopsided mixture P differs from its transpose, and a transposed solve would show (E4, E32)."""
    rng = np.random.default_rng(seed)
    world = LinearWorld(rng.normal(0, 1e-3, (n, m)), np.full(n, 3.0), 1000)
    sweep = InterleavedSweep(k=2, eps=0.6, around="current")
    got = learn(world, sweep, 1000, p=rng.dirichlet(np.ones(m)))
    np.testing.assert_allclose(got, world.A * sweep.interval(m, 1000), atol=1e-9)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 99))
def test_learn_params_with_realised_mixtures_that_differ_from_the_requested(m, n, seed):
    rng = np.random.default_rng(seed)
    world = LinearWorld(rng.normal(0, 1e-3, (n, m)), np.full(n, 3.0), 1000)
    sweep = InterleavedSweep(k=2, eps=0.5)

    def distort(p):
        q = p * rng.uniform(0.7, 1.3, m)
        return q / q.sum()

    np.testing.assert_allclose(learn(world, sweep, 1000, distort=distort), world.A * sweep.interval(m, 1000), atol=1e-9)


def test_realised_beats_requested_in_small_batches():
    """E5: with 8 samples a batch, solving with the requested proportions is wrong."""
    world = LinearWorld(np.array([[3e-3, 1e-3], [2e-3, 4e-3]]), np.full(2, 3.0), 1000, noise=Noise(batch=8))
    error = {}
    for fit in ("realised", "requested"):
        sweep = InterleavedSweep(k=2, eps=0.7, delta=0.016, fit=fit)  # intervals of 4 steps
        error[fit] = np.abs(learn(world, sweep, 1000) - world.A * 4).max()
    assert error["realised"] < 1e-9 < error["requested"]


@pytest.mark.parametrize(("m", "batch", "eps"), [(7, 2, 0.75), (7, 8, 0.95), (3, 1, 0.75), (2, 1, 0.5)])
def test_nearly_dependent_mixtures_do_not_blow_up(m, batch, eps):
    """Where tiny batches leave contrasts undetermined they are taken to be zero, not a million."""
    rng = np.random.default_rng(0)
    world = LinearWorld(rng.uniform(0.5, 1.5, (m, m)) / 1000, np.full(m, 3.0), 1000, noise=Noise(batch=batch))
    sweep = InterleavedSweep(k=2, eps=eps, delta=0.5)
    A = learn(world, sweep, 1000) / sweep.interval(m, 1000)
    assert np.abs(A).max() < 0.05


def test_a_group_that_was_never_drawn_is_taken_as_average():
    from aioli.lmo.sweep import solve_drops

    Q = np.array([[0.5, 0.5, 0.0], [0.75, 0.25, 0.0], [0.25, 0.75, 0.0]])
    np.testing.assert_allclose(solve_drops(Q, np.ones((3, 2))), 1.0)
    A = solve_drops(Q, Q @ np.array([[1.0], [3.0], [0.0]]))
    np.testing.assert_allclose(A, [[1.0, 3.0, 2.0]])


@pytest.mark.parametrize("m", [5, 250])
def test_least_squares_over_intervals_is_exact_for_few_and_many_groups(m):
    from aioli.lmo.sweep import solve_drops

    rng = np.random.default_rng(m)
    Q, A = rng.dirichlet(np.ones(m), 3 * m), rng.uniform(0, 1, (2, m))
    np.testing.assert_allclose(solve_drops(Q, Q @ A.T), A, atol=1e-6)


@pytest.mark.parametrize("batch", [None, 4096, 64])
def test_many_groups(batch):
    """m = 250: exact where the realised mixtures determine A, and no explosion where they do not."""
    rng = np.random.default_rng(0)
    world = LinearWorld(rng.uniform(0.5, 1.5, (3, 250)) / 1e4, np.full(3, 3.0), 4000, noise=Noise(batch=batch))
    sweep = InterleavedSweep(k=1, eps=0.5, delta=0.25)
    A = learn(world, sweep, 4000) / sweep.interval(250, 4000)
    assert np.abs(A).max() < 0.01
    if batch != 64:
        np.testing.assert_allclose(A, world.A, atol=1e-7)


def test_dependent_realised_mixtures_do_not_stop_a_run():
    """One sample per batch can make all realised mixtures alike: fall back to the least A that fits."""
    world = LinearWorld(np.full((2, 2), 1e-3), np.full(2, 3.0), 100, noise=Noise(batch=1))
    A = learn(world, InterleavedSweep(k=1, delta=0.02), 100)
    assert np.isfinite(A).all()
    assert np.abs(A).max() < 1.0


def test_diagonal_is_beta_over_own_share():
    world = LinearWorld(np.array([[2e-3, 1e-3], [5e-4, 3e-3]]), np.full(2, 3.0), 1000)
    sweep = InterleavedSweep(k=2, diagonal=True, delta=0.4)
    own = 0.25 + 0.75 / 2
    drop = 100 * (own * np.diag(world.A) + (1 - own) * np.array([1e-3, 5e-4]))
    np.testing.assert_allclose(learn(world, sweep, 1000), np.diag(drop / own), atol=1e-12)  # E10


@pytest.mark.parametrize("order", ["shuffle", "blocks", "mirrored"])
def test_orders(order):
    round = Round(Task(5, 1000, seed=3), 2, 1000, uniform(5))
    indices = InterleavedSweep(k=4, order=order).indices(round)
    assert sorted(indices) == sorted(list(range(5)) * 4)
    assert indices == InterleavedSweep(k=4, order=order).indices(round)
    if order == "shuffle":
        assert indices != sorted(indices)
        assert any(sorted(indices[5 * b : 5 * b + 5]) != list(range(5)) for b in range(4))
    else:
        assert all(sorted(indices[5 * b : 5 * b + 5]) == list(range(5)) for b in range(4))
    if order == "mirrored":
        assert indices[5:10] == indices[:5][::-1]
        assert indices[15:20] == indices[10:15][::-1]


def test_mirrored_order_cancels_linear_drift():
    """E6: when A fades linearly in time, mirrored blocks give its mean; a plain block is biased."""
    A = np.array([[3e-3, 1e-3, 2e-3]] * 2)
    world = LinearWorld(A, np.full(2, 3.0), 1000, A_end=0.2 * A)
    sweep = InterleavedSweep(k=2, delta=0.6, order="mirrored", eps=0.0)
    swept = 6 * sweep.interval(3, 1000)
    np.testing.assert_allclose(learn(world, sweep, 1000), world.teach(0, swept) / 6, atol=1e-9)
    shuffled = learn(world, InterleavedSweep(k=2, delta=0.6, order="blocks", eps=0.0), 1000, seed=1)
    assert np.abs(shuffled - world.teach(0, swept) / 6).max() > 1e-4


def test_slopes_of_power_laws():
    N = np.linspace(1e5, 1e6, 60)
    losses = np.stack([2.0 + 3.0 * (N / 1e5) ** -a for a in (0.2, 0.5)], 1)
    true = [3.0 * a * (10.0**-a) / 1e6 for a in (0.2, 0.5)]
    np.testing.assert_allclose(fit_slopes(N, losses), true, rtol=0.1)
    np.testing.assert_array_equal(fit_slopes(N, np.full((60, 2), 2.0)), 0.0)
    assert (fit_slopes(N, np.linspace(1, 2, 60)[:, None]) == 0.0).all()  # a rising loss has no slope to follow


def test_target_weights_move_the_pull():
    """A target that counts four times pulls four times as hard."""
    A = np.array([[2e-3, 0.0], [0.0, 2e-3]])
    world = LinearWorld(A, np.full(2, 5.0), 1000)
    ends = {}
    for weights in (None, (4.0, 1.0)):
        policy = RulePolicy(
            Online(InterleavedSweep(), EGD(0.2), 10, "shift-sum"), Task(2, 1000, target_weights=weights)
        )
        trainer = world.trainer()
        while (segment := policy.ask()) is not None:
            policy.tell(trainer.advance(segment))
        ends[weights] = policy.report()["p"]
    np.testing.assert_allclose(ends[None], [0.5, 0.5], atol=1e-9)
    assert ends[4.0, 1.0][0] > 0.7


def test_val_loss_of_zero_and_of_extreme_size():
    for size in (0.0, 1e-12, 1e12):
        policy = RulePolicy(Online(InterleavedSweep(), EGD(0.2), 4, "shift-sum"), Task(2, 400))
        step = 0
        while (segment := policy.ask()) is not None:
            step += 1
            policy.tell(Observation(segment.proportions, val_loss=size * np.array([1.0 + 1 / step, 1.0])))
            assert np.isfinite(segment.proportions).all()


def test_ado_follows_slope_times_credit_smoothed_in_time():
    """E21, transcribed: preference ∝ slope·share^s, floored; p = 0.9·mean of preferences so far + 0.1·preference."""
    from aioli.lmo import ScalingSlope, TimeAverage

    T, steps = 12, 120
    policy = RulePolicy(Online(ScalingSlope(warmup=0.0), TimeAverage(), T), Task(2, steps))
    share, N, losses, mean, count = np.full(2, 0.5), [], [], np.full(2, 0.5), 1
    for t in range(T):
        segment = policy.ask()
        tokens = np.array([30.0, 10.0])  # what is drawn differs from what is asked, so that the credit shows
        seen = np.array([2.0 + 3.0 / (t + 1), 2.0 + 1.0 / (t + 1)])
        policy.tell(Observation(tokens, train_loss=seen))
        share = 0.9 * share + 0.1 * tokens / 40
        N.append(40.0 * (t + 1))
        losses.append(seen)
        wish = np.full(2, 0.5)
        if t >= 3:
            wish = fit_slopes(np.array(N), np.array(losses)) * share**0.5
            wish = np.maximum(wish / wish.sum(), 0.01)
            wish /= wish.sum()
        p = 0.9 * mean + 0.1 * wish
        count += 1
        mean = mean + (wish - mean) / count
        np.testing.assert_allclose(policy.report()["p"], p / p.sum(), rtol=1e-9)
        assert segment.steps == 10
