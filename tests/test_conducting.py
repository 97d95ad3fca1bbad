"""Many runs as one job, for real: shared, in parallel, in spite of what dies."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import Here, tiny_recipe, tiny_store

from aioli.files import read_json
from aioli.methods import create, method, names
from aioli.policies import Static
from aioli.runs import Asked, Conductor, Job, LocalExecutor, RunStore, Setup
from aioli.runs import local as local_module
from aioli.runs.work import work


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def pool():
    executor = LocalExecutor(2)
    yield executor
    executor.close()


def conduct(store, executor, recipe, methods, seed=0):
    final, proxy = Setup.of(recipe), Setup.of(recipe, proxy=True)
    conductor = Conductor(store, executor, final, proxy)
    return conductor.conduct([Asked(name, create(name), final.problem(seed)) for name in methods])


@pytest.mark.slow
def test_every_method_end_to_end(data, tmp_path):
    """Real training of all methods, and Aioli added to each that is not Aioli; equal runs are trained once."""
    store = RunStore(tmp_path / "runs")
    methods = [*names(), *(f"aioli+{name}" for name in names() if not name.startswith("aioli"))]
    found = {c.asked.label: c for c in conduct(store, Here(), tiny_recipe(data, train_steps=60), methods)}
    assert {name: c.error for name, c in found.items() if c.error} == {}
    counts = {"grid-search": 10, "dml": 10, "regmix": 10, "regmix-linear": 10, "skill-it": 3, "doremi": 2, "doge": 1}
    for name, carried in found.items():
        assert len(carried.extra) == counts.get(name.removeprefix("aioli+"), 0), name
        assert carried.result["steps"] == 60
        assert np.isfinite(carried.result["test"]["mean_loss"])
        assert carried.outcome.result.start_loss.min() > carried.outcome.result.val_loss.max()
    assert found["grid-search"].final.key in {job.key for job in found["dml"].extra}
    assert found["doremi"].extra[0].key == found["stratified"].final.key
    proxy = found["doremi"].extra[1]
    np.testing.assert_allclose(
        found["doremi"].final.run.rules.proportions,
        list(store.result(proxy.key)["mean_proportions"].values()),
        atol=1e-12,
    )
    assert found["dml"].final.run.expected is not None
    assert len(list((store.path / "start").glob("*.json"))) == 1
    checkpoints = [folder for folder in store.path.rglob("checkpoints") if folder.is_dir()]
    assert checkpoints == []


@pytest.mark.slow
def test_towards_targets_with_weights_and_smaller_proxies(data, tmp_path, pool):
    recipe = tiny_recipe(
        data,
        data={"store": str(data.path), "groups": ["code", "books"], "targets": ["web", "code"], "weights": {"web": 3}},
        proxy={"model": {"preset": "tiny", "config": {"num_hidden_layers": 1}}, "steps": 10},
        budget=4,
    )
    found = conduct(RunStore(tmp_path / "runs"), pool, recipe, ["dml", "doremi", "doge", "skill-it", "aioli-ood"])
    assert {c.asked.label: c.error for c in found if c.error} == {}
    for carried in found:
        assert list(carried.result["test"]["loss"]) == ["web", "code"]
        for job in carried.extra:
            assert (job.run.task.steps, job.recipe().model.config) == (10, {"num_hidden_layers": 1})


def test_nothing_is_trained_twice(data, tmp_path):
    store, executor = RunStore(tmp_path / "runs"), Here()
    methods = ["stratified", "skill-it", "doremi"]
    first = conduct(store, executor, tiny_recipe(data), methods)
    assert len(executor.orders) == len(set(executor.orders)) == 1 + 3 + 1 + 1 + 1
    again = Here()
    second = conduct(store, again, tiny_recipe(data, train_threads=2, trackers=["tensorboard"]), methods)
    assert again.orders == []
    assert [c.result for c in first] == [c.result for c in second]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux which files are mapped")
def test_a_worker_keeps_nothing_of_finished_runs(tmp_path):
    mine = tiny_store(tmp_path / "data", ("a", "b"))
    conduct(RunStore(tmp_path / "runs"), Here(), tiny_recipe(mine), ["stratified", "grid-search"])
    assert Path("/proc/self/maps").read_text().count(str(mine.path / "train.0")) <= 1  # by this test


def test_a_reference_without_its_model_is_trained_again(data, tmp_path):
    store = RunStore(tmp_path / "runs")
    stratified = conduct(store, Here(), tiny_recipe(data), ["stratified"])[0]
    store.remove_model(stratified.final.key)
    executor = Here()
    doremi = conduct(store, executor, tiny_recipe(data), ["doremi"])[0]
    assert doremi.error is None
    assert executor.orders[0] == stratified.final.key
    assert store.result(stratified.final.key)["test"] == stratified.result["test"]


def test_a_failed_run_keeps_its_error_and_the_others_go_on(data, tmp_path):
    @method(law="–", parameters="–", solver="–")
    def doomed(problem):
        """Its second run diverges."""
        good = problem.static([1, 0, 0], 5)
        bad = problem.static([0, 1, 0], 5)
        yield [good, bad]
        return problem.final_static([0, 0, 1])

    class Sabotage(Here):
        def do(self, order):
            if order["recipe"]["method"]["rules"].get("proportions") == [0.0, 1.0, 0.0]:
                order["recipe"]["train"]["lr"] = 1e30
            return super().do(order)

    store = RunStore(tmp_path / "runs")
    doomed_one, fine = conduct(store, Sabotage(), tiny_recipe(data), ["doomed", "stratified"])
    assert fine.error is None
    assert fine.result["steps"] == 30
    assert "failed: step" in doomed_one.error
    assert "log.txt" in doomed_one.error
    bad = doomed_one.failed[0]
    assert store.entry(bad.key).state == "failed"
    assert store.error(bad.key)["kind"] == "DivergedError"
    assert "Traceback" in store.log(bad.key, 100)
    assert store.entry(doomed_one.extra[0].key).state == "finished"
    healed = conduct(store, Here(), tiny_recipe(data), ["doomed"])[0]  # asked for again, it is tried again
    assert healed.error is None
    assert store.error(bad.key) is None


@pytest.mark.parametrize("text", ["{}", '{"val": '])
def test_a_damaged_result_is_trained_again(data, tmp_path, text):
    store = RunStore(tmp_path / "runs")
    first = conduct(store, Here(), tiny_recipe(data), ["stratified"])[0]
    (store.run_folder(first.final.key) / "result.json").write_text(text)
    again = conduct(store, Here(), tiny_recipe(data), ["stratified"])[0]
    assert again.result["test"] == first.result["test"]


def test_half_of_a_model_is_none(data, tmp_path):
    store = RunStore(tmp_path / "runs")
    first = conduct(store, Here(), tiny_recipe(data), ["stratified"])[0]
    for file in (store.run_folder(first.final.key) / "model").glob("*.safetensors"):
        file.unlink()
    assert conduct(store, Here(), tiny_recipe(data), ["doremi"])[0].error is None


def test_others_of_ones_group_can_go_on(data, tmp_path):
    """Files have the rights that the umask gives, also those of libraries that write for their owner alone."""
    store, job = _order(data, tmp_path, 20)
    assert work(job.order(store, keep=True), threading.Event()) == "done"
    mask = os.umask(0)
    os.umask(mask)
    for file in store.folder(job.key).rglob("*"):
        if file.is_file():
            assert file.stat().st_mode & 0o777 == 0o666 & ~mask, file


def test_a_directory_that_somebody_else_writes_is_busy(data, tmp_path):
    from aioli.files import locked

    store, job = _order(data, tmp_path, 20)
    with locked(store.run_folder(job.key), "it"):
        assert work(job.order(store), threading.Event()) == "busy"
    assert store.error(job.key) is None
    assert work(job.order(store), threading.Event()) == "done"


def test_a_disk_that_is_full_is_a_failure(data, tmp_path, monkeypatch):
    store, job = _order(data, tmp_path, 20)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert work(job.order(store), threading.Event()) == "failed"
    monkeypatch.undo()
    assert store.entry(job.key).state in ("unfinished", "failed")
    assert work(job.order(store), threading.Event()) == "done"


def test_a_worker_whose_orders_are_cut_short_ends(tmp_path):
    import subprocess
    import sys

    process = subprocess.Popen(
        [sys.executable, "-m", "aioli.runs.worker", "[]"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.communicate(b'[{"key": "ab', timeout=300)
    assert process.returncode == 0


def test_mistakes_in_a_method_of_the_users_stop_only_that_method(data, tmp_path):
    @method(law="–", parameters="–", solver="–")
    def broken(problem):
        """Has a mistake."""
        results = yield [problem.static([1, 0, 0], 3)]
        return problem.final_static(results[5].val_loss)

    @method(law="–", parameters="–", solver="–")
    def strange(problem):
        """Yields no runs."""
        yield "runs"

    store = RunStore(tmp_path / "runs")
    a, b, fine = conduct(store, Here(), tiny_recipe(data), ["broken", "strange", "stratified"])
    assert a.error.startswith("IndexError: list index out of range (test_conducting.py, line ")
    assert "must yield lists of runs" in b.error
    assert fine.error is None
    assert not a.failed


def test_a_job_of_somebody_else_is_waited_for(data, tmp_path, monkeypatch):
    monkeypatch.setattr("aioli.runs.conducting.AGAIN", 0.01)
    executor = Here(["busy", "busy"])
    found = conduct(RunStore(tmp_path / "runs"), executor, tiny_recipe(data), ["stratified"])[0]
    assert found.error is None
    assert len(executor.orders) == 3


def test_a_stop_from_elsewhere_is_an_interruption(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        conduct(RunStore(tmp_path / "runs"), Here(["stopped"]), tiny_recipe(data), ["stratified"])


def _order(data, tmp_path, steps):
    store, setup = RunStore(tmp_path / "runs"), Setup.of(tiny_recipe(data, train_steps=steps))
    job = Job(setup.problem(0).final_static([0.2, 0.3, 0.5]), setup)
    store.add(job)
    return store, job


def _started(store, job, seconds=60):
    """Wait until a run has made its first checkpoint; returns the process that trains it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        entry = store.entry(job.key)
        if entry.owner and list((store.run_folder(job.key) / "checkpoints").glob("step-*")):
            return entry.owner["process"]
        time.sleep(0.02)
    raise AssertionError("it has not begun")


