"""`MixtureDataModule` and `AioliCallback`: a mixture that adapts while Lightning's Trainer trains.

    data = MixtureDataModule(policy, store, batch=16, workers=2)
    callback = AioliCallback(data, loss=lambda module, batch: module.loss(batch))
    trainer = Trainer(max_steps=3000, callbacks=[callback])
    trainer.fit(module, data)                      # later: trainer.fit(module, data, ckpt_path="last.ckpt")

The data module gives the batches, the callback tells the policy of every step and looks at the validation loss when the
policy asks. Their state is in Lightning's own checkpoints.

**Why nothing is stale.** Lightning fetches a batch ahead where it cannot know which is the last, and after the last
batch of a segment the next one does not exist yet: its mixture depends on the model that this batch will have trained.
A loader with a length is not read ahead of the loop, and a policy's length is known: the loader is one epoch of all its
steps. Workers still read ahead inside a segment. Lightning does not keep the state of random numbers; the data module
does, for each process, so that dropout goes on as it would have.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aioli.adapters import lacking
from aioli.config import to_plain
from aioli.data.store import TokenStore
from aioli.policies import RulePolicy
from aioli.simplex import Array
from aioli.train.layout import JOURNAL

try:
    import torch
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
except ImportError as error:
    raise lacking(error, "lightning") from error

from aioli.adapters.looking import Tensors, counted, how_many, of_store, target_names, untouched
from aioli.adapters.mixing import Mixing

__all__ = ["AioliCallback", "MixtureDataModule"]

Loss = Callable[[Any, Tensors], torch.Tensor]
"""The mean loss of a module on a batch of `input_ids` and `labels`, over the tokens with loss."""


class MixtureDataModule(LightningDataModule):
    """Batches of a token store that follow a policy."""

    def __init__(
        self,
        policy: RulePolicy,
        store: TokenStore,
        batch: int,
        workers: int = 0,
        sequences: int | None = None,
        journal: str | Path | None = None,
        seed: int = 0,
        **drawing: Any,
    ) -> None:
        """`batch` sequences in a batch of each process. `sequences` of each target are looked at when the policy asks
        (left out: 4% of the training compute). With a folder for its `journal`, the run can be shown by `aioli report`.
        `drawing`: settings of `MixtureSampler`, such as `on_exhausted` and `max_epochs`."""
        super().__init__()
        self.policy, self.store, self.batch, self.workers = policy, store, batch, workers
        self.sequences, self.seed, self.drawing = sequences, seed, drawing
        self.journal = None if journal is None else Path(journal) / JOURNAL
        self.look: Callable[[], Array] | None = None
        """How to look, as the callback knows."""
        self.looked_at = 0
        """Sequences of each target in a look."""
        self._initial = policy.state_dict()
        self._saved: dict[str, Any] | None = None
        self.mixing: Mixing
        """The run that was begun last."""

    def train_dataloader(self) -> Loader:
        """What Lightning iterates over: a new run of the policy."""
        trainer: Any = self.trainer
        if self.look is None:
            raise ValueError("nobody tells the policy of the steps: Trainer(callbacks=[AioliCallback(data, loss)])")
        self.policy.load_state_dict(self._initial)
        world, model = trainer.world_size, trainer.lightning_module
        self.mixing = Mixing(
            self.policy,
            self.store,
            self.batch * world,
            self.look,
            trainer.accumulate_grad_batches,
            self.journal,
            {
                "settings": {},
                "model": type(model).__name__,
                "parameters": sum(p.numel() for p in model.parameters()),
                "data": self.store.fingerprint,
                "notes": [],
            },
            {"sequences": self.looked_at},
            seed=self.seed,
            rank=trainer.global_rank,
            world=world,
            **self.drawing,
        )
        return Loader(self.mixing, self.workers)

    def begin(self) -> None:
        """From the start, or from the checkpoint that Lightning has loaded."""
        saved, self._saved = self._saved, None
        trainer: Any = self.trainer
        if saved is None and trainer.global_step > 0:
            raise ValueError("this checkpoint was saved without MixtureDataModule; its mixture cannot be gone on with")
        if saved is not None and saved["steps"] != trainer.global_step:
            raise ValueError(
                f"the checkpoint is of step {trainer.global_step} and its mixture of {saved['steps']}; it was saved in "
                "the middle of a step, or is damaged: go on from another one"
            )
        self.mixing.begin(saved)
        if saved is not None and len(saved["random"]) == trainer.world_size:  # else they cannot be what they were
            set_random_state(saved["random"][trainer.global_rank])

    def follow(self) -> None:
        """Tell the policy of an optimizer step that it does not know of, if there was one."""
        trainer: Any = self.trainer
        made = trainer.global_step - self.mixing.steps
        if made > 1:
            raise ValueError(f"a batch made {made} optimizer steps; a policy can follow one optimizer")
        if made:
            self.mixing.step()

    def state_dict(self) -> dict[str, Any]:
        """What Lightning puts into its checkpoints, on all processes; also of a step that was only just made."""
        if not hasattr(self, "mixing") or not hasattr(self.mixing, "data"):
            return {}
        self.follow()
        return {**self.mixing.state_dict(), "random": gathered(random_state())} if self.mixing.steps else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lightning has found a checkpoint."""
        self._saved = dict(state_dict) or None


