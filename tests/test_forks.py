"""Forks: mixtures tried out on copies of the model, which leave no trace but what they told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import GROUPS, engine_of, journal_of, model_of, recipe_of, weights
from test_engine import store as store

import aioli
from aioli.cli.train import Live
from aioli.data import Indices, MixtureSampler
from aioli.files import read_json
from aioli.lmo import EGD, ForkedSweep, Round, Task
from aioli.lmo.forks import LONGEST, SEVERAL
from aioli.policies import Online, RulePolicy, fork_steps
from aioli.protocol import Cursor, Observation, Segment, drive
from aioli.report.text import running
from aioli.simplex import uniform
from aioli.simulate import Noise, PowerLawWorld
from aioli.testing import check_policy
from aioli.train import DivergedError, Run, StoppedError

P = np.array([[0.7, 0.1, 0.2], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
FORKS = frozenset({"val_loss", "fork_loss"})
LOOK = Segment(uniform(3), 0, FORKS, forks=P, fork_steps=4)


# ---------------------------------------------------------------------- in the engine


def test_a_run_goes_on_as_if_there_had_been_no_forks(store):
    plain, forking = (engine_of(store, model=model_of(attention_dropout=0.1)) for _ in range(2))
    for steps in (0, 3, 4):  # also before the first step, where the optimizer has no state yet
        for engine in (plain, forking):
            torch.manual_seed(steps)
            engine.advance(Segment(uniform(3), steps))
        torch.manual_seed(7)
        before = forking.state_dict()
        told = forking.advance(LOOK)
        after = forking.state_dict()
        assert told.fork_loss.shape == (3, 3)
        assert told.tokens.sum() == 0
        assert {k: v for k, v in before.items() if k != "seconds"} == {k: v for k, v in after.items() if k != "seconds"}
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(7).get_state())
    for engine in (plain, forking):
        torch.manual_seed(1)
        engine.advance(Segment(uniform(3), 6))
    assert torch.equal(weights(plain.plain), weights(forking.plain))
    assert forking.seconds["probe"] > 0


def test_a_fork_is_training_on_its_mixture_at_a_rate_that_ends_at_zero(store):
    forking, plain = engine_of(store), engine_of(store)
    for engine in (forking, plain):
        engine.advance(Segment(uniform(3), 5))
    told = forking.advance(replace(LOOK, fork_cooling=0.5))
    rates = []
    for scale in (1.0, 1.0, 0.75, 0.25):  # the second half falls to zero, linearly
        batch = plain.sampler.next(P[1])
        rates.append(plain.settings.schedule.rate(plain.step) * scale)
        for group in plain.optimizer.param_groups:
            group["lr"] = rates[-1]
        ids = torch.from_numpy(batch.ids)
        plain.plain(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.plain.parameters(), 1.0)
        plain.optimizer.step()
        plain.optimizer.zero_grad()
        plain.step += 1
    assert rates == sorted(rates, reverse=True)
    np.testing.assert_allclose(told.fork_loss[1], plain.val_losses(plain.validation), rtol=1e-6)


def test_stopped_between_forks_it_goes_on_to_the_same_bits(store, tmp_path):
    chosen = {"name": "aioli-fork", "settings": {"rounds": 6, "delta": 0.5, "doubt": 0.0}}
    whole = Run(recipe_of(store, method=chosen), tmp_path / "whole")
    whole.train()
    assert sum(line.get("tag") == "forks" for line in journal_of(tmp_path / "whole")) == 2

    for stops in (1, 2, 4):
        seen = 0

        def stopping(run, stops=stops):
            nonlocal seen
            seen += run.segment is not None and run.segment.tag == "forks" and run.engine.segment is not None
            if seen == stops:
                run.stop.set()

        with pytest.raises(StoppedError):
            Run(recipe_of(store, method=chosen), tmp_path / "run", stopping).train()
    last = Run(recipe_of(store, method=chosen), tmp_path / "run")
    last.train()
    assert torch.equal(weights(last.engine.plain), weights(whole.engine.plain))
    assert journal_of(tmp_path / "run") == journal_of(tmp_path / "whole")


@pytest.mark.parametrize("chosen", [{"after": 0.0}, {"rounds": 1}])
def test_stopped_in_forks_before_the_first_step(chosen, store, tmp_path):
    chosen = {"name": "aioli-fork", "settings": {"delta": 0.5, "doubt": 0.0, **chosen}}
    whole = Run(recipe_of(store, method=chosen), tmp_path / "whole")
    whole.train()
    with pytest.raises(StoppedError):
        Run(recipe_of(store, method=chosen), tmp_path / "run", lambda run: run.stop.set()).train()
    last = Run(recipe_of(store, method=chosen), tmp_path / "run")
    last.train()
    assert torch.equal(weights(last.engine.plain), weights(whole.engine.plain))


def test_people_are_told_what_forks_cost_and_that_something_goes_on(store, tmp_path):
    chosen = {"name": "aioli-fork", "settings": {"rounds": 6, "delta": 0.5}}
    seen = []

    def watch(run):
        run.status.written = 0.0  # tell every time
        run.status.show(run)
        told = read_json(run.path / "status.json")
        if told["tag"] == "forks" and run.engine.forked is not None:
            assert told["step"] == run.step == run.engine.forked
            seen.append(running(told)[-1])

    run = Run(recipe_of(store, method=chosen), tmp_path / "run", watch)
    (note,) = [note for note in run.notes if "copies" in note]
    assert "50% more" in note
    assert "use a larger delta" in note  # five steps each
    run.train()
    assert set(seen) == {"trying mixtures out on copies of the model"}


def test_the_bar_goes_on_while_copies_are_trained_and_shows_no_loss_of_theirs(store, tmp_path):
    live, shown = Live(quiet=False), []
    live.bar.show = lambda *said: shown.append(said)

    def watch(run):
        live.seen = 0.0  # every time
        live(run)

    chosen = {"name": "aioli-fork", "settings": {"rounds": 6, "delta": 0.5, "doubt": 0.0}}
    run = Run(recipe_of(store, method=chosen), tmp_path / "run", watch)
    run.train()
    done = [said[0] for said in shown]
    assert done == sorted(done)
    assert run.tried == fork_steps(run.policy) == done[-1] - run.last
    assert {said[1] for said in shown} == {done[-1]}  # time left knows of copies that are still to come
    trying = [said[2] for said in shown if "copies" in said[2]]
    assert len(trying) == run.tried
    assert not any("loss" in words for words in trying)


def test_no_time_is_left_for_copies_when_it_is_settled_that_there_are_no_more(store, tmp_path):
    left = []
    chosen = {"name": "aioli-fork", "settings": {"rounds": 6, "delta": 0.5, "doubt": 1e9}}
    run = Run(
        recipe_of(store, method=chosen), tmp_path / "run", lambda run: left.append((run.step, run.left, run.tried))
    )
    total = run.last + fork_steps(run.policy)
    run.train()
    assert left[0] == (1, total - 1, 0)
    assert all(remaining == run.last - step for step, remaining, _ in left if step > 10)  # the only sweep is over
    assert 0 < run.tried < fork_steps(run.policy)


def test_a_copy_that_diverges_says_that_it_was_a_copy(store, monkeypatch):
    engine = engine_of(store)
    engine.advance(Segment(uniform(3), 2))
    before = weights(engine.plain)
    monkeypatch.setattr(engine, "_loss", lambda *_: (engine.plain.lm_head.weight.sum() * float("nan"), None))
    with pytest.raises(DivergedError, match=r"in a copy of the model that tries out \[0.7, 0.1, 0.2\] from step 2"):
        engine.advance(LOOK)
    assert torch.equal(weights(engine.plain), before)


def test_towards_a_target_it_finds_the_group_that_is_like_it(store, tmp_path):
    chosen = {"name": "aioli-fork", "settings": {}}
    recipe = recipe_of(store, method=chosen, data={"targets": ["target"]}, train={"steps": 240})
    result = Run(recipe, tmp_path / "run").train()
    assert result["realised"]["b"] > 0.6
    assert result["seconds"]["probe_share"] > 0.1  # forks are paid for


def test_forks_do_not_use_groups_up():
    sampler = MixtureSampler(Indices((8, 100)), 4, on_exhausted="error")
    sampler.next([0.5, 0.5])
    before, trial = sampler.state_dict(), sampler.trial()
    first = trial.next([0.5, 0.5]).positions
    for _ in range(10):
        trial.next([1.0, 0.0])
    assert sampler.state_dict() == before
    assert np.array_equal(sampler.next([0.5, 0.5]).positions, first)
    with pytest.raises(ValueError, match="used up"):
        [sampler.next([1.0, 0.0]) for _ in range(3)]


# ---------------------------------------------------------------------- what is made of them


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


@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 300), cooling=st.floats(0.01, 1))
def test_the_rate_of_a_fork_stays_and_then_falls_to_zero(steps, cooling):
    segment = Segment(uniform(3), 0, FORKS, forks=P, fork_steps=steps, fork_cooling=cooling)
    scales = [segment.fork_scale(step) for step in range(steps)]
    assert scales == sorted(scales, reverse=True)
    assert all(0 < scale <= 1 for scale in scales)
    assert all(scale == 1 for step, scale in enumerate(scales) if step + 0.5 <= (1 - cooling) * steps - 1e-9)
    assert scales[-1] == pytest.approx(min(1, 0.5 / (cooling * steps)))
    assert segment.fork_scale(steps) == 0.0  # nobody trains uphill who counts one too many


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


# ---------------------------------------------------------------------- in other people's loops


class Quadratic:
    """A model of one number per group, in a loop that is not ours."""

    def __init__(self):
        self.state = np.zeros(3)

    def losses(self):
        return np.array([4.0 - np.sqrt(1.0 + self.state[1] + 0.1 * self.state.sum())])

    def fork(self, segment):
        before, found = self.state, []
        for p in segment.forks:
            self.state = before + p * segment.fork_steps
            found.append(self.losses())
        self.state = before
        return np.stack(found)


def test_a_loop_that_can_copy_its_model_can_fork():
    model = Quadratic()
    policy = aioli.create("aioli-fork").policy(list(GROUPS), 100, targets=["t"])
    cursor = Cursor(policy, {"val_loss": model.losses, "fork_loss": model.fork})
    while not cursor.done:
        model.state = model.state + cursor.proportions
        cursor.step()
    assert model.state.sum() == pytest.approx(100)
    assert cursor.proportions[1] > 0.8


def test_trainers_that_cannot_fork_say_so_and_what_to_use_instead():
    policy = aioli.create("aioli-fork").policy(list(GROUPS), 100)
    with pytest.raises(ValueError, match=r"copies of the model.*aioli-pooled"):
        Cursor(policy, {"val_loss": lambda: np.ones(3)})

    with pytest.raises(ValueError, match="cannot be fed"):
        Cursor(policy, {"val_loss": lambda: np.ones(3)}, fed=["fork_loss"])

    class Plain:
        supports = frozenset({"val_loss"})

    with pytest.raises(ValueError, match="aioli-pooled"):
        drive(policy, Plain())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"fork_steps": 4}, "no forks"),
        ({"forks": P}, "no forks"),
        ({"forks": P + 1, "fork_steps": 4}, "forks"),
        ({"forks": P, "fork_steps": 4, "fork_cooling": 0.0}, "fork_cooling=0.0 is not a share"),
        ({"forks": P, "fork_steps": -4}, "negative"),
    ],
)
def test_forks_that_make_no_sense_are_refused(more, words):
    with pytest.raises(ValueError, match=words):
        Segment(uniform(3), 0, FORKS, **more)


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


def test_in_the_simulator_too_a_run_goes_on_as_if_there_had_been_no_forks():
    world = replace(PowerLawWorld.random(3, 2, 0, 500), noise=Noise(train=0.3, val=0.01, batch=8))
    plain, forking = (world.trainer(seed=1) for _ in range(2))
    for trainer in (plain, forking):
        trainer.advance(Segment(uniform(3), 50))
    told = forking.advance(Segment(uniform(3), 0, frozenset({"fork_loss"}), forks=P, fork_steps=10))
    assert told.fork_loss.shape == (3, 2)
    assert forking.probing >= 30
    for trainer in (plain, forking):
        trainer.advance(Segment(uniform(3), 50))
    assert plain.state.tolist() == forking.state.tolist()
