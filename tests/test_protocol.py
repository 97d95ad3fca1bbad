"""Segments and observations are checked data; drive refuses before step 0; a cursor is drive turned inside out."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from aioli.cursor import Cursor
from aioli.lmo import EGD, ExcessLoss, InterleavedSweep, Task
from aioli.methods import create
from aioli.policies import Bandit, Online, RulePolicy, Static
from aioli.protocol import Observation, Policy, Segment, as_numbers, drive
from aioli.simulate import LinearWorld, PowerLawWorld


def aioli(steps=400, m=2):
    return RulePolicy(Online(InterleavedSweep(), EGD(0.2), None, "shift-sum"), Task(m, steps))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Segment([0.5, 0.6], 1), "sum to 1.1"),
        (lambda: Segment([1.0], -1), "steps=-1"),
        (lambda: Segment([1.0], 1, {"loss"}), "cannot observe loss"),
        (lambda: Segment([1.0], 1, weighting="both"), "weighting='both'"),
        (lambda: Segment([1.0], 1, val_share=1.0), "val_share=1.0"),
    ],
)
def test_bad_segments_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_segments_are_frozen_and_comparable():
    segment = Segment([0.5, 0.5], 3, {"val_loss"})
    assert segment == Segment(np.array([0.5, 0.5]), 3, frozenset({"val_loss"}))
    assert segment != Segment([0.4, 0.6], 3, {"val_loss"})
    assert segment != "segment"
    with pytest.raises(ValueError, match="read-only"):
        segment.proportions[0] = 1.0
    with pytest.raises(AttributeError):
        segment.steps = 4


def doremi():
    return RulePolicy(Online(ExcessLoss(), EGD(), "every step"), Task(2, 10))


class Blind:
    supports = frozenset()

    def advance(self, segment):
        raise AssertionError("nothing may be trained")


def test_a_trainer_that_cannot_observe_is_refused_before_step_0_by_name():
    with pytest.raises(ValueError, match="needs val_loss, which the trainer cannot observe"):
        drive(aioli(), Blind())
    with pytest.raises(ValueError, match="needs excess_loss"):
        drive(doremi(), LinearWorld(np.eye(2) / 100, np.ones(2), 10).trainer())  # no reference, so none to be had


def test_a_trainer_that_cannot_weight_losses_is_refused_by_name():
    class Sampler(Blind):
        supports = frozenset({"excess_loss"})
        weightings = frozenset({"sample"})

    with pytest.raises(ValueError, match="weighting='loss'"):
        drive(doremi(), Sampler())


def test_policies_satisfy_the_protocol():
    assert isinstance(aioli(), Policy)


def test_telling_after_the_end_is_refused():
    policy = RulePolicy(Static((1.0,)), Task(1, 5))
    policy.tell(Observation(np.ones(1)))
    assert policy.ask() is None
    with pytest.raises(ValueError, match="the run is over"):
        policy.tell(Observation(np.ones(1)))


class Loop:
    """A training loop of a user's, around a simulated model."""

    def __init__(self, world, seed=0):
        self.trainer = world.trainer(seed)

    def train(self, p):
        return self.trainer.advance(Segment(p, 1)).tokens

    def evaluate(self):
        return self.trainer.losses(self.trainer.state)


def test_a_cursor_in_a_loop_does_what_drive_does():
    world = LinearWorld(np.array([[2e-3, 0.0], [1e-3, 1e-3]]), np.full(2, 4.0), 400)
    driven = aioli()
    path = []
    drive(driven, world.trainer(), lambda s, o: path.extend([s.proportions] * s.steps))
    loop, policy = Loop(world), aioli()
    cursor = Cursor(policy, {"val_loss": loop.evaluate})
    used = []
    while not cursor.done:
        used.append(cursor.proportions)
        cursor.step(loop.train(cursor.proportions))
    np.testing.assert_allclose(used, path, atol=1e-12)
    np.testing.assert_allclose(policy.report()["p"], driven.report()["p"], atol=1e-9)