def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(data, tmp_path):
    store, job = _order(data, tmp_path, 200)
    alone = work({**job.order(RunStore(tmp_path / "other")), "folder": str(tmp_path / "alone")}, threading.Event())
    assert alone == "done"
    executor = LocalExecutor(1)
    [future] = executor.submit([job.order(store)])
    os.kill(_started(store, job), signal.SIGKILL)
    assert future.result(120) == "done"
    executor.close()
    whole = read_json(tmp_path / "alone" / "run" / "result.json")
    assert {**store.result(job.key), "seconds": 0} == {**whole, "seconds": 0}


def test_a_run_whose_process_always_dies_counts_as_failed(data, tmp_path, monkeypatch):
    monkeypatch.setattr(local_module, "TRIES", 1)
    store, job = _order(data, tmp_path, 100_000)
    executor = LocalExecutor(1)
    [future] = executor.submit([job.order(store)])
    os.kill(_started(store, job), signal.SIGKILL)
    assert future.result(60) == "failed"
    executor.close()
    assert "killed by SIGKILL" in store.error(job.key)["error"]
    assert store.entry(job.key).state == "failed"


def test_closing_saves_what_is_being_trained(data, tmp_path):
    store, job = _order(data, tmp_path, 100_000)
    executor = LocalExecutor(1)
    later = {**job.order(store), "key": "0", "folder": str(tmp_path / "later")}
    future, later = executor.submit([job.order(store), later])
    _started(store, job)
    executor.close()
    assert future.result(0) == "stopped"
    assert later.result(0) == "stopped"
    assert store.entry(job.key).state == "unfinished"
    assert "stopped at step" in store.log(job.key)


