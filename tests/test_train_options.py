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
from transformers import AutoModelForCausalLM, BloomConfig

from aioli.cli import main
from aioli.data import MixtureSampler, write_store
from aioli.protocol import Segment
from aioli.recipe import build
from aioli.train import Engine, Run, Schedule, Settings, StoppedError, TrainRecipe, checkpoint
from aioli.train.models import load_model
from aioli.train.validation import subset

STATIC = {"name": "stratified"}
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


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
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "stopped at step 0; go on with: aioli" in done.stderr
    assert main(["train", *words, "--json"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 50


# ---------------------------------------------------------------------- what a review found


@pytest.mark.parametrize("method", ["odm", "ado", "doremi"])
def test_sequences_without_loss_are_no_divergence(method, tmp_path):
    """A group may be drawn whose sequences are prompts alone."""
    data = masked_store(tmp_path / "store")
    chosen = {"name": method}
    if method == "doremi":
        Run(recipe_of(data, method=STATIC, train={"steps": 5, "batch": 4}), tmp_path / "ref").train()
        chosen = {"name": method, "settings": {"proxy": True}, "reference": str(tmp_path / "ref")}
    assert Run(recipe_of(data, method=chosen, train={"batch": 4}), tmp_path / "run").train()["steps"] == 60
    lines = [line for line in journal_of(tmp_path / "run") if line["kind"] == "segment"]
    assert sum(sum(line["tokens"]) for line in lines) == 60 * 4 * CONTEXT  # all that was drawn


def test_a_setting_that_is_left_out_makes_another_run(store, tmp_path):
    Run(recipe_of(store, method={"name": "aioli", "settings": {"rounds": 2, "k": 1}}), tmp_path / "run").train()
    with pytest.raises(ValueError, match=r"another method\.settings\.rounds: 2, not None"):
        Run(recipe_of(store, method={"name": "aioli", "settings": {"k": 1}}), tmp_path / "run").train()


def test_the_default_method_depends_on_whether_there_is_a_target():
    def name(**plain):
        found = build(TrainRecipe, {"data": {"store": "x"}, **plain})
        assert TrainRecipe.model_validate(found.model_dump()) == found
        return found.method.name

    towards = {"store": "x", "targets": ["t"]}
    assert name() == name(data={"store": "x", "targets": []}) == name(method={"settings": {"rounds": 2}}) == "aioli"
    assert name(data=towards) == name(data=towards, method={"settings": {"rounds": 2}}) == "aioli-pooled"
    assert name(data=towards, method={"rules": None}) == "aioli-pooled"
    assert name(data={**towards, "groups": ["t", "u"]}) == "aioli"  # it is trained on
    assert name(data={"store": "x", "targets": ["t", "u"]}) == "aioli"  # which method is best is not known
    assert [name(data=towards, method=given) for given in ("aioli-ood", "aioli")] == ["aioli-ood", "aioli"]
    assert build(TrainRecipe, {"data": towards, "method": {"settings": {"k": 1}}}).method.settings == {"k": 1}


def test_a_directory_with_something_else_is_left_alone(store, tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match=r"holds something else \(thesis\.txt\)"):
        Run(recipe_of(store), tmp_path).train()
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_engine_finishes_one_segment_before_another(store):
    def fail(engine):
        if engine.step == 3:
            raise KeyboardInterrupt

    engine = engine_of(store, after_step=fail)
    with pytest.raises(KeyboardInterrupt):
        engine.advance(Segment(np.ones(3) / 3, 10))
    engine.after_step = None
    with pytest.raises(ValueError, match="in the middle of another segment, at step 3"):
        engine.advance(Segment(np.array([1.0, 0.0, 0.0]), 5))
    found = engine.advance(Segment(np.ones(3) / 3, 10))
    assert found.tokens.sum() == 10 * 8 * CONTEXT


def test_the_launchers_accumulation_changes_nothing(store, monkeypatch):
    found = []
    for parts in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", parts)
        engine = engine_of(store)
        engine.advance(Segment(np.ones(3) / 3, 3))
        found.append(weights(engine.plain))
    assert torch.equal(*found)


def test_a_checkpoint_whose_state_was_changed_is_refused(store, tmp_path):
    with pytest.raises(StoppedError):
        Run(recipe_of(store), tmp_path / "run", lambda run: run.stop.set()).train()
    file = checkpoint.latest(tmp_path / "run") / "state.json"
    for change in (('"step": 1', '"step": 2'), ('"sha256"', '"sha255"'), ("{", "[")):
        text = file.read_text()
        file.write_text(text.replace(*change, 1))
        with pytest.raises(ValueError, match=r"state\.json is damaged"):
            Run(recipe_of(store), tmp_path / "run").train()
        file.write_text(text)


def test_dropout_does_not_depend_on_what_was_drawn_before(store, tmp_path):
    results = []
    for name in ("a", "b"):
        config = {"hidden_dropout": 0.3, "attention_dropout": 0.1}
        run = Run(recipe_of(store, method=STATIC, model={"config": {**SMALL, **config}}), tmp_path / name)
        torch.rand(len(results) + 1)
        results.append(run.train()["val"])
    assert results[0] == results[1]


def test_models_without_forward_mode_take_a_pass_for_each_group(store):
    val = MixtureSampler(store, 6, split="val", groups=GROUPS)
    segment = Segment(np.ones(3) / 3, 2, frozenset({"grad_inner"}), "loss")
    usual = engine_of(store, val_sampler=val.copy()).advance(segment)
    engine = engine_of(store, val_sampler=val)
    engine.forward_mode = False
    np.testing.assert_allclose(engine.advance(segment).grad_inner, usual.grad_inner, rtol=1e-4)


def test_a_model_is_found_to_have_no_forward_mode(store):
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=2)
    model = AutoModelForCausalLM.from_config(config)
    engine = engine_of(store, model=model, val_sampler=MixtureSampler(store, 6, split="val", groups=GROUPS))
    found = engine.advance(Segment(np.ones(3) / 3, 1, frozenset({"grad_inner"}), "loss"))
    assert not engine.forward_mode
    assert np.isfinite(found.grad_inner).all()
    assert (found.grad_inner != 0).all()


def test_looking_that_will_be_dear_or_poor_is_said_beforehand(store, tmp_path, capsys):
    words = [f"data={store.path}", "data.groups=[a, b]", "-o", str(tmp_path / "run"), "train.steps=40", "train.batch=2"]
    assert main(["train", *words, "method={name: aioli, settings: {rounds: 2, k: 2}}"]) == 0
    said = capsys.readouterr().err
    assert "worth knowing: 10 looks at 2 validation sequences will take about 10% of the training compute" in said
    assert "each look takes 1 validation sequence of each target" in said


def test_proxies_say_what_they_recommend(store, tmp_path, capsys):
    words = [
        f"data={store.path}",
        "data.groups=[a, b, c]",
        "-o",
        str(tmp_path / "run"),
        "train.steps=30",
        "train.batch=6",
    ]
    assert main(["train", *words, "method={name: doge, settings: {proxy: true, eta: 2.0}}"]) == 0
    assert "which is what a proxy run recommends: a " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{store}", "-o", "run"], "is a directory, not a recipe; for a token store: data="),
        (["data={store}", "-o", "file"], "-o file is a file; give a directory"),
        (["data={store}", "-o", "run", "seed=-1"], "seed=-1: must be"),
        (["data={store}", "-o", "run", "method={{name: stratified, reference: ref}}"], "compares with no reference"),
        (["data={store}", "-o", "run", "model=there"], "for the model in that directory, model.name=there"),
        (["data={store}", "-o", "run", "model={{name: ./nowhere}}"], "there is no such directory"),
        (["empty.yaml", "-o", "run"], "empty.yaml is empty"),
    ],
)
def test_more_mistakes_are_one_line(words, complaint, store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "there").mkdir()
    assert main(["train", *(word.format(store=store.path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