def test_a_cursor_records_every_segment_as_drive_does():
    world = LinearWorld(np.array([[2e-3, 0.0], [1e-3, 1e-3]]), np.full(2, 4.0), 400)
    driven, recorded = [], []
    drive(aioli(), world.trainer(), lambda *seen: driven.append(seen))
    loop = Loop(world)
    cursor = Cursor(aioli(), {"val_loss": loop.evaluate}, record=lambda *seen: recorded.append(seen))
    while not cursor.done:
        cursor.step(loop.train(cursor.proportions))
    assert [(s.steps, s.tag) for s, _ in recorded] == [(s.steps, s.tag) for s, _ in driven]
    for (_, one), (_, two) in zip(recorded, driven, strict=True):
        np.testing.assert_allclose(one.tokens, two.tokens)
        assert (one.val_loss is None) == (two.val_loss is None)
        if one.val_loss is not None:
            np.testing.assert_allclose(one.val_loss, two.val_loss)


def test_a_cursor_without_tokens_assumes_the_requested_mixture():
    cursor = Cursor(aioli(), {"val_loss": lambda: np.array([2.0, 3.0])})
    steps = 0
    while not cursor.done:
        assert cursor.remaining >= 1
        cursor.step()
        steps += 1
    assert steps == 400
    with pytest.raises(ValueError, match="used up"):
        cursor.step()
    np.testing.assert_allclose(cursor.proportions.sum(), 1.0)  # the last mixture, for whoever logs it
    assert cursor.remaining == 0


def test_a_cursor_saves_and_resumes_in_the_middle_of_a_segment():
    world = PowerLawWorld.random(3, None, 1, 300)

    def run(stop):
        loop = Loop(world)
        cursor = Cursor(aioli(300, 3), {"val_loss": loop.evaluate})
        used = []
        for step in range(300):
            if step == stop:
                text = json.dumps(cursor.state_dict(), allow_nan=False)
                cursor = Cursor(aioli(300, 3), {"val_loss": loop.evaluate})
                cursor.load_state_dict(json.loads(text))
            used.append(cursor.proportions)
            cursor.step(loop.train(cursor.proportions))
        return np.array(used)

    whole = run(None)
    for stop in (0, 1, 2, 5, 17, 100, 299):
        np.testing.assert_array_equal(run(stop), whole)


