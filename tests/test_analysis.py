"""Studies see what is there: worlds with known answers, and real training."""

import json

import numpy as np
import pytest
from tiny import tiny_recipe, tiny_store

from aioli.analysis import STUDIES, AsMethod, Lab
from aioli.analysis.interactions import studentised
from aioli.analysis.parameters import mean_A, relation
from aioli.analysis.study import AMPLE
from aioli.report.analysis import markdown, write
from aioli.runs.spec import Problem, Result

A = np.array([[2.0, 0.3], [0.2, 1.5]])
B = np.array([[0.15, 0.01], [-0.01, 0.09]])


class World:
    """Losses of runs by known laws: log-linear over a whole run, linear over a fork."""

    def __init__(self, bend=0.0, late=None, steps=1000):
        self.bend, self.late, self.steps, self.asked = bend, late, steps, []

    def loss(self, run):
        p = np.array(getattr(run.rules, "proportions", (0.4, 0.6)))  # what an online method does on the whole
        if run.parent is None:
            return 2.0 + np.exp(-A @ p) * (1 + run.task.steps / self.steps) / 2
        drop = (self.late if self.late is not None and run.parent.task.steps > self.steps / 2 else B) @ p
        return self.loss(run.parent) - drop + self.bend * p[0] * p[1]

    def study(self, name, lab):
        plan = STUDIES[name](lab)
        stage = next(plan)
        try:
            while True:
                self.asked += stage
                stage = plan.send([self.result(run) for run in stage])
        except StopIteration as end:
            return end.value

    def result(self, run):
        loss = self.loss(run)
        return Result(loss, np.full(2, 5.0), np.array([0.4, 0.6]), loss)


def lab(journal=None, **more):
    problem = Problem(("code", "books"), 1000, budget=AMPLE)
    return Lab(problem, (0, 1), journal or (lambda run: None), **more)


def test_laws_that_hold_are_seen_to_hold():
    world = World()
    found = world.study("laws", lab())
    fits = found.data["fits"]
    assert min(fits["log-linear static"]["r2"]) > 0.9999
    assert min(fits["linear dynamic"]["r2"]) > 0.9999
    assert max(fits["linear static"]["r2"]) < 0.999
    assert fits["log-linear dynamic"]["r2"][0] > 0.9
    # the paper's runs: 9 mixtures over 2 seeds, and 9 parents with 9 forks each, of one seed
    assert len({run.key for run in world.asked}) == 18 + 9 + 81
    assert {run.task.steps for run in world.asked if run.parent} == {25}
    assert {run.task.steps for run in world.asked if not run.parent} == {1000, 400}


def test_fits_at_several_times():
    found = World().study("laws", lab(at=(0.2, 0.6), starts=2))
    assert {"linear dynamic, t = 200", "linear dynamic, t = 600"} <= set(found.data["fits"])
    with pytest.raises(ValueError, match="beyond the run"):
        World().study("laws", lab(at=(0.99,)))


def test_a_star_is_what_it_is_and_its_order_changes():
    late = np.array([[0.015, 0.001], [0.001, 0.020]])
    found = World(late=late).study("a-star", lab(at=(0.4, 0.8), starts=3))
    for fit in found.data["fits"]:
        np.testing.assert_allclose(fit["A"], B if fit["t"] == 400 else late, atol=1e-9)
    assert "changes over time from 3 of 3" in found.words[0]
    found = World().study("a-star", lab(at=(0.4, 0.8), starts=3))
    assert "changes over time from 0 of 3" in found.words[0]


def test_a_diagonal_that_misleads_is_noticed():
    """Appendix C.2.1: for arxiv/stackexchange the full A* prefers the second group, its diagonal the first."""
    full = np.array([[0.249, 0.058], [0.025, 0.224]])
    found = World(late=full).study("a-star", lab(at=(0.8,), starts=1))
    (fit,) = found.data["fits"]
    assert fit["diagonal"][0] > fit["diagonal"][1]
    assert fit["pull"][1] > fit["pull"][0]
    assert "in 1 of 1 sweeps" in found.words[-1]


def test_interactions_are_seen_where_they_are():
    rng = np.random.default_rng(0)

    class Noisy(World):
        def loss(self, run):
            return super().loss(run) + 1e-4 * rng.normal(size=2)

    plain = Noisy().study("interactions", lab(starts=4))
    bent = Noisy(bend=0.05).study("interactions", lab(starts=4))
    assert max(p for p in bent.data["p_values"]) < 0.01
    assert np.mean(np.array(plain.data["p_values"]) < 0.05) <= 0.4
    assert "8 say so" in bent.words[0]


def test_studentised_residuals_follow_their_definition():
    rng = np.random.default_rng(0)
    P, y = rng.dirichlet(np.ones(3), 12), rng.normal(size=12)
    found = studentised(P, y)
    for k in range(12):
        rest = np.arange(12) != k
        a, squares, *_ = np.linalg.lstsq(P[rest], y[rest], rcond=None)
        noise = squares[0] / (11 - 3)
        spread = noise * (1 + P[k] @ np.linalg.inv(P[rest].T @ P[rest]) @ P[k])
        np.testing.assert_allclose(found[k], (y[k] - P[k] @ a) / np.sqrt(spread))


