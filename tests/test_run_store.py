"""Runs are found again by what decides their result, and by nothing else."""

import json
import os

import numpy as np
import pytest
from tiny import tiny_recipe, tiny_store

from aioli.carrying import Carrying
from aioli.cli import main
from aioli.methods import create, names
from aioli.runs import Job, Problem, RunStore, Setup, rehearse
from aioli.runs.spec import Result
from aioli.simplex import uniform


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("data") / "store")


def job(store, p=(0.2, 0.3, 0.5), steps=30, seed=0, **recipe):
    setup = Setup.of(tiny_recipe(store, **recipe))
    return Job(setup.problem(seed).static(p, steps, seed), setup)


def test_what_decides_a_result_decides_the_key(data, tmp_path):
    base = job(data)
    assert base.key == job(data).key
    other = tiny_store(tmp_path / "other", seed=1)
    changed = [
        job(data, p=(0.3, 0.2, 0.5)),
        job(data, steps=31),
        job(data, seed=1),
        job(data, model="tiny-128"),
        job(data, train_lr=1e-3),
        job(data, train_batch=8),
        job(data, train_decay=0.0),
        job(data, train_precision="bf16"),
        job(data, val_gradients="matrix"),
        job(data, data={"store": str(data.path), "on_exhausted": "cap"}),
        job(other),
    ]
    assert len({base.key, *(each.key for each in changed)}) == len(changed) + 1


def test_where_things_lie_and_how_fast_they_go_do_not(data, tmp_path):
    base = job(data)
    (tmp_path / "link").symlink_to(data.path)
    elsewhere = tiny_recipe(data).model_copy(
        update={"data": tiny_recipe(data).data.model_copy(update={"store": str(tmp_path / "link")})}
    )
    setup = Setup.of(elsewhere)
    assert Job(setup.problem(0).static((0.2, 0.3, 0.5), 30), setup).key == base.key
    assert job(data, train_threads=2).key == base.key
    assert job(data, val_every=3).key == base.key
    assert job(data, checkpoint_every=7, trackers=["tensorboard"]).key == base.key
    assert job(data, budget="restricted").key == base.key


def test_versions_of_what_affects_results_are_in_the_key(data, monkeypatch):
    base = job(data)
    monkeypatch.setattr("aioli.runs.job.RESULTS", -1)
    assert job(data).key != base.key
    monkeypatch.undo()
    monkeypatch.setattr("aioli.runs.job.version", lambda package: "9.9+cu1")
    newer = job(data).key
    assert newer != base.key
    monkeypatch.setattr("aioli.runs.job.version", lambda package: "9.9+cpu")
    assert job(data).key == newer


def test_precision_counts_as_it_is_resolved(data, monkeypatch):
    base = job(data)
    assert job(data, train_precision="fp32").key == base.key
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert job(data).key != base.key
    setup = Setup.of(tiny_recipe(data), gpu=False)
    assert Job(setup.problem(0).static((0.2, 0.3, 0.5), 30), setup).key == base.key
    assert job(data, train_precision="bf16").start_key != base.start_key


def test_the_users_rules_count_by_their_file(data, tmp_path, monkeypatch):
    from aioli import registry

    monkeypatch.setattr(registry, "_LOADED", {})
    file, keys = tmp_path / "mine.py", []
    (tmp_path / "beside.py").write_text("SHARE = 1\n")
    for text in ("(1, 0, 0)", "(0, 1, 0)", "(1, 0, 0)"):
        file.write_text(
            "from dataclasses import dataclass\nfrom aioli.config import register\nfrom aioli.policies import Static\n"
            "import beside\nfrom aioli.methods import method\n"
            "@register\n@dataclass(frozen=True)\nclass Mine(Static):\n"
            f"    def report(self, task, state):\n        return {{'p': {text}}}\n"
            "@method(law='', parameters='', solver='')\n"
            "def mine(problem):\n    'Mine.'\n    return problem.final(Mine((1, 0, 0)))\n"
        )
        registry.load([str(file)])
        setup = Setup.of(tiny_recipe(data))
        keys.append(rehearse(create("mine"), setup.problem(0), setup, setup).stages[-1][0].key)
    assert keys[0] == keys[2] != keys[1]
    assert job(data).content.get("code") is None


