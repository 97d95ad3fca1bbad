"""What a policy can ask of a model: losses by group, excess over a reference, inner products of gradients.

In: a model, sequences and the group of each. Out: one number per group or target. Losses are means over the tokens that
carry loss; a group without any is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from aioli.data.sampler import Batch

Tensor = torch.Tensor
IGNORED = -100


def on_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch of the sampler as tensors: ids, labels (tokens without loss are ignored), and the group of each."""
    ids = torch.from_numpy(batch.ids).to(device, non_blocking=True)
    labels = ids
    if batch.mask is not None:
        labels = ids.masked_fill(torch.from_numpy(batch.mask).to(device) == 0, IGNORED)
    return {"ids": ids, "labels": labels, "group": torch.from_numpy(batch.group).to(device)}


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each predicted token and whether it counts, both (samples, context - 1)."""
    wanted = labels[:, 1:]
    flat = F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(wanted.shape), wanted != IGNORED


def group_sums(values: Tensor, counted: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Sum of the values and number of the tokens of each group, (groups,)."""
    zeros = values.new_zeros(groups)
    sums = zeros.index_add(0, group, (values * counted).sum(1))
    return sums, zeros.index_add(0, group, counted.sum(1).to(values.dtype))


def group_losses(logits: Tensor, labels: Tensor, group: Tensor, groups: int, tokens: Tensor | None = None) -> Tensor:
    """Mean loss of each group; 0 for a group that is absent, so that it can be weighted and differentiated.

    `tokens`: divide by these instead, where the sequences are a part of a larger batch.
    """
    sums, here = group_sums(*token_losses(logits, labels), group, groups)
    return sums / (here if tokens is None else tokens).clamp(min=1)


@dataclass
class Validation:
    """A fixed set of sequences of each target."""

    ids: Tensor
    labels: Tensor
    target: Tensor
    """The target of each sequence."""
    targets: int
    batch: int

    @property
    def tokens(self) -> int:
        """Tokens in it."""
        return int(self.ids.numel())

    def part(self, rank: int, world: int) -> Validation:
        """Every world-th sequence of it; one without loss fills up, as all ranks must make the same passes."""
        each = -(-len(self.ids) // world)
        mine = torch.arange(rank, each * world, world)
        real = mine < len(self.ids)
        mine = mine.clamp(max=len(self.ids) - 1)
        labels = self.labels[mine].masked_fill(~real[:, None], IGNORED)
        return Validation(self.ids[mine], labels, self.target[mine], self.targets, self.batch)

    def losses(self, model: torch.nn.Module, forward: Callable[..., Any] | None = None) -> tuple[Tensor, Tensor]:
        """Sum of losses and tokens of each target, in float64, without gradients."""
        device = next(model.parameters()).device
        sums = torch.zeros(self.targets, dtype=torch.float64, device=device)
        counts = torch.zeros_like(sums)
        training, call = model.training, model if forward is None else forward
        model.eval()
        try:
            with torch.no_grad():
                for k in range(0, len(self.ids), self.batch):
                    some = slice(k, k + self.batch)
                    labels, target = self.labels[some].to(device), self.target[some].to(device)
                    logits = call(input_ids=self.ids[some].to(device)).logits
                    losses, counted = token_losses(logits, labels)
                    a, b = group_sums(losses.double(), counted, target, self.targets)
                    sums += a
                    counts += b
        finally:
            model.train(training)
        return sums, counts


def gradient_of(model: torch.nn.Module, loss: Tensor, keep: bool = False) -> dict[str, Tensor]:
    """The gradient of a loss by parameter, without touching the gradients that are being gathered.

    `keep` the graph for another one.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=keep)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found, strict=True)}
