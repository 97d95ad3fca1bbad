"""Runs that are trained together, with stacked parameters, end as separate ones do, up to rounding."""

import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_recipe, tiny_store

from aioli.data import write_store
from aioli.methods import create
from aioli.policies import Static
from aioli.runs import Asked, Conductor, Job, LocalExecutor, RunStore, Setup
from aioli.runs.together import work_together
from aioli.runs.work import work
from aioli.train import Schedule, Settings
from aioli.train.models import build_model
from aioli.train.optimizer import adamw
from aioli.train.stacked import Stack

MIXTURES = ([1, 0, 0], [0.2, 0.3, 0.5], [0.0, 0.5, 0.5])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("data") / "store")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Instruction data, with prompts that carry no loss and a sequence without any."""
    rng = np.random.default_rng(0)
    splits, masks = {}, {}
    for split, size in (("train", 3200), ("val", 320), ("test", 320)):
        splits[split] = {g: rng.integers(0, 40, size) for g in ("a", "b", "c")}
        masks[split] = {g: (rng.random(size) < 0.3).astype(np.uint8) for g in ("a", "b", "c")}
        masks[split]["a"][:16] = 0
    return write_store(tmp_path_factory.mktemp("data") / "masked", splits, 16, 40, masks=masks)


def jobs(data, store, **recipe):
    setup = Setup.of(tiny_recipe(data, **recipe))
    found = [Job(setup.problem(seed).static(p, 25, seed), setup) for p, seed in zip(MIXTURES, (0, 0, 1), strict=True)]
    for job in found:
        store.add(job)
    return found


@pytest.mark.parametrize("kind", ["data", "masked"])
def test_together_is_as_apart(kind, request, tmp_path):
    data = request.getfixturevalue(kind)
    alone, together = RunStore(tmp_path / "alone"), RunStore(tmp_path / "together")
    found = jobs(data, alone)
    jobs(data, together)
    for job in found:
        assert work(job.order(alone), threading.Event()) == "done"
    orders = [job.order(together) for job in found]
    assert len({order["stack"] for order in orders}) == 1
    assert work_together(orders, threading.Event()) == ["done"] * 3
    for job in found:
        a, b = alone.result(job.key), together.result(job.key)
        assert b["stacked"] == 3
        assert list(a) == [key for key in b if key != "stacked"]
        assert (a["realised"], a["epochs"], a["mean_proportions"]) == (
            b["realised"],
            b["epochs"],
            b["mean_proportions"],
        )
        for split in ("val", "test"):
            losses = [list(each[split]["loss"].values()) for each in (a, b)]
            np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
        weights = [load_file(s.run_folder(job.key) / "model" / "model.safetensors") for s in (alone, together)]
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[1][name], atol=2e-4, rtol=0)
        np.testing.assert_allclose(alone.outcome(job).start_loss, together.outcome(job).start_loss, rtol=1e-6)


def test_clipping_and_decay_are_each_models_own():
    models = [build_model("tiny", None, vocabulary=40, context=16, seed=s).double() for s in range(3)]
    with torch.no_grad():
        models[1].get_output_embeddings().weight.mul_(20)
    settings = Settings(Schedule(1e-2, 10), decay=0.5)
    stack = Stack(models, settings)
    optimizers = [adamw(model, 1e-2, settings.betas, settings.eps, settings.decay) for model in models]
    rng = np.random.default_rng(0)
    for step in range(6):
        ids = torch.from_numpy(rng.integers(0, 40, (3, 4, 16)))
        rate = settings.schedule.rate(step)
        losses, sound = stack.step(ids, ids, rate)
        assert bool(sound.all())
        for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            loss = model(input_ids=ids[k], labels=ids[k]).loss
            assert loss.item() == pytest.approx(float(losses[k]), rel=1e-5)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
    for k, model in enumerate(models):
        for name, p in model.named_parameters():
            torch.testing.assert_close(stack.params[name][k], p.detach(), atol=1e-5, rtol=0)


def test_one_that_diverges_leaves_the_others_alone():
    models = [build_model("tiny", None, vocabulary=40, context=16, seed=s) for s in range(2)]
    with torch.no_grad():
        models[0].get_input_embeddings().weight[3] = float("nan")
    stack = Stack(models, Settings(Schedule(1e-2, 10)))
    before = {name: p.clone() for name, p in stack.params.items()}
    ids = torch.full((2, 4, 16), 3)
    _, sound = stack.step(ids, ids, 1e-2)
    assert sound.tolist() == [False, True]
    assert all(torch.isfinite(p[1]).all() for p in stack.params.values())
    assert any(not torch.equal(p[1], before[name][1]) for name, p in stack.params.items())


def test_what_cannot_be_stacked(data, tmp_path):
    store = RunStore(tmp_path / "runs")
    for recipe in ({"train_accumulate": 2}, {"train_compile": True}, {"train_precision": "bf16"}):
        assert {job.order(store)["stack"] for job in jobs(data, store, **recipe)} == {None}
    setup = Setup.of(tiny_recipe(data, train_steps=60))
    carried = create("aioli").plan(setup.problem(0))
    with pytest.raises(StopIteration) as end:
        next(carried)
    assert Job(end.value.value, setup).order(store)["stack"] is None
    dropout = build_model("tiny", None, vocabulary=40, context=16, seed=0, overrides={"hidden_dropout": 0.1})
    with pytest.raises(ValueError, match="dropout"):
        Stack([dropout, dropout], Settings(Schedule(1e-2, 10)))


def test_one_that_cannot_be_stacked_does_not_spoil_the_others(data, tmp_path):
    store = RunStore(tmp_path / "runs")
    orders = [job.order(store) for job in jobs(data, store)]
    orders[1]["recipe"]["data"]["on_exhausted"] = "error"
    orders[1]["recipe"]["data"]["max_epochs"] = 0.01
    assert work_together(orders, threading.Event()) == ["done", "failed", "done"]
    dropout = {"preset": "tiny", "config": {"attention_dropout": 0.1}}
    orders = [job.order(store) for job in jobs(data, store, model=dropout)]
    assert work_together(orders, threading.Event()) == ["done"] * 3


def test_a_stop_leaves_them_to_begin_again(data, tmp_path):
    store, stop = RunStore(tmp_path / "runs"), threading.Event()
    orders = [job.order(store) for job in jobs(data, store)]
    stop.set()
    assert work_together(orders, stop) == ["stopped"] * 3
    assert work_together(orders, threading.Event()) == ["done"] * 3
    assert work_together(orders, threading.Event()) == ["done"] * 3


def test_a_sweep_in_stacks(data, tmp_path):
    setup = Setup.of(tiny_recipe(data))
    store, executor = RunStore(tmp_path / "runs"), LocalExecutor(2, stack=8)
    found = Conductor(store, executor, setup, setup).conduct([Asked("dml", create("dml"), setup.problem(0))])[0]
    executor.close()
    assert found.error is None
    assert sorted(store.result(job.key)["stacked"] for job in found.extra) == [5] * 10


@pytest.mark.slow
def test_runs_that_others_go_on_from_are_not_stacked(data, tmp_path):
    """Stacks leave no checkpoints; such runs were trained again and again."""
    setup = Setup.of(tiny_recipe(data))
    problem = setup.problem(0)
    first = [problem.static([x, 1 - x, 0], 2) for x in (0.25, 0.5, 0.75)]
    second = [problem.run(Static((0.5, 0.5, 0.0)), 2, parent=run) for run in first]

    class Pairs:
        own, name = False, "pairs"

        def plan(self, problem):
            yield [*first, *second]
            return problem.final_static([0.5, 0.5, 0])

    store, executor = RunStore(tmp_path / "runs"), LocalExecutor(1, stack=8)
    found = Conductor(store, executor, setup, setup).conduct([Asked("pairs", Pairs(), problem)])[0]
    executor.close()
    assert found.error is None
    assert len(found.extra) == 6
