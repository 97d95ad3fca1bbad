"""Methods plan what the paper says, at the cost the paper says, and end with a run that a policy can drive."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.config import from_config, to_config
from aioli.lmo import EGD, ExcessLoss
from aioli.methods import Outcome, conduct, create, method, names
from aioli.policies import Online, Static, Then
from aioli.protocol import Observation, drive
from aioli.runs import Problem, Result
from aioli.simulate import LinearWorld, Noise, PowerLawWorld, Simulator

FAST = {"regmix": {"candidates": 500, "top": 5, "trees": 5}, "regmix-linear": {"candidates": 500, "top": 5}}


def problem(m=3, steps=600, **settings):
    return Problem(tuple(f"g{j}" for j in range(m)), steps, sizes=tuple(range(1, m + 1)), **settings)


def made_up(runs):
    rng = np.random.default_rng(len(runs))
    return [
        Result(rng.uniform(2, 3, r.task.targets), np.full(r.task.targets, 5.0), np.full(r.task.m, 1 / r.task.m))
        for r in runs
    ]


def _named(name):
    def function(problem):
        return None

    function.__name__ = name
    return method("–", "–", "–")(function)


def _mine(function):
    """A method of one's own, whatever it returns."""
    function.__name__ = "my_own"
    method("–", "–", "–")(function)
    return create("my-own")


def planned(name, task, **settings) -> Outcome:
    return conduct(create(name, **{**FAST.get(name, {}), **settings}), task, made_up)


@pytest.mark.parametrize("m", [2, 3, 7])
def test_extra_runs_are_the_papers(m):
    expected = {"stratified": 0, "grid-search": 10, "dml": 10, "skill-it": m, "doremi": 2, "doge": 1, "aioli": 0}
    expected |= {"regmix": 10, "regmix-linear": 10, "odm": 0, "ado": 0, "aioli-static": 0, "aioli-diagonal": 0}
    expected |= {"aioli-ood": 0, "aioli-pooled": 0, "aioli-fork": 0, "proportional": 0}
    assert {name: planned(name, problem(m, 5000)).extra_runs for name in names()} == expected


@pytest.mark.parametrize(("m", "S"), [(2, 5000), (3, 5000), (7, 40_000)])
def test_restricted_steps_are_those_of_e27(m, S):
    expected = {"grid-search": (10, S // 20), "dml": (10, S // 20), "skill-it": (m, S // (2 * m))}
    expected |= {"doremi": (2, S // 4), "doge": (1, S // 2)}
    for name, (count, steps) in expected.items():
        runs = planned(name, problem(m, S, budget="restricted")).extra
        assert [run.task.steps for run in runs] == [steps] * count
        plus = planned(f"aioli+{name}", problem(m, S, budget="restricted"))
        assert plus.final.rules.steps == steps  # S_init = S_method
        assert plus.extra_runs == count
    if m == 7:
        assert S // (2 * m) == 2857  # printed 2814


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(100, 50_000), st.sampled_from(["unrestricted", "restricted", 3.0]))
def test_budgets_hold_for_any_size(m, S, budget):
    task = problem(m, S, budget=budget)
    allowed = {"unrestricted": 10.0, "restricted": 0.5}.get(budget, budget)
    for count in (1, 2, 10, m):
        steps = task.extra_steps(count)
        assert steps <= S
        assert count * steps <= allowed * S + 1e-6


def test_the_offline_methods_share_one_sweep_and_doremi_the_stratified_run():
    task = problem(3, 5000)
    sweeps = [
        {run.key for run in planned(name, task).extra} for name in ("grid-search", "dml", "regmix", "regmix-linear")
    ]
    assert all(keys == sweeps[0] for keys in sweeps)
    assert planned("doremi", task).extra[0].key == planned("stratified", task).final.key


def test_the_sweep_of_two_groups_is_the_grid_and_a_repeated_centre():
    runs = planned("grid-search", problem(2, 5000)).extra
    shares = [run.rules.proportions[0] for run in runs]
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.5])
    assert runs[-1].task.seed != runs[4].task.seed


def sizes_for(name):
    in_domain = [(1, None), (2, None), (7, None)]
    return in_domain if name == "aioli-diagonal" else [*in_domain, (3, 1), (3, 5)]  # a diagonal A needs n = m


@pytest.mark.parametrize(("name", "m", "n"), [(name, m, n) for name in names() for m, n in sizes_for(name)])
def test_every_method_ends_in_a_run_of_S_steps(name, m, n):
    world = PowerLawWorld.random(m, n, 0, 600)
    targets = None if n is None else tuple(f"t{i}" for i in range(n))
    task = Problem(tuple(f"g{j}" for j in range(m)), 600, targets, sizes=world.sizes)
    simulator = Simulator(world)
    outcome = conduct(create(name, **FAST.get(name, {})), task, simulator.stage)
    trained = simulator.train(outcome.final)
    assert trained.trainer.step == 600
    assert np.isfinite(outcome.result.val_loss).all()
    assert abs(outcome.result.mean_proportions.sum() - 1) < 1e-9


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("aioli")])
def test_aioli_can_be_added_to_any_method(name):
    world = PowerLawWorld.random(3, None, 0, 600)
    task = Problem(("a", "b", "c"), 600, budget="restricted", sizes=world.sizes)
    simulator = Simulator(world)
    outcome = conduct(create(f"aioli+{name}", eta=0.3, base=FAST.get(name, {})), task, simulator.stage)
    assert isinstance(outcome.final.rules, Then)
    assert simulator.train(outcome.final).trainer.step == 600
    assert outcome.final.rules.second.solver.eta == 0.3


