"""Many runs of one architecture at once: their parameters stacked, one batch for each, one pass for all (torch.func).

For runs with a fixed mixture, equally long. Equal to separate runs up to rounding, and faster where models and batches
are so small that most of a step is overhead (benchmarks/sweep.py). Nothing is saved on the way.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from aioli.protocol import Segment
from aioli.train import records
from aioli.train.engine import DivergedError, Settings
from aioli.train.measures import Measures
from aioli.train.probes import IGNORED, on_device
from aioli.train.running import Run, StoppedError

Tensor = torch.Tensor


class Stack:
    """Models in training; each parameter is one tensor, (models, *shape)."""

    def __init__(self, models: Sequence[torch.nn.Module], settings: Settings) -> None:
        if any(isinstance(layer, torch.nn.Dropout) and layer.p for layer in models[0].modules()):
            raise ValueError("models with dropout cannot be stacked: they would not draw as separate ones do")
        params, self.buffers = stack_module_state(list(models))
        self.params: dict[str, Tensor] = {name: p.detach() for name, p in params.items()}  # or a graph would grow
        self.clip = settings.clip
        skeleton = copy.deepcopy(models[0]).to("meta")

        def loss(params: dict[str, Tensor], buffers: dict[str, Tensor], ids: Tensor, labels: Tensor) -> Tensor:
            logits = functional_call(skeleton, (params, buffers), kwargs={"input_ids": ids}).logits
            wanted = labels[:, 1:].flatten()
            total = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), wanted, ignore_index=IGNORED, reduction="sum")
            return total / (wanted != IGNORED).sum().clamp(min=1)

        self.gradients = vmap(grad_and_value(loss))
        matrices = [p for p in self.params.values() if p.ndim >= 3]
        rest = [p for p in self.params.values() if p.ndim < 3]
        groups = [{"params": matrices, "weight_decay": settings.decay}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], betas=settings.betas, eps=settings.eps)

    def step(self, ids: Tensor, labels: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """One step of each model on its own batch, (models, batch, context); returns the losses before it, and which
        models took it: one whose loss or gradient is not finite stays as it was."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # attention goes model by model
            gradients, losses = self.gradients(self.params, self.buffers, ids, labels)
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients.values()]).norm(dim=0)
        sound = torch.isfinite(losses) & torch.isfinite(norms)
        scale = (self.clip / (norms + 1e-6)).clamp(max=1.0) if self.clip else torch.ones_like(norms)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for name, parameter in self.params.items():
            g = gradients[name]
            shape = (-1, *[1] * (g.ndim - 1))
            parameter.grad = torch.where(sound.view(shape), g * scale.view(shape), 0.0)
        self.optimizer.step()
        return losses, sound

    @torch.no_grad()
    def unstack(self, models: Sequence[torch.nn.Module]) -> None:
        """Put the parameters back into the models they came from."""
        for k, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.params[name][k])


def train_together(runs: Sequence[Run]) -> list[dict[str, Any] | DivergedError]:
    """Train runs side by side; what came of each. All of them stop when the first one is told to."""
    first = runs[0]
    with ExitStack() as held:
        for run in runs:
            held.enter_context(run.alone())
            run.resume()
            if run.engine.step != 0 or first.recipe.train.accumulate > 1 or first.recipe.train.compile:
                raise ValueError("only runs that begin, and neither accumulate nor compile, can be stacked")
        segments = [_only_segment(run) for run in runs]
        stack = Stack([run.engine.plain for run in runs], first.engine.settings)
        began = time.perf_counter()
        losses, problems = _steps(runs, segments, stack)
        seconds = (time.perf_counter() - began) / len(runs)
        stack.unstack([run.engine.plain for run in runs])
        found: list[dict[str, Any] | DivergedError] = []
        for run, segment, loss, problem in zip(runs, segments, losses, problems, strict=True):
            if problem is None:
                found.append(_conclude(run, segment, loss, seconds, len(runs)))
            else:
                found.append(DivergedError(f"{problem}; lower train.lr (now {run.recipe.train.lr})"))
        return found


def _only_segment(run: Run) -> Segment:
    segment = run.policy.ask()
    if segment is None or segment.steps != run.recipe.train.steps or segment.observe or segment.weighting != "sample":
        raise ValueError("only runs with a fixed mixture can be stacked")
    run.segment = segment
    return segment


def _steps(runs: Sequence[Run], segments: Sequence[Segment], stack: Stack) -> tuple[list[float], list[str | None]]:
    """All steps of all runs: the sum of losses of each, and for those that diverged the step."""
    first = runs[0]
    total = torch.zeros(len(runs), dtype=torch.float64, device=first.engine.device)
    problems: list[str | None] = [None] * len(runs)
    for step in range(first.recipe.train.steps):
        parts = [
            on_device(run.engine.sampler.next(segment.proportions), run.engine.device)
            for run, segment in zip(runs, segments, strict=True)
        ]
        ids, labels = (torch.stack([part[name] for part in parts]) for name in ("ids", "labels"))
        losses, sound = stack.step(ids, labels, first.engine.settings.schedule.rate(step))
        total += losses
        if not bool(sound.all()):
            for k in torch.nonzero(~sound).flatten().tolist():
                problems[k] = problems[k] or f"step {step}: the loss is {float(losses[k])} or its gradient not finite"
        for run, loss in zip(runs, losses.tolist(), strict=True):
            run.engine.step, run.engine.loss = step + 1, loss
            run.tell()
        if first.stop.is_set():
            raise StoppedError(0)
    return total.tolist(), problems


def _conclude(run: Run, segment: Segment, loss: float, seconds: float, together: int) -> dict[str, Any]:
    """The end of a run whose steps are trained: its journal, its verdict, its model."""
    engine = run.engine
    engine.segment = segment
    engine.measures = Measures(engine.sampler.m, [0] * engine.sampler.m, segment.steps, loss, train_seconds=seconds)
    observation = engine.advance(segment)
    run.policy.tell(observation)
    run.write(records.segment_line(run, segment, observation, 0))
    run.together = together
    return run.finish()
