"""The same sweep on Ray as in this process, with a Ray worker killed half way."""

import os
import signal
import threading
import time

import pytest
from tiny import Here, tiny_recipe, tiny_store

from aioli.methods import create
from aioli.runs import Asked, Conductor, RayExecutor, RunStore, Setup


def conduct(executor, place, data):
    setup = Setup.of(tiny_recipe(data, train_steps=60))
    conductor = Conductor(RunStore(place), executor, setup, setup)
    methods = {"grid-search": create("grid-search", runs=3), "doremi": create("doremi")}
    found = conductor.conduct([Asked(name, method, setup.problem(0)) for name, method in methods.items()])
    assert [carried.error for carried in found] == [None, None]
    return [({**c.result, "seconds": None}, c.final.key, [job.key for job in c.extra]) for c in found]


def kill_one(store, killed):
    """Kill a process of Ray that has trained part of a run."""
    while not killed:
        for key in list(store.keys()):
            entry = store.entry(key)
            if entry.owner and list((store.run_folder(key) / "checkpoints").glob("step-*")):
                os.kill(entry.owner["process"], signal.SIGKILL)
                killed.append(key)
                break
        time.sleep(0.02)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_sweep_is_the_same_on_ray_though_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("aioli.runs.conducting.AGAIN", 0.2)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else other tests beside it take most of the time
    data = tiny_store(tmp_path / "store", ("code", "books"))
    expected = conduct(Here(), tmp_path / "here", data)
    store, killed = RunStore(tmp_path / "ray"), []
    executor = RayExecutor(workers=2)
    try:
        killer = threading.Thread(target=kill_one, args=(store, killed), daemon=True)
        killer.start()
        assert conduct(executor, tmp_path / "ray", data) == expected
        assert killed
        with pytest.raises(ValueError, match="each run is to have 1 GPU"):
            RayExecutor(gpus=1)
    finally:
        executor.close()
