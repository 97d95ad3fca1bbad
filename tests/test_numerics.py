"""Losses that are no numbers one would expect: every method goes on with proportions that are proportions, or refuses.

docs/numerics.md says which. NaN never gets into a mixture, a law or an optimum.
"""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioli
from aioli.cursor import Cursor
from aioli.fits.scoring import measure
from aioli.lmo import Direct, LinearStatic, LogLinearStatic, TransferPowerLaw
from aioli.methods import conduct, names
from aioli.protocol import KINDS, Observation, drive
from aioli.registry import create
from aioli.runs.spec import Problem, Result

M, STEPS = 3, 60
BEFORE = ("grid-search", "dml", "regmix", "regmix-linear")
"""Methods that need other runs first."""
ONLINE = [name for name in names() if "+" not in name and name not in BEFORE]
LOOKING = [name for name in ONLINE if name not in ("stratified", "proportional")]
SETTINGS = {"doremi": {"proxy": True}, "doge": {"proxy": True}, "skill-it": {"graph": np.eye(M).tolist()}}
PROBLEMS = {"aioli-ood": {"targets": ["elsewhere"]}, "proportional": {"sizes": [1, 2, 3]}}


def policy_of(name):
    """The method in one run, as a training loop has it."""
    return create(name, **SETTINGS.get(name, {})).policy(groups=M, steps=STEPS, **PROBLEMS.get(name, {}))


class Loop:
    """A training loop whose every measurement is what a test says."""

    supports, weightings = frozenset(KINDS), frozenset({"sample", "loss"})

    def __init__(self, tell, m, n):
        self.tell, self.m, self.n, self.seen = tell, m, n, []

    def advance(self, segment):
        p = segment.proportions
        self.seen.append(p)
        forks = 0 if segment.forks is None else len(segment.forks)
        sizes = {"val_loss": (self.n,), "grad_inner": (self.n, self.m), "lr": (), "fork_loss": (forks, self.n)}
        told = {kind: self.tell(kind, sizes.get(kind, (self.m,))) for kind in segment.observe}
        return Observation(tokens=p * segment.steps * 1000, **told)