def test_values_that_the_loop_feeds_are_averaged_over_the_segment():
    rules = create("ado", rounds=2, warmup=0.0).policy(2, 8)
    cursor = Cursor(rules, fed=["train_loss"])
    told = []
    original = rules.tell
    rules.tell = lambda observation: (told.append(observation), original(observation))
    for step in range(8):
        absent = step % 2 == 0
        cursor.step([4.0, 0.0] if absent else [2.0, 2.0], train_loss=[float(step), np.nan if absent else 10.0])
    np.testing.assert_allclose(told[0].train_loss, [(0 + 1 + 2 + 3) / 4, 10.0])
    np.testing.assert_allclose(told[0].tokens, [12.0, 4.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cursor(aioli()), "needs val_loss"),
        (lambda: Cursor(aioli(), {"loss": lambda: 0}), "cannot observe loss"),
        (lambda: Cursor(aioli(), {"val_loss": 3}), "must be a function"),
        (lambda: Cursor(aioli(), {"val_loss": lambda model: 3}), r"given nothing, but it is val_loss\(model\)"),
        (lambda: Cursor(aioli(), lambda model: 3), r"given nothing, but it is val_loss\(model\)"),
        (lambda: Cursor(aioli(), {"val_loss": lambda: {"a": 1}}).step(), "val_loss={'a': 1} must be numbers"),
        (lambda: Cursor(aioli(), lambda: [1, 1]).load_state_dict({}), "not the state of a cursor"),
        (lambda: Segment([1.0], 10.5), "steps=10.5 must be a whole number"),
        (lambda: drive(aioli(), object()), "has no `supports`"),
        (
            lambda: Cursor(RulePolicy(Online(ExcessLoss(), EGD(), "every step"), Task(2, 9)), fed=["excess_loss"]),
            "'loss'",
        ),
        (lambda: Cursor(RulePolicy(Bandit(), Task(2, 9)), fed=["train_loss"]).step(), "was not given train_loss"),
        (lambda: Cursor(aioli(), {"val_loss": lambda: [1, 1]}).step([1.0]), "one per group"),
        (lambda: Cursor(aioli(), {"val_loss": lambda: [np.nan, 1]}).step(), r"val_loss\[0\]=nan is not finite"),
    ],
)
def test_bad_cursors_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_core_imports_nothing_heavy():
    """In a fresh interpreter; how long it takes is in benchmarks/core.py."""
    code = (
        "import sys, aioli, aioli.simulate, aioli.testing, aioli.cli; "
        "heavy = {'torch', 'transformers', 'ray', 'lightgbm', 'pandas', 'scipy.stats'} & sys.modules.keys(); "
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_single_function_will_do_where_a_single_kind_is_needed():
    cursor = Cursor(aioli(), lambda: [1.0, 2.0])
    cursor.step()
    fed = Cursor(RulePolicy(Bandit(), Task(2, 9)), fed="train_loss")
    fed.step(train_loss=[1.0, 2.0])


def test_a_refused_measurement_does_not_count_the_step():
    losses = [[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]]
    policy = aioli()
    cursor = Cursor(policy, {"val_loss": lambda: losses.pop(0)})
    interval = cursor.remaining
    for _ in range(interval - 1):
        cursor.step([3.0, 1.0])
    state = json.dumps(cursor.state_dict())
    with pytest.raises(ValueError, match="not finite"):
        cursor.step([3.0, 1.0])
    assert json.dumps(cursor.state_dict()) == state
    cursor.step([3.0, 1.0])  # measured again, and accepted
    assert cursor.remaining == interval


@pytest.mark.parametrize("many", [True, False])
def test_tensors_of_any_kind_are_numbers(many):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16, requires_grad=True)
    cursor = Cursor(aioli(40), lambda: list(tensor) if many else tensor)
    seen = []
    cursor.record = lambda _, observation: seen.append(observation.val_loss)
    while not cursor.done:
        cursor.step()
    known = [each for each in seen if each is not None]
    assert len(known) > 5
    assert all(np.array_equal(each, [1.5, 2.0]) for each in known)
    rows = as_numbers([[t, t] for t in tensor], "fork_loss")
    assert rows.tolist() == [[1.5, 1.5], [2.0, 2.0]]


def test_a_run_that_is_over_still_knows_its_last_mixture_when_it_is_loaded():
    cursor = Cursor(aioli(40), lambda: [1.0, 2.0])
    while not cursor.done:
        cursor.step()
    again = Cursor(aioli(40), lambda: [1.0, 2.0])
    again.load_state_dict(json.loads(json.dumps(cursor.state_dict())))
    assert again.done
    assert np.array_equal(again.proportions, cursor.proportions)
    old = {key: value for key, value in cursor.state_dict().items() if key != "last"}  # as it was written before
    again.load_state_dict(old)
    assert np.array_equal(again.proportions, cursor.proportions)
    before = again.state_dict()
    with pytest.raises(ValueError, match="last"):
        again.load_state_dict({**cursor.state_dict(), "last": ["x", "y"]})
    assert again.state_dict() == before


def test_functions_that_supply_their_arguments_are_taken():
    def with_model(measure):
        @functools.wraps(measure)
        def inner():
            return measure(None)

        return inner

    measures = [with_model(lambda model: [1.0, 1.0]), functools.partial(lambda model: [1.0, 1.0], None)]
    for measure in [*measures, lambda *more: [1.0, 1.0], lambda model=None: [1.0, 1.0]]:
        Cursor(aioli(), measure).step()


def test_a_state_of_another_method_is_refused_by_what_it_is():
    with pytest.raises(ValueError, match=r"estimator.type was PooledSweep, now ForkedSweep"):
        create("aioli-fork").policy(3, 100).load_state_dict(create("aioli-pooled").policy(3, 100).state_dict())
