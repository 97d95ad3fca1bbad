"""AdamW with decay on matrices only, and a learning rate that is a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine to a floor. Nothing to save: the step says it all."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.1
    """The rate at the end, as a share of the peak."""

    def rate(self, step: int) -> float:
        """The learning rate of step number `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        along = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.peak * (self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * along)))


def adamw(
    model: torch.nn.Module, rate: float, betas: tuple[float, float], eps: float, decay: float
) -> torch.optim.AdamW:
    """The optimizer of a model; biases and norms are not decayed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, betas=betas, eps=eps)
