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
from aioli.cursor import Cursor
from aioli.data import Indices, MixtureSampler
from aioli.files import read_json
from aioli.policies import fork_steps
from aioli.protocol import Segment, drive
from aioli.report.text import running
from aioli.simplex import uniform
from aioli.simulate import Noise, PowerLawWorld
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

    with pytest.raises(ValueError, match="fork_loss is given the segment"):
        Cursor(policy, {"val_loss": lambda: np.ones(3), "fork_loss": lambda: np.ones((3, 3))})

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
