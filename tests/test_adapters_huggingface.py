"""Aioli in Hugging Face's Trainer: the mixture asked for is in force in every batch, and resuming changes no bit."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

import aioli
from aioli.adapters.huggingface import AioliCallback
from aioli.adapters.looking import untouched
from aioli.adapters.pytorch import MixtureDataset
from aioli.cli import main
from aioli.data import Indices, MixtureSampler, write_store

NAMES = ("code", "web", "talk")
STEPS, BATCH = 24, 4


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Every group has tokens of its own."""
    rng = np.random.default_rng(0)
    sizes = {"train": 4000, "val": 400}
    tokens = {
        s: {g: 32 * j + np.cumsum(rng.integers(1, 4, n)) % 32 for j, g in enumerate(NAMES)} for s, n in sizes.items()
    }
    return write_store(tmp_path_factory.mktemp("data") / "store", tokens, context=16, vocabulary=97)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr(MixtureDataset, "patience", 60.0)


class Recording(LlamaForCausalLM):
    """A model that asks for the groups of its sequences and notes what it is trained on."""

    def forward(self, input_ids=None, labels=None, group=None, **more):
        if self.training:
            self.seen.append((None if group is None else group.tolist(), input_ids.tolist()))
        return super().forward(input_ids=input_ids, labels=labels, **more)


def small_model(dropout=0.1):
    set_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Recording(LlamaConfig(vocab_size=97, max_position_embeddings=16, attention_dropout=dropout, **shape))
    model.seen = []
    return model


def arguments(place, **more):
    usual = {
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(str(place), **{**usual, **more})


def online(method="aioli", steps=STEPS, **problem):
    settings = {"rounds": 2, "k": 1} | ({"eta": 1.0} if method != "aioli-pooled" else {})
    return aioli.create(method, **settings).policy(groups=list(NAMES), steps=steps, **problem)


def attached(place, data, policy=None, callbacks=(), model=None, sequences=4, trainer=Trainer, given=None, **more):
    model = small_model() if model is None else model
    made = trainer(model=model, args=arguments(place, **more), callbacks=list(callbacks), **(given or {}))
    AioliCallback(online() if policy is None else policy, data, sequences=sequences).attach(made)
    return made


def segments(place):
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "segment" and line["end"] > line["begin"]]


def asked_for(place):
    """The mixture of each step, as the policy asked for it."""
    return [line["proportions"] for line in segments(place) for _ in range(line["begin"], line["end"])]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("aioli", {}),
        ("aioli", {"dataloader_num_workers": 2}),
        ("aioli", {"dataloader_num_workers": 2, "gradient_accumulation_steps": 3}),
        ("aioli-pooled", {"accelerator_config": {"dispatch_batches": True}, "remove_unused_columns": False}),
        ("stratified", {"accelerator_config": {"dispatch_batches": False}}),
    ],
)
def test_every_batch_is_of_the_mixture_that_the_policy_asks_for(store, tmp_path, method, more):
    policy = online(method) if method != "stratified" else aioli.create(method).policy(list(NAMES), STEPS)
    trainer = attached(tmp_path, store, policy, **more)
    trainer.train()
    each = more.get("gradient_accumulation_steps", 1)
    sampler = MixtureSampler(store, BATCH, seed=trainer.args.seed)
    wanted = [sampler.next(p) for p in asked_for(tmp_path) for _ in range(each)]
    seen = trainer.model.seen
    assert len(seen) == STEPS * each == len(wanted)
    for (group, ids), batch in zip(seen, wanted, strict=True):
        assert group == batch.group.tolist() == [row[0] // 32 for row in ids]
        assert ids == batch.ids.tolist()
    mixtures = {tuple(p) for p in asked_for(tmp_path)}
    assert len(mixtures) == 1 if method == "stratified" else len(mixtures) > 3


def test_what_is_told_to_the_policy_is_what_was_consumed(store, tmp_path):
    trainer = attached(tmp_path, store, gradient_accumulation_steps=2)
    trainer.train()
    at = 0
    for line in segments(tmp_path):
        some = trainer.model.seen[2 * at : 2 * line["end"]]
        counts = np.bincount([g for group, _ in some for g in group], minlength=3)
        assert line["tokens"] == (16 * counts).tolist()
        at = line["end"]


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def told(place):
    """A journal without its times."""
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "crc")} for line in lines]


class Stop(TrainerCallback):
    """Saves and leaves the loop at a step."""

    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_training_stop = state.global_step == self.at


TIMES = ("runtime", "per_second", "train_loss", "total_flos")


