"""Two processes train the run that one would: same batches, same mixtures, same losses; the first alone writes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engine import journal_of, recipe_of

from aioli.data import write_store
from aioli.train import Run
from aioli.train.models import load_model

WORKER = Path(__file__).parent / "distributed_worker.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Tokens with bigrams, a third of them prompts, so that ranks differ in how many tokens carry loss."""
    rng = np.random.default_rng(0)
    splits, masks = {}, {}
    for split, size in (("train", 4000), ("val", 640), ("test", 640)):
        splits[split] = {g: 32 * j + np.cumsum(rng.integers(1, 4, size)) % 32 for j, g in enumerate("abc")}
        masks[split] = {g: (rng.random(size) > rng.choice([0.1, 0.9], size)).astype(np.uint8) for g in "abc"}
    return write_store(tmp_path_factory.mktemp("data") / "store", splits, 16, 97, masks=masks)


def launch(jobs, folder, *more):
    (folder / "jobs.json").write_text(json.dumps(jobs))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*torchrun, str(WORKER), str(folder / "jobs.json"), *more], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def train_alone(recipes, folder):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for k, recipe in enumerate(recipes):
        Run(recipe, folder / str(k)).train()
    torch.set_num_threads(before)


def same_journals(one, two, what):
    one, two = journal_of(one), journal_of(two)
    assert len(one) == len(two), what
    for a, b in zip(one, two, strict=True):
        assert a["kind"] == b["kind"]
        if a["kind"] == "segment":
            assert (a["begin"], a["end"], a["tokens"]) == (b["begin"], b["end"], b["tokens"])
            # mixtures follow from differences of float32 losses: 4e-7 of rounding in drops of some hundredths
            np.testing.assert_allclose(a["proportions"], b["proportions"], atol=1e-4)
            np.testing.assert_allclose(np.array([a["loss"]], float), np.array([b["loss"]], float), rtol=1e-4)
            for kind, values in a["values"].items():
                close = np.array(values, dtype=float), np.array(b["values"][kind], dtype=float)
                np.testing.assert_allclose(*close, rtol=2e-3, atol=1e-5, err_msg=f"{what}: {kind}")
        if a["kind"] == "result":
            np.testing.assert_allclose(a["test"]["mean_loss"], b["test"]["mean_loss"], rtol=1e-4)


def test_two_processes_train_the_same_runs(store, tmp_path):
    methods = [
        {"name": "stratified"},
        {"name": "aioli", "settings": {"rounds": 2, "k": 1, "eta": 1.0}},
        {"name": "doremi", "settings": {"proxy": True, "eta": 0.5}, "reference": str(tmp_path / "one" / "0")},
        {"name": "doge", "settings": {"proxy": True, "eta": 0.5, "rule": "normalised"}},
        {"name": "ado", "settings": {"rounds": 3}},
        {"name": "aioli-fork", "settings": {"rounds": 4, "delta": 0.5, "doubt": 0.0}},
    ]
    parts = [{}, {"accumulate": 2}, {"accumulate": 2}, {"batch": 2}, {}, {}]
    recipes = [
        recipe_of(
            store, method=method, train={"steps": 24, "threads": 1, "lr": 1e-3, **more}, val={"tokens": 1, "every": 7}
        )
        for method, more in zip(methods, parts, strict=True)
    ]
    train_alone(recipes, tmp_path / "one")
    jobs = [
        {"recipe": recipe.model_dump(mode="json"), "path": str(tmp_path / "two" / str(k)), "stop": stop}
        for k, recipe in enumerate(recipes)
        for stop in ([9, 0] if k in (1, 3, 4) else [0])
    ]
    launch(jobs, tmp_path)
    for k, recipe in enumerate(recipes):
        same_journals(tmp_path / "one" / str(k), tmp_path / "two" / str(k), recipe.method.name)


SHARDED = {
    "aioli": {"rounds": 2, "k": 1, "eta": 1.0},
    "aioli-fork": {"rounds": 4, "delta": 0.5, "doubt": 0.0},
}


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.slow) if name == "aioli" else name for name in SHARDED]
)
def test_sharded_parameters_train_the_same_run(method, store, tmp_path):
    chosen = {"name": method, "settings": SHARDED[method]}
    small = {"tokens": 3 * 16, "batch": 1}  # three sequences for two ranks, one at a time
    recipe = recipe_of(store, method=chosen, train={"steps": 24, "threads": 1, "lr": 1e-3}, val=small)
    train_alone([recipe], tmp_path / "one")
    job = {"recipe": recipe.model_dump(mode="json"), "path": str(tmp_path / "two")}
    launch([{**job, "stop": stop} for stop in (9, 0)], tmp_path, "shard")
    same_journals(tmp_path / "one" / "0", tmp_path / "two", method)
    kept = [load_model(str(path / "model")).state_dict() for path in (tmp_path / "one" / "0", tmp_path / "two")]
    for name, value in kept[0].items():
        torch.testing.assert_close(value, kept[1][name], rtol=1e-3, atol=1e-4)
