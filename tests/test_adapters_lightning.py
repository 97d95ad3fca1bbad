"""Aioli in Lightning's Trainer: the mixture asked for is in force in every batch, and resuming changes no bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import aioli
from aioli.adapters.lightning import AioliCallback, MixtureDataModule
from aioli.adapters.pytorch import MixtureDataset
from aioli.cli import main
from aioli.data import MixtureSampler, write_store

pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory .* exists:UserWarning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning",  # saving is not wanted again
)
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


class Model(LightningModule):
    """A bigram model with dropout that notes what it is trained on."""

    def __init__(self):
        super().__init__()
        self.words, self.drop = torch.nn.Embedding(97, 16), torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(16, 97)
        self.seen = []

    def loss(self, batch):
        logits = self.head(self.drop(self.words(batch["input_ids"])))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    def training_step(self, batch, index):
        self.seen.append((batch["group"].tolist(), batch["input_ids"].tolist()))
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Stop(Callback):
    """Leaves the loop at a step."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_end(self, trainer, *more):
        trainer.should_stop = trainer.global_step >= self.at


def fitted(
    place, store, workers=0, stop=None, resume=None, steps=STEPS, mixed=True, batch=BATCH, first=(), model=None, **more
):
    seed_everything(0)
    policy = aioli.create("aioli", rounds=2, k=1, eta=1.0).policy(groups=list(NAMES), steps=STEPS)
    data = MixtureDataModule(policy, store, batch, workers, sequences=4, journal=place)
    saving = ModelCheckpoint(place, filename="at", every_n_train_steps=stop, save_on_train_epoch_end=False)
    callbacks = [*first] + [AioliCallback(data, Model.loss)] * mixed + ([] if stop is None else [Stop(stop), saving])
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    usual = {"max_steps": steps, "enable_checkpointing": stop is not None, "default_root_dir": place}
    trainer = Trainer(callbacks=callbacks, **{**quiet, **usual, **more})
    model = model or Model()
    trainer.fit(model, data, ckpt_path=resume, weights_only=True if resume else None)
    return model


def told(place):
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "crc")} for line in lines]


def asked_for(place):
    some = [line for line in told(place) if line["kind"] == "segment"]
    return [line["proportions"] for line in some for _ in range(line["begin"], line["end"])]


@pytest.mark.parametrize(("workers", "each"), [(0, 1), (2, 1), (2, 3)])
def test_every_batch_is_of_the_mixture_that_the_policy_asks_for(store, tmp_path, workers, each):
    model = fitted(tmp_path, store, workers, accumulate_grad_batches=each)
    sampler = MixtureSampler(store, BATCH)
    wanted = [sampler.next(p) for p in asked_for(tmp_path) for _ in range(each)]
    assert len(model.seen) == STEPS * each == len(wanted)
    for (group, ids), batch in zip(model.seen, wanted, strict=True):
        assert group == batch.group.tolist() == [row[0] // 32 for row in ids]
        assert ids == batch.ids.tolist()
    assert len({tuple(p) for p in asked_for(tmp_path)}) > 3


@pytest.mark.parametrize(("cut", "workers", "each"), [(1, 0, 1), (7, 2, 2), (12, 0, 1), (23, 0, 2)])
def test_a_resumed_run_equals_one_that_was_never_interrupted(store, tmp_path, cut, workers, each):
    more = {"workers": workers, "accumulate_grad_batches": each}
    whole = fitted(tmp_path / "whole", store, **more)
    fitted(tmp_path / "parts", store, stop=cut, **more)
    resumed = fitted(tmp_path / "parts", store, resume=tmp_path / "parts" / "at.ckpt", **more)
    assert resumed.seen == whole.seen[cut * each :]
    for (name, one), two in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert told(tmp_path / "parts") == told(tmp_path / "whole")


def test_mixtures_are_in_the_logs(store, tmp_path):
    fitted(tmp_path, store, logger=CSVLogger(tmp_path, "logs"), log_every_n_steps=1)
    (file,) = tmp_path.rglob("metrics.csv")
    table = np.genfromtxt(file, delimiter=",", names=True, deletechars="")
    found = np.stack([table[f"proportions/{name}"] for name in NAMES], axis=1)
    np.testing.assert_allclose(found, asked_for(tmp_path), rtol=1e-6)
    assert np.isfinite(table["val_loss/web"]).all()


def test_a_report_can_be_made_of_it(store, tmp_path):
    fitted(tmp_path / "run", store)
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 0
    assert all(name in (tmp_path / "page.html").read_text() for name in NAMES)


def test_mistakes_are_named(store, tmp_path):
    with pytest.raises(ValueError, match=r"for 24 steps and the trainer would make 20.*max_steps=24"):
        fitted(tmp_path, store, steps=20)
    with pytest.raises(ValueError, match=r"for 24 steps and the trainer would make 72"):
        fitted(tmp_path, store, steps=-1, max_epochs=3)
    with pytest.raises(ValueError, match=r"callbacks=\[AioliCallback\(data, loss\)\]"):
        fitted(tmp_path, store, mixed=False)


class Manual(Model):
    """Steps after every second batch, on its own."""

    automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, index))
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()