class AioliCallback(Callback):
    """Tells a policy of the steps that Lightning makes, and of the losses it asks for."""

    def __init__(self, data: MixtureDataModule, loss: Loss) -> None:
        """`loss(module, batch)`: the mean loss on held-out sequences, `batch["input_ids"]` and `batch["labels"]`."""
        self.data, self.loss = data, loss
        self._steps = self._waiting = 0
        """Optimizer steps so far, and batches since the last."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before Lightning asks for its loaders."""
        if stage != "fit":
            return
        if type(trainer.strategy).__name__ == "ModelParallelStrategy":
            raise ValueError("every process reads rows of its own, which tensor parallel ranks may not do; use DDP")
        data, each = self.data, trainer.accumulate_grad_batches * trainer.world_size
        data.looked_at = how_many(data.policy, data.batch * each, data.sequences)
        held = of_store(data.store, target_names(data.policy), data.looked_at, data.seed, data.batch, apart=True)

        def sums(batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
            counts, mean = counted(batch).float(), self.loss(pl_module, batch).float()
            return torch.where(counts > 0, mean * counts, 0.0), counts

        def look() -> Array:
            with untouched(pl_module), trainer.precision_plugin.forward_context():
                return held.losses(sums, pl_module.device, trainer.global_rank, trainer.world_size)

        data.look = look

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, or go on."""
        total, asked = self.data.policy.task.steps, trainer.estimated_stepping_batches
        if asked != total and not getattr(trainer, "fast_dev_run", False):
            made = "no end of them" if math.isinf(asked) else asked
            raise ValueError(
                f"the policy is for {total} steps and the trainer would make {made}; give both the same: "
                f"Trainer(max_steps={total})"
            )
        self.data.begin()
        self._steps, self._waiting = self.data.mixing.steps, 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *more: Any) -> None:
        """A step has as many batches as the policy was told."""
        per_step, now = self.data.mixing.per_step, trainer.accumulate_grad_batches
        if now != per_step:
            raise ValueError(
                f"accumulate_grad_batches changed from {per_step} to {now}; a policy plans steps of one size: use "
                f"Trainer(accumulate_grad_batches={now}) and no GradientAccumulationScheduler"
            )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *more: Any) -> None:
        """A batch was used; the policy counts optimizer steps."""
        self.data.follow()
        mixing = self.data.mixing
        if mixing.steps > self._steps:
            self._steps, self._waiting = mixing.steps, 0
            pl_module.log_dict(mixing.logs())
            return
        self._waiting += 1
        if self._waiting >= mixing.per_step and not pl_module.automatic_optimization:
            raise ValueError(
                f"{self._waiting} batches without an optimizer step; with manual optimization the policy expects one "
                f"after every {mixing.per_step}: MixtureDataModule(batch=...) sets how large they are"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The journal ends with the run."""
        if self.data.mixing.cursor.done:
            self.data.mixing.finish()


def random_state() -> dict[str, Any]:
    """Of all generators that a model may draw from, in tensors and plain data."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    found = {"torch": torch.get_rng_state(), "python": [python[0], list(python[1]), python[2]]}
    found["numpy"] = to_plain(numpy)
    if torch.accelerator.is_available():
        found["device"] = torch.get_device_module().get_rng_state()
    return found


def set_random_state(state: Mapping[str, Any]) -> None:
    """As `random_state` found it."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    inner = state["numpy"]["state"]
    np.random.set_state({**state["numpy"], "state": {**inner, "key": np.array(inner["key"], dtype=np.uint32)}})
    if "device" in state and torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["device"])


def gathered(mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each process has."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, mine)
    return found


class Loader:
    """The batches of one run: an epoch of a known length, which is therefore not read ahead of the loop."""

    def __init__(self, mixing: Mixing, workers: int) -> None:
        self.mixing, self.workers = mixing, workers

    def __len__(self) -> int:
        return self.mixing.policy.task.steps * self.mixing.per_step

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """What is left of the run."""
        yield from self.mixing.batches(_as_it_is, num_workers=self.workers)

    def state_dict(self) -> dict[str, Any]:
        """Nothing of its own: Lightning asks loaders that go on where they were for it, and warns about others."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The data module has it."""


def _as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return batch
