"""The engine: trains a causal language model segment by segment, as a policy asks, and observes what it asks for.

    Segment → batches of the sampler → forward, backward, AdamW step → … → probes → Observation

A trainer of the protocol. One optimizer step takes one global batch of the sampler, this rank's slice in
`accumulate` parts. Everything that decides what follows is in `state()` and the parameters: an engine that is
loaded in the middle of a segment goes on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from aioli.data.sampler import Batch, MixtureSampler
from aioli.protocol import Observation, Segment
from aioli.simplex import uniform
from aioli.train.measures import Measures
from aioli.train.optimizer import Schedule, adamw
from aioli.train.probes import IGNORED, Validation, group_losses

Tensor = torch.Tensor


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


class DivergedError(ValueError):
    """A loss or gradient that is not a number."""


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
        self.accelerator = Accelerator() if accelerator is None else accelerator
        self.settings, self.sampler, self.validation, self.after_step = settings, sampler, validation, after_step
        if (sampler.batch // sampler.world) % settings.accumulate:
            raise ValueError(
                f"a batch of {sampler.batch // sampler.world} cannot be split into {settings.accumulate} parts"
            )
        self.plain = model
        optimizer = adamw(model, settings.schedule.peak, settings.betas, settings.eps, settings.decay)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.reference = None if reference is None else reference.to(self.device).eval().requires_grad_(False)
        self.val_sampler = val_sampler
        self.step, self.loss = 0, float("nan")
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
        return frozenset(kinds | ({"grad_inner", "grad_norm"} if self.val_sampler is not None else set()))

    @property
    def begun(self) -> int:
        """The step at which the segment that is being trained began, or the next one will."""
        return self.step - (0 if self.measures is None else self.measures.steps)

    # ------------------------------------------------------------------ segments

    def advance(self, segment: Segment) -> Observation:
        """Train the segment, or what is left of it, and observe what it asks for."""
        if segment.proportions.size != self.sampler.m:
            raise ValueError(f"the segment mixes {segment.proportions.size} groups, the data has {self.sampler.m}")
        measures = self.measures = self.measures or Measures(self.sampler.m, self.sampler.drawn.tolist())
        self.segment = segment
        drawn = segment.proportions if segment.weighting == "sample" else uniform(self.sampler.m)
        while measures.steps < segment.steps:
            self._train(self.sampler.next(drawn), segment, measures)
            if self.after_step is not None:
                self.after_step(self)
        with measures.probing():
            values = self._look(segment, measures)
        tokens = (self.sampler.drawn - np.array(measures.drawn)) * self.sampler.context
        self.segment, self.measures, self.finished = None, None, measures
        return Observation(tokens, **values)

    def _train(self, batch: Batch, segment: Segment, measures: Measures) -> None:
        """One optimizer step."""
        rate = self.settings.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = self._parts(batch)
        if {"grad_inner", "grad_norm"} & segment.observe:
            with measures.probing():
                measures.add_gradients(self, parts, segment)
        with measures.training():
            total = 0.0
            for k, part in enumerate(parts):
                last = k == len(parts) - 1
                with nullcontext() if last else self.accelerator.no_sync(self.model):
                    total += self._forward_backward(part, segment, measures) / len(parts)
            self._update(total, parts)
        measures.steps, measures.loss = measures.steps + 1, measures.loss + total
        self.step, self.loss = self.step + 1, total

    def _parts(self, batch: Batch) -> list[dict[str, Tensor]]:
        """This rank's samples on its device, in as many parts as gradients are accumulated over."""
        ids = torch.from_numpy(batch.ids).to(self.device, non_blocking=True)
        labels = ids
        if batch.mask is not None:
            labels = ids.masked_fill(torch.from_numpy(batch.mask).to(self.device) == 0, IGNORED)
        group = torch.from_numpy(batch.group).to(self.device)
        pieces = zip(*(t.chunk(self.settings.accumulate) for t in (ids, labels, group)), strict=True)
        return [dict(zip(("ids", "labels", "group"), piece, strict=True)) for piece in pieces]

    def _forward_backward(self, part: Mapping[str, Tensor], segment: Segment, measures: Measures) -> float:
        """Gradients of one part; by the model's own loss, or by the groups' losses weighted with their shares."""
        m = self.sampler.m
        if segment.weighting == "loss":
            logits = self.model(input_ids=part["ids"]).logits
            weights = torch.tensor(segment.proportions.tolist(), dtype=torch.float32, device=self.device)
            loss = (weights * group_losses(logits, part["labels"], part["group"], m)).sum()
        else:
            found = self.model(input_ids=part["ids"], labels=part["labels"])
            loss, logits = found.loss, found.logits
        self.accelerator.backward(loss / self.settings.accumulate)
        reference = self.reference if {"excess_loss", "token_excess_loss"} & segment.observe else None
        if reference is not None or "train_loss" in segment.observe:
            measures.add_losses(logits.detach(), part, reference)
        return float(loss.detach())

    def _update(self, loss: float, parts: list[dict[str, Tensor]]) -> None:
        """Clip and step; a loss or gradient that is not finite stops the run before the weights are touched."""
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip or float("inf"))
        if not (np.isfinite(loss) and (norm is None or bool(torch.isfinite(norm)))):
            raise DivergedError(self._diagnosis(loss, parts))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _diagnosis(self, loss: float, parts: list[dict[str, Tensor]]) -> str:
        """Which groups the trouble comes from."""
        with torch.no_grad():
            found = [
                group_losses(self.plain(input_ids=part["ids"]).logits, part["labels"], part["group"], self.sampler.m)
                for part in parts
            ]
        bad = ~torch.isfinite(torch.stack(found)).all(0)
        names = [name for name, is_bad in zip(self.sampler.groups, bad.tolist(), strict=True) if is_bad]
        what = f"the loss is {loss}" if not np.isfinite(loss) else f"the gradient is not finite (loss {loss:.4g})"
        return (
            f"step {self.step}: {what}{' in group ' + ', '.join(names) if names else ''}; lower train.lr or train.clip"
        )

    # ------------------------------------------------------------------ observations

    def _look(self, segment: Segment, measures: Measures) -> dict[str, Any]:
        """What is observed at the end of a segment."""
        values: dict[str, Any] = dict(measures.values(segment, self.accelerator))
        if "val_loss" in segment.observe:
            values["val_loss"] = self.val_losses(self.validation)
        if "lr" in segment.observe:
            values["lr"] = self.settings.schedule.rate(max(0, self.step - 1))
        return values

    def val_losses(self, validation: Validation) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean loss of each target; every rank looks at its share."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = validation if world == 1 else validation.part(rank, world)
        sums, counts = mine.losses(self.plain, self.model)
        both = self.accelerator.reduce(torch.stack([sums, counts]), "sum").cpu().numpy()
        found: np.ndarray[Any, np.dtype[np.float64]] = both[0] / both[1]
        if not np.isfinite(found).all():
            raise DivergedError(f"step {self.step}: the validation loss is {found.tolist()}; the run has diverged")
        return found

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters and the optimizer, as plain JSON."""
        return {
            "step": self.step,
            "loss": self.loss,
            "sampler": self.sampler.state_dict(),
            "val_sampler": None if self.val_sampler is None else self.val_sampler.state_dict(),
            "measures": None if self.measures is None else self.measures.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, also in the middle of a segment."""
        self.step, self.loss = int(state["step"]), float(state["loss"])
        self.sampler.load_state_dict(state["sampler"])
        if self.val_sampler is not None:
            self.val_sampler.load_state_dict(state["val_sampler"])
        self.measures = None
        if state["measures"] is not None:
            self.measures = Measures.from_state(self.sampler.m, state["measures"])