def test_dml_finds_the_optimum_of_a_noiseless_world():
    world = PowerLawWorld.random(3, None, 4, 1000)
    quiet = PowerLawWorld(**{**vars(world), "noise": Noise()})
    task = Problem(("a", "b", "c"), 1000)
    weights = np.ones(3)
    outcome = conduct(create("dml"), task, Simulator(quiet).stage)
    best = quiet.value([(1000, quiet.best_static(weights))], weights)
    ours = quiet.value([(1000, np.array(outcome.final.rules.proportions))], weights)
    even = quiet.value([(1000, np.full(3, 1 / 3))], weights)
    assert ours - best < 0.2 * (even - best)


def test_skill_it_learns_the_relative_decrease():
    """E12: positive where training helps."""
    world = LinearWorld(np.array([[1e-3, 0.0], [5e-4, 2e-3]]), np.array([4.0, 5.0]), 1000)
    outcome = conduct(create("skill-it"), Problem(("a", "b"), 1000), Simulator(world).stage)
    np.testing.assert_allclose(outcome.final.rules.estimator.graph, [[0.25, 0.0], [0.1, 0.4]], atol=1e-9)


def test_doremi_and_doge_recommend_the_mean_of_the_proxys_mixtures():
    world = PowerLawWorld.random(3, None, 2, 400)
    for name in ("doremi", "doge"):
        simulator = Simulator(world)
        outcome = conduct(create(name, eta=0.5), Problem(("a", "b", "c"), 400), simulator.stage)
        proxy = outcome.extra_results[-1]
        assert isinstance(outcome.final.rules, Static)
        np.testing.assert_allclose(outcome.final.rules.proportions, proxy.mean_proportions, atol=1e-12)
        assert np.ptp(proxy.mean_proportions) > 1e-3


def test_runs_have_content_hashes():
    a, b = problem(3).final_static([0.2, 0.3, 0.5]), problem(3).final_static([0.2, 0.3, 0.5])
    assert a.key == b.key
    assert a.key != problem(3).final_static([0.3, 0.2, 0.5]).key
    assert a.key != problem(3, seed=1).final_static([0.2, 0.3, 0.5]).key
    assert len(a.key) == 64


