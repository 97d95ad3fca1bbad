"""Hugging Face's Trainer with a static mixture, with fms-acceleration-odm, and with us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from contest.by_hand import first_model
from contest.job import Job
from contest.turns import Turns


def arguments(job: Job, place: Path, save: int | None, workers: int, **more: Any) -> TrainingArguments:
    """The job's optimizer in the Trainer's words; its reports and evaluations are off."""
    settings: dict[str, Any] = {
        "max_steps": job.steps,
        "per_device_train_batch_size": job.batch,
        "per_device_eval_batch_size": 64,
        "learning_rate": job.lr,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": job.floor},
        "warmup_steps": job.warmup,
        "optim": "adamw_torch",
        "adam_beta1": job.betas[0],
        "adam_beta2": job.betas[1],
        "adam_epsilon": job.eps,
        "weight_decay": job.decay,
        "max_grad_norm": job.clip,
        "seed": job.seed,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": workers,
        "save_strategy": "no" if save is None else "steps",
        "save_steps": save or job.steps,
    }
    return TrainingArguments(str(place / "trainer"), **{**settings, **more})


class Watch(TrainerCallback):
    """Tells the turns what happens; `asked` gives the mixture in force when a step begins."""

    def __init__(self, turns: Turns, asked: Any) -> None:
        self.turns, self.asked = turns, asked

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.turns.begin(model, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.p = list(self.asked())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.step(self.p)


def columns(job: Job, split: str) -> list[Any]:
    """Every group as a data set of Hugging Face, in memory."""
    import datasets

    found = []
    for rows in job.rows(split):
        ids = rows.astype("int64")
        found.append(datasets.Dataset.from_dict({"input_ids": ids, "labels": ids}).with_format("torch"))
    return found


# ---------------------------------------------------------------------- a static mixture


def interleaved(
    job: Job, turns: Turns, place: Path, save: int | None = None, resume: bool = False, **options: object
) -> None:
    """`datasets.interleave_datasets` with probabilities, into the Trainer, which shuffles what it is given."""
    import datasets

    even = [1 / len(job.groups)] * len(job.groups)
    mixed = datasets.interleave_datasets(columns(job, "train"), probabilities=even, seed=job.seed)
    trainer = Trainer(
        model=first_model(job),
        args=arguments(job, place, save, 0),
        train_dataset=mixed,
        callbacks=[Watch(turns, lambda: even)],
    )
    trainer.train(resume_from_checkpoint=resume or None)


# ---------------------------------------------------------------------- fms-acceleration-odm


def odm(
    job: Job,
    turns: Turns,
    place: Path,
    reward: str = "entropy",
    save: int | None = None,
    resume: bool = False,
    switch: int | None = None,
    workers: int = 0,
    **options: object,
) -> None:
    """Online data mixing by its plugin, as fms-hf-tuning puts it into a Trainer.

    Rewarded with the training loss, every batch is of one group and the weights change after each, as in the paper of
    ODM (Albalak et al., 2023, arXiv:2312.02406) and by the plugin's default. Rewarded with the entropy on held-out
    data, the plugin's default reward, it updates as often as Aioli and looks at as many sequences.
    """
    from datasets import DatasetDict
    from fms_acceleration_odm import OnlineDataMixingAccelerationPlugin, OnlineMixingDataset

    class Mixed(OnlineMixingDataset):  # type: ignore[misc]
        """With a change of weights at a given step, where one is wanted: at the moment when it updates its own."""

        def update_sampling_weights(self, model: Any, accelerator: Any, state: Any) -> None:
            if switch is None:
                super().update_sampling_weights(model, accelerator, state)
            elif state.global_step == switch:
                self.sampling_weights = torch.tensor([0.0, 1.0, *rest], dtype=torch.float64)
                self._update_sampling_ratio(self.sampling_weights)

    looking, rest = reward == "entropy", [0.0] * (len(job.groups) - 2)
    held_out = [rows.select(range(job.looked_at)) for rows in columns(job, "val")] if looking else []
    collators = dict.fromkeys(job.groups, _stacked)
    first = dict(zip(job.groups, (1.0, 0.0, *rest), strict=True))
    fixed = {"sampling_weights": first, "gamma": 0.0} if switch is not None else {}
    data = Mixed(
        DatasetDict(dict(zip(job.groups, columns(job, "train"), strict=True))),
        collators,
        DatasetDict(dict(zip(job.groups, held_out, strict=False))),
        collators if looking else {},
        sampling_interval=1 if looking else job.batch,
        eval_batch_size=64,
        output_dir=str(place / "trainer"),
        reward_type=reward,
        seed=job.seed,
        **fixed,
    )
    args = arguments(job, place, save, workers, logging_steps=job.steps if looking else 1)
    every = job.steps // job.rounds if looking and switch is None else 1
    own = {"update_interval": every, "resume_from_checkpoint": resume}
    plugin = OnlineDataMixingAccelerationPlugin({"training": {"odm": {"odm": own}}})
    model, _ = plugin.augmentation(first_model(job), args, ())
    model.ta_eval_steps = 0  # the Trainer evaluates nothing; the plugin updates in its place
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=data,
        eval_dataset=columns(job, "val")[0],
        callbacks=[Watch(turns, lambda: data.sampling_ratio)],
    )
    for callback in plugin.get_callbacks_and_ready_for_train(model, trainer.accelerator):
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume or None)


def _stacked(features: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Sequences as a batch, with the mask that its entropy needs."""
    ids = torch.stack([feature["input_ids"] for feature in features])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


# ---------------------------------------------------------------------- us


def ours(
    job: Job,
    turns: Turns,
    place: Path,
    save: int | None = None,
    resume: bool = False,
    switch: int | None = None,
    workers: int = 0,
    **options: object,
) -> None:
    """Aioli in the Trainer, through `AioliCallback`."""
    from aioli.adapters.huggingface import AioliCallback
    from aioli.data import TokenStore
    from contest.ours import policy_of

    trainer = Trainer(model=first_model(job), args=arguments(job, place, save, workers))
    callback = AioliCallback(policy_of(job, switch), TokenStore(job.store))
    trainer.add_callback(Watch(turns, lambda: callback.mixing.cursor.proportions))
    callback.attach(trainer)
    trainer.train(resume_from_checkpoint=resume or None)
