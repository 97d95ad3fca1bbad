"""The paper's lemmas and theorem, its errata, and the values it prints, as tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioli.lmo import (
    EGD,
    ExcessLoss,
    GradientInner,
    InterleavedSweep,
    LinearDynamic,
    LinearStatic,
    SkillGraph,
    Task,
    column_sums,
    scale,
    similarity,
)
from aioli.policies import Online, RulePolicy, normalise
from aioli.protocol import Observation, Segment
from aioli.simplex import uniform
from aioli.simulate import LinearWorld

# Appendix C.2.1: A* for Github/C4 at p0 = [0.5, 0.5] …
GITHUB_C4_2000 = np.array([[0.148, 0.011], [-0.013, 0.087]])
GITHUB_C4_4000 = np.array([[0.015, 0.001], [0.001, 0.015]])
# … and full against diagonal, for Arxiv/StackExchange (p0 = 0.4) and Github/C4 (p0 = 0.6).
ARXIV_SE = np.array([[0.249, 0.058], [0.025, 0.224]]), np.diag([0.284, 0.238])
GITHUB_C4 = np.array([[0.119, 0.027], [-0.010, 0.104]]), np.diag([0.135, 0.098])


def simplex_points(m):
    return st.lists(st.floats(0.01, 1), min_size=m, max_size=m).map(lambda v: np.array(v) / sum(v))


def matrices(n, m, size=2.0):
    row = st.lists(st.floats(-size, size), min_size=m, max_size=m)
    return st.lists(row, min_size=n, max_size=n).map(np.array)


@given(simplex_points(3), matrices(3, 3), st.lists(st.floats(0, 2), min_size=3, max_size=3), st.floats(0.01, 2))
def test_lemma_1_egd_update_rule(p, A, b, eta):
    """One EGD step on sum_i c_i - b_i sum_j A_ij p_j is p_j exp(eta sum_i b_i A_ij) / Z."""
    gradient = -(np.array(b) @ A)  # of the objective in p, any c
    expected = p * np.exp(-eta * gradient)
    egd = EGD(eta)
    _, got = egd.step(egd.start(p), np.array(b) @ A)
    np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-9)


@given(matrices(3, 4), st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.integers(0, 100))
def test_lemma_2_c_can_be_absorbed(A, c, seed):
    """L = c - A p equals L^t - B p on the simplex with B = A - c + L^t; fits with and without a start predict alike."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(4), 12)
    before = rng.uniform(1, 3, 3)
    L = np.array(c) - P @ A.T
    B = A - np.array(c)[:, None] + before[:, None]
    np.testing.assert_allclose(before - P @ B.T, L, atol=1e-9)
    law = LinearDynamic().fit(P, L, before)
    np.testing.assert_allclose(law.A_, B, atol=1e-5)
    np.testing.assert_allclose(law.predict(P), LinearStatic().fit(P, L).predict(P), atol=1e-7)
    np.testing.assert_allclose(law.predict(P), LinearDynamic().fit(P, L).predict(P), atol=1e-7)


@given(simplex_points(4), st.integers(1, 8), st.integers(0, 100))
def test_lemma_3_weighted_objective(p, per_group, seed):
    """A uniform batch weighted by p and a batch drawn from p have the same expected loss, up to the factor m."""
    m, B = 4, 4 * per_group
    population = np.random.default_rng(seed).uniform(1, 5, m)  # expected loss of one sample of each group
    uniform_batch = (p * (B / m) * population).sum()
    drawn_batch = (p * B * population).sum() / m
    np.testing.assert_allclose(uniform_batch, drawn_batch)
    # and so a loss-weighted segment teaches a world what a sampled one does
    world = LinearWorld(np.random.default_rng(seed).uniform(0, 1, (m, m)), np.full(m, 5.0), 10)
    ends = []
    for weighting in ("sample", "loss"):
        trainer = world.trainer()
        trainer.advance(Segment(p, 10, weighting=weighting))
        ends.append(trainer.losses(trainer.state))
    np.testing.assert_allclose(*ends)