def run_policy(policy, tell):
    """All mixtures of a run under such measurements."""
    loop = Loop(tell, policy.task.m, policy.task.targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drive(policy, loop)
    json.dumps(policy.report(), allow_nan=False)
    json.dumps(policy.state_dict(), allow_nan=False)
    return np.array(loop.seen)


def assert_proportions(P):
    assert np.isfinite(P).all()
    assert (P >= 0).all()
    np.testing.assert_allclose(P.sum(1), 1.0, atol=1e-9)


def rate(kind, value):
    return 0.1 if kind == "lr" else value


TROUBLE = {
    "zero": lambda kind, shape: rate(kind, np.zeros(shape)),
    "constant": lambda kind, shape: rate(kind, np.full(shape, 3.0)),
    "tiny": lambda kind, shape: rate(kind, 1e-12 * (1 + np.arange(int(np.prod(shape))).reshape(shape))),
    "huge": lambda kind, shape: rate(kind, 1e12 * (1 + np.arange(int(np.prod(shape))).reshape(shape))),
    "one much larger": lambda kind, shape: rate(kind, np.r_[1e6, np.ones(int(np.prod(shape)) - 1)].reshape(shape)),
    "denormal": lambda kind, shape: rate(kind, np.full(shape, 5e-324)),
    "largest of float16": lambda kind, shape: rate(kind, np.full(shape, 65504.0)),
    "as large as is taken": lambda kind, shape: rate(
        kind, 1e99 * (1 + np.arange(int(np.prod(shape))).reshape(shape) % 3)
    ),
    "falling to nothing": None,
}


def falling():
    count = iter(range(10**6))
    return lambda kind, shape: rate(kind, np.full(shape, 10.0 ** -next(count)))


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("trouble", TROUBLE)
def test_every_method_keeps_to_proportions(name, trouble):
    assert_proportions(run_policy(policy_of(name), TROUBLE[trouble] or falling()))


@pytest.mark.parametrize("name", ONLINE)
@settings(max_examples=15)
@given(exponents=st.lists(st.integers(-30, 30), min_size=4, max_size=4), signs=st.booleans(), seed=st.integers(0, 99))
def test_losses_of_any_size(name, exponents, signs, seed):
    rng = np.random.default_rng(seed)

    def tell(kind, shape):
        size = 10.0 ** rng.choice(exponents, shape)
        sign = rng.choice([-1.0, 1.0], shape) if signs and kind != "val_loss" and kind != "train_loss" else 1.0
        return 0.1 if kind == "lr" else sign * size * rng.random(shape)

    assert_proportions(run_policy(policy_of(name), tell))


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_what_is_not_finite_is_refused_and_changes_nothing(name, bad):
    policy = policy_of(name)
    loop = Loop(lambda kind, shape: rate(kind, np.ones(shape)), policy.task.m, policy.task.targets)
    while (segment := policy.ask()) is not None and not segment.observe:
        policy.tell(loop.advance(segment))
    assert segment is not None
    before = json.dumps(policy.state_dict())
    loop.tell = lambda kind, shape: np.full(shape, bad)
    with pytest.raises(ValueError, match="not finite; the run has diverged or the measurement failed"):
        policy.tell(loop.advance(segment))
    assert json.dumps(policy.state_dict()) == before
    loop.tell = lambda kind, shape: rate(kind, np.ones(shape))
    policy.tell(loop.advance(segment))  # the same segment can be told anew


# ---------------------------------------------------------------- methods with runs before the last one

SOME = [name for name in names() if "+" not in name]
WHOLE = [*SOME, *(f"aioli+{name}" for name in SOME if not name.startswith("aioli"))]
QUICK = {"regmix": {"candidates": 500, "trees": 5}, "regmix-linear": {"candidates": 500}}


def outcome_of(name, tell):
    """A method with all of its runs; returns every mixture that was trained on."""
    inner = name.removeprefix("aioli+")
    quick = QUICK.get(inner, {})
    method = create(name, **(quick if inner == name else {"base": quick}))
    asked, mixtures = Problem(tuple("abc"), STEPS, **PROBLEMS.get(inner, {})), []

    def train(run):
        P = run_policy(run.policy(), tell)
        mixtures.append(P)
        return Result(tell("val_loss", (asked.n,)), tell("val_loss", (asked.n,)), P.mean(0))

    conduct(method, asked, lambda runs: [train(run) for run in runs])
    return np.concatenate(mixtures)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # LightGBM, in float32, goes on with 1e38
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("trouble", TROUBLE)
def test_every_method_with_all_its_runs_keeps_to_proportions(name, trouble):
    assert_proportions(outcome_of(name, TROUBLE[trouble] or falling()))


def test_float16_that_overflowed_in_a_loop_of_ones_own():
    with np.errstate(over="ignore"):
        loss = np.full(3, 60000, np.float16) * np.float16(2)  # inf
    policy = aioli.create("aioli", rounds=2, k=1).policy(groups=["a", "b", "c"], steps=30)
    cursor = Cursor(policy, {"val_loss": lambda: loss})
    with pytest.raises(ValueError, match=r"val_loss\[0\]=inf is not finite"):
        list(iter(lambda: cursor.done or cursor.step(), True))


# ---------------------------------------------------------------- laws and their optimum

LAWS = [LinearStatic, LogLinearStatic, TransferPowerLaw]
rng = np.random.default_rng(0)
DESIGN = rng.dirichlet(np.ones(3), 12)
LOSSES = {
    "zero": np.zeros((12, 2)),
    "constant": np.full((12, 2), 3.0),
    "tiny": 1e-12 * (2 - DESIGN[:, :2]),
    "huge": 1e12 * (2 - DESIGN[:, :2]),
    "one much larger": np.stack([1e6 * (2 - DESIGN[:, 0]), 2 - DESIGN[:, 1]], 1),
    "one run much larger": np.r_[[[1e6, 1e6]], 2 - DESIGN[1:, :2]],
}


def solved_or_refused(law, P, L):
    """The optimum is a mixture, or there is a reason why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fitted = law().fit(P, L)
            best = Direct().solve(fitted)
    except ValueError:
        return None
    assert np.isfinite(fitted.predict(P)).all()
    assert_proportions(best.proportions[None])
    assert np.isfinite(best.value)
    return best


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("trouble", LOSSES)
def test_laws_of_troublesome_losses(law, trouble):
    assert solved_or_refused(law, DESIGN, LOSSES[trouble]) is not None


@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e-310])
def test_losses_whose_squares_vanish_are_measured(scale):
    """R² is 1 for what is predicted right, whether or not a variance so small can be told from 0."""
    L = scale * (2 - DESIGN[:, :2])
    scores = measure(L, L.copy(), "as it is")
    assert scores.r2.tolist() == [1.0, 1.0]
    assert np.isfinite(measure(L, 1.5 * L, "not so").r2).all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "P",
    [np.tile(DESIGN[0], (12, 1)), np.tile([0.5, 0.5, 0.0], (12, 1)), np.tile(DESIGN[:2], (6, 1))],
    ids=["one mixture", "a group that never was", "two mixtures"],
)
def test_singular_designs_are_refused_or_solved_never_nan(law, P):
    solved_or_refused(law, P, 2 - P[:, :2])


@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=15)
@given(exponent=st.integers(-12, 12), spread=st.integers(0, 6), seed=st.integers(0, 20))
def test_laws_of_losses_of_any_size(law, exponent, spread, seed):
    draw = np.random.default_rng(seed)
    L = 10.0**exponent * 10.0 ** draw.uniform(0, spread, 2) * (2 - DESIGN @ draw.random((3, 2)))
    solved_or_refused(law, DESIGN, L)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("law", LAWS)
def test_losses_that_are_not_finite_are_refused_by_laws(law, bad):
    L = 2 - DESIGN[:, :2]
    L[3, 1] = bad
    with pytest.raises(ValueError, match="finite"):
        law().fit(DESIGN, L)