def test_steps_of_another_size_than_planned_are_refused(store, tmp_path):
    scheduler = GradientAccumulationScheduler({0: 4})
    with pytest.raises(ValueError, match=r"changed from 1 to 4; .* no GradientAccumulationScheduler"):
        fitted(tmp_path, store, first=[scheduler], workers=2)
    with pytest.raises(ValueError, match="1 batches without an optimizer step; with manual optimization"):
        fitted(tmp_path, store, model=Manual(), workers=2)


class SaveFirst(Callback):
    """Saves before others have heard of the step."""

    def on_train_batch_end(self, trainer, *more):
        if trainer.global_step == 8:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "early.ckpt")


def test_a_checkpoint_by_a_callback_before_ours_is_whole(store, tmp_path):
    whole = fitted(tmp_path, store, first=[SaveFirst()])
    resumed = fitted(tmp_path, store, resume=tmp_path / "early.ckpt")
    assert resumed.seen == whole.seen[8:]
    for one, two in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_a_run_goes_on_with_what_it_was_begun_with(store, tmp_path):
    fitted(tmp_path, store, stop=5)
    with pytest.raises(ValueError, match="made with gradient accumulation 1 and this run has 2"):
        fitted(tmp_path, store, resume=tmp_path / "at.ckpt", accumulate_grad_batches=2)


def test_one_epoch_is_the_whole_policy(store, tmp_path):
    assert len(fitted(tmp_path, store, steps=-1, max_epochs=1).seen) == STEPS


def test_a_checkpoint_of_something_else_is_refused(store, tmp_path):
    fitted(tmp_path, store, stop=5)
    saved = torch.load(tmp_path / "at.ckpt", weights_only=True)
    del saved["MixtureDataModule"]
    torch.save(saved, tmp_path / "at.ckpt")
    with pytest.raises(ValueError, match="was saved without MixtureDataModule"):
        fitted(tmp_path, store, resume=tmp_path / "at.ckpt")


@pytest.mark.slow
def test_two_processes_train_on_the_batches_of_one(store, tmp_path):
    distributed(store, tmp_path)
    sampler = MixtureSampler(store, BATCH)
    left, right = (json.loads((tmp_path / f"seen-{k}.json").read_text()) for k in (0, 1))
    for p, a, b in zip(asked_for(tmp_path), left, right, strict=True):
        assert sorted(a[1] + b[1]) == sorted(sampler.next(p).ids.tolist())
    assert len({tuple(p) for p in asked_for(tmp_path)}) > 3


@pytest.mark.slow
def test_two_processes_go_on_each_with_its_own_random_numbers(store, tmp_path):
    distributed(store, tmp_path / "whole")
    distributed(store, tmp_path / "parts", "stop")
    distributed(store, tmp_path / "parts", "resume")
    whole, parts = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("whole", "parts"))
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


def distributed(store, place, *how):
    """Two processes with other random numbers each."""
    place.mkdir(exist_ok=True)
    worker = Path(__file__).parent / "distributed_lightning.py"
    command = [sys.executable, str(worker), str(store.path), str(place), *how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