def test_what_belongs_to_aioli_train_alone_is_refused(data):
    for more in ({"parent": "somewhere"}, {"method": {"name": "doremi", "reference": "somewhere"}}):
        with pytest.raises(ValueError, match="is for aioli train"):
            Setup.of(tiny_recipe(data, **more))


def test_what_runs_stand_on_is_counted_and_kept_within_the_budget(data):
    from aioli.methods import method
    from aioli.policies import Static

    @method(law="–", parameters="–", solver="–")
    def forked(problem, *, long=10):
        """One fork of a parent that it does not yield."""
        parent = problem.run(Static((1.0, 0.0, 0.0)), long)
        yield [problem.run(Static((0.0, 1.0, 0.0)), 5, parent=parent)]
        return problem.final_static((0, 0, 1))

    setup = Setup.of(tiny_recipe(data, budget="restricted"))
    assert len(rehearse(create("forked"), setup.problem(0), setup, setup).extra) == 2
    with pytest.raises(ValueError, match="plans 16 extra steps, but the budget is 15"):
        rehearse(create("forked", long=11), setup.problem(0), setup, setup)


def test_a_model_directory_counts_by_its_content(data, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    same = [job(data, model={"name": str(tmp_path / name)}).key for name in ("a", "b")]
    assert same[0] == same[1]
    (tmp_path / "b" / "config.json").write_text('{"x": 1}')
    assert job(data, model={"name": str(tmp_path / "b")}).key != same[0]
    keys = []
    for letter in (b"x", b"y"):  # weights of the same size and time
        folder = tmp_path / letter.decode()
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(letter * 2_000_000)
        os.utime(folder / "model.safetensors", (1, 1))
        keys.append(job(data, model={"name": str(folder)}).key)
    assert keys[0] != keys[1]


def test_weights_of_targets_do_not_change_a_fixed_mixture(data):
    assert job(data, data={"store": str(data.path), "weights": {"code": 4.0}}).key == job(data).key
    plain, weighted = (
        Setup.of(tiny_recipe(data, data={"store": str(data.path), **more})) for more in ({}, {"weights": {"code": 4.0}})
    )
    runs = [create("aioli").plan(setup.problem(0)) for setup in (plain, weighted)]
    keys = []
    for plan, setup in zip(runs, (plain, weighted), strict=True):
        with pytest.raises(StopIteration) as end:
            next(plan)
        keys.append(Job(end.value.value, setup).key)
    assert keys[0] != keys[1]


def test_methods_share_what_is_equal(data):
    setup = Setup.of(tiny_recipe(data))
    problem = setup.problem(0)
    sweeps = [
        rehearse(create(name), problem, setup, setup) for name in ("grid-search", "dml", "regmix", "regmix-linear")
    ]
    assert len({frozenset(job.key for job in plan.extra) for plan in sweeps}) == 1
    stratified = rehearse(create("stratified"), problem, setup, setup).stages[-1][0]
    assert rehearse(create("doremi"), problem, setup, setup).stages[0][0].key == stratified.key
    restricted = Setup.of(tiny_recipe(data, budget="restricted"))
    short = rehearse(create("doremi"), restricted.problem(0), restricted, restricted)
    assert short.stages[0][0].key != stratified.key
    small = Setup.of(tiny_recipe(data, proxy={"model": "tiny-128"}), proxy=True)
    proxied = rehearse(create("doremi"), problem, setup, small)
    assert proxied.stages[0][0].key != stratified.key
    assert proxied.stages[1][0].reference.key == proxied.stages[0][0].key
    assert proxied.stages[-1][0].setup is setup


@pytest.mark.parametrize("m", [2, 3, 7])
def test_counted_extra_runs_are_the_papers(m, tmp_path):
    """Table 1: grid search 10, DML 10, Skill-It m, DoReMi 2, DoGE 1, Aioli 0; Table 5 as E27 reads it."""
    setup = Setup.of(tiny_recipe(tiny_store(tmp_path / "store", [f"g{j}" for j in range(m)]), train_steps=2000))
    wanted = {"grid-search": 10, "dml": 10, "skill-it": m, "doremi": 2, "doge": 1, "aioli": 0, "stratified": 0}
    lengths = {"grid-search": 100, "dml": 100, "skill-it": 2000 // (2 * m), "doremi": 500, "doge": 1000}
    for name, count in wanted.items():
        for budget in ("unrestricted", "restricted"):
            limited = Setup.of(setup.recipe.model_copy(update={"budget": budget}))
            plan = rehearse(create(name), limited.problem(0), limited, limited)
            assert len(plan.extra) == count, name
            steps = {job.run.task.steps for job in plan.extra}
            assert steps == (set() if not count else {2000} if budget == "unrestricted" else {lengths[name]})
            assert sum(job.run.task.steps for job in plan.extra) <= (20_000 if budget == "unrestricted" else 1000)


def test_proxies_have_a_model_and_length_of_their_own(data):
    recipe = tiny_recipe(data, proxy={"model": "tiny-128", "steps": 12, "lr": 1e-3}, train_steps=100)
    final, proxy = Setup.of(recipe), Setup.of(recipe, proxy=True)
    plan = rehearse(create("dml"), final.problem(0), final, proxy)
    assert {(job.run.task.steps, job.recipe().model.preset, job.recipe().train.lr) for job in plan.extra} == {
        (12, "tiny-128", 1e-3)
    }
    last = plan.stages[-1][0].recipe()
    assert (last.train.steps, last.model.preset, last.train.lr) == (100, "tiny", 4e-3)
    with pytest.raises(ValueError, match=r"10 extra runs of 12 steps .* raise the budget to 1.2"):
        rehearse(create("dml"), Problem(("a", "b"), 100, budget=0.5, proxy_steps=12), final, proxy)


def test_every_method_can_be_rehearsed(data):
    setup = Setup.of(tiny_recipe(data, train_steps=200))
    for name in [*names(), *(f"aioli+{name}" for name in names() if not name.startswith("aioli"))]:
        assert rehearse(create(name), setup.problem(0), setup, setup).stages[-1][0].run.task.steps == 200


def test_rules_that_cannot_work_are_refused_before_anything_is_trained(data):
    setup = Setup.of(tiny_recipe(data))
    with pytest.raises(ValueError, match="rounds"):
        Carrying(create("aioli", rounds=30, k=4), setup.problem(0))


def test_a_law_says_what_it_expects(data):
    setup = Setup.of(tiny_recipe(data))
    for name in ("grid-search", "dml", "regmix-linear"):
        carrying = Carrying(create(name), setup.problem(0))
        mixtures = np.array([run.rules.proportions for run in carrying.stage])
        carrying.tell([Result(2 - 0.5 * p, np.full(3, 4.0), p) for p in mixtures])
        found = np.array(carrying.final.rules.proportions)
        np.testing.assert_allclose(carrying.final.expected, 2 - 0.5 * found, atol=1e-3)
        assert carrying.final.key == setup.problem(0).final_static(found).key


# ---------------------------------------------------------------- the store itself


def finished(store, job, loss=1.0):
    """A run as it looks when it is over."""
    store.add(job)
    folder = store.run_folder(job.key)
    folder.mkdir()
    verdict = {"loss": dict.fromkeys(["code", "books", "web"], loss), "mean_loss": loss}
    shares = dict.fromkeys(["code", "books", "web"], 1 / 3)
    seconds = {"train": 1.0, "probe": 0.1, "evaluation": 0.1}
    result = {
        "val": verdict,
        "mean_proportions": shares,
        "seconds": seconds,
        "realised": shares,
        "targets": list(shares),
    }
    (folder / "result.json").write_text(json.dumps(result))
    (store.folder(job.key) / "start.json").write_text(json.dumps(dict.fromkeys(["code", "books", "web"], 3.0)))


def test_states_of_runs(data, tmp_path, capsys):
    store = RunStore(tmp_path / "runs")
    jobs = [job(data, seed=seed) for seed in range(4)]
    finished(store, jobs[0])
    for each in jobs[1:]:
        store.add(each)
    (store.folder(jobs[1].key) / "error.json").write_text('{"kind": "DivergedError", "error": "loss is nan"}')
    (store.folder(jobs[2].key) / "run").mkdir()
    (store.folder(jobs[2].key) / "run" / "result.json").write_text('{"val": ')  # cut short
    assert [store.entry(each.key).state for each in jobs] == ["finished", "failed", "unfinished", "unfinished"]
    outcome = store.outcome(jobs[0])
    np.testing.assert_array_equal(outcome.val_loss, np.ones(3))
    np.testing.assert_array_equal(outcome.start_loss, np.full(3, 3.0))
    assert store.outcome(jobs[1]) is None
    finished(store, damaged := job(data, seed=9))
    for text in ('{"val": {"loss": {"code": 1}}}', "{}", '{"val": ', "[]", '{"val": {"loss": {"code": NaN}}}'):
        (store.run_folder(damaged.key) / "result.json").write_text(text)
        assert store.outcome(damaged) is None
        assert store.entry(damaged.key).state == "unfinished"
    store.remove(damaged.key)
    place = ["--store", str(store.path)]
    assert main(["runs", *place]) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in ("1 finished", "1 failed", "2 unfinished", "loss is nan"))
    assert main(["runs", *place, "--state", "failed", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["key"] for entry in listed] == [jobs[1].key]
    assert main(["runs", "show", jobs[1].key[:12], *place]) == 0
    assert "DivergedError: loss is nan" in capsys.readouterr().out
    assert main(["runs", "remove", "--state", "failed", *place]) == 0
    assert "1 run removed" in capsys.readouterr().out
    assert len(list(store.keys())) == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["remove"], "which runs?"),
        (["show"], "which run?"),
        (["show", "zz"], "no run"),
        (["show", ""], "no run"),
        (["--state", "lost"], "is not one of finished"),
    ],
)
def test_mistakes_with_a_store_are_one_line(tmp_path, words, complaint, capsys):
    RunStore(tmp_path / "runs")
    assert main(["runs", *words, "--store", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_places_that_are_no_stores(tmp_path, capsys):
    assert main(["runs", "--store", str(tmp_path / "nowhere")]) == 2
    assert "is not a run store" in capsys.readouterr().err
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds something else"):
        RunStore(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "runs.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="this version"):
        RunStore(tmp_path / "runs")
    with pytest.raises(ValueError, match="not the key"):
        RunStore(tmp_path / "new").folder("../../etc")


def test_a_run_that_is_being_trained_is_not_removed(data, tmp_path, capsys):
    from aioli.runs.claim import Claim

    store, one = RunStore(tmp_path / "runs"), job(data)
    store.add(one)
    with Claim.make(store.folder(one.key)):
        with pytest.raises(ValueError, match="is being trained by process"):
            store.remove(one.key)
        assert main(["runs", "remove", one.key, "--store", str(store.path)]) == 0
        assert "0 runs removed" in capsys.readouterr().out
        assert store.entry(one.key).state == "running"
    store.remove(one.key)
    assert list(store.keys()) == []


def test_models_can_go_while_results_stay(data, tmp_path, capsys):
    store, one = RunStore(tmp_path / "runs"), job(data)
    finished(store, one)
    (store.run_folder(one.key) / "model").mkdir()
    (store.run_folder(one.key) / "model" / "model.safetensors").write_bytes(b"x" * 2_000_000)
    assert store.has(one.key, "model")
    assert main(["runs", "remove", "--models", "--store", str(store.path)]) == 0
    assert "2.0 MB" in capsys.readouterr().out
    assert not store.has(one.key, "model")
    assert store.outcome(one) is not None


def test_uniform_is_the_stratified_run(data):
    setup = Setup.of(tiny_recipe(data))
    problem = setup.problem(0)
    assert Job(problem.static(uniform(3), 30), setup).key == Job(problem.final_static(uniform(3)), setup).key


@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("run/result.json", "start.json")), "job.json"]
)
def test_a_damaged_file_of_a_run_is_said_to_be_and_made_again(name, data, tmp_path, caplog):
    words = ["compare", f"data={data.path}", "--methods", "stratified", "--store", str(tmp_path / "runs"), "--quiet"]
    words += ["train.steps=4", "train.batch=4", "train.threads=1", "--workers", "1"]
    words += ["-o", str(tmp_path / "table.json")]
    assert main(words) == 0
    [file] = tmp_path.glob(f"runs/??/*/{name}")
    whole, table = json.loads(file.read_text()), json.loads((tmp_path / "table.json").read_text())
    content = file.read_bytes()
    at = content.index(b":") + 2
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert main(words) == 0
    assert f"worth knowing: {file} is damaged: " in caplog.text
    again = json.loads(file.read_text())
    assert {**again, "seconds": 0, "checksum": 0} == {**whole, "seconds": 0, "checksum": 0}
    found = json.loads((tmp_path / "table.json").read_text())
    assert [score["loss"] for score in found["scores"]] == [score["loss"] for score in table["scores"]]
