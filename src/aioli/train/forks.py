"""Forks: mixtures that are tried out for some steps on a copy of the model, and forgotten.

In: an engine where it is, and a segment with `forks`. Out: the validation losses after each of them. The learning rate
falls to zero at the end of a fork, so that what is seen is what the mixture taught and not the noise of the last steps.
Weights, optimizer, random numbers and the place in the data are put back after each, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule

from aioli.protocol import Segment
from aioli.train.measures import Measures
from aioli.train.optimizer import Schedule

if TYPE_CHECKING:
    from aioli.train.engine import Engine

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Falling(Schedule):
    """A schedule that falls to zero at the end of a fork."""

    begin: int = 0
    scale: Callable[[int], float] = lambda _: 1.0

    def rate(self, step: int) -> float:
        """The learning rate of step number `step`, counted from 0."""
        return super().rate(step) * self.scale(step - self.begin)


def fork_losses(engine: Engine, segment: Segment) -> dict[str, Array]:
    """Validation losses after each fork, (forks, targets), and what it was trained on, (forks, groups).

    The engine is left as it was. It takes memory for another copy of weights and moments."""
    assert segment.forks is not None
    before, losses, tokens = _Before(engine), [], []
    for k, p in enumerate(segment.forks):
        if k:
            engine.between()
        stretch, measures = Segment(p, segment.fork_steps), Measures(engine.sampler.m, [])
        try:
            engine.forked, engine.sampler = before.step, before.sampler.trial()
            engine.settings = replace(engine.settings, schedule=_falling(engine, segment))
            for _ in range(segment.fork_steps):
                engine.train_step(engine.sampler.next(p), stretch, measures)
                engine.alive()
            losses.append(engine.val_losses(engine.validation))
            tokens.append((engine.sampler.drawn - before.sampler.drawn) * float(engine.sampler.context))
        except ValueError as error:  # it has diverged
            where = f"in a copy of the model that tries out {np.round(p, 3).tolist()} from step {before.step} on"
            error.args = (f"{where}, {error}",)
            raise
        finally:
            before.put_back()
    return {"fork_loss": np.stack(losses), "fork_tokens": np.stack(tokens)}


def _falling(engine: Engine, segment: Segment) -> Falling:
    plain = engine.settings.schedule
    return Falling(plain.peak, plain.steps, plain.warmup, plain.floor, begin=engine.step, scale=segment.fork_scale)


class _Before:
    """All that a fork changes, as it was."""

    def __init__(self, engine: Engine) -> None:
        _reshard(engine.model)
        self.engine, self.sampler, self.settings = engine, engine.sampler, engine.settings
        self.step, self.loss = engine.step, engine.loss
        self.tensors = [(t, t.detach().clone()) for t in (*engine.model.parameters(), *engine.model.buffers())]
        state = engine.optimizer.optimizer.state
        self.moments = {p: {k: _copied(v) for k, v in values.items()} for p, values in state.items()}
        self.random = torch.get_rng_state()
        device = engine.device
        self.device = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()

    def put_back(self) -> None:
        engine = self.engine
        _reshard(engine.model)
        with torch.no_grad():
            for tensor, value in self.tensors:
                tensor.copy_(value)
        state = engine.optimizer.optimizer.state
        state.clear()  # a run that had not begun had none
        state.update({p: {k: _copied(v) for k, v in values.items()} for p, values in self.moments.items()})
        engine.optimizer.zero_grad()
        engine.sampler, engine.settings, engine.step, engine.loss = self.sampler, self.settings, self.step, self.loss
        engine.forked = None
        torch.set_rng_state(self.random)
        if self.device is not None:
            torch.get_device_module(engine.device).set_rng_state(self.device)


def _reshard(model: torch.nn.Module) -> None:
    """Parameters of sharded models as the optimizer has them: those of the root stay whole after a look."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