class TestTheorem1:
    """Skill-It, DoReMi and DoGE: the composed policy and the method's own rule give the same p, step by step."""

    m, steps = 3, 40

    def losses(self, step, size=3):
        return 2.0 + np.random.default_rng([5, step]).uniform(-1, 1, size)

    def test_skill_it(self):
        rng = np.random.default_rng(0)
        graph = rng.uniform(-0.1, 0.6, (3, 3))
        eta, window, T = 0.2, 3, 10
        policy = RulePolicy(
            Online(SkillGraph(tuple(map(tuple, graph))), EGD(eta, "window", window=window), T), Task(3, self.steps)
        )
        # transcription: p^{t+1} ∝ exp(eta · sum over the last w rounds of sum_i A_ij L_i), the first with L = 1 (E13)
        pulls = [graph.sum(0)]
        for t in range(T):
            expected = np.exp(eta * np.sum(pulls[-window:], 0))
            segment = policy.ask()
            np.testing.assert_allclose(segment.proportions, expected / expected.sum(), rtol=1e-12)
            L = self.losses(t)
            policy.tell(Observation(segment.proportions, val_loss=L))
            pulls.append(np.array([sum(graph[i, j] * L[i] for i in range(3)) for j in range(3)]))
        assert policy.ask() is None

    def test_doremi(self):
        eta, eps = 0.01, 1e-3
        policy = RulePolicy(Online(ExcessLoss(), EGD(eta, smoothing=eps), "every step"), Task(3, self.steps))
        p, last = np.full(3, 1 / 3), np.zeros(3)
        for t in range(self.steps):
            segment = policy.ask()
            assert segment.weighting == "loss"
            np.testing.assert_allclose(segment.proportions, p, rtol=1e-12)
            excess = self.losses(t) - 2.2
            tokens = np.ones(3)
            if t % 4 == 1:  # a group absent from the batch keeps its last excess loss (E16)
                excess[t % 3], tokens[t % 3] = np.nan, 0.0
            policy.tell(Observation(tokens, excess_loss=excess))
            last = np.where(np.isnan(excess), last, excess)
            q = p * np.exp(eta * np.maximum(last, 0.0))  # max, not the printed min (E14)
            p = (1 - eps) * q / q.sum() + eps / 3

    @pytest.mark.parametrize("summed", [False, True])
    def test_doge(self, summed):
        eta = 0.1
        policy = RulePolicy(Online(GradientInner(), EGD(eta), "every step"), Task(3, self.steps))
        p = np.full(3, 1 / 3)
        for t in range(self.steps):
            segment = policy.ask()
            assert segment.weighting == "loss"
            np.testing.assert_allclose(segment.proportions, p, rtol=1e-12)
            rng = np.random.default_rng([6, t])
            val, train = rng.normal(size=(3, 8)), rng.normal(size=(3, 8))  # gradients of 8 parameters
            inner = np.array([[val[i] @ train[j] for j in range(3)] for i in range(3)])
            policy.tell(Observation(np.ones(3), grad_inner=inner.sum(0) if summed else inner))
            q = p * np.exp(eta * np.array([train[j] @ val.sum(0) for j in range(3)]))
            p = q / q.sum()

    def test_doge_normalised(self):
        """The authors' code: times lr, over the mean gradient norm, clipped to [0, 5 lr], with 1/mu for eta (E17)."""
        lr, mu = 0.02, 0.05
        policy = RulePolicy(Online(GradientInner("normalised"), EGD(1 / mu), "every step"), Task(2, 1, n=2))
        policy.ask()
        inner, norms = np.array([[30.0, -1.0], [10.0, -2.0]]), np.array([2.0, 6.0])
        policy.tell(Observation(np.ones(2), grad_inner=inner, grad_norm=norms, lr=lr))
        scores = np.clip(lr * inner.sum(0) / norms.mean(), 0, 5 * lr)
        np.testing.assert_allclose(scores, [0.1, 0.0])
        expected = np.exp(scores / mu) / np.exp(scores / mu).sum()
        np.testing.assert_allclose(policy.report()["p"], expected)


@given(st.lists(matrices(3, 3, 1e3), min_size=1, max_size=6), st.floats(0.01, 3), st.floats(0, 0.95))
def test_e2_with_ema_no_share_exceeds_another_by_more_than_e_to_the_eta(matrices, eta, gamma):
    egd = EGD(eta, "ema", gamma=gamma)
    state = egd.start(3)
    for A in matrices:
        state, p = egd.step(state, normalise(A, "shift-sum").sum(0))
        assert p.max() / p.min() <= np.exp(eta) * (1 + 1e-9)


@pytest.mark.parametrize(
    "A", [np.zeros((3, 3)), np.full((3, 3), -2.0), np.full((2, 3), 1e300), np.full((3, 3), 1e-320)]
)
def test_e1_an_all_equal_A_gives_a_uniform_pull(A):
    pull = normalise(A, "shift-sum").sum(0)
    assert np.isfinite(pull).all()
    np.testing.assert_allclose(pull, pull[0])


@given(matrices(3, 4))
def test_e1_normalisations(A):
    shifted = normalise(A, "shift-sum")
    assert shifted.min() >= 0
    assert shifted.sum() == pytest.approx(1.0)
    assert np.abs(normalise(A, "l1")).sum() == pytest.approx(1.0 if np.abs(A).sum() > 0 else 0.0)
    np.testing.assert_array_equal(normalise(A, "none"), A)


