"""`AioliCallback`: a mixture that adapts while Hugging Face's `Trainer` trains, or TRL's `SFTTrainer`.

    trainer = Trainer(model=model, args=TrainingArguments("out", max_steps=3000, ...))
    AioliCallback(policy, store).attach(trainer)              # sequences of a token store: aioli prepare
    trainer.train()

    trainer = SFTTrainer(model, args, train_dataset=tasks, eval_dataset=held_out, ...)
    AioliCallback(policy, "task").attach(trainer)             # the trainer's own data, grouped by a column

Nothing else changes: workers, gradient accumulation, several processes, evaluation, logs and `resume_from_checkpoint`
are the Trainer's. The state of the mixture is in `trainer_state.json` of each of its checkpoints.

**Why `attach`.** The Trainer passes its loader through accelerate, whose loaders fetch a batch before they hand out
the one before it, to know which is the last. After the last batch of a segment there is no next one yet: its mixture
depends on the model that this batch will have trained. A data set could only give a stale batch there, or wait for
ever. So the callback puts in its own loader, through `get_train_dataloader`, the method that the Trainer leaves open
for this, and nothing between it and the loop looks ahead; workers still read ahead inside a segment. (Ending the loader
with each segment would work too, but would make an epoch of each: its evaluations, checkpoints and new workers.) The
processes of a run need no dispatching: the sampler plans the same batch on all of them and each reads its rows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from aioli.adapters import lacking
from aioli.data.sampler import Indices
from aioli.data.store import TokenStore
from aioli.policies import RulePolicy
from aioli.simplex import Array
from aioli.train.layout import JOURNAL

try:
    import torch
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise lacking(error, "train") from error

from aioli.adapters.columns import Rows, examples, held_out_rows, rows_by_group
from aioli.adapters.looking import HeldOut, Tensors, how_many, of_store, target_names, untouched
from aioli.adapters.mixing import Mixing, Read
from aioli.train.probes import token_losses

__all__ = ["AioliCallback"]


class AioliCallback(TrainerCallback, ExportableState):
    """A policy in a Trainer."""

    def __init__(
        self,
        policy: RulePolicy | None = None,
        data: TokenStore | str | None = None,
        sequences: int | None = None,
        journal: bool = True,
        **drawing: Any,
    ) -> None:
        """`data`: a token store, or the column of the trainer's own data sets that names the group of each example.

        `sequences` of each target are looked at when the policy asks (left out: 4% of the training compute). With
        `journal`, the run can be shown by `aioli report OUTPUT_DIR`. `drawing`: settings of `MixtureSampler`, such as
        `on_exhausted` and `max_epochs`.
        """
        self.policy, self.data = cast(RulePolicy, policy), cast(TokenStore | str, data)  # trainers restore without
        self.sequences, self.journal, self.drawing = sequences, journal, drawing
        self.trainer: Any = None
        """The trainer that this is attached to."""
        self.mixing: Mixing
        """The run that was begun last."""

    # ------------------------------------------------------------------ into the trainer

    def attach(self, trainer: Trainer) -> None:
        """Let the trainer's batches follow the policy. Call it once, before `train`."""
        if not isinstance(self.policy, RulePolicy) or not isinstance(self.data, TokenStore | str):
            raise ValueError("AioliCallback takes a policy, and a token store or the name of a column")
        if isinstance(getattr(trainer.get_train_dataloader, "__self__", None), AioliCallback):
            raise ValueError("this trainer has an AioliCallback already; a trainer follows one policy")
        args, parallel = trainer.args, getattr(trainer.accelerator, "parallelism_config", None)
        if args.auto_find_batch_size:
            raise ValueError("auto_find_batch_size=True starts over with another batch size; set it to False")
        if parallel is not None and parallel.non_data_parallel_size > 1:
            raise ValueError("every process reads rows of its own, which tensor and context parallel ranks may not do")
        self._check_data(trainer)
        self.trainer, self._initial = trainer, self.policy.state_dict()
        self._theirs: Any = trainer.get_train_dataloader
        self._log: Any = trainer.log
        self.trainer.get_train_dataloader, self.trainer.log = self.loader, self.log
        args.ignore_data_skip = True  # a resumed data set is where it was: there is nothing to skip
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)

    def _check_data(self, trainer: Any) -> None:
        """Refuse now what would fail at the first step."""
        if isinstance(self.data, str):
            if trainer.train_dataset is None:
                raise ValueError(
                    f"data={self.data!r} names a column of the trainer's own data, and it has no train_dataset; for a "
                    f"token store pass TokenStore({self.data!r})"
                )
            return
        words = getattr(getattr(trainer.model, "config", None), "vocab_size", None)
        if isinstance(words, int) and words < self.data.vocabulary:
            raise ValueError(
                f"the model knows {words} tokens and {self.data.path} has {self.data.vocabulary}; prepare the store "
                "with the model's tokenizer, or give the model as many"
            )

    def loader(self) -> Loader:
        """What the trainer iterates over: a new run of the policy."""
        policy, args = self.policy, self.trainer.args
        policy.load_state_dict(self._initial)
        per_step, world = args.gradient_accumulation_steps, max(1, args.world_size)
        batch = args.train_batch_size * (1 if self.trainer.accelerator.split_batches else world)
        total = policy.task.steps
        store, rows, epoch = self._source(total)
        asked = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
        if asked != total:
            raise ValueError(
                f"the policy is for {total} steps and the trainer would make {asked}; give both the same: "
                f"TrainingArguments(max_steps={total}) or policy(steps={asked})"
            )
        sequences = how_many(policy, batch * per_step, self.sequences)
        self.mixing = Mixing(
            policy,
            store,
            batch,
            self._look,
            per_step,
            Path(args.output_dir) / JOURNAL if self.journal else None,
            self._about(store),
            {"sequences": sequences, "data": None if rows is None else rows.fingerprint()},
            seed=args.seed if args.data_seed is None else args.data_seed,
            rank=args.process_index,
            world=world,
            **self.drawing,
        )
        self._held = self._held_out(sequences)
        takes = inspect.signature(type(self.trainer.model).forward).parameters
        return Loader(self, rows or Columns("group" in takes), epoch)

    def _source(self, total: int) -> tuple[TokenStore | Indices, Rows | None, int]:
        """Where batches are drawn from, how they are read, and how many steps are an epoch."""
        if isinstance(self.data, TokenStore):
            return self.data, None, total
        theirs, groups = self._theirs(), self.policy.groups or ()
        rows = rows_by_group(self.trainer.train_dataset, self.data, groups, "train_dataset")
        sizes = Indices(tuple(len(rows[group]) for group in groups), tuple(groups))
        steps = math.ceil(len(theirs) / self.trainer.args.gradient_accumulation_steps)
        return sizes, Rows(theirs.dataset, theirs.collate_fn, [rows[group] for group in groups]), steps

    def _held_out(self, sequences: int) -> HeldOut:
        args, targets = self.trainer.args, target_names(self.policy)
        if isinstance(self.data, TokenStore):
            return of_store(self.data, targets, sequences, args.seed, args.eval_batch_size)
        chosen = held_out_rows(self.trainer.eval_dataset, self.data, targets, sequences, args.seed)
        batches, owners = [], []
        for i, (dataset, rows) in enumerate(chosen):
            theirs = self.trainer.get_eval_dataloader(dataset)
            for some in np.array_split(rows, math.ceil(len(rows) / args.eval_batch_size)):
                batches.append(dict(theirs.collate_fn(examples(theirs.dataset, some.tolist()))))
                owners.append(torch.full((len(batches[-1].get("labels", ())),), i))
        return HeldOut(batches, owners, targets)

    def _about(self, store: TokenStore | Indices) -> dict[str, Any]:
        """What the journal says of the model and the data."""
        model = self.trainer.model
        config = getattr(model, "config", None)
        return {
            "settings": {},
            "model": getattr(config, "_name_or_path", "") or getattr(config, "model_type", type(model).__name__),
            "parameters": sum(p.numel() for p in model.parameters()),
            "data": store.fingerprint if isinstance(store, TokenStore) else str(list(store.sizes)),
            "notes": [],
        }

    # ------------------------------------------------------------------ what the trainer tells

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin, or go on from the checkpoint that the trainer has loaded."""
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, Loader):
            raise ValueError("the trainer does not draw from the mixture: call AioliCallback(...).attach(trainer)")
        if loader.callback is not self:  # restore_callback_states_from_checkpoint puts a new one in its place
            self.__dict__ = loader.callback.__dict__
        saved = None
        if state.global_step > 0:
            stored: Any = state.stateful_callbacks
            saved = stored.get(type(self).__name__, {}).get("attributes", {}).get("saved")
            if saved is None:
                raise ValueError("this checkpoint was saved without AioliCallback; its mixture cannot be gone on with")
            if saved["steps"] != state.global_step:
                raise ValueError(
                    f"the checkpoint is of step {state.global_step} and its mixture of {saved['steps']}; it is damaged"
                )
        self.mixing.begin(saved)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step was made."""
        self.mixing.step()
        state.epoch = state.global_step / kwargs["train_dataloader"].epoch  # the trainer's own begins again at 0

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The journal ends with the run."""
        if self.mixing.cursor.done:
            self.mixing.finish()

    def log(self, logs: dict[str, float], *more: Any, **named: Any) -> None:
        """What the trainer logs of its training, with the mixture and the losses that were seen last."""
        if "loss" in logs:
            logs |= self.mixing.logs()
        self._log(logs, *more, **named)

    def state(self) -> dict[str, Any]:
        """What the trainer puts into its checkpoints."""
        begun = hasattr(self, "mixing") and self.mixing.steps > 0
        return {"args": {}, "attributes": {"saved": self.mixing.state_dict()} if begun else {}}

    def _look(self) -> Array:
        args, model = self.trainer.args, self.trainer.model

        def sums(batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
            """Of the tokens alone: what models and trainers add to it differs."""
            losses, counted = token_losses(
                model(**{k: v for k, v in batch.items() if k != "labels"}).logits, batch["labels"]
            )
            return (losses.float() * counted).sum(1), counted.sum(1).float()

        with untouched(model):
            return self._held.losses(sums, args.device, args.process_index, max(1, args.world_size))


class Columns:
    """A batch of a store as the model takes it; with the group of each sequence if the model asks for `group`."""

    def __init__(self, group: bool) -> None:
        self.names = ("input_ids", "labels", "group") if group else ("input_ids", "labels")

    def __call__(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: batch[name] for name in self.names}


class Loader:
    """The batches of one run, an epoch at a time, as a Trainer takes them."""

    def __init__(self, callback: AioliCallback, read: Read, epoch: int) -> None:
        self.callback, self.read, self.epoch = callback, read, epoch

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.epoch * self.callback.mixing.per_step

    def __iter__(self) -> Iterator[Any]:
        """What is left of this epoch."""
        mixing, args = self.callback.mixing, self.callback.trainer.args
        left = self.epoch - mixing.steps % self.epoch
        workers: dict[str, Any] = {}
        if args.dataloader_num_workers:
            context = getattr(args, "dataloader_multiprocessing_context", None)
            workers = {"prefetch_factor": args.dataloader_prefetch_factor, "multiprocessing_context": context}
        yield from mixing.batches(
            self.read,
            left * mixing.per_step,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            **workers,
        )
