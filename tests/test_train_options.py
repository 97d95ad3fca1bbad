"""What `aioli train` can be told beyond the defaults: other models, precision, trackers, parts of a batch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_engine import CONTEXT, GROUPS, VOCABULARY, engine_of, journal_of, llama, model_of, recipe_of, weights
from test_engine import one_thread as one_thread
from test_engine import store as store

from aioli.cli import main
from aioli.data import MixtureSampler, write_store
from aioli.protocol import Segment
from aioli.train import Engine, Run, Schedule, Settings
from aioli.train.models import load_model
from aioli.train.validation import subset

STATIC = {"name": "stratified"}


@pytest.mark.parametrize("scratch", [False, True])
def test_any_causal_model_from_a_directory(scratch, store, tmp_path):
    llama().save_pretrained(tmp_path / "llama")
    model = {"name": str(tmp_path / "llama"), "scratch": scratch, "preset": None, "config": {}}
    run = Run(recipe_of(store, model=model, method=STATIC, train={"steps": 5}, seed=1), tmp_path / "run")
    assert type(run.engine.plain).__name__ == "LlamaForCausalLM"
    assert torch.equal(weights(run.engine.plain), weights(llama())) != scratch
    run.train()
    assert type(load_model(str(tmp_path / "run" / "model"))).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"vocab_size": 50}, "knows 50 tokens"), ({"max_position_embeddings": 8}, "sequences of 8 tokens")],
)
def test_models_that_cannot_hold_the_data_are_refused(change, complaint, store, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        Run(recipe_of(store, model={"config": change}), tmp_path / "run")


@pytest.mark.parametrize("method", [STATIC, {"name": "doge", "settings": {"proxy": True}}])
def test_bf16_learns_and_resumes(method, store, tmp_path):
    recipe = recipe_of(store, method=method, train={"precision": "bf16", "steps": 30})
    whole = Run(recipe, tmp_path / "whole").train()
    assert whole["val"]["mean_loss"] < 4.2

    def crash(run):
        if run.engine.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(recipe, tmp_path / "run", crash).train()
    assert Run(recipe, tmp_path / "run").train()["val"] == whole["val"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_learn_the_same(store, tmp_path):
    plain, compiled = (
        Run(recipe_of(store, method=STATIC, train={"compile": choice, "steps": 20}), tmp_path / str(choice)).train()
        for choice in (False, True)
    )
    assert compiled["val"]["mean_loss"] == pytest.approx(plain["val"]["mean_loss"], rel=1e-3)


def test_trackers_are_told_what_the_journal_says(store, tmp_path):
    recipe = recipe_of(
        store,
        trackers=["tensorboard"],
        method={"name": "aioli", "settings": {"rounds": 2, "k": 1}},
        train={"steps": 40},
    )
    Run(recipe, tmp_path / "run").train()
    events = EventAccumulator(str(tmp_path / "run" / "aioli"))
    events.Reload()
    shares = [event.value for event in events.Scalars("proportions/b")]
    wanted = [line["proportions"][1] for line in journal_of(tmp_path / "run") if line["kind"] == "segment"]
    np.testing.assert_allclose(shares, wanted, rtol=1e-5)
    assert {"loss", "lr", "val_loss/a", "probe_share", "final_test_loss/c"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("tracker", "complaint"),
    [("tensorbord", "did you mean tensorboard?"), ("comet_ml", "not installed; pip install comet_ml")],
)
def test_unknown_trackers_are_refused(tracker, complaint, store, tmp_path, capsys):
    words = [f"data={store.path}", "-o", str(tmp_path / "run"), f"trackers=[{tracker}]"]
    assert main(["train", *words]) == 2
    assert complaint in capsys.readouterr().err


def masked_store(path):
    """Instructions, so that tokens with loss are spread unevenly, in some batches over no sample of a group at all."""
    rng = np.random.default_rng(0)
    splits = {s: {g: rng.integers(0, VOCABULARY, 1600) for g in GROUPS} for s in ("train", "val")}
    masks = {
        s: {g: np.repeat(rng.random(1600 // CONTEXT) < 0.4, CONTEXT).astype(np.uint8) for g in GROUPS} for s in splits
    }
    return write_store(path, splits, CONTEXT, VOCABULARY, masks=masks)


@pytest.mark.parametrize("weighting", ["sample", "loss"])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_a_batch_in_parts_is_minimised_as_a_whole(weighting, parts, tmp_path):
    """Losses are means over the tokens of the batch, or of a group in it, however it is split."""
    data, p = masked_store(tmp_path / "store"), np.array([0.6, 0.3, 0.1])
    model, sampler = model_of(), MixtureSampler(data, 8)
    batch = sampler.copy().next(p if weighting == "sample" else np.ones(3) / 3)
    ids, group, mask = (torch.from_numpy(a) for a in (batch.ids, batch.group, batch.mask))
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    losses = losses.detach().view(8, -1)
    counted = mask[:, 1:].float()
    wanted = (losses * counted).sum() / counted.sum()
    if weighting == "loss":
        each = [(losses * counted)[group == j].sum() / counted[group == j].sum().clamp(min=1) for j in range(3)]
        wanted = sum(share * loss for share, loss in zip(p.tolist(), each, strict=True))
    settings = Settings(Schedule(1e-2, 5, 1), accumulate=parts)
    engine = Engine(model, sampler, subset(data, GROUPS, "val", 4, 0, 64), settings)
    observed = frozenset({"train_loss"})
    found = engine.advance(Segment(p, 1, observed, weighting=weighting))
    assert engine.loss == pytest.approx(float(wanted), rel=1e-5)
    for j in range(3):
        tokens = counted[group == j].sum()
        if tokens > 0:
            assert found.train_loss[j] == pytest.approx(float((losses * counted)[group == j].sum() / tokens), rel=1e-4)


def test_grad_inner_does_not_depend_on_the_parts_of_a_batch(store):
    found = []
    for parts in (1, 4):
        engine = engine_of(store, accumulate=parts, val_sampler=MixtureSampler(store, 6, split="val", groups=GROUPS))
        found.append(engine.advance(Segment(np.ones(3) / 3, 3, frozenset({"grad_inner", "grad_norm"}), "loss")))
    np.testing.assert_allclose(found[0].grad_inner, found[1].grad_inner, rtol=1e-3)
    np.testing.assert_allclose(found[0].grad_norm, found[1].grad_norm, rtol=1e-3)


def test_a_stop_before_the_first_step_costs_nothing(store, tmp_path):
    """SIGTERM while torch is still being imported, or the model built."""
    words = [f"data={store.path}", "-o", str(tmp_path / "run"), "train.steps=50", "train.batch=8"]
    code = (
        "import os, signal, sys, threading\n"
        "from aioli.cli import main, train\n"
        "begin = train.signal.signal\n"
        "def ready(number, handler):\n"
        "    begin(number, handler)\n"
        "    if number == signal.SIGINT: os.kill(os.getpid(), signal.SIGTERM)\n"
        "train.signal = type('S', (), {**vars(signal), 'signal': staticmethod(ready)})\n"
        "sys.exit(main(['train', *sys.argv[1:]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stopped at step 0; go on with: aioli" in done.stderr
    assert main(["train", *words, "--json"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 50