def test_printed_column_sums_and_their_order():
    np.testing.assert_allclose(column_sums(GITHUB_C4_2000), [0.135, 0.098], atol=1e-12)
    np.testing.assert_allclose(column_sums(GITHUB_C4_4000), [0.016, 0.016], atol=1.1e-3)  # printed 0.016, 0.017


@pytest.mark.parametrize(("matrices", "diagonal_up", "full_up"), [(ARXIV_SE, 0, 1), (GITHUB_C4, 0, 1)])
def test_printed_matrices_pull_where_the_paper_says(matrices, diagonal_up, full_up):
    """The full matrix puts more on StackExchange (C4), the diagonal one on Arxiv (Github): Appendix C.2.1."""
    for A, up in zip(matrices, (full_up, diagonal_up), strict=True):
        egd = EGD(0.2)
        _, p = egd.step(egd.start(2), normalise(A, "shift-sum").sum(0))
        assert np.argmax(p) == up
        assert p[up] > 0.5


def test_printed_A_star_is_learned_from_a_world_that_has_it():
    """LearnParams in a world whose A is the printed one, and the direction of the first EGD step (towards Github)."""
    world = LinearWorld(GITHUB_C4_2000 / 100, np.array([4.0, 4.0]), 1000)
    policy = RulePolicy(Online(InterleavedSweep(k=2), EGD(0.2), 1, "shift-sum"), Task(2, 1000))
    trainer = world.trainer()
    while (segment := policy.ask()) is not None and segment.tag != "train":
        policy.tell(trainer.advance(segment))
    interval = policy.rules.estimator.interval(2, 1000)
    np.testing.assert_allclose(np.array(policy.report()["A"]), GITHUB_C4_2000 / 100 * interval, atol=1e-9)
    assert segment.proportions[0] > 0.5 > segment.proportions[1]


def test_e24_similarity():
    assert similarity(ARXIV_SE[0], ARXIV_SE[0]) == pytest.approx(1.0)
    assert similarity(ARXIV_SE[0], -ARXIV_SE[0]) == pytest.approx(-1.0)
    a, b = np.array([3.0, 4.0]), np.array([4.0, 3.0])
    assert similarity(a, b) == pytest.approx(0.5 * 24 / 25 - 0.5)
    assert similarity([1.0, 1.0], [1.0, 2.0]) == pytest.approx(0.5 * 3 / np.sqrt(10))  # a constant has no ranks: 0
    assert similarity([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == 0.0
    assert similarity([1e-300, 2e-300], [1e300, 2e300]) == pytest.approx(1.0)
    assert similarity(np.diag([1.0, 2.0, 3.0]), [10.0, 20.0, 30.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="2 groups"):
        similarity([1, 2], [1, 2, 3])


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.integers(0, 99))
def test_e24_spearman_agrees_with_scipy(values, seed):
    from scipy.stats import spearmanr

    from aioli.lmo import spearman

    other = np.random.default_rng(seed).integers(0, 3, len(values))
    if len(set(values)) > 1 and len(set(other.tolist())) > 1:
        assert spearman(values, other) == pytest.approx(spearmanr(values, other).statistic)
    else:
        assert spearman(values, other) == 0.0


def test_e25_scale_is_one_number_over_all_groups():
    rng = np.random.default_rng(0)
    P, A = rng.dirichlet(np.ones(3), 10), rng.uniform(0, 1, (3, 3))
    assert scale(A, P, 0.37 * P @ A.T) == pytest.approx(0.37)
    assert scale(np.zeros((3, 3)), P, P) == 0.0


@pytest.mark.parametrize(("m", "S", "length", "count"), [(2, 5000, 4, 8), (3, 5000, 6, 12), (7, 40_000, 10, 14)])
def test_e7_the_papers_intervals(m, S, length, count):
    delta = {2: 0.128, 3: 0.288, 7: 0.07}[m]
    for sweep in (InterleavedSweep(), InterleavedSweep(delta=delta)):
        rules = Online(sweep, EGD(), normalise="shift-sum")
        assert rules.count(Task(m, S)) == 20
        assert sweep.interval(m, S // 20) == length
        assert m * sweep.sweeps(m) == count
    policy = RulePolicy(rules, Task(m, S))
    assert policy.report()["delta"] == pytest.approx(delta)


def test_e3_p0_is_uniform_after_an_initial_phase():
    from aioli.methods import create

    policy = create("aioli", p_init=[0.9, 0.1], S_init=100).policy(2, 1000)
    first = policy.ask()
    np.testing.assert_allclose(first.proportions, [0.9, 0.1])
    policy.tell(Observation(first.proportions))
    look = policy.ask()
    assert look.steps == 0
    np.testing.assert_allclose(look.proportions, uniform(2))
