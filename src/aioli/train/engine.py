"""The engine: trains a causal language model segment by segment, as a policy asks, and observes what it asks for.

    Segment → batches of the sampler → forward, backward, AdamW step → … → probes → Observation

A trainer of the protocol. One optimizer step takes one global batch of the sampler, this rank's slice in
`accumulate` parts; losses are means over the tokens of the global batch, however it is split. Everything that decides
what follows is in `state_dict()` and the parameters: an engine that is loaded in the middle of a segment goes on to
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.nn.utils import clip_grad_norm_

from aioli.data.sampler import Batch, MixtureSampler
from aioli.protocol import Observation, Segment
from aioli.simplex import uniform
from aioli.train.forks import fork_losses
from aioli.train.measures import Measures
from aioli.train.memory import keep_memory
from aioli.train.optimizer import Schedule, adamw
from aioli.train.probes import IGNORED, Validation, group_losses, group_sums, on_device, token_losses

Tensor = torch.Tensor
PLAIN = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU}


@dataclass(frozen=True)
class Settings:
    """How a model is optimized."""

    schedule: Schedule
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    """Largest norm of the gradient; 0: any."""
    accumulate: int = 1
    """Parts in which each batch is computed."""
    compile: bool = False
    """Use torch.compile."""
    matrix: bool = False
    """Observe inner products of gradients for every target, one pass for each, instead of their sum in one pass."""


class DivergedError(ValueError):
    """A loss or gradient that is not a number."""


def new_accelerator(precision: str = "no", **more: Any) -> Accelerator:
    """Device and processes as they are; a precision that an earlier one in this process had does not stick."""
    shared = AcceleratorState._shared_state
    if shared and shared.get("_mixed_precision") != precision:
        AcceleratorState._reset_state()
    here = not torch.accelerator.is_available()  # or processes that torchrun starts on CPUs would not find each other
    return Accelerator(cpu=here, mixed_precision=precision, **more)


class Engine:
    """A model in training."""

    weightings = frozenset({"sample", "loss"})

    def __init__(
        self,
        model: torch.nn.Module,
        sampler: MixtureSampler,
        validation: Validation,
        settings: Settings,
        accelerator: Accelerator | None = None,
        reference: torch.nn.Module | None = None,
        val_sampler: MixtureSampler | None = None,
        after_step: Callable[[Engine], None] | None = None,
    ) -> None:
        """`reference` makes excess losses possible, `val_sampler` (of the targets) inner products of gradients."""
        self.accelerator = new_accelerator() if accelerator is None else accelerator
        self.accelerator.gradient_accumulation_steps = 1  # parts of a batch are our own affair
        self.settings, self.sampler, self.validation, self.after_step = settings, sampler, validation, after_step
        if (sampler.batch // sampler.world) % settings.accumulate:
            raise ValueError(
                f"a batch of {sampler.batch // sampler.world} cannot be split into {settings.accumulate} parts"
            )
        if self.accelerator.device.type == "cpu":
            keep_memory()
        self.plain = model
        """The model itself, for probes."""
        optimizer = adamw(model, settings.schedule.peak, settings.betas, settings.eps, settings.decay)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        """The model as accelerate has wrapped it."""
        self.forward: Callable[..., Any] = torch.compile(self.model) if settings.compile else self.model
        self.world: int = self.accelerator.num_processes
        if sampler.world != self.world:
            raise ValueError(f"the sampler is for {sampler.world} processes, but there are {self.world}")
        self.direct = self.accelerator.scaler is None and self.accelerator.distributed_type in PLAIN
        """Whether a step needs nothing of accelerate, whose own costs a tenth of one of the smallest models."""
        self.reference = None if reference is None else reference.to(self.device).eval().requires_grad_(False)
        self.val_sampler = val_sampler
        self.between: Callable[[], None] = lambda: None
        """Called between forks, when everything is as it was: to stop, for example."""
        self.forked: int | None = None
        """The step that forks are tried out from, while they are."""
        self.alive: Callable[[], None] = lambda: None
        """Called after every step of a fork, to tell people that something goes on."""
        self.step, self.loss = 0, float("nan")
        self.forward_mode = True
        """Whether the model can be differentiated forwards, as far as is known."""
        self.seconds = {"train": 0.0, "probe": 0.0}
        """Time spent so far, in segments that are over."""
        self.segment: Segment | None = None
        """The segment that is being trained."""
        self.measures: Measures | None = None
        """What has been gathered in it."""
        self.finished: Measures | None = None
        """What was gathered in the last one."""
        self.model.train()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = self.accelerator.device
        return found

    @property
    def supports(self) -> frozenset[str]:
        """What it can observe."""
        kinds = {"val_loss", "train_loss", "lr"}
        kinds |= {"excess_loss", "token_excess_loss"} if self.reference is not None else set()
        by_parameter = any(hasattr(p, "full_tensor") for p in self.plain.parameters())
        sharded = by_parameter or self.accelerator.distributed_type == DistributedType.FSDP
        # where weights and moments can be copied and put back
        kinds |= {"fork_loss"} if self.accelerator.distributed_type in PLAIN or by_parameter else set()
        gradients = self.val_sampler is not None and not sharded  # forward mode needs whole parameters
        return frozenset(kinds | ({"grad_inner", "grad_norm"} if gradients else set()))

    @property
    def begun(self) -> int:
        """The step at which the segment that is being trained began, or the next one will."""
        return self.step - (0 if self.measures is None else self.measures.steps)

    # ------------------------------------------------------------------ segments

    def advance(self, segment: Segment) -> Observation:
        """Train the segment, or what is left of it, and observe what it asks for."""
        if segment.proportions.size != self.sampler.m:
            raise ValueError(f"the segment mixes {segment.proportions.size} groups, the data has {self.sampler.m}")
        if self.segment is not None and self.segment != segment:
            raise ValueError(
                f"the engine is in the middle of another segment, at step {self.step}; finish that one, or load a state"
            )
        measures = self.measures = self.measures or Measures(self.sampler.m, self.sampler.drawn.tolist())
        self.segment = segment
        self.optimizer.zero_grad()  # gradients of a step that was interrupted
        drawn = segment.proportions if segment.weighting == "sample" else uniform(self.sampler.m)
        while measures.steps < segment.steps:
            self.train_step(self.sampler.next(drawn), segment, measures)
            if self.after_step is not None:
                self.after_step(self)
        with measures.probing():
            values = self._look(segment, measures)
        drawn = self.sampler.drawn - np.array(measures.drawn)
        tokens = measures.with_loss(drawn * self.sampler.context, values)
        self.segment, self.measures, self.finished = None, None, measures
        self.seconds["train"] += measures.train_seconds
        self.seconds["probe"] += measures.probe_seconds
        return Observation(tokens, **values)

    def train_step(self, batch: Batch, segment: Segment, measures: Measures) -> None:
        """One optimizer step."""
        rate = self.settings.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = self._parts(batch)
        gradients = bool({"grad_inner", "grad_norm"} & segment.observe)
        counts = self._counts(parts) if gradients or self._must_count(batch, parts, segment) else None
        if gradients:
            assert counts is not None
            with measures.probing():
                measures.add_gradients(self, parts, counts, segment)
        with measures.training():
            total = 0.0
            for k, part in enumerate(parts):
                last = k == len(parts) - 1
                with nullcontext() if last else self.accelerator.no_sync(self.model):
                    total += self._forward_backward(part, counts, segment, measures)
            if self.world > 1:
                total = float(self.accelerator.reduce(torch.tensor(total, device=self.device), "mean"))
            self._update(total, parts)
        measures.steps, measures.loss = measures.steps + 1, measures.loss + total
        self.step, self.loss = self.step + 1, total

    def _parts(self, batch: Batch) -> list[dict[str, Tensor]]:
        """This rank's samples on its device, in as many parts as gradients are accumulated over."""
        tensors = on_device(batch, self.device)
        pieces = zip(*(tensor.chunk(self.settings.accumulate) for tensor in tensors.values()), strict=True)
        return [dict(zip(tensors, piece, strict=True)) for piece in pieces]

    def _must_count(self, batch: Batch, parts: list[dict[str, Tensor]], segment: Segment) -> bool:
        """Whether the model's own mean would not be the mean over the tokens of the global batch."""
        if segment.weighting == "loss":
            return True
        if batch.mask is None:
            return False
        return len(parts) > 1 or self.world > 1 or not bool((parts[0]["labels"][:, 1:] != IGNORED).any())

    def _counts(self, parts: list[dict[str, Tensor]]) -> Tensor:
        """Tokens with loss of each group in the global batch."""
        found = torch.zeros(self.sampler.m, device=self.device)
        for part in parts:
            found.index_add_(0, part["group"], (part["labels"][:, 1:] != IGNORED).sum(1).float())
        total: Tensor = self.accelerator.reduce(found, "sum") if self.world > 1 else found
        return total

    def _forward_backward(
        self, part: Mapping[str, Tensor], counts: Tensor | None, segment: Segment, measures: Measures
    ) -> float:
        """Gradients of one part: of the mean over tokens, or of the groups' means weighted with their shares."""
        loss, losses = self._loss(part, counts, segment)
        backward: Callable[..., Any] = torch.autograd.backward if self.direct else self.accelerator.backward
        backward(loss)
        if losses is not None:
            reference = self.reference if {"excess_loss", "token_excess_loss"} & segment.observe else None
            with measures.probing(), self.accelerator.autocast():
                measures.add_losses(losses, part, reference)
        return float(loss.detach())

    def _loss(
        self, part: Mapping[str, Tensor], counts: Tensor | None, segment: Segment
    ) -> tuple[Tensor, Tensor | None]:
        """What is minimised, and each token's loss where that is observed; the logits are free before backward."""
        observed = bool({"train_loss", "excess_loss", "token_excess_loss"} & segment.observe)
        if counts is None:
            found = self.forward(input_ids=part["ids"], labels=part["labels"])
            losses = token_losses(found.logits.detach(), part["labels"])[0] if observed else None
            return found.loss / self.settings.accumulate, losses
        losses, counted = token_losses(self.forward(input_ids=part["ids"]).logits, part["labels"])
        sums, _ = group_sums(losses, counted, part["group"], self.sampler.m)
        weights = torch.tensor(segment.proportions.tolist(), dtype=torch.float32, device=self.device)
        shares = weights / counts.clamp(min=1) if segment.weighting == "loss" else 1 / counts.sum().clamp(min=1)
        loss = (shares * sums).sum() * self.world  # ranks are averaged
        return loss, losses.detach() if observed else None

    def _update(self, loss: float, parts: list[dict[str, Tensor]]) -> None:
        """Clip and step; a loss or gradient that is not finite stops the run before the weights are touched."""
        clip: Callable[..., Any] = clip_grad_norm_ if self.direct else self.accelerator.clip_grad_norm_
        norm = clip(self.model.parameters(), self.settings.clip or float("inf"))
        if not (math.isfinite(loss) and (norm is None or math.isfinite(float(norm)))):
            raise DivergedError(self._diagnosis(loss, parts))
        optimizer = self.optimizer.optimizer if self.direct else self.optimizer
        optimizer.step()
        optimizer.zero_grad()

    def _diagnosis(self, loss: float, parts: list[dict[str, Tensor]]) -> str:
        """Which groups the trouble comes from."""
        bad = torch.zeros(self.sampler.m, device=self.device)
        with torch.no_grad():
            for part in parts:
                losses = group_losses(
                    self.model(input_ids=part["ids"]).logits, part["labels"], part["group"], self.sampler.m
                )
                bad += (~torch.isfinite(losses)).float()
        bad = self.accelerator.reduce(bad, "sum")
        names = [name for name, count in zip(self.sampler.groups, bad.tolist(), strict=True) if count]
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient is not finite (loss {loss:.4g})"
        return f"step {self.step}: {what}{' in group ' + ', '.join(names) if names else ''}"

    # ------------------------------------------------------------------ observations

    def _look(self, segment: Segment, measures: Measures) -> dict[str, Any]:
        """What is observed at the end of a segment."""
        values: dict[str, Any] = dict(measures.values(segment, self.accelerator))
        if "val_loss" in segment.observe:
            values["val_loss"] = self.val_losses(self.validation)
        if "fork_loss" in segment.observe:
            values |= fork_losses(self, segment)
        if "lr" in segment.observe:
            values["lr"] = self.settings.schedule.rate(max(0, self.step - 1))
        return values

    def val_losses(self, validation: Validation) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean loss of each target; every rank looks at its share."""
        mine = validation if self.world == 1 else validation.part(self.accelerator.process_index, self.world)
        sums, counts = mine.losses(self.model, self.forward)
        both = self.accelerator.reduce(torch.stack([sums, counts]), "sum").cpu().numpy()
        found: np.ndarray[Any, np.dtype[np.float64]] = both[0] / both[1]
        if not np.isfinite(found).all():
            raise DivergedError(f"step {self.step}: the validation loss is {found.tolist()}")
        return found

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters and the optimizer, as plain JSON; all ranks call it."""
        return {
            "step": self.step,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "seconds": self.seconds,
            "sampler": self.sampler.state_dict(),
            "val_sampler": None if self.val_sampler is None else self.val_sampler.state_dict(),
            "measures": None if self.measures is None else self.measures.state_dict(self.accelerator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, also in the middle of a segment."""
        self.step, self.seconds = int(state["step"]), dict(state["seconds"])
        self.loss = float("nan") if state["loss"] is None else float(state["loss"])
        self.sampler.load_state_dict(state["sampler"])
        if self.val_sampler is not None:
            self.val_sampler.load_state_dict(state["val_sampler"])
        self.measures, self.segment = None, None
        if state["measures"] is not None:
            rank = self.accelerator.process_index
            self.measures = Measures.from_state(self.sampler.m, state["measures"], rank, self.world)
        self.optimizer.zero_grad()