def history(trainer):
    return [
        {k: v for k, v in line.items() if not k.endswith(TIMES)} for line in trainer.state.log_history if "loss" in line
    ]


@pytest.mark.parametrize(
    ("cut", "more"),
    [
        (1, {}),
        (7, {"dataloader_num_workers": 2, "gradient_accumulation_steps": 2}),
        (12, {"restore_callback_states_from_checkpoint": True}),
        pytest.param(23, {"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_one_that_was_never_interrupted(store, tmp_path, cut, more):
    whole = attached(tmp_path / "whole", store, **more)
    whole.train()
    attached(tmp_path / "parts", store, callbacks=[Stop(cut)], **more).train()
    resumed = attached(tmp_path / "parts", store, **more)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.model.seen == whole.model.seen[-len(resumed.model.seen) :]
    assert len(resumed.model.seen) == (STEPS - cut) * more.get("gradient_accumulation_steps", 1)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
    assert history(resumed) == history(whole)
    assert told(tmp_path / "parts") == told(tmp_path / "whole")


def test_a_checkpoint_can_be_gone_on_with_elsewhere(store, tmp_path):
    attached(tmp_path / "here", store, callbacks=[Stop(9)]).train()
    moved = attached(tmp_path / "there", store)
    moved.train(resume_from_checkpoint=str(tmp_path / "here" / "checkpoint-9"))
    whole = attached(tmp_path / "whole", store)
    whole.train()
    assert all(torch.equal(value, weights(moved)[name]) for name, value in weights(whole).items())
    assert told(tmp_path / "there")[0] == told(tmp_path / "whole")[0]


def test_training_again_begins_again(store, tmp_path):
    trainer = attached(tmp_path, store)
    trainer.train()
    first = asked_for(tmp_path)
    trainer.train()
    assert len(trainer.model.seen) == 2 * STEPS
    assert asked_for(tmp_path)[:2] == first[:2]  # later ones follow the losses of a trained model


def test_looking_changes_nothing_but_what_is_known(store, tmp_path):
    """The same batches in a plain Trainer give the same weights."""
    trainer = attached(tmp_path / "mixed", store, model=small_model(dropout=0.0), sequences=7)
    trainer.train()
    rows = [{"input_ids": row, "labels": row} for _, ids in trainer.model.seen for row in ids]
    model = small_model(dropout=0.0)
    plain = Trainer(
        model=model, args=arguments(tmp_path / "plain", train_sampling_strategy="sequential"), train_dataset=rows
    )
    plain.train()
    assert [ids for _, ids in plain.model.seen] == [ids for _, ids in trainer.model.seen]
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights(trainer).items())


def test_a_model_is_left_as_it_was():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    model[1].eval()
    model.train(True)
    model[0].eval()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with untouched(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3), np.random.rand(3), random.random()
    assert [module.training for module in model.modules()] == [True, False, True]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1], before[2]) == (np.random.get_state()[1].tolist(), random.getstate())


def test_losses_are_those_of_held_out_sequences(store, tmp_path):
    trainer = attached(tmp_path, store, aioli.create("stratified").policy(list(NAMES), STEPS), sequences=10**6)
    trainer.train()
    result = told(tmp_path)[-1]
    model = trainer.model.eval()
    for target in NAMES:
        ids = torch.from_numpy(store.rows(target, "val").astype(np.int64))
        with torch.no_grad():
            assert result["val"]["loss"][target] == pytest.approx(
                float(model(input_ids=ids, labels=ids).loss), rel=1e-5
            )
    assert trainer.model.seen[0][0] is not None


# ------------------------------------------------------------------ the trainer's own data


def own_data(**splits):
    """Examples in any order, some longer than others, with a column that says where they are from."""
    rng = np.random.default_rng(1)
    made = {}
    for split, size in splits.items():
        names = rng.permutation(np.repeat(NAMES, [size, size // 2, size // 4]))
        ids = [(32 * NAMES.index(g) + rng.integers(0, 32, 16)).tolist() for g in names]
        made[f"{split}_dataset"] = Dataset.from_dict({"input_ids": ids, "labels": ids, "source": names.tolist()})
    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_data_of_the_trainer_is_mixed_by_a_column(tmp_path, workers):
    data = own_data(train=32, eval=8)
    trainer = attached(
        tmp_path,
        "source",
        model=small_model(),
        given=data,
        dataloader_num_workers=workers,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    sampler = MixtureSampler(Indices((32, 16, 8), NAMES), BATCH, seed=trainer.args.seed)
    names, ids = np.array(data["train_dataset"]["source"]), data["train_dataset"]["input_ids"]
    rows = [np.flatnonzero(names == name) for name in NAMES]
    drawn = [sampler.next(p) for p in asked_for(tmp_path) for _ in range(2)]
    assert len(trainer.model.seen) == 2 * STEPS
    for (_, seen), batch in zip(trainer.model.seen, drawn, strict=True):
        assert seen == [ids[rows[g][k]] for g, k in zip(batch.group, batch.positions, strict=True)]


def test_epochs_of_the_trainer_stay_what_they_were(tmp_path):
    """56 examples in batches of 2 x 4 are seven steps; three and a half epochs of them."""
    data = own_data(train=32, eval=8)
    more = {"max_steps": -1, "num_train_epochs": 3.5, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"}

    def run(place, cut=None, resume=False):
        callbacks = [] if cut is None else [Stop(cut)]
        policy = online(steps=25)
        trainer = attached(place, "source", policy, callbacks, given=data, **more)
        trainer.train(resume_from_checkpoint=True if resume else None)
        return trainer

    whole = run(tmp_path / "whole")
    looked = [(line["step"], line["epoch"]) for line in whole.state.log_history if "eval_loss" in line]
    assert looked == [(7, 1.0), (14, 2.0), (21, 3.0), (25, 25 / 7)]
    run(tmp_path / "parts", 10)
    resumed = run(tmp_path / "parts", resume=True)
    again = [(line["step"], line["epoch"]) for line in resumed.state.log_history if "eval_loss" in line]
    assert [line for line in again if line[0] > 10] == looked[1:]
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())


def test_towards_a_target_that_is_not_trained_on(tmp_path):
    data = own_data(train=32, eval=8)
    other = [list(range(k, k + 16)) for k in range(12)]
    data["eval_dataset"] = {"medicine": Dataset.from_dict({"input_ids": other, "labels": other})}
    trainer = attached(tmp_path, "source", online("aioli-ood", targets=["medicine"]), given=data)
    trainer.train()
    assert list(told(tmp_path)[-1]["val"]["loss"]) == ["medicine"]


# ------------------------------------------------------------------ what people look at


def test_mixtures_are_in_the_logs_of_the_trainer(store, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = attached(tmp_path, store, report_to=["tensorboard"])
    trainer.train()
    steps = [line for line in trainer.state.log_history if "loss" in line]
    found = [[line[f"proportions/{name}"] for name in NAMES] for line in steps]
    assert found == asked_for(tmp_path)
    assert all(f"val_loss/{name}" in line for line in steps for name in NAMES)
    (place,) = {path.parent for path in tmp_path.rglob("events.out.*")}
    board = EventAccumulator(str(place))
    board.Reload()
    shares = [event.value for event in board.Scalars("train/proportions/code")]
    np.testing.assert_allclose(shares, [p[0] for p in found], rtol=1e-6)


def test_a_report_can_be_made_of_it(store, tmp_path):
    attached(tmp_path / "out", store).train()
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "aioli" in page
    assert all(name in page for name in NAMES)


# ------------------------------------------------------------------ mistakes


def test_steps_that_differ_are_named(store, tmp_path):
    trainer = attached(tmp_path, store, online(steps=30))
    with pytest.raises(ValueError, match=r"for 30 steps and the trainer would make 24.*max_steps=30"):
        trainer.train()
    trainer = attached(tmp_path, "source", given=own_data(train=32, eval=8), max_steps=-1, num_train_epochs=1)
    with pytest.raises(ValueError, match="for 24 steps and the trainer would make 14"):
        trainer.train()


def test_mistakes_are_named(store, tmp_path):
    with pytest.raises(ValueError, match="takes a policy, and a token store or the name of a column"):
        AioliCallback().attach(Trainer(model=small_model(), args=arguments(tmp_path)))
    with pytest.raises(ValueError, match="auto_find_batch_size=True starts over"):
        attached(tmp_path, store, auto_find_batch_size=True)
    with pytest.raises(ValueError, match="a trainer follows one policy"):
        AioliCallback(online(), store).attach(attached(tmp_path, store))
    loose = Trainer(
        model=small_model(),
        args=arguments(tmp_path),
        train_dataset=own_data(train=32)["train_dataset"],
        callbacks=[AioliCallback(online(), store)],
    )
    with pytest.raises(ValueError, match=r"call AioliCallback\(...\)\.attach\(trainer\)"):
        loose.train()
    with pytest.raises(ValueError, match="needs train_loss, which the trainer cannot observe"):
        attached(tmp_path, store, aioli.create("odm").policy(list(NAMES), STEPS)).train()
    with pytest.raises(ValueError, match=r"has no group 'medicine' to look at; it has code, web, talk"):
        attached(tmp_path, store, online("aioli-ood", targets=["medicine"])).train()
    with pytest.raises(ValueError, match=r"no train_dataset; for a token store pass TokenStore\('store'\)"):
        attached(tmp_path, "store")
    narrow = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(ValueError, match=r"the model knows 50 tokens and .* has 97; prepare the store"):
        attached(tmp_path, store, model=narrow)


def test_few_held_out_sequences_are_spoken_of(store, tmp_path, caplog):
    attached(tmp_path, store, sequences=None).get_train_dataloader()
    assert "is 1 sequences of each target at a time: a noisy look. sequences=16 would take about" in caplog.text


def test_mistakes_in_the_data_are_named(tmp_path):
    data = own_data(train=32, eval=8)

    def refused(words, column="source", policy=None, **given):
        with pytest.raises(ValueError, match=words):
            attached(tmp_path, column, policy, given={**data, **given}).train()

    refused("train_dataset has no column 'group', it has input_ids, labels, source", column="group")
    refused(
        "no example whose 'source' is 'talk'; there are code, web",
        train_dataset=data["train_dataset"].filter(lambda e: e["source"] != "talk"),
    )
    refused("give the trainer an eval_dataset", eval_dataset=None)
    empty = data["eval_dataset"].map(lambda e: {"labels": [-100] * 16 if e["source"] == "web" else e["labels"]})
    refused("the held-out sequences of 'web' have no token with loss", eval_dataset=empty)
    refused("eval_dataset has no 'code'; it has other", eval_dataset={"other": data["eval_dataset"]})
    refused("within reach; use a data set with a length", train_dataset=data["train_dataset"].to_iterable_dataset())


def test_a_checkpoint_of_something_else_is_refused(store, tmp_path):
    plain = Trainer(
        model=small_model(),
        args=arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=4),
        train_dataset=own_data(train=32)["train_dataset"],
    )
    plain.train()
    with pytest.raises(ValueError, match="was saved without AioliCallback"):
        attached(tmp_path, store).train(resume_from_checkpoint=True)


def test_a_run_goes_on_with_what_it_was_begun_with(store, tmp_path):
    """Otherwise the policy would take what it sees for the effect of its mixtures."""

    def stopped(place, data, given=None):
        saving = {"save_strategy": "steps", "save_steps": 4}
        attached(place, data, callbacks=[Stop(4)], given=given, **saving).train()

    stopped(tmp_path / "a", store)
    with pytest.raises(ValueError, match=r"made with gradient accumulation 1 and this run has 2; .* begin a new run"):
        attached(tmp_path / "a", store, gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="made with sequences 4 and this run has 5"):
        attached(tmp_path / "a", store, sequences=5).train(resume_from_checkpoint=True)
    data = own_data(train=32, eval=8)
    stopped(tmp_path / "b", "source", data)
    turned = data["train_dataset"].map(lambda e: {"input_ids": e["input_ids"][::-1]})
    with pytest.raises(ValueError, match=r"made with data .* and this run has"):
        attached(tmp_path / "b", "source", given={**data, "train_dataset": turned}).train(resume_from_checkpoint=True)
    attached(tmp_path / "b", "source", given=own_data(train=32, eval=8)).train(resume_from_checkpoint=True)


# ------------------------------------------------------------------ several processes


def test_two_processes_train_the_run_that_one_would(store, tmp_path):
    worker, launch = Path(__file__).parent / "distributed_trainer.py", [sys.executable, "-m", "torch.distributed.run"]
    command = [*launch, "--standalone", "--nproc_per_node=2", str(worker), str(store.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = attached(tmp_path / "alone", store, model=small_model(dropout=0.0), gradient_accumulation_steps=2)
    alone.train()
    for a, b in zip(told(tmp_path / "alone"), told(tmp_path / "whole"), strict=True):
        assert (a["kind"], a.get("end"), a.get("tokens")) == (b["kind"], b.get("end"), b.get("tokens"))
        if a["kind"] == "segment":
            np.testing.assert_allclose(a["values"].get("val_loss", 0), b["values"].get("val_loss", 0), rtol=1e-4)
    left, right = (json.loads((tmp_path / f"seen-{k}.json").read_text()) for k in (0, 1))
    for whole, one, two in zip(alone.model.seen, left, right, strict=True):
        assert sorted(whole[1]) == sorted(one[1] + two[1])
    assert told(tmp_path / "parts") == told(tmp_path / "whole")
    saved = [load_file(tmp_path / part / "checkpoint-24" / "model.safetensors") for part in ("whole", "parts")]
    assert all(torch.equal(value, saved[1][name]) for name, value in saved[0].items())