def test_greedy_and_optimal_pairs():
    class Trap(World):
        """What is best in the first round leads astray in the second (as for Github/C4 in the paper)."""

        def loss(self, run):
            p = run.rules.proportions[0]
            if run.parent is None:
                return np.full(2, 3 + (p - 0.6) ** 2)
            first = run.parent.rules.proportions[0]
            return np.full(2, 3 + (first - 0.3) ** 2 + (p - 0.6) ** 2)

    found = Trap().study("greedy", lab())
    assert not found.data["same"]
    assert [row[1] for row in found.tables[0].rows][:2] == ["0.6, 0.4", "0.3, 0.7"]
    world = Trap()
    world.study("greedy", lab(sweep=5))
    assert len(world.asked) == 5 + 25
    assert "Greedy finds" in World().study("greedy", lab()).words[1]


def test_parameters_close_to_A_star_have_similarity_one(tmp_path):
    def journal(run):
        path = tmp_path / f"{run.key}.jsonl"
        good = type(run.rules.estimator).__name__ == "InterleavedSweep"
        reports = [{"round": k, "A": (2.0 * B if good else B[::-1]).tolist()} for k in (1, 1, 2)]
        lines = [{"kind": "run"}, *({"kind": "segment", "report": report} for report in reports)]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
        return path

    found = World().study("parameters", lab(journal, starts=1))
    points = {(p["method"], p["seed"]): p for p in found.data["points"]}
    assert set(points) == {(name, seed) for name in ("skill-it", "doremi", "doge", "aioli") for seed in (0, 1)}
    assert points["aioli", 0]["similarity"] == pytest.approx(1.0)
    assert points["aioli", 0]["b"] == pytest.approx(0.5)  # E25
    np.testing.assert_allclose(points["doge", 1]["A_star"], B, atol=1e-9)


def test_the_relation_of_similarity_and_gain():
    points = [{"similarity": x, "improvement": 2 * x + 1} for x in (0.0, 0.5, 1.0)]
    assert relation(points) == pytest.approx((2.0, 1.0))
    assert np.isnan(relation(points[:2])[1])


def test_a_journal_without_A_says_so(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"kind": "run"}\n')
    with pytest.raises(ValueError, match="reports no A"):
        mean_A(tmp_path / "journal.jsonl")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"at": (0.0,)}, "--at"), ({"at": (1.0,)}, "--at"), ({"sweep": 0}, "--sweep"), ({"ahead": 0}, "--ahead")],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        lab(**settings)
    with pytest.raises(ValueError, match="needs at least"):
        lab(sweep=2).mixtures()


@pytest.mark.parametrize("m", [3, 7])
def test_the_papers_sweeps(m):
    found = Lab(Problem(tuple("abcdefg"[:m]), 1000), (0,), lambda run: None)
    assert found.mixtures().shape == ({3: 10, 7: 40}[m], m)
    assert len(found.origins()) == {3: 10, 7: 1}[m]


def test_forms_of_an_analysis(tmp_path):
    found = World().study("laws", lab(starts=1))
    for ending in (".md", ".json", ".html"):
        write(found, tmp_path / f"laws{ending}")
    assert "| log-linear static |" in markdown(found)
    assert json.loads((tmp_path / "laws.json").read_text())["schema"] == 1
    page = (tmp_path / "laws.html").read_text()
    assert page.count("<svg") == 2
    assert "own share" in page


def test_on_real_training(tmp_path):
    """Forks, journals and all: two studies share their runs, and nothing is trained twice."""
    from test_conducting import Here

    from aioli.methods import create
    from aioli.runs.conducting import Asked, Conductor
    from aioli.runs.job import Job, Setup
    from aioli.runs.store import RunStore
    from aioli.train.layout import JOURNAL

    data = tiny_store(tmp_path / "data", groups=("code", "books"))
    setup = Setup.of(tiny_recipe(data, train_horizon=40, train_steps=40, val_final=5))
    store, executor = RunStore(tmp_path / "runs"), Here()
    problem = setup.problem(0)
    problem = Problem(problem.groups, 40, seed=0, budget=AMPLE)
    where = Lab(
        problem,
        (0,),
        lambda run: store.run_folder(Job(run, setup).key) / JOURNAL,
        sweep=3,
        ahead=5,
        starts=1,
        settings={"methods": [(name, create(name)) for name in ("aioli", "doge")]},
    )
    for name in ("a-star", "parameters"):
        study = AsMethod(name, STUDIES[name], where)
        carried = Conductor(store, executor, setup, setup).conduct([Asked(name, study, problem, False)])[0]
        assert carried.error is None
        assert study.found is not None
    assert len(executor.orders) == len(set(executor.orders))
    for point in study.found.data["points"]:
        assert -1 <= point["similarity"] <= 1
        assert np.isfinite(point["b"])


def test_a_group_that_was_not_tried_out_is_as_good_as_the_worst_that_was(tmp_path):
    lines = [{"kind": "segment", "report": {"round": k, "A": A}} for k, A in enumerate([[[0.4, 0.2]], [[0.6, None]]])]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.testing.assert_allclose(mean_A(tmp_path / "journal.jsonl"), [[0.5, 0.4]])