def test_gpus_are_shared_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert local_module.gpus() == ["3", "5"]
    assert LocalExecutor().workers == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_module.gpus() == []
    assert LocalExecutor().workers == os.cpu_count()
    with pytest.raises(ValueError, match="workers=0"):
        LocalExecutor(0)


@pytest.mark.slow
def test_two_conductors_share_one_store(data, tmp_path):
    """As two users would: each run is trained by one of them, and both get everything."""
    store, found = RunStore(tmp_path / "runs"), {}

    def user(name):
        executor = LocalExecutor(1)
        found[name] = conduct(store, executor, tiny_recipe(data), ["grid-search", "skill-it"])
        executor.close()

    users = [threading.Thread(target=user, args=(name,)) for name in "ab"]
    for each in users:
        each.start()
    for each in users:
        each.join(300)
    assert [c.error for c in found["a"] + found["b"]] == [None] * 4
    assert [c.result for c in found["a"]] == [c.result for c in found["b"]]
    keys = list(store.keys())
    logs = [store.log(key, 1000).count("process") for key in keys]
    assert logs == [1] * len(logs)


def test_rules_of_the_users_reach_the_workers(data, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from aioli.config import register\n"
        "from aioli.methods import method\n"
        "from aioli.policies import Static\n"
        "@register\n@dataclass(frozen=True)\nclass Mine(Static):\n    pass\n"
        "@method(law='–', parameters='–', solver='–')\n"
        "def mine(problem):\n    '''Mine.'''\n    return problem.final(Mine((1, 0, 0)))\n"
    )
    from aioli.registry import load

    load([str(file)])
    executor = LocalExecutor(1, load=[str(file)])
    found = conduct(RunStore(tmp_path / "runs"), executor, tiny_recipe(data), ["mine"])[0]
    executor.close()
    assert found.error is None
    assert isinstance(found.final.run.rules, Static)
    assert found.result["realised"]["code"] == 1.0