def test_a_method_without_extra_runs_gives_a_policy():
    policy = create("aioli", eta=0.3).policy(["code", "books"], 1000)
    assert policy.ask().tag == "look"
    assert create("aioli").policy(3, 1000, targets=("x",)).task.targets == 1
    with pytest.raises(ValueError, match="dml needs extra runs"):
        create("dml").policy(2, 1000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create("aoili"), "no method 'aoili' .did you mean 'aioli'"),
        (lambda: create("aioli", etta=1), "no setting 'etta' .did you mean 'eta'"),
        (lambda: create("aioli-static", rounds=5), "aioli-static has no setting 'rounds'"),
        (lambda: create("aioli", eta="0.2"), "eta='0.2' must be a number"),
        (lambda: create("aioli", eta=float("nan")), "eta=nan must be a number"),
        (lambda: create("aioli", k=1.5), "k=1.5 must be a whole number or none"),
        (lambda: create("aioli", diagonal="maybe"), "diagonal='maybe' must be true or false"),
        (lambda: create("ado", prior="x"), "prior='x' must be one of uniform, natural"),
        (lambda: create("aioli", caps=0.5), "caps=0.5 must be a list of numbers or a dict by name"),
        (lambda: create("aioli+dml", base="runs"), "must be a dict of settings"),
        (lambda: create("aioli").policy("code", 100), "must be a list of names"),
        (lambda: create("aioli").policy(-2, 100), "m=-2"),
        (lambda: create("aioli").policy(2, 100.5), "steps=100.5 must be a whole number"),
        (lambda: create("aioli").policy(2, 100, weights=[1, 2]), "takes no 'weights'"),
        (lambda: create("aioli").policy(["a", "b"], 100, targets=2), "targets=2 must be a list of names"),
        (lambda: create("aioli", caps={"c": 0.5}).policy(["a", "b"], 400), "caps names 'c'"),
        (lambda: planned("aioli", problem(2), p_init=[0.5, 0.5]), "set S_init"),
        (lambda: planned("regmix-linear", problem(3), top=0), "top=0"),
        (lambda: _named("stratified"), "of aioli's own"),
        (lambda: conduct(_mine(lambda problem: None), problem(), made_up), "must return the final run, of 600"),
        (lambda: conduct(_mine(lambda problem: problem.static([1, 0, 0], 10)), problem(), made_up), "of 600 steps"),
        (lambda: create("aioli+aioli"), "any method but itself"),
        (lambda: create("aioli+dml", base={"run": 5}), "dml has no setting 'run'"),
        (lambda: planned("proportional", Problem(("a", "b"), 100)), "sizes are not known"),
        (lambda: planned("dml", problem(12)), "at least m\\+1=13 runs"),
        (lambda: planned("aioli", problem(2), eps=1.0), "eps=1.0"),
        (lambda: planned("aioli", problem(2), S_init=601), "S_init=601"),
        (lambda: planned("aioli", problem(2), S_init=10, p_init=[0.5, 0.6]), "sum to 1.1"),
        (lambda: planned("dml", problem(3), caps=[0.1, 0.1, 0.1]), "caps sum to 0.3"),
        (lambda: Problem((), 100), "at least one group"),
        (lambda: Problem(("a", "a"), 100), "not distinct"),
        (lambda: Problem("ab", 100), "must be a list of names"),
        (lambda: Problem(("a",), 0), "steps=0"),
        (lambda: Problem(("a",), 10, budget="huge"), "budget='huge'"),
        (lambda: Problem(("a",), 10, budget=-1), "budget=-1"),
        (lambda: Problem(("a", "b"), 10, sizes=(0, 0)), "not all zero"),
        (lambda: Problem(("a", "b"), 10, target_weights=(1, -1)), "not negative"),
        (lambda: Result(np.array([np.nan]), np.ones(1), np.ones(1)), "val_loss"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_groups_may_be_named_in_caps_sizes_and_weights():
    task = Problem(("a", "b"), 400, sizes={"b": 3, "a": 1}, target_weights={"b": 3})
    assert task.sizes == (1.0, 3.0)
    assert task.target_weights == (1.0, 3.0)
    run = next(iter([conduct(create("aioli", caps={"b": 0.6}), task, made_up)])).final
    assert run.rules.solver.caps == (1.0, 0.6)


def test_caps_hold_in_every_segment_sweeps_included():
    policy = create("aioli", caps=[0.3, 1.0, 1.0], floors=[0.0, 0.1, 0.0], eta=2.0).policy(3, 900)
    world = PowerLawWorld.random(3, None, 0, 900)
    seen = []
    drive(policy, world.trainer(), lambda s, o: seen.append(s.proportions))
    assert max(p[0] for p in seen) <= 0.3 + 1e-9
    assert min(p[1] for p in seen) >= 0.1 - 1e-9
    assert len(seen) > 50


def test_aioli_static_learns_once_at_the_start():
    policy = create("aioli-static").policy(2, 1000)
    tags = []
    while (segment := policy.ask()) is not None:
        tags.append(segment.tag.split()[0])
        policy.tell(Observation(segment.proportions, val_loss=[2.0, 3.0] if segment.observe else None))
    assert tags == ["look", *["sweep"] * 8, "train"]


def test_doge_asks_for_the_papers_share_of_validation_data():
    for m, share in ((2, 0.25), (3, 0.5), (7, 0.5)):
        run = next(create("doge").plan(problem(m)))[0]
        assert run.policy().ask().val_share == share  # E18
    assert next(create("doge", r=0.1).plan(problem(3)))[0].policy().ask().val_share == 0.1


@pytest.mark.parametrize(
    "name", ["grid-search", "dml", "regmix", "regmix-linear", "aioli", "aioli-pooled", "skill-it", "doge"]
)
def test_every_method_that_sees_targets_heeds_target_weights(name):
    """Two groups that help only themselves: the target that counts nine times draws the mixture to its group."""
    world = PowerLawWorld(
        E=np.ones(2),
        B=np.full(2, 3.0),
        alpha=np.full(2, 0.5),
        scale=np.full(2, 10.0),
        T=np.eye(2),
        steps=1000,
        recency=0.3,
    )
    shares = []
    for weights in ((9.0, 1.0), (1.0, 9.0)):
        settings = {"regmix": {"trees": 50, "candidates": 2000}, "doge": {"eta": 1.0}, "aioli": {"eta": 0.5}}.get(
            name, {}
        )
        task = Problem(("a", "b"), 1000, target_weights=weights)
        shares.append(conduct(create(name, **settings), task, Simulator(world).stage).result.mean_proportions[0])
    assert shares[0] > shares[1] + 0.03


def test_doremi_ignores_the_weights_of_targets_that_are_not_its_groups():
    excess = Observation(np.ones(2), excess_loss=[1.0, 1.0])
    for targets, expected in ((("x", "y"), 0.5), (None, 0.8)):
        task = Problem(("a", "b"), 5, targets, target_weights=(9.0, 1.0))
        rules = Online(ExcessLoss(), EGD(1.0), "every step")
        policy = task.final(rules).policy()
        policy.ask()
        policy.tell(excess)
        share = policy.report()["p"][0]
        assert share == pytest.approx(0.5) if expected == 0.5 else share > expected


def test_s_init_is_the_length_of_the_methods_runs():
    plus = planned("aioli+dml", problem(3, 5000, budget=2.0))
    assert plus.final.rules.steps == plus.extra[0].task.steps == 1000
    assert planned("aioli+dml", problem(3, 5000)).final.rules.steps == 250  # full-length runs: as if restricted


def test_aioli_plus_skill_it_keeps_skill_its_rounds():
    """The first S_init steps of Skill-It on S steps, not all its rounds squeezed into S_init."""
    world = PowerLawWorld.random(3, None, 0, 3000)
    task = Problem(("a", "b", "c"), 3000, budget="restricted")
    simulator = Simulator(world)
    outcome = conduct("aioli+skill-it", task, simulator.stage)
    policy = outcome.final.policy()
    lengths = []
    while (segment := policy.ask()) is not None and segment.tag != "look":
        lengths.append(segment.steps)
        policy.tell(Observation(segment.proportions, val_loss=np.ones(3) if segment.observe else None))
    assert lengths == [300, 200]  # S_init = 500 of ten rounds of 300


def test_runs_of_other_groups_have_other_keys():
    p = [0.5, 0.5]
    keys = {Problem(names, 100).final_static(p).key for names in (("a", "b"), ("b", "a"), ("a", "c"))}
    assert len(keys) == 3
    weighted = Problem(("a", "b"), 100, target_weights=(2.0, 1.0)).final_static(p)
    assert weighted.key == Problem(("a", "b"), 100).final_static(p).key  # weights do not change a static run
    one, other = (create("aioli", eta=eta).policy(2, 400).state_dict()["rules"] for eta in (1, 1.0))
    assert one == other
    assert Problem(("a", "b"), np.int64(100), seed=np.int64(3)).final_static(p).key


def test_a_static_mixture_survives_being_written_and_read():
    rng = np.random.default_rng(0)
    for _ in range(300):
        once = Static(tuple(rng.dirichlet(np.ones(7))))
        assert Static(once.proportions) == once
        assert from_config(to_config(once)) == once


def test_settings_behind_a_name_are_told_where_they_belong():
    with pytest.raises(ValueError, match=r"stand apart: method.settings.eta=0.5"):
        create("aioli:eta=0.5")