def test_forks_go_on_from_one_parent(data, tmp_path):
    """Train to t, fork, and go on with other mixtures; a fork with the same one is the run that never stopped."""

    @method(law="–", parameters="–", solver="–")
    def forked(problem):
        """Two forks of one parent."""
        parent = problem.run(Static((0.2, 0.3, 0.5)), 12)
        mixtures = ((0.2, 0.3, 0.5), (1.0, 0.0, 0.0))
        yield [problem.run(Static(p), 18, parent=parent) for p in mixtures]
        return problem.final_static((0.2, 0.3, 0.5))

    store, executor = RunStore(tmp_path / "runs"), Here()
    recipe = tiny_recipe(data, train_horizon=30)
    found = conduct(store, executor, recipe, ["forked"])[0]
    assert found.error is None
    parent, same, other = found.extra
    assert parent.key == same.parent.key
    assert executor.orders[0] == same.parent.key == other.parent.key
    assert len(executor.orders) == len(set(executor.orders)) == 4
    assert len({same.key, other.key, found.final.key}) == 3
    results = [store.result(job.key) for job in (same, found.final, other)]
    assert results[0]["val"] == results[1]["val"] != results[2]["val"]
    assert results[0]["steps"] == 30
    assert results[2]["mean_proportions"] == {"code": 1.0, "books": 0.0, "web": 0.0}
    np.testing.assert_array_equal(store.outcome(same).start_loss, store.outcome(other).start_loss)
    np.testing.assert_array_equal(store.outcome(same).start_loss, store.outcome(same.parent).val_loss)
    assert store.has(same.parent.key, "checkpoints")
    assert not store.has(same.key, "checkpoints")
    store.remove(same.key)
    store.remove_model(same.parent.key)
    again = Here()
    assert conduct(store, again, recipe, ["forked"])[0].error is None
    assert again.orders == [same.parent.key, same.key]
    assert store.result(same.key)["val"] == results[0]["val"]
